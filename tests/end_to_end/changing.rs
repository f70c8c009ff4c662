//! A source that changes under the sender, or is not all readable: what can be told exactly is, what is left out is
//! named, the rest arrives as it was, and both ends exit with 1.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::ends::{BLAST, End, Outcome, Run, address, recv, scratch, send};
use crate::trees::{assert_listed, depth_first, list, random_bytes, set_mode, set_owner, write};

/// A transfer of `source` into a pipe that nobody reads yet, with room for a few chunks between, so that the sender
/// stands still in the middle of the first large file. What it brings is read by [`Stalled::go_on`].
pub struct Stalled {
    sender: End,
    receiver: End,
    output: std::process::ChildStdout,
    begun: Vec<u8>,
}

impl Stalled {
    pub fn start(source: &Path) -> Stalled {
        let mut receiver = recv("-").args(&["--window", "1M"]).start_apart();
        let mut output = receiver.take_stdout();
        let sender = send(source, receiver.port()).args(&["--window", "1M"]).start();
        let mut begun = vec![0; 1 << 20];
        output.read_exact(&mut begun).unwrap();
        Stalled { sender, receiver, output, begun }
    }

    /// Read the rest, extract it, and return both ends.
    pub fn go_on(mut self, dest: &Path) -> (Outcome, Outcome) {
        fs::create_dir(dest).unwrap();
        let mut tar = Command::new("tar");
        let mut tar = tar.args(["-xpf", "-", "-C"]).arg(dest).stdin(Stdio::piped()).spawn().expect("tar");
        let mut input = tar.stdin.take().unwrap();
        input.write_all(&self.begun).unwrap();
        std::io::copy(&mut self.output, &mut input).unwrap();
        drop(input);
        assert!(tar.wait().unwrap().success(), "the archive is whole");
        (self.sender.wait(), self.receiver.wait())
    }
}

#[track_caller]
pub fn partial(ends: &(Outcome, Outcome)) {
    for end in [&ends.0, &ends.1] {
        end.expect(1).claims_nothing().tells("PARTIAL");
    }
}

#[test]
fn files_that_vanish_between_listing_and_reading_are_left_out_and_named() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("0"), random_bytes(1, 16 << 20));
    for i in 0..5000 {
        write(source.join(format!("f{i:04}")), b"");
    }
    for i in 0..50 {
        write(source.join(format!("gone/{i}/{i}")), b"in a directory that vanishes");
    }
    write(source.join("zz"), b"the last");
    let stalled = Stalled::start(&source);
    for i in 2000..4000 {
        fs::remove_file(source.join(format!("f{i:04}"))).unwrap();
    }
    fs::remove_dir_all(source.join("gone")).unwrap();
    let ends = stalled.go_on(&dir.path().join("d"));
    partial(&ends);
    for end in [&ends.0, &ends.1] {
        // 2000 files and, once, the directory
        end.tells("left out, changed or incomplete: 2,001\n").tells("vanished before it was read, left out: f2000\n");
    }
    let mut is = list(dir.path().join("d"));
    let mut should = list(&source);
    // The directory itself was listed and had been sent, or not: that is a matter of time. Its root's time as well.
    for listing in [&mut is, &mut should] {
        listing.remove(&b""[..]);
        listing.retain(|path, _| !path.starts_with(b"gone"));
    }
    assert_eq!(should.len(), 3002);
    assert_listed(&is, &should);
}

#[test]
fn a_file_that_grows_is_cut_at_what_was_announced_and_one_that_shrinks_is_filled_up() {
    let dir = scratch();
    let source = dir.path().join("s");
    let (log, shrunk) = (random_bytes(2, 16 << 20), random_bytes(3, 12 << 20));
    write(source.join("a"), b"a");
    write(source.join("log"), &log);
    write(source.join("shrunk"), &shrunk);
    write(source.join("zz"), b"zz");
    // The first file stands open half read, so it can grow; the other is open or will be.
    let stalled = Stalled::start(&source);
    OpenOptions::new().append(true).open(source.join("log")).unwrap().write_all(&random_bytes(4, 5 << 20)).unwrap();
    let dest = dir.path().join("d");
    let ends = stalled.go_on(&dest);
    partial(&ends);
    ends.0.tells("changed while it was read: log");
    ends.1.tells("changed while it was read: log");
    assert!(fs::read(dest.join("log")).unwrap() == log, "exactly the announced length");
    assert!(fs::read(dest.join("shrunk")).unwrap() == shrunk);
    assert_eq!(fs::read(dest.join("a")).unwrap(), b"a");
    assert_eq!(fs::read(dest.join("zz")).unwrap(), b"zz");

    let (source, dest) = (dir.path().join("t"), dir.path().join("e"));
    write(source.join("a"), b"a");
    write(source.join("log"), &log);
    write(source.join("zz"), b"zz");
    let stalled = Stalled::start(&source);
    OpenOptions::new().write(true).open(source.join("log")).unwrap().set_len((12 << 20) + 5).unwrap();
    let ends = stalled.go_on(&dest);
    partial(&ends);
    ends.0.tells("shrank while it was read, zeros in place of its end: log");
    let arrived = fs::read(dest.join("log")).unwrap();
    assert_eq!(arrived.len(), log.len());
    assert!(arrived[..(12 << 20) + 5] == log[..(12 << 20) + 5]);
    assert!(arrived[(12 << 20) + 5..].iter().all(|b| *b == 0));
    assert_eq!(fs::read(dest.join("zz")).unwrap(), b"zz");
}

/// The program as a user who may not read everything; `dir` becomes that user's.
pub fn as_nobody(dir: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(BLAST);
    }
    let nobody = 65_534;
    // The program may lie where only root may go.
    let copy = dir.join("blast");
    fs::copy(BLAST, &copy).unwrap();
    set_mode(&copy, 0o755);
    for path in depth_first(dir) {
        set_owner(path, nobody, nobody);
    }
    let mut command = Command::new(copy);
    command.uid(nobody).gid(nobody).current_dir("/");
    command
}

#[test]
fn what_the_sender_may_not_read_is_left_out_and_named_on_both_ends_quiet_or_not() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("a"), b"a");
    write(source.join("secret"), b"for nobody");
    write(source.join("closed/inside"), b"x");
    write(source.join("z"), b"z");
    for (dest, args) in [("d", &[][..]), ("q", &["-q"])] {
        let dest = dir.path().join(dest);
        let nobody = as_nobody(dir.path());
        set_mode(source.join("secret"), 0);
        set_mode(source.join("closed"), 0);
        let receiver = recv(&dest).args(args).start();
        let sender = Run::of("send", nobody, &["send"]).args(args).last(&source);
        let sender = sender.last(address(receiver.quiet_port())).outcome();
        let receiver = receiver.wait();
        set_mode(source.join("closed"), 0o700);
        for end in [&sender, &receiver] {
            end.expect(1).claims_nothing().tells("PARTIAL: 2 things").tells("unreadable, left out: secret");
            end.tells("closed");
        }
        assert_eq!(fs::read(dest.join("a")).unwrap(), b"a");
        assert_eq!(fs::read(dest.join("z")).unwrap(), b"z");
        assert!(!dest.join("secret").exists());
    }
}
