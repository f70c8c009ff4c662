//! The ways in which other programs were led out of their destination, or into memory or files that were not the
//! archive's: one test for each, named for what ours does. A tree outside is compared whole before and after. What more
//! there is of each kind is tried in [`crate::sink_forged`]; links that the archive brings, in [`crate::sink_hostile`].

use std::fs;
use std::sync::Arc;

use blast::ExitCode;
use blast::archive::{Entry, EntryKind, Extras, Xattr};
use blast::options::Destination;
use blast::sink::Prepared;

use crate::sink_feed::*;
use crate::sink_forge::{self as forge, LINK, SIZE, content, extended, octal, record};
use crate::sink_hostile::{Canary, assert_verification};
use crate::trees::takes_xattr;

/// An archive that begins like any other.
fn begun() -> Feed {
    let mut feed = Feed::new();
    feed.entry(&directory(""), b"").entry(&file("before", 3), &bytes(3, 6));
    feed
}

/// After these blocks the archive is refused with `text`; nothing named in them came to be.
#[track_caller]
fn refused(blocks: &[u8], text: &str) {
    let canary = Canary::new();
    let mut feed = begun();
    feed.raw(blocks);
    assert_verification(unpack(&mut feed, &canary.dest()).error(), text);
    canary.assert_unchanged();
    for (path, _) in look(&canary.dest()) {
        assert!(path.is_empty() || path == b"before", "{} came to be", path.escape_ascii());
    }
}

/// CVE-2018-12015: a file of a symbolic link's name was written through it.
#[test]
fn cve_2018_12015_a_file_of_a_symbolic_links_name_is_left_out() {
    let canary = Canary::new();
    for (target, size) in [(canary.outside("file"), 5), (canary.outside("new"), 5), (canary.outside("file"), 3 << 20)] {
        let dest = canary.dest();
        let entries = [directory(""), symlink("f", &target), file("f", size), file("last", 5)];
        let noted = unpack(&mut Feed::all(&entries), &dest).noted();
        assert_eq!(noted, ["f"]);
        assert_exact(&dest, &[entries[0].clone(), entries[1].clone(), entries[3].clone()]);
        canary.assert_unchanged();
        fs::remove_dir_all(&dest).unwrap();
        fs::create_dir(&dest).unwrap();
    }
}

/// CVE-2019-6111: a server sent other files than it was asked for, over those in the user's own directory.
#[test]
fn cve_2019_6111_no_name_that_the_sender_chooses_replaces_what_was_there() {
    let canary = Canary::new();
    fs::create_dir(canary.dest().join(".ssh")).unwrap();
    fs::write(canary.dest().join(".ssh/authorized_keys"), "mine").unwrap();
    let error = Prepared::new(&Destination::Path(canary.dest())).err().expect("refused");
    assert_eq!(error.exit_code(), ExitCode::Refused, "{error}");
    assert!(error.to_string().contains("is not empty"), "{error}");
    fs::remove_dir_all(canary.dest().join(".ssh")).unwrap();

    // The one place that may hold something.
    fs::create_dir(canary.dest().join("lost+found")).unwrap();
    fs::write(canary.dest().join("lost+found/f"), "mine").unwrap();
    let before = look(&canary.dest().join("lost+found"))[&b"f"[..]].clone();
    let entries = [directory(""), directory("lost+found"), file("lost+found/f", 900), symlink("lost+found/f", "x")];
    let noted = unpack(&mut Feed::all(&entries), &canary.dest()).noted();
    assert_eq!(noted, ["lost+found/f", "lost+found/f"]);
    assert_eq!(look(&canary.dest().join("lost+found"))[&b"f"[..]], before);
    canary.assert_unchanged();
}

/// CVE-2022-2879: headers of any length were read into memory.
#[test]
fn cve_2022_2879_an_extended_header_that_claims_gigabytes_is_refused_before_any_of_it_is_read() {
    for claim in [(800 << 10) + 1, 1 << 30, 0o77777777777] {
        let header = forge::block(b'x', b"././@PaxHeader", &[(SIZE, &octal(claim))]);
        refused(&header, &format!("an extended header of {claim} bytes is too long"));
    }
}

/// CVE-2023-43616: an archive's entry replaced a file that lay there already.
#[test]
fn cve_2023_43616_a_repeated_name_leaves_what_came_first_as_it_is() {
    let canary = Canary::new();
    let entries = [directory(""), directory("d"), file("d/f", 5), file("d/f", 700), file("d/f", 3 << 20), file("d", 9)];
    let noted = unpack(&mut Feed::all(&entries), &canary.dest()).noted();
    assert_eq!(noted, ["d", "d/f", "d/f"]);
    assert_exact(&canary.dest(), &entries[..3]);
    canary.assert_unchanged();
}

