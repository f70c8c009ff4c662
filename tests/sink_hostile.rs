//! Archives that no sender of ours writes: whatever they ask for, nothing outside the destination changes, and the
//! receiver fails or names what it left out.

use std::fs;
use std::os::unix::fs::symlink as make_symlink;
use std::path::Path;

use blast::Error;
use blast::archive::{Entry, EntryKind};
use blast::chunk::ChunkKind;
use blast::limits::CHUNK_LEN;

use crate::sink_feed::*;
use crate::sink_tree::assert_no_temp_names;

/// A destination beside a tree that must not change.
pub struct Canary {
    dir: tempfile::TempDir,
    name: &'static str,
    before: std::collections::BTreeMap<Vec<u8>, Seen>,
}

impl Canary {
    pub fn new() -> Canary {
        Canary::of("dest")
    }

    /// With another name for the destination.
    pub fn of(name: &'static str) -> Canary {
        let dir = scratch();
        let outside = dir.path().join("outside");
        fs::create_dir_all(outside.join("sub")).unwrap();
        fs::write(outside.join("file"), "canary").unwrap();
        make_symlink("file", outside.join("link")).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, outside.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        fs::create_dir(dir.path().join(name)).unwrap();
        let before = look(&outside);
        Canary { dir, name, before }
    }

    pub fn dest(&self) -> std::path::PathBuf {
        self.dir.path().join(self.name)
    }

    /// A path outside, absolute.
    pub fn outside(&self, below: &str) -> String {
        self.dir.path().join("outside").join(below).to_str().unwrap().to_owned()
    }

    /// Contents, modes, owners, times and inodes outside are what they were, and nothing was added.
    pub fn assert_unchanged(&self) {
        self.assert_outside_unchanged();
        assert_no_temp_names(&self.dest());
    }

    /// As [`Canary::assert_unchanged`], where the destination itself may look like anything.
    pub fn assert_outside_unchanged(&self) {
        assert_eq!(look(&self.dir.path().join("outside")), self.before, "nothing outside may change");
        let mut names: Vec<_> = fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        let mut expected = [self.name, "outside"];
        expected.sort();
        assert_eq!(names, expected, "nothing may appear outside");
    }
}

