//! A tree arrives as it was: names of any bytes and length, owners, modes, times, links, FIFOs. Compared entry by
//! entry, by a listing of our own; also what GNU tar and bsdtar make of the archive that `recv -` writes.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::ends::{Run, TRUSTING, is_root, recv, scratch, send, transfer};
use crate::foreign_feed::unpacked_by;
use crate::trees::{
    Set, assert_listed, assert_same, list, random_bytes, set_mode, set_mtime, set_owner, small, spread_mtimes, write,
};

/// One of everything that this version carries.
fn nasty(root: &Path) {
    let set = Set(root);
    names(&set);
    links(&set);
    for size in [0usize, 1, 511, 512, 513, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 7] {
        set.file(format!("sizes/{size}"), random_bytes(size as u64, size));
        set.file(format!("sizes/{size}+"), b"the one after");
    }
    set.fifo("fifo");
    set.dir("empty/in/empty");
    drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap());
    owners_and_modes(&set);
    times(&set);
}

fn names(set: &Set) {
    for name in [
        &b"\xfe"[..],
        b"\xff",
        b"caf\xe9",
        "caf\u{e9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
        b"d\xc3\x28/f",
        b"x\x1b[31mred\n0 errors\r",
        b"Icon\r",
        b"b\x07",
        b"tab\t",
        b"a:b",
        b"-rf",
        b"--help",
        b"sp ace ",
        b" ",
        b"back\\slash",
        b"dot.",
        b"...",
        b"CON",
        b"aux.txt",
        b"~",
        b"*",
        b"#x",
        b"%2f",
        b"\"quoted'",
        b"new\nline",
        b"$(echo)",
        b"==",
    ] {
        set.file([b"names/", name].concat(), [b"content of ", name].concat());
    }
    for n in (1..=3).chain(97..=103).chain(152..=158).chain(253..=255) {
        set.file(format!("lengths/{}", "n".repeat(n)), format!("{n}"));
        set.symlink("t".repeat(n), format!("lengths/{}", "l".repeat(n)));
    }
    // Totals around the limits of a plain header: 100 and 100 + 155 bytes.
    for total in [90, 99, 100, 101, 154, 155, 156, 254, 255, 256, 257, 511, 512, 513, 1023, 1024, 1100, 3500] {
        let mut path = String::from("totals");
        while path.len() + 60 < total {
            path += &format!("/{}", "d".repeat(50));
        }
        path += &format!("/{}", "f".repeat(total - path.len() - 1));
        set.file(&path, format!("{total}"));
    }
}

fn links(set: &Set) {
    set.file("links/bin/busybox", b"#!");
    set.dir("links/sbin");
    for (target, name) in [
        (&b"../bin/busybox"[..], &b"links/sbin/init"[..]),
        (b"/etc/passwd", b"links/abs"),
        (b"../../../..", b"links/up"),
        (b"loop", b"links/loop"),
        (b"nowhere", b"links/dangling"),
        (b"t\xff\n", b"links/bytes"),
        (b" ", b"links/blank"),
        (b".", b"links/self"),
        (b"/", b"links/root"),
        (b"links//bin/./", b"links/odd"),
    ] {
        set.symlink(target, name);
    }
    set.symlink("t".repeat(4095), "links/long");
    let file = set.file("links/a/f", random_bytes(1, 3 << 20));
    set.dir("links/b");
    set.hard_link("links/a/f", "links/b/g");
    set.hard_link("links/a/f", "links/0");
    assert_eq!(rustix::fs::stat(&file).unwrap().st_nlink, 3);
    set.file("links/small", b"a small one");
    for i in 0..20 {
        set.hard_link("links/small", format!("links/b/small{i}"));
    }
    set.symlink("nowhere", "links/l1");
    set.hard_link("links/l1", "links/b/l2");
    set.fifo("links/p1");
    set.hard_link("links/p1", "links/p2");
    let long = format!("links/{}", "h".repeat(255));
    set.file(&long, b"linked by a long name");
    set.hard_link(&long, format!("links/{}", "i".repeat(255)));
}

const MODES: [u32; 8] = [0o4755, 0o2755, 0o6755, 0o1777, 0o2770, 0o3777, 0o600, 0o7777];

