//! A block device: had alone before anything is agreed, written from its first byte on, and synced. Never made shorter
//! or longer; what lies behind the last byte that came stays as it was.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::raw::Target;
use super::writer::write_at;
use super::{Failure, Shared, Stopped};
use crate::device;
use crate::error::Error;
use crate::stats::Stage;

/// An open device that nobody else uses.
pub(super) struct Disk {
    fd: OwnedFd,
    size: u64,
}

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
        Ok(Disk { fd, size })
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Target for Disk {
    fn write(&mut self, content: &[u8], offset: u64, shared: &Shared) -> Result<(), Stopped> {
        write_at(&self.fd, content, offset).map_err(|errno| {
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
