//! Raw streams: standard input or a FIFO, read in order by one thread, straight into the chunks' buffers.
//!
//! A chunk leaves only when it is full or the stream has ended: slices of a stream are aligned like those of a file.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::fill::Job;
use super::plan::{Emitter, Stopped};
use crate::chunk::Buf;
use crate::error::Error;
use crate::limits::CHUNK_LEN;

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

/// Send what `fd` delivers until its end. `name` is for errors.
pub(super) fn send_stream(fd: impl AsFd, name: &Path, emitter: &mut Emitter) -> Result<(), StreamError> {
    let fd = fd.as_fd();
    // A pipe of the usual 64 KiB costs sixteen reads and as many wake-ups of the producer for each chunk.
    let _ = rustix::pipe::fcntl_setpipe_size(fd, CHUNK_LEN);
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
        len += read_full(fd, &mut buf[len..CHUNK_LEN], name)?;
        let mut ended = len < CHUNK_LEN;
        if offset == 0 && !ended {
            let mut byte = [0];
            match read_full(fd, &mut byte, name)? {
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

/// Read until `buf` is full or the stream has ended; returns the bytes read.
fn read_full(fd: BorrowedFd<'_>, buf: &mut [u8], name: &Path) -> Result<usize, StreamError> {
    let mut len = 0;
    while len < buf.len() {
        match rustix::io::read(fd, &mut buf[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTR) => {}
            // Somebody who shares the descriptor made it non-blocking.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(read_error(name, errno)),
            },
            Err(errno) => return Err(read_error(name, errno)),
        }
    }
    Ok(len)
}

fn read_error(name: &Path, errno: Errno) -> StreamError {
    StreamError::Read(Error::Source { path: PathBuf::from(name), source: errno.into() })
}
