//! Any tree arrives as it was: random ones of all kinds of entries and attributes, compared whole, sent directly,
//! through an archive that GNU tar unpacks, and packed by GNU tar. GNU tar and bsdtar list the archive as the tree was.
//!
//! `BLAST_TREES` sets how many trees, `BLAST_SEED` the first one's seed; each tree has the seed after the one before.

mod grow;
mod listed;

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use blast::error::escape;
use rustix::fs::FileType;

use crate::ends::{Outcome, Run, TRUSTING, from_env, is_root, recv, scratch, send};
use crate::foreign_feed::{has, run_in};
use crate::trees::{Listing, differences, list};

/// Trees on their way at the same time: most of the time each waits for processes to start.
const AT_ONCE: usize = 6;

/// The most entries that a tree has.
const ENTRIES: u64 = 60;

#[test]
fn random_trees_arrive_as_they_were_and_their_archives_are_listed_as_they_are() {
    is_root("devices, owners and attributes that only root may set");
    let tars = has("tar", "GNU tar") && has("bsdtar", "bsdtar");
    let (trees, first) = (from_env("BLAST_TREES", 100), from_env("BLAST_SEED", 1));
    println!("BLAST_SEED={first} BLAST_TREES={trees}");
    let (next, moved) = (AtomicU64::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                for seed in
                    std::iter::repeat_with(|| first + next.fetch_add(1, Relaxed)).take_while(|s| *s < first + trees)
                {
                    let entries = (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % (ENTRIES + 1);
                    moved.fetch_add(try_all(seed, entries as usize, tars), Relaxed);
                }
            });
        }
    });
    println!("{trees} trees with {} entries", moved.into_inner());
}

/// Move one tree in every way; of one that does not arrive tell the smallest that does not either. Returns its entries.
fn try_all(seed: u64, entries: usize, tars: bool) -> usize {
    let attempt = |entries| {
        let done = catch_unwind(AssertUnwindSafe(|| every_way(seed, entries, tars)));
        done.unwrap_or_else(|said| Err(said.downcast_ref::<String>().map_or("it panicked".to_owned(), String::clone)))
    };
    let mut failure = match attempt(entries) {
        Ok(entries) => return entries,
        Err(failure) => failure,
    };
    let (mut good, mut bad) = (0, entries);
    while good < bad {
        let middle = good.midpoint(bad);
        match attempt(middle) {
            Ok(_) => good = middle + 1,
            Err(fails) => (bad, failure) = (middle, fails),
        }
    }
    panic!("BLAST_SEED={seed} BLAST_TREES=1, with its first {bad} entries of {entries}: {failure}");
}

fn every_way(seed: u64, entries: usize, tars: bool) -> Result<usize, String> {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    grow::tree(&at("s"), seed, entries);
    let tree = list(at("s"));
    let compared = |way: &str, dest: &Path| told(way, &differences(&list(dest), &tree));

    let dest = at("d");
    both_whole(recv(&dest), &at("s"), Stdio::null(), OPTIONS[seed as usize % OPTIONS.len()])?;
    compared("sent directly", &dest)?;
    told("sent directly", &filled_holes(&tree, &dest, &at("s")))?;
    fs::remove_dir_all(&dest).map_err(|e| e.to_string())?;
    if !tars {
        return Ok(tree.len());
    }

    let archive = File::create(at("s.tar")).map_err(|e| e.to_string())?;
    both_whole(recv("-").stdout(archive), &at("s"), Stdio::null(), &[])?;
    told("as an archive", &listed::wrong(&at("s.tar"), &tree))?;
    fs::create_dir(at("x")).map_err(|e| e.to_string())?;
    let all = ["--warning=no-timestamp", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls", "-S"];
    run_in(&at("x"), "tar", &[&all[..], &["-xpf", "../s.tar"]].concat());
    compared("unpacked by GNU tar", &at("x"))?;
    fs::remove_dir_all(at("x")).map_err(|e| e.to_string())?;

    run_in(&at("s"), "tar", &[&all[..], &["--format=posix", "-cf", "../p.tar", "."]].concat());
    let archive = File::open(at("p.tar")).map_err(|e| e.to_string())?;
    both_whole(recv(at("p/")), Path::new("-"), Stdio::from(archive), &[])?;
    let mut packed = tree.clone();
    for item in packed.values_mut().filter(|i| ![FileType::RegularFile, FileType::Symlink].contains(&i.kind)) {
        // It packs each name of what is neither as one by itself.
        item.same_as = None;
    }
    told("packed by GNU tar", &differences(&list(at("p")), &packed))?;
    Ok(tree.len())
}

/// What a sender may be asked for that changes nothing of what arrives.
const OPTIONS: [&[&str]; 6] = [
    &[],
    &["--streams", "3"],
    &["--compress", "3"],
    &["--window", "1M"],
    &["--schedule", "rr", "--streams", "2"],
    &["--no-encrypt"],
];

/// Send, and succeed on both ends.
fn both_whole(receiver: Run, source: &Path, input: Stdio, args: &[&str]) -> Result<(), String> {
    let shared: &[&str] = if args.contains(&"--no-encrypt") { args } else { &[] };
    let receiver = receiver.args(TRUSTING).args(shared).start();
    let sender = send(source, receiver.port()).args(args).stdin(input).outcome();
    let receiver = receiver.wait();
    let whole = |end: &Outcome| end.code == Some(0);
    if whole(&sender) && whole(&receiver) { Ok(()) } else { Err(format!("{args:?}: {sender:?}\n{receiver:?}")) }
}

fn told(way: &str, wrong: &[String]) -> Result<(), String> {
    if wrong.is_empty() { Ok(()) } else { Err(format!("{way}: {}", wrong[..wrong.len().min(8)].join("\n  "))) }
}

/// Files of `is` that take more of the disk than those of `should`. A hole of less than 4 KiB is filled, which can only
/// be a file's last: all others are of whole pages.
fn filled_holes(tree: &Listing, is: &Path, should: &Path) -> Vec<String> {
    let files = tree.iter().filter(|(_, item)| item.kind == FileType::RegularFile).map(|(path, _)| path);
    let allocated = |root: &Path, path: &[u8]| {
        let path = root.join(std::ffi::OsStr::from_bytes(path));
        fs::symlink_metadata(path).expect("a file that was listed").blocks() * 512
    };
    let of_both = files.map(|path| (path, allocated(is, path), allocated(should, path)));
    let filled = of_both.filter(|(_, is, should)| *is > should + 4096);
    filled.map(|(path, is, should)| format!("'{}' takes {is} bytes of the disk, not {should}", escape(path))).collect()
}
