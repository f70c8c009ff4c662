//! What is sent is what is there.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;

use rustix::fs::{AtFlags, CWD, FileType, Timespec, Timestamps};

use super::*;
use crate::limits::{NAME_LEN_MAX, PATH_LEN_MAX};
use crate::wire::Offer;

#[test]
fn a_tree_comes_out_of_gnu_tar_as_it_was() {
    let src = tree();
    mkdir(src.path(), "empty");
    mkdir(src.path(), "a/b/c");
    write(src.path(), "a/b/c/one", b"1");
    write(src.path(), "a/none", b"");
    write(src.path(), "full block", &noise(1, 512));
    write(src.path(), "almost large", &noise(2, CHUNK_LEN - 1));
    write(src.path(), "one slice", &noise(3, CHUNK_LEN));
    write(src.path(), "large", &noise(4, 3 * CHUNK_LEN + 77));
    write(src.path(), "large and even", &noise(5, 2 * CHUNK_LEN + 512));
    write(src.path(), "zz", b"after the large ones");
    for i in 0..3000 {
        write(src.path(), &format!("a/b/f{i}"), &noise(i, i as usize % 1500));
    }
    std::os::unix::fs::symlink("../nowhere", src.path().join("a/dangling")).unwrap();
    let sent = send_tree(src.path());
    assert_eq!(sent.noted(), []);
    assert_eq!(manifest(untar(&sent.stream()).path()), manifest(src.path()));
    assert_eq!(sent.file("almost large").unwrap(), noise(2, CHUNK_LEN - 1));
    assert_eq!(sent.file("large").unwrap(), noise(4, 3 * CHUNK_LEN + 77));
    assert_eq!(sent.stats.entries_found.load(Relaxed), sent.end.entries);
    assert_eq!(sent.stats.bytes_found.load(Relaxed), sent.end.content_bytes);
}

#[test]
fn order_is_depth_first_bytewise_and_the_same_every_time() {
    let src = tree();
    for name in ["b/x", "b.txt", "b", "a/z/y", "a/z.", "a-", "B"] {
        if !src.path().join(name).exists() {
            mkdir(src.path(), name);
        }
    }
    write(src.path(), "a/z/y/f", b"");
    let paths = send_tree(src.path()).paths();
    assert_eq!(paths, ["", "B", "a", "a/z", "a/z/y", "a/z/y/f", "a/z.", "a-", "b", "b/x", "b.txt"]);
    assert_eq!(send_tree(src.path()).stream(), send_tree(src.path()).stream());
}

#[test]
fn files_that_just_fit_one_chunk_and_just_do_not_are_whole() {
    let src = tree();
    let mut lens = vec![];
    for blocks in 0..8 {
        for off in [0, 1, 511] {
            lens.push(CHUNK_LEN + off - blocks * 512 - 511);
        }
    }
    for (i, len) in lens.iter().enumerate() {
        write(src.path(), &format!("{i}"), &noise(i as u64, *len));
    }
    let sent = send_tree(src.path());
    for (entry, content) in &sent.entries()[1..] {
        let i: usize = std::str::from_utf8(&entry.path).unwrap().parse().unwrap();
        assert!(*content == noise(i as u64, lens[i]), "{} bytes", lens[i]);
    }
    let data = sent.chunks.iter().filter(|(kind, _)| *kind != ChunkKind::Mixed).count();
    assert!((1..lens.len()).contains(&data), "both ways of sending are met: {data} of {}", lens.len());
}

