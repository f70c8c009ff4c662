//! A tree arrives exactly: every kind of entry, every mode, owner and time, whatever the order in which threads get to
//! it; and an entry that cannot be created is named while the rest arrives.

use std::fs;
use std::path::Path;

use blast::archive::{EntryKind, Timestamp};
use blast::limits::CHUNK_LEN;

use crate::sink_feed::*;

fn arrives(entries: &[blast::archive::Entry]) {
    let dir = scratch();
    let dest = dir.path().join("dest");
    let end = unpack(&mut Feed::all(entries), &dest).whole();
    assert_eq!(end.entries, entries.len() as u64);
    assert_exact(&dest, entries);
}

#[test]
fn every_kind_of_entry_arrives_exactly() {
    arrives(&[
        directory(""),
        directory("a"),
        file("a/empty", 0),
        entry("a/fifo", EntryKind::Fifo),
        file("a/large", 3 * CHUNK_LEN + 17),
        directory("a/nothing"),
        file("a/one-chunk", CHUNK_LEN),
        file("a/small", 12345),
        symlink("a/to-nowhere", "nowhere"),
        symlink("a/up", "../../../.."),
        file("b", 512),
        hardlink("c", "a/large"),
        hardlink("d", "a/to-nowhere"),
        hardlink("e", "a/fifo"),
        hardlink("f", "b"),
        file("z", 2 * CHUNK_LEN),
    ]);
}

#[test]
fn special_modes_are_exact_on_files_and_directories() {
    if !is_root() {
        eprintln!("SKIPPED: setting foreign owners needs root");
        return;
    }
    let mut entries = vec![directory("")];
    for (i, mode) in [0o4755, 0o2755, 0o6755, 0o1777, 0o2770, 0o0, 0o444, 0o7777, 0o666, 0o200].into_iter().enumerate()
    {
        let mut dir = directory(&format!("d{i}"));
        (dir.mode, dir.uid, dir.gid) = (mode, 1000, 42);
        let mut inner = file(&format!("d{i}/inner"), 100);
        inner.mode = mode;
        entries.extend([dir, inner]);
    }
    for (i, mode) in [0o4755, 0o2755, 0o6755, 0o1777, 0o2770, 0o0, 0o444, 0o7777, 0o666].into_iter().enumerate() {
        for (j, (owner, len)) in [(0, 10), (1000, 10), (1000, 2 * CHUNK_LEN + 1)].into_iter().enumerate() {
            let mut file = file(&format!("f{i}{j}"), len);
            (file.mode, file.uid, file.gid) = (mode, owner, owner);
            entries.push(file);
        }
    }
    arrives(&entries);
}

#[test]
fn times_are_exact_to_the_nanosecond_for_all_kinds_and_the_root() {
    let mut entries = Vec::new();
    let times =
        [(0, 1), (-1, 999_999_999), (-2_000_000_000, 5), (1 << 31, 0), (1 << 32, 1), (1 << 33, 0), (15_032_385_535, 0)];
    let root_time = Timestamp { secs: 1_000, nanos: 1 };
    entries.push(blast::archive::Entry { mtime: root_time, ..directory("") });
    for (i, (secs, nanos)) in times.into_iter().enumerate() {
        let all = [
            directory(&format!("{i}")),
            directory(&format!("{i}/d")),
            file(&format!("{i}/d/file"), 3),
            symlink(&format!("{i}/d/link"), "file"),
            symlink(&format!("{i}/d/nowhere"), "nowhere"),
            entry(&format!("{i}/fifo"), EntryKind::Fifo),
            file(&format!("{i}/large"), CHUNK_LEN + 1),
        ];
        entries.extend(all.map(|entry| blast::archive::Entry { mtime: Timestamp { secs, nanos }, ..entry }));
        entries.push(hardlink(&format!("{i}/name"), &format!("{i}/d/file")));
    }
    arrives(&entries);
}

#[test]
fn a_read_only_directory_still_gets_its_content() {
    let mut entries = vec![directory("")];
    for (name, mode) in [("closed", 0o0), ("listed", 0o555)] {
        let mut dir = directory(name);
        dir.mode = mode;
        let mut inner = directory(&format!("{name}/inner"));
        inner.mode = mode;
        entries.extend([dir, inner, file(&format!("{name}/inner/file"), 9), file(&format!("{name}/last"), 9)]);
    }
    arrives(&entries);
}

#[test]
fn names_are_bytes_of_every_length() {
    let mut entries = vec![directory("")];
    let mut names: Vec<Vec<u8>> = vec![b"\xfe".to_vec(), b"\xff".to_vec(), b"caf\xe9".to_vec(), b"new\nline".to_vec()];
    names.extend([99, 100, 101, 154, 155, 156, 255].map(|n| vec![b'n'; n]));
    names.sort();
    for name in names {
        let mut file = file("", 7);
        file.path = name;
        entries.push(file);
    }
    let mut link = symlink("zz", "");
    link.kind = EntryKind::Symlink { target: vec![b't'; 4095] };
    entries.push(link);
    arrives(&entries);
}

