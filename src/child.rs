//! The command of `--run`, which makes what is sent or takes what is received. Its failure is the transfer's: whoever
//! reads or writes its pipe asks here how it ended, and counts nothing as whole before that.
//!
//! It gets a process group of its own, so that it ends with all that it has started, and our signals for a terminal are
//! not its. It has our standard error; nothing else that is open here reaches it. Until it has been told to end, or the
//! last of us lets go, its number stays its own: nobody waits for it in the way that frees it, so no signal of ours can
//! reach another.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid};

use crate::error::escape;
use crate::limits::COMMAND_GRACE;

/// How often a command that was told to end is looked at, and one that the kernel does not tell of.
const STEP: Duration = Duration::from_millis(20);

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By itself, with this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// It has not: it wanted the terminal, which is not its, and was stopped.
    Stopped,
}

/// A shell that runs a command.
pub struct Child {
    /// As given, escaped.
    shown: String,
    process: Mutex<std::process::Child>,
    pid: Pid,
    /// Tells of its end; `None` before Linux 5.3.
    pidfd: Option<OwnedFd>,
    /// Whether it was told to end, and has.
    ended: Mutex<bool>,
}

impl Exit {
    /// Whether all went well.
    pub fn is_success(self) -> bool {
        self == Exit::Status(0)
    }

    /// The exit status, if it has one.
    pub fn status(self) -> Option<i32> {
        if let Exit::Status(status) = self { Some(status) } else { None }
    }

    /// The signal that ended it, if one did.
    pub fn signal(self) -> Option<i32> {
        if let Exit::Signal(signal) = self { Some(signal) } else { None }
    }
}

/// In words, after the command.
impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Status(status) => write!(f, "exited with status {status}"),
            Exit::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "was ended by {name}"),
                None => write!(f, "was ended by signal {signal}"),
            },
            Exit::Stopped => write!(f, "was stopped when it wanted the terminal, which it cannot have"),
        }
    }
}

impl Child {
    /// Start a command whose standard output is read from what comes back; it has nothing on its standard input.
    pub fn producer(command: &OsStr) -> io::Result<(Arc<Child>, OwnedFd)> {
        let mut process = shell(command).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let pipe = process.stdout.take().expect("it was asked for").into();
        Child::started(command, process, pipe)
    }

    /// Start a command whose standard input is written to what comes back; its standard output is ours.
    pub fn consumer(command: &OsStr) -> io::Result<(Arc<Child>, OwnedFd)> {
        let mut process = shell(command).stdin(Stdio::piped()).stdout(Stdio::inherit()).spawn()?;
        let pipe = process.stdin.take().expect("it was asked for").into();
        Child::started(command, process, pipe)
    }

    fn started(command: &OsStr, process: std::process::Child, pipe: OwnedFd) -> io::Result<(Arc<Child>, OwnedFd)> {
        let pid = Pid::from_child(&process);
        let child = Child {
            shown: escape(command.as_bytes()),
            process: Mutex::new(process),
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty()).ok(),
            ended: Mutex::new(false),
        };
        // Ours alone: the other end has flags of its own. Nobody may be held by a command that does not go on.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok((Arc::new(child), pipe))
    }

    /// The command as given, escaped.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// How it ended, if it has.
    pub fn look(&self) -> Option<Exit> {
        let what = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid), what).ok().flatten()?;
        let wants_terminal = [libc::SIGTTIN, libc::SIGTTOU].map(Some).contains(&status.stopping_signal());
        if status.stopped() {
            return wants_terminal.then_some(Exit::Stopped);
        }
        let signal = || status.terminating_signal().map(Exit::Signal);
        status.exit_status().map(Exit::Status).or_else(signal)
    }

    /// The same, after `patience` at most.
    pub fn wait(&self, patience: Duration) -> Option<Exit> {
        match &self.pidfd {
            Some(pidfd) => {
                let timeout = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
                // Interrupted or not, a look says what there is.
                let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout));
            }
            None => thread::sleep(STEP.min(patience)),
        }
        self.look()
    }

    /// Ask it, and all that it has started, to end.
    pub fn ask_to_end(&self) {
        let ended = self.ended.lock().expect("no thread panics while it holds this lock");
        if !*ended {
            self.signal(Signal::TERM);
            // Who is stopped hears nothing else.
            self.signal(Signal::CONT);
        }
    }

    /// Have it ended, and all that it has started: asked to, and after [`COMMAND_GRACE`] made to.
    pub fn end(&self) {
        self.ask_to_end();
        let mut ended = self.ended.lock().expect("no thread panics while it holds this lock");
        if *ended {
            return;
        }
        if !self.leaves() {
            self.signal(Signal::KILL);
            // At once, unless one hangs in the kernel, which nobody can end.
            self.leaves();
        }
        *ended = true;
    }

    /// Wait for the last of the group for a while; whether it went.
    fn leaves(&self) -> bool {
        let steps = COMMAND_GRACE.as_millis() / STEP.as_millis();
        for _ in 0..steps {
            if !self.is_anybody_left() {
                return true;
            }
            thread::sleep(STEP);
        }
        false
    }

    fn signal(&self, signal: Signal) {
        // Nobody left is what is wanted.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Whether any process of the group still runs.
    fn is_anybody_left(&self) -> bool {
        let Ok(processes) = fs::read_dir("/proc") else { return self.look().is_none() };
        let group = self.pid.as_raw_nonzero().get();
        let is_number = |name: &OsString| name.as_bytes().iter().all(u8::is_ascii_digit);
        let numbers = processes.flatten().map(|entry| entry.file_name()).filter(is_number);
        let mut states = numbers.filter_map(|n| fs::read(format!("/proc/{}/stat", n.to_str()?)).ok());
        self.look().is_none() || states.any(|stat| runs_in(&stat, group))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.look().is_none_or(|exit| exit == Exit::Stopped) {
            self.end();
        }
        if let Ok(process) = self.process.get_mut() {
            // Only what hangs in the kernel has not ended by now.
            let _ = process.try_wait();
        }
    }
}

