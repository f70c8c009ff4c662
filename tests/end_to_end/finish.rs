//! How a transfer ends: both processes by themselves as soon as everything is durable, and never with a word of success
//! when it is not; a producer that is slow and one that brings nothing; a consumer that goes away.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::ends::{BLAST, End, Outcome, Run, recv, scratch, send, transfer};
use crate::relay::Relay;
use crate::trees::{assert_same, depth_first, random_bytes, write};

/// An end must follow the last byte this soon; the machine may be busy.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn both_ends_exit_by_themselves_whatever_the_receivers_input_is() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("file"), random_bytes(1, 20 << 20));
    let null = || Stdio::from(fs::File::open("/dev/null").unwrap());
    let zero = || Stdio::from(fs::File::open("/dev/zero").unwrap());
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$@\" <&-", "sh", BLAST, "recv", "--port", "0"]);
    for (name, receiver) in [
        ("null", recv(dir.path().join("null")).stdin(null())),
        ("zero", recv(dir.path().join("zero")).stdin(zero())),
        ("open", recv(dir.path().join("open")).stdin(Stdio::piped())),
        ("closed", Run::of("recv", closed, &[]).last(dir.path().join("closed"))),
    ] {
        let receiver = receiver.start();
        send(&source, receiver.port()).stdin(zero()).outcome().expect(0);
        let receiver = receiver.wait();
        receiver.expect(0);
        assert!(receiver.waited < SOON, "{name}: the receiver ends soon after the sender: {receiver:?}");
        assert_same(dir.path().join(name), &source);
    }
}

/// One at a time they would take a turn of the disk each.
#[test]
fn small_files_are_made_durable_together() {
    let dir = scratch();
    let (source, trace) = (dir.path().join("s"), dir.path().join("trace"));
    (0..500).for_each(|i| write(source.join(format!("d{}/{i}", i / 50)), vec![7; i]));
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync,syncfs,sync_file_range,sync,msync", "-o"])
        .arg(&trace);
    if !Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).status().is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: how often files are synced: this needs strace, and leave to use it");
        return;
    }
    let receiver = Run::of("recv", strace, &[BLAST, "recv", "--port", "0"]).last(dir.path().join("d")).start();
    send(&source, receiver.port()).outcome().expect(0);
    receiver.wait().expect(0);
    assert_same(dir.path().join("d"), &source);
    let calls = fs::read_to_string(trace).unwrap();
    let syncs = calls.lines().filter(|l| l.contains("sync") && !l.contains("resumed")).count();
    assert!((1..=4).contains(&syncs), "{calls}");
}

#[test]
fn less_than_a_chunk_arrives_without_anybody_pressing_a_key() {
    let dir = scratch();
    let source = dir.path().join("s");
    let tail: String = (1..=2000).map(|i| format!("tail-{i}")).collect();
    write(source.join("s"), &tail);
    transfer(&source, dir.path().join("d"), &[]);
    assert_eq!(fs::read_to_string(dir.path().join("d/s")).unwrap(), tail);
    transfer(&source, dir.path().join("z"), &["--compress", "3"]);
    assert_eq!(fs::read_to_string(dir.path().join("z/s")).unwrap(), tail);
}

/// A raw transfer in the middle: everything given so far has arrived except a tail shorter than a chunk.
pub fn half_way() -> (End, End, std::process::ChildStdin) {
    let receiver = recv("-").start();
    let mut sender = send("-", receiver.port()).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    input.write_all(&random_bytes(2, (3 << 20) + 100)).unwrap();
    receiver.brings(3 << 20);
    (receiver, sender, input)
}

fn both(sender: End, receiver: End) -> [Outcome; 2] {
    [sender.wait_within(SOON * 2), receiver.wait_within(SOON * 2)]
}

fn hang_ups_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn a_signal_to_either_end_is_a_failure_of_both_and_says_how_far_it_had_come() {
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM"), (Signal::HUP, "SIGHUP")] {
        if signal == Signal::HUP && hang_ups_are_ignored() {
            eprintln!("SKIPPED: these tests run under nohup, and what they start ignores hang-ups as well");
            continue;
        }
        for sender_gets_it in [true, false] {
            let (receiver, sender, _input) = half_way();
            if sender_gets_it {
                sender.signal(signal)
            } else {
                receiver.signal(signal)
            }
            for end in both(sender, receiver) {
                end.expect(7).claims_nothing().tells("incomplete").tells("bytes");
                end.tells(name);
            }
        }
    }
}

