//! What files have besides content, mode, owner and time: extended attributes and ACLs of every kind arrive as they
//! were, also through an archive that GNU tar and bsdtar read; what a destination cannot hold or may not be given is
//! named.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, IFlags, ioctl_getflags, ioctl_setflags};

use crate::ends::{BLAST, Run, TRUSTING, is_root, recv, scratch, send, transfer};
use crate::foreign_feed::{has, run_in, unpacked_by};
use crate::sink_feed::Mounted;
use crate::trees::{
    Set, acl, assert_listed, assert_same, list, random_bytes, set_mode, set_mtime, set_owner, set_xattr, takes_xattr,
};

const NOBODY: u32 = u32::MAX;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Attributes of any name and value, on entries of every kind and size; without those that only root may set.
fn plain(set: &Set) {
    let many = set.file("many", b"x");
    for (name, value) in [
        (&b"user.plain"[..], &b"v"[..]),
        (b"user.empty", b""),
        (b"user.binary", &(0..=255).collect::<Vec<u8>>()),
        (b"user.a=b", b"equals\nand\nlines"),
        (b"user.50%", b"per cent"),
        (b"user.%3D", b"what looks escaped"),
        (b"user.record", b"x\n15 path=evil.x\n"),
        (b"user.\n15 path=evil.x\n", b"a record for a name"),
        (b"user.not \xff text", b"\xfe"),
        (&[b"user.", &b"n".repeat(250)[..]].concat(), b"the longest name"),
    ] {
        set_xattr(&many, name, value);
    }
    for size in [0, 511, (1 << 20) - 700, 1 << 20, (2 << 20) + 5] {
        let file = set.file(format!("sizes/{size}"), random_bytes(size as u64, size));
        set_xattr(file, b"user.size", size.to_string().as_bytes());
        set.file(format!("sizes/{size}+"), b"the one after");
    }
    set_xattr(set.dir("dir/below"), b"user.dir", b"of a directory");
    set_xattr(set.path("dir"), b"user.dir", b"and the one above");
    set_xattr(set.0, b"user.root", b"of the root");
    set.file("linked", b"two names");
    set.hard_link("linked", "second");
    set_xattr(set.path("second"), b"user.both", b"names");
    let closed = set.file("closed/file", b"nobody may write it");
    set_xattr(&closed, b"user.closed", b"kept");
    set_mode(&closed, 0o400);
    set_xattr(set.path("closed"), b"user.closed", b"too");
    set_mode(set.path("closed"), 0o500);
}

/// Such a tree.
fn plain_in(dir: &Path) -> PathBuf {
    let source = dir.join("s");
    fs::create_dir(&source).unwrap();
    plain(&Set(&source));
    source
}

/// Whether the place has attributes at all.
fn has_xattrs(dir: &Path) -> bool {
    takes_xattr(dir, "user.probe", b"x")
}

#[test]
fn extended_attributes_of_any_name_and_value_arrive_on_files_of_every_size_and_directories() {
    let dir = scratch();
    if !has_xattrs(dir.path()) {
        return;
    }
    let source = plain_in(dir.path());
    transfer(&source, dir.path().join("d"), &["--streams", "3"]);
    assert_same(dir.path().join("d"), &source);
    assert_eq!(list(&source)[&b"many"[..]].xattrs.len(), 10);

    // One file alone, too.
    fs::create_dir(dir.path().join("one")).unwrap();
    transfer(source.join("many"), dir.path().join("one"), &[]);
    assert_eq!(list(dir.path().join("one"))[&b"many"[..]], list(&source)[&b"many"[..]]);
    let both = [source.join("many"), source.join("dir")];
    let receiver = recv(dir.path().join("two")).start();
    send(&both[0], receiver.port()).args(&[both[1].to_str().unwrap()]).outcome().expect(0);
    receiver.wait().expect(0);
    let two = list(dir.path().join("two"));
    assert_eq!(two[&b"many"[..]], list(&source)[&b"many"[..]]);
    assert_eq!(two[&b"dir/below"[..]], list(&source)[&b"dir/below"[..]]);
}

