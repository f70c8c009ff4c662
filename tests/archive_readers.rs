//! GNU tar and bsdtar extract what the archive writer writes to the tree that its entries describe: names and targets
//! at every length where a tar format has an edge, names of any bytes, ids and times out of the plain header's range,
//! hard links, FIFOs, the root itself. Every entry is compared, so each of them leaves the ones after it intact.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use blast::archive::{END, Entry, EntryKind, Timestamp, header_len, padding, write_header};
use blast::error::escape;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};

/// A reader and what it is known to get wrong.
struct Reader {
    program: &'static str,
    /// What its `--version` says.
    is: &'static str,
    extract: &'static [&'static str],
    /// Adds the fraction of a time before 1970 instead of subtracting it, in some versions.
    adds_negative_fractions: bool,
    /// Sets the times of a directory that was there before, such as the one it extracts into.
    times_the_root: bool,
}

const READERS: [Reader; 2] = [
    Reader {
        program: "tar",
        is: "GNU tar",
        extract: &["--warning=no-timestamp", "--warning=no-unknown-keyword", "--numeric-owner", "-xpf"],
        adds_negative_fractions: false,
        times_the_root: true,
    },
    Reader {
        program: "bsdtar",
        is: "bsdtar",
        extract: &["--numeric-owner", "-xpf"],
        adds_negative_fractions: true,
        times_the_root: false,
    },
];

impl Reader {
    fn run(&self, args: &[&str], archive: &Path, dir: &Path) -> Output {
        // bsdtar needs a UTF-8 locale for the names that are UTF-8; those that are not are marked binary.
        let mut command = Command::new(self.program);
        command.args(args).arg(archive).arg("-C").arg(dir).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        command.output().expect("the program was there a moment ago")
    }

    fn is_here(&self) -> bool {
        let version = Command::new(self.program).arg("--version").output();
        let here = version.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(self.is));
        if !here {
            eprintln!("SKIPPED: there is no {} here; scripts/test installs it", self.is);
        }
        here
    }
}

/// Entries with their contents, parents before children.
#[derive(Default)]
struct Tree {
    members: Vec<(Entry, Vec<u8>)>,
    /// Where in `members` a path is.
    places: HashMap<Vec<u8>, usize>,
}

const TIMES: [Timestamp; 8] = [
    Timestamp { secs: 1_700_000_000, nanos: 0 },
    Timestamp { secs: 1_700_000_000, nanos: 123_456_789 },
    Timestamp { secs: 0, nanos: 1 },
    Timestamp { secs: -1, nanos: 0 },
    Timestamp { secs: 4_294_967_296, nanos: 999_999_999 },
    Timestamp { secs: 8_589_934_591, nanos: 0 },
    Timestamp { secs: 8_589_934_592, nanos: 0 },
    Timestamp { secs: 15_032_385_535, nanos: 500_000_000 },
];

impl Tree {
    fn add(&mut self, path: impl AsRef<[u8]>, kind: EntryKind, content: &[u8]) -> &mut Entry {
        let path = path.as_ref().to_vec();
        let parent = path.iter().rposition(|b| *b == b'/').map_or(&[][..], |slash| &path[..slash]).to_vec();
        if !path.is_empty() && !self.places.contains_key(&parent) {
            self.add(parent, EntryKind::Directory, b"");
        }
        let mtime = TIMES[self.members.len() % TIMES.len()];
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let entry = Entry { path, kind, mode: 0o755, uid, gid, mtime, extras: None };
        entry.check().expect("the archive can carry it");
        assert_eq!(self.places.insert(entry.path.clone(), self.members.len()), None, "a path twice");
        self.members.push((entry, content.to_vec()));
        &mut self.members.last_mut().expect("one was pushed").0
    }

    fn file(&mut self, path: impl AsRef<[u8]>) -> &mut Entry {
        let content = [b"content of ", path.as_ref()].concat();
        self.add(path, EntryKind::File { size: content.len() as u64 }, &content)
    }

