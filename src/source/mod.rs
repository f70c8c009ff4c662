//! What is sent: the tree, file or stream that becomes chunks.
//!
//! Steps:
//! 1. *walk* (parallel, ahead; its last step sequential): a tree's entries with their metadata, in one order.
//! 2. *plan* (sequential): which entries share a chunk; slices of large files; numbers and buffers, in order.
//! 3. *fill* (parallel, called by the conductor's workers): open, check, read; lay out headers and content.
//!
//! Order: chunks are numbered in step 2, in the order of the walk; from there on nothing depends on order. Back
//! pressure: step 2 waits for a buffer, and for room in the queue of planned chunks; step 1 runs a bounded number of
//! entries ahead of it.
//!
//! What of a tree is sent, `select` says while directories are listed; there nothing else about names is decided.
//!
//! Never: a link followed below a source, a device or FIFO opened by mistake (a device is read only where it is the one
//! source), a path resolved that the kernel could lead elsewhere meanwhile. What goes wrong with one entry is a note
//! and touches no other entry; only a stream that cannot be read is an error of the whole.
//!
//! # The stream's layout
//!
//! Of an archive, for who unpacks it: a mixed chunk holds whole entries. The header of a file whose content does not
//! fit beside it in one chunk is the last thing in its mixed chunk; the content follows in data chunks; its padding is
//! the first thing in the mixed chunk after them. Of a file with holes, map and data stay in one mixed chunk with its
//! header if they fit; otherwise they follow in chunks that are mixed by name and hold nothing else, first those of the
//! map, then those of the data, all but the last of each full. The archive's end is in the last chunk. A mixed chunk is
//! empty if all its entries had to be left out. A raw stream or file is data chunks only, none if it is empty.

mod ahead;
mod cell;
mod dirs;
mod extras;
mod fill;
mod holes;
mod large;
mod lay_out;
mod links;
mod meta;
mod named;
mod notes;
mod owners;
mod plan;
mod pseudo;
mod read;
mod record;
mod select;
mod stream;
mod walk;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, bounded};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

pub use fill::{FillScratch, Filled, Planned};
pub use holes::Holes;
pub use named::{Tree, open_tree};
pub use notes::NoteSink;
pub use record::{ChunkLines, Recorder};
pub use select::Selection;

use crate::child::Child;
use crate::chunk::Pool;
use crate::error::{Error, escape};
use crate::ids::Seq;
use crate::limits::CHUNK_LEN;
use crate::options::Keep;
use crate::queue;
use crate::report::Notes;
use crate::stats::{Lap, Stage, Stats};
use crate::wire::Layout;
use dirs::Dirs;
use extras::Asker;
use fill::{Context, Job};
use named::Named;
use plan::{Emitter, Planner};
use stream::{Origin, StreamError, send_stream};
use walk::Walk;

/// A source at work.
pub struct Running {
    /// Chunks to be filled, in order. Any number of workers may take from it. It ends when all is planned.
    pub planned: Receiver<Planned>,
    thread: JoinHandle<Result<SourceEnd, Error>>,
}

/// What came of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SourceEnd {
    /// Chunks in all.
    pub chunks: u64,
    /// Entries laid out; 0 for a raw stream.
    pub entries: u64,
    /// Bytes of content laid out.
    pub content_bytes: u64,
    /// Bytes of all chunks.
    pub stream_bytes: u64,
}

impl Running {
    /// Wait until all is planned and every planned chunk is filled or dropped. All notes have been made by then. A
    /// stream's thread may be in a read that never ends: after giving up, leave it alone.
    pub fn join(self) -> Result<SourceEnd, Error> {
        drop(self.planned);
        self.thread.join().unwrap_or_else(|_| Err(Error::Bug("the thread that plans chunks panicked".into())))
    }
}

/// Start to read a tree. `workers` is how many threads will fill chunks.
pub fn start(
    tree: Tree,
    layout: Layout,
    pool: Arc<Pool>,
    stats: Arc<Stats>,
    notes: Arc<NoteSink>,
    workers: usize,
) -> Running {
    let asker = Arc::new(Asker::new(tree.keep).naming(tree.owner_names));
    let context = Context { record: tree.record, asker, holes: tree.holes, ..Context::new(stats, notes, tree.keep) };
    begin(tree, layout, pool, context, workers)
}

