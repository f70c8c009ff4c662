//! Archive to write jobs, in order: the first step, sequential. It copies no content; a job names its part of the
//! chunk, and the chunk lives until the last of its jobs is done.
//!
//! Of two entries with one path the later is named and left out, except that a directory is made at once and so comes
//! before a file that is still queued. No sender of ours writes such an archive, and nothing is replaced either way.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::io::Errno;

use super::inlet::{Inlet, Next};
use super::jail::{Devices, Dir, Jail, shown};
use super::writer::{self, Job, TempNames, What, Work};
use super::{Failure, Shared, SinkEnd, Stopped, owners};
use crate::archive::{self, ArchiveError, Entry, EntryKind, MapReader, Parser, SparseMap};
use crate::chunk::{Chunk, ChunkKind};
use crate::limits::CHUNK_LEN;
use crate::queue::{self, Putter};
use crate::report::NoteKind;
use crate::stats::{Lap, Stage, timed};

/// Pieces of work that wait for one writer. Who has more is far behind, and then the others need not be fed.
const QUEUE_LEN: usize = 256;

/// Unpack everything that comes below the jail's root, with `workers` writers.
pub(super) fn run(mut inlet: Inlet, jail: Jail, workers: usize, shared: &Arc<Shared>) -> Result<SinkEnd, Stopped> {
    let temp_names = TempNames::new();
    let unpacked = std::thread::scope(|scope| {
        let mut writers = Vec::with_capacity(workers);
        for number in 0..workers.max(1) {
            let (queue, work) = queue::bounded(QUEUE_LEN);
            writers.push(queue);
            let temp_names = &temp_names;
            let body = move || shared.guard(|| writer::run(work, shared, temp_names));
            let thread = std::thread::Builder::new().name(format!("write-{number}"));
            if thread.spawn_scoped(scope, body).is_err() {
                return Err(shared.fail(Failure::Destination("cannot start a writer thread".into(), Errno::AGAIN)));
            }
        }
        let unpack = Unpack::new(jail, writers, shared);
        shared.guard(|| unpack.all(&mut inlet)).unwrap_or(Err(Stopped))
    });
    // Every job is done, so the root is the last directory that is not finished.
    let (root, devices, counts) = match unpacked {
        Ok(unpacked) if !shared.stopping() => unpacked,
        _ => return Err(inlet.drain()),
    };
    drop(root);
    counts.check(shared)?;
    let (synced, time) = timed(|| devices.sync(shared));
    shared.stats.watch(Stage::Sync).busy.add(time);
    synced?;
    let (entries, content_bytes) = (shared.entries.load(Relaxed), shared.content_bytes.load(Relaxed));
    Ok(SinkEnd { entries, content_bytes, notes: shared.take_notes(), ..SinkEnd::default() })
}

/// Where in the archive the next chunk begins.
enum At {
    /// At a header, or at the archive's end.
    Header,
    /// Inside a large file, whose writer has the number. It may be nobody, if the file could not be placed.
    Content { writer: Option<usize>, size: u64, offset: u64 },
    /// After the header of a sparse file, in its map.
    Map { entry: Box<Entry>, reader: MapReader },
    /// In a sparse file's data, of which so many bytes are to come; then the padding. Its writer has the number.
    Data { writer: Option<usize>, left: u64, padding: usize },
    /// After a large file, before its padding.
    Padding(usize),
}

struct Unpack<'a> {
    jail: Jail,
    writers: Vec<Putter<Work>>,
    /// Jobs of the current chunk, by writer.
    batches: Vec<Vec<Job>>,
    parser: Parser,
    at: At,
    counts: Counts,
    shared: &'a Arc<Shared>,
}

/// What arrived, to compare with what the sender says it sent.
#[derive(Default)]
struct Counts {
    chunks: u64,
    entries: u64,
    stream_bytes: u64,
    content_bytes: u64,
    finish: Option<crate::wire::Finish>,
}

impl Counts {
    fn check(&self, shared: &Shared) -> Result<(), Stopped> {
        let Some(finish) = self.finish else { return Err(Stopped) };
        shared.check("chunks", self.chunks, finish.chunks)?;
        shared.check("stream bytes", self.stream_bytes, finish.bytes)?;
        shared.check("entries", self.entries, finish.entries)?;
        shared.check("content bytes", self.content_bytes, finish.content_bytes)
    }
}