/// The header of an entry that an honest writer refuses: an honest one with other bytes for its path. Both are of one
/// length, so that only the checksum has to be mended.
fn forged(honest: &Entry, from: &str, to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    // Whole seconds, so that there is one block only.
    let honest = &Entry { mtime: Default::default(), ..honest.clone() };
    let len = blast::archive::header_len(honest);
    let mut header = vec![0; len];
    blast::archive::write_header(honest, &mut header);
    let at = header.windows(from.len()).position(|w| w == from.as_bytes()).expect("the name is in the header");
    header[at..at + to.len()].copy_from_slice(to);
    header[148..156].fill(b' ');
    let sum: u32 = header[..512].iter().map(|b| u32::from(*b)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

pub fn assert_verification(error: Error, text: &str) {
    assert!(matches!(error, Error::Verification(_)), "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

/// CVE-2007-4559: a name with `..` or a slash in front led out of the destination.
#[test]
fn cve_2007_4559_names_that_lead_outside_are_refused() {
    let names: [&[u8]; 12] = [
        b"../outside",
        b"/outside/f",
        b"a/../../xy",
        b"./outside0",
        b"a//outside",
        b"a/./outsid",
        b"outside/..",
        b"..........",
        b"outside\0/x",
        b"a/b/c/../x",
        b"//outside/",
        b"../../../..",
    ];
    for name in names {
        let honest = "n".repeat(name.len());
        for kind in [
            EntryKind::File { size: 0 },
            EntryKind::Directory,
            EntryKind::Fifo,
            EntryKind::Symlink { target: b"t".to_vec() },
            EntryKind::Hardlink { target: b"t".to_vec() },
        ] {
            let canary = Canary::new();
            let directory = kind.is_directory();
            let header = forged(&entry(&honest, kind), &honest, name);
            let mut feed = Feed::new();
            feed.entry(&self::directory(""), b"").entry(&file("t", 1), b"t").raw(&header);
            let outcome = unpack(&mut feed, &canary.dest());
            canary.assert_unchanged();
            // Ten dots are a fine name.
            if name == b".........." || (directory && name == b"outside\0/x") {
                continue;
            }
            let expected = if name.contains(&0) { "not written as the dialect has it" } else { "path '" };
            assert_verification(outcome.error(), expected);
        }
    }
}

/// RUSTSEC-2018-0002: a hard link to a file outside, and a second entry of its name to overwrite that with.
#[test]
fn rustsec_2018_0002_hard_link_targets_that_lead_outside_are_refused() {
    for target in ["../outside/file", "/outside/file/0", "a/../../outside"] {
        let canary = Canary::new();
        let honest = "t".repeat(target.len());
        let header = forged(&hardlink("name", &honest), &honest, target.as_bytes());
        let mut feed = Feed::new();
        feed.entry(&directory(""), b"").raw(&header);
        assert_verification(unpack(&mut feed, &canary.dest()).error(), "path '");
        canary.assert_unchanged();
    }
}

/// RUSTSEC-2021-0080: directories were made through a link that the archive itself had brought.
#[test]
fn rustsec_2021_0080_nothing_goes_through_a_symbolic_link_of_the_same_archive() {
    let canary = Canary::new();
    let outside = canary.outside("");
    let link = symlink("link", outside.trim_end_matches('/'));
    // Each is the third entry: after the root and the link.
    let through = [
        file("link/new", 5),
        file("link/file", 5),
        file("link/large", CHUNK_LEN + 5),
        directory("link/sub"),
        directory("link/new-directory"),
        symlink("link/new-link", "x"),
        entry("link/fifo", EntryKind::Fifo),
        hardlink("link/name", "before"),
    ];
    for last in through {
        let canary_dest = canary.dir.path().join("dest");
        let entries = [directory(""), file("before", 3), link.clone(), last];
        assert_verification(unpack(&mut Feed::all(&entries), &canary_dest).error(), "directory was not open");
        fs::remove_dir_all(&canary_dest).unwrap();
        fs::create_dir(&canary_dest).unwrap();
        canary.assert_unchanged();
    }
}

/// RUSTSEC-2026-0067: the mode of a directory entry went to what a link of its name pointed to.
#[test]
fn rustsec_2026_0067_a_directory_of_a_links_name_changes_neither_the_link_nor_what_it_points_to() {
    let canary = Canary::new();
    let mut open = directory("link");
    open.mode = 0o777;
    let entries = [
        directory(""),
        symlink("link", canary.outside("").trim_end_matches('/')),
        open,
        file("link/file", 5),
        directory("link/sub"),
        file("link/sub/x", 5),
        file("rest", 5),
    ];
    let noted = unpack(&mut Feed::all(&entries), &canary.dest()).noted();
    // Which of the two comes first is a matter of threads.
    if noted.len() == 1 {
        assert_eq!(noted, ["link"]);
        assert_exact(&canary.dest(), &[&entries[..1], &entries[2..]].concat());
    } else {
        assert_eq!(noted, ["link", "link/file", "link/sub", "link/sub/x"]);
        assert_exact(&canary.dest(), &[entries[0].clone(), entries[1].clone(), entries[6].clone()]);
    }
    canary.assert_unchanged();
}

#[test]
fn a_hard_link_reaches_nothing_that_this_transfer_did_not_create() {
    let canary = Canary::new();
    let entries = [
        directory(""),
        directory("d"),
        symlink("d/out", canary.outside("").trim_end_matches('/')),
        symlink("d/self", "."),
        file("f", 5),
        hardlink("g1", "d/out/file"),
        hardlink("g2", "d/self/../f"),
        hardlink("g3", "missing"),
        hardlink("g4", "d/missing/f"),
        hardlink("g5", "f/x"),
        hardlink("g6", "d"),
        hardlink("h", "f"),
        file("last", 5),
    ];
    let mut feed = Feed::new();
    for entry in &entries {
        if entry.path == b"g2" {
            continue;
        }
        feed.entry(entry, &bytes(entry.kind.content_len() as usize, entry.path.len() as u8));
    }
    let noted = unpack(&mut feed, &canary.dest()).noted();
    assert_eq!(noted, ["g1", "g3", "g4", "g5", "g6"]);
    let left: Vec<_> = entries.iter().filter(|e| !e.path.starts_with(b"g")).cloned().collect();
    assert_exact(&canary.dest(), &left);
    canary.assert_unchanged();
}

/// The nearest to CVE-2024-12086, where a peer was told what files of the other machine held.
#[test]
fn cve_2024_12086_a_hard_link_to_what_lay_in_lost_and_found_is_left_out() {
    let canary = Canary::new();
    fs::create_dir(canary.dest().join("lost+found")).unwrap();
    fs::write(canary.dest().join("lost+found/secret"), "secret").unwrap();
    let entries = [directory(""), hardlink("mine", "lost+found/secret"), file("rest", 3)];
    assert_eq!(unpack(&mut Feed::all(&entries), &canary.dest()).noted(), ["mine"]);
    assert!(!canary.dest().join("mine").exists());
    canary.assert_unchanged();
}

#[test]
fn a_second_file_never_writes_into_a_shared_inode() {
    let canary = Canary::new();
    let entries = [directory(""), file("a", 5), hardlink("b", "a"), file("a", 900), symlink("c", "a"), file("c", 7)];
    assert_eq!(unpack(&mut Feed::all(&entries), &canary.dest()).noted(), ["a", "c"]);
    assert_exact(&canary.dest(), &[&entries[..3], &entries[4..5]].concat());
}

#[test]
fn what_lies_in_the_way_of_a_temporary_name_is_not_touched() {
    // The names cannot be guessed, so all that can be shown is that one like them is an entry like any other.
    let canary = Canary::new();
    let entries = [directory(""), file(".blast-0000000000000000-0", 4), file("large", 2 * CHUNK_LEN)];
    unpack(&mut Feed::all(&entries), &canary.dest()).whole();
    assert_exact(&canary.dest(), &entries);
}

#[test]
fn streams_that_are_cut_or_run_on_are_violations() {
    let mut cases: Vec<(&str, Feed)> = Vec::new();
    let mut case = |name, build: &dyn Fn(&mut Feed)| {
        let mut feed = Feed::new();
        feed.entry(&directory(""), b"");
        build(&mut feed);
        cases.push((name, feed));
    };
    let large = file("large", 2 * CHUNK_LEN);
    let header = |feed: &mut Feed| {
        let mut bytes = vec![0; blast::archive::header_len(&large)];
        blast::archive::write_header(&large, &mut bytes);
        feed.raw(&bytes);
    };
    let data = |offset, sole| ChunkKind::Data { offset, sole };
    case("a slice without a file", &|feed| {
        feed.chunk(data(0, true), b"x").end();
    });
    case("a slice at the wrong offset", &|feed| {
        header(feed);
        feed.chunk(data(CHUNK_LEN as u64, false), &[1; CHUNK_LEN]).end();
    });
    case("a short slice", &|feed| {
        header(feed);
        feed.chunk(data(0, false), &[1; 1024]).chunk(data(1024, false), &[1; 1024]).end();
    });
    case("a slice too many", &|feed| {
        header(feed);
        for i in 0..3 {
            feed.chunk(data(i * CHUNK_LEN as u64, false), &[1; CHUNK_LEN]);
        }
        feed.end();
    });
    case("a header inside a file", &|feed| {
        header(feed);
        feed.chunk(data(0, false), &[1; CHUNK_LEN]).entry(&file("x", 1), b"x").end();
    });
    case("the end inside a file", &|feed| {
        header(feed);
        feed.chunk(data(0, false), &[1; CHUNK_LEN]);
    });
    case("no end", &|feed| feed.cut());
    case("an entry after the end", &|feed| {
        feed.end().entry(&file("x", 1), b"x").end();
    });
    case("content that is cut", &|feed| {
        let mut bytes = vec![0; blast::archive::header_len(&file("x", 600))];
        blast::archive::write_header(&file("x", 600), &mut bytes);
        feed.raw(&bytes).raw(&[1; 512]).end();
    });
    case("padding that is not zero", &|feed| {
        feed.entry(&file("x", 600), &[1; 600]).raw(b"").end();
        let mixed = feed.last_chunk();
        let at = mixed.len() - 1024 - 1;
        mixed[at] = 1;
    });
    case("a directory that was never announced", &|feed| {
        feed.entry(&file("never/x", 1), b"x").end();
    });
    case("a directory that was left", &|feed| {
        feed.entry(&directory("a"), b"").entry(&directory("b"), b"").entry(&file("a/x", 1), b"x").end();
    });
    for (name, feed) in cases {
        let canary = Canary::new();
        let outcome = deliver(&feed, &canary.dest(), &blast::wire::Offer::Tree { sources: 1 });
        assert!(matches!(outcome.error(), Error::Verification(_)), "{name}");
        canary.assert_unchanged();
    }
}

#[test]
fn counts_that_differ_from_the_senders_are_a_failure() {
    let change: [fn(&mut blast::wire::Finish); 4] =
        [|f| f.chunks += 1, |f| f.entries += 1, |f| f.bytes -= 1, |f| f.content_bytes += 1];
    for change in change {
        let dir = scratch();
        let mut feed = Feed::all(&[directory(""), file("x", 5)]);
        feed.end();
        let outcome = deliver_with(&feed, dir.path(), &blast::wire::Offer::Tree { sources: 1 }, change);
        assert_verification(outcome.error(), "the sender says");
    }
}

#[test]
fn a_claim_of_eight_exbibytes_allocates_and_creates_nothing_of_that_size() {
    let canary = Canary::new();
    let huge = entry("huge", EntryKind::File { size: i64::MAX as u64 });
    let mut header = vec![0; blast::archive::header_len(&huge)];
    blast::archive::write_header(&huge, &mut header);
    let mut feed = Feed::new();
    feed.entry(&directory(""), b"").raw(&header).chunk(ChunkKind::Data { offset: 0, sole: false }, &[7; CHUNK_LEN]);
    assert_verification(deliver(&feed, &canary.dest(), &blast::wire::Offer::Tree { sources: 1 }).error(), "no end");
    assert!(!Path::new(&canary.dest()).join("huge").exists());
    canary.assert_unchanged();
}