/// What a walk with that many threads sees, and the notes it makes.
fn walk(path: &Path, threads: usize) -> (Vec<(Vec<u8>, meta::Meta)>, Vec<Note>) {
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let Named::Roots(roots) = open_tree(&[path.to_path_buf()]).unwrap().named else { unreachable!() };
    let mut walk = Walk::new(
        roots,
        Arc::new(Selection::everything()),
        Arc::new(dirs::Dirs::new()),
        asker(),
        stats.clone(),
        notes.clone(),
        threads,
    );
    let mut steps = Vec::new();
    while let Some(step) = walk.step() {
        steps.push((step.path.to_vec(), step.meta));
    }
    let notes = notes.notes().named;
    assert_eq!(stats.entries_found.load(Relaxed), (steps.len() + notes.len()) as u64);
    assert!(stats.found_all.load(Relaxed));
    (steps, notes)
}

#[test]
fn any_number_of_threads_gives_the_same_walk() {
    let src = tree();
    // More than two batches in one directory, with directories between the files.
    for i in 0..2500 {
        write(src.path(), &format!("{i:05}"), b"");
        if i % 7 == 0 {
            mkdir(src.path(), &format!("{i:05}d/e"));
            write(src.path(), &format!("{i:05}d/e/f"), b"");
            write(src.path(), &format!("{i:05}d/g"), b"");
        }
    }
    let alone = walk(src.path(), 0);
    let mut sorted: Vec<Vec<Vec<u8>>> =
        alone.0.iter().map(|(path, _)| path.split(|b| *b == b'/').map(<[u8]>::to_vec).collect()).collect();
    sorted.sort();
    let joined: Vec<_> = sorted.iter().map(|components| components.join(&b'/')).collect();
    assert!(joined.iter().eq(alone.0.iter().map(|(path, _)| path)), "component by component, bytewise");
    for threads in [1, 2, 16] {
        for _ in 0..5 {
            assert!(walk(src.path(), threads) == alone, "{threads} threads");
        }
    }
}

#[test]
fn names_are_any_bytes_and_any_length() {
    let src = tree();
    for byte in 1..=255u8 {
        if byte != b'/' && byte != b'.' {
            std::fs::write(src.path().join(OsStr::from_bytes(&[byte])), [byte]).unwrap();
        }
    }
    for len in [99, 100, 101, 154, 155, 156, NAME_LEN_MAX] {
        write(src.path(), &"n".repeat(len), b"x");
        symlink("t".repeat(len), src.path().join("l".repeat(len))).unwrap();
    }
    symlink("t".repeat(4095), src.path().join("longest")).unwrap();
    for name in ["a:b", "-rf", "--help", "sp ace ", "back\\slash", "dot.", "~", "*", "two\nlines", "._x", "..."] {
        write(src.path(), name, name.as_bytes());
    }
    mkdir(src.path(), "a\nb=c\n/13 path=evil\n");
    let sent = send_tree(src.path());
    assert_eq!(sent.noted(), []);
    assert_eq!(manifest(untar(&sent.stream()).path()), manifest(src.path()));
}

#[test]
fn links_are_never_followed_and_their_targets_are_data() {
    let src = tree();
    mkdir(src.path(), "a");
    for (name, target) in [
        ("a/self", "../a"),
        ("a/up", ".."),
        ("dangling", "nowhere"),
        ("etc", "/etc"),
        ("loop", "loop"),
        ("far", "../../.."),
    ] {
        symlink(target, src.path().join(name)).unwrap();
    }
    let sent = send_tree(src.path());
    assert_eq!(sent.paths(), ["", "a", "a/self", "a/up", "dangling", "etc", "far", "loop"]);
    assert_eq!(sent.entry("far").kind, EntryKind::Symlink { target: b"../../..".to_vec() });
    assert_eq!(manifest(untar(&sent.stream()).path()), manifest(src.path()));
}