fn begin(tree: Tree, layout: Layout, pool: Arc<Pool>, context: Context, workers: usize) -> Running {
    let stage = if matches!(tree.named, Named::Fifo(_)) { Stage::Input } else { Stage::Source };
    run(pool, context, stage, move |mut emitter| match (tree.named, layout) {
        (Named::Roots(roots), Layout::Archive) => {
            let Context { dirs, asker, stats, notes, .. } = &*emitter.context;
            let threads = workers.clamp(WALKERS_MIN, WALKERS_MAX);
            let mut walk =
                Walk::new(roots, tree.selection, dirs.clone(), asker.clone(), stats.clone(), notes.clone(), threads);
            let mut planner = Planner::new(emitter);
            while let Some(step) = walk.step() {
                planner.add(&step)?;
            }
            Ok(planner.finish()?)
        }
        (Named::File { name, file }, Layout::Archive) => {
            found_file(&emitter, &file);
            let mut planner = Planner::new(emitter);
            planner.add_file_source(file, &name)?;
            Ok(planner.finish()?)
        }
        (Named::File { file, .. } | Named::Device { file, .. }, Layout::Raw) => {
            found_file(&emitter, &file);
            emitter.emit_slices(file)?;
            Ok(emitter)
        }
        (Named::Fifo(path), Layout::Raw) => {
            // Waits until somebody opens the other end, as reading a FIFO does everywhere.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
            let fd = rustix::fs::openat(CWD, &path, flags, Mode::empty())
                .map_err(|errno| StreamError::Read(Error::Source { path: path.clone(), source: errno.into() }))?;
            send_stream(&Origin { fd: fd.as_fd(), name: &path, producer: None }, &mut emitter)?;
            Ok(emitter)
        }
        (Named::Device { .. }, Layout::Archive) => Err(refused("a device is not a tree")),
        (Named::Roots(_), Layout::Raw) => Err(refused("a tree is not a raw stream")),
        (Named::Fifo(_), Layout::Archive) => Err(refused("a stream is not a tree")),
    })
}

/// Find out what would be sent: everything is done as for a transfer by one worker, except that no file is read and no
/// chunk leaves. `None` if it is a stream, of which only its end tells how much it is.
pub fn rehearse(tree: Tree, stats: &Arc<Stats>, notes: &Arc<NoteSink>) -> Result<Option<SourceEnd>, Error> {
    let layout = match tree.named {
        Named::Roots(_) | Named::File { .. } => Layout::Archive,
        Named::Device { .. } => Layout::Raw,
        Named::Fifo(_) => return Ok(None),
    };
    let holes = tree.holes.map(Holes::only_asked_for);
    let context = Context { rehearse: true, holes, ..Context::new(stats.clone(), notes.clone(), tree.keep) };
    let pool = Pool::new(REHEARSAL_CHUNKS, CHUNK_LEN);
    let running = begin(tree, layout, pool, context, WALKERS_MIN);
    let mut scratch = FillScratch::default();
    for planned in queue::each(running.planned.clone()) {
        let filled = planned.fill(&mut scratch);
        stats.stream_done.fetch_add(filled.len as u64, Relaxed);
    }
    running.join().map(Some)
}

/// Chunks that a rehearsal has under way.
const REHEARSAL_CHUNKS: usize = 8;

/// Start to read standard input as a raw stream.
pub fn start_stdin(pool: Arc<Pool>, stats: Arc<Stats>, notes: Arc<NoteSink>) -> Running {
    run(pool, Context::new(stats, notes, Keep::default()), Stage::Input, |mut emitter| {
        let (fd, name) = (rustix::stdio::stdin(), Path::new("standard input"));
        send_stream(&Origin { fd, name, producer: None }, &mut emitter)?;
        Ok(emitter)
    })
}