    fn symlink(&mut self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> &mut Entry {
        let target = target.as_ref().to_vec();
        let entry = self.add(path, EntryKind::Symlink { target }, b"");
        entry.mode = 0o777;
        entry
    }

    /// A hard link to an entry before it, with that entry's attributes.
    fn link(&mut self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) {
        let target = target.as_ref().to_vec();
        let first = self.members[self.places[&target]].0.clone();
        let entry = self.add(path, EntryKind::Hardlink { target }, b"");
        *entry = Entry { path: entry.path.clone(), kind: entry.kind.clone(), ..first };
    }

    /// In the order of a walk: readers finish a directory when the order leaves it.
    fn sort(&mut self) {
        self.members.sort_by_cached_key(|(entry, _)| {
            entry.path.iter().map(|b| if *b == b'/' { 0 } else { *b }).collect::<Vec<_>>()
        });
        self.places = self.members.iter().enumerate().map(|(n, (entry, _))| (entry.path.clone(), n)).collect();
        for (n, (entry, _)) in self.members.iter().enumerate() {
            if let EntryKind::Hardlink { target } = &entry.kind {
                assert!(self.places[target] < n, "{} comes before its target", escape(&entry.path));
            }
        }
    }

    fn archive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (entry, content) in &self.members {
            let start = out.len();
            out.resize(start + header_len(entry), 0xaa);
            assert_eq!(write_header(entry, &mut out[start..]), out.len() - start);
            out.extend_from_slice(content);
            out.resize(out.len() + padding(content.len() as u64), 0);
        }
        out.extend_from_slice(&END);
        out
    }
}

/// A path of that many bytes below `top`, of components of at most `step`.
fn path_of(len: usize, top: &str, step: usize) -> String {
    let mut path = top.to_owned();
    while len - path.len() > step + 2 {
        path += "/";
        path += &"d".repeat(step);
    }
    let rest = len - path.len() - 1;
    path + "/" + &"f".repeat(rest)
}

fn lengths(tree: &mut Tree) {
    for n in [1, 98, 99, 100, 101, 153, 154, 155, 156, 157, 254, 255] {
        let name = "n".repeat(n);
        tree.file(format!("name/{name}"));
        tree.file(&name);
        tree.add(format!("dir/{name}"), EntryKind::Directory, b"");
        tree.file(format!("dir/{name}/{name}"));
        tree.symlink(format!("target/{n}"), &name);
        tree.link(format!("z-link/{n}"), &name);
        tree.link(format!("z-link/{name}"), format!("dir/{name}/{name}"));
    }
    for n in [512, 1023, 1024, 4094, 4095] {
        tree.symlink(format!("target/{n}"), "t".repeat(n));
    }
    // Components that fit a field, and such that no slash is where the fields would be divided.
    for (top, step) in [("short", 60), ("long", 200)] {
        for n in (90..=1100).chain([4094, 4095]) {
            let path = path_of(n, top, step);
            assert_eq!(path.len(), n);
            tree.file(&path);
            if n % 16 < 3 || n > 4000 {
                tree.link(format!("z-link/{top}{n}"), &path);
            }
        }
    }
}

fn names(tree: &mut Tree) {
    let every_byte = (1..=255u8).filter(|b| *b != b'/').map(|b| vec![b, b'x', b]);
    let odd = [
        &b"\xfe"[..],
        b"\xff",
        b"caf\xe9",
        "café 日本 e\u{301}".as_bytes(),
        b"a\nb",
        b"x\n15 path=evil.x\n",
        b"\x1b[31mred\r",
        b"-rf",
        b"--help",
        b" ",
        b"sp ace ",
        b"back\\slash",
        b"\\n",
        b"dot.",
        b"...",
        b"a:b",
        b"~",
        b"*",
        b"#x",
        b"CON",
        b"._doc",
        b"doc",
        b".DS_Store",
        b"@LongLink",
        b"GNUSparseFile.0",
        b"PaxHeaders",
        b"tab\t",
        b"%f",
    ];
    for name in every_byte.chain(odd.map(|name| name.to_vec())) {
        tree.file([b"odd/", &name[..]].concat());
    }
    tree.file(b"d\xc3\x28/\xff\xfe/f");
    tree.file([b"\xff/", &b"long and not text \xe9".repeat(10)[..]].concat());
    tree.file([b"text/", "lång ".repeat(40).as_bytes()].concat());
    tree.symlink("to/binary", b"t\xff");
    tree.symlink("to/long-binary", b"t\xff".repeat(100));
    tree.symlink("to/newline", b"t\n".repeat(100));
    tree.link(b"\xff/z-link", [b"\xff/", &b"long and not text \xe9".repeat(10)[..]].concat());
}

