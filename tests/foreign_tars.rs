//! Archives that GNU tar, bsdtar and Python make, in every format each of them has: what is unpacked is what GNU tar
//! unpacks, or what was packed.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use blast::report::NoteKind;
use proptest::prelude::*;

use crate::foreign_feed::*;
use crate::sink_feed::{is_root, scratch};
use crate::trees::{
    Item, Listing, Set, assert_listed, assert_same, list, random_bytes, set_mode, set_mtime, set_owner, small,
};

/// Names and targets around every limit of a format, kinds, modes and times of all sorts. What a format cannot hold it
/// leaves out or cuts, which is why a tree for the older ones has less.
fn tree(root: &Path, modern: bool) {
    small(root, 3);
    let set = Set(root);
    let lengths: &[usize] = if modern { &[1, 99, 100, 101, 154, 155, 156, 255] } else { &[1, 90, 97] };
    for len in lengths {
        let name = "n".repeat(*len);
        set.file(&name, format!("name of {len}"));
        set.symlink("t".repeat(*len), format!("l{len}"));
    }
    if modern {
        for depth in [1, 2, 4, 12] {
            let path = "directory-of-a-long-name/".repeat(depth) + "file";
            set.file(&path, &path);
            set.hard_link(&path, format!("hard-{depth}"));
        }
        set.symlink("t".repeat(4095), "longest");
        set.file(b"\xff\xfe\xc3", "no UTF-8");
        set.file("new\nline\t and \\ \x1b[31m", "control");
    }
    set.fifo("fifo");
    set.symlink("../../etc/passwd", "up");
    set.symlink("fifo", "._fifo");
    set.hard_link("up", "up-again");
    set.dir("closed/inside");
    set.file("closed/file", "closed");
    set.file("modes/4755", "suid");
    set_mode(set.path("modes/4755"), 0o4755);
    set_mode(set.dir("modes/1777"), 0o1777);
    if modern && is_root() {
        let owned = set.file("modes/owned", "owned");
        set_owner(&owned, 3_000_000, 4_000_000_000);
    }
    let mut n = 0u32;
    for path in crate::trees::depth_first(root) {
        n += 1;
        let nanos = if modern { n * 7_654_321 % 1_000_000_000 } else { 0 };
        set_mtime(path, 981_173_106 + i64::from(n), nanos);
    }
    if modern {
        set_mtime(set.path("sizes/1"), -5, 500_000_000);
        set_mtime(set.path("sizes/511"), 8_589_934_592, 0);
    }
    set_mode(set.path("closed/inside"), 0o000);
    set_mode(set.path("closed"), 0o500);
    let whole = fs::symlink_metadata(root).unwrap();
    set_mtime(root, whole.mtime(), if modern { 5 } else { 0 });
}

/// Without fractions of a second, which only pax holds.
fn floored(tree: &Path, pax: bool) -> Listing {
    let floor = |(path, mut item): (Vec<u8>, Item)| {
        item.mtime.1 *= u64::from(pax);
        (path, item)
    };
    list(tree).into_iter().map(floor).collect()
}

/// What is unpacked is what was packed, and what GNU tar unpacks if that is asked for.
fn assert_unpacked(archive: &[u8], name: &str, source: Option<&Path>, pax: bool, by_tar: bool) {
    let dir = scratch();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    fs::create_dir(&ours).unwrap();
    let end = unpack_stream(archive, &ours).end.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(end.notes.losses, 0, "{name}: {:?}", end.notes.named);
    if let Some(source) = source {
        assert_listed(&floored(&ours, pax), &floored(source, pax));
    }
    if by_tar {
        extract_by_tar(archive, &theirs);
        assert_same(&ours, &theirs);
        open_again(&theirs);
    }
    open_again(&ours);
}

/// So that anybody can remove it.
fn open_again(tree: &Path) {
    for path in ["closed", "closed/inside"] {
        set_mode(tree.join(path), 0o700);
    }
}

#[test]
fn every_format_of_gnu_tar_is_unpacked_as_gnu_tar_does() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let source = |name: &str| dir.path().join(name);
    tree(&source("old"), false);
    tree(&source("new"), true);
    tree(&source("v7"), false);
    fs::remove_file(source("v7").join("fifo")).unwrap();
    fs::remove_file(source("v7").join("._fifo")).unwrap();
    set_mtime(source("v7"), 5, 0);
    for (format, tree) in [("v7", "v7"), ("ustar", "old"), ("oldgnu", "new"), ("gnu", "new"), ("posix", "new")] {
        for blocking in ["-b1", "-b20", "-b200"] {
            let archive = made_by(&source(tree), "tar", &[&format!("--format={format}"), blocking, "-cf", "-", "."]);
            assert_unpacked(&archive, &format!("{format} {blocking}"), Some(&source(tree)), format == "posix", true);
        }
    }
    ["old", "new", "v7"].iter().for_each(|name| open_again(&source(name)));
}

