//! The plan (sequential): which entries share a chunk, and the slices of large files. Every chunk gets its number and
//! its buffer here, in order; waiting for a buffer is what holds the source back.
//!
//! The layout is decided by sizes as the walk saw them, exact to the byte. When a chunk is filled an entry may turn out
//! smaller, or be left out, and the chunk is shorter; it never needs more than was planned.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crossbeam_channel::Sender;
use rustix::fs::FileType;

use super::dirs::Dir;
use super::extras::{Answers, At, Taken};
use super::fill::{Context, Done, Job, Mixed, Place, Planned, What};
use super::large::{LargeFile, Piece, Unusable, open_file};
use super::links::Links;
use super::meta::{Meta, type_name};
use super::walk::{Step, note_missing};
use crate::archive::{END, Entry, EntryKind, Extras, SparseMap, header_len, padding};
use crate::chunk::{Buf, Pool};
use crate::ids::Seq;
use crate::limits::{CHUNK_LEN, LARGE_FILE_LEN};
use crate::queue;
use crate::report::NoteKind;
use crate::stats::{Lap, Stopwatch};

/// Nobody wants more chunks: the session is over.
pub(super) struct Stopped;

/// Numbers chunks, finds their buffers and hands them to the workers.
pub(super) struct Emitter {
    pub pool: Arc<Pool>,
    pub out: Sender<Planned>,
    pub context: Arc<Context>,
    pub next: Seq,
    /// Each planned chunk holds one, so that whoever has the other end sees when all are done.
    pub alive: Sender<std::convert::Infallible>,
    pub lap: Lap,
    pub watch: Arc<Stopwatch>,
}

impl Emitter {
    pub fn emit(&mut self, job: Job) -> Result<(), Stopped> {
        if self.context.gone.get().is_some() {
            return Err(Stopped);
        }
        self.lap.book(&self.watch.busy);
        let buf = self.buffer()?;
        self.emit_in(job, buf)
    }

    /// The buffer of the next chunk, as soon as there is one.
    pub fn buffer(&mut self) -> Result<Buf, Stopped> {
        let buf = self.pool.take();
        self.lap.book(&self.watch.wait_out);
        buf.ok_or(Stopped)
    }

    pub fn emit_in(&mut self, job: Job, buf: Buf) -> Result<(), Stopped> {
        let done = Done::new(self.next, self.context.clone(), self.alive.clone());
        self.next = self.next.next();
        let sent = queue::put(&self.out, Planned::new(buf, job, done)).map_err(|_| Stopped);
        self.lap.book(&self.watch.wait_out);
        sent
    }

    /// All slices of a file.
    pub fn emit_slices(&mut self, file: LargeFile) -> Result<(), Stopped> {
        let slices = file.slices();
        let file = Arc::new(file);
        (0..slices).try_for_each(|index| self.emit(Job::Slice { file: file.clone(), index }))
    }

    /// The map of a file with holes, then its data.
    fn emit_pieces(&mut self, file: LargeFile, map: &Arc<SparseMap>) -> Result<(), Stopped> {
        let mut writer = map.writer();
        while writer.left() > 0 {
            let mut buf = self.buffer()?;
            let len = writer.write(&mut buf[..CHUNK_LEN]);
            self.emit_in(Job::Map { len }, buf)?;
        }
        let file = Arc::new(file.without_holes(map.clone()));
        Piece::all(map).try_for_each(|piece| self.emit(Job::Piece { file: file.clone(), piece }))
    }
}

/// Lays entries out in chunks.
pub(super) struct Planner {
    emitter: Emitter,
    links: Links,
    /// The chunk that is being planned; its number is the emitter's next.
    mixed: Mixed,
    /// Bytes planned in it.
    len: usize,
    /// The entry at hand, kept for its memory. A hard link's extras are its first name's.
    entry: Entry,
    extras: Option<Arc<Extras>>,
    answers: Answers,
}

impl Planner {
    pub fn new(emitter: Emitter) -> Planner {
        let entry = super::fill::blank_entry();
        Planner {
            emitter,
            links: Links::default(),
            mixed: Mixed::default(),
            len: 0,
            entry,
            extras: None,
            answers: Answers::default(),
        }
    }

