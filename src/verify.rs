//! Compares a tree with a manifest: every file that the manifest names is read again, from the disk, and hashed.
//!
//! 1. *check* (sequential): all lines of the manifest, so that a malformed one is told before anything is read.
//! 2. *measure* (one thread, beside the rest): the sizes of all files, for the progress display only.
//! 3. *hand out* (sequential): lines in their order, a batch at a time.
//! 4. *compare* (parallel): open, let the kernel forget what it has cached, read, hash. Differences are told as they are
//!    found, in any order, so that memory does not grow with them.
//! 5. *what is more* (sequential, if asked for): files of the tree that no line names.
//!
//! What must be read from the disk must not be read from memory: each file system is synced once, since what is not
//! written cannot be dropped, and a file's pages are dropped before it is read and behind the reading, which spares what
//! others have in the cache. The kernel may refuse (pages that others have mapped, file systems in memory).
//!
//! Nothing outside the tree is read: paths are walked from its descriptor, one component at a time, and no symbolic link
//! is followed below it. It writes nothing.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use crossbeam_channel::{Receiver, bounded};
use rustix::fs::{Advice, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Error, escape};
use crate::ids::Digest;
use crate::limits::{CHUNK_LEN, PATH_LEN_MAX};
use crate::manifest::{Line, Malformed, parse_line};
use crate::options::VerifyOptions;
use crate::report::{Difference, DifferenceKind, Verified};
use crate::source;
use crate::stats::{Phase, Stats};

/// Called for every difference, from any thread.
pub type Tell<'a> = &'a (dyn Fn(Difference) + Sync);

/// Lines handed out at once: neighbours share a directory.
const BATCH_LEN: usize = 64;

/// The longest line, bytes: every byte of the longest path escaped.
const LINE_LEN_MAX: u64 = 128 + 4 * PATH_LEN_MAX as u64;

/// Bytes read of a large file before the pages behind are dropped.
const DROP_BEHIND: u64 = 32 << 20;

/// Read every file that the manifest names. Differences are told, counted, and no error.
///
/// # Errors
/// A manifest that cannot be read or has a malformed line, and a directory that cannot be opened.
pub fn run(options: &VerifyOptions, stats: &Stats, tell: Tell<'_>) -> Result<Verified, Error> {
    let manifest = Manifest::open(options)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, &options.dir, flags, Mode::empty())
        .map_err(|errno| Error::Source { path: options.dir.clone(), source: errno.into() })?;
    stats.enter(Phase::Moving);
    let mut named = options.extra.then(HashSet::new);
    let mut lines = 0;
    manifest.each(|line| {
        lines += 1;
        if let Some(named) = &mut named {
            named.insert(key(&line.path));
        }
        true
    })?;
    stats.entries_found.store(lines, Relaxed);

    let found = Found { tell, stats, counts: Default::default(), bytes: AtomicU64::new(0) };
    let devices = Devices::default();
    let enough = AtomicBool::new(false);
    let handed_out = thread::scope(|scope| {
        let measure = || {
            let mut place = Place::new(&root);
            // Fails if the manifest changes under us, which the other reader tells.
            let _ = manifest.each(|line| {
                if let Ok(stat) = place.stat(&line.path) {
                    stats.bytes_found.fetch_add(u64::try_from(stat.st_size).unwrap_or(0), Relaxed);
                }
                !enough.load(Relaxed)
            });
            stats.found_all.store(true, Relaxed);
        };
        // Without a thread to spare there is no estimate.
        let _ = thread::Builder::new().name("measure".into()).spawn_scoped(scope, measure);
        let workers = thread::available_parallelism().map_or(2, |n| n.get()).max(2);
        let (out, batches) = bounded::<Vec<Line>>(2 * workers);
        let started = (0..workers).try_for_each(|i| {
            let (batches, found, devices, place) = (batches.clone(), &found, &devices, Place::new(&root));
            let thread = thread::Builder::new().name(format!("compare-{i}"));
            let started = thread.spawn_scoped(scope, move || compare(&batches, place, devices, found));
            started.map(drop).map_err(|e| Error::Bug(format!("cannot start a thread: {e}")))
        });
        // Only the workers have it now, so that handing out ends if they do.
        drop(batches);
        let handed_out = started.and_then(|()| hand_out(&manifest, &out));
        enough.store(true, Relaxed);
        handed_out
    })?;
    if handed_out != lines {
        return Err(manifest.error("it changed while it was read"));
    }
    let mut verified = found.verified(lines);
    if let Some(named) = named {
        what_is_more(options, &named, &mut verified, tell)?;
    }
    stats.enter(Phase::Done);
    Ok(verified)
}

/// The manifest, open. Read several times, and each time the same file.
struct Manifest<'a> {
    file: File,
    options: &'a VerifyOptions,
}