/// Has a command ended when it goes, unless it was let off.
pub struct Leash(Option<Arc<Child>>);

impl Leash {
    /// On whatever command there is.
    pub fn on(child: Option<Arc<Child>>) -> Leash {
        Leash(child)
    }

    /// Ask it to end, without waiting.
    pub fn pull(&self) {
        if let Some(child) = &self.0 {
            child.ask_to_end();
        }
    }

    /// It has done its work.
    pub fn let_off(mut self) {
        self.0 = None;
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        if let Some(child) = &self.0 {
            child.end();
        }
    }
}

fn shell(command: &OsStr) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).process_group(0);
    shell
}

/// Whether a process, see proc_pid_stat(5), is of that group and no zombie. Its name may hold anything.
fn runs_in(stat: &[u8], group: i32) -> bool {
    let after_name = stat.iter().rposition(|b| *b == b')').and_then(|at| std::str::from_utf8(&stat[at + 1..]).ok());
    let mut fields = after_name.unwrap_or_default().split_whitespace();
    let state = fields.next();
    let its_group = fields.nth(1).and_then(|number| number.parse::<i32>().ok());
    its_group == Some(group) && !matches!(state, Some("Z" | "X"))
}

fn signal_name(signal: i32) -> Option<&'static str> {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return None,
    };
    Some(name)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// Longer than anything here takes.
    const SOON: Duration = Duration::from_secs(20);

    fn exit(child: &Child) -> Exit {
        let steps = SOON.as_millis() / 500;
        let half = Duration::from_millis(500);
        (0..steps).find_map(|_| child.wait(half)).expect("it ends")
    }

    fn producer(command: &str) -> (Arc<Child>, fs::File) {
        let (child, pipe) = Child::producer(OsStr::new(command)).unwrap();
        rustix::io::ioctl_fionbio(&pipe, false).unwrap();
        (child, pipe.into())
    }

    fn consumer(command: &str) -> (Arc<Child>, fs::File) {
        let (child, pipe) = Child::consumer(OsStr::new(command)).unwrap();
        (child, pipe.into())
    }

    /// Read one line, of a command that goes on.
    fn line(pipe: &mut fs::File) -> String {
        let mut line = String::new();
        let mut byte = [0];
        while pipe.read(&mut byte).unwrap() == 1 && byte != [b'\n'] {
            line.push(byte[0].into());
        }
        line
    }

    #[test]
    fn a_commands_output_and_exit_come_back() {
        for (command, out, end, words) in [
            ("echo a; exit 0", "a\n", Exit::Status(0), "exited with status 0"),
            ("echo b; exit 3", "b\n", Exit::Status(3), "exited with status 3"),
            ("kill -9 $$", "", Exit::Signal(9), "was ended by SIGKILL"),
            ("kill -s RTMIN $$", "", Exit::Signal(34), "was ended by signal 34"),
            ("read x && echo $x", "", Exit::Status(1), "exited with status 1"),
        ] {
            let (child, mut pipe) = producer(command);
            let mut all = String::new();
            pipe.read_to_string(&mut all).unwrap();
            assert_eq!((all.as_str(), exit(&child)), (out, end), "{command}");
            assert_eq!(end.to_string(), words);
            assert_eq!(child.look(), Some(end), "looking changes nothing");
            assert_eq!((child.shown(), end.is_success()), (command, end == Exit::Status(0)));
        }
    }

    #[test]
    fn a_command_gets_its_input_and_sees_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a file");
        let (child, mut pipe) = consumer(&format!("cat > '{}'", path.display()));
        assert_eq!(child.wait(Duration::ZERO), None);
        pipe.write_all(b"content").unwrap();
        drop(pipe);
        assert_eq!(exit(&child), Exit::Status(0));
        assert_eq!(fs::read(path).unwrap(), b"content");
    }

    #[test]
    fn nothing_that_is_open_here_and_no_ignored_signal_reaches_a_command() {
        let _socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // Whoever started this test may have left something open on purpose.
        let inherited = |fd: &String| {
            let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
            let flags = info.lines().find_map(|l| i32::from_str_radix(l.strip_prefix("flags:")?.trim(), 8).ok());
            flags.is_some_and(|flags| flags & libc::O_CLOEXEC == 0)
        };
        let ours = fs::read_dir("/proc/self/fd").unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut expected: Vec<String> = ours.filter(inherited).chain(["0", "1", "2"].map(str::to_owned)).collect();
        let (child, mut pipe) =
            producer("ls /proc/self/fd; grep SigIgn /proc/self/status; grep SigBlk /proc/self/status");
        let mut all = String::new();
        pipe.read_to_string(&mut all).unwrap();
        assert_eq!(exit(&child), Exit::Status(0));
        let open = all.lines().filter(|l| l.parse::<u32>().is_ok()).map(str::to_owned);
        expected.sort();
        let unexpected: Vec<String> = open.filter(|fd| expected.binary_search(fd).is_err()).collect();
        // One is the listing's own.
        assert!(unexpected.len() <= 1, "{unexpected:?} beside {expected:?}");
        let masks: Vec<u64> = all.lines().filter_map(|l| u64::from_str_radix(l.split('\t').nth(1)?, 16).ok()).collect();
        let pipe_signal = 1 << (libc::SIGPIPE - 1);
        assert!(masks.len() == 2 && masks[0] & pipe_signal == 0 && masks[1] == 0, "{all}");
    }

    #[test]
    fn a_command_ends_with_all_that_it_has_started_even_if_it_does_not_want_to() {
        for (command, stubborn) in [
            ("echo $$; sleep 1000", false),
            ("echo $$; sleep 1000 | cat", false),
            ("trap '' TERM; echo $$; sleep 1000 & sleep 1000; wait", true),
            ("sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' & wait", true),
            ("echo $$; kill -STOP $$", false),
        ] {
            let (child, mut pipe) = producer(command);
            let pid = line(&mut pipe);
            assert!(child.look().is_none(), "{command}");
            child.end();
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_else(|_| "gone Z".into());
            assert!(state.contains(" Z"), "{command}: {state}");
            assert!(!child.is_anybody_left(), "{command}");
            let expected = if stubborn { [Exit::Signal(9), Exit::Signal(15)] } else { [Exit::Signal(15); 2] };
            assert!(expected.contains(&exit(&child)), "{command}: {:?}", child.look());
            child.end();
        }
    }

    #[test]
    fn a_command_that_wants_the_terminal_is_told_and_one_that_is_only_stopped_is_waited_for() {
        let (child, mut pipe) = producer("echo $$; kill -TTIN $$; exit 3");
        line(&mut pipe);
        assert_eq!(exit(&child), Exit::Stopped);
        assert!(child.look().unwrap().to_string().contains("wanted the terminal"));
        child.end();
        assert_eq!(exit(&child), Exit::Signal(15));
        let (child, mut pipe) = producer("echo $$; kill -STOP $$; exit 3");
        let pid = line(&mut pipe);
        let is_stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T");
        let steps = SOON.as_millis() / STEP.as_millis();
        assert!((0..steps).any(|_| child.wait(STEP).is_none() && is_stopped()));
        assert_eq!(child.look(), None);
        child.signal(Signal::CONT);
        assert_eq!(exit(&child), Exit::Status(3));
    }

    #[test]
    fn a_command_that_is_let_go_of_is_no_orphan_and_no_zombie() {
        let (child, mut pipe) = producer("echo $$; sleep 1000");
        let pid = line(&mut pipe);
        let leash = Leash::on(Some(child.clone()));
        leash.pull();
        drop(leash);
        drop(child);
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
        let (child, mut pipe) = producer("echo $$");
        let pid = line(&mut pipe);
        exit(&child);
        Leash::on(Some(child.clone())).let_off();
        drop(child);
        assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
    }

    #[test]
    fn a_process_is_told_by_its_group_whatever_its_name() {
        assert!(runs_in(b"12 (a) Z 1 99) S 1 77 77 0", 77));
        assert!(!runs_in(b"12 (sh) Z 1 77 77 0", 77));
        assert!(!runs_in(b"12 (sh) S 77 1 1 0", 77));
        assert!(!runs_in(b"", 77));
    }
}
