//! The fill (parallel): one planned chunk gets its content. For a small file: open, fstat, one read, close; no more
//! calls, and no allocation, unless it was changed since the walk saw it. The header is written after that, from what was found, so it is true.
//!
//! Nothing here fails: an entry that cannot be read is left out of its chunk, which touches no other entry, and noted.

use std::ffi::CStr;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::Sender;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::dirs::{Dir, Dirs, is_vanished};
use super::extras::{Answers, Asker, At, Taken};
use super::holes::Holes;
use super::large::{LargeFile, Piece, Unusable, open_file};
use super::links::Fates;
use super::meta::Meta;
use super::notes::NoteSink;
use super::read::{Bad, read_at};
use super::record::ChunkLines;
use super::walk::note_missing;
use crate::archive::{
    END, Entry, EntryKind, Extras, MapReader, SparseMap, Timestamp, header_len, padding, write_header,
};
use crate::chunk::{Buf, ChunkKind, SparseHasher};
use crate::ids::{Digest, Seq};
use crate::limits::{CHUNK_LEN, HOLE_LEN_MIN};
use crate::options::Keep;
use crate::report::{NoteKind, Rehearsed, Tell};
use crate::stats::Stats;

/// What all chunks of one source share.
pub(super) struct Context {
    pub dirs: Arc<Dirs>,
    pub asker: Arc<Asker>,
    pub stats: Arc<Stats>,
    pub notes: Arc<NoteSink>,
    pub fates: Fates,
    pub tally: Tally,
    /// Whether a manifest is written.
    pub record: bool,
    /// The path of a device that went away while it was read: nothing more is worth sending.
    pub gone: OnceLock<PathBuf>,
    /// Files are opened as they would be, and not read: their content is whatever is in the buffer.
    pub rehearse: bool,
    /// Who hears of every entry that is laid out.
    pub tell: Option<Tell>,
    /// How holes are found, if they are looked for.
    pub holes: Option<Holes>,
}

/// What was laid out, for the sender's last word.
#[derive(Default)]
pub(super) struct Tally {
    pub entries: AtomicU64,
    pub content_bytes: AtomicU64,
    pub stream_bytes: AtomicU64,
}

impl Context {
    pub fn new(stats: Arc<Stats>, notes: Arc<NoteSink>, keep: Keep) -> Context {
        let (dirs, asker) = (Arc::new(Dirs::new()), Arc::new(Asker::new(keep)));
        let (fates, tally, gone, tell) = (Fates::default(), Tally::default(), OnceLock::new(), notes.teller());
        Context { dirs, asker, stats, notes, fates, tally, record: false, gone, rehearse: false, tell, holes: None }
    }

    pub fn count(&self, entries: u64, content: u64, stream: usize) {
        self.tally.entries.fetch_add(entries, Relaxed);
        self.tally.content_bytes.fetch_add(content, Relaxed);
        self.tally.stream_bytes.fetch_add(stream as u64, Relaxed);
        self.stats.entries_done.fetch_add(entries, Relaxed);
        self.stats.content_done.fetch_add(content, Relaxed);
    }
}

/// A chunk with its number and buffer, to be filled by any worker.
pub struct Planned {
    buf: Buf,
    job: Job,
    done: Done,
}

/// What a chunk will hold.
pub(super) enum Job {
    Mixed(Mixed),
    Slice {
        file: Arc<LargeFile>,
        index: u64,
    },
    /// A part of a sparse file's map; it is in the buffer already.
    Map {
        len: usize,
    },
    /// A part of a sparse file's data.
    Piece {
        file: Arc<LargeFile>,
        piece: Piece,
    },
    /// It is in the buffer already.
    Read {
        offset: u64,
        sole: bool,
        len: usize,
    },
}

/// The plan of a mixed chunk.
#[derive(Default)]
pub(super) struct Mixed {
    /// Zeros before the first entry: the padding of a large file.
    pub lead: usize,
    pub places: Vec<Place>,
    /// The places' names, with their NULs, and texts.
    pub text: Vec<u8>,
    /// Whether the archive ends here.
    pub end: bool,
}