#[test]
fn link_groups_stay_groups_whatever_they_link() {
    let src = tree();
    for dir in ["a", "b"] {
        mkdir(src.path(), dir);
    }
    write(src.path(), "a/small", b"once");
    write(src.path(), "a/large", &noise(1, 2 * CHUNK_LEN));
    symlink("nowhere", src.path().join("a/link")).unwrap();
    rustix::fs::mknodat(CWD, src.path().join("a/fifo"), FileType::Fifo, 0o640.into(), 0).unwrap();
    for name in ["small", "large", "link", "fifo"] {
        let first = src.path().join("a").join(name);
        for again in [format!("b/{name}"), format!("{name}2")] {
            rustix::fs::linkat(CWD, &first, CWD, src.path().join(again), AtFlags::empty()).unwrap();
        }
    }
    // Its other name is not in the tree.
    let outside = tempfile::tempdir_in(src.path().parent().unwrap()).unwrap();
    write(outside.path(), "f", b"half");
    std::fs::hard_link(outside.path().join("f"), src.path().join("half")).unwrap();
    let sent = send_tree(src.path());
    assert_eq!(sent.noted(), []);
    let content = sent.end.content_bytes;
    assert_eq!(content, 8 + 2 * CHUNK_LEN as u64, "each content is sent once");
    assert_eq!(sent.stats.bytes_found.load(Relaxed), content, "and counted once");
    let out = untar(&sent.stream());
    let right: Vec<_> = manifest(src.path()).into_iter().filter(|line| !line.contains("\"half\"")).collect();
    let got: Vec<_> = manifest(out.path()).into_iter().filter(|line| !line.contains("\"half\"")).collect();
    assert_eq!(got, right);
    assert_eq!(sent.file("half").unwrap(), b"half");
}

#[test]
fn times_are_kept_to_the_nanosecond_for_every_type() {
    let src = tree();
    write(src.path(), "file", b"");
    mkdir(src.path(), "dir");
    symlink("nowhere", src.path().join("link")).unwrap();
    rustix::fs::mknodat(CWD, src.path().join("fifo"), FileType::Fifo, 0o640.into(), 0).unwrap();
    // The file system here may clamp what is beyond it; what it then says is what must be sent.
    for (name, tv_sec, tv_nsec) in
        [("file", 1000, 1), ("dir", -2, 500_000_000), ("link", 2000, 999_999_999), ("fifo", 8_589_934_592, 7)]
    {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, src.path().join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    assert_eq!(manifest(untar(&send_tree(src.path()).stream()).path()), manifest(src.path()));
}

#[test]
fn sockets_are_skipped_and_named_and_devices_are_never_opened() {
    let src = tree();
    write(src.path(), "0", b"");
    let sockets = ["a", "b", "c"];
    let _held = sockets.map(|name| std::os::unix::net::UnixListener::bind(src.path().join(name)).unwrap());
    let mut right = vec!["".to_owned(), "0".to_owned()];
    for (name, file_type) in [("null", FileType::CharacterDevice), ("disk", FileType::BlockDevice)] {
        let device = rustix::fs::makedev(1, 3);
        match rustix::fs::mknodat(CWD, src.path().join(name), file_type, 0o600.into(), device) {
            Ok(()) => right.push(name.to_owned()),
            Err(errno) => eprintln!("SKIPPED: cannot make a device: {errno}"),
        }
    }
    right.sort();
    let sent = send_tree(src.path());
    assert_eq!(sent.paths(), right);
    assert_eq!(sent.noted(), sockets.map(|name| (NoteKind::Socket, name.to_owned())));
    if right.len() > 2 {
        assert_eq!(sent.entry("null").kind, EntryKind::Device { block: false, major: 1, minor: 3 });
        assert_eq!(sent.entry("disk").kind, EntryKind::Device { block: true, major: 1, minor: 3 });
    }
}

#[test]
fn an_empty_directory_is_its_root_and_an_end() {
    let src = tree();
    let sent = send_tree(src.path());
    assert_eq!(sent.paths(), [""]);
    assert_eq!(sent.chunks.len(), 1);
}

#[test]
fn ten_thousand_levels_are_walked_with_few_handles() {
    let src = tree();
    let depth = 10_000;
    let at = rustix::fs::open(src.path(), rustix::fs::OFlags::DIRECTORY, 0.into()).unwrap();
    let mut at = at;
    for level in 0..depth {
        rustix::fs::mkdirat(&at, "d", 0o755.into()).unwrap();
        if level % 1000 == 999 {
            // Sorted after the directory: the walk and the workers come back to these levels from below.
            let file =
                rustix::fs::openat(&at, "f", rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY, 0o644.into());
            rustix::io::write(file.unwrap(), b"deep").unwrap();
        }
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::DIRECTORY, 0.into()).unwrap();
    }
    let sent = send_tree(src.path());
    assert_eq!(sent.noted(), []);
    let entries = sent.entries();
    assert_eq!(entries.len(), 1 + depth + depth / 1000);
    let longest = entries.iter().map(|(entry, _)| entry.path.len()).max().unwrap();
    assert_eq!(longest, 2 * depth - 1, "five times PATH_MAX");
    assert_eq!(entries.iter().filter(|(_, content)| content == b"deep").count(), depth / 1000);
    assert_eq!(entries.last().unwrap().0.path.len(), 2 * 1000 - 1);
    remove(src);
}

