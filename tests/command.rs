//! The program as a person and a script meet it: what it takes, what it prints where, how it ends. Moving data right is
//! shown elsewhere; here transfers are small.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::pair::{Ended, blast, port, recv, run, start};

fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("blast-test-").tempdir().expect("a temporary directory")
}

fn put(path: impl AsRef<Path>, content: &[u8]) {
    fs::write(path, content).expect("a file can be written");
}

/// Neither a carriage return nor an escape nor any other control character but newlines.
#[track_caller]
fn assert_plain(text: &[u8]) {
    let bad = text.iter().find(|b| b.is_ascii_control() && **b != b'\n');
    assert_eq!(bad, None, "{}", text.escape_ascii());
}

/// Move `sources` into `dest` with more options for either side; both must end with `code`.
#[track_caller]
fn moved(sources: &[&OsStr], dest: &Path, options: &[&str], code: i32) -> (Ended, Ended) {
    let (receiver, port) = recv(options.iter().map(OsStr::new).chain([dest.as_os_str()]));
    let target = OsString::from(format!("127.0.0.1:{port}"));
    let args = ["send"].iter().chain(options).map(OsStr::new).chain(sources.iter().copied());
    let sent = run(args.chain([target.as_os_str()])).with_code(code);
    (sent, receiver.end().with_code(code))
}

#[test]
fn what_cannot_be_meant_exits_2_and_says_what_to_type() {
    for line in
        ["", "send", "send /etc", "send a b:0", "send a root@h:/x", "recv", "recv a b", "send --no-such a h", "up"]
    {
        let ended = run(line.split_whitespace()).with_code(2);
        assert!(ended.stderr.starts_with("blast: ") && ended.stderr.contains("\ntry: "), "{line}: {ended:?}");
        assert!(ended.stdout.is_empty(), "{line}: {ended:?}");
    }
    let ended = run([&b"send"[..], b"a", b"\xff\x1b[31m"].map(OsStr::from_bytes)).with_code(2);
    assert_plain(ended.stderr.as_bytes());
    assert!(ended.stderr.contains("\\xff\\x1b[31m"), "{ended:?}");
    let ended = run(["send", "/no/such/path", "127.0.0.1"]).with_code(2);
    assert!(ended.stderr.starts_with("blast: cannot read /no/such/path: No such file"), "{ended:?}");
}

#[test]
fn help_and_version_go_to_standard_output() {
    for line in ["--help", "--version", "send --help", "recv --help"] {
        let ended = run(line.split_whitespace()).with_code(0);
        assert!(ended.stderr.is_empty() && !ended.stdout.is_empty(), "{line}: {ended:?}");
        assert_plain(&ended.stdout);
    }
}

#[test]
fn a_log_holds_plain_lines_and_standard_output_the_report() {
    let dir = scratch();
    put(dir.path().join("file"), b"tail");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("a directory");
    put(tree.join("file"), &[7; 3 << 20]);
    let (sent, received) = moved(&[tree.as_os_str()], &dir.path().join("restored"), &[], 0);
    for ended in [&sent, &received] {
        assert_plain(ended.stderr.as_bytes());
        assert_plain(&ended.stdout);
        let report = ended.report();
        let lines: Vec<&str> = report.lines().collect();
        let [.., verdict, limit] = lines[..] else { panic!("{report}") };
        assert!(verdict.starts_with("whole: ") && limit.starts_with("limited by: "), "{report}");
        assert!(report.contains("2 entries, 3.15 MB (3,145,728 bytes)"), "{report}");
    }
    let digest = |ended: &Ended| ended.report().lines().find(|l| l.starts_with("transfer digest")).map(str::to_owned);
    assert_eq!(digest(&sent), digest(&received), "both ends print the same digest");
    assert!(digest(&sent).is_some_and(|d| d.len() > 64));
    assert!(sent.report().starts_with("sent ") && received.report().starts_with("received "));
}

