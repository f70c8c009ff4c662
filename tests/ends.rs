//! The program as two processes: started, listened to, waited for under a deadline, and killed when a test ends early.
//!
//! Nothing here sleeps: a test waits for a line on standard error, for an amount on standard output or for the
//! process's end, and fails with everything that was said when it has not come in time.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// The program.
pub const BLAST: &str = env!("CARGO_BIN_EXE_blast");

/// A process that has not ended, or not said what it should, by then hangs. Far above what anything here takes, since
/// the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A place for trees: in memory where there is such a place, since what is slow about a disk shows nothing here.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.or_else(|_| tempfile::tempdir()).expect("a place for trees")
}

/// A shared library of this C, as what a command's environment needs to be changed by it (`LD_PRELOAD=...`); nothing,
/// said loudly, without a compiler.
pub fn shim(dir: &Path, text: &str) -> Option<String> {
    let (shim, code) = (dir.join("shim.so"), dir.join("shim.c"));
    std::fs::write(&code, text).expect("a writable directory");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&code).arg("-ldl").status();
    if !built.is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: a test with a changed system call: this needs a C compiler");
        return None;
    }
    Some(format!("LD_PRELOAD={}", shim.display()))
}

/// A number that may be chosen from outside.
pub fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Whether this is root; says so if not.
pub fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {what}: this needs root");
    }
    root
}

/// A process about to be started.
pub struct Run {
    side: &'static str,
    command: Command,
    /// What ends the command line.
    last: Vec<OsString>,
}

/// `blast recv --port 0 DEST`
pub fn recv(dest: impl AsRef<OsStr>) -> Run {
    recv_on(0, dest)
}

/// `blast recv --port PORT DEST`, for a port that was free before.
pub fn recv_on(port: u16, dest: impl AsRef<OsStr>) -> Run {
    Run::of("recv", Command::new(BLAST), &["recv", "--port", &port.to_string()]).last(dest)
}

/// `blast send SRC 127.0.0.1:PORT`
pub fn send(source: impl AsRef<OsStr>, port: u16) -> Run {
    Run::of("send", Command::new(BLAST), &["send"]).last(source).last(address(port))
}

/// Where a receiver listens that is on this machine.
pub fn address(port: u16) -> String {
    format!("{}:{port}", Ipv4Addr::LOCALHOST)
}

impl Run {
    /// Any command; nothing is on its standard input.
    pub fn of(side: &'static str, mut command: Command, args: &[&str]) -> Run {
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // whoever runs the tests may have a key
        command.env("HOME", "/nonexistent").env_remove("BLAST_KEY_FILE");
        Run { side, command, last: Vec::new() }
    }

    pub fn last(mut self, operand: impl AsRef<OsStr>) -> Run {
        self.last.push(operand.as_ref().to_owned());
        self
    }

    pub fn args(mut self, args: &[&str]) -> Run {
        self.command.args(args);
        self
    }

    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Run {
        self.command.stdin(stdin);
        self
    }

    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Run {
        self.command.stdout(stdout);
        self
    }

    /// Start it; its standard output is collected.
    pub fn start(self) -> End {
        let mut end = self.start_apart();
        end.out = end.child.stdout.take().map_or_else(Heard::nothing, Heard::listen);
        end
    }

    /// Start it; its standard output is left to the test ([`End::take_stdout`]).
    pub fn start_apart(mut self) -> End {
        self.command.args(&self.last);
        let mut child = self.spawn().unwrap_or_else(|e| panic!("{:?} does not start: {e}", self.command));
        let err = child.stderr.take().map_or_else(Heard::nothing, Heard::listen);
        End { side: self.side, child, out: Heard::nothing(), err, started: Instant::now(), status: None }
    }

    /// A program that was copied by a test is busy for as long as a process that another test has just begun shares the
    /// descriptor by which it was written.
    fn spawn(&mut self) -> io::Result<Child> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.command.spawn() {
                Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < until => {
                    thread::yield_now()
                }
                started => return started,
            }
        }
    }

    /// Start it and wait for its end.
    pub fn outcome(self) -> Outcome {
        self.start().wait()
    }
}