/// CVE-2024-12087: a name that had been checked as a directory came once more, as a link, and was followed.
#[test]
fn cve_2024_12087_a_link_of_a_directorys_name_takes_nothing_of_what_follows_outside() {
    let canary = Canary::new();
    let outside = canary.outside("");
    let link = symlink("d", outside.trim_end_matches('/'));
    let dest = canary.dest();
    // The link leaves the directory, so what comes after it is out of order.
    let out_of_order = [directory(""), directory("d"), link.clone(), file("d/file", 5)];
    assert_verification(unpack(&mut Feed::all(&out_of_order), &dest).error(), "directory was not open");
    canary.assert_unchanged();
    fs::remove_dir_all(&dest).unwrap();
    fs::create_dir(&dest).unwrap();
    // Announced again, it is a second directory of a name that is taken.
    let again = [directory(""), directory("d"), link, directory("d"), file("d/file", 5), file("rest", 1)];
    let noted = unpack(&mut Feed::all(&again), &dest).noted();
    assert!(noted.iter().all(|path| ["d", "d/file"].contains(&path.as_str())) && !noted.is_empty(), "{noted:?}");
    assert!(dest.join("d").symlink_metadata().unwrap().is_dir());
    assert!(dest.join("rest").exists());
    canary.assert_unchanged();
}

/// CVE-2024-12718: modes and times of entries were set on what they pointed to outside.
#[test]
fn cve_2024_12718_the_attributes_of_links_are_their_own() {
    let canary = Canary::new();
    let mut entries = vec![directory("")];
    for (name, target) in [("a", "file"), ("b", "sub"), ("c", "link"), ("d", "")] {
        let mut link = symlink(name, &canary.outside(target));
        link.mode = 0o777;
        let mut again = hardlink(&format!("{name}2"), name);
        again.mode = 0o4777;
        entries.extend([link, again]);
    }
    if is_root() {
        for entry in &mut entries[1..] {
            (entry.uid, entry.gid) = (1234, 1234);
        }
    }
    let outcome = unpack(&mut Feed::all(&entries), &canary.dest());
    outcome.whole();
    assert_exact(&canary.dest(), &entries);
    canary.assert_unchanged();
}

/// CVE-2025-4517: a chain of links made a path longer than the system resolves, and the check stopped there.
#[test]
fn cve_2025_4517_links_that_make_a_path_longer_than_the_system_takes_lead_nowhere() {
    let long = "d".repeat(247);
    let mut chain = vec![directory("")];
    let (mut at, mut steps) = (String::new(), String::new());
    for step in 'a'..='p' {
        chain.extend([directory(&format!("{at}{long}")), symlink(&format!("{at}{step}"), &long)]);
        at += &format!("{long}/");
        steps += &format!("{step}/");
    }
    let up = format!("{steps}{}", "l".repeat(254));
    chain.push(symlink(&format!("{at}{}", "l".repeat(254)), &"../".repeat(16)));
    chain.push(symlink("escape", &format!("{up}/../outside")));
    // A link comes after its directory's other entries in any walk.
    for last in [hardlink("flag", "escape/file"), hardlink("flag", &format!("{up}/file"))] {
        let canary = Canary::new();
        let mut feed = Feed::all(&in_order(&chain));
        feed.entry(&last, b"").entry(&file("flag", 5), b"12345");
        assert_eq!(unpack(&mut feed, &canary.dest()).noted(), ["flag"]);
        assert_eq!(fs::read(canary.dest().join("flag")).unwrap(), b"12345");
        canary.assert_unchanged();
    }
    for through in ["escape/file", "escape/new", &format!("{up}/x")] {
        let canary = Canary::new();
        let mut feed = Feed::all(&in_order(&chain));
        feed.entry(&file(through, 5), b"12345");
        assert_verification(unpack(&mut feed, &canary.dest()).error(), "directory was not open");
        canary.assert_unchanged();
    }
}

/// Deeper directories last, as nothing may come in a directory that was left.
fn in_order(entries: &[blast::archive::Entry]) -> Vec<blast::archive::Entry> {
    let mut entries = entries.to_vec();
    let depth = |path: &[u8]| path.iter().filter(|b| **b == b'/').count();
    entries.sort_by_key(|entry| (depth(&entry.path), entry.kind.is_directory() && !entry.path.is_empty()));
    entries
}