fn kinds(tree: &mut Tree, ids: bool) {
    for (name, target) in [
        ("absolute", "/etc/passwd"),
        ("up", "../../../.."),
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("self", "."),
        ("slashes", "a//b/"),
        ("busybox", "../bin/busybox"),
    ] {
        tree.symlink(format!("links/{name}"), target);
        tree.link(format!("links/z-{name}"), format!("links/{name}"));
    }
    tree.add("pipe", EntryKind::Fifo, b"").mode = 0o640;
    tree.link("pipe-again", "pipe");
    // Only root can look into what its owner may not read.
    let least = if ids { 0 } else { 0o700 };
    tree.add("empty-file", EntryKind::File { size: 0 }, b"").mode = least;
    for n in [1, 511, 512, 513, 1024, 70_000] {
        tree.add(format!("sizes/{n}"), EntryKind::File { size: n }, &vec![b's'; n as usize]);
    }
    for mode in [0, 0o1, 0o400, 0o777, 0o1777, 0o2755, 0o4755, 0o7777] {
        tree.file(format!("modes/f{mode:o}")).mode = mode | least;
        tree.add(format!("modes/d{mode:o}"), EntryKind::Directory, b"").mode = mode | least;
    }
    // A directory that its owner may not write, with something in it.
    tree.add("closed", EntryKind::Directory, b"").mode = 0o500 | least;
    tree.file("closed/inside");
    for (n, secs) in [-2_147_483_648, -86_401, -2, -1].into_iter().enumerate() {
        tree.file(format!("before-1970/f{n}")).mtime = Timestamp { secs, nanos: 0 };
        tree.file(format!("before-1970/f{n}.5")).mtime = Timestamp { secs, nanos: 500_000_000 };
        tree.symlink(format!("before-1970/l{n}"), "x").mtime = Timestamp { secs, nanos: 999_999_999 };
    }
    if ids {
        // Who may give files away may make devices, nearly always.
        for (n, (major, minor)) in [(1, 3), (0, 0), (259, 1_048_575), (4095, 255)].into_iter().enumerate() {
            for block in [false, true] {
                let kind = EntryKind::Device { block, major, minor };
                tree.add(format!("devices/{n}{block}"), kind, b"").mode = 0o640;
            }
        }
        for (n, id) in [1000, 65_534, 65_536, 2_097_151, 2_097_152, 4_294_967_294].into_iter().enumerate() {
            let owned = tree.file(format!("ids/{n}"));
            (owned.uid, owned.gid) = (id, 4_294_967_294 - n as u32);
            tree.symlink(format!("ids/l{n}"), "x").uid = id;
            tree.add(format!("ids/d{n}"), EntryKind::Directory, b"").gid = id;
        }
    }
}

/// Whether this process may give files away; owners are compared only then.
fn may_chown(dir: &Path) -> bool {
    let probe = dir.join("owned");
    File::create(&probe).unwrap();
    let id = 4_294_967_294;
    let may = rustix::fs::chown(&probe, Some(Uid::from_raw(id)), Some(Gid::from_raw(id))).is_ok();
    fs::remove_file(&probe).unwrap();
    if !may {
        eprintln!("SKIPPED: owners are not compared, this process is not root");
    }
    may
}