fn owners_and_modes(set: &Set) {
    for mode in MODES {
        let (file, dir) =
            (set.file(format!("modes/f{mode:o}"), random_bytes(2, 10_000)), set.dir(format!("modes/d{mode:o}")));
        let large = set.file(format!("modes/large{mode:o}"), random_bytes(3, 2 << 20));
        let inside = set.file(format!("modes/d{mode:o}/inside"), b"x");
        if rustix::process::geteuid().is_root() {
            for path in [&file, &dir, &large, &inside] {
                set_owner(path, 1000, 42);
            }
        }
        [file, dir, large].iter().for_each(|path| set_mode(path, mode));
    }
    let closed = set.file("modes/closed/file", b"in a directory that nobody may write");
    set_mode(&closed, 0o400);
    set_mode(closed.parent().unwrap(), 0o500);
    if rustix::process::geteuid().is_root() {
        for (i, id) in [1u32, 65_534, 65_536, 2_097_151, 2_097_152, u32::MAX - 1].into_iter().enumerate() {
            set_owner(set.file(format!("ids/{i}"), b""), id, u32::MAX - 1 - i as u32);
            set_owner(set.dir(format!("ids/d{i}")), 7, id);
            set_owner(set.symlink("x", format!("ids/l{i}")), id, 8);
        }
    }
}

fn times(set: &Set) {
    spread_mtimes(set.0);
    for secs in [-2_147_483_648i64, -1, 0, 1, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 33, 15_032_385_535] {
        // At its first and its last second ext4 drops the fraction.
        let is_edge = [-2_147_483_648, 15_032_385_535].contains(&secs);
        for nanos in if is_edge { &[0][..] } else { &[0, 1, 999_999_999] } {
            set_mtime(set.file(format!("times/f{secs}.{nanos}"), b""), secs, *nanos);
        }
        set_mtime(set.dir(format!("times/d{secs}")), secs, if is_edge { 0 } else { 7 });
    }
    set_mtime(set.file("times/target", b"keeps its own time"), 1000, 1);
    for (target, name) in [("target", "times/l"), ("nowhere", "times/dangling")] {
        set_mtime(set.symlink(target, name), 2000, 999_999_999);
    }
    set_mtime(set.fifo("times/fifo"), 3000, 123_456_789);
    set_mtime(set.path("times"), 4000, 4);
    set_mtime(set.0, 981_173_106, 789_012_345);
}

#[test]
fn a_tree_with_one_of_everything_arrives_as_it_was() {
    is_root("owners other than ours are not tried");
    let dir = scratch();
    let source = dir.path().join("s");
    nasty(&source);
    let (sender, receiver) = transfer(&source, dir.path().join("d"), &[]);
    assert_same(dir.path().join("d"), &source);
    sender.tells("skipped: 1 socket");
    receiver.tells("skipped: 1 socket");
    for args in [
        &["--streams", "4"][..],
        &["--compress", "3"],
        &["--schedule", "rr", "--streams", "3"],
        &["--window", "1M"],
        &["--window", "4M", "--streams", "2"],
    ] {
        let dest = dir.path().join(args.join(""));
        let (_, receiver) = transfer(&source, &dest, args);
        assert_same(&dest, &source);
        assert_eq!(receiver.err.lines().filter(|l| l.contains("warning")).count(), 0, "{receiver:?}");
    }
    let receiver = recv(dir.path().join("narrow")).args(TRUSTING).args(&["--window", "1M"]).start();
    send(&source, receiver.port()).args(&["--streams", "4"]).outcome().expect(0);
    receiver.wait().expect(0);
    assert_same(dir.path().join("narrow"), &source);
}

#[test]
fn a_tree_arrives_on_a_disk_as_it_does_in_memory() {
    let (dir, disk) = (scratch(), tempfile::tempdir().unwrap());
    let source = dir.path().join("s");
    nasty(&source);
    transfer(&source, disk.path().join("d"), &[]);
    assert_same(disk.path().join("d"), &source);
}

