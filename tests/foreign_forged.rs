//! Archives of other programs that want more than they should: through links that they bring, over what is there, out
//! of the destination. A tree outside is compared whole before and after.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use blast::report::NoteKind;
use blast::{Error, ExitCode};

use crate::foreign_feed::unpack_stream;
use crate::sink_feed::*;
use crate::sink_forge::{BLOCK, LINK, SIZE, block, content, extended, octal, record};
use crate::sink_hostile::Canary;

fn a_file(name: &str, bytes: &[u8]) -> Vec<u8> {
    [block(b'0', name.as_bytes(), &[(SIZE, &octal(bytes.len() as u64))]), content(bytes)].concat()
}

fn a_directory(name: &str) -> Vec<u8> {
    block(b'5', name.as_bytes(), &[])
}

fn a_link(name: &str, target: &str) -> Vec<u8> {
    [extended(record("linkpath", target)), block(b'2', name.as_bytes(), &[])].concat()
}

fn a_hard_link(name: &str, target: &str) -> Vec<u8> {
    [
        extended(record("linkpath", target)),
        block(b'1', name.as_bytes(), &[(LINK, &target.as_bytes()[..target.len().min(100)])]),
    ]
    .concat()
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    [&entries.concat()[..], &[0; 2 * BLOCK]].concat()
}

