//! Reads files again from the disk and compares them with what they should be.
//!
//! 1. *hand out* (sequential): lines in their order, a batch at a time.
//! 2. *compare* (parallel): open, let the kernel forget what it has cached, read, hash. Differences are told as they
//!    are found, in any order, so that memory does not grow with them.
//!
//! What must be read from the disk must not be read from memory: each file system is synced once, since what is not
//! written cannot be dropped, and a file's pages are dropped before it is read and behind the reading, which spares
//! what others have in the cache. The kernel may refuse (pages that others have mapped, file systems in memory). A file
//! is read from its first byte to its last, holes too, whatever a map of it said.
//!
//! Nothing outside the tree is read: paths are walked from its descriptor, one component at a time, and no symbolic
//! link is followed below it. It writes nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use crossbeam_channel::{Receiver, bounded};
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::Error;
use crate::ids::Digest;
use crate::limits::CHUNK_LEN;
use crate::manifest::Line;
use crate::report::{Difference, DifferenceKind, Verified};
use crate::storage::Storage;

/// Called for every difference, from any thread.
pub type Tell<'a> = &'a (dyn Fn(Difference) + Sync);

/// Called with the files and the bytes that were read since the last call, from any thread.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Lines handed out at once: neighbours share a directory.
const BATCH_LEN: usize = 64;

/// Bytes read of a large file before the pages behind are dropped.
const DROP_BEHIND: u64 = 32 << 20;

/// Read the file of every line that `lines` gives, below `root`. Differences are told, counted, and no error.
///
/// # Errors
/// Those of `lines`.
pub fn compare(
    root: &OwnedFd,
    lines: impl FnOnce(&mut dyn FnMut(Line)) -> Result<(), Error>,
    progress: Progress<'_>,
    tell: Tell<'_>,
) -> Result<Verified, Error> {
    let found = Found { tell, progress, counts: Default::default(), bytes: AtomicU64::new(0) };
    let devices = Devices::default();
    let workers = thread::available_parallelism().map_or(2, |n| n.get()).max(2);
    let (out, batches) = bounded::<Vec<Line>>(2 * workers);
    let files = thread::scope(|scope| {
        let started = (0..workers).try_for_each(|i| {
            let (batches, found, devices, place) = (batches.clone(), &found, &devices, Place::new(root));
            let thread = thread::Builder::new().name(format!("compare-{i}"));
            let started = thread.spawn_scoped(scope, move || compare_each(&batches, place, devices, found));
            started.map(drop).map_err(|e| Error::Bug(format!("cannot start a thread: {e}")))
        });
        // Only the workers have it now, so that handing out ends if they do.
        drop(batches);
        let handed_out = started.and_then(|()| hand_out(lines, &out));
        drop(out);
        handed_out
    })?;
    Ok(found.verified(files))
}

/// The digest of the first `len` bytes of a device, as it has them, once it was synced.
///
/// # Errors
/// In words, after how many bytes.
pub fn device(fd: &OwnedFd, len: u64, progress: Progress<'_>) -> Result<Digest, String> {
    let mut buf = Storage::new(CHUNK_LEN);
    read_all(fd, len, &mut buf, |bytes| progress(0, bytes as u64)).map_err(|unread| unread.detail)
}

/// Hand out all lines; returns how many there were.
fn hand_out(
    lines: impl FnOnce(&mut dyn FnMut(Line)) -> Result<(), Error>,
    out: &crossbeam_channel::Sender<Vec<Line>>,
) -> Result<u64, Error> {
    let (mut batch, mut handed_out) = (Vec::with_capacity(BATCH_LEN), 0);
    let hand = |batch: &mut Vec<Line>| {
        // Refused only if every worker has panicked, and then the scope tells.
        let _ = out.send(std::mem::replace(batch, Vec::with_capacity(BATCH_LEN)));
    };
    lines(&mut |line| {
        handed_out += 1;
        batch.push(line);
        if batch.len() == BATCH_LEN {
            hand(&mut batch);
        }
    })?;
    hand(&mut batch);
    Ok(handed_out)
}

/// What was found so far.
struct Found<'a> {
    tell: Tell<'a>,
    progress: Progress<'a>,
    /// By kind.
    counts: [AtomicU64; DifferenceKind::ALL.len()],
    bytes: AtomicU64,
}

impl Found<'_> {
    fn read(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        (self.progress)(0, bytes as u64);
    }

    fn differs(&self, kind: DifferenceKind, path: Vec<u8>, detail: String) {
        self.counts[kind as usize].fetch_add(1, Relaxed);
        (self.tell)(Difference { kind, path, detail });
    }

    fn verified(&self, files: u64) -> Verified {
        Verified { files, bytes: self.bytes.load(Relaxed), counts: self.counts.each_ref().map(|n| n.load(Relaxed)) }
    }
}

/// Compare files until there are no more.
fn compare_each(batches: &Receiver<Vec<Line>>, mut place: Place<'_>, devices: &Devices, found: &Found<'_>) {
    let mut buf = Storage::new(CHUNK_LEN);
    for Line { digest, path } in batches.iter().flatten() {
        match hash(&mut place, &path, devices, &mut buf, found) {
            Ok(is) if is == digest => {}
            Ok(_) => found.differs(DifferenceKind::Content, path, String::new()),
            Err(Unread { kind, detail }) => found.differs(kind, path, detail),
        }
        (found.progress)(1, 0);
    }
}