/// One entry's place in a mixed chunk.
pub(super) struct Place {
    pub what: What,
    pub dir: Arc<Dir>,
    pub meta: Meta,
    pub extras: Option<Arc<Extras>>,
    pub header_len: u32,
    /// Bytes planned for header, content and padding.
    pub room: u32,
    pub name_len: u32,
    pub text_len: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    File,
    /// A file with holes, with its map and data.
    Packed(Arc<SparseMap>),
    /// The header of a file with holes whose map and data are in chunks of their own.
    Pieces(Arc<SparseMap>),
    /// The header of a file whose content is in data chunks.
    Large,
    Directory,
    /// The text is the target.
    Symlink,
    /// The text is the path of the first name.
    Hardlink,
    Fifo,
    Device,
}

/// Says, when it is dropped, that a chunk is filled or given up.
pub(super) struct Done {
    seq: Seq,
    context: Arc<Context>,
    _alive: Sender<std::convert::Infallible>,
}

impl Done {
    pub fn new(seq: Seq, context: Arc<Context>, alive: Sender<std::convert::Infallible>) -> Done {
        Done { seq, context, _alive: alive }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.context.fates.filled(self.seq);
    }
}

/// A chunk's content, at the start of `buf`.
pub struct Filled {
    /// Its place in the stream.
    pub seq: Seq,
    /// What its content is.
    pub kind: ChunkKind,
    /// Bytes of content. A mixed chunk is empty if all its entries had to be left out.
    pub len: usize,
    /// Where the content is.
    pub buf: Buf,
    /// What a mixed chunk adds to the manifest, if there is one.
    pub lines: Option<Box<ChunkLines>>,
}

/// Memory that a worker keeps from one chunk to the next.
pub struct FillScratch {
    entry: Entry,
    /// The directory of the last entry and its handle.
    dir: Option<(Arc<Dir>, Arc<OwnedFd>)>,
    answers: Answers,
}

impl Default for FillScratch {
    fn default() -> FillScratch {
        FillScratch { entry: blank_entry(), dir: None, answers: Answers::default() }
    }
}

pub(super) fn blank_entry() -> Entry {
    let mtime = Timestamp { secs: 0, nanos: 0 };
    Entry { path: Vec::new(), kind: EntryKind::Directory, mode: 0, uid: 0, gid: 0, mtime, extras: None }
}

impl Planned {
    pub(super) fn new(buf: Buf, job: Job, done: Done) -> Planned {
        Planned { buf, job, done }
    }

    /// Its place in the stream.
    pub fn seq(&self) -> Seq {
        self.done.seq
    }

    /// Read what it holds. Problems become notes.
    pub fn fill(self, scratch: &mut FillScratch) -> Filled {
        let Planned { mut buf, job, done } = self;
        let context = &*done.context;
        let mut lines = None;
        let (kind, len) = match job {
            Job::Read { offset, sole, len } => {
                context.count(0, len as u64, len);
                (ChunkKind::Data { offset, sole }, len)
            }
            Job::Slice { file, index } => {
                let (kind, len) = match context.rehearse {
                    true => file.slice(index),
                    false => file.fill(index, &mut buf, &context.notes),
                };
                context.count(0, len as u64, len);
                if let Some(path) = file.gone() {
                    let _ = context.gone.set(path.to_owned());
                }
                (kind, len)
            }
            Job::Map { len } => {
                context.count(0, 0, len);
                (ChunkKind::Mixed, len)
            }
            Job::Piece { file, piece } => {
                lines = context.record.then(Box::<ChunkLines>::default);
                let subtrees = lines.as_mut().map(|lines| &mut lines.subtrees);
                if !context.rehearse {
                    file.fill_piece(&piece, &mut buf, &context.notes, subtrees);
                }
                context.count(0, piece.len as u64, piece.len);
                (ChunkKind::Mixed, piece.len)
            }
            Job::Mixed(mixed) => {
                lines = context.record.then(Box::default);
                let len = fill_mixed(&mixed, &mut buf[..CHUNK_LEN], context, scratch, lines.as_deref_mut());
                (ChunkKind::Mixed, len)
            }
        };
        Filled { seq: done.seq, kind, len, buf, lines }
    }
}

