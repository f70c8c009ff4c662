//! Two processes of the program under test, with their output collected and an end to everybody's patience.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// After this long a process is killed and the test fails; nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test, with no terminal anywhere.
pub fn blast<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blast"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // whoever runs the tests may have a key
    command.env("HOME", "/nonexistent").env_remove("BLAST_KEY_FILE");
    command
}

/// A process at work.
pub struct Running {
    pid: rustix::process::Pid,
    status: Receiver<ExitStatus>,
    stdout: Option<thread::JoinHandle<Vec<u8>>>,
    lines: Receiver<String>,
    said: String,
}

/// What came of it.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// All of its standard error; bytes that are no text are replaced.
    pub stderr: String,
}

impl Ended {
    /// Standard output as text.
    pub fn report(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// This, if it ended with that code; all it said otherwise.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Ended {
        assert_eq!(self.code, Some(code), "it said:\n{}{}", self.report(), self.stderr);
        self
    }
}

/// Start a process made by [`blast`].
pub fn start(mut command: Command) -> Running {
    let mut child: Child = command.spawn().expect("the program under test starts");
    let pid = rustix::process::Pid::from_child(&child);
    let stdout = child.stdout.take().map(|mut pipe| {
        thread::spawn(move || {
            let mut all = Vec::new();
            pipe.read_to_end(&mut all).expect("a pipe can be read");
            all
        })
    });
    let (line_in, lines) = mpsc::channel();
    if let Some(pipe) = child.stderr.take() {
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let _ = line_in.send(String::from_utf8_lossy(&line).into_owned() + "\n");
            }
        });
    }
    let (status_in, status) = mpsc::channel();
    thread::spawn(move || {
        let _ = status_in.send(child.wait().expect("a child can be waited for"));
    });
    Running { pid, status, stdout, lines, said: String::new() }
}

impl Running {
    /// Read standard error up to a line that holds `what`, and return that line.
    #[track_caller]
    pub fn until(&mut self, what: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it never said {what:?} but:\n{}", self.said));
            self.said += &line;
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Send it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid, signal).expect("it is still there");
    }

    /// Wait for its end.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        let status = self.status.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
            self.said.extend(self.lines.iter());
            panic!("it did not end in {PATIENCE:?}; it said:\n{}", self.said)
        });
        let stdout = self.stdout.map(|thread| thread.join().expect("a pipe can be read")).unwrap_or_default();
        self.said.extend(self.lines.iter());
        Ended { code: status.code(), stdout, stderr: self.said }
    }
}

/// Run to the end.
#[track_caller]
pub fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ended {
    start(blast(args)).end()
}

/// Start a receiver on a free port of the loopback; the port is what it printed.
#[track_caller]
pub fn recv<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> (Running, u16) {
    let mut command = blast(["recv", "--port", "0", "--listen", "127.0.0.1"]);
    command.args(args);
    let mut running = start(command);
    let port = port(&mut running);
    (running, port)
}

/// The port that a receiver says it listens on.
#[track_caller]
pub fn port(receiver: &mut Running) -> u16 {
    let line = receiver.until("listening on port ");
    let digits: String = line.split("port ").nth(1).unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no port in {line:?}"))
}
