//! A regular file or block device that is sliced into data chunks. It is opened once, when it is planned; its size, and
//! where it has holes, is what it was then. What goes wrong later cannot change the size that was announced: what is
//! missing is zeros, and a note says so. Only a device that is gone ends the transfer: a disk's worth of zeros is worth
//! nothing.

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{Advice, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::dirs::Dirs;
use super::holes::Holes;
use super::meta::{Meta, type_name};
use super::notes::NoteSink;
use super::read::{Bad, read_at};
use crate::archive::SparseMap;
use crate::chunk::{ChunkKind, PartHasher, Subtree};
use crate::limits::CHUNK_LEN;
use crate::report::NoteKind;

/// Never blocks on what took the file's name, never follows it, never makes a terminal ours.
pub(super) const FILE_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// An open file, shared by its slices.
pub(super) struct LargeFile {
    fd: OwnedFd,
    /// In the transfer, for notes.
    path: Box<[u8]>,
    /// When it was opened.
    meta: Meta,
    /// Slices that are not filled yet.
    remaining: AtomicU64,
    /// Where it has data, if it is sent without its holes.
    map: Option<Arc<SparseMap>>,
    /// The least offset at which it was found to end early.
    end: AtomicU64,
    bad: Mutex<Bad>,
    /// Its path as given, if it is a block device, whose inode tells neither size nor time.
    device: Option<PathBuf>,
    /// The device can no longer be read at all.
    gone: AtomicBool,
}

/// Why a file cannot be used.
pub(super) enum Unusable {
    Open(Errno),
    /// Something else has its name.
    Type(&'static str),
}

/// Open the regular file `name` in `dir`.
pub(super) fn open_file(dirs: &Dirs, dir: impl AsFd, name: &CStr) -> Result<(OwnedFd, Meta), Unusable> {
    let open = || rustix::fs::openat(&dir, name, FILE_FLAGS, Mode::empty());
    let fd = match dirs.retry(open) {
        Err(Errno::AGAIN) => open_leased(dir, name),
        opened => opened.map_err(Unusable::Open),
    }?;
    let meta = regular(&fd)?;
    Ok((fd, meta))
}

/// A file server holds a lease on the file: it must be waited for until it lets go, which the kernel enforces. To wait
/// safely the file is first held without being opened, so that what is waited for cannot be a FIFO.
fn open_leased(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Unusable> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(Unusable::Open)?;
    regular(&held)?;
    let again = format!("/proc/self/fd/{}", held.as_raw_fd());
    rustix::fs::open(again, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).map_err(Unusable::Open)
}

fn regular(fd: &OwnedFd) -> Result<Meta, Unusable> {
    let meta = Meta::of(&rustix::fs::fstat(fd).map_err(Unusable::Open)?);
    match meta.file_type {
        FileType::RegularFile => Ok(meta),
        other => Err(Unusable::Type(type_name(other))),
    }
}

impl LargeFile {
    pub fn new(fd: OwnedFd, path: &[u8], meta: Meta) -> LargeFile {
        let slices = AtomicU64::new(meta.size.div_ceil(CHUNK_LEN as u64));
        LargeFile {
            fd,
            path: path.into(),
            meta,
            remaining: slices,
            map: None,
            end: AtomicU64::new(u64::MAX),
            bad: Mutex::default(),
            device: None,
            gone: AtomicBool::new(false),
        }
    }

    /// A block device of that size, by its last name and its path as given.
    pub fn device(fd: OwnedFd, name: &[u8], given: &Path, meta: Meta, size: u64) -> LargeFile {
        LargeFile { device: Some(given.to_owned()), ..LargeFile::new(fd, name, Meta { size, ..meta }) }
    }

    /// The path of a device that was found to be gone.
    pub fn gone(&self) -> Option<&Path> {
        self.device.as_deref().filter(|_| self.gone.load(Ordering::Relaxed))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The same, to be sent without its holes.
    pub fn without_holes(self, map: Arc<SparseMap>) -> LargeFile {
        let pieces = AtomicU64::new(map.data_len().div_ceil(CHUNK_LEN as u64));
        LargeFile { remaining: pieces, map: Some(map), ..self }
    }

    /// Where it has holes, as far as that can be believed.
    pub fn find_holes(&self, holes: Holes) -> Option<SparseMap> {
        holes.map(&self.fd, &self.meta)
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    pub fn slices(&self) -> u64 {
        self.meta.size.div_ceil(CHUNK_LEN as u64)
    }

    /// The kind and length of slice `index`.
    pub fn slice(&self, index: u64) -> (ChunkKind, usize) {
        let offset = index * CHUNK_LEN as u64;
        let len = (self.meta.size - offset).min(CHUNK_LEN as u64) as usize;
        (ChunkKind::Data { offset, sole: self.slices() == 1 }, len)
    }

    /// Read slice `index` to the start of `buf`; returns its kind and length.
    pub fn fill(&self, index: u64, buf: &mut [u8], notes: &NoteSink) -> (ChunkKind, usize) {
        let offset = index * CHUNK_LEN as u64;
        let (kind, len) = self.slice(index);
        self.read(&mut buf[..len], offset);
        self.done(notes);
        (kind, len)
    }

    /// Read a piece of the data between the holes to the start of `buf`; its digests go to `subtrees`, if wanted.
    pub fn fill_piece(&self, piece: &Piece, buf: &mut [u8], notes: &NoteSink, subtrees: Option<&mut Vec<Subtree>>) {
        let map = self.map.as_ref().expect("only a file with a map has pieces");
        let mut parts = PartHasher::new(piece.start, piece.end, map.size());
        let mut hashed = piece.start;
        let mut at = 0;
        for (offset, len) in piece.ranges(map) {
            let read = &mut buf[at..at + len];
            self.read(read, offset);
            if subtrees.is_some() {
                parts.zeros(offset - hashed);
                parts.update(read);
                hashed = offset + len as u64;
            }
            at += len;
        }
        if let Some(subtrees) = subtrees {
            parts.zeros(piece.end - hashed);
            subtrees.extend(parts.take());
        }
        self.done(notes);
    }

    /// Fill `buf` from `offset` on; what is not there is zeros.
    fn read(&self, buf: &mut [u8], offset: u64) {
        let len = buf.len();
        let mut bad = Bad::default();
        let mut failed = false;
        let read = |buf: &mut [u8], at: u64| {
            rustix::io::pread(&self.fd, buf, at).inspect_err(|errno| {
                if *errno != Errno::INTR && !failed {
                    failed = true;
                    self.advise_single_pages(offset, len);
                }
            })
        };
        let got = read_at(read, buf, offset, &mut bad);
        if failed {
            let _ = rustix::fs::fadvise(&self.fd, 0, None, Advice::Normal);
        }
        if self.device.is_some() && (got < len || !bad.is_empty()) {
            // Without a medium, or pulled, it is nothing long.
            let is_there = crate::device::len(&self.fd).is_ok_and(|now| now > 0);
            self.gone.fetch_or(!is_there, Ordering::Relaxed);
        }
        if got < len {
            buf[got..].fill(0);
            self.end.fetch_min(offset + got as u64, Ordering::Relaxed);
        }
        if !bad.is_empty() {
            self.bad.lock().expect("no thread panics while it holds this lock").merge(bad);
        }
    }

    fn done(&self, notes: &NoteSink) {
        // The last one sees what all others found.
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.note_troubles(notes);
        }
    }

    /// Ahead of a second look at a range with something bad in it. The kernel reads and keeps many pages as one, which
    /// is bad if any of them is: what it has must go, and no more than is asked for may be read.
    fn advise_single_pages(&self, offset: u64, len: usize) {
        // Without it more is zeroed than would have to be, and told.
        let _ = rustix::fs::fadvise(&self.fd, offset, NonZeroU64::new(len as u64), Advice::DontNeed);
        let _ = rustix::fs::fadvise(&self.fd, 0, None, Advice::Random);
    }

    fn note_troubles(&self, notes: &NoteSink) {
        let bad = std::mem::take(&mut *self.bad.lock().expect("no thread panics while it holds this lock"));
        if !bad.is_empty() {
            notes.add(NoteKind::ReadError, &self.path, bad.describe());
        }
        let end = self.end.load(Ordering::Relaxed);
        let size = self.meta.size;
        if end < size {
            let detail = format!("it became shorter while it was read: {end} of {size} bytes, the rest is zeros");
            notes.add(NoteKind::Shrank, &self.path, detail);
            return;
        }
        if self.device.is_some() {
            if let Some(now) = crate::device::len(&self.fd).ok().filter(|now| *now != size) {
                let detail = format!("it became {now} bytes long while it was read; the first {size} were sent");
                notes.add(NoteKind::Changed, &self.path, detail);
            }
            return;
        }
        let Ok(now) = rustix::fs::fstat(&self.fd).map(|stat| Meta::of(&stat)) else { return };
        if now.size > size {
            let detail =
                format!("it grew from {size} to {} bytes while it was read; the first {size} were sent", now.size);
            notes.add(NoteKind::Changed, &self.path, detail);
        } else if now.size < size || now.mtime != self.meta.mtime {
            notes.add(NoteKind::Changed, &self.path, "it was written to while it was read");
        }
    }
}

/// A chunk's part of a sparse file's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// The extent that it begins in, and how much of that came before.
    first: usize,
    skip: u64,
    /// Bytes of data.
    pub len: usize,
    /// Its part of the file: the hole before the first data and those after each are counted to the data before.
    start: u64,
    end: u64,
}

impl Piece {
    /// All pieces of a file, each as large as a chunk but for the last.
    pub fn all(map: &SparseMap) -> impl Iterator<Item = Piece> + use<'_> {
        let mut next = (0, 0);
        let mut start = 0;
        std::iter::from_fn(move || {
            let (first, skip) = next;
            let mut len = 0;
            while let Some(extent) = map.extents().get(next.0)
                && len < CHUNK_LEN as u64
            {
                let take = (extent.len - next.1).min(CHUNK_LEN as u64 - len);
                len += take;
                next = if next.1 + take == extent.len { (next.0 + 1, 0) } else { (next.0, next.1 + take) };
            }
            if len == 0 {
                return None;
            }
            let end = map.extents().get(next.0).map_or(map.size(), |extent| extent.offset + next.1);
            let piece = Piece { first, skip, len: len as usize, start, end };
            start = end;
            Some(piece)
        })
    }

    /// Where its data is in the file: offsets and lengths.
    fn ranges(self, map: &SparseMap) -> impl Iterator<Item = (u64, usize)> + use<'_> {
        let mut left = self.len as u64;
        let mut skip = self.skip;
        map.extents()[self.first..].iter().map_while(move |extent| {
            let len = (extent.len - skip).min(left);
            let offset = extent.offset + skip;
            left -= len;
            skip = 0;
            (len > 0).then_some((offset, len as usize))
        })
    }
}