fn fill_mixed(
    mixed: &Mixed,
    buf: &mut [u8],
    context: &Context,
    scratch: &mut FillScratch,
    mut lines: Option<&mut ChunkLines>,
) -> usize {
    let end_len = if mixed.end { END.len() } else { 0 };
    let mut reserved = end_len + mixed.places.iter().map(|place| place.room as usize).sum::<usize>();
    let mut at = mixed.lead;
    buf[..at].fill(0);
    let (mut entries, mut content) = (0, 0);
    let mut text = &mixed.text[..];
    for place in &mixed.places {
        let name;
        let extra;
        (name, text) = text.split_at(place.name_len as usize);
        (extra, text) = text.split_at(place.text_len as usize);
        reserved -= place.room as usize;
        // What others left free is there for who needs more than was planned.
        let room = buf.len() - reserved;
        let name = CStr::from_bytes_with_nul(name).expect("names are planned with their NUL");
        let mut filler = Filler { place, name, text: extra, context, scratch };
        match filler.fill(&mut buf[at..room]) {
            Some(laid_out) => {
                if let Some(lines) = &mut lines {
                    record(lines, place, &scratch.entry, &buf[at..at + laid_out.len], laid_out.content);
                }
                if let Some(tell) = &context.tell {
                    let Entry { path, kind, .. } = &scratch.entry;
                    tell(Rehearsed::Goes { path, directory: kind.is_directory() });
                }
                at += laid_out.len;
                entries += 1;
                content += laid_out.content;
            }
            None if place.meta.links > 1 && place.what != What::Directory => context.fates.fail(place.meta.inode),
            None => {}
        }
    }
    scratch.dir = None;
    buf[at..at + end_len].fill(0);
    at += end_len;
    context.count(entries, content, at);
    at
}

/// Note an entry's line for the manifest; `laid_out` is its header, content and padding.
fn record(lines: &mut ChunkLines, place: &Place, entry: &Entry, laid_out: &[u8], content: u64) {
    match &entry.kind {
        EntryKind::File { size } if place.what == What::Large && *size > 0 => {
            lines.large = Some((entry.path.clone(), *size));
        }
        EntryKind::Sparse { size, .. }
            if let What::Pieces(map) = &place.what
                && map.data_len() > 0 =>
        {
            lines.large = Some((entry.path.clone(), *size));
        }
        // Nothing of it follows but its map.
        EntryKind::Sparse { size, .. } if matches!(place.what, What::Pieces(_)) => {
            let mut hasher = SparseHasher::new(*size);
            hasher.zeros(*size);
            lines.lines.file(hasher.finish().expect("all of it was added"), &entry.path);
        }
        EntryKind::Sparse { size, .. } => {
            let packed = &laid_out[header_len(entry)..];
            lines.lines.file(packed_digest(packed, *size), &entry.path);
        }
        EntryKind::File { .. } => {
            let end = laid_out.len() - padding(content);
            let hash = blake3::hash(&laid_out[end - content as usize..end]);
            lines.lines.file(Digest(hash.into()), &entry.path);
        }
        EntryKind::Hardlink { target } if place.meta.file_type == FileType::RegularFile => {
            lines.lines.link(&entry.path, target);
        }
        _ => {}
    }
}

/// The digest of a file of `size` bytes of which `packed` is map and data.
fn packed_digest(packed: &[u8], size: u64) -> Digest {
    let mut reader = MapReader::new();
    let map = reader.push(packed).and_then(|_| reader.into_map(size)).expect("we have just written it");
    let (mut hasher, mut hashed) = (SparseHasher::new(size), 0);
    let mut data = &packed[map.map_len() as usize..];
    for extent in map.extents() {
        hasher.zeros(extent.offset - hashed);
        let (now, rest) = data.split_at(extent.len as usize);
        hasher.update(now);
        (data, hashed) = (rest, extent.end());
    }
    hasher.zeros(size - hashed);
    hasher.finish().expect("all of it was added")
}

/// Bytes laid out, and those of content among them.
struct LaidOut {
    len: usize,
    content: u64,
}

/// One entry being laid out.
struct Filler<'a> {
    place: &'a Place,
    name: &'a CStr,
    text: &'a [u8],
    context: &'a Context,
    scratch: &'a mut FillScratch,
}

impl Filler<'_> {
    /// Lay the entry out at the start of `out`. `None` leaves it out; a note has been made.
    fn fill(&mut self, out: &mut [u8]) -> Option<LaidOut> {
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
