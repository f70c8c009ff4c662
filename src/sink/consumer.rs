//! A command that takes what is received on its standard input. It has taken all only when it has read to the end and
//! ended well; one that ends sooner is noticed while nothing is written, too.
//!
//! What fails never lets it see an end: a command that makes something of what it has read would make it of a part.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::raw::Target;
use super::{Failure, Shared, Stopped};
use crate::child::{Child, Exit};
use crate::limits::{COMMAND_LOOK, WRITE_LEN};
use crate::pipe;
use crate::stats::{Stage, timed};

/// A command and the pipe to it.
pub(super) struct Consumer {
    child: Arc<Child>,
    /// `None` once it has been given all.
    input: Option<OwnedFd>,
    /// How it ended, once it has taken all.
    taken: Option<Exit>,
    /// Time without room, since somebody asked.
    waited: Duration,
}

impl Consumer {
    /// With a pipe that does not wait.
    pub fn new((child, input): (Arc<Child>, OwnedFd)) -> Consumer {
        pipe::widen(&input);
        Consumer { child, input: Some(input), taken: None, waited: Duration::ZERO }
    }

    /// It has not taken all. If it is ending only now, it has a moment to say how.
    fn left(&self, offset: u64, shared: &Shared) -> Stopped {
        let exit = self.child.wait(COMMAND_LOOK).filter(|exit| *exit != Exit::Stopped);
        let exit = exit.or_else(|| self.child.wait(COMMAND_LOOK));
        let shown = self.child.shown();
        let what = match exit {
            Some(exit) => format!("the command '{shown}' {exit} after it had been given {offset} bytes"),
            None => format!("the command '{shown}' has closed its input after it had been given {offset} bytes"),
        };
        shared.fail(Failure::Command(what, exit))
    }

    fn cannot_write(&self, offset: u64, errno: Errno, shared: &Shared) -> Stopped {
        let what = format!("cannot write to the command '{}' after {offset} bytes", self.child.shown());
        shared.fail(Failure::Destination(what, errno))
    }

    /// Wait until there is room, or nobody reads any more. True if either is so.
    fn poll(&self, events: PollFlags, patience: Duration) -> Result<bool, Errno> {
        let Some(input) = &self.input else { return Ok(false) };
        let timeout = Timespec::try_from(patience).expect("less than a second");
        match poll(&mut [PollFd::new(input, events)], Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Bytes that were given and that nobody has read, once it has ended.
    fn give_the_end(&mut self) -> Option<OwnedFd> {
        let input = self.input.take()?;
        // Another reader keeps what the pipe holds from vanishing with the last one. It must not come sooner: as long
        // as it is there, a write does not tell that the command no longer reads.
        let path = format!("/proc/self/fd/{}", input.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

impl Target for Consumer {
    fn write(&mut self, mut content: &[u8], mut offset: u64, shared: &Shared) -> Result<(), Stopped> {
        if self.child.look().is_some() {
            return Err(self.left(offset, shared));
        }
        while !content.is_empty() {
            if shared.stopping() {
                return Err(Stopped);
            }
            let Some(input) = &self.input else { return Err(Stopped) };
            match rustix::io::write(input, &content[..content.len().min(WRITE_LEN)]) {
                Ok(n) => {
                    content = &content[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let (polled, time) = timed(|| self.poll(PollFlags::OUT, COMMAND_LOOK));
                    self.waited += time;
                    polled.map_err(|errno| self.cannot_write(offset, errno, shared))?;
                    if self.child.look().is_some() {
                        return Err(self.left(offset, shared));
                    }
                }
                Err(Errno::PIPE) => return Err(self.left(offset, shared)),
                Err(errno) => return Err(self.cannot_write(offset, errno, shared)),
            }
        }
        Ok(())
    }

    fn look(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped> {
        let gone = self.poll(PollFlags::empty(), Duration::ZERO);
        let gone = gone.map_err(|errno| self.cannot_write(offset, errno, shared))?;
        if gone || self.child.look().is_some() { Err(self.left(offset, shared)) } else { Ok(()) }
    }

    fn complete(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped> {
        self.look(offset, shared)?;
        let pipe = self.give_the_end();
        let exit = loop {
            if let Some(exit) = self.child.wait(COMMAND_LOOK) {
                break exit;
            }
            if shared.stopping() {
                return Err(Stopped);
            }
        };
        if !exit.is_success() {
            return Err(self.left(offset, shared));
        }
        let unread = pipe.and_then(|pipe| rustix::io::ioctl_fionread(pipe).ok()).unwrap_or(0);
        if unread > 0 {
            let shown = self.child.shown();
            let what = format!("the command '{shown}' {exit} and had not read the last {unread} of {offset} bytes");
            return Err(shared.fail(Failure::Command(what, Some(exit))));
        }
        self.taken = Some(exit);
        Ok(())
    }

    fn stage(&self) -> Stage {
        Stage::Output
    }

    fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    fn command(&self) -> Option<Exit> {
        self.taken
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if self.taken.is_none() {
            // While the pipe is still open.
            self.child.end();
        }
    }
}