/// What this file system makes of a time: some end in 1901, 2038 or 2446.
fn storable(dir: &Path, time: Timestamp) -> Timestamp {
    let probe = dir.join("timed");
    let file = File::create(&probe).unwrap();
    let spec = Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() };
    rustix::fs::futimens(&file, &Timestamps { last_access: spec, last_modification: spec }).unwrap();
    mtime(&rustix::fs::fstat(&file).unwrap())
}

fn mtime(stat: &Stat) -> Timestamp {
    Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }
}

fn lstat(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<Stat> {
    let path = if path.is_empty() { b"." } else { path };
    rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW)
}

fn read(root: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<u8>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(root, path, flags, Mode::empty()).map_err(|e| e.to_string())?;
    let mut content = Vec::new();
    File::from(file).read_to_end(&mut content).map_err(|e| e.to_string())?;
    Ok(content)
}

/// What differs between an extracted tree and the entries it was to be.
fn compare(reader: &Reader, tree: &Tree, root: &OwnedFd, scratch: &Path, ids: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut times = HashMap::new();
    for (entry, content) in &tree.members {
        let mut differs = |what: &str, is: &dyn std::fmt::Debug, should: &dyn std::fmt::Debug| {
            wrong.push(format!("{}: {what} {is:?}, should be {should:?}", escape(&entry.path)));
        };
        let stat = match lstat(root.as_fd(), &entry.path) {
            Ok(stat) => stat,
            Err(error) => {
                differs("is", &error, &"there");
                continue;
            }
        };
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let expected_type = match &entry.kind {
            EntryKind::File { .. } | EntryKind::Sparse { .. } => FileType::RegularFile,
            EntryKind::Directory => FileType::Directory,
            EntryKind::Symlink { .. } => FileType::Symlink,
            EntryKind::Fifo => FileType::Fifo,
            EntryKind::Device { block: false, .. } => FileType::CharacterDevice,
            EntryKind::Device { block: true, .. } => FileType::BlockDevice,
            EntryKind::Hardlink { target } => {
                let first = lstat(root.as_fd(), target).map(|first| first.st_ino);
                if first != Ok(stat.st_ino) {
                    differs("inode", &stat.st_ino, &first);
                }
                file_type
            }
        };
        if file_type != expected_type {
            differs("type", &file_type, &expected_type);
            continue;
        }
        if let EntryKind::Device { major, minor, .. } = entry.kind {
            let found = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
            if found != (major, minor) {
                differs("device", &found, &(major, minor));
            }
        }
        if let EntryKind::File { .. } = entry.kind {
            let found = read(root.as_fd(), &entry.path);
            if found.as_ref() != Ok(content) {
                differs("content", &found.map(|found| escape(&found)), &escape(content));
            }
        }
        if let EntryKind::Symlink { target } = &entry.kind {
            let found = rustix::fs::readlinkat(root, &entry.path[..], Vec::new()).unwrap_or_default();
            if found.to_bytes() != target {
                differs("target", &found, &escape(target));
            }
        }
        if file_type != FileType::Symlink && stat.st_mode & 0o7777 != entry.mode {
            differs("mode", &format!("{:o}", stat.st_mode & 0o7777), &format!("{:o}", entry.mode));
        }
        if ids && (stat.st_uid, stat.st_gid) != (entry.uid, entry.gid) {
            differs("ids", &(stat.st_uid, stat.st_gid), &(entry.uid, entry.gid));
        }
        let mut stored = |time| *times.entry(time).or_insert_with(|| storable(scratch, time));
        let time = stored(entry.mtime);
        let added =
            Timestamp { secs: entry.mtime.secs + 1, nanos: (1_000_000_000 - entry.mtime.nanos) % 1_000_000_000 };
        let excused = (entry.path.is_empty() && !reader.times_the_root)
            || (entry.mtime.secs < 0 && reader.adds_negative_fractions && mtime(&stat) == stored(added));
        if mtime(&stat) != time && !excused {
            differs("mtime", &mtime(&stat), &time);
        }
    }
    let count = count(root.as_fd());
    if count != tree.members.len() {
        wrong.push(format!("{count} entries, should be {}", tree.members.len()));
    }
    wrong
}