/// Why a file has no digest.
struct Unread {
    kind: DifferenceKind,
    detail: String,
}

impl From<Errno> for Unread {
    fn from(errno: Errno) -> Unread {
        let detail = io::Error::from(errno).to_string();
        let (kind, detail) = match errno {
            Errno::NOENT => (DifferenceKind::Missing, String::new()),
            Errno::NOTDIR => (DifferenceKind::Missing, "what should be a directory on its way is none".into()),
            Errno::NAMETOOLONG => (DifferenceKind::Missing, detail),
            Errno::LOOP => (DifferenceKind::Irregular, "a symbolic link".into()),
            _ => (DifferenceKind::Unreadable, detail),
        };
        Unread { kind, detail }
    }
}

/// The digest of a file as the disk has it.
fn hash(
    place: &mut Place<'_>,
    path: &[u8],
    devices: &Devices,
    buf: &mut [u8],
    found: &Found<'_>,
) -> Result<Digest, Unread> {
    let fd = place.open(path)?;
    let stat = rustix::fs::fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(irregular("a directory")),
        _ => return Err(irregular("a device, FIFO or socket")),
    }
    devices.sync(stat.st_dev, &fd);
    read_all(&fd, u64::MAX, buf, |bytes| found.read(bytes))
}

/// The digest of what is in a file or device, up to a length, as the disk has it.
fn read_all(fd: &OwnedFd, most: u64, buf: &mut [u8], mut read: impl FnMut(usize)) -> Result<Digest, Unread> {
    forget(fd);
    let mut hasher = blake3::Hasher::new();
    let (mut len, mut kept) = (0, 0);
    while len < most {
        let take = (most - len).min(buf.len() as u64) as usize;
        match rustix::io::read(fd, &mut buf[..take]) {
            Ok(0) => break,
            Ok(n) => {
                hasher.update(&buf[..n]);
                read(n);
                len += n as u64;
                kept += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => {
                let detail = format!("after {len} bytes: {}", io::Error::from(errno));
                return Err(Unread { kind: DifferenceKind::Unreadable, detail });
            }
        }
        if kept >= DROP_BEHIND {
            forget(fd);
            kept = 0;
        }
    }
    forget(fd);
    Ok(Digest(hasher.finalize().into()))
}

fn irregular(what: &str) -> Unread {
    Unread { kind: DifferenceKind::Irregular, detail: what.into() }
}

/// Drop a file's pages, as far as the kernel lets us.
fn forget(fd: &OwnedFd) {
    let _ = rustix::fs::fadvise(fd, 0, None, Advice::DontNeed);
}

/// File systems whose writes have been waited for.
#[derive(Default)]
struct Devices(Mutex<Vec<u64>>);

impl Devices {
    /// Once for each; the others wait, since only then can their pages be dropped.
    fn sync(&self, device: u64, fd: &OwnedFd) {
        let mut synced = self.0.lock().expect("no thread panics while it holds this lock");
        if !synced.contains(&device) {
            // What cannot be synced is read from wherever the kernel has it.
            let _ = rustix::fs::syncfs(fd);
            synced.push(device);
        }
    }
}

/// A tree, and the directory in it that was used last.
pub struct Place<'a> {
    root: &'a OwnedFd,
    path: Vec<u8>,
    dir: Option<OwnedFd>,
}

impl<'a> Place<'a> {
    /// At the root of a tree.
    pub fn new(root: &'a OwnedFd) -> Place<'a> {
        Place { root, path: Vec::new(), dir: None }
    }

    fn open(&mut self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (dir, name) = self.of(path)?;
        match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            // A socket, or a device without a driver.
            Err(Errno::NXIO) => rustix::fs::openat(dir, name, flags | OFlags::PATH, Mode::empty()),
            opened => opened,
        }
    }

    /// What is at a path; a link at its end is not followed.
    pub fn stat(&mut self, path: &[u8]) -> Result<Stat, Errno> {
        let (dir, name) = self.of(path)?;
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The directory that a path is in, open, and its last name.
    fn of<'p>(&mut self, path: &'p [u8]) -> Result<(BorrowedFd<'_>, &'p [u8]), Errno> {
        let Some(slash) = path.iter().rposition(|b| *b == b'/') else { return Ok((self.root.as_fd(), path)) };
        let (above, name) = (&path[..slash], &path[slash + 1..]);
        if self.path != above || self.dir.is_none() {
            self.dir = None;
            let mut dir = None;
            for name in above.split(|b| *b == b'/') {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                dir = Some(rustix::fs::openat(dir.as_ref().unwrap_or(self.root), name, flags, Mode::empty())?);
            }
            self.dir = dir;
            self.path.clear();
            self.path.extend_from_slice(above);
        }
        Ok((self.dir.as_ref().unwrap_or(self.root).as_fd(), name))
    }
}