impl<'a> Unpack<'a> {
    fn new(jail: Jail, writers: Vec<Putter<Work>>, shared: &'a Arc<Shared>) -> Unpack<'a> {
        let batches = writers.iter().map(|_| Vec::new()).collect();
        let (parser, counts) = (Parser::new(), Counts::default());
        Unpack { jail, writers, batches, parser, at: At::Header, counts, shared }
    }

    /// Everything up to the last word. The writers end when their queues, which this owns, are gone.
    fn all(mut self, inlet: &mut Inlet) -> Result<(Arc<Dir>, Devices, Counts), Stopped> {
        let (mut lap, watch) = (Lap::start(), self.shared.stats.watch(Stage::Unpack));
        loop {
            let next = inlet.next(Duration::from_secs(3600));
            lap.book(&watch.wait_in);
            match next {
                Next::Quiet => {}
                Next::Abort => return Err(Stopped),
                Next::Chunk(_) if self.shared.stopping() => return Err(Stopped),
                Next::Chunk(chunk) => {
                    self.chunk(chunk)?;
                    lap.book(&watch.busy);
                }
                Next::Finish(finish) => {
                    if !(self.parser.ended() && matches!(self.at, At::Header)) {
                        return Err(self.violation("the archive has no end"));
                    }
                    self.counts.finish = Some(finish);
                    let (root, devices) = self.jail.close();
                    return Ok((root, devices, self.counts));
                }
            }
        }
    }

    fn chunk(&mut self, chunk: Chunk) -> Result<(), Stopped> {
        self.counts.chunks += 1;
        self.counts.stream_bytes += chunk.len as u64;
        self.shared.stats.stream_done.fetch_add(chunk.len as u64, Relaxed);
        match chunk.kind {
            ChunkKind::Data { offset, sole } => self.slice(chunk, offset, sole),
            ChunkKind::Mixed => {
                let chunk = Arc::new(chunk);
                self.mixed(&chunk)?;
                self.flush(&chunk);
                Ok(())
            }
        }
    }

    /// A slice of the current large file goes straight to its writer.
    fn slice(&mut self, chunk: Chunk, at: u64, sole: bool) -> Result<(), Stopped> {
        let At::Content { writer, size, offset } = &mut self.at else {
            return Err(self.violation("a slice of a file came where no file is open"));
        };
        let len = (*size - *offset).min(CHUNK_LEN as u64);
        if at != *offset || chunk.len as u64 != len || sole != (*size <= CHUNK_LEN as u64) {
            return Err(self.violation("a slice of a file is not the one that follows"));
        }
        *offset += len;
        if let Some(writer) = *writer {
            self.writers[writer].put(Work::Slice(chunk));
        }
        if *offset == *size {
            self.at = At::Padding(archive::padding(*size));
        }
        Ok(())
    }

    fn mixed(&mut self, chunk: &Arc<Chunk>) -> Result<(), Stopped> {
        let content = chunk.content();
        let mut at = match self.at {
            At::Header => 0,
            At::Padding(len) => self.padding(content, 0, len)?,
            At::Content { .. } => return Err(self.violation("a header came in the middle of a file")),
            At::Map { .. } | At::Data { .. } => return self.packed(chunk),
        };
        self.at = At::Header;
        while let Some(parsed) = self.parser.next(&content[at..]).map_err(|e| self.malformed(&e))? {
            at += parsed.header_len;
            let size = parsed.entry.kind.content_len();
            let is_sparse = matches!(parsed.entry.kind, EntryKind::Sparse { .. });
            self.counts.entries += 1;
            if is_sparse && at == content.len() {
                self.at = At::Map { entry: Box::new(parsed.entry), reader: MapReader::new() };
                return Ok(());
            }
            if !is_sparse {
                self.counts.content_bytes = self.counts.content_bytes.saturating_add(size);
            }
            if size > 0 && at == content.len() {
                let writer = self.entry(chunk, parsed.entry, What::Large { size })?;
                self.at = At::Content { writer, size, offset: 0 };
                return Ok(());
            }
            let end =
                usize::try_from(size).ok().and_then(|size| at.checked_add(size)).filter(|end| *end <= content.len());
            let Some(end) = end else {
                return Err(self.violation("a file's content does not end in its chunk"));
            };
            let what = match parsed.entry.kind {
                EntryKind::Sparse { .. } => {
                    let mut reader = MapReader::new();
                    let read = reader.push(&content[at..end]).map_err(|e| self.malformed(&e))?;
                    let map = self.map(reader, &parsed.entry)?;
                    What::Packed { map, content: at + read..end }
                }
                _ => What::Whole { content: at..end },
            };
            self.entry(chunk, parsed.entry, what)?;
            at = self.padding(content, end, archive::padding(size))?;
        }
        Ok(())
    }

    /// A chunk of a sparse file's map or data, or the end of the one and the beginning of the other.
    fn packed(&mut self, chunk: &Arc<Chunk>) -> Result<(), Stopped> {
        let content = chunk.content();
        let mut at = 0;
        if let At::Map { reader, .. } = &mut self.at {
            let read = reader.push(content);
            at = read.map_err(|e| self.malformed(&e))?;
            let At::Map { entry, reader } = std::mem::replace(&mut self.at, At::Header) else { unreachable!() };
            if !reader.is_complete() {
                if reader.len() >= entry.kind.content_len() {
                    return Err(self.malformed(&ArchiveError::SparseMap { why: "does not end in its entry" }));
                }
                self.at = At::Map { entry, reader };
                return Ok(());
            }
            let map = self.map(reader, &entry)?;
            let (left, padding) = (map.data_len(), archive::padding(map.packed_len()));
            let writer = self.entry(chunk, *entry, What::Sparse { map })?;
            self.flush(chunk);
            self.at = At::Data { writer, left, padding };
        }
        let At::Data { writer, left, padding } = &mut self.at else { unreachable!() };
        let rest = content.len() - at;
        let Some(still) = left.checked_sub(rest as u64) else {
            return Err(self.violation("a sparse file's data does not end with its chunk"));
        };
        *left = still;
        let (writer, padding) = (*writer, *padding);
        if still == 0 {
            self.at = At::Padding(padding);
        }
        if let Some(writer) = writer
            && rest > 0
        {
            self.writers[writer].put(Work::Data { chunk: chunk.clone(), part: at..content.len() });
        }
        Ok(())
    }

    /// A complete map, if it is one for that entry.
    fn map(&mut self, reader: MapReader, entry: &Entry) -> Result<Arc<SparseMap>, Stopped> {
        let EntryKind::Sparse { size, packed } = entry.kind else { unreachable!("only a sparse file has a map") };
        if !reader.is_complete() {
            return Err(self.malformed(&ArchiveError::SparseMap { why: "does not end in its entry" }));
        }
        let map = reader.into_map(size).map_err(|e| self.malformed(&e))?;
        if map.packed_len() != packed {
            return Err(
                self.malformed(&ArchiveError::SparseMap { why: "has extents for more or less data than there is" })
            );
        }
        self.counts.content_bytes = self.counts.content_bytes.saturating_add(map.data_len());
        Ok(Arc::new(map))
    }

    fn padding(&self, content: &[u8], at: usize, len: usize) -> Result<usize, Stopped> {
        let padding = content.get(at..at + len).ok_or(ArchiveError::Truncated);
        padding.and_then(archive::check_padding).map_err(|e| self.malformed(&e))?;
        Ok(at + len)
    }

    /// One entry: directories at once, everything else to the writer of its path, or for a hard link of its target's.
    fn entry(&mut self, chunk: &Arc<Chunk>, mut entry: Entry, what: What) -> Result<Option<usize>, Stopped> {
        owners::apply(&mut entry, self.shared);
        if entry.path.is_empty() {
            self.jail.announce_root(&entry)?;
            return Ok(None);
        }
        loop {
            // Who waits for a directory to be closed must not hold back the job that closes it.
            if self.jail.is_crowded() {
                self.flush(chunk);
            }
            if !self.jail.leave_some(&entry.path) {
                break;
            }
        }
        if entry.kind.is_directory() {
            self.jail.make(&entry)?;
            return Ok(None);
        }
        let Some(place) = self.jail.enter(&entry.path)? else {
            self.shared.note(NoteKind::NotCreated, entry.path, "its directory could not be created");
            return Ok(None);
        };
        let (what, writer) = match &entry.kind {
            EntryKind::Hardlink { target } => match self.jail.locate(target) {
                Ok(from) => (What::Link { from }, self.writer_of(target)),
                Err(errno) => {
                    let detail = format!("the target '{}' is not there: {}", shown(target), super::describe(errno));
                    self.shared.note(NoteKind::NotCreated, entry.path, detail);
                    return Ok(None);
                }
            },
            _ => (what, self.writer_of(&entry.path)),
        };
        let line = match (&self.shared.recorder, &entry.kind) {
            (Some(recorder), EntryKind::File { .. } | EntryKind::Sparse { .. } | EntryKind::Hardlink { .. }) => {
                Some(recorder.place())
            }
            _ => None,
        };
        self.batches[writer].push(Job { place, entry, what, line });
        Ok(Some(writer))
    }

    fn writer_of(&self, path: &[u8]) -> usize {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(path);
        (hash % self.writers.len() as u64) as usize
    }

    /// Hand over the jobs that have gathered.
    fn flush(&mut self, chunk: &Arc<Chunk>) {
        for (batch, writer) in self.batches.iter_mut().zip(&self.writers) {
            if !batch.is_empty() {
                writer.put(Work::Batch { chunk: chunk.clone(), jobs: std::mem::take(batch) });
            }
        }
    }

    fn violation(&self, what: &str) -> Stopped {
        self.shared.fail(Failure::Verification(format!("{what}, in chunk {}", self.counts.chunks - 1)))
    }

    fn malformed(&self, error: &ArchiveError) -> Stopped {
        self.shared.fail(Failure::Verification(error.to_string()))
    }
}

/// The content of a whole small entry, as a part of its chunk.
pub(super) type Part = Range<usize>;