/// Start to read what a command writes as a raw stream; it ends well only if the command does.
pub fn start_command(
    (child, output): (Arc<Child>, OwnedFd),
    pool: Arc<Pool>,
    stats: Arc<Stats>,
    notes: Arc<NoteSink>,
) -> Running {
    run(pool, Context::new(stats, notes, Keep::default()), Stage::Input, move |mut emitter| {
        let name = Path::new("the command's output");
        send_stream(&Origin { fd: output.as_fd(), name, producer: Some(&child) }, &mut emitter)?;
        Ok(emitter)
    })
}

/// Chunks of no particular content until there are enough, to measure links by.
pub fn start_filler(pool: Arc<Pool>, stats: Arc<Stats>, notes: Arc<NoteSink>, enough: Arc<AtomicBool>) -> Running {
    run(pool, Context::new(stats, notes, Keep::default()), Stage::Input, move |mut emitter| {
        let mut offset = 0;
        while !enough.load(Relaxed) {
            let buf = emitter.buffer()?;
            emitter.emit_in(Job::Read { offset, sole: false, len: CHUNK_LEN }, buf)?;
            offset += CHUNK_LEN as u64;
        }
        Ok(emitter)
    })
}

/// Go through the regular files below a directory, each by its path there, in the order in which they would be sent.
/// What could not be looked at comes back.
pub fn each_file(dir: &Path, mut visit: impl FnMut(&[u8])) -> Result<Notes, Error> {
    let Named::Roots(roots) = open_tree(&[dir.to_path_buf()])?.named else {
        return Err(Error::Usage(format!("'{}' is no directory", escape(dir.as_os_str().as_encoded_bytes()))));
    };
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let asker = Arc::new(Asker::new(Keep { xattrs: false, acls: false }));
    let everything = Arc::new(Selection::everything());
    let mut walk = Walk::new(roots, everything, Arc::new(Dirs::new()), asker, stats, notes.clone(), WALKERS_MIN);
    while let Some(step) = walk.step() {
        if step.meta.file_type == FileType::RegularFile {
            visit(step.path);
        }
    }
    Ok(notes.notes())
}

/// Threads that walk ahead: enough to keep a disk or a server busy even where there are few cores.
const WALKERS_MIN: usize = 2;
/// See [`WALKERS_MIN`].
const WALKERS_MAX: usize = 16;

fn run(
    pool: Arc<Pool>,
    context: Context,
    stage: Stage,
    plan: impl FnOnce(Emitter) -> Result<Emitter, StreamError> + Send + 'static,
) -> Running {
    assert!(pool.buf_len() >= CHUNK_LEN, "a buffer holds a chunk");
    // As long as the pool, so that buffers that come back together are planned together.
    let (out, planned) = bounded(pool.count());
    let thread = std::thread::spawn(move || {
        let (alive, all_done) = bounded(0);
        let (lap, watch) = (Lap::start(), context.stats.watch(stage));
        let context = Arc::new(context);
        let emitter = Emitter { pool, out, context: context.clone(), next: Seq(0), alive, lap, watch };
        let planned = plan(emitter).map(|emitter| emitter.next.0);
        if planned.is_ok() {
            // Ends when the last planned chunk drops its sender.
            let Err(_disconnected) = all_done.recv();
        }
        if let Some(path) = context.gone.get() {
            return Err(Error::Source { path: path.clone(), source: Errno::NODEV.into() });
        }
        let chunks = planned.map_err(|err| match err {
            StreamError::Stopped => Error::Interrupted("the transfer was given up before all was read".into()),
            StreamError::Read(err) => err,
        })?;
        let tally = &context.tally;
        Ok(SourceEnd {
            chunks,
            entries: tally.entries.load(Relaxed),
            content_bytes: tally.content_bytes.load(Relaxed),
            stream_bytes: tally.stream_bytes.load(Relaxed),
        })
    });
    Running { planned, thread }
}

fn found_file(emitter: &Emitter, file: &large::LargeFile) {
    let stats = &emitter.context.stats;
    stats.entries_found.store(1, Relaxed);
    stats.bytes_found.store(file.meta().size, Relaxed);
    stats.found_all.store(true, Relaxed);
}

fn refused(why: &str) -> StreamError {
    StreamError::Read(Error::Bug(format!("the layout was not agreed: {why}")))
}

#[cfg(test)]
mod tests;
