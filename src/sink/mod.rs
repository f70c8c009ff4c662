//! What is received: a stream of chunks, in order, becomes a tree, a file, or the bytes of a block device, of standard
//! output or of a command's standard input.
//!
//! The steps, for a tree:
//!
//! 1. *unpack* (one thread, sequential): takes the chunks in order, parses what is archive, and turns entries into
//!    write jobs. It is the only one that walks: it makes the directories itself and knows the one it is in.
//! 2. *write* (N threads, parallel): bytes and attributes of everything else. All jobs of one path go to one writer, in
//!    order, chosen by the path's hash; so a file's slices follow its creation, and a hard link follows its target.
//! 3. *finish a directory* (whoever drops its last user): owner, mode, ACLs and times of a directory are set when the
//!    order has left its subtree and its last job is done, children before parents. Until then it is 0700.
//! 4. *sync* (sequential, once): every file system that was written to. Nothing was received before that.
//!
//! For a file, a device, standard output or a command there is one thread, which writes the chunks' contents in order.
//!
//! Before the first of these threads starts, [`Prepared::confined`] has the system hold them to the destination. A
//! command is started before that: it is as free as the user who named it.
//!
//! The archive of another program, that comes as a stream, is unpacked by one thread too, since its entries may come in
//! any order and take each other's names; through the same jail and with the same functions.
//!
//! What it must never do: touch anything outside the destination, open what exists, replace anything, follow a
//! symbolic link below the root. What goes wrong with one entry becomes a note and the run goes on; what goes wrong
//! with the destination ends the whole sink at once. No thread outlives the [`Sink`].

mod attributes;
mod confine;
mod consumer;
mod disk;
mod foreign;
mod inlet;
mod jail;
mod output;
mod owners;
mod prepare;
mod raw;
mod record;
mod shared;
mod space;
mod spread;
mod unpack;
mod writer;
mod zeros;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::io::Errno;

pub use inlet::{Feed, Gone};
pub use prepare::{Prepared, Readable};
pub use record::Recorder;
pub use shared::Sharing;

use crate::child::{Child, Exit};
use crate::error::{Error, escape};
use crate::ids::Digest;
use crate::report::{Note, NoteKind, Notes, ReadBack};
use crate::stats::Stats;
use crate::wire::Finish;
use attributes::{Policy, Times, Who};
use inlet::{Inlet, Next};
use owners::OwnerMap;

/// What is received, open and at work. Dropping it is the same as [`Sink::abort`].
pub struct Sink {
    feed: Feed,
    thread: Option<JoinHandle<Result<SinkEnd, Stopped>>>,
    shared: Arc<Shared>,
    /// The command that takes what is received.
    command: Option<Arc<Child>>,
    /// Where it can be read back, if that is asked for.
    readable: Option<Readable>,
}

/// What came of it: everything is durable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SinkEnd {
    /// Entries on disk; for an archive that was not unpacked, what the sender says.
    pub entries: u64,
    /// Content bytes on disk.
    pub content_bytes: u64,
    /// A raw stream's own BLAKE3.
    pub stream_digest: Option<Digest>,
    /// Bytes of the block device that was written to, if it was one.
    pub device_size: Option<u64>,
    /// How the command ended that took it, if it was one.
    pub command: Option<Exit>,
    /// What was read back of it, if anything was.
    pub read_back: Option<ReadBack>,
    /// What happened to single entries.
    pub notes: Notes,
}

/// Called once, at once and from any thread, when the whole sink has failed.
pub type OnError = Box<dyn Fn(Error) + Send + Sync>;

impl Sink {
    /// Where chunks go, in the order of their numbers.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The command that takes what is received, if one does. It ends with the sink, and can be ended sooner.
    pub fn command(&self) -> Option<Arc<Child>> {
        self.command.clone()
    }

    /// Where what was received can be read back once it is durable.
    pub fn take_readable(&mut self) -> Option<Readable> {
        self.readable.take()
    }

    /// Every chunk was handed over: write what is left, finish every directory, sync. Blocks until all of it is
    /// durable. The error is the one that `on_error` got, if it got one.
    pub fn finish(mut self, finish: Finish) -> Result<SinkEnd, Error> {
        self.feed.finish(finish);
        match self.join() {
            Some(Ok(end)) => Ok(end),
            _ => Err(self.shared.error().unwrap_or_else(|| Error::Bug("the sink stopped and did not say why".into()))),
        }
    }

    /// Has it stop soon, as [`Sink::abort`] does, while somebody else waits for its end.
    pub fn stopper(&self) -> impl Fn() + use<> {
        let shared = self.shared.clone();
        move || shared.stopping.store(true, Relaxed)
    }

