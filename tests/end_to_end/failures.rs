//! What fails on one machine fails on both, soon, with the same code and a reason: a full disk, too few descriptors,
//! too few processes.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::ends::{BLAST, End, Outcome, Run, address, is_root, recv, scratch, send};
use crate::trees::{assert_same, random_bytes, set_mode, set_owner, small, write};

const SOON: Duration = Duration::from_secs(10);

/// A receiver into `dir`, on which a file system of `size` is mounted that only it sees.
fn recv_in_small_space(dir: &Path, size: &str) -> Run {
    let script = "mount -t tmpfs -o size=$1 small \"$2\" && exec \"$3\" recv --port 0 \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", size]).arg(dir).arg(BLAST);
    Run::of("recv", command, &[])
}

#[test]
fn a_full_disk_ends_both_and_names_the_file_and_the_cause() {
    if !is_root("a full disk") {
        return;
    }
    let dir = scratch();
    write(dir.path().join("large/big\n1"), random_bytes(1, 40 << 20));
    for i in 0..3000 {
        write(dir.path().join(format!("many/{i}")), random_bytes(i, 9_000));
    }
    for (source, name) in [("large", "big\\n1"), ("many", "")] {
        let dest = dir.path().join(format!("{source}-dest"));
        fs::create_dir(&dest).unwrap();
        let receiver = recv_in_small_space(&dest, "8m").start();
        let sender = send(dir.path().join(source), receiver.port()).start();
        for end in [sender.wait_within(SOON), receiver.wait_within(SOON)] {
            end.expect(5).claims_nothing().tells("No space left on device").tells(name).tells("bytes");
        }
    }
}

#[test]
fn one_file_without_room_is_warned_of_and_ends_both_with_what_is_free_and_what_was_needed() {
    if !is_root("a full disk") {
        return;
    }
    let dir = scratch();
    let (source, space) = (dir.path().join("s"), dir.path().join("space"));
    write(&source, random_bytes(1, 20 << 20));
    fs::create_dir(&space).unwrap();
    let script = "mount -t tmpfs -o size=8m small \"$1\" && exec \"$2\" recv --port 0 \"$1/image\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&space).arg(BLAST);
    let receiver = Run::of("recv", command, &[]).start();
    let sender = send(&source, receiver.port()).start();
    let (sender, receiver) = (sender.wait_within(SOON), receiver.wait_within(SOON));
    for end in [&sender, &receiver] {
        end.expect(5).claims_nothing().tells("No space left on device").tells("/space/image' after ");
        end.tells(" of 20971520 bytes").tells("0 of 8 MiB and ").tells(&format!("are free on '{}'", space.display()));
    }
    receiver.tells("there may be too little room").tells("20971520 bytes are needed and 8388608 are free");
}

#[test]
fn a_file_size_limit_is_an_error_in_words_and_no_signal() {
    let dir = scratch();
    write(dir.path().join("f"), random_bytes(1, 8 << 20));
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 2048; exec \"$@\"", "sh", BLAST, "recv", "--port", "0"]);
    let receiver = Run::of("recv", limited, &[]).last(dir.path().join("d")).start();
    let sender = send(dir.path().join("f"), receiver.port()).start();
    for end in [sender.wait_within(SOON), receiver.wait_within(SOON)] {
        end.expect(5).claims_nothing().tells("File too large");
    }
}

#[test]
fn few_descriptors_or_processes_never_hang_and_never_pass_for_success() {
    let dir = scratch();
    small(&dir.path().join("s"), 1);
    let copy = dir.path().join("blast");
    fs::copy(BLAST, &copy).unwrap();
    set_mode(&copy, 0o755);
    let mut limits = vec!["-n 12", "-n 16", "-n 20", "-n 40"];
    if is_root("a limit of processes") {
        set_owner(dir.path(), NOBODY, NOBODY);
        limits.extend(["-u 1", "-u 4"]);
    }
    thread::scope(|scope| {
        for (i, limit) in limits.into_iter().enumerate() {
            let dir = dir.path();
            scope.spawn(move || with_a_limited_sender(limit, dir, &dir.join(format!("s{i}"))));
            scope.spawn(move || with_a_limited_receiver(limit, dir, &dir.join(format!("r{i}"))));
        }
    });
}

/// Processes are counted for each user, and not for root.
const NOBODY: u32 = 65_534;

fn limited(side: &'static str, limit: &str, dir: &Path, args: &[&str]) -> Run {
    let mut command = Command::new("bash");
    if limit.starts_with("-u") {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    command.args(["-c", &format!("ulimit {limit} && exec \"$@\""), "bash"]).arg(dir.join("blast")).args(args);
    Run::of(side, command, &[])
}

fn with_a_limited_sender(limit: &str, dir: &Path, dest: &Path) {
    let receiver = recv(dest).start();
    let port = receiver.port();
    let sender = limited("send", limit, dir, &["send"]).last(dir.join("s")).last(address(port)).start();
    judge(limit, dir, dest, sender.wait_within(SOON * 2), receiver);
}

fn with_a_limited_receiver(limit: &str, dir: &Path, dest: &Path) {
    let receiver = limited("recv", limit, dir, &["recv", "--port", "0"]).last(dest).start();
    if !receiver.says_or_ends("listening on port ") {
        let receiver = receiver.wait_within(SOON);
        assert!(![Some(0), Some(2), Some(127)].contains(&receiver.code), "{limit}: {receiver:?}");
        return;
    }
    let sender = send(dir.join("s"), receiver.port()).start();
    judge(limit, dir, dest, sender.wait_within(SOON * 2), receiver);
}

fn judge(limit: &str, dir: &Path, dest: &Path, sender: Outcome, receiver: End) {
    if !receiver.said().contains("connected") {
        // It never saw the sender and waits for one, as it should.
        receiver.signal(Signal::TERM);
    }
    let receiver = receiver.wait_within(SOON * 2);
    println!("{limit}: sender {:?}, receiver {:?}", sender.code, receiver.code);
    if sender.code == Some(0) {
        receiver.expect(0);
        assert_same(dest, dir.join("s"));
        return;
    }
    for end in [&sender, &receiver] {
        assert!(![None, Some(0), Some(2), Some(127)].contains(&end.code), "{limit}: {end:?}");
        assert!(end.err.contains("blast: ") && !end.err.contains("RUST_BACKTRACE"), "{limit}: {end:?}");
    }
}