/// Entries in a directory and below, itself included.
fn count(dir: BorrowedFd<'_>) -> usize {
    let names = rustix::fs::Dir::read_from(dir).unwrap().map(|item| item.unwrap().file_name().to_owned());
    let names = names.filter(|name| name.to_bytes() != b"." && name.to_bytes() != b"..").collect::<Vec<_>>();
    1 + names
        .iter()
        .map(|name| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            rustix::fs::openat(dir, name, flags, Mode::empty()).map_or(1, |dir| count(dir.as_fd()))
        })
        .sum::<usize>()
}

#[test]
fn gnu_tar_and_bsdtar_extract_the_tree_that_the_entries_describe() {
    let place = tempfile::tempdir().unwrap();
    let ids = may_chown(place.path());
    let mut tree = Tree::default();
    let root = tree.add("", EntryKind::Directory, b"");
    (root.mode, root.mtime) = (0o751, Timestamp { secs: 1_234_567_890, nanos: 987_654_321 });
    lengths(&mut tree);
    names(&mut tree);
    kinds(&mut tree, ids);
    tree.sort();
    let archive = place.path().join("archive.tar");
    fs::write(&archive, tree.archive()).unwrap();
    for reader in READERS.iter().filter(|reader| reader.is_here()) {
        let dir = place.path().join(reader.program);
        fs::create_dir(&dir).unwrap();
        let out = reader.run(reader.extract, &archive, &dir);
        let complaints = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && complaints.is_empty(), "{}: {}\n{complaints}", reader.is, out.status);
        let root = rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let wrong = compare(reader, &tree, &root, place.path(), ids);
        assert!(
            wrong.is_empty(),
            "{}, {} differences:\n{}",
            reader.is,
            wrong.len(),
            wrong[..wrong.len().min(40)].join("\n")
        );
    }
}

#[test]
fn a_file_of_eight_gib_and_more_is_followed_by_an_intact_small_one() {
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("archive.tar");
    let file = File::create(&archive).unwrap();
    let sizes = [2_147_483_648, 4_294_967_297, 8_589_934_591, 8_589_934_592, 1_099_511_627_776];
    let mut at = 0;
    let mut names = Vec::new();
    for size in sizes {
        let mut tree = Tree::default();
        tree.places.insert(Vec::new(), 0);
        tree.add(format!("big{size}"), EntryKind::File { size }, b"").uid = 3_000_000;
        let big = &tree.members[0].0;
        let mut header = vec![0; header_len(big)];
        write_header(big, &mut header);
        file.write_all_at(&header, at).unwrap();
        // The content is a hole.
        at += header.len() as u64 + size + padding(size) as u64;
        tree.members.clear();
        tree.file(format!("after{size}"));
        let small = tree.archive();
        // The last one's end stays.
        file.write_all_at(&small, at).unwrap();
        at += (small.len() - END.len()) as u64;
        names.extend([(format!("big{size}"), size), (format!("after{size}"), tree.members[0].1.len() as u64)]);
    }
    for reader in READERS.iter().filter(|reader| reader.is_here()) {
        let out = reader.run(&["--numeric-owner", "-tvf"], &archive, place.path());
        let list = String::from_utf8(out.stdout).unwrap();
        let found = list.lines().map(|line| {
            let words = line.split_whitespace().collect::<Vec<_>>();
            // GNU: mode owner/group size …; bsdtar: mode links owner group size …
            let size = if reader.is == "GNU tar" { words[2] } else { words[4] };
            (words.last().unwrap().to_string(), size.parse().unwrap())
        });
        assert_eq!(found.collect::<Vec<(String, u64)>>(), names, "{}", reader.is);
        assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}
