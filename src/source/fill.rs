//! The fill (parallel): one planned chunk gets its content. For a small file: open, fstat, one read, close; no more
//! calls, and no allocation, unless it was changed since the walk saw it ([`super::lay_out`]).
//!
//! Nothing here fails: an entry that cannot be read is left out of its chunk, which touches no other entry, and noted.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::Sender;
use rustix::fs::FileType;

use super::dirs::{Dir, Dirs};
use super::extras::{Answers, Asker};
use super::holes::Holes;
use super::large::{LargeFile, Piece};
use super::lay_out::Filler;
use super::links::Fates;
use super::meta::Meta;
use super::notes::NoteSink;
use super::record::ChunkLines;
use crate::archive::{END, Entry, EntryKind, Extras, MapReader, SparseMap, Timestamp, header_len, padding};
use crate::chunk::{Buf, ChunkKind, SparseHasher};
use crate::ids::{Digest, Seq};
use crate::limits::CHUNK_LEN;
use crate::options::Keep;
use crate::report::{Rehearsed, Tell};
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
    pub(super) entry: Entry,
    /// The directory of the last entry and its handle.
    pub(super) dir: Option<(Arc<Dir>, Arc<OwnedFd>)>,
    pub(super) answers: Answers,
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