    /// Stop soon: what is queued is not written, temporary names are removed, whole files stay.
    pub fn abort(self) {}

    fn join(&mut self) -> Option<Result<SinkEnd, Stopped>> {
        let result = self.thread.take()?.join();
        Some(result.expect("panics are caught in the thread"))
    }

    /// Start the thread that does everything; `run` is given the chunks, and the last word after the last chunk.
    fn start(
        shared: Arc<Shared>,
        run: impl FnOnce(Inlet, &Arc<Shared>) -> Result<SinkEnd, Stopped> + Send + 'static,
    ) -> Result<Sink, Error> {
        let (feed, inlet) = inlet::new();
        let body = {
            let shared = shared.clone();
            move || shared.guard(|| run(inlet, &shared)).unwrap_or(Err(Stopped))
        };
        let thread = std::thread::Builder::new().name("sink".into()).spawn(body).map_err(no_thread)?;
        Ok(Sink { feed, thread: Some(thread), shared, command: None, readable: None })
    }
}

/// A sink that writes nothing, to measure links by.
///
/// # Errors
/// No thread could be started.
pub fn discard(stats: Arc<Stats>, on_error: OnError) -> Result<Sink, Error> {
    Sink::start(Shared::new("nothing".into(), Policy::default(), None, stats, on_error, None), |mut inlet, _| {
        loop {
            match inlet.next(std::time::Duration::from_secs(1)) {
                Next::Chunk(_) | Next::Quiet => {}
                Next::Finish(finish) => {
                    let (entries, content_bytes) = (finish.entries, finish.content_bytes);
                    return Ok(SinkEnd { entries, content_bytes, ..SinkEnd::default() });
                }
                Next::Abort => return Err(Stopped),
            }
        }
    })
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.shared.stopping.store(true, Relaxed);
            self.feed.abort();
            self.join();
        }
    }
}

fn no_thread(source: io::Error) -> Error {
    Error::Destination { what: "cannot start a thread for writing".into(), source }
}

/// The sink has failed or was told to stop; the reason, if there is one, is in [`Shared`].
#[derive(Clone, Copy, Debug)]
struct Stopped;

/// Why the whole sink failed. Unlike [`Error`] it can be told twice: at once, and when the sink is finished.
#[derive(Clone, Debug)]
enum Failure {
    /// The destination: what could not be done, and the system's reason.
    Destination(String, Errno),
    /// The peer: what arrived cannot be meant.
    Verification(String),
    /// The command that takes it: what it did, and how it ended.
    Command(String, Option<Exit>),
    /// What the peer was given to send: it is no archive that could be unpacked, …
    Refused(String),
    /// … or it is a damaged one.
    Archive(String),
    /// Ourselves.
    Bug(String),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Destination(what, errno) => Error::Destination { what, source: errno.into() },
            Failure::Verification(what) => Error::Verification(what),
            Failure::Command(what, exit) => Error::Command { what, producer: false, exit },
            Failure::Refused(what) => Error::Refused(what),
            Failure::Archive(what) => Error::Archive(what),
            Failure::Bug(what) => Error::Bug(what),
        }
    }
}

/// What all threads of one sink share.
struct Shared {
    stats: Arc<Stats>,
    who: Who,
    policy: Policy,
    /// Who gets what, if that was asked for.
    owners: Option<OwnerMap>,
    /// Before Linux 5.8 syncfs does not tell of writes that failed, so each file is asked.
    sync_each_file: bool,
    /// The destination as people call it, escaped.
    destination: String,
    /// Set on the first failure and on abort: nothing more is written.
    stopping: AtomicBool,
    failure: Mutex<Option<Failure>>,
    on_error: OnError,
    notes: Mutex<Notes>,
    /// Entries whose owner was not ours to set, beyond the first.
    foreign_owners: AtomicU64,
    /// Attributes that were not ours to set.
    not_ours: AtomicU64,
    times: Times,
    entries: AtomicU64,
    content_bytes: AtomicU64,
    /// Who writes the manifest, if there is one.
    recorder: Option<Arc<Recorder>>,
}