#[test]
fn a_value_of_64_kib_arrives_and_what_is_beyond_the_room_of_a_header_is_named() {
    let dir = scratch();
    if !takes_xattr(dir.path(), "user.probe", &[1; 64 << 10]) {
        return;
    }
    let set = Set(dir.path());
    let most = set.file("s/most", b"x");
    for i in 0..7 {
        set_xattr(&most, format!("user.{i}").as_bytes(), &random_bytes(i, 64 << 10));
    }
    transfer(set.path("s"), set.path("d"), &[]);
    assert_same(set.path("d"), set.path("s"));

    let too_much = set.file("s/too-much", b"y");
    for i in 0..20 {
        set_xattr(&too_much, format!("user.{i}").as_bytes(), &random_bytes(i, 60 << 10));
    }
    let receiver = recv(set.path("e")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("too-much: there is no room for its attribute user.");
    }
    let (is, should) = (list(set.path("e")), list(set.path("s")));
    assert_eq!(is[&b"most"[..]], should[&b"most"[..]]);
    let (is, should) = (&is[&b"too-much"[..]], &should[&b"too-much"[..]]);
    assert_eq!((is.xattrs.len(), &is.content), (8, &should.content));
    assert!(is.xattrs.iter().all(|(name, value)| should.xattrs[name] == *value));
}

#[test]
fn lists_of_either_kind_arrive_in_numbers_that_nobody_here_has() {
    let dir = scratch();
    let list_of = |named: u16| {
        acl(&[
            (1, 7, NOBODY),
            (2, named, 12345),
            (2, 4, 54321),
            (4, 5, NOBODY),
            (8, 5, 4),
            (16, 7, NOBODY),
            (32, 4, NOBODY),
        ])
    };
    if !takes_xattr(dir.path(), "system.posix_acl_access", &list_of(7)) {
        return;
    }
    let set = Set(dir.path());
    set_xattr(set.dir("s/journal"), ACCESS, &list_of(7));
    set_xattr(set.path("s/journal"), DEFAULT, &list_of(5));
    // It inherits the list of its directory, and a file of 0600 besides.
    set.file("s/journal/heir", b"x");
    set.dir("s/journal/below/deeper");
    let file = set.file("s/file", b"x");
    set_xattr(&file, ACCESS, &list_of(6));
    let large = set.file("s/large", random_bytes(1, (1 << 20) + 1));
    set_xattr(&large, ACCESS, &list_of(6));
    set_xattr(set.fifo("s/fifo"), ACCESS, &list_of(2));
    let minimal = acl(&[(1, 7, NOBODY), (4, 0, NOBODY), (32, 0, NOBODY)]);
    set_xattr(set.dir("s/minimal"), DEFAULT, &minimal);
    set.symlink("file", "s/link");
    let (_, receiver) = transfer(set.path("s"), set.path("d"), &[]);
    assert_same(set.path("d"), set.path("s"));
    assert!(!receiver.report().contains("ACL"), "{receiver:?}");
    let there = list(set.path("d"));
    assert!(there[&b"journal/heir"[..]].xattrs.contains_key(ACCESS));
    assert!(there[&b"journal/below/deeper"[..]].xattrs.contains_key(DEFAULT));
    assert_eq!(there[&b"file"[..]].mode & 0o070, 0o070);

    // Left out on request, on either side, with all else as it was.
    for side in ["send", "recv"] {
        let args = |this| if side == this { &["--no-acls"][..] } else { &[] };
        let dest = set.path(side);
        let receiver = recv(&dest).args(args("recv")).start();
        send(set.path("s"), receiver.port()).args(args("send")).outcome().expect(0);
        receiver.wait().expect(0);
        let mut should = list(set.path("s"));
        should.values_mut().for_each(|item| item.xattrs.clear());
        assert_listed(&list(&dest), &should);
    }
}

#[test]
fn attributes_are_left_out_on_request_on_either_side() {
    let dir = scratch();
    if !has_xattrs(dir.path()) {
        return;
    }
    let source = plain_in(dir.path());
    let mut should = list(&source);
    should.values_mut().for_each(|item| item.xattrs.clear());
    for side in ["send", "recv"] {
        let args = |this| if side == this { &["--no-xattrs"][..] } else { &[] };
        let dest = dir.path().join(side);
        let receiver = recv(&dest).args(args("recv")).start();
        send(&source, receiver.port()).args(args("send")).outcome().expect(0);
        receiver.wait().expect(0);
        assert_listed(&list(&dest), &should);
    }
}