/// The one JSON object that a text is.
fn object(text: &str) -> serde_json::Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.trim_end().bytes().all(|b| (b' '..=b'~').contains(&b)), "{text}");
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(value.is_object(), "{text}");
    value
}

#[test]
fn the_report_for_programs_is_one_object_and_nothing_else() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("a directory");
    put(tree.join("file"), &[7; 3 << 20]);
    let socket = tree.join(OsStr::from_bytes(b"s\xff"));
    drop(UnixListener::bind(socket).expect("a socket"));
    let restored = dir.path().join("restored");
    let (receiver, port) = recv([OsStr::new("--json"), restored.as_os_str()]);
    let to = format!("127.0.0.1:{port}");
    let sent = run([OsStr::new("send"), OsStr::new("--json"), tree.as_os_str(), OsStr::new(&to)]).with_code(0);
    let received = receiver.end().with_code(0);
    let (sent, received) = (object(&sent.report()), object(&received.report()));
    for (side, object) in [("send", &sent), ("recv", &received)] {
        assert_eq!((&object["side"], &object["code"], &object["whole"]), (&side.into(), &0.into(), &true.into()));
        assert_eq!((&object["entries"], &object["content_bytes"]), (&2.into(), &(3 << 20).into()));
        assert_eq!(object["transfer_digest"], sent["transfer_digest"]);
        assert!(object["limited_by"]["text"].is_string() && object["links"][0]["used"].is_number(), "{object}");
        assert_eq!(object["notes"]["sender"]["named"][0]["path_hex"], "73ff");
        let has =
            |stage| object["stages"]["receiver"].as_array().is_some_and(|s| s.iter().any(|s| s["stage"] == stage));
        assert!(["receive", "verify", "unpack", "write", "sync", "process"].into_iter().all(has), "{object}");
    }
    assert!(sent["stages"]["sender"].as_array().is_some_and(|stages| stages.len() >= 5), "{sent}");
}

#[test]
fn a_failure_for_programs_is_one_object_beside_the_line_for_people() {
    let dir = scratch();
    let missing = dir.path().join("missing");
    let ended = run([OsStr::new("send"), OsStr::new("--json"), missing.as_os_str(), OsStr::new("127.0.0.1:1")]);
    let ended = ended.with_code(2);
    let failure = object(&ended.report());
    assert_eq!(failure["code"], 2);
    assert!(failure["error"].as_str().is_some_and(|e| e.contains("missing")) && failure["hint"].is_string());
    assert!(ended.stderr.contains("missing"), "{}", ended.stderr);
    let usage = run(["send", "--json", "--nonsense", "a", "h"]).with_code(2);
    assert_eq!(object(&usage.report())["code"], 2);
    // where data would be, no object goes
    let usage = run(["recv", "--json", "--nonsense", "-"]).with_code(2);
    assert!(usage.stdout.is_empty());
    assert_eq!(object(&usage.stderr)["code"], 2);
}

#[test]
fn the_object_goes_to_standard_error_where_the_data_goes_to_standard_output() {
    let dir = scratch();
    put(dir.path().join("file"), b"bytes");
    let (receiver, port) = recv(["--json", "-"]);
    let to = format!("127.0.0.1:{port}");
    run([OsStr::new("send"), OsStr::new("-q"), dir.path().join("file").as_os_str(), OsStr::new(&to)]).with_code(0);
    let received = receiver.end().with_code(0);
    assert_eq!(received.stdout, b"bytes");
    let last = object(received.stderr.lines().last().expect("a line"));
    assert_eq!((&last["content_bytes"], &last["entries"]), (&5.into(), &0.into()));
}