#[test]
fn a_path_that_is_too_long_is_a_note_and_the_rest_is_sent() {
    let src = tree();
    let name = "n".repeat(NAME_LEN_MAX);
    let fit = PATH_LEN_MAX / (NAME_LEN_MAX + 1);
    let mut at = rustix::fs::open(src.path(), rustix::fs::OFlags::DIRECTORY, 0.into()).unwrap();
    for _ in 0..fit + 3 {
        rustix::fs::mkdirat(&at, &*name, 0o755.into()).unwrap();
        at = rustix::fs::openat(&at, &*name, rustix::fs::OFlags::DIRECTORY, 0.into()).unwrap();
    }
    write(src.path(), "z", b"z");
    let (steps, notes) = walk(src.path(), 2);
    let steps: Vec<_> = steps.into_iter().map(|(path, _)| path).collect();
    assert_eq!(steps.last().unwrap(), b"z");
    assert!(steps.iter().all(|path| path.len() <= PATH_LEN_MAX));
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].kind, NoteKind::NotCarried);
    remove(src);
}

/// Removing so deep a tree by recursion would not end well.
fn remove(src: TempDir) {
    let path = src.keep();
    assert!(Command::new("rm").arg("-rf").arg(&path).status().unwrap().success());
}

/// Needs to mount: runs itself again in a mount namespace of its own.
#[test]
fn pseudo_file_systems_are_not_entered() {
    let name = "source::tests::fidelity::pseudo_file_systems_are_not_entered";
    let Some(dir) = std::env::var_os("BLAST_PSEUDO_TREE") else {
        let src = tree();
        for dir in ["proc", "tmp"] {
            mkdir(src.path(), dir);
        }
        let script = "mount -t proc none proc && mount -t tmpfs none tmp && echo f > tmp/f && \
            exec \"$0\" --exact --nocapture \"$1\"";
        let exe = std::env::current_exe().unwrap();
        let done = Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .args([exe.as_os_str(), OsStr::new(name)])
            .env("BLAST_PSEUDO_TREE", src.path())
            .current_dir(src.path())
            .output();
        match done {
            Ok(done) if String::from_utf8_lossy(&done.stdout).contains("running 1 test") => {
                let said = String::from_utf8_lossy(&done.stdout);
                assert!(done.status.success() && said.contains("1 passed"), "{said}");
            }
            other => eprintln!("SKIPPED: cannot mount here: {other:?}"),
        }
        return;
    };
    let sent = send_tree(Path::new(&dir));
    assert_eq!(sent.paths(), ["", "proc", "tmp", "tmp/f"]);
    assert_eq!(sent.noted(), [(NoteKind::Pseudo, "proc".into())]);
    assert!(sent.notes.iter().all(|note| !note.kind.is_loss()));
}

