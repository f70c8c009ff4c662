//! Hosts that stop for longer than a link may be silent, and what may take that long on hosts that do not: nobody is
//! taken for dead who is only slow, and nobody is harmed who was taken for dead.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::ends::{BLAST, End, Outcome, Run, recv, scratch, send};
use crate::hosts::{Host, Lab, at_once, until};
use crate::trees::{assert_same, random_bytes, small, write};

const MB: u64 = 1 << 20;

/// Longer than a link may be silent.
const LONG: Duration = Duration::from_secs(12);

/// A tree on its way from a to b over two links; the sender, the receiver.
fn tree_on_its_way(lab: &Lab, dir: &Path, options: &[&str]) -> (End, End) {
    small(&dir.join("s"), 5);
    for i in 0..6 {
        write(dir.join(format!("s/large{i}")), random_bytes(i, 16 << 20));
    }
    let dest = dir.join("d");
    let receiver = lab.blast(Host::B, &["recv", "-v"]).args(options).last(&dest).start();
    receiver.says("listening on port");
    let sender = lab.blast(Host::A, &["send", "-v"]).args(options).last(dir.join("s")).last("10.77.1.2").start();
    (1..=2).for_each(|link| lab.carries(link, 3 * MB));
    (sender, receiver)
}

/// One host sleeps. The other finds its links dead, and goes on when it wakes.
fn one_host_sleeps(sleeper: Host) {
    let Some(lab) = Lab::up(&["40mbit", "40mbit"]) else { return };
    let dir = scratch();
    let (sender, receiver) = tree_on_its_way(&lab, dir.path(), &[]);
    let (asleep, awake) = if sleeper == Host::A { (&sender, &receiver) } else { (&receiver, &sender) };
    asleep.signal(Signal::STOP);
    awake.says("no link remains, waiting for one to come back");
    // a sender dials in vain, and what it dialled waits for the sleeper
    assert!(!awake.ends_within(Duration::from_secs(7)), "it waits: {}", awake.said());
    asleep.signal(Signal::CONT);
    for link in ["l1", "l2"] {
        awake.says(&format!("link {link} is down: silent for 10 s"));
        awake.says(&format!("link {link} is back after 1"));
    }
    let (sender, receiver) = (sender.wait(), receiver.wait());
    sender.expect(0);
    receiver.expect(0);
    assert_same(dir.path().join("d"), dir.path().join("s"));
    // connections that were given up while it slept are no links that came up and died
    for link in ["l1", "l2"] {
        let said = |end: &Outcome, what: &str| end.err.matches(&format!("link {link} is {what}")).count();
        assert_eq!((said(&receiver, "down"), said(&sender, "back")), (1, 1), "{receiver:?}\n{sender:?}");
    }
}

#[test]
fn a_host_that_sleeps_is_missed_within_seconds_and_goes_on_when_it_wakes() {
    at_once([Host::A, Host::B], one_host_sleeps);
}

/// One host never wakes: the other gives up after its timeout. The sleeper finds that it is alone, should it wake then.
fn one_host_sleeps_too_long(sleeper: Host) {
    let Some(lab) = Lab::up(&["40mbit", "40mbit"]) else { return };
    let dir = scratch();
    let (sender, receiver) = tree_on_its_way(&lab, dir.path(), &["--timeout", "12"]);
    let (asleep, awake) = if sleeper == Host::A { (sender, receiver) } else { (receiver, sender) };
    asleep.signal(Signal::STOP);
    awake.says("no link remains, waiting for one to come back");
    let awake = awake.wait_within(Duration::from_secs(25));
    awake.expect(4).claims_nothing().tells("links").tells("incomplete, ");
    asleep.signal(Signal::CONT);
    asleep.wait_within(Duration::from_secs(30)).expect(4).claims_nothing().tells("incomplete, ");
}

#[test]
fn a_host_that_sleeps_too_long_is_given_up_by_the_other() {
    at_once([Host::A, Host::B], one_host_sleeps_too_long);
}

#[test]
fn a_consumer_that_pauses_longer_than_a_silent_link_may_is_waited_for() {
    let mut receiver = recv("-").start_apart();
    let mut output = receiver.take_stdout();
    let content = random_bytes(7, 64 << 20);
    let mut sender = send("-", receiver.port()).args(&["--window", "8M"]).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    let fed = content.clone();
    let feeder = std::thread::spawn(move || input.write_all(&fed));
    let mut out = vec![0; 1 << 20];
    output.read_exact(&mut out).unwrap();
    assert!(!sender.ends_within(LONG), "the sender waits: {}", sender.said());
    output.read_to_end(&mut out).unwrap();
    feeder.join().unwrap().unwrap();
    assert!(out == content);
    let (sender, receiver) = (sender.wait(), receiver.wait());
    for end in [&sender.expect(0), &receiver.expect(0)] {
        assert!(!end.err.contains("down"), "no link was taken for dead: {end:?}");
    }
}

/// `strace` can make a system call take as long as one likes.
#[test]
fn a_disk_that_syncs_longer_than_a_silent_link_may_be_is_waited_for() {
    let dir = scratch();
    let works = Command::new("strace").args(["-f", "-o"]).arg(dir.path().join("probe")).arg("true").status();
    if !works.is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: a disk that takes long to sync: this needs strace, and leave to use it");
        return;
    }
    write(dir.path().join("s/file"), random_bytes(1, 3 << 20));
    let (trace, delay) = (dir.path().join("trace"), format!("syncfs:delay_enter={}", LONG.as_micros()));
    let slow = ["-f", "--seccomp-bpf", "-e", "trace=syncfs", "-e", &format!("inject={delay}"), "-o"];
    let mut strace = Command::new("strace");
    strace.args(slow).arg(&trace);
    let dest = dir.path().join("d");
    let receiver = Run::of("recv", strace, &[BLAST, "recv", "--port", "0"]).last(&dest).start();
    let sender = send(dir.path().join("s"), receiver.port()).start();
    until("the sync has begun", || has_begun(&trace));
    assert!(!sender.ends_within(Duration::from_secs(10)), "the sender waits: {}", sender.said());
    let (sender, receiver) = (sender.wait(), receiver.wait());
    for end in [&sender.expect(0), &receiver.expect(0)] {
        assert!(!end.err.contains("down"), "no link was taken for dead: {end:?}");
    }
    assert_same(&dest, dir.path().join("s"));
}

fn has_begun(trace: &Path) -> bool {
    let mut text = String::new();
    File::open(trace).is_ok_and(|mut f| f.read_to_string(&mut text).is_ok()) && text.contains("syncfs")
}