/// Run a sender of standard input on a terminal of its own and return all that the terminal got. The stream stays open
/// until `enough` says that the terminal has got enough, or forever has passed.
fn on_a_terminal(environment: &str, enough: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let dir = scratch();
    let (receiver, port) = recv([dir.path().join("stream")]);
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a fifo");
    let line =
        format!("exec {environment} {} send - 127.0.0.1:{port} <{}", env!("CARGO_BIN_EXE_blast"), fifo.display());
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(mut script) = script.spawn() else {
        eprintln!("SKIPPED: this needs script (bsdutils) to make a terminal");
        receiver.signal(Signal::TERM);
        receiver.end();
        return None;
    };
    // Opens once the sender has opened the other end.
    let mut stream = fs::OpenOptions::new().write(true).open(&fifo).expect("the fifo");
    stream.write_all(&[7; 3 << 20]).expect("it is being read");
    let mut stream = Some(stream);
    let (mut terminal, mut got, mut piece) = (script.stdout.take().expect("a pipe"), Vec::new(), [0; 4096]);
    loop {
        match terminal.read(&mut piece).expect("a pipe can be read") {
            0 => break,
            n => got.extend_from_slice(&piece[..n]),
        }
        if enough(&got) {
            stream.take();
        }
    }
    assert!(script.wait().is_ok_and(|status| status.success()), "{}", got.escape_ascii());
    receiver.end().with_code(0);
    Some(got)
}

#[test]
fn a_terminal_gets_a_bar_that_is_redrawn_and_then_the_report() {
    let Some(got) = on_a_terminal("env TERM=xterm NO_COLOR=", |got| got.contains(&0x1b)) else { return };
    let text = String::from_utf8_lossy(&got);
    assert!(text.contains("3.15 MB"), "{}", got.escape_ascii());
    let mut last = text.trim_end().lines().rev();
    assert!(last.next().is_some_and(|l| l.starts_with("limited by: ")), "{}", got.escape_ascii());
    assert!(last.next().is_some_and(|l| l.starts_with("whole: ")), "{}", got.escape_ascii());
}

#[test]
fn a_terminal_that_cannot_or_must_not_be_redrawn_gets_plain_lines() {
    for environment in ["env TERM=dumb NO_COLOR=", "env TERM=xterm NO_COLOR=1"] {
        let connected = |got: &[u8]| String::from_utf8_lossy(got).contains("connected");
        let Some(got) = on_a_terminal(environment, connected) else { return };
        // The terminal itself ends lines with both.
        assert_plain(String::from_utf8_lossy(&got).replace("\r\n", "\n").as_bytes());
    }
}

#[test]
fn quiet_says_nothing_of_a_whole_transfer() {
    let dir = scratch();
    put(dir.path().join("file"), b"tail");
    let (listener, port) = recv([dir.path().join("restored/")]);
    let sent = run(["send", "-q", &dir.path().join("file").display().to_string(), &format!("127.0.0.1:{port}")]);
    assert_eq!((sent.code, sent.stdout.len(), sent.stderr.as_str()), (Some(0), 0, ""));
    listener.end().with_code(0);
}

#[test]
fn the_data_of_recv_dash_is_alone_on_standard_output() {
    let dir = scratch();
    let data: Vec<u8> = (0..2_500_000u32).flat_map(|i| i.to_le_bytes()).take(5_000_001).collect();
    put(dir.path().join("file"), &data);
    let (sent, received) = moved(&[dir.path().join("file").as_os_str()], Path::new("-"), &[], 0);
    assert!(received.stdout == data, "{} bytes of {}", received.stdout.len(), data.len());
    let b3 = blake3::hash(&data).to_hex();
    assert!(received.stderr.contains("whole: ") && received.stderr.contains(b3.as_str()), "{}", received.stderr);
    assert!(sent.report().contains(b3.as_str()), "the sender prints what b3sum prints:\n{}", sent.report());
    assert_plain(received.stderr.as_bytes());
}

#[test]
fn an_empty_standard_input_is_warned_of() {
    let dir = scratch();
    let (sent, _) = moved(&[OsStr::new("-")], &dir.path().join("stream"), &[], 0);
    assert!(sent.stderr.contains("standard input was empty"), "{}", sent.stderr);
    assert_eq!(fs::read(dir.path().join("stream")).expect("it was made"), b"");
}

