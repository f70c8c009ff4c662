//! Somebody else at work in the same directories, swapping what is there for links that lead outside: nothing outside
//! the destination changes, and nothing outside the source is read.
//!
//! `BLAST_RACE_MS=N` races so long in each test instead of a second.

use std::fs;
use std::os::unix::fs::symlink as make_symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use blast::Error;
use blast::archive::{Entry, EntryKind};
use blast::options::Destination;
use blast::sink::{Prepared, SinkEnd};
use blast::wire::Offer;
use rustix::fs::{CWD, RenameFlags};

use crate::ends::{PATIENCE, contains, from_env, recv, scratch, send};
use crate::sink_feed::{Feed, bytes, directory, entry, file, hardlink, symlink};
use crate::sink_hostile::Canary;
use crate::trees::{depth_first, write};

/// Entries that somebody is after in one transfer.
const NAMES: usize = 200;

fn duration() -> Duration {
    Duration::from_millis(from_env("BLAST_RACE_MS", 1000))
}

/// Each entry's name as soon as it is there, one after the other as the archive has them: what it is goes away, and a
/// link that leads outside takes its place. Returns how many were taken.
fn hunted<T>(dest: &Path, names: &[String], lure: impl Fn(&Path) + Sync, work: impl FnOnce() -> T) -> (T, u64) {
    let (done, count, stash) = (AtomicBool::new(false), AtomicU64::new(0), scratch());
    let lures: Vec<(PathBuf, PathBuf)> = names.iter().map(|name| (stash.path().join(name), dest.join(name))).collect();
    lures.iter().for_each(|(at, _)| lure(at));
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            for (lure, victim) in &lures {
                // Exchanged in one step, so that at no moment there is nothing of that name.
                while rustix::fs::renameat_with(CWD, lure, CWD, victim, RenameFlags::EXCHANGE).is_err() {
                    if done.load(Relaxed) {
                        return;
                    }
                }
                count.fetch_add(1, Relaxed);
            }
        });
        let outcome = work();
        done.store(true, Relaxed);
        outcome
    });
    (outcome, count.into_inner())
}

/// Deliver with one writer, so that names come to be in the order in which they are waited for.
fn deliver(feed: &Feed, dest: &Path) -> Result<SinkEnd, Error> {
    let prepared = Prepared::new(&Destination::Path(dest.to_path_buf())).expect("a destination that can be used");
    let sink = prepared.open(&Offer::Tree { sources: 1 }, Arc::default(), 1, |_| {}).expect("the sink opens");
    feed.send_to(&sink, 16);
    sink.finish(feed.finish())
}

/// Makes, at the second path, what is to take a name's place: a link to the first.
type Plant = fn(&Path, &Path) -> std::io::Result<()>;
const SYMLINK: Plant = |target, at| make_symlink(target, at);
const HARD_LINK: Plant = |target, at| fs::hard_link(target, at);

/// Unpack `each` entry of many names again and again while somebody is after them. `below` is what follows each.
fn race_for(what: &str, each: impl Fn(&str) -> Entry, below: impl Fn(&str) -> Vec<Entry>, target: &str, plant: Plant) {
    let canary = Canary::new();
    let names: Vec<String> = (0..NAMES).map(|n| format!("n{n}")).collect();
    let mut entries = vec![directory("")];
    for name in &names {
        entries.push(each(name));
        entries.extend(below(name));
    }
    for entry in &mut entries[1..] {
        entry.mode = 0o751;
        if crate::sink_feed::is_root() {
            (entry.uid, entry.gid) = (1234, 1234);
        }
    }
    let mut feed = Feed::all(&entries);
    feed.end();
    let target = canary.outside(target);
    let (began, mut rounds, mut taken) = (Instant::now(), 0, 0);
    while began.elapsed() < duration() || taken == 0 {
        assert!(began.elapsed() < duration() + PATIENCE, "{what}: none was ever taken");
        let dest = canary.dest();
        let lure = |at: &Path| plant(Path::new(target.trim_end_matches('/')), at).unwrap();
        let (outcome, count) = hunted(&dest, &names, lure, || deliver(&feed, &dest));
        canary.assert_outside_unchanged();
        if let Err(error) = outcome {
            assert!(matches!(error, Error::Destination { .. }), "{what}: {error}");
        }
        (rounds, taken) = (rounds + 1, taken + count);
        fs::remove_dir_all(&dest).unwrap();
        fs::create_dir(&dest).unwrap();
    }
    println!("{what}: {rounds} transfers, {taken} taken");
}

