//! A source in which things turn into other things, come and go, or cannot be read for the disk's sake: each is named
//! on both ends, all else is exact, and nothing waits for ever.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{Advice, fadvise};

use super::changing::{Stalled, partial};
use crate::ends::{BLAST, Outcome, Run, address, recv, scratch, send};
use crate::loops::Loop;
use crate::sink_feed::Mounted;
use crate::trees::{Set, assert_listed, list, random_bytes, write};

#[test]
fn what_became_something_else_is_named_on_both_ends_and_all_else_is_exact() {
    let dir = scratch();
    let source = dir.path().join("s");
    let set = Set(&source);
    // The sender comes no further than this one before the test goes on.
    write(source.join("0"), random_bytes(1, 16 << 20));
    for (i, name) in ["a file", "b file", "c file", "d file", "e file"].into_iter().enumerate() {
        write(source.join(name), if i % 2 == 0 { vec![7; 10] } else { random_bytes(2, 2 << 20) });
        write(source.join(format!("{name}+")), b"the one after");
    }
    for i in 0..20 {
        write(source.join(format!("f directory/{i}")), b"in what becomes a file");
    }
    write(source.join("zz"), b"the last");
    let stalled = Stalled::start(&source);
    for name in ["a file", "b file", "c file", "d file", "e file"] {
        fs::remove_file(source.join(name)).unwrap();
    }
    fs::remove_dir_all(source.join("f directory")).unwrap();
    set.dir("a file/inside");
    set.fifo("b file");
    symlink("/etc/passwd", source.join("c file")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(source.join("d file")).unwrap());
    set.fifo("e file");
    write(source.join("f directory"), b"a file now");
    let dest = dir.path().join("d");
    let ends = stalled.go_on(&dest);
    partial(&ends);
    for end in [&ends.0, &ends.1] {
        end.tells("changed while it was read: a file: it became a directory and was left out\n");
        end.tells("changed while it was read: b file: it became a FIFO and was left out\n");
        end.tells("vanished before it was read, left out: c file\n");
        end.tells(": d file").tells("changed while it was read: e file: it became a FIFO and was left out\n");
        end.tells("vanished before it was read, left out: f directory: a directory, with what was left of it\n");
        end.tells("left out, changed or incomplete: 6\n");
    }
    let (mut is, mut should) = (list(&dest), list(&source));
    for listing in [&mut is, &mut should] {
        listing.remove(&b""[..]);
        listing.retain(|path, _| !path.starts_with(b"f directory"));
    }
    for gone in ["a file", "a file/inside", "b file", "c file", "e file"] {
        assert!(should.remove(gone.as_bytes()).is_some());
    }
    assert_eq!(should.len(), 7);
    assert_listed(&is, &should);
}

#[test]
fn files_that_come_and_go_beside_others_change_nothing_for_these() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("0"), random_bytes(3, 16 << 20));
    for i in 0..100 {
        write(source.join(format!("d/{i}")), format!("stays {i}"));
    }
    let stalled = Stalled::start(&source);
    for i in 0..1000 {
        write(source.join(format!("d/t.{i}")), b"comes");
        fs::remove_file(source.join(format!("d/t.{i}"))).unwrap();
    }
    write(source.join("d/new"), b"too late, or not");
    let dest = dir.path().join("d");
    let ends = stalled.go_on(&dest);
    for end in [&ends.0, &ends.1] {
        end.expect(0).tells("whole: ");
    }
    for i in 0..100 {
        assert_eq!(fs::read(dest.join(format!("d/{i}"))).unwrap(), format!("stays {i}").as_bytes());
    }
}

