//! A block device: had alone before anything is agreed, written from its first byte on, and synced. Never made shorter
//! or longer; what lies behind the last byte that came stays as it was.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::raw::Target;
use super::writer::write_at;
use super::zeros::stretches;
use super::{Failure, Shared, Stopped};
use crate::device;
use crate::error::Error;
use crate::stats::Stage;

/// An open device that nobody else uses.
pub(super) struct Disk {
    fd: OwnedFd,
    size: u64,
    /// Whether the device is asked to zero what is zeros, as long as it can.
    zeroes: bool,
}

/// Shorter stretches of zeros are written: to ask the device costs a request of its own.
const ZEROED_MIN: usize = 64 << 10;

/// What the device zeroes begins and ends at multiples of this, whatever its sectors are.
const ZEROED_ALIGNED: u64 = 4096;

impl Disk {
    /// Have it alone. Refused if it is mounted, or held by anything that wants it alone, too.
    pub fn open(path: &Path, shown: &str) -> Result<Disk, Error> {
        let failed =
            |errno: Errno| Error::Destination { what: format!("cannot write to '{shown}'"), source: errno.into() };
        let in_use = |device| {
            let holder = device::held_by(device);
            Error::Refused(format!("'{shown}' is {holder}, and is not overwritten: free it first, or name another"))
        };
        let flags = OFlags::WRONLY | OFlags::EXCL | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| match rustix::fs::stat(path) {
            Ok(stat) if errno == Errno::BUSY => in_use(stat.st_rdev),
            _ => failed(errno),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
            return Err(Error::Refused(format!("'{shown}' was a block device, and has become something else")));
        }
        // The kernel says no already; a mount that it does not count as one would still be damaged.
        if !device::mounted_at(stat.st_rdev).is_empty() {
            return Err(in_use(stat.st_rdev));
        }
        let what = || format!("cannot tell how large '{shown}' is");
        let size = device::len(&fd).map_err(|source| Error::Destination { what: what(), source })?;
        if size == 0 {
            return Err(Error::Refused(format!("'{shown}' is a block device with nothing in it: it has 0 bytes")));
        }
        Ok(Disk { fd, size, zeroes: false })
    }

    /// Let the device zero what is zeros, which may free room in what it is made of, and needs no bytes to be written.
    pub fn zeroing(self, zeroes: bool) -> Disk {
        Disk { zeroes, ..self }
    }

    /// Write content that may hold zeros.
    fn write_stretches(&mut self, content: &[u8], offset: u64) -> Result<(), Errno> {
        for (range, zeros) in stretches(content, offset) {
            let (at, stretch) = (offset + range.start as u64, &content[range]);
            let done = if zeros && stretch.len() >= ZEROED_MIN { self.zero(at, stretch.len() as u64) } else { 0 };
            write_at(&self.fd, &stretch[done as usize..], at + done)?;
        }
        Ok(())
    }

    /// Have the device zero what begins at `at`; returns how much it has done.
    fn zero(&mut self, at: u64, len: u64) -> u64 {
        let len = len - len % ZEROED_ALIGNED;
        // The system takes what lies behind the end for done; a write says that there is none.
        if !self.zeroes || !at.is_multiple_of(ZEROED_ALIGNED) || at + len > self.size {
            return 0;
        }
        // Made for files, it says of a device: these bytes read as zeros from now on, and the device did it itself.
        let done = rustix::fs::fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
        self.zeroes = done.is_ok();
        if done.is_ok() { len } else { 0 }
    }

    /// The same device, to be read.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Target for Disk {
    fn write(&mut self, content: &[u8], offset: u64, shared: &Shared) -> Result<(), Stopped> {
        let written = match self.zeroes {
            true => self.write_stretches(content, offset),
            false => write_at(&self.fd, content, offset),
        };
        written.map_err(|errno| {
            let (destination, size) = (&shared.destination, self.size);
            let what = match errno {
                Errno::NOSPC => format!("'{destination}' is full: it has {size} bytes, and more came"),
                _ => format!("cannot write to '{destination}' after {offset} of its {size} bytes"),
            };
            shared.fail(Failure::Destination(what, errno))
        })
    }

    fn look(&mut self, _: u64, _: &Shared) -> Result<(), Stopped> {
        Ok(())
    }

    fn complete(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped> {
        rustix::fs::fsync(&self.fd).map_err(|errno| {
            let what = format!("cannot sync '{}' after {offset} bytes", shared.destination);
            shared.fail(Failure::Destination(what, errno))
        })
    }

    fn stage(&self) -> Stage {
        Stage::Write
    }

    fn take_waited(&mut self) -> Duration {
        Duration::ZERO
    }

    fn device_size(&self) -> Option<u64> {
        Some(self.size)
    }
}