/// CVE-2025-45582: the first of two archives brought a link, the second went through it.
#[test]
fn cve_2025_45582_a_second_archive_does_not_go_through_the_links_of_the_first() {
    let canary = Canary::new();
    let outside = canary.outside("");
    let first = [directory(""), directory("a"), symlink("a/x", outside.trim_end_matches('/'))];
    unpack(&mut Feed::all(&first), &canary.dest()).whole();
    let error = Prepared::new(&Destination::Path(canary.dest())).err().expect("refused");
    assert_eq!(error.exit_code(), ExitCode::Refused, "{error}");
    // A destination that is such a link leads where whoever typed it says; inside it nothing is followed.
    let error = Prepared::new(&Destination::Path(canary.dest().join("a/x"))).err().expect("refused");
    assert!(error.to_string().contains("is not empty"), "{error}");
    canary.assert_unchanged();
}

/// CVE-2025-58183: the map of a sparse file was read into memory, however long.
#[test]
fn cve_2025_58183_maps_of_holes_are_refused_by_name_in_all_their_forms() {
    refused(&forge::block(b'S', b"sparse", &[(SIZE, &octal(1))]), "entry type 'S'");
    let old = record("GNU.sparse.map", "0,1,".repeat(100_000) + "0,1");
    refused(&extended(&old), "extended header key 'GNU.sparse.map'");
    let new = [("major", "1"), ("minor", "0"), ("name", "x"), ("realsize", "1099511627776")];
    let new = new.map(|(key, value)| record(&format!("GNU.sparse.{key}"), value));
    let file = forge::block(b'0', b"GNUSparseFile.0/x", &[(SIZE, &octal(512))]);
    for map in [format!("{}\n", u64::MAX), "1048578\n".into()] {
        let bytes = [extended(new.concat()), file.clone(), content(map.as_bytes())].concat();
        refused(&bytes, "the map of a sparse file has too many extents");
    }
}

/// CVE-2025-59343: a link to a sibling whose name began like the destination's passed for one inside.
#[test]
fn cve_2025_59343_a_sibling_whose_name_begins_like_the_destinations_is_outside() {
    for target in ["../outside/file", "../outside"] {
        let canary = Canary::of("out");
        let entries = [directory(""), symlink("x", target), hardlink("y", "x"), file("x", 5), file("y", 5)];
        let noted = unpack(&mut Feed::all(&entries), &canary.dest()).noted();
        assert_eq!(noted, ["x", "y"]);
        canary.assert_unchanged();
        let entries = [directory(""), symlink("x", target), file("x/new", 5)];
        fs::remove_dir_all(canary.dest()).unwrap();
        fs::create_dir(canary.dest()).unwrap();
        assert_verification(unpack(&mut Feed::all(&entries), &canary.dest()).error(), "directory was not open");
        canary.assert_unchanged();
    }
}

/// CVE-2025-62518: where the plain block said 0 and the extended header another size, the content was read as entries.
#[test]
fn cve_2025_62518_the_entries_of_an_archive_inside_a_file_stay_its_content() {
    let inner = [forge::block(b'0', b"smuggled", &[(SIZE, &octal(4))]), content(b"evil")].concat();
    let size = record("size", inner.len().to_string());
    let outer = forge::block(b'0', b"inner.tar", &[]);
    refused(&[extended(&size), outer, inner.clone()].concat(), "not written as the dialect has it");

    // Said in one way only, it is content like any other.
    let canary = Canary::new();
    let mut feed = begun();
    feed.entry(&file("inner.tar", inner.len()), &inner);
    unpack(&mut feed, &canary.dest()).whole();
    assert_eq!(fs::read(canary.dest().join("inner.tar")).unwrap(), inner);
    assert!(!canary.dest().join("smuggled").exists());
    canary.assert_unchanged();
}

/// CVE-2026-33055: where the plain block had a size, that of the extended header was passed over.
#[test]
fn cve_2026_33055_two_sizes_that_differ_are_refused_and_neither_is_believed() {
    let inner = [forge::block(b'0', b"smuggled", &[(SIZE, &octal(4))]), content(b"evil")].concat();
    for (plain, said) in [(512, inner.len()), (inner.len(), 512), (inner.len(), 1), (1, 1 << 40)] {
        let outer = forge::block(b'0', b"outer", &[(SIZE, &octal(plain as u64))]);
        let blocks = [extended(record("size", said.to_string())), outer, inner.clone()].concat();
        refused(&blocks, "not written as the dialect has it");
    }
}