#[test]
fn both_ends_end_by_themselves_whatever_their_standard_input_is() {
    let dir = scratch();
    put(dir.path().join("file"), &[7; 5 << 20]);
    for (i, redirect) in ["</dev/null", "</dev/zero", "<&-"].iter().enumerate() {
        let with_input = |args: &[&OsStr]| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$@\" {redirect}"), "sh", env!("CARGO_BIN_EXE_blast")]).args(args);
            shell.stdout(Stdio::piped()).stderr(Stdio::piped());
            start(shell)
        };
        let restored = dir.path().join(format!("restored{i}/"));
        let head = ["recv", "--listen", "127.0.0.1", "--port", "0"].map(OsStr::new);
        let mut receiver = with_input(&[&head[..], &[restored.as_os_str()]].concat());
        let target = OsString::from(format!("127.0.0.1:{}", port(&mut receiver)));
        let began = Instant::now();
        let file = dir.path().join("file");
        with_input(&[OsStr::new("send"), file.as_os_str(), &target]).end().with_code(0);
        receiver.end().with_code(0);
        assert!(began.elapsed() < Duration::from_secs(5), "with {redirect}: {:?}", began.elapsed());
    }
}

#[test]
fn an_interrupted_sender_is_no_success_on_either_side() {
    let dir = scratch();
    let (receiver, port) = recv([dir.path().join("stream")]);
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let mut command = blast(["send", "-", &format!("127.0.0.1:{port}")]);
    command.stdin(Stdio::from(read));
    let mut sender = start(command);
    fs::File::from(write.try_clone().expect("a descriptor")).write_all(&[7; 3 << 20]).expect("it is being read");
    sender.until("connected");
    sender.signal(Signal::INT);
    let sent = sender.end().with_code(7);
    let received = receiver.end().with_code(7);
    for ended in [&sent, &received] {
        assert!(ended.stderr.contains("incomplete"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("whole") && ended.stdout.is_empty(), "{ended:?}");
    }
    drop(write);
}

#[test]
fn foreign_names_are_exact_on_disk_and_escaped_in_print() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("a directory");
    let names = [&b"x\x1b[31mred\n0 errors\r"[..], b"Icon\r", b"b\x07", b"not utf-8 \xff", b"\xc2\x9b31m", b"tab\t"];
    for name in names {
        put(tree.join(OsStr::from_bytes(name)), name);
    }
    // What is skipped is named with -v.
    let sockets = [&b"sock\x1b]0;title\x07"[..], b"sock\r\n\xfe"];
    for name in sockets {
        UnixListener::bind(tree.join(OsStr::from_bytes(name))).expect("a socket");
    }
    let restored = dir.path().join("restored");
    let (sent, received) = moved(&[tree.as_os_str()], &restored, &["-v"], 0);
    for text in [sent.stderr.as_bytes(), received.stderr.as_bytes(), &sent.stdout, &received.stdout] {
        assert_plain(text);
    }
    assert!(sent.report().contains("sock\\x1b]0;title\\x07"), "{}", sent.report());
    assert!(sent.report().contains("sock\\r\\n\\xfe"), "{}", sent.report());
    for name in names {
        assert_eq!(fs::read(restored.join(OsStr::from_bytes(name))).expect("it arrived"), name);
    }
}

#[test]
fn operands_with_colons_dashes_and_bytes_are_paths() {
    let dir = scratch();
    let names = [&b"x:9"[..], b"-rf", b"--help", b"sp ace ", b"back\\slash", b"~", b"*", b"#x", b"\xff", b"user@host:"];
    for name in names {
        put(dir.path().join(OsStr::from_bytes(name)), name);
    }
    let (receiver, port) = recv([dir.path().join("restored/")]);
    let mut command = blast(["send", "--"]);
    command.args(names.map(OsStr::from_bytes)).arg(format!("127.0.0.1:{port}")).current_dir(dir.path());
    start(command).end().with_code(0);
    receiver.end().with_code(0);
    for name in names {
        let path = dir.path().join("restored").join(OsStr::from_bytes(name));
        assert_eq!(fs::read(path).expect("it arrived"), name);
    }
    let (receiver, port) = recv([OsString::from_vec([dir.path().as_os_str().as_bytes(), b"/to:7\xff"].concat())]);
    let mut command = blast(["send", "x:9", &format!("127.0.0.1:{port}")]);
    command.current_dir(dir.path());
    start(command).end().with_code(0);
    receiver.end().with_code(0);
    assert!(dir.path().join(OsStr::from_bytes(b"to:7\xff")).exists());
}