    /// Plan the next entry of the walk.
    pub fn add(&mut self, step: &Step<'_>) -> Result<(), Stopped> {
        self.entry.path.clear();
        self.entry.path.extend_from_slice(step.path);
        step.meta.describe(&mut self.entry);
        let what = match step.meta.file_type {
            FileType::RegularFile => What::File,
            FileType::Directory => What::Directory,
            FileType::Symlink => What::Symlink,
            FileType::Fifo => What::Fifo,
            FileType::CharacterDevice | FileType::BlockDevice => What::Device,
            FileType::Socket => {
                self.note(NoteKind::Socket, "");
                return Ok(());
            }
            other => {
                self.note(
                    NoteKind::NotCarried,
                    format!("it is {}, which this version does not send", type_name(other)),
                );
                return Ok(());
            }
        };
        self.entry.kind = match what {
            What::Directory => EntryKind::Directory,
            What::Symlink => EntryKind::Symlink { target: step.target.to_vec() },
            What::Fifo => EntryKind::Fifo,
            What::Device => step.meta.device(),
            _ => EntryKind::File { size: step.meta.size },
        };
        self.entry.extras = None;
        if let Err(err) = self.entry.check() {
            self.note(NoteKind::NotCarried, err.to_string());
            return Ok(());
        }
        self.set_extras(step.taken);
        let linked = step.meta.links > 1 && what != What::Directory;
        if linked && self.add_link(step)? {
            return Ok(());
        }
        let chunk = match what {
            What::File if !fits_one_chunk(&self.entry) => match self.add_named_large(step)? {
                Some(chunk) => chunk,
                None => return Ok(()),
            },
            What::File => {
                self.place(what, step.dir, step.name, step.meta, b"")?;
                Some(self.emitter.next)
            }
            _ => {
                self.place(what, step.dir, step.name, step.meta, step.target)?;
                None
            }
        };
        if linked {
            self.links.first(step.meta.inode, step.meta.links, step.dir, step.name.to_bytes(), chunk);
        }
        Ok(())
    }

    /// Plan a hard link if an earlier name of the inode is, or will be, in the stream.
    fn add_link(&mut self, step: &Step<'_>) -> Result<bool, Stopped> {
        let inode = step.meta.inode;
        let mut target = Vec::new();
        if self.links.find(inode, &mut target).is_none() {
            return Ok(false);
        }
        let own = std::mem::replace(&mut self.entry.kind, EntryKind::Hardlink { target: target.clone() });
        self.entry.extras = None;
        // Make room first: it decides whether both names are in one chunk.
        self.make_room(header_len(&self.entry))?;
        let is_sent = match self.links.find(inode, &mut Vec::new()).flatten() {
            Some(seq) if seq != self.emitter.next => self.emitter.context.fates.is_sent(seq, inode),
            _ => true,
        };
        if !is_sent {
            self.links.forget(inode);
            self.entry.kind = own;
            self.entry.extras = self.extras.clone();
            return Ok(false);
        }
        self.place(What::Hardlink, step.dir, step.name, step.meta, &target)?;
        self.links.again(inode);
        if step.meta.file_type == FileType::RegularFile {
            // The walk counted the content with every name.
            self.emitter.context.stats.bytes_found.fetch_sub(step.meta.size, Relaxed);
        }
        Ok(true)
    }

    /// Open and plan a large file of the walk. Returns the chunk in which it may yet have to be left out, if there is
    /// one; nothing if it could not be opened, or is another one by now.
    fn add_named_large(&mut self, step: &Step<'_>) -> Result<Option<Option<Seq>>, Stopped> {
        let context = self.emitter.context.clone();
        let opened = match context.dirs.get(step.dir) {
            Ok(dir) => open_file(&context.dirs, &dir, step.name),
            Err(errno) => Err(Unusable::Open(errno)),
        };
        let (fd, meta) = match opened {
            Ok(opened) => opened,
            Err(Unusable::Open(errno)) => {
                note_missing(&context.dirs, &context.notes, Some(step.dir), step.path, errno);
                return Ok(None);
            }
            Err(Unusable::Type(other)) => {
                self.note(NoteKind::Changed, format!("it became {other} and was left out"));
                return Ok(None);
            }
        };
        if meta.inode != step.meta.inode {
            self.note(NoteKind::Changed, "another file took its place; that one was sent");
        }
        let file = LargeFile::new(fd, step.path, meta);
        if !meta.is_as_at(&step.meta) {
            self.take_extras(&file);
        }
        let mut chunk = None;
        match self.find_holes(&file) {
            Some(map) if self.fits_one_chunk_packed(&map) => {
                meta.describe(&mut self.entry);
                self.place(What::Packed(Arc::new(map)), step.dir, step.name, meta, b"")?;
                chunk = Some(self.emitter.next);
            }
            Some(map) => self.add_pieces(file, map, step.dir, step.name)?,
            None => self.add_large(file, step.dir, step.name)?,
        }
        Ok((meta.inode == step.meta.inode).then_some(chunk))
    }

    /// Plan the transfer's only source, a file that is open already.
    pub fn add_file_source(&mut self, file: LargeFile, name: &CStr) -> Result<(), Stopped> {
        self.entry.path = name.to_bytes().to_vec();
        self.take_extras(&file);
        match self.find_holes(&file) {
            Some(map) => self.add_pieces(file, map, &Dir::nowhere(), name),
            None => self.add_large(file, &Dir::nowhere(), name),
        }
    }

    /// Where an open file has holes, if they are looked for. They are not waited for, so they are no part of what there
    /// is to do.
    fn find_holes(&self, file: &LargeFile) -> Option<SparseMap> {
        let map = file.find_holes(self.emitter.context.holes?)?;
        let holes = map.size() - map.data_len();
        let found = &self.emitter.context.stats.bytes_found;
        let _ = found.fetch_update(Relaxed, Relaxed, |bytes| Some(bytes.saturating_sub(holes)));
        Some(map)
    }