#[test]
fn every_format_of_bsdtar_is_unpacked_as_it_was_packed() {
    if !has("bsdtar", "bsdtar") {
        return;
    }
    let dir = scratch();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    tree(&old, false);
    tree(&new, true);
    // That program writes the fraction of a time before 1970 as if it were one after.
    set_mtime(new.join("sizes/1"), 5, 0);
    set_mtime(new.join("sizes/511"), 5, 0);
    // In its words "pax" has all records, "paxr" none for a fraction of a second alone.
    for (format, modern) in [("ustar", false), ("gnutar", true), ("pax", true), ("paxr", true)] {
        let source = if modern { &new } else { &old };
        if format == "pax" {
            // Beyond the numbers that its GNU format has.
            set_mtime(new.join("sizes/511"), 8_589_934_592, 0);
            set_mtime(new.join("sizes/1"), -5, 0);
        }
        let archive = made_by(source, "bsdtar", &["--format", format, "-cf", "-", "."]);
        assert_unpacked(&archive, format, Some(source), format == "pax", false);
    }
    open_again(&old);
    open_again(&new);
}

#[test]
fn every_format_of_python_is_unpacked_as_gnu_tar_does() {
    if !has("tar", "GNU tar") || !has("python3", "Python") {
        return;
    }
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source, true);
    // A floating-point number does not hold these times to the nanosecond.
    for path in crate::trees::depth_first(&source) {
        set_mtime(path, 1_000_000_000, 500_000_000);
    }
    for format in ["GNU", "PAX"] {
        let program = format!(
            "import tarfile, sys\nwith tarfile.open(fileobj=sys.stdout.buffer, mode='w|', \
             format=tarfile.{format}_FORMAT) as t: t.add('.')"
        );
        let archive = made_by(&source, "python3", &["-c", &program]);
        // It packs each name of a symbolic link for itself.
        assert_unpacked(&archive, format, None, format == "PAX", true);
    }
    open_again(&source);
}

/// A file with data at these places and holes between them.
fn sparse(path: &Path, size: u64, data: &[(u64, usize)]) {
    let file = File::create(path).unwrap();
    for (offset, len) in data {
        file.write_all_at(&random_bytes(*offset, *len), *offset).unwrap();
    }
    file.set_len(size).unwrap();
}

fn sparse_files(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let mib = 1 << 20;
    sparse(&dir.join("all-hole"), 5 * mib, &[]);
    sparse(&dir.join("leading"), 3 * mib + 7, &[(3 * mib, 7)]);
    sparse(&dir.join("trailing"), 9 * mib, &[(0, 5000)]);
    sparse(&dir.join("middle"), 20 * mib, &[(9_999_999, 3)]);
    sparse(&dir.join("odd-end"), mib + 10, &[(0, 1), (mib, 10)]);
    let many: Vec<_> = (0..60).map(|i| (i * 65536, 1)).collect();
    sparse(&dir.join("many"), 60 * 65536, &many);
    let few: Vec<_> = (0..5).map(|i| (i * 65536 + 40, 100)).collect();
    sparse(&dir.join("five"), 5 * 65536 + 1, &few);
    fs::write(dir.join("dense"), random_bytes(1, 100_000)).unwrap();
    fs::write(dir.join("after"), "after").unwrap();
}

#[test]
fn files_with_holes_come_under_their_names_with_their_sizes_and_holes() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let source = dir.path().join("source");
    sparse_files(&source);
    for args in [
        &["--format=gnu"][..],
        &["--format=oldgnu"],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix", "--sparse-version=1.0"],
    ] {
        let archive = made_by(&source, "tar", &[args, &["-Scf", "-", "."]].concat());
        assert!(archive.len() < 4 << 20, "{args:?} packs holes");
        let dest = dir.path().join("dest");
        let end = unpack_stream(&archive, &dest.join("")).whole();
        let pax = args[0].ends_with("posix");
        assert_listed(&floored(&dest, pax), &floored(&source, pax));
        assert_eq!(end.entries, 10, "{args:?}");
        for name in ["all-hole", "middle", "many"] {
            let allocated = fs::metadata(dest.join(name)).unwrap().blocks() * 512;
            assert!(allocated <= 60 * 8192, "{name} has {allocated} bytes, {args:?}");
        }
        fs::remove_dir_all(dest).unwrap();
    }
}