#[test]
fn a_default_acl_and_a_setgid_bit_of_the_destination_leave_nothing_behind() {
    let dir = scratch();
    let default = acl(&[(1, 7, NOBODY), (2, 7, 12345), (4, 7, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)]);
    if !takes_xattr(dir.path(), "system.posix_acl_access", &default) {
        return;
    }
    let set = Set(dir.path());
    set.file("s/a/b/file", b"x");
    set.file("s/file", b"x");
    set.file("s/large", random_bytes(1, (1 << 20) + 1));
    set.fifo("s/fifo");
    set.symlink("file", "s/link");
    set_mode(set.path("s/a"), 0o711);
    set_xattr(set.file("s/with", b"x"), ACCESS, &default);
    // Into it, and into one that is made in it; and into one whose empty directories are there.
    let set_up = |name: &str| {
        let dest = set.dir(name);
        set_xattr(&dest, DEFAULT, &default);
        if rustix::process::geteuid().is_root() {
            set_owner(&dest, 0, 4242);
        }
        set_mode(&dest, 0o2770);
        dest
    };
    transfer(set.path("s"), set_up("d"), &[]);
    assert_same(set.path("d"), set.path("s"));
    transfer(set.path("s"), set_up("e").join("made"), &[]);
    assert_same(set.path("e/made"), set.path("s"));
    let there = set_up("f");
    fs::create_dir_all(there.join("a/b")).unwrap();
    transfer(set.path("s"), there, &[]);
    assert_same(set.path("f"), set.path("s"));
}