#[test]
fn a_reader_of_the_report_that_has_gone_changes_nothing() {
    let dir = scratch();
    put(dir.path().join("file"), b"tail");
    let (receiver, port) = recv([dir.path().join("restored/")]);
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    drop(read);
    let file = dir.path().join("file");
    let mut command = blast([OsStr::new("send"), file.as_os_str(), OsStr::new(&format!("127.0.0.1:{port}"))]);
    command.stdout(Stdio::from(write));
    start(command).end().with_code(0);
    receiver.end().with_code(0);
}

#[test]
fn a_port_in_use_is_refused_at_once_and_a_finished_one_is_free_at_once() {
    let dir = scratch();
    put(dir.path().join("file"), &[7; 1 << 20]);
    let (first, port) = recv([dir.path().join("first/")]);
    let began = Instant::now();
    let args = |dest: &str| {
        let dest = dir.path().join(dest).display().to_string();
        ["recv".to_owned(), "--listen".into(), "127.0.0.1".into(), "--port".into(), port.to_string(), dest]
    };
    let second = run(args("second/"));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(second.code.is_some_and(|code| code != 0) && second.code != Some(70), "{second:?}");
    assert!(second.stderr.contains(&port.to_string()) && second.stderr.contains("in use"), "{second:?}");
    assert!(!dir.path().join("second").exists(), "nothing is made by a receiver that cannot listen");
    let file = dir.path().join("file").display().to_string();
    let target = format!("127.0.0.1:{port}");
    run(["send", &file, &target]).with_code(0);
    first.end().with_code(0);
    let mut again = start(blast(args("again/")));
    again.until("listening");
    run(["send", &file, &target]).with_code(0);
    again.end().with_code(0);
}

/// One network namespace with a loopback, taken away at the end; `None`, said aloud, where there can be none.
struct Namespace(String);

impl Namespace {
    fn new() -> Option<Namespace> {
        let name = format!("blast-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output();
        if !made.is_ok_and(|done| done.status.success()) {
            eprintln!("SKIPPED: this needs root and ip (iproute2) to make a network namespace");
            return None;
        }
        let space = Namespace(name);
        assert!(space.command("ip", &["link", "set", "lo", "up"]).status().is_ok_and(|s| s.success()));
        Some(space)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn set(&self, key_is_value: &str) {
        let done = self.command("sysctl", &["-qw", key_is_value]).output().expect("sysctl runs");
        assert!(done.status.success(), "{key_is_value}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

#[test]
fn a_receiver_is_reached_by_both_families_however_the_machine_is_set() {
    let dir = scratch();
    put(dir.path().join("file"), b"tail");
    let file = dir.path().join("file").display().to_string();
    let Some(space) = Namespace::new() else { return };
    let program = env!("CARGO_BIN_EXE_blast");
    let mut count = 0;
    let mut moves = |host: &str| {
        count += 1;
        let restored: PathBuf = dir.path().join(format!("restored{count}/"));
        let dest = restored.display().to_string();
        let mut receiver = start(space.command(program, &["recv", "--port", "0", &dest]));
        let target = format!("{host}:{}", port(&mut receiver));
        start(space.command(program, &["send", &file, &target])).end().with_code(0);
        receiver.end().with_code(0);
        assert_eq!(fs::read(restored.join("file")).expect("it arrived"), b"tail");
    };
    moves("127.0.0.1");
    moves("[::1]");
    space.set("net.ipv6.bindv6only=1");
    moves("127.0.0.1");
    moves("[::1]");
    space.set("net.ipv6.conf.all.disable_ipv6=1");
    moves("127.0.0.1");
}