#[test]
fn a_file_with_holes_beyond_eight_gib_takes_no_room_for_them() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    sparse(&source.join("large"), (9 << 30) + 3, &[(8 << 30, 4096), (9 << 30, 3)]);
    for format in ["--format=gnu", "--format=posix"] {
        let archive = made_by(&source, "tar", &[format, "-Scf", "-", "large"]);
        let dest = dir.path().join(&format[9..]);
        unpack_stream(&archive, &dest.join("")).whole();
        let large = File::open(dest.join("large")).unwrap();
        let meta = large.metadata().unwrap();
        assert!(meta.len() == (9 << 30) + 3 && meta.blocks() < 100, "{meta:?}");
        for (offset, len) in [(8 << 30, 4096), (9 << 30, 3)] {
            let mut is = vec![0; len];
            large.read_exact_at(&mut is, offset).unwrap();
            assert!(is == random_bytes(offset, len));
        }
    }
}

#[test]
fn bsdtars_sparse_files_come_under_their_names_too() {
    if !has("bsdtar", "bsdtar") {
        return;
    }
    let dir = scratch();
    let source = dir.path().join("source");
    sparse_files(&source);
    let archive = made_by(&source, "bsdtar", &["--format", "pax", "-cf", "-", "."]);
    let dest = dir.path().join("dest");
    let end = unpack_stream(&archive, &dest.join("")).end.unwrap();
    assert_eq!(end.notes.losses, 0, "{:?}", end.notes.named);
    assert_same(&dest, &source);
}

#[test]
fn entries_in_any_order_make_the_same_tree() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source, false);
    let mut names: Vec<String> = crate::trees::depth_first(&source)
        .iter()
        .map(|path| format!("./{}", path.strip_prefix(&source).unwrap().display()))
        .collect();
    let mut dice = crate::replay::Dice(7);
    for round in 0..5 {
        // The first rounds have every directory after what is in it, or before; the others any order.
        match round {
            0 => {}
            1 => names.reverse(),
            _ => (1..names.len()).rev().for_each(|i| names.swap(i, dice.below(i + 1))),
        }
        fs::write(dir.path().join("names"), names.join("\n")).unwrap();
        let archive = made_by(&source, "tar", &["--format=gnu", "--no-recursion", "-cf", "-", "-T", "../names"]);
        let dest = dir.path().join("dest");
        fs::create_dir(&dest).unwrap();
        unpack_stream(&archive, &dest).whole();
        assert_same(&dest, &source);
        set_mode(dest.join("closed"), 0o700);
        fs::remove_dir_all(dest).unwrap();
    }
    set_mode(source.join("closed"), 0o700);
}

#[test]
fn directories_that_no_entry_announces_are_made_as_any_others() {
    let dir = scratch();
    let source = dir.path().join("source");
    Set(&source).file("a/b/c/file", "deep");
    Set(&source).file("a/other", "other");
    if !has("tar", "GNU tar") {
        return;
    }
    let archive = made_by(&source, "tar", &["-cf", "-", "a/b/c/file", "a/other"]);
    let dest = dir.path().join("dest");
    unpack_stream(&archive, &dest.join("")).whole();
    assert_eq!(fs::read(dest.join("a/b/c/file")).unwrap(), b"deep");
    let plain = dir.path().join("plain");
    fs::create_dir(&plain).unwrap();
    for path in ["a", "a/b", "a/b/c"] {
        assert_eq!(fs::metadata(dest.join(path)).unwrap().mode(), fs::metadata(&plain).unwrap().mode());
    }
}

#[test]
fn an_updated_archive_gives_the_last_of_each_name() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    set.file("source/a", "one");
    set.hard_link("source/a", "source/b");
    set.file("source/large", random_bytes(1, 3 << 20));
    set.symlink("nowhere", "source/link");
    set.fifo("source/fifo");
    run_in(dir.path(), "tar", &["-cf", "all.tar", "-C", "source", "a", "b", "large", "link", "fifo"]);
    for name in ["a", "large", "link", "fifo"] {
        fs::remove_file(dir.path().join("source").join(name)).unwrap();
        set.file(format!("source/{name}"), format!("the new {name}"));
    }
    run_in(dir.path(), "tar", &["-rf", "all.tar", "-C", "source", "a", "large", "link", "fifo"]);
    let dest = dir.path().join("dest");
    unpack_stream(&fs::read(dir.path().join("all.tar")).unwrap(), &dest.join("")).whole();
    for name in ["a", "large", "link", "fifo"] {
        assert_eq!(fs::read_to_string(dest.join(name)).unwrap(), format!("the new {name}"));
    }
    assert_eq!(fs::read(dest.join("b")).unwrap(), b"one", "another name of what was replaced keeps it");
}