    /// What else an open file has.
    fn take_extras(&mut self, file: &LargeFile) {
        let taken = self.emitter.context.asker.take(At::Open(file.fd()), file.meta(), &mut self.answers);
        self.set_extras(&taken);
    }

    /// What else the entry at hand has, as far as its header has room.
    fn set_extras(&mut self, taken: &Taken) {
        for trouble in &taken.troubles {
            self.note(trouble.kind, &trouble.detail);
        }
        self.entry.extras = taken.extras.clone();
        if self.entry.extras.is_some() && self.entry.check().is_err() {
            self.entry.extras = None;
            self.note(NoteKind::Xattr, "there is no room for all its attributes and so long a path; none was sent");
        }
        self.extras = self.entry.extras.clone();
    }

    /// Plan an open file: header, slices, and its padding at the start of the next chunk.
    fn add_large(&mut self, file: LargeFile, dir: &Arc<Dir>, name: &CStr) -> Result<(), Stopped> {
        let meta = *file.meta();
        meta.describe(&mut self.entry);
        self.entry.kind = EntryKind::File { size: meta.size };
        self.place(What::Large, dir, name, meta, b"")?;
        if file.slices() == 0 {
            return Ok(());
        }
        self.flush()?;
        self.mixed.lead = padding(meta.size);
        self.len = self.mixed.lead;
        self.emitter.emit_slices(file)
    }

    /// Plan an open file with holes that does not fit one chunk: header, map, data, and its padding at the start of the
    /// next chunk.
    fn add_pieces(&mut self, file: LargeFile, map: SparseMap, dir: &Arc<Dir>, name: &CStr) -> Result<(), Stopped> {
        let meta = *file.meta();
        let map = Arc::new(map);
        meta.describe(&mut self.entry);
        self.entry.kind = EntryKind::Sparse { size: map.size(), packed: map.packed_len() };
        self.place(What::Pieces(map.clone()), dir, name, meta, b"")?;
        self.flush()?;
        self.mixed.lead = padding(map.packed_len());
        self.len = self.mixed.lead;
        self.emitter.emit_pieces(file, &map)
    }

    /// Whether header, map and data of the file at hand fit one chunk.
    fn fits_one_chunk_packed(&mut self, map: &SparseMap) -> bool {
        self.entry.kind = EntryKind::Sparse { size: map.size(), packed: map.packed_len() };
        fits_chunk(&self.entry)
    }

    /// Give `self.entry` a place in the current chunk, or in the next if it has no room.
    fn place(&mut self, what: What, dir: &Arc<Dir>, name: &CStr, meta: Meta, text: &[u8]) -> Result<(), Stopped> {
        let header_len = header_len(&self.entry);
        let content = match what {
            What::File | What::Packed(_) => self.entry.kind.content_len(),
            _ => 0,
        };
        let room = header_len + content as usize + padding(content);
        self.make_room(room)?;
        self.mixed.places.push(Place {
            what,
            dir: dir.clone(),
            meta,
            extras: self.extras.clone(),
            header_len: header_len as u32,
            room: room as u32,
            name_len: name.count_bytes() as u32 + 1,
            text_len: text.len() as u32,
        });
        self.mixed.text.extend_from_slice(name.to_bytes_with_nul());
        self.mixed.text.extend_from_slice(text);
        self.len += room;
        Ok(())
    }

    fn make_room(&mut self, room: usize) -> Result<(), Stopped> {
        if self.len + room > CHUNK_LEN { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        if self.len == 0 {
            return Ok(());
        }
        let places = Vec::with_capacity(self.mixed.places.len());
        let text = Vec::with_capacity(self.mixed.text.len());
        let next = Mixed { places, text, ..Mixed::default() };
        let mixed = std::mem::replace(&mut self.mixed, next);
        self.len = 0;
        self.emitter.emit(Job::Mixed(mixed))
    }

    /// End the archive; returns the number of chunks.
    pub fn finish(mut self) -> Result<Emitter, Stopped> {
        self.make_room(END.len())?;
        self.mixed.end = true;
        self.len += END.len();
        self.flush()?;
        Ok(self.emitter)
    }

    fn note(&self, kind: NoteKind, detail: impl Into<String>) {
        self.emitter.context.notes.add(kind, &self.entry.path, detail);
    }
}

/// Whether a file travels whole, behind its header, in one mixed chunk.
fn fits_one_chunk(entry: &Entry) -> bool {
    entry.kind.content_len() < LARGE_FILE_LEN && fits_chunk(entry)
}

/// Whether an entry's header and all that belongs to it has room in a chunk.
fn fits_chunk(entry: &Entry) -> bool {
    let size = entry.kind.content_len();
    let room = (CHUNK_LEN - header_len(entry)) as u64;
    size.checked_add(padding(size) as u64).is_some_and(|padded| padded <= room)
}