/// What changes all the time can neither hold up a transfer nor harm what does not.
#[test]
fn names_that_turn_into_fifos_and_back_hold_nothing_up() {
    let dir = scratch();
    let source = dir.path().join("s");
    for i in 0..200 {
        write(source.join(format!("{i:03}")), format!("stable {i}"));
    }
    let set = Set(&source);
    let stop = AtomicBool::new(false);
    let flip = || {
        while !stop.load(Relaxed) {
            for name in ["050x", "100x", "150x"] {
                set.fifo(name);
                fs::remove_file(source.join(name)).unwrap();
                write(source.join(name), b"a file for a moment");
                fs::remove_file(source.join(name)).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(flip);
        let moved = std::panic::catch_unwind(|| {
            for i in 0..20 {
                let dest = dir.path().join(format!("d{i}"));
                let receiver = recv(&dest).start();
                let sender = send(&source, receiver.port()).outcome();
                let receiver = receiver.wait();
                assert!(matches!(sender.code, Some(0 | 1)), "{sender:?}");
                assert_eq!(sender.code, receiver.code, "{sender:?}\n{receiver:?}");
                for i in 0..200 {
                    assert_eq!(fs::read(dest.join(format!("{i:03}"))).unwrap(), format!("stable {i}").as_bytes());
                }
            }
        });
        stop.store(true, Relaxed);
        moved.unwrap();
    });
}

#[test]
fn a_source_that_is_not_there_ends_it_before_anybody_is_reached() {
    let dir = scratch();
    write(dir.path().join("there"), b"x");
    for names in [&["missing"][..], &["there", "missing"], &["there/below"], &["missing/"]] {
        let run = Run::of("send", Command::new(BLAST), &["send"]);
        let run = names.iter().fold(run, |run, name| run.last(dir.path().join(name)));
        // Nobody listens there, which would be another exit code.
        run.last(address(1)).outcome().expect(2).claims_nothing().tells("cannot read ");
    }
}

/// Pages of a file that the disk does not give, each asked for by itself.
fn bad_pages(path: &Path) -> Vec<u64> {
    let file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    let pages = file.metadata().unwrap().len().div_ceil(4096);
    (0..pages).filter(|page| file.read_at(&mut [0; 4096], page * 4096).is_err()).collect()
}

/// Runs of pages as a note names them: first and last byte.
fn ranges(pages: &[u64], size: u64) -> String {
    let runs = pages.chunk_by(|a, b| a + 1 == *b);
    let shown = runs.map(|run| format!("{}-{}", run[0] * 4096, ((run[run.len() - 1] + 1) * 4096).min(size) - 1));
    shown.collect::<Vec<_>>().join(", ")
}

#[test]
fn what_a_disk_does_not_give_is_zeros_and_listed_by_offset_on_both_ends() {
    const MIB: u64 = 1 << 20;
    let (dir, mount) = (scratch(), tempfile::tempdir().unwrap());
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(32 * MIB).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-O", "^has_journal"]).arg(&image).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: files on a disk with bad places: this needs mkfs.ext4");
        return;
    }
    let Some(device) = Loop::over(&image, &[]) else { return };
    let of_device = |options: &str| Mounted::device(&device.path, mount.path(), options);
    // Wherever these lie, the part of the image that stays is too small for either of them.
    let mut contents = vec![("large".to_owned(), random_bytes(1, 14 << 20))];
    contents.extend((0..18).map(|i| (format!("part of a chunk {i:02}"), random_bytes(10 + i, 700_001))));
    {
        let Some(mounted) = of_device("rw") else { return };
        for (name, content) in &contents {
            let path = mounted.0.join(name);
            write(&path, content);
            File::open(&path).unwrap().sync_all().unwrap();
        }
    }
    // What lies behind the end of the image cannot be read; the cache forgets what it had with the mount.
    File::options().write(true).open(&image).unwrap().set_len(12 * MIB + 5 * 4096).unwrap();
    let Some(mounted) = of_device("ro") else { return };
    let bad: Vec<Vec<u64>> = contents.iter().map(|(name, _)| bad_pages(&mounted.0.join(name))).collect();
    let counts: Vec<usize> = bad.iter().map(Vec::len).collect();
    let both = counts[0] > 256 && counts[1..].iter().any(|n| *n > 0);
    assert!(both, "the cut leaves bad places in the large file and in others: {counts:?}");
    let receiver = recv(dir.path().join("d")).start();
    let sender = send(&mounted.0, receiver.port()).outcome();
    let ends = [sender, receiver.wait()];
    for ((name, content), bad) in contents.iter().zip(&bad) {
        let mut right = content.clone();
        for page in bad {
            let start = *page as usize * 4096;
            let end = (start + 4096).min(right.len());
            right[start..end].fill(0);
        }
        assert!(fs::read(dir.path().join("d").join(name)).unwrap() == right, "{name}");
        let size = content.len() as u64;
        let lost: u64 = bad.iter().map(|page| (size - page * 4096).min(4096)).sum();
        let line = format!("read errors, zeros in their place: {name}: {lost} bytes could not be read and are zeros");
        for end in &ends {
            end.expect(1).claims_nothing();
            if bad.is_empty() {
                assert!(!end.report().contains(name), "{end:?}");
            } else {
                end.tells(&line).tells(&format!("(Input/output error (os error 5)): {}\n", ranges(bad, size)));
            }
        }
    }
    drop(mounted);
}

/// A directory is listed before its entry is sent, so what is made of that entry cannot be in the listing.
#[test]
fn a_destination_inside_the_source_is_sent_once_at_most_and_comes_to_an_end() {
    let dir = scratch();
    let source = dir.path().join("s");
    for i in 0..300 {
        write(source.join(format!("a/{i}")), format!("{i}"));
    }
    write(source.join("b"), random_bytes(5, 3 << 20));
    write(source.join("z"), b"the last");
    let receiver = recv(source.join("m")).start();
    let sender = send(&source, receiver.port()).outcome();
    let receiver = receiver.wait();
    assert!(matches!(sender.code, Some(0 | 1)), "{sender:?}");
    assert_eq!(sender.code, receiver.code, "{sender:?}\n{receiver:?}");
    let arrived = source.join("m");
    assert!(fs::read(arrived.join("b")).unwrap() == random_bytes(5, 3 << 20));
    assert_eq!(fs::read(arrived.join("z")).unwrap(), b"the last");
    assert_eq!(fs::read_dir(arrived.join("a")).unwrap().count(), 300);
    assert!(!arrived.join("m/m").exists(), "what arrives is not sent again and again");
}

/// Servers say so of a file that another client has removed.
#[test]
fn a_stale_handle_is_a_file_that_vanished() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("a"), b"a");
    write(source.join("stale one"), b"b");
    let strace = |args: &[&str]| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-o", "/dev/null"]).args(args);
        strace
    };
    if !strace(&["true"]).status().is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: a stale handle: this needs strace, and leave to use it");
        return;
    }
    let receiver = recv(dir.path().join("d")).start();
    let stale = strace(&["-e", "trace=openat", "-P", "stale one", "-e", "inject=openat:error=ESTALE"]);
    let sender = Run::of("send", stale, &[BLAST, "send"]).last(&source).last(address(receiver.port())).outcome();
    for end in [&sender, &receiver.wait()] as [&Outcome; 2] {
        end.expect(1).tells("left out, changed or incomplete: 1\n");
        end.tells("vanished before it was read, left out: stale one\n");
    }
    assert!(dir.path().join("d/a").exists() && !dir.path().join("d/stale one").exists());
}
