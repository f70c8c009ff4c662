//! Commands that blast runs: what one writes is sent, what arrives is read by one. Their failure is the transfer's on
//! both ends, nothing passes for whole before they have ended well, and none outlives a transfer that failed.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::ends::{BLAST, End, Outcome, Run, address, recv, scratch, send};
use crate::hosts::until;
use crate::trees::{assert_same, random_bytes, small};

const MIB: usize = 1 << 20;

/// Within this both ends have ended when a command fails.
const SOON: Duration = Duration::from_secs(10);

/// `blast send --run COMMAND 127.0.0.1:PORT`
fn producing(command: impl AsRef<OsStr>, port: u16) -> Run {
    Run::of("send", Command::new(BLAST), &["send"]).last("--run").last(command).last(address(port))
}

/// `blast recv --port 0 --run COMMAND`
fn consuming(command: impl AsRef<OsStr>) -> Run {
    Run::of("recv", Command::new(BLAST), &["recv", "--port", "0"]).last("--run").last(command)
}

/// A command that makes a file of what it reads, under another name until it has read the end.
fn publishing(path: &Path) -> String {
    let path = path.display();
    format!("cat > '{path}.part' && mv '{path}.part' '{path}'")
}

fn both(sender: End, receiver: End) -> [Outcome; 2] {
    [sender.wait_within(SOON), receiver.wait_within(SOON)]
}

/// A process that a command of the test has told the number of is gone, or a zombie of somebody else's.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