#[test]
fn ten_thousand_levels_arrive_and_are_finished_from_below() {
    const LEVELS: usize = 10_000;
    let dir = scratch();
    let dest = dir.path().join("dest");
    let mut feed = Feed::new();
    feed.entry(&directory(""), b"");
    let mut path = String::new();
    for level in 0..LEVELS {
        path.push_str(if level == 0 { "d" } else { "/d" });
        feed.entry(&directory(&path), b"");
        if level % 1000 == 999 {
            feed.entry(&file(&format!("{path}/.file"), 4), b"deep");
        }
    }
    feed.entry(&file("z-after", 5), b"after");
    let end = unpack(&mut feed, &dest).whole();
    assert_eq!(end.entries, 2 + LEVELS as u64 + 10);
    let mut levels = 0;
    let mut at = rustix::fs::open(&dest, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW;
    while let Ok(next) = rustix::fs::openat(&at, "d", flags, rustix::fs::Mode::empty()) {
        let stat = rustix::fs::fstat(&next).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_mtime, stat.st_mtime_nsec), (0o755, 981_173_106, 789_012_345));
        at = next;
        levels += 1;
    }
    assert_eq!(levels, LEVELS);
    assert_eq!(fs::read(dest.join("z-after")).unwrap(), b"after");
}

#[test]
fn what_was_there_and_empty_is_filled_and_takes_the_attributes() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    let entries = [directory(""), directory("a"), directory("a/b"), file("a/b/f", 5), directory("lost+found")];
    unpack(&mut Feed::all(&entries), dir.path()).whole();
    assert_exact(dir.path(), &entries);
}

#[test]
fn a_new_root_without_an_entry_of_its_own_is_not_left_closed() {
    let dir = scratch();
    let dest = dir.path().join("dest");
    let entries = [file("one", 5), directory("two"), file("two/x", 6)];
    unpack(&mut Feed::all(&entries), &dest).whole();
    assert_exact(&dest, &entries);
    let mode = look(&dest)[&Vec::new()].mode & 0o7777;
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    assert_eq!(mode, look(&other)[&Vec::new()].mode & 0o7777, "as mkdir makes it");
}

#[test]
fn an_entry_that_cannot_be_created_is_named_and_the_rest_arrives() {
    let dir = scratch();
    let dest = dir.path().join("dest");
    let mut twice = directory("d");
    twice.mode = 0o777;
    let mut entries = vec![
        directory(""),
        file("a", 10),
        file("a", 2000),
        symlink("a", "b"),
        directory("d"),
        file("d/x", 5),
        twice,
        file("d/y", 5),
        directory("d/z"),
        file("d/z/w", CHUNK_LEN + 5),
        file("large", CHUNK_LEN + 1),
        file("large", CHUNK_LEN + 2),
        file("last", 8),
    ];
    let noted = unpack(&mut Feed::all(&entries), &dest).noted();
    assert_eq!(noted, ["a", "a", "d", "d/y", "d/z", "d/z/w", "large"]);
    for left_out in [11, 9, 8, 7, 6, 3, 2] {
        entries.remove(left_out);
    }
    assert_exact(&dest, &entries);
    assert_no_temp_names(&dest);
}

#[test]
fn a_default_acl_and_an_inherited_group_do_not_change_what_arrives() {
    let dir = scratch();
    // Version 2: user::rwx, group::r-x, other::---.
    let acl: Vec<u8> = [2u32, 0x0007_0001, u32::MAX, 0x0005_0004, u32::MAX, 0x0000_0020, u32::MAX]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(dir.path(), "system.posix_acl_default", &acl, flags) {
        eprintln!("SKIPPED: no ACLs here: {error}");
        return;
    }
    if is_root() {
        std::os::unix::fs::chown(dir.path(), None, Some(42)).unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o2755)).unwrap();
    }
    let mut entries = vec![directory("")];
    for path in ["d", "d/e"] {
        let mut open = file(&format!("{path}/open"), 9);
        open.mode = 0o646;
        let mut dir = directory(path);
        dir.mode = 0o757;
        entries.extend([dir, open, file(&format!("{path}/large"), CHUNK_LEN), symlink(&format!("{path}/link"), "x")]);
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    unpack(&mut Feed::all(&entries), dir.path()).whole();
    assert_exact(dir.path(), &entries);
}

pub fn assert_no_temp_names(root: &Path) {
    let names = fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap_or_default());
    let left: Vec<_> = names.filter(|name| name.starts_with(".blast")).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