impl Manifest<'_> {
    fn open(options: &VerifyOptions) -> Result<Manifest<'_>, Error> {
        let unreadable = |source| Error::Source { path: options.manifest.clone(), source };
        let file = File::open(&options.manifest).map_err(unreadable)?;
        let manifest = Manifest { file, options };
        match manifest.file.metadata().map_err(unreadable)?.is_file() {
            true => Ok(manifest),
            false => Err(manifest.error("it is no regular file, and has to be read twice")),
        }
    }

    /// Visit the lines in order, until one is answered with false.
    fn each(&self, mut visit: impl FnMut(Line) -> bool) -> Result<(), Error> {
        let mut reader = BufReader::with_capacity(CHUNK_LEN / 4, Positioned { file: &self.file, offset: 0 });
        let mut text = Vec::new();
        for number in 1u64.. {
            text.clear();
            let len = reader.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut text);
            match len.map_err(|source| Error::Source { path: self.options.manifest.clone(), source })? {
                0 => break,
                len if len as u64 == LINE_LEN_MAX => return Err(self.malformed(number, Malformed::Form)),
                _ => {}
            }
            if !visit(parse_line(&text).map_err(|why| self.malformed(number, why))?) {
                break;
            }
        }
        Ok(())
    }

    fn malformed(&self, number: u64, why: Malformed) -> Error {
        self.error(&format!("line {number}: {why}"))
    }

    fn error(&self, what: &str) -> Error {
        Error::Usage(format!("{}: {what}", escape(self.options.manifest.as_os_str().as_bytes())))
    }
}

/// A reader with a place of its own in a file that others read too.
struct Positioned<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for Positioned<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buf, self.offset)?;
        self.offset += n as u64;
        Ok(n)
    }
}

/// Hand out all lines; returns how many there were.
fn hand_out(manifest: &Manifest<'_>, out: &crossbeam_channel::Sender<Vec<Line>>) -> Result<u64, Error> {
    let (mut batch, mut lines) = (Vec::with_capacity(BATCH_LEN), 0);
    let hand = |batch: &mut Vec<Line>| {
        // Refused only if every worker has panicked, and then the scope tells.
        let _ = out.send(std::mem::replace(batch, Vec::with_capacity(BATCH_LEN)));
    };
    manifest.each(|line| {
        lines += 1;
        batch.push(line);
        if batch.len() == BATCH_LEN {
            hand(&mut batch);
        }
        true
    })?;
    hand(&mut batch);
    Ok(lines)
}

/// What was found so far.
struct Found<'a> {
    tell: Tell<'a>,
    stats: &'a Stats,
    /// By kind.
    counts: [AtomicU64; DifferenceKind::ALL.len()],
    bytes: AtomicU64,
}

impl Found<'_> {
    fn read(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.stats.content_done.fetch_add(bytes as u64, Relaxed);
        self.stats.stream_done.fetch_add(bytes as u64, Relaxed);
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
fn compare(batches: &Receiver<Vec<Line>>, mut place: Place<'_>, devices: &Devices, found: &Found<'_>) {
    let mut buf = vec![0; CHUNK_LEN];
    for Line { digest, path } in batches.iter().flatten() {
        match hash(&mut place, &path, devices, &mut buf, found) {
            Ok(is) if is == digest => {}
            Ok(_) => found.differs(DifferenceKind::Content, path, String::new()),
            Err(Unread { kind, detail }) => found.differs(kind, path, detail),
        }
        found.stats.entries_done.fetch_add(1, Relaxed);
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
    forget(&fd);
    let mut hasher = blake3::Hasher::new();
    let (mut len, mut kept) = (0, 0);
    loop {
        match rustix::io::read(&fd, &mut *buf) {
            Ok(0) => break,
            Ok(n) => {
                hasher.update(&buf[..n]);
                found.read(n);
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
            forget(&fd);
            kept = 0;
        }
    }
    forget(&fd);
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

/// The tree, and the directory in it that was used last.
struct Place<'a> {
    root: &'a OwnedFd,
    path: Vec<u8>,
    dir: Option<OwnedFd>,
}

impl<'a> Place<'a> {
    fn new(root: &'a OwnedFd) -> Place<'a> {
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

    fn stat(&mut self, path: &[u8]) -> Result<Stat, Errno> {
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

/// A path's identity among all of a manifest.
fn key(path: &[u8]) -> [u8; 16] {
    let hash = blake3::hash(path);
    hash.as_bytes()[..16].try_into().expect("a hash is longer")
}

/// Tell the files of the tree that no line names.
fn what_is_more(
    options: &VerifyOptions,
    named: &HashSet<[u8; 16]>,
    verified: &mut Verified,
    tell: Tell<'_>,
) -> Result<(), Error> {
    let mut more = |kind: DifferenceKind, path: &[u8], detail: String| {
        verified.counts[kind as usize] += 1;
        tell(Difference { kind, path: path.to_vec(), detail });
    };
    let notes = source::each_file(&options.dir, |path| {
        if !named.contains(&key(path)) {
            more(DifferenceKind::Extra, path, String::new());
        }
    })?;
    for note in notes.named.into_iter().filter(|note| note.kind.is_loss()) {
        more(DifferenceKind::Unreadable, &note.path, note.detail);
    }
    Ok(())
}