/// The number in a line `NAME=123` on standard error.
fn told(end: &End, name: &str) -> String {
    end.says(&format!("{name}="));
    until("the whole number", || end.said().split(&format!("{name}=")).nth(1).is_some_and(|rest| rest.contains('\n')));
    let said = end.said();
    let rest = said.split(&format!("{name}=")).nth(1).unwrap();
    rest.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn what_a_command_writes_arrives_in_a_file_on_standard_output_and_in_a_command() {
    let dir = scratch();
    for len in [1, MIB, 5 * MIB + 3] {
        let content = random_bytes(len as u64, len);
        let source = dir.path().join("source");
        fs::write(&source, &content).unwrap();
        let (command, hex) = (format!("cat '{}'", source.display()), blake3::hash(&content).to_hex());

        let copy = dir.path().join(format!("copy{len}"));
        let receiver = recv(&copy).start();
        producing(&command, receiver.port()).outcome().expect(0).tells(&hex);
        receiver.wait().expect(0).tells(&hex);
        assert!(fs::read(&copy).unwrap() == content);

        let receiver = recv("-").start();
        producing(&command, receiver.port()).outcome().expect(0);
        assert!(receiver.wait().expect(0).out == content);

        let published = dir.path().join(format!("published{len}"));
        let receiver = consuming(publishing(&published)).args(&["--json"]).start();
        let sender = producing(&command, receiver.port()).args(&["--json"]).outcome();
        let receiver = receiver.wait();
        assert!(fs::read(&published).unwrap() == content, "{receiver:?}");
        for text in [sender.expect(0).report(), receiver.expect(0).err.lines().last().unwrap()] {
            let report: serde_json::Value = serde_json::from_str(text).expect("one JSON object");
            assert_eq!(report["command"], serde_json::json!({"status": 0, "signal": null}), "{report}");
            assert_eq!(report["stream_digest"], hex.as_str());
        }
    }
}

#[test]
fn a_tree_arrives_in_a_command_as_an_archive_and_its_words_pass_through() {
    let dir = scratch();
    small(&dir.path().join("tree"), 5);
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let command = format!("tar xvpf - -C '{}'; status=$?; echo words; echo other >&2; exit $status", out.display());
    let receiver = consuming(command).start();
    send(dir.path().join("tree"), receiver.port()).outcome().expect(0);
    let receiver = receiver.wait();
    receiver.expect(0).tells("the command took all of it and exited with status 0").tells("other");
    assert!(receiver.out.ends_with(b"words\n"), "standard output is the command's: {receiver:?}");
    assert!(receiver.err.contains("whole:"));
    assert_same(&out, dir.path().join("tree"));
}

#[test]
fn a_producer_that_fails_is_no_end_of_the_stream_on_either_side() {
    let dir = scratch();
    let (file, published) = (dir.path().join("file"), dir.path().join("published"));
    for (what, words) in [
        ("exit 3", "exited with status 3 after 0 bytes of its output"),
        ("head -c 10 /dev/zero; exit 1", "exited with status 1 after "),
        ("head -c 3000000 /dev/zero; kill -9 $$", "was ended by SIGKILL after "),
        ("no-such-command-anywhere", "exited with status 127"),
        ("head -c 3000000 /dev/zero; exec >&-; kill -TERM $$", "was ended by SIGTERM"),
        // What it has left behind goes on, and its failure does not wait for that.
        ("cat /dev/zero & exit 4", "exited with status 4"),
        ("sleep 1000 & exit 5", "exited with status 5 after 0 bytes of its output"),
    ] {
        for into_command in [false, true] {
            let receiver = if into_command { consuming(publishing(&published)) } else { recv(&file) };
            let receiver = receiver.start();
            let sender = producing(what, receiver.port()).start();
            for end in both(sender, receiver) {
                end.expect(2).claims_nothing().tells(words);
            }
            assert!(!file.exists() && !published.exists(), "{what}: nothing has its final name");
        }
    }
    let receiver = recv(&file).args(&["--json"]).start();
    let sender = producing("kill -9 $$", receiver.port()).args(&["--json"]).start();
    let [sender, _] = both(sender, receiver);
    let failure: serde_json::Value = serde_json::from_slice(&sender.out).expect("one JSON object");
    assert_eq!((&failure["code"], &failure["command"]["signal"]), (&2.into(), &9.into()), "{failure}");
}

#[test]
fn a_producer_that_writes_nothing_is_whole_and_told() {
    let receiver = recv("-").start();
    let sender = producing("true", receiver.port()).outcome();
    sender.expect(0).tells("warning: the command wrote nothing: a stream of 0 bytes was sent");
    receiver.wait().expect(0);
}

#[test]
fn a_consumer_that_ends_early_ends_both_and_the_offset_is_told() {
    for (command, words) in [
        ("head -c 1000000 >/dev/null", "exited with status 0 after it had been given "),
        ("head -c 1000000 >/dev/null; exit 9", "exited with status 9 after it had been given "),
        ("head -c 1000000 >/dev/null; kill -9 $$", "was ended by SIGKILL after it had been given "),
        ("exec <&-; sleep 1000", "has closed its input after it had been given "),
    ] {
        let receiver = consuming(command).start();
        let sender = producing("cat /dev/zero", receiver.port()).start();
        for end in both(sender, receiver) {
            end.expect(5).claims_nothing().tells(words).tells(" bytes");
            let offset = end.err.split(words).nth(1).unwrap().split(' ').next().unwrap();
            let offset: usize = offset.parse().unwrap();
            // What it was given and did not read is in the pipe.
            let least = if command.starts_with("head") { 1_000_000 } else { 0 };
            assert!((least..=least + 3 * MIB).contains(&offset), "{end:?}");
        }
    }
}

#[test]
fn a_consumer_that_ends_while_nothing_comes_is_noticed() {
    let receiver = consuming("head -c 10 >/dev/null").start();
    let sender = producing("head -c 3000000 /dev/zero; sleep 1000", receiver.port()).start();
    for end in both(sender, receiver) {
        end.expect(5).claims_nothing().tells("exited with status 0 after it had been given");
    }
}

#[test]
fn a_consumer_that_fails_at_the_end_or_has_not_read_it_is_no_success() {
    for (command, words) in [
        ("cat >/dev/null; exit 7", "exited with status 7 after it had been given 100 bytes"),
        ("cat >/dev/null; kill -9 $$", "was ended by SIGKILL after it had been given 100 bytes"),
        ("head -c 10 >/dev/null; sleep 1", "the command"),
        ("sleep 2", "exited with status 0 and had not read the last 100 of 100 bytes"),
    ] {
        let receiver = consuming(command).args(&["--json"]).start();
        let sender = producing("head -c 100 /dev/zero", receiver.port()).start();
        let [sender, receiver] = both(sender, receiver);
        for end in [&sender, &receiver] {
            end.expect(5).claims_nothing().tells(words);
        }
        let failure: serde_json::Value = serde_json::from_str(receiver.err.lines().last().unwrap()).unwrap();
        assert_eq!(failure["code"], 5);
        assert!(failure["command"].is_object(), "{failure}");
    }
}

#[test]
fn a_command_that_hangs_at_the_end_can_be_interrupted_and_is_gone() {
    for side in ["send", "recv"] {
        let hang = "echo pid=$$ >&2; exec sleep 1000";
        let receiver = consuming(format!("cat >/dev/null; {}", if side == "recv" { hang } else { "true" })).start();
        let producer = format!("head -c 3000000 /dev/zero; {}", if side == "send" { "exec >&-; " } else { "true" });
        let sender =
            producing(format!("{producer}{}", if side == "send" { hang } else { "" }), receiver.port()).start();
        let end = if side == "send" { &sender } else { &receiver };
        let pid = told(end, "pid");
        end.signal(Signal::INT);
        for end in both(sender, receiver) {
            end.expect(7).claims_nothing();
        }
        assert!(has_ended(&pid), "{side}: {pid} is an orphan");
    }
}

#[test]
fn an_interrupted_transfer_leaves_no_command_behind_and_none_sees_an_end() {
    let dir = scratch();
    for (signal, code) in [(Signal::INT, 7), (Signal::TERM, 7)] {
        let published = dir.path().join("published");
        // It does not want to end, and neither does what it has started.
        let stubborn =
            "trap 'echo asked >&2' TERM; (trap '' TERM; echo other=$$ >&2; exec sleep 1000) & echo pid=$$ >&2";
        let receiver = consuming(format!("{stubborn}; {}", publishing(&published))).start();
        let sender = producing("head -c 3000000 /dev/zero; echo pid=$$ >&2; exec sleep 1000", receiver.port()).start();
        let pids = [told(&sender, "pid"), told(&receiver, "pid"), told(&receiver, "other")];
        sender.signal(signal);
        for end in both(sender, receiver) {
            end.expect(code).claims_nothing();
        }
        for pid in pids {
            assert!(has_ended(&pid), "{pid} is an orphan");
        }
        assert!(!published.exists());
    }
}

#[test]
fn a_sender_that_is_killed_ends_the_consumer_without_an_end_of_its_input() {
    let dir = scratch();
    let published = dir.path().join("published");
    let receiver = consuming(format!("echo pid=$$ >&2; {}", publishing(&published))).start();
    let sender = producing("head -c 3000000 /dev/zero; exec sleep 1000", receiver.port()).start();
    let pid = told(&receiver, "pid");
    until("some of it has come", || fs::metadata(published.with_extension("part")).is_ok_and(|m| m.len() > 0));
    sender.signal(Signal::KILL);
    drop(sender);
    receiver.wait_within(SOON * 3).expect(4).claims_nothing();
    assert!(has_ended(&pid) && !published.exists());
}

#[test]
fn a_command_gets_its_pipe_and_nothing_else_of_ours_and_is_not_confined() {
    let dir = scratch();
    let elsewhere = dir.path().join("elsewhere");
    let list = format!("(ls -l /proc/self/fd; grep NoNewPrivs /proc/self/status) > '{}'", elsewhere.display());
    let receiver = consuming(format!("{list}; cat >/dev/null")).start();
    let sender = producing("ls -l /proc/self/fd", receiver.port()).outcome();
    sender.expect(0);
    receiver.wait().expect(0);
    let listed = fs::read_to_string(elsewhere).unwrap();
    let privileges = |text: &str| text.lines().find(|l| l.contains("NoNewPrivs")).map(str::to_owned);
    assert_eq!(privileges(&listed), privileges(&fs::read_to_string("/proc/self/status").unwrap()));
    assert!(listed.contains("pipe:") && !listed.contains("socket:") && !listed.contains("anon_inode"), "{listed}");
    let receiver = recv("-").start();
    producing("ls -l /proc/self/fd", receiver.port()).outcome().expect(0);
    let listed = String::from_utf8(receiver.wait().expect(0).out.clone()).unwrap();
    assert!(listed.contains("pipe:") && !listed.contains("socket:") && !listed.contains("anon_inode"), "{listed}");
}

#[test]
fn a_sender_that_is_refused_starts_no_command() {
    let dir = scratch();
    let started = dir.path().join("started");
    let receiver = recv(dir.path().join("dest")).start();
    let sender = producing(format!("touch '{}'", started.display()), receiver.port());
    sender.args(&["--no-encrypt"]).outcome().expect(3);
    receiver.signal(Signal::INT);
    receiver.wait().expect(7);
    assert!(!started.exists());
}