#[test]
fn several_sources_go_under_their_last_names_in_order() {
    let src = tree();
    mkdir(src.path(), "one/d");
    write(src.path(), "one/d/f", b"f");
    write(src.path(), "one/b", b"b");
    write(src.path(), "z", b"z");
    symlink("one", src.path().join("link")).unwrap();
    let at = |name: &str| src.path().join(name);
    let sent = send(&[&at("z"), &at("one/d"), &at("link"), &at("one/b")], Layout::Archive);
    assert_eq!(sent.paths(), ["b", "d", "d/f", "link", "z"]);
    assert_eq!(sent.entry("link").kind, EntryKind::Symlink { target: b"one".to_vec() });
    assert_eq!(sent.stats.entries_found.load(Relaxed), 5);
    untar(&sent.stream());
    let sent = send(&[&at("link/"), &at("z")], Layout::Archive);
    assert_eq!(sent.paths(), ["link", "link/b", "link/d", "link/d/f", "z"]);
    let tree = open_tree(&[at("z"), at("one")]).unwrap();
    assert_eq!(tree.offer(), Offer::Tree { sources: 2 });
}

#[test]
fn a_single_source_that_is_a_link_is_followed() {
    let src = tree();
    mkdir(src.path(), "real");
    write(src.path(), "real/f", b"f");
    symlink("real", src.path().join("link")).unwrap();
    symlink("real/f", src.path().join("file link")).unwrap();
    assert_eq!(send_tree(&src.path().join("link")).paths(), ["", "f"]);
    let sent = send_tree(&src.path().join("file link"));
    assert_eq!(sent.file("file link").unwrap(), b"f");
}

#[test]
fn a_single_file_is_an_entry_of_its_name_whatever_its_length() {
    let src = tree();
    for len in [0, 1, 512, CHUNK_LEN, 2 * CHUNK_LEN + 1] {
        write(src.path(), "x:9", &noise(3, len));
        let path = src.path().join("x:9");
        let tree = open_tree(std::slice::from_ref(&path)).unwrap();
        assert_eq!(tree.offer(), Offer::File { name: b"x:9".to_vec(), size: len as u64 });
        let (running, notes, stats) = begin(tree, Layout::Archive);
        let sent = drain(running, notes, stats);
        assert_eq!(sent.paths(), ["x:9"]);
        assert_eq!(sent.file("x:9").unwrap(), noise(3, len));
        untar(&sent.stream());
    }
}

#[test]
fn what_cannot_be_meant_is_refused_by_name_before_anything_begins() {
    let src = tree();
    mkdir(src.path(), "a/x");
    mkdir(src.path(), "b/x");
    let at = |name: &str| src.path().join(name);
    let refused = |paths: &[PathBuf]| {
        let err = open_tree(paths).err().unwrap();
        assert_eq!(err.exit_code(), crate::ExitCode::Usage, "{err}");
        err.to_string()
    };
    let missing = refused(&[at("a"), at("nope")]);
    assert!(missing.contains("nope") && missing.contains("No such file"), "{missing}");
    assert!(refused(&[at("nope")]).contains("nope"));
    assert!(refused(&[at("a/x/nope")]).contains("nope"));
    let same = refused(&[at("a/x"), at("b/x/")]);
    assert!(same.contains("a/x") && same.contains("b/x"), "{same}");
    assert!(refused(&["/".into(), at("a")]).contains("no name"));
    for device in [vec!["/dev/null".into()], vec![at("a"), "/dev/null".into()]] {
        let err = open_tree(&device).err().unwrap();
        assert_eq!(err.exit_code(), crate::ExitCode::Refused, "the command can be meant, by another version");
        assert!(err.to_string().contains("a character device"), "{err}");
    }
    refused(&[]);
    refused(&["".into()]);
    let dots = send(&[&at("a/x/.."), &at("b/.")], Layout::Archive);
    assert_eq!(dots.paths(), ["a", "a/x", "b", "b/x"]);
}
