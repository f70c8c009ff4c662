//! Raw streams: standard input, a FIFO or what a command writes, read in order by one thread, straight into the chunks'
//! buffers. The end of a command's output is the end of the stream only if the command has gone well.
//!
//! A chunk leaves only when it is full or the stream has ended: slices of a stream are aligned like those of a file.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::fill::Job;
use super::plan::{Emitter, Stopped};
use crate::child::{Child, Exit};
use crate::chunk::Buf;
use crate::error::Error;
use crate::limits::{CHUNK_LEN, COMMAND_LOOK};
use crate::pipe;

/// Why a stream ended early.
pub(super) enum StreamError {
    Stopped,
    Read(Error),
}

impl From<Stopped> for StreamError {
    fn from(_: Stopped) -> StreamError {
        StreamError::Stopped
    }
}

/// Where a stream comes from.
pub(super) struct Origin<'a> {
    /// What is read.
    pub fd: BorrowedFd<'a>,
    /// For errors.
    pub name: &'a Path,
    /// Whose output it is, if it is a command of ours.
    pub producer: Option<&'a Child>,
}

/// Send what comes until its end.
pub(super) fn send_stream(origin: &Origin<'_>, emitter: &mut Emitter) -> Result<(), StreamError> {
    pipe::widen(origin.fd);
    let stats = emitter.context.stats.clone();
    let mut offset = 0;
    // The byte that was read to see whether the first chunk is the only one.
    let mut ahead: Option<u8> = None;
    loop {
        let mut buf = emitter.buffer()?;
        let mut len = 0;
        if let Some(byte) = ahead.take() {
            buf[0] = byte;
            len = 1;
        }
        len += origin.read_full(&mut buf[len..CHUNK_LEN], offset)?;
        let mut ended = len < CHUNK_LEN;
        if offset == 0 && !ended {
            let mut byte = [0];
            match origin.read_full(&mut byte, offset + CHUNK_LEN as u64)? {
                0 => ended = true,
                _ => ahead = Some(byte[0]),
            }
        }
        // The copy is not worth another look at the clock: a read is as long as the producer makes it.
        emitter.lap.book(&emitter.watch.wait_in);
        if len > 0 {
            emit(emitter, buf, len, offset, ended && offset == 0)?;
            stats.bytes_found.fetch_add(len as u64, Relaxed);
            offset += len as u64;
        }
        if ended {
            stats.found_all.store(true, Relaxed);
            return Ok(());
        }
    }
}

fn emit(emitter: &mut Emitter, buf: Buf, len: usize, offset: u64, sole: bool) -> Result<(), Stopped> {
    emitter.emit_in(Job::Read { offset, sole, len }, buf)
}

impl Origin<'_> {
    /// Read until `buf` is full or the stream has ended; returns the bytes read. The stream is at `offset`.
    fn read_full(&self, buf: &mut [u8], offset: u64) -> Result<usize, StreamError> {
        // One that has failed and left others behind, which go on writing, makes nothing whole any more.
        if let Some(child) = self.producer {
            self.check(child.look().filter(|exit| !exit.is_success()), offset)?;
        }
        let mut len = 0;
        while len < buf.len() {
            match rustix::io::read(self.fd, &mut buf[len..]) {
                Ok(0) => {
                    self.await_end(offset + len as u64)?;
                    break;
                }
                Ok(n) => len += n,
                Err(Errno::INTR) => {}
                // A command's, or somebody who shares the descriptor made it non-blocking.
                Err(Errno::AGAIN) => self.await_more(offset + len as u64)?,
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(len)
    }

    fn await_more(&self, offset: u64) -> Result<(), StreamError> {
        let look = Timespec::try_from(COMMAND_LOOK).expect("less than a second");
        let patience = self.producer.map(|_| &look);
        match poll(&mut [PollFd::from_borrowed_fd(self.fd, PollFlags::IN)], patience) {
            Ok(0) => match self.producer {
                Some(child) => self.check(child.look().filter(|exit| !exit.is_success()), offset),
                None => Ok(()),
            },
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(self.failed(errno)),
        }
    }

    /// Nothing more comes: how did the command end? One that goes on for ever is ended from elsewhere.
    fn await_end(&self, offset: u64) -> Result<(), StreamError> {
        let Some(child) = self.producer else { return Ok(()) };
        loop {
            if let Some(exit) = child.wait(COMMAND_LOOK) {
                return self.check(Some(exit), offset);
            }
        }
    }

    fn check(&self, exit: Option<Exit>, offset: u64) -> Result<(), StreamError> {
        match (self.producer, exit) {
            (Some(child), Some(exit)) if !exit.is_success() => {
                let what = format!("the command '{}' {exit} after {offset} bytes of its output", child.shown());
                Err(StreamError::Read(Error::Command { what, producer: true, exit: Some(exit) }))
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, errno: Errno) -> StreamError {
        StreamError::Read(Error::Source { path: PathBuf::from(self.name), source: errno.into() })
    }
}