#[test]
fn gnu_tar_and_bsdtar_find_the_attributes_in_the_archive() {
    let dir = scratch();
    if !has_xattrs(dir.path()) {
        return;
    }
    let source = dir.path().join("s");
    fs::create_dir(&source).unwrap();
    let set = Set(&source);
    plain(&set);
    let access = acl(&[(1, 6, NOBODY), (2, 7, 12345), (4, 4, NOBODY), (8, 5, 54321), (16, 7, NOBODY), (32, 4, NOBODY)]);
    let acls = takes_xattr(dir.path(), "system.posix_acl_access", &access);
    if acls {
        set_xattr(set.file("acl/file", b"x"), ACCESS, &access);
        set_xattr(set.path("acl"), DEFAULT, &access);
    }
    if rustix::process::geteuid().is_root() {
        set_xattr(set.file("capable", b"x"), b"security.capability", b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        set_xattr(set.symlink("many", "link"), b"trusted.link", b"of a link");
    }
    let archive = dir.path().join("data.tar");
    let receiver = recv("-").stdout(fs::File::create(&archive).unwrap()).start();
    send(&source, receiver.port()).outcome().expect(0);
    receiver.wait().expect(0);
    for (program, args) in [
        ("tar", &["--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls", "-xpf"][..]),
        ("bsdtar", &["--numeric-owner", "--xattrs", "--acls", "-xpf"]),
    ] {
        let dest = dir.path().join(program);
        if !unpacked_by(program, args, &archive, &dest) {
            continue;
        }
        let (mut is, mut should) = (list(&dest), list(&source));
        if program == "bsdtar" {
            for item in should.values_mut() {
                // It does not undo the escapes in names.
                let escaped = |name: Vec<u8>| {
                    let escaped = name.iter().map(|b| match b {
                        b'=' => &b"%3D"[..],
                        b'%' => b"%25",
                        b => std::slice::from_ref(b),
                    });
                    escaped.collect::<Vec<_>>().concat()
                };
                item.xattrs = std::mem::take(&mut item.xattrs).into_iter().map(|(n, v)| (escaped(n), v)).collect();
            }
            // It leaves a directory that was there as it is.
            let root = is.get_mut(&b""[..]).unwrap();
            *root = should[&b""[..]].clone();
        }
        assert_listed(&is, &should);
    }
}

#[test]
fn attributes_that_lend_rights_are_withheld_and_named_unless_they_are_allowed() {
    if !is_root("attributes that only root may set") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    set_xattr(set.file("s/capable", b"x"), b"security.capability", capability);
    set_owner(set.path("s/capable"), 1000, 1000);
    set_xattr(set.path("s/capable"), b"security.capability", capability);
    set_xattr(set.symlink("x", "s/link"), b"trusted.link", b"of a link");
    set_xattr(set.dir("s/dir"), b"trusted.overlay.opaque", b"y");
    set_xattr(set.file("s/both", b"x"), b"trusted.t", b"");
    set_xattr(set.path("s/both"), b"user.u", b"");
    set_xattr(set.fifo("s/fifo"), b"trusted.fifo", b"f");
    transfer(set.path("s"), set.path("d"), &[]);
    assert_same(set.path("d"), set.path("s"));

    let receiver = recv(set.path("e")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("--allow caps").tells("--allow trusted");
    }
    let mut should = list(set.path("s"));
    should.values_mut().for_each(|item| item.xattrs.retain(|name, _| name.starts_with(b"user.")));
    assert_listed(&list(set.path("e")), &should);
    let receiver = recv(set.path("f")).args(&["--allow", "caps"]).start();
    send(set.path("s"), receiver.port()).outcome().expect(1);
    receiver.wait().expect(1);
    let there = list(set.path("f"));
    assert_eq!(there[&b"capable"[..]].xattrs, BTreeMap::from([(b"security.capability".to_vec(), capability.to_vec())]));
    assert!(there[&b"link"[..]].xattrs.is_empty());
}

#[test]
fn modes_beyond_the_nine_bits_are_exact_if_they_may_be_and_withheld_from_files_if_not() {
    let dir = scratch();
    let set = Set(dir.path());
    let modes = [0o4755, 0o2755, 0o6755, 0o1777, 0o2770, 0o3777];
    for mode in modes {
        for (path, mode) in [
            (set.file(format!("s/f{mode:o}"), random_bytes(1, 10_000)), mode),
            (set.file(format!("s/large{mode:o}"), random_bytes(2, (2 << 20) + 1)), mode),
            (set.dir(format!("s/d{mode:o}")), mode),
        ] {
            if rustix::process::geteuid().is_root() {
                set_owner(&path, 1000, 42);
            }
            set_mode(&path, mode);
        }
    }
    transfer(set.path("s"), set.path("d"), &[]);
    assert_same(set.path("d"), set.path("s"));
    let mode = |path: &str| set.path(path).metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode("d/f6755"), mode("d/large4755"), mode("d/d3777")), (0o6755, 0o4755, 0o3777));

    let receiver = recv(set.path("e")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("--allow suid");
    }
    let mut should = list(set.path("s"));
    for item in should.values_mut().filter(|item| item.kind == FileType::RegularFile) {
        item.mode &= 0o1777;
    }
    assert_listed(&list(set.path("e")), &should);
    assert_eq!(fs::metadata(set.path("e/f1777")).unwrap().permissions().mode() & 0o7777, 0o1777);
}

/// A receiver that is nobody, in a place that is his.
fn as_nobody(set: &Set, args: &[&str]) -> Run {
    let (copy, nobody) = (set.path("blast"), 65_534);
    if !copy.exists() {
        fs::copy(BLAST, &copy).unwrap();
        set_mode(&copy, 0o755);
        set_mode(set.0, 0o777);
    }
    let mut command = Command::new(copy);
    command.uid(nobody).gid(nobody).current_dir("/");
    Run::of("recv", command, &["recv", "--port", "0"]).args(args)
}