#[test]
fn what_is_odd_about_an_archive_is_one_line_for_each_kind() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    for n in 0..20 {
        set.file(format!("source/d/{n}"), "x");
    }
    let absolute = dir.path().join("source/d");
    let absolute = absolute.to_str().unwrap();
    let of = |args: &[&str]| {
        let archive = made_by(dir.path(), "tar", args);
        let dest = dir.path().join("dest");
        let end = unpack_stream(&archive, &dest.join("")).end.unwrap();
        assert_eq!((end.notes.losses, end.notes.named.len()), (0, 1), "{:?}", end.notes.named);
        let note = end.notes.named.into_iter().next().unwrap();
        assert_eq!(note.kind, NoteKind::Remark);
        (dest, note.detail)
    };
    let (dest, detail) = of(&["-Pcf", "-", absolute]);
    assert_eq!(detail, "a slash before the name was dropped (21 names)");
    assert!(dest.join(&absolute[1..]).join("19").is_file());
    fs::remove_dir_all(dest).unwrap();

    let (dest, detail) = of(&["-V", "a label", "-C", "source", "-cf", "-", "d"]);
    assert_eq!(detail, "a volume label was passed over");
    assert!(dest.join("d/0").is_file());
    fs::remove_dir_all(dest).unwrap();

    let (dest, detail) = of(&["--format=gnu", "--listed-incremental=snapshot", "-C", "source", "-cf", "-", "d"]);
    assert_eq!(detail, "an incremental dump's list of names was passed over");
    assert_listed(&floored(&dest.join("d"), false), &floored(&dir.path().join("source/d"), false));
    fs::remove_dir_all(dest).unwrap();

    let option = "--pax-option=VENDOR.key:=value,globexthdr.name=g";
    let (dest, detail) = of(&["--format=posix", option, "-C", "source", "-cf", "-", "d"]);
    assert_eq!(detail, "21 records of extended headers mean nothing here and were passed over, first 'VENDOR.key'");
    assert_eq!(fs::read_dir(dest.join("d")).unwrap().count(), 20);
}

#[test]
fn archives_that_gnu_tar_joined_are_one_and_joined_files_are_told() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    set.file("a", "of the first");
    set.file("b", "of the second");
    for name in ["a", "b"] {
        run_in(dir.path(), "tar", &["-cf", &format!("{name}.tar"), name]);
    }
    let [a, b] = ["a.tar", "b.tar"].map(|name| fs::read(dir.path().join(name)).unwrap());
    let end = unpack_stream(&[&a[..], &b].concat(), &dir.path().join("told/")).end.unwrap();
    assert_eq!((end.entries, end.notes.losses), (1, 1));
    let note = &end.notes.named[0];
    assert_eq!(note.kind, NoteKind::Unread);
    assert_eq!(
        note.detail,
        "after its end at offset 1024 more bytes follow, from offset 10240 on (another archive is to be sent by itself)"
    );
    assert!(dir.path().join("told/a").is_file() && !dir.path().join("told/b").exists());

    // One block of zeros in the middle, as writers made that pad a full block.
    let lone = [&a[..1024], &[0; 512], &b[..1024], &[0; 1024]].concat();
    let end = unpack_stream(&lone, &dir.path().join("lone/")).end.unwrap();
    assert_eq!((end.entries, end.notes.losses), (1, 1));
    let detail = "after one block of zeros at offset 1024 more bytes follow, from offset 1536 on";
    assert!(end.notes.named[0].detail.starts_with(detail), "{:?}", end.notes.named);

    run_in(dir.path(), "tar", &["-Af", "a.tar", "b.tar"]);
    let joined = fs::read(dir.path().join("a.tar")).unwrap();
    unpack_stream(&joined, &dir.path().join("whole/")).whole();
    assert!(dir.path().join("whole/a").is_file() && dir.path().join("whole/b").is_file());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Trees of any small files and names, through the pipe of any of the three.
    #[test]
    fn random_trees_come_as_they_were(
        files in proptest::collection::btree_map("[a-c]{1,3}(/[a-c.]{1,3}x){0,3}", 0usize..3000, 1..12),
        format in 0usize..5,
    ) {
        if !has("tar", "GNU tar") {
            return Ok(());
        }
        let dir = scratch();
        let source = dir.path().join("source");
        fs::create_dir(&source).unwrap();
        for (path, size) in &files {
            let path = source.join(path);
            if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir() {
                let _ = fs::write(&path, random_bytes(*size as u64, *size));
            }
        }
        for path in crate::trees::depth_first(&source) {
            set_mtime(path, 1_000_000_000, 0);
        }
        let format = ["v7", "ustar", "oldgnu", "gnu", "posix"][format];
        let archive = made_by(&source, "tar", &[&format!("--format={format}"), "-cf", "-", "."]);
        let dest = dir.path().join("dest");
        unpack_stream(&archive, &dest.join("")).whole();
        assert_same(&dest, &source);
    }
}