/// Unpack; nothing outside has changed. What is left out, by path.
#[track_caller]
fn left_out(canary: &Canary, entries: &[Vec<u8>]) -> Vec<String> {
    let end = unpack_stream(&archive(entries), &canary.dest()).end.expect("it ends");
    canary.assert_unchanged();
    let lost = end.notes.named.iter().filter(|note| note.kind.is_loss());
    lost.map(|note| String::from_utf8_lossy(&note.path).into_owned()).collect()
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// CVE-2018-12015 and its like: through a symbolic link of the archive's own.
#[test]
fn cve_2018_12015_a_link_of_the_archive_is_replaced_by_a_later_file_and_never_followed() {
    for large in [false, true] {
        let canary = Canary::new();
        let bytes = if large { bytes(3 << 20, 1) } else { b"content".to_vec() };
        let entries = [
            a_link("f", &canary.outside("file")),
            a_file("f", &bytes),
            a_link("d", canary.outside("").trim_end_matches('/')),
            a_file("d/file", b"evil"),
            a_file("d/new", b"evil"),
            a_link("p", &canary.outside("fifo")),
            a_file("p", b"content"),
        ];
        assert_eq!(left_out(&canary, &entries), ["d/file", "d/new"]);
        assert_eq!(fs::read(canary.dest().join("f")).unwrap(), bytes);
        assert!(canary.dest().join("d").is_symlink());
    }
}

/// CVE-2024-12087, CVE-2025-45582: a name that was a directory comes once more as a link, or the other way round.
#[test]
fn cve_2024_12087_cve_2025_45582_links_and_directories_of_one_name_take_nothing_outside() {
    let outside = |canary: &Canary| canary.outside("").trim_end_matches('/').to_owned();
    let canary = Canary::new();
    let entries = [a_directory("d"), a_link("d", &outside(&canary)), a_file("d/file", b"evil"), a_file("after", b"")];
    assert_eq!(left_out(&canary, &entries), ["d/file"], "an empty directory is replaced");
    assert!(canary.dest().join("d").is_symlink() && canary.dest().join("after").is_file());

    let canary = Canary::new();
    let entries = [a_file("d/in", b"in"), a_link("d", &outside(&canary)), a_file("d/file", b"ours")];
    assert_eq!(left_out(&canary, &entries), ["d"], "one that is not empty stays");
    assert_eq!(text(canary.dest().join("d/file")), "ours");

    let canary = Canary::new();
    let entries = [a_link("d", &outside(&canary)), a_directory("d"), a_file("d/file", b"ours")];
    assert_eq!(left_out(&canary, &entries), [""; 0], "a directory replaces a link");
    assert_eq!(text(canary.dest().join("d/file")), "ours");
}

/// CVE-2025-4517: a chain of links that makes a path longer than the system resolves.
#[test]
fn cve_2025_4517_a_chain_of_links_of_any_length_leads_nowhere() {
    let canary = Canary::new();
    let long = "d".repeat(247);
    let (mut entries, mut at, mut steps) = (Vec::new(), String::new(), String::new());
    for step in 'a'..='p' {
        let path = format!("{at}{long}");
        entries.push([extended(record("path", format!("{path}/"))), a_directory("d")].concat());
        entries.push(
            [
                extended([record("path", format!("{at}{step}")), record("linkpath", &long)].concat()),
                block(b'2', b"l", &[]),
            ]
            .concat(),
        );
        at += &format!("{long}/");
        steps += &format!("{step}/");
    }
    let last = "l".repeat(254);
    entries.push(
        [
            extended([record("path", format!("{at}{last}")), record("linkpath", "../".repeat(16))].concat()),
            block(b'2', b"l", &[]),
        ]
        .concat(),
    );
    let through = format!("{steps}{last}");
    entries.push(a_link("escape", &format!("{through}/../outside")));
    entries.push(a_hard_link("flag", "escape/file"));
    entries.push(a_file("flag", b"ours"));
    entries.push([extended(record("path", format!("{through}/evil"))), a_file("x", b"evil")].concat());
    let lost = left_out(&canary, &entries);
    assert_eq!(lost.len(), 2, "{lost:?}");
    assert_eq!(text(canary.dest().join("flag")), "ours");
}

/// RUSTSEC-2018-0002, CVE-2026-23745: a hard link to what the archive did not bring, then a file of its name.
#[test]
fn rustsec_2018_0002_cve_2026_23745_hard_links_lead_to_what_the_archive_brought_and_nowhere_else() {
    for target in ["/etc/hostname", "../outside/file", "/../outside/file", "link/file", "nothing", "d"] {
        let canary = Canary::new();
        let outside = canary.outside("");
        let entries = [
            a_directory("d"),
            a_link("link", outside.trim_end_matches('/')),
            a_hard_link("h", target),
            a_file("h", b"ours"),
        ];
        assert_eq!(left_out(&canary, &entries), ["h"], "{target}");
        assert_eq!(text(canary.dest().join("h")), "ours");
    }
    // Absolute ones lead into the destination, as their names do.
    let canary = Canary::new();
    let target = canary.outside("file");
    assert_eq!(left_out(&canary, &[a_hard_link("h", &target)]), ["h"]);
    let canary = Canary::new();
    assert_eq!(left_out(&canary, &[a_file("/etc/x", b"ours"), a_hard_link("h", "/etc/x")]), [""; 0]);
    assert_eq!(text(canary.dest().join("h")), "ours");
    // One to a symbolic link is one more name of the link.
    let canary = Canary::new();
    assert_eq!(left_out(&canary, &[a_link("l", &canary.outside("file")), a_hard_link("h", "l")]), [""; 0]);
    assert!(canary.dest().join("h").is_symlink());
}

#[test]
fn the_last_of_several_entries_of_one_name_holds_and_other_names_keep_what_they_had() {
    let canary = Canary::new();
    let entries = [
        a_file("a", b"one"),
        a_hard_link("b", "a"),
        a_file("a", b"two"),
        a_file("big", &bytes(3 << 20, 1)),
        a_hard_link("also-big", "big"),
        a_file("big", b"small"),
        a_file("small", b"small"),
        a_file("small", &bytes(3 << 20, 2)),
        block(b'6', b"p", &[]),
        a_file("p", b"no FIFO"),
        a_file("q", b"no file"),
        block(b'6', b"q", &[]),
        a_file("l", b"x"),
        a_link("l", "nowhere"),
        a_file("f", b"x"),
        a_directory("f"),
        a_file("f/in", b"in"),
        a_file("h", b"x"),
        a_hard_link("h", "a"),
    ];
    assert_eq!(left_out(&canary, &entries), [""; 0]);
    let dest = canary.dest();
    assert_eq!((text(dest.join("a")), text(dest.join("b"))), ("two".into(), "one".into()));
    assert_eq!(text(dest.join("big")), "small");
    assert!(fs::read(dest.join("also-big")).unwrap() == bytes(3 << 20, 1));
    assert!(fs::read(dest.join("small")).unwrap() == bytes(3 << 20, 2));
    assert_eq!(text(dest.join("p")), "no FIFO");
    assert!(fs::symlink_metadata(dest.join("q")).unwrap().file_type().is_fifo());
    assert!(dest.join("l").is_symlink());
    assert_eq!(text(dest.join("f/in")), "in");
    assert_eq!(fs::metadata(dest.join("h")).unwrap().ino(), fs::metadata(dest.join("a")).unwrap().ino());
}

#[test]
fn a_directory_with_anything_in_it_is_not_replaced() {
    for entry in [
        a_file("d", b"x"),
        a_link("d", "x"),
        block(b'6', b"d", &[]),
        a_file("d", &bytes(3 << 20, 1)),
        a_hard_link("d", "f"),
    ] {
        let canary = Canary::new();
        assert_eq!(left_out(&canary, &[a_file("f", b"f"), a_file("d/in", b"in"), entry, a_file("d/more", b"")]), ["d"]);
        assert_eq!(text(canary.dest().join("d/in")), "in");
        assert!(canary.dest().join("d/more").is_file());
    }
    // A file is no way to anything.
    let canary = Canary::new();
    assert_eq!(left_out(&canary, &[a_file("f", b"f"), a_file("f/in", b"in"), a_file("g", b"")]), ["f/in"]);
    assert_eq!(text(canary.dest().join("f")), "f");
}

#[test]
fn what_was_there_before_is_not_replaced() {
    let canary = Canary::new();
    let dest = canary.dest();
    fs::create_dir_all(dest.join("lost+found")).unwrap();
    fs::create_dir_all(dest.join("empty/below")).unwrap();
    fs::write(dest.join("lost+found/f"), "mine").unwrap();
    let entries = [
        a_file("lost+found/f", b"evil"),
        a_link("lost+found/f", "x"),
        a_file("lost+found", b"evil"),
        a_file("empty", b"evil"),
        a_file("empty/below", b"evil"),
        a_hard_link("h", "lost+found/f"),
        a_file("empty/new", b"new"),
    ];
    assert_eq!(
        left_out(&canary, &entries),
        ["lost+found/f", "lost+found/f", "lost+found", "empty", "empty/below", "h"]
    );
    assert_eq!(text(dest.join("lost+found/f")), "mine");
    assert_eq!(text(dest.join("empty/new")), "new");
}

/// rsync and odd tools make them; unlinking before linking would lose the file.
#[test]
fn a_hard_link_to_itself_keeps_the_file_and_without_one_is_left_out() {
    let canary = Canary::new();
    let end = unpack_stream(&archive(&[a_file("x", b"kept"), a_hard_link("x", "./x")]), &canary.dest()).end.unwrap();
    assert_eq!((end.notes.losses, end.notes.named[0].kind), (0, NoteKind::Remark));
    assert_eq!(text(canary.dest().join("x")), "kept");
    let canary = Canary::new();
    assert_eq!(left_out(&canary, &[a_hard_link("x", "x"), a_hard_link("x", "x"), a_file("y", b"")]), ["x", "x"]);
    let canary = Canary::new();
    assert_eq!(left_out(&canary, &[a_hard_link("x", "x"), a_file("x", b"here")]), ["x"]);
    assert_eq!(text(canary.dest().join("x")), "here");
}

#[test]
fn what_is_damaged_ends_it_on_the_spot_and_nothing_half_written_keeps_its_name() {
    let whole = archive(&[a_file("first", b"1"), a_file("large", &bytes(3 << 20, 1)), a_file("last", b"2")]);
    for (stream, words) in [
        (whole[..2 << 20].to_vec(), "cut off at offset 2097152, inside a file"),
        (whole[..whole.len() - 1024].to_vec(), "where another member or the end should follow"),
        (whole[..1300].to_vec(), "inside a header"),
        ([&whole[..1024], &[b'x'; 512], &whole[1024..]].concat(), "at offset 1024 there should be a header"),
    ] {
        let canary = Canary::new();
        let error = unpack_stream(&stream, &canary.dest()).error();
        assert!(matches!(error, Error::Archive(_)) && error.to_string().contains(words), "{words}: {error}");
        assert_eq!(error.exit_code(), ExitCode::Verification);
        canary.assert_unchanged();
        assert_eq!(text(canary.dest().join("first")), "1");
        assert!(!canary.dest().join("last").exists() || stream.len() > 3 << 20);
    }
}

#[test]
fn what_is_no_archive_is_refused_and_leaves_nothing() {
    for (stream, words) in [
        (&b""[..], "not one byte"),
        (b"text\n", "looks like text"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "decompress it first"),
        (&[0xaa; 3000], "not a tar archive"),
    ] {
        let canary = Canary::new();
        fs::remove_dir(canary.dest()).unwrap();
        let error = unpack_stream(stream, &canary.dest().join("")).error();
        assert_eq!(error.exit_code(), ExitCode::Refused, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(!canary.dest().exists(), "what was made for it goes again");
    }
}

#[test]
fn a_plain_user_fills_directories_that_let_nobody_in() {
    if is_root() {
        eprintln!("SKIPPED: a plain user's rights, as root");
        return;
    }
    let canary = Canary::new();
    let closed = |name: &str| block(b'5', name.as_bytes(), &[(crate::sink_forge::MODE, b"0000000")]);
    let entries = [
        closed("d"),
        a_file("d/a", b"a"),
        a_file("other", b""),
        a_file("d/b", b"b"),
        closed("d/c"),
        a_file("d/c/x", b""),
    ];
    assert_eq!(left_out(&canary, &entries), [""; 0]);
    assert_eq!(fs::metadata(canary.dest().join("d")).unwrap().mode() & 0o7777, 0);
}