#[test]
fn an_interrupted_receiver_leaves_nothing_under_a_temporary_name() {
    for (src, dest) in [("s", "tree"), ("s/0", "raw")] {
        let dir = scratch();
        write(dir.path().join("s/0"), random_bytes(1, 64 << 20));
        fs::create_dir(dir.path().join("into")).unwrap();
        let receiver = recv(dir.path().join("into").join(dest)).start();
        // Cut off in the middle, and for good.
        let relay = Relay::start(&[[127, 0, 0, 1].into()], receiver.port(), |passing, _| passing.total < 20 << 20);
        let sender = send(dir.path().join(src), relay.port).start();
        receiver.says("is down");
        receiver.signal(Signal::INT);
        receiver.wait_within(SOON).expect(7).claims_nothing();
        drop(sender);
        let left: Vec<_> = depth_first(&dir.path().join("into")).into_iter().filter(|p| p.is_file()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_hang_up_that_was_ignored_from_the_start_stays_ignored() {
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", BLAST, "recv", "--port", "0", "-"]);
    let receiver = Run::of("recv", nohup, &[]).start();
    let mut sender = send("-", receiver.port()).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    let content = random_bytes(3, (2 << 20) + 5);
    input.write_all(&content[..(1 << 20) + 1]).unwrap();
    receiver.brings(1 << 20);
    receiver.signal(Signal::HUP);
    input.write_all(&content[(1 << 20) + 1..]).unwrap();
    drop(input);
    sender.wait().expect(0);
    let receiver = receiver.wait();
    receiver.expect(0);
    assert!(receiver.out == content);
}

/// `recv -` into a pipe of which the test reads a part, and a sender that would go on for ever.
fn endless() -> (End, End, std::process::ChildStdout) {
    let mut receiver = recv("-").start_apart();
    let mut output = receiver.take_stdout();
    let sender = send("-", receiver.port()).stdin(fs::File::open("/dev/zero").unwrap()).start();
    output.read_exact(&mut vec![1; 1_000_000]).unwrap();
    (receiver, sender, output)
}

#[test]
fn a_consumer_that_goes_away_ends_both_and_both_say_after_how_many_bytes() {
    let (receiver, sender, output) = endless();
    drop(output);
    for end in both(sender, receiver) {
        end.expect(5).claims_nothing().tells("the reader of standard output went away after ");
        let words = end.err.split("went away after ").nth(1).unwrap();
        let offset: u64 = words.split(' ').next().unwrap().parse().unwrap();
        assert!(offset >= 1_000_000, "at least what was read had been written: {end:?}");
    }
}

#[test]
fn a_consumer_that_goes_away_is_missed_even_if_nothing_more_comes_for_it() {
    let mut receiver = recv("-").start_apart();
    let mut output = receiver.take_stdout();
    let mut sender = send("-", receiver.port()).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    input.write_all(&random_bytes(4, (1 << 20) + 1)).unwrap();
    output.read_exact(&mut vec![0; 1 << 20]).unwrap();
    drop(output);
    for end in both(sender, receiver) {
        end.expect(5).claims_nothing().tells("the reader of standard output went away after 1048576 bytes");
    }
}

#[test]
fn an_empty_standard_input_is_warned_of_once_and_is_no_failure() {
    let receiver = recv("-").start();
    let sender = send("-", receiver.port()).outcome();
    sender.expect(0).tells("standard input was empty");
    assert_eq!(sender.err.matches("standard input was empty").count(), 1, "{sender:?}");
    let receiver = receiver.wait();
    receiver.expect(0);
    assert!(receiver.out.is_empty());
    let empty = blake3::hash(b"").to_hex();
    sender.tells(&empty);
    receiver.tells(&empty);
}

#[test]
fn a_producer_that_pauses_longer_than_a_silent_link_may_is_waited_for() {
    let receiver = recv("-").start();
    let mut sender = send("-", receiver.port()).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    let content = random_bytes(5, (2 << 20) + 77);
    let (first, rest) = content.split_at((1 << 20) + 9);
    input.write_all(first).unwrap();
    receiver.brings(1 << 20);
    let pause = blast::limits::IDLE_TIMEOUT + Duration::from_secs(2);
    assert!(!sender.ends_within(pause), "the sender waits: {}", sender.said());
    input.write_all(rest).unwrap();
    drop(input);
    let sender = sender.wait();
    sender.expect(0);
    let receiver = receiver.wait();
    receiver.expect(0);
    assert!(receiver.out == content);
    for end in [&sender, &receiver] {
        assert!(!end.err.contains("down"), "no link was taken for dead: {end:?}");
    }
}

#[test]
fn an_end_that_was_suspended_for_longer_than_a_link_may_be_silent_comes_back_and_finishes() {
    thread::scope(|scope| {
        for sender_sleeps in [true, false] {
            scope.spawn(move || {
                let (receiver, sender, mut input) = half_way();
                let sleeper = if sender_sleeps { &sender } else { &receiver };
                sleeper.signal(Signal::STOP);
                let pause = blast::limits::IDLE_TIMEOUT + Duration::from_secs(2);
                assert!(!(if sender_sleeps { &receiver } else { &sender }).ends_within(pause), "the other end waits");
                sleeper.signal(Signal::CONT);
                let rest = random_bytes(6, 5 << 20);
                input.write_all(&rest).unwrap();
                drop(input);
                sender.wait().expect(0);
                let receiver = receiver.wait();
                receiver.expect(0);
                let begun = random_bytes(2, (3 << 20) + 100);
                assert!(receiver.out == [begun, rest].concat());
            });
        }
    });
}

#[test]
fn a_producer_that_fails_to_be_read_fails_both_ends() {
    let dir = scratch();
    let receiver = recv(dir.path().join("d")).start();
    // a directory can be opened and not read
    let unreadable: OwnedFd = fs::File::open(dir.path()).unwrap().into();
    let sender = send("-", receiver.port()).stdin(unreadable).outcome();
    let receiver = receiver.wait();
    for end in [&sender, &receiver] {
        assert!(end.code.is_some_and(|c| c != 0), "{end:?}");
        end.claims_nothing().tells("standard input");
    }
    assert!(!dir.path().join("d").exists(), "nothing under the final name");
}

#[test]
fn ends_do_not_wait_for_a_drain_when_the_peer_says_goodbye() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"little");
    let began = std::time::Instant::now();
    let rounds = 5;
    thread::scope(|scope| {
        for i in 0..rounds {
            let (source, dest) = (dir.path().join("s"), dir.path().join(format!("d{i}")));
            scope.spawn(move || transfer(source, dest, &[]));
        }
    });
    assert!(began.elapsed() < SOON, "{rounds} small transfers at once took {:?}", began.elapsed());
}