/// What GNU tar packs with all that it can keep arrives through standard input as if blast had walked it itself.
#[test]
fn what_gnu_tar_packs_keeps_its_attributes_and_devices_need_the_same_leave() {
    if !is_root("device nodes and trusted attributes") || !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    let file = set.file("s/file", b"content");
    set.hard_link("s/file", "s/same");
    set.symlink("file", "s/link");
    for (name, value) in
        [(&b"user.record"[..], &b"x\n15 path=evil.x\n"[..]), (b"trusted.t", b"\0\xff"), (b"user.a=b", b"=")]
    {
        set_xattr(&file, name, value);
    }
    let list_of = acl(&[(1, 6, NOBODY), (2, 6, 12345), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)]);
    let takes_acls = takes_xattr(dir.path(), "system.posix_acl_access", &list_of);
    if takes_acls {
        set_xattr(set.path("s/same"), ACCESS, &list_of);
    }
    for (name, kind, major, minor) in
        [("null", FileType::CharacterDevice, 1, 3), ("big", FileType::BlockDevice, 259, 1_048_575)]
    {
        if let Err(errno) = set.device(format!("s/dev/{name}"), kind, major, minor) {
            return eprintln!("SKIPPED: device nodes: {errno}");
        }
    }
    let args = "--format=posix --sort=name --xattrs --xattrs-include=* --acls -S -cf s.tar -C s .";
    run_in(dir.path(), "tar", &args.split(' ').collect::<Vec<_>>());
    let unpack = |dest: &str, args: &[&str]| {
        let receiver = recv(set.path(dest)).args(args).start();
        let sender = send("-", receiver.port()).stdin(fs::File::open(set.path("s.tar")).unwrap()).outcome();
        [sender, receiver.wait()]
    };
    for end in unpack("d/", TRUSTING) {
        end.expect(0);
    }
    assert_same(set.path("d"), set.path("s"));
    for end in unpack("e/", &["--allow", "trusted"]) {
        end.expect(1).tells(": a device needs --allow devices on the receiver");
    }
    let mut should = list(set.path("s"));
    should.retain(|path, _| !path.starts_with(b"dev/"));
    assert_listed(&list(set.path("e")), &should);
}

#[test]
fn devices_arrive_with_their_numbers_if_they_may_and_are_left_out_and_named_if_not() {
    if !is_root("device nodes") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    for (name, kind, major, minor) in [
        ("null", FileType::CharacterDevice, 1, 3),
        ("whiteout", FileType::CharacterDevice, 0, 0),
        ("big", FileType::BlockDevice, 259, 1_048_575),
        ("largest", FileType::CharacterDevice, 4095, 1_048_575),
    ] {
        let path = match set.device(format!("s/dev/{name}"), kind, major, minor) {
            Ok(path) => path,
            Err(errno) => return eprintln!("SKIPPED: device nodes: {errno}"),
        };
        set_owner(&path, 1000, 42);
        set_mode(&path, 0o4660);
        set_mtime(&path, 2000, 123_456_789);
    }
    set.file("s/file", b"x");
    set.hard_link("s/dev/null", "s/dev/z-same");
    set_xattr(set.path("s/dev/big"), b"trusted.t", b"on a device");
    let list_of = acl(&[(1, 6, NOBODY), (2, 6, 12345), (4, 6, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)]);
    if takes_xattr(dir.path(), "system.posix_acl_access", &list_of) {
        set_xattr(set.path("s/dev/whiteout"), ACCESS, &list_of);
    }
    transfer(set.path("s"), set.path("d"), &[]);
    assert_same(set.path("d"), set.path("s"));

    let without = |dest: &str| {
        let mut should = list(set.path("s"));
        should.retain(|path, _| !path.starts_with(b"dev/"));
        let mut is = list(set.path(dest));
        is.values_mut().chain(should.values_mut()).for_each(|item| item.owner = (0, 0));
        assert_listed(&is, &should);
    };
    let receiver = recv(set.path("e")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1)
            .tells("withheld: 4 entries, first dev/")
            .tells(": a device needs --allow devices on the receiver");
    }
    without("e");
    // A plain user cannot make them, whatever is allowed, but for whiteouts.
    let receiver = as_nobody(&set, TRUSTING).last(set.path("f")).start();
    let sender = send(set.path("s"), receiver.port()).args(&["--exclude", "whiteout"]).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("could not be created, left out: dev/null: Operation not permitted");
    }
    without("f");
}

#[test]
fn labels_of_another_system_are_left_with_one_line_unless_they_are_asked_for() {
    let label = b"x_u:y_r:z_t:s0\0";
    let dir = scratch();
    if !is_root("labels") || !takes_xattr(dir.path(), "security.selinux", label) {
        return;
    }
    let set = Set(dir.path());
    for name in ["s/a", "s/b", "s/c"] {
        set_xattr(set.file(name, b"x"), b"security.selinux", label);
    }
    set_xattr(set.path("s/a"), b"user.kept", b"v");
    let receiver = recv(set.path("d")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(0).tells("attributes not set: security.selinux, and 2 more (").tells("first ");
    }
    let mut should = list(set.path("s"));
    should.values_mut().for_each(|item| item.xattrs.retain(|name, _| name == b"user.kept"));
    assert_listed(&list(set.path("d")), &should);

    let receiver = recv(set.path("e")).args(&["--allow", "labels"]).start();
    send(set.path("s"), receiver.port()).outcome().expect(0);
    receiver.wait().expect(0);
    assert_same(set.path("e"), set.path("s"));

    // Asked for and refused: told, and the files are there. That of SELinux is refused only where SELinux is at work.
    set_xattr(set.path("s/c"), b"security.ima", label);
    let receiver = as_nobody(&set, &["--allow", "labels"]).last(set.path("f")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("cannot set security.ima: Operation not permitted");
    }
    assert_eq!(fs::read(set.path("f/c")).unwrap(), b"x");
}