#[test]
fn a_time_that_the_disk_cannot_hold_is_told_and_ends_nothing() {
    let (dir, disk) = (scratch(), tempfile::tempdir().unwrap());
    let far = 1 << 35;
    write(dir.path().join("s/f"), b"from the future");
    write(dir.path().join("s/g"), b"");
    set_mtime(dir.path().join("s/f"), far, 0);
    let mtime = |path: &Path| rustix::fs::stat(path).unwrap().st_mtime;
    write(disk.path().join("probe"), b"");
    set_mtime(disk.path().join("probe"), far, 0);
    if mtime(&dir.path().join("s/f")) != far || mtime(&disk.path().join("probe")) == far {
        eprintln!("SKIPPED: the two file systems here hold the same times");
        return;
    }
    let receiver = recv(disk.path().join("d")).start();
    let sender = send(dir.path().join("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("f: the file system cannot hold the time 34359738368 s");
    }
    assert_eq!(fs::read(disk.path().join("d/f")).unwrap(), b"from the future");
}

#[test]
fn a_receiver_that_may_not_give_files_away_says_so_once_and_takes_the_rest() {
    if !is_root("files of others") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    for i in 0..100 {
        set_owner(set.file(format!("s/{i}"), format!("{i}")), 1000 + i, 42);
    }
    set.symlink("x", "s/link");
    let nobody = 65_534;
    let copy = set.path("blast");
    fs::copy(crate::ends::BLAST, &copy).unwrap();
    set_mode(&copy, 0o755);
    set_mode(dir.path(), 0o777);
    let mut command = Command::new(copy);
    command.uid(nobody).gid(nobody).current_dir("/");
    let receiver = Run::of("recv", command, &["recv", "--port", "0"]).last(set.path("d")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    let (mut is, mut should) = (list(set.path("d")), list(set.path("s")));
    for end in [sender, receiver.wait()] {
        end.expect(0).tells("owners not set: 102 entries");
        assert_eq!(end.report().matches("owner").count(), 1, "{end:?}");
    }
    is.values_mut().chain(should.values_mut()).for_each(|item| item.owner = (0, 0));
    assert_listed(&is, &should);
}

#[test]
fn paths_longer_than_the_system_takes_in_one_call_arrive() {
    let dir = scratch();
    let source = dir.path().join("s");
    fs::create_dir(&source).unwrap();
    // 30 levels of 200 bytes, made one below the other.
    let name = "d".repeat(200);
    let mut at = rustix::fs::open(&source, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..30 {
        rustix::fs::mkdirat(&at, &*name, rustix::fs::Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &*name, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        rustix::fs::openat(&at, "file", flags, rustix::fs::Mode::RUSR).unwrap();
    }
    transfer(&source, dir.path().join("d"), &[]);
    let (is, should) = (list(dir.path().join("d")), list(&source));
    assert!(should.keys().any(|path| path.len() > 6000));
    assert_listed(&is, &should);
}

#[test]
fn an_archive_from_standard_output_is_read_by_gnu_tar_and_bsdtar_to_the_same_tree() {
    let dir = scratch();
    let source = dir.path().join("s");
    nasty(&source);
    let archive = dir.path().join("data.tar");
    let receiver = recv("-").stdout(fs::File::create(&archive).unwrap()).start();
    let sender = send(&source, receiver.port()).args(&["--streams", "2"]).outcome();
    sender.expect(0);
    receiver.wait().expect(0);
    for (program, args) in
        [("tar", &["--warning=no-timestamp", "--numeric-owner", "-xpf"][..]), ("bsdtar", &["--numeric-owner", "-xpf"])]
    {
        let dest = dir.path().join(program);
        if !unpacked_by(program, args, &archive, &dest) {
            continue;
        }
        let (mut is, mut should) = (list(&dest), list(&source));
        if program == "bsdtar" {
            // In some versions it adds the fraction of a time before 1970 instead of subtracting it.
            for (path, item) in should.iter_mut().filter(|(_, item)| item.mtime.0 < 0 && item.mtime.1 > 0) {
                item.mtime = is[path].mtime;
            }
            // It leaves a directory that was there as it is.
            let root = is.get_mut(&b""[..]).unwrap();
            (root.mode, root.mtime) = (should[&b""[..]].mode, should[&b""[..]].mtime);
        }
        assert_listed(&is, &should);
    }
}

#[test]
fn a_hard_linked_file_is_sent_once() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("0"), random_bytes(9, 5 << 20));
    for i in 1..10 {
        fs::hard_link(source.join("0"), source.join(i.to_string())).unwrap();
    }
    let (sender, _) = transfer(&source, dir.path().join("d"), &[]);
    sender.tells("5.24 MB (5,242,880 bytes)");
    assert_same(dir.path().join("d"), &source);
}

#[test]
fn the_same_tree_gives_the_same_digest_each_time_and_another_tree_another() {
    let dir = scratch();
    let digest = |source: &Path, dest: &str, args: &[&str]| {
        let (sender, receiver) = transfer(source, dir.path().join(dest), args);
        let line = sender.report().lines().find(|l| l.starts_with("transfer digest")).unwrap().to_owned();
        receiver.tells(&line);
        line
    };
    small(&dir.path().join("a"), 1);
    let once = digest(&dir.path().join("a"), "1", &[]);
    assert_eq!(digest(&dir.path().join("a"), "2", &["--streams", "3", "--compress", "1"]), once);
    write(dir.path().join("a/new"), b"x");
    assert_ne!(digest(&dir.path().join("a"), "3", &[]), once);
}