/// CVE-2026-23745: targets were taken as they came, those of hard links too.
#[test]
fn cve_2026_23745_absolute_targets_are_refused_for_hard_links_and_only_data_for_symbolic_ones() {
    let canary = Canary::new();
    let target = canary.outside("file");
    let link = forge::block(b'1', b"h", &[(LINK, target.as_bytes())]);
    let mut feed = begun();
    feed.raw(&link);
    assert_verification(unpack(&mut feed, &canary.dest()).error(), "is absolute");
    canary.assert_unchanged();
    fs::remove_dir_all(canary.dest()).unwrap();
    fs::create_dir(canary.dest()).unwrap();

    let entries = [directory(""), symlink("s", &target), hardlink("s2", "s"), symlink("etc", "/etc")];
    unpack(&mut Feed::all(&entries), &canary.dest()).whole();
    assert_exact(&canary.dest(), &entries);
    canary.assert_unchanged();
}

/// CVE-2026-23950: names that some file systems take for one were checked as two, at the same time.
#[test]
fn cve_2026_23950_names_that_look_alike_are_the_names_they_are() {
    for (a, b) in [("stra\u{df}e", "strasse"), ("cafe\u{301}", "caf\u{e9}"), ("Dir", "dir"), ("\u{212a}", "k")] {
        let canary = Canary::new();
        let outside = canary.outside("");
        let link = symlink(b, outside.trim_end_matches('/'));
        let entries = [directory(""), link.clone(), directory(a), file(&format!("{a}/file"), 5)];
        unpack(&mut Feed::all(&entries), &canary.dest()).whole();
        assert_exact(&canary.dest(), &entries);
        canary.assert_unchanged();
        fs::remove_dir_all(canary.dest()).unwrap();
        fs::create_dir(canary.dest()).unwrap();
        let entries = [directory(""), link, directory(a), file(&format!("{b}/file"), 5)];
        assert_verification(unpack(&mut Feed::all(&entries), &canary.dest()).error(), "directory was not open");
        canary.assert_unchanged();
    }
}

/// GHSA-3cv2-h65g-fgmm: an extended header was taken for the long name that followed it instead of the file.
#[test]
fn ghsa_3cv2_h65g_fgmm_a_long_name_between_an_extended_header_and_its_entry_is_refused() {
    for type_flag in [b'L', b'K', b'x', b'g'] {
        let between = [forge::block(type_flag, b"././@LongLink", &[(SIZE, &octal(9))]), content(b"long name")].concat();
        let smuggled = [forge::block(b'0', b"smuggled", &[(SIZE, &octal(4))]), content(b"evil")].concat();
        let blocks = [extended(record("size", "2048")), between, smuggled].concat();
        let expected = if type_flag == b'x' { "two extended headers" } else { "is not part of the dialect" };
        refused(&blocks, expected);
    }
}

/// Values were cut at newlines, so that the rest of one passed for another record.
#[test]
fn pax_newline_injection_a_value_that_holds_a_newline_and_a_record_names_no_file() {
    let injected = record("path", "smuggled");
    let value = [b"x\n", &injected[..]].concat();
    let entry = forge::block(b'0', b"honest", &[]);
    refused(&[extended(record("comment", &value)), entry].concat(), "'comment'");
    let canary = Canary::new();
    // Where a value may be anything it is what it is.
    let target = "t".repeat(120) + std::str::from_utf8(&value).unwrap();
    let entries = [directory(""), symlink("link", &target), file(&target, 5)];
    unpack(&mut Feed::all(&entries), &canary.dest()).whole();
    assert_exact(&canary.dest(), &entries);
    canary.assert_unchanged();
    if takes_xattr(&canary.dest(), "user.a", &value) {
        let xattrs = vec![Xattr { name: b"user.a".to_vec(), value: value.clone() }];
        let extras = Some(Arc::new(Extras { xattrs, ..Extras::default() }));
        let entries = [directory(""), Entry { extras, ..file("honest", 5) }];
        let canary = Canary::new();
        unpack(&mut Feed::all(&entries), &canary.dest()).whole();
        assert_exact(&canary.dest(), &entries);
        let mut set = [0; 100];
        let len = rustix::fs::getxattr(canary.dest().join("honest"), "user.a", &mut set[..]).unwrap();
        assert_eq!(&set[..len], value);
    }
}

/// A default of another program's: a FIFO that a file's entry met was opened, and waited for a reader.
#[test]
fn a_file_of_a_fifos_name_is_left_out_without_opening_it() {
    let canary = Canary::new();
    let entries = [directory(""), entry("p", EntryKind::Fifo), file("p", 5), file("p", 3 << 20), hardlink("q", "p")];
    assert_eq!(unpack(&mut Feed::all(&entries), &canary.dest()).noted(), ["p", "p"]);
    assert_exact(&canary.dest(), &[entries[0].clone(), entries[1].clone(), entries[4].clone()]);
    canary.assert_unchanged();
}