#[test]
fn a_plain_user_gets_what_is_his_to_have_and_one_line_for_each_kind_that_is_not() {
    if !is_root("files of others") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for i in 0..50 {
        let file = set.file(format!("s/{i}"), b"x");
        set_owner(&file, 1000 + i, 42);
        set_mode(&file, 0o6755);
        set_xattr(&file, b"user.u", b"kept");
        set_xattr(&file, b"trusted.t", b"not his");
        set_xattr(&file, b"security.capability", capability);
    }
    let closed = set.file("s/closed/in/file", b"in directories that nobody may write");
    set_xattr(&closed, b"user.u", b"kept");
    for path in [&closed, &set.path("s/closed/in"), &set.path("s/closed")] {
        set_mode(path, 0o555);
    }
    let receiver = as_nobody(&set, &[]).last(set.path("d")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(0).tells("owners not set: 54 entries").tells(", and 99 more (");
        assert!(end.report().lines().filter(|line| line.contains(" not set: ")).count() == 2, "{end:?}");
    }
    let (mut is, mut should) = (list(set.path("d")), list(set.path("s")));
    for item in should.values_mut() {
        item.xattrs.retain(|name, _| name == b"user.u");
        item.mode &= 0o777;
    }
    assert!(is.values().all(|item| item.owner == (65_534, 65_534)));
    is.values_mut().chain(should.values_mut()).for_each(|item| item.owner = (0, 0));
    assert_listed(&is, &should);
}

#[test]
fn a_file_system_without_attributes_gets_the_content_and_one_line_a_class() {
    let dir = scratch();
    let dest = dir.path().join("d");
    fs::create_dir(&dest).unwrap();
    let Some(_mounted) = Mounted::of("ramfs", &dest, "rw") else { return };
    if !has_xattrs(dir.path()) {
        return;
    }
    let set = Set(dir.path());
    for i in 0..300 {
        set_xattr(set.file(format!("s/many/{i}"), format!("{i}")), b"user.x", b"1");
    }
    set_xattr(set.path("s/many"), b"user.dir", b"1");
    let wider = acl(&[(1, 6, NOBODY), (2, 6, 12345), (4, 0, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)]);
    let acls = takes_xattr(dir.path(), "system.posix_acl_access", &wider);
    if acls {
        set_xattr(set.file("s/acl", b"x"), ACCESS, &wider);
        assert_eq!(fs::metadata(set.path("s/acl")).unwrap().mode() & 0o777, 0o660);
    }
    let receiver = recv(&dest).args(&["--json"]).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    sender
        .expect(1)
        .tells("  extended attribute not kept: 301 entries, first many: cannot set user.dir: Operation not supported");
    let receiver = receiver.wait();
    receiver.expect(1);
    let report: serde_json::Value = serde_json::from_str(receiver.report()).unwrap();
    let named = report["notes"]["receiver"]["named"].as_array().unwrap();
    assert_eq!(named.iter().filter(|note| note["kind"] == "xattr").count(), 301);
    let mut should = list(set.path("s"));
    should.values_mut().for_each(|item| item.xattrs.clear());
    if acls {
        assert!(named.iter().any(|note| note["kind"] == "acl" && note["path"] == "acl"));
        // Without the list the group shall not get what was another's.
        should.get_mut(&b"acl"[..]).unwrap().mode = 0o600;
    }
    assert_listed(&list(&dest), &should);

    // Who wants none is not told of any.
    let again = dest.join("again");
    let receiver = recv(&again).args(&["--no-xattrs", "--no-acls"]).start();
    send(set.path("s"), receiver.port()).outcome().expect(0);
    receiver.wait().expect(0);
}