/// What one pipe has brought so far.
#[derive(Clone)]
struct Heard(Arc<(Mutex<Brought>, Condvar)>);

/// The bytes, and whether that is all.
type Brought = (Vec<u8>, bool);

impl Heard {
    fn nothing() -> Heard {
        Heard(Arc::new((Mutex::new((Vec::new(), true)), Condvar::new())))
    }

    fn listen(mut pipe: impl Read + Send + 'static) -> Heard {
        let heard = Heard(Arc::new((Mutex::new((Vec::new(), false)), Condvar::new())));
        let ours = heard.clone();
        thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            loop {
                let n = pipe.read(&mut bytes).unwrap_or(0);
                let mut state = ours.0.0.lock().unwrap();
                state.0.extend_from_slice(&bytes[..n]);
                state.1 = n == 0;
                ours.0.1.notify_all();
                if n == 0 {
                    return;
                }
            }
        });
        heard
    }

    /// Wait until `enough` of it or its end; true if there was enough.
    fn until(&self, deadline: Instant, enough: impl Fn(&[u8]) -> bool) -> bool {
        let mut state = self.0.0.lock().unwrap();
        loop {
            if enough(&state.0) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.1 || left.is_zero() {
                return false;
            }
            state = self.0.1.wait_timeout(state, left).unwrap().0;
        }
    }

    fn so_far(&self) -> Vec<u8> {
        self.0.0.lock().unwrap().0.clone()
    }
}

/// A running process.
pub struct End {
    side: &'static str,
    child: Child,
    out: Heard,
    err: Heard,
    started: Instant,
    status: Option<std::process::ExitStatus>,
}

impl End {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The port a receiver listens on, once it says so.
    pub fn port(&self) -> u16 {
        self.says("listening on port ");
        let said = self.said();
        let digits = said.split("listening on port ").nth(1).unwrap();
        digits.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    }

    /// The port of a receiver that says nothing.
    pub fn quiet_port(&self) -> u16 {
        let deadline = self.started + PATIENCE;
        loop {
            if let Some(port) = listening_port(self.id()) {
                return port;
            }
            assert!(Instant::now() < deadline, "{} does not listen: {}", self.side, self.said());
            thread::yield_now();
        }
    }

    /// Wait until standard error holds `text`.
    pub fn says(&self, text: &str) {
        let found = self.err.until(Instant::now() + PATIENCE, |said| contains(said, text.as_bytes()));
        assert!(found, "{} never said '{text}': {}", self.side, self.said());
    }