/// CVE-2026-32282: a mode was set on what a link pointed to that had taken a file's place between check and use.
#[test]
fn cve_2026_32282_a_directory_swapped_for_a_link_in_the_destination_takes_nothing_outside() {
    let below = |name: &str| {
        vec![
            file(&format!("{name}/file"), 9),
            file(&format!("{name}/new"), 9),
            symlink(&format!("{name}/link"), "t"),
            hardlink(&format!("{name}/hard"), &format!("{name}/new")),
            directory(&format!("{name}/sub")),
            file(&format!("{name}/sub/new"), 9),
        ]
    };
    race_for("directories", directory, below, "", SYMLINK);
}

#[test]
fn what_is_no_directory_swapped_for_a_link_in_the_destination_gives_nothing_outside_its_attributes() {
    let none = |_: &str| Vec::new();
    // One after the other: who races needs a core to itself.
    race_for("files", |name| file(name, 700), none, "file", SYMLINK);
    race_for("links", |name| symlink(name, "t"), none, "file", SYMLINK);
    race_for("FIFOs", |name| entry(name, EntryKind::Fifo), none, "file", SYMLINK);
    // One more name of what lies outside can be no link to it, but is it.
    race_for("links, by hard links", |name| symlink(name, "t"), none, "file", HARD_LINK);
    race_for("FIFOs, by hard links", |name| entry(name, EntryKind::Fifo), none, "fifo", HARD_LINK);
    let again = |name: &str| vec![hardlink(&format!("{name}-hard"), name), file(name, 5)];
    race_for("files with more names", |name| file(name, 700), again, "file", SYMLINK);
}

/// The walk lists, the fill opens: between the two a directory or a file may become a link to what nobody asked to
/// send.
#[test]
fn whatever_is_swapped_for_a_link_in_the_source_nothing_outside_is_sent() {
    const SECRET: &[u8] = b"what nobody asked to send";
    let dir = scratch();
    let (source, secret) = (dir.path().join("s"), dir.path().join("secret"));
    write(secret.join("f"), [SECRET, b", in a small file"].concat());
    write(secret.join("in/f"), SECRET);
    write(secret.join("large"), SECRET.repeat(60_000));
    let mut swaps: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut swap = |victim: String, target: &str| {
        let lure = dir.path().join(format!("lures/{}", swaps.len()));
        make_symlink(secret.join(target), &lure).unwrap();
        swaps.push((source.join(victim), lure));
    };
    fs::create_dir(dir.path().join("lures")).unwrap();
    for n in 0..NAMES {
        write(source.join(format!("d{n}/f")), bytes(100, n as u8));
        write(source.join(format!("e{n}/in/f")), bytes(100, n as u8));
        write(source.join(format!("f{n}")), bytes(100, n as u8));
        swap(format!("d{n}"), "");
        swap(format!("e{n}/in"), "in");
        swap(format!("f{n}"), "f");
    }
    for n in 0..4 {
        write(source.join(format!("large{n}")), bytes(1_500_000, n));
        swap(format!("large{n}"), "large");
    }
    let (began, mut rounds, mut swapped) = (Instant::now(), 0, 0);
    while began.elapsed() < duration() || rounds < 3 {
        let dest = dir.path().join("d");
        let receiver = recv(&dest).start();
        let (port, done, count) = (receiver.port(), AtomicBool::new(false), AtomicU64::new(0));
        let sender = thread::scope(|scope| {
            scope.spawn(|| {
                for (victim, lure) in swaps.iter().cycle().take_while(|_| !done.load(Relaxed)) {
                    let done = rustix::fs::renameat_with(CWD, victim, CWD, lure, RenameFlags::EXCHANGE);
                    count.fetch_add(u64::from(done.is_ok()), Relaxed);
                }
            });
            let sender = send(&source, port).outcome();
            done.store(true, Relaxed);
            sender
        });
        let receiver = receiver.wait();
        for end in [&sender, &receiver] {
            assert!([Some(0), Some(1)].contains(&end.code), "{sender:?}\n{receiver:?}");
        }
        let files = depth_first(&dest).into_iter().filter(|p| p.symlink_metadata().unwrap().is_file());
        for path in files {
            // The secret repeats itself, so a look here and there sees it.
            let is_secret = fs::read(&path).unwrap().chunks(4096).any(|c| contains(&c[..c.len().min(64)], SECRET));
            assert!(!is_secret, "{} was read through a link", path.display());
        }
        fs::remove_dir_all(&dest).unwrap();
        (rounds, swapped) = (rounds + 1, swapped + count.into_inner());
    }
    assert!(swapped > 0, "nothing was ever swapped");
    println!("{rounds} transfers, {swapped} swaps");
}