#[test]
fn a_file_system_with_whole_seconds_until_2038_gets_the_content_and_one_line_for_the_times() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("d");
    fs::create_dir(&dest).unwrap();
    let image = dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-I", "128"]).arg(&image).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return eprintln!("SKIPPED: an old file system: this needs mkfs.ext4");
    }
    let Some(_mounted) = Mounted::device(&image, &dest, "loop") else { return };
    let set = Set(dir.path());
    for i in 0..100 {
        set_mtime(set.file(format!("s/ns/{i}"), b"x"), 1_600_000_000 + i, 500_000_000 + i as u32);
        set_mtime(set.file(format!("s/whole/{i}"), b"x"), 1_600_000_000 + i, 0);
    }
    set_mtime(set.file("s/far", b"x"), 1 << 32, 0);
    for path in ["s/ns", "s/whole", "s"] {
        set_mtime(set.path(path), 1_600_000_001, 0);
    }
    let receiver = recv(&dest).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("  time not kept: 101 entries, first ").tells(": the file system cannot hold the time ");
    }
    assert_eq!(fs::read(dest.join("ns/99")).unwrap(), b"x");
    assert_eq!(fs::metadata(dest.join("whole/99")).unwrap().mtime(), 1_600_000_099);
}

#[test]
fn a_root_who_may_not_give_files_away_is_told_so_in_one_line_and_the_content_is_there() {
    if !is_root("a user namespace with files of others") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    for i in 0..100 {
        set_owner(set.file(format!("s/{i:02}"), b"x"), 1000, 42);
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", BLAST]);
    let receiver = Run::of("recv", command, &["recv", "--port", "0"]).last(set.path("d")).start();
    if !receiver.says_or_ends("listening on port ") {
        return eprintln!("SKIPPED: no user namespaces here: {:?}", receiver.wait());
    }
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("  owner not set: 100 entries, first ").tells(": it is 0:0 and not 1000:42: ");
    }
    assert_eq!(fs::read(set.path("d/99")).unwrap(), b"x");
}

#[test]
fn what_is_too_large_for_the_destination_is_one_line_and_the_rest_is_there() {
    let dir = scratch();
    let set = Set(dir.path());
    for i in 0..6 {
        set.file(format!("s/large{i}"), random_bytes(i, (2 << 20) + 1));
        set.file(format!("s/small{i}"), b"x");
    }
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -f 2048; exec \"$@\"", "bash", BLAST]);
    let receiver = Run::of("recv", limited, &["recv", "--port", "0"]).last(set.path("d")).start();
    let sender = send(set.path("s"), receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(1).tells("  could not be created, left out: 6 entries, first large").tells(": File too large\n");
    }
    assert_eq!(fs::read_dir(set.path("d")).unwrap().count(), 6);
}

/// The flags of inodes (`chattr`) are not carried, and hold nobody from reading: no file is opened in a way that only its
/// owner may, or that such a file refuses.
#[test]
fn files_that_may_not_be_changed_or_only_grow_are_sent_like_any_other() {
    if !is_root("files that may not be changed") {
        return;
    }
    let dir = scratch();
    let (source, dest) = (dir.path().join("s"), dir.path().join("d"));
    let set = Set(&source);
    let fixed = (IFlags::IMMUTABLE, set.file("fixed", b"x"));
    let files = [fixed, (IFlags::APPEND, set.file("grows", random_bytes(1, 2 << 20)))];
    let flag = |on: bool| {
        files.each_ref().map(|(flag, path)| {
            let file = fs::File::open(path).unwrap();
            let flags = ioctl_getflags(&file)?;
            ioctl_setflags(&file, if on { flags | *flag } else { flags - *flag })
        })
    };
    let flagged = flag(true);
    let ends = flagged.iter().all(Result::is_ok).then(|| {
        let receiver = recv(&dest).start();
        let sender = send(&source, receiver.port()).outcome();
        (sender, receiver.wait())
    });
    // or nobody can remove them
    let _ = flag(false);
    let Some((sender, receiver)) = ends else {
        eprintln!("SKIPPED: files that may not be changed: {flagged:?}");
        return;
    };
    sender.expect(0);
    receiver.expect(0);
    assert_same(&dest, &source);
}