    /// Wait until standard error holds `text` or is closed; true if it does.
    pub fn says_or_ends(&self, text: &str) -> bool {
        self.err.until(Instant::now() + PATIENCE, |said| contains(said, text.as_bytes()))
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.err.so_far()).into_owned()
    }

    /// Wait until this much came to standard output.
    pub fn brings(&self, bytes: usize) {
        let came = self.out.until(Instant::now() + PATIENCE, |out| out.len() >= bytes);
        assert!(came, "{} brought {} bytes of {bytes}: {}", self.side, self.out.so_far().len(), self.said());
    }

    pub fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("its input is a pipe")
    }

    pub fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("its output was left to the test")
    }

    pub fn signal(&self, signal: Signal) {
        // It is our child and not waited for, so the number is still its own.
        kill_process(Pid::from_child(&self.child), signal).expect("a process that runs");
    }

    /// The most memory it has had at once so far, bytes; it must still run.
    pub fn peak_memory(&self) -> u64 {
        peak_memory(self.id()).expect("the process runs")
    }

    /// Wait for its end.
    pub fn wait(self) -> Outcome {
        self.wait_within(PATIENCE)
    }

    /// Whether it ends within `limit` from now.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let asked = Instant::now();
        let fd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).expect("our child");
        loop {
            let left = limit.saturating_sub(asked.elapsed());
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::try_from(left).unwrap())) {
                Ok(n) => return n > 0,
                Err(_) if left.is_zero() => return false,
                Err(_) => {}
            }
        }
    }

    /// Wait for its end, which must come within `limit` from now.
    pub fn wait_within(mut self, limit: Duration) -> Outcome {
        let asked = Instant::now();
        let ended = self.ends_within(limit);
        assert!(ended, "{} has not ended within {limit:?}: {}", self.side, self.said());
        let waited = asked.elapsed();
        let status = self.child.wait().expect("our child");
        self.status = Some(status);
        let deadline = Instant::now() + PATIENCE;
        self.out.until(deadline, |_| false);
        self.err.until(deadline, |_| false);
        Outcome {
            side: self.side,
            code: status.code(),
            signal: status.signal(),
            out: self.out.so_far(),
            err: self.said(),
            took: self.started.elapsed(),
            waited,
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// How a process ended.
pub struct Outcome {
    pub side: &'static str,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Standard output, if it was collected.
    pub out: Vec<u8>,
    /// Standard error.
    pub err: String,
    /// From its start to its end.
    pub took: Duration,
    /// From being waited for to its end.
    pub waited: Duration,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { side, code, signal, err, took, .. } = self;
        write!(f, "{side}: code {code:?}, signal {signal:?}, after {took:?}\n{err}")?;
        match std::str::from_utf8(&self.out) {
            Ok(text) if text.len() < 4000 => write!(f, "{text}"),
            _ => write!(f, "({} bytes on standard output)", self.out.len()),
        }
    }
}

impl Outcome {
    /// The text on standard output.
    pub fn report(&self) -> &str {
        std::str::from_utf8(&self.out).expect("a report is text")
    }

    #[track_caller]
    pub fn expect(&self, code: i32) -> &Outcome {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Standard error or the report holds `text`.
    #[track_caller]
    pub fn tells(&self, text: &str) -> &Outcome {
        assert!(self.err.contains(text) || contains(&self.out, text.as_bytes()), "'{text}' is missing: {self:?}");
        self
    }

    /// It claims no success anywhere and has no words of a panic.
    #[track_caller]
    pub fn claims_nothing(&self) -> &Outcome {
        let all = format!("{}{}", self.err, String::from_utf8_lossy(&self.out));
        for word in ["whole:", "panicked", "RUST_BACKTRACE", "bug in blast"] {
            assert!(!all.contains(word), "'{word}' was said: {self:?}");
        }
        self
    }
}

/// What a receiver needs to keep all that lends rights.
pub const TRUSTING: &[&str] = &["--allow", "suid,devices,caps,trusted"];

/// Send `source` into `dest`, which keeps everything, and expect success on both ends.
#[track_caller]
pub fn transfer(source: impl AsRef<OsStr>, dest: impl AsRef<OsStr>, args: &[&str]) -> (Outcome, Outcome) {
    let receiver = recv(dest).args(TRUSTING).start();
    let sender = send(source, receiver.port()).args(args).outcome();
    let receiver = receiver.wait();
    assert_eq!((sender.code, receiver.code), (Some(0), Some(0)), "{sender:?}\n{receiver:?}");
    (sender, receiver)
}

/// The most memory that a process has had at once so far, bytes; nothing if it has ended.
pub fn peak_memory(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// The port on which a process listens, as the kernel knows it.
fn listening_port(id: u32) -> Option<u16> {
    let links = fs::read_dir(format!("/proc/{id}/fd")).ok()?.filter_map(|e| fs::read_link(e.ok()?.path()).ok());
    let sockets: Vec<String> = links.filter_map(|l| l.to_str()?.strip_prefix("socket:[").map(str::to_owned)).collect();
    let tables = ["tcp", "tcp6"].map(|t| fs::read_to_string(format!("/proc/{id}/net/{t}")).unwrap_or_default());
    tables.iter().flat_map(|t| t.lines()).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ours = sockets.iter().any(|s| s.trim_end_matches(']') == *fields.get(9).unwrap_or(&""));
        let listens = *fields.get(3)? == "0A";
        let port = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
        (ours && listens).then_some(port)
    })
}

pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}
