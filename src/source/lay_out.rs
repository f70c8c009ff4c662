//! One small entry of a chunk: opened, looked at, read and laid out with its header, so that the header is true. What
//! cannot be had is left out and noted; nothing else of the chunk is touched.

use std::ffi::CStr;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::dirs::is_vanished;
use super::extras::{At, Taken};
use super::fill::{Context, FillScratch, Place, What};
use super::holes::Holes;
use super::large::{Unusable, open_file};
use super::meta::Meta;
use super::read::{Bad, read_at};
use super::walk::note_missing;
use crate::archive::{EntryKind, Extras, SparseMap, header_len, padding, write_header};
use crate::limits::HOLE_LEN_MIN;
use crate::report::NoteKind;

/// Bytes laid out, and those of content among them.
pub(super) struct LaidOut {
    pub len: usize,
    pub content: u64,
}

/// One entry being laid out.
pub(super) struct Filler<'a> {
    pub place: &'a Place,
    pub name: &'a CStr,
    pub text: &'a [u8],
    pub context: &'a Context,
    pub scratch: &'a mut FillScratch,
}

impl Filler<'_> {
    /// Lay the entry out at the start of `out`. `None` leaves it out; a note has been made.
    pub fn fill(&mut self, out: &mut [u8]) -> Option<LaidOut> {
        let place = self.place;
        place.dir.path_into(self.name.to_bytes(), &mut self.scratch.entry.path);
        place.meta.describe(&mut self.scratch.entry);
        self.scratch.entry.extras = if place.what == What::Hardlink { None } else { place.extras.clone() };
        self.scratch.entry.kind = match &place.what {
            What::File => return self.fill_file(out),
            What::Packed(map) => return self.fill_packed(map.clone(), out),
            What::Pieces(map) => EntryKind::Sparse { size: map.size(), packed: map.packed_len() },
            // The first name is in this very chunk, and was left out: this name takes its place and its room.
            What::Hardlink if self.context.fates.has_failed(place.meta.inode) => return self.fill_file(out),
            What::Large => EntryKind::File { size: place.meta.size },
            What::Directory => EntryKind::Directory,
            What::Symlink => EntryKind::Symlink { target: self.text.to_vec() },
            What::Hardlink => EntryKind::Hardlink { target: self.text.to_vec() },
            What::Fifo => EntryKind::Fifo,
            What::Device => place.meta.device(),
        };
        Some(LaidOut { len: write_header(&self.scratch.entry, out), content: 0 })
    }

    /// The file, if it is still one; otherwise a note has been made.
    fn open(&mut self) -> Option<(OwnedFd, Meta)> {
        match self.dir_handle().map_err(Unusable::Open).and_then(|dir| {
            // The handle is used for many files, and cannot be closed meanwhile.
            open_file(&self.context.dirs, &*dir, self.name)
        }) {
            Ok(opened) => Some(opened),
            Err(Unusable::Open(errno)) => {
                self.note_missing(errno);
                None
            }
            Err(Unusable::Type(other)) => {
                self.note(NoteKind::Changed, format!("it became {other} and was left out"));
                None
            }
        }
    }

    fn fill_file(&mut self, out: &mut [u8]) -> Option<LaidOut> {
        let planned = &self.place.meta;
        let (fd, now) = self.open()?;
        // What the walk saw is history: if there is room for what is there now, that is what goes.
        let mut meta = now;
        let taken = self.extras_now(&fd, &now);
        if now.size > out.len() as u64
            && let Some(map) = self.find_holes(&fd, &now)
        {
            self.scratch.entry.extras = taken.extras.clone();
            if self.packed_len(&map, &now) <= out.len() as u64 {
                taken.troubles.into_iter().for_each(|trouble| self.note(trouble.kind, trouble.detail));
                return self.lay_out_packed(&fd, &map, &now, out);
            }
        }
        let mut header_len = self.set_meta(&meta, taken.extras.clone());
        let mut cut = false;
        if header_len as u64 + padded(meta.size) > out.len() as u64 {
            cut = true;
            meta = *planned;
            header_len = self.set_meta(&meta, self.place.extras.clone());
        }
        let replaced = now.inode != planned.inode;
        if header_len as u64 + padded(meta.size) > out.len() as u64 || (cut && replaced) {
            self.note(NoteKind::Changed, "another file took its place and was left out");
            return None;
        }
        let size = meta.size as usize;
        let got = match self.read(&fd, &mut out[header_len..], size) {
            Ok(got) => got,
            Err(errno) => {
                self.note_missing(errno);
                return None;
            }
        };
        for trouble in taken.troubles {
            self.note(trouble.kind, trouble.detail);
        }
        if replaced {
            self.note(NoteKind::Changed, "another file took its place; that one was sent");
            if planned.links > 1 {
                self.context.fates.fail(planned.inode);
            }
        } else if cut || got.more {
            self.note(NoteKind::Changed, format!("it grew while it was read; {} bytes were sent", got.len));
        } else if got.len < size {
            self.note(NoteKind::Changed, format!("it became shorter while it was read; {} bytes were sent", got.len));
        }
        if let Some(laid_out) = self.pack(&fd, &meta, header_len, got.len, out) {
            return Some(laid_out);
        }
        self.scratch.entry.kind = EntryKind::File { size: got.len as u64 };
        let written = write_header(&self.scratch.entry, out);
        debug_assert_eq!(written, header_len);
        let end = header_len + got.len;
        let padding = padding(got.len as u64);
        out[end..end + padding].fill(0);
        Some(LaidOut { len: end + padding, content: got.len as u64 })
    }

    /// What else the file has. What the walk took still is true if nothing was changed since.
    fn extras_now(&mut self, fd: &OwnedFd, now: &Meta) -> Taken {
        if now.is_as_at(&self.place.meta) {
            return Taken { extras: self.place.extras.clone(), troubles: Vec::new() };
        }
        self.context.asker.take(At::Open(fd.as_fd()), now, &mut self.scratch.answers)
    }

    /// A file with holes that was planned with its map and data.
    fn fill_packed(&mut self, planned: Arc<SparseMap>, out: &mut [u8]) -> Option<LaidOut> {
        let (fd, now) = self.open()?;
        let before = &self.place.meta;
        let replaced = now.inode != before.inode;
        let mut map = planned;
        let taken = self.extras_now(&fd, &now);
        self.scratch.entry.extras = taken.extras;
        if self.packed_len(&map, &now) > out.len() as u64 && !replaced {
            self.scratch.entry.extras = self.place.extras.clone();
        }
        if replaced || (now.size, now.mtime) != (before.size, before.mtime) {
            // What is there now goes, if it has room; otherwise what was planned of the same file.
            match self.find_holes(&fd, &now).filter(|map| self.packed_len(map, &now) <= out.len() as u64) {
                Some(found) => map = Arc::new(found),
                None if replaced => {
                    self.note(NoteKind::Changed, "another file took its place and was left out");
                    return None;
                }
                None => self.note(NoteKind::Changed, "it was written to before it was read"),
            }
        }
        if replaced {
            self.note(NoteKind::Changed, "another file took its place; that one was sent");
            if before.links > 1 {
                self.context.fates.fail(before.inode);
            }
        }
        taken.troubles.into_iter().for_each(|trouble| self.note(trouble.kind, trouble.detail));
        self.lay_out_packed(&fd, &map, &now, out)
    }

    /// Bytes that a file takes with its header, map and data.
    fn packed_len(&mut self, map: &SparseMap, meta: &Meta) -> u64 {
        let entry = &mut self.scratch.entry;
        meta.describe(entry);
        entry.kind = EntryKind::Sparse { size: map.size(), packed: map.packed_len() };
        header_len(entry) as u64 + padded(map.packed_len())
    }

    fn find_holes(&self, fd: &OwnedFd, meta: &Meta) -> Option<SparseMap> {
        self.context.holes?.map(fd, meta)
    }

    /// Header, map, and the data as it is now; there is room for them.
    fn lay_out_packed(&mut self, fd: &OwnedFd, map: &SparseMap, meta: &Meta, out: &mut [u8]) -> Option<LaidOut> {
        let len = self.packed_len(map, meta) as usize;
        let mut at = write_header(&self.scratch.entry, out);
        if self.context.rehearse {
            return Some(LaidOut { len, content: map.data_len() });
        }
        at += map.writer().write(&mut out[at..at + map.map_len() as usize]);
        let mut bad = Bad::default();
        let mut end = None;
        for extent in map.extents() {
            let read = &mut out[at..at + extent.len as usize];
            let got = read_at(|buf, at| rustix::io::pread(fd, buf, at), read, extent.offset, &mut bad);
            if got < read.len() {
                read[got..].fill(0);
                end = end.or(Some(extent.offset + got as u64));
            }
            at += read.len();
        }
        out[at..len].fill(0);
        if !bad.is_empty() {
            self.note(NoteKind::ReadError, bad.describe());
        }
        if let Some(end) = end {
            let size = map.size();
            let detail = format!("it became shorter while it was read: {end} of {size} bytes, the rest is zeros");
            self.note(NoteKind::Shrank, detail);
        } else if let Ok(after) = rustix::fs::fstat(fd).map(|stat| Meta::of(&stat))
            && (after.size != map.size() || after.mtime != meta.mtime)
        {
            self.note(NoteKind::Changed, "it was written to while it was read");
        }
        Some(LaidOut { len, content: map.data_len() })
    }

    /// A small file was read, `len` bytes behind a header of `header_len`: lay it out without its holes, if it has any.
    fn pack(&mut self, fd: &OwnedFd, meta: &Meta, header_len: usize, len: usize, out: &mut [u8]) -> Option<LaidOut> {
        let holes = self.context.holes?;
        if !Holes::may_be_in(meta) || len as u64 != meta.size {
            return None;
        }
        let map = holes.map_read(fd, &out[header_len..header_len + len])?;
        let packed_len = self.packed_len(&map, meta) as usize;
        let lead = packed_len - padding(map.packed_len()) - map.data_len() as usize;
        // The data moves by less than a hole, so that none is written over before it has moved.
        if packed_len > out.len() || lead > header_len + HOLE_LEN_MIN as usize {
            return None;
        }
        let mut at = lead;
        for extent in map.extents() {
            let start = header_len + extent.offset as usize;
            out.copy_within(start..start + extent.len as usize, at);
            at += extent.len as usize;
        }
        out[at..packed_len].fill(0);
        let header_len = write_header(&self.scratch.entry, out);
        map.writer().write(&mut out[header_len..lead]);
        Some(LaidOut { len: packed_len, content: map.data_len() })
    }

    /// The header's length if the file is as `meta` says.
    fn set_meta(&mut self, meta: &Meta, extras: Option<Arc<Extras>>) -> usize {
        let entry = &mut self.scratch.entry;
        meta.describe(entry);
        entry.extras = extras;
        entry.kind = EntryKind::File { size: meta.size };
        if *meta == self.place.meta && self.place.what == What::File {
            return self.place.header_len as usize;
        }
        header_len(entry)
    }

    /// Read `size` bytes to the start of `out`, and see whether there are more.
    fn read(&mut self, fd: &OwnedFd, out: &mut [u8], size: usize) -> Result<Got, Errno> {
        if self.context.rehearse {
            return Ok(Got { len: size, more: false });
        }
        // Some file systems announce no size and have content all the same: there, read what fits.
        let most = if size == 0 { out.len() / 512 * 512 } else { size };
        let mut len = 0;
        let mut begun = false;
        while len < most || !begun {
            begun = true;
            let mut more = [0];
            let mut bufs = [IoSliceMut::new(&mut out[len..most]), IoSliceMut::new(&mut more)];
            match rustix::io::readv(fd, &mut bufs) {
                Ok(0) => return Ok(Got { len, more: false }),
                Ok(n) if n > most - len => return Ok(Got { len: most, more: true }),
                Ok(n) => len += n,
                Err(Errno::INTR) => {}
                Err(errno) if is_vanished(errno) => return Err(errno),
                Err(_) => {
                    let mut bad = Bad::default();
                    len += read_at(|buf, at| rustix::io::pread(fd, buf, at), &mut out[len..most], len as u64, &mut bad);
                    if !bad.is_empty() {
                        self.note(NoteKind::ReadError, bad.describe());
                    }
                    return Ok(Got { len, more: false });
                }
            }
        }
        Ok(Got { len, more: false })
    }

    fn dir_handle(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        match &self.scratch.dir {
            Some((dir, fd)) if Arc::ptr_eq(dir, &self.place.dir) => Ok(fd.clone()),
            _ => {
                let fd = self.context.dirs.get(&self.place.dir)?;
                self.scratch.dir = Some((self.place.dir.clone(), fd.clone()));
                Ok(fd)
            }
        }
    }

    fn note(&self, kind: NoteKind, detail: impl Into<String>) {
        self.context.notes.add(kind, &self.scratch.entry.path, detail);
    }

    fn note_missing(&self, errno: Errno) {
        let Context { dirs, notes, .. } = self.context;
        note_missing(dirs, notes, Some(&self.place.dir), &self.scratch.entry.path, errno);
    }
}

struct Got {
    len: usize,
    /// Whether the file went on.
    more: bool,
}

/// Bytes of content with its padding.
fn padded(size: u64) -> u64 {
    size.saturating_add(padding(size) as u64)
}