impl Shared {
    fn new(
        destination: String,
        policy: Policy,
        owners: Option<OwnerMap>,
        stats: Arc<Stats>,
        on_error: OnError,
        recorder: Option<Arc<Recorder>>,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            stats,
            who: Who::ask(),
            policy,
            owners,
            sync_each_file: kernel_version().is_none_or(|version| version < (5, 8)),
            destination,
            stopping: AtomicBool::new(false),
            failure: Mutex::default(),
            on_error,
            notes: Mutex::default(),
            foreign_owners: AtomicU64::new(0),
            not_ours: AtomicU64::new(0),
            times: Times::default(),
            entries: AtomicU64::new(0),
            content_bytes: AtomicU64::new(0),
            recorder,
        })
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// End the whole sink. The first failure wins.
    fn fail(&self, failure: Failure) -> Stopped {
        {
            let mut first = self.failure.lock().expect("no thread panics while it holds this lock");
            if first.is_some() || self.stopping() {
                return Stopped;
            }
            *first = Some(failure.clone());
            self.stopping.store(true, Relaxed);
        }
        (self.on_error)(failure.into());
        Stopped
    }

    fn error(&self) -> Option<Error> {
        self.failure.lock().expect("no thread panics while it holds this lock").clone().map(Error::from)
    }

    /// Run a thread's body; a panic in it fails the sink as a bug.
    fn guard<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(value) => Some(value),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                self.fail(Failure::Bug(format!("the sink panicked: {}", text.unwrap_or_default())));
                None
            }
        }
    }

    fn note(&self, kind: NoteKind, path: Vec<u8>, detail: impl Into<String>) {
        let note = Note { kind, path, detail: detail.into() };
        self.notes.lock().expect("no thread panics while it holds this lock").push(note);
    }

    /// An owner that is not ours to set. The first is a note, the others are counted without touching the lock.
    fn note_owner(&self, path: impl FnOnce() -> Vec<u8>) {
        if self.foreign_owners.fetch_add(1, Relaxed) == 0 {
            self.note(NoteKind::Owner, path(), "the owner is not ours to set; it belongs to us now");
        }
    }

    /// An attribute that is not ours to set, likewise; how many there were is said with the first.
    fn note_not_ours(&self, path: impl FnOnce() -> Vec<u8>, name: &[u8]) {
        if self.not_ours.fetch_add(1, Relaxed) == 0 {
            self.note(NoteKind::NotOurs, path(), escape(name));
        }
    }

    /// An entry is on disk.
    fn entry_done(&self) {
        self.entries.fetch_add(1, Relaxed);
        self.stats.entries_done.fetch_add(1, Relaxed);
    }

    fn content_done(&self, bytes: usize) {
        self.content_bytes.fetch_add(bytes as u64, Relaxed);
        self.stats.content_done.fetch_add(bytes as u64, Relaxed);
    }

    /// One entry could not be created. Whether that is all depends on the reason: a full or broken disk would refuse
    /// the next one as well.
    fn entry_failed(&self, path: &[u8], errno: Errno, on: &jail::Handle) -> Result<(), Stopped> {
        if is_final(errno) {
            let what = format!("cannot write '{}' below {}{}", escape(path), self.destination, on.space());
            return Err(self.fail(Failure::Destination(what, errno)));
        }
        // Nothing of that name was there before: the file system takes two names of the sender for one.
        let why = if errno == Errno::EXIST { "another entry has this name there".into() } else { describe(errno) };
        self.note(NoteKind::NotCreated, path.to_vec(), why);
        Ok(())
    }

    /// All notes, after all threads are done.
    fn take_notes(&self) -> Notes {
        let mut notes = std::mem::take(&mut *self.notes.lock().expect("no thread panics while it holds this lock"));
        notes.harmless += self.foreign_owners.load(Relaxed).saturating_sub(1);
        let others = self.not_ours.load(Relaxed).saturating_sub(1);
        if let Some(first) = notes.named.iter_mut().find(|note| note.kind == NoteKind::NotOurs && others > 0) {
            first.detail += &format!(", and {others} more");
        }
        notes
    }

    /// What is delivered must be what was sent.
    fn check(&self, what: &str, ours: u64, theirs: u64) -> Result<(), Stopped> {
        if ours == theirs {
            return Ok(());
        }
        Err(self.fail(Failure::Verification(format!("{ours} {what} arrived, the sender says {theirs}"))))
    }
}

fn kernel_version() -> Option<(u32, u32)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Whether an error is the destination's and not the entry's: the next entry would meet it too.
fn is_final(errno: Errno) -> bool {
    const FINAL: [Errno; 14] = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::IO,
        Errno::ROFS,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NODEV,
        Errno::NXIO,
        Errno::STALE,
        Errno::SHUTDOWN,
        Errno::NOTCONN,
        Errno::UCLEAN,
        Errno::BADF,
    ];
    FINAL.contains(&errno)
}

/// The system's words, without the number.
fn describe(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
