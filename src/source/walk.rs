//! The walk: a tree's entries with their metadata, in one order. Depth first, parents first, names bytewise within a
//! directory; two walks of the same tree agree.
//!
//! Steps:
//! 1. *list* (parallel): open a directory, read its names, sort them.
//! 2. *look* (parallel): stat a batch of its names in order, read the targets of links.
//! 3. *step* (sequential, [`Walk::step`]): go through listings and batches in the walk's order.
//!
//! Order is kept by step 3 alone. Steps 1 and 2 run ahead of it, next needed first (a stack), so that a slow disk or
//! server has several requests at a time. What nobody has begun when it is needed, step 3 does itself: it never waits
//! for work that no thread has, and a walk without threads is a plain one.
//!
//! Memory: the names of the directories from the source down to the current one, and [`AHEAD_MAX`] entries beyond,
//! exceeded by one directory for each thread at most.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use rustix::fs::{AtFlags, FileType, RawDir, Stat};
use rustix::io::Errno;

use super::cell::Cell;
use super::dirs::{Dir, Dirs, Gone, is_vanished};
use super::meta::Meta;
use super::notes::NoteSink;
use super::pseudo;
use crate::limits::PATH_LEN_MAX;
use crate::report::NoteKind;
use crate::stats::Stats;

/// Names of one directory that are looked at together.
const BATCH_LEN: usize = 1024;

/// Entries that may be listed, and that may be looked at, before the walk comes to them.
const AHEAD_MAX: usize = 128 << 10;

/// Bytes of one read of a directory.
const DENTS_LEN: usize = 64 << 10;

/// What a source or one name in a directory turned out to be.
pub(super) struct Look {
    /// Meaningless if `found` is `Failed`.
    pub meta: Meta,
    pub found: Found,
}

/// See [`Look`].
pub(super) enum Found {
    Directory(Arc<Subdir>),
    Symlink(Box<[u8]>),
    /// Whatever needs no more than its metadata; its type is there.
    Plain,
    /// A directory whose path is too long to be carried; nothing below it is looked at.
    TooDeep,
    Failed(Errno),
}

/// A directory and, sooner or later, its listing.
pub(super) struct Subdir {
    dir: Arc<Dir>,
    listing: Cell<Result<Arc<Listing>, Errno>>,
}

/// The names of one directory and what is known of them.
struct Listing {
    dir: Arc<Dir>,
    /// Of the directory itself, from its handle.
    meta: Meta,
    /// Names with their NULs, in the order they were read.
    text: Vec<u8>,
    /// Where the names are in `text`, sorted.
    names: Vec<Name>,
    /// One for each [`BATCH_LEN`] names.
    batches: Vec<Cell<Vec<Look>>>,
    /// The pseudo file system that is mounted here and therefore was not listed.
    pseudo: Option<&'static str>,
    /// Listing it ended early.
    failed: Option<Errno>,
}

#[derive(Clone, Copy)]
struct Name {
    start: u32,
    /// The NUL included.
    len: u16,
}

impl Listing {
    fn name(&self, i: usize) -> &CStr {
        name_in(&self.text, self.names[i])
    }
}

fn name_in(text: &[u8], name: Name) -> &CStr {
    let bytes = &text[name.start as usize..][..usize::from(name.len)];
    CStr::from_bytes_with_nul(bytes).expect("names are stored with their NUL")
}

/// One source, as the walk begins with it.
pub(super) struct Root {
    /// The directory and the name in it that entries refer to.
    pub place: Arc<Dir>,
    pub name: std::ffi::CString,
    pub look: Look,
}

impl Root {
    /// A source that is a directory. It is entered; `place` and `name` are where its own entry belongs.
    pub fn directory(place: Arc<Dir>, name: std::ffi::CString, dir: Arc<Dir>, meta: Meta) -> Root {
        let subdir = Arc::new(Subdir { dir, listing: Cell::new() });
        Root { place, name, look: Look { meta, found: Found::Directory(subdir) } }
    }
}

enum Task {
    List(Arc<Subdir>),
    Look(Arc<Listing>, usize),
}

impl Task {
    fn is_begun(&self) -> bool {
        match self {
            Task::List(subdir) => !subdir.listing.is_open(),
            Task::Look(listing, batch) => !listing.batches[*batch].is_open(),
        }
    }
}

struct Shared {
    dirs: Arc<Dirs>,
    stats: Arc<Stats>,
    state: Mutex<State>,
    /// Threads wait here for tasks, or for leave to begin one.
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// The task that the walk needs next is on top, nearly always.
    stack: Vec<Task>,
    /// Tasks that are not finished.
    open: usize,
    /// Entries listed, and looked at, in directories and batches that the walk has not come to.
    listed: usize,
    looked: usize,
    waiting: usize,
    stop: bool,
}

/// Memory that one thread needs for its tasks.
struct Scratch {
    dents: Vec<u8>,
    target: Vec<u8>,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { dents: Vec::with_capacity(DENTS_LEN), target: Vec::new() }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    fn run(&self) {
        let mut scratch = Scratch::new();
        while let Some(task) = self.next_task() {
            match task {
                Task::List(subdir) => self.list(&subdir, &mut scratch),
                Task::Look(listing, batch) => self.look(&listing, batch, &mut scratch),
            };
        }
    }

    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            let may_begin = match state.stack.last() {
                None => false,
                Some(Task::List(_)) => state.listed < AHEAD_MAX && state.looked < AHEAD_MAX,
                Some(Task::Look(..)) => state.looked < AHEAD_MAX,
            };
            if may_begin {
                return state.stack.pop();
            }
            state.waiting += 1;
            state = self.work.wait(state).expect("no thread panics while it holds this lock");
            state.waiting -= 1;
        }
    }

    /// Add tasks, the one needed first last.
    fn push(&self, tasks: impl DoubleEndedIterator<Item = Task>) {
        let mut state = self.lock();
        let before = state.stack.len();
        state.stack.extend(tasks);
        let added = state.stack.len() - before;
        state.open += added;
        match added.min(state.waiting) {
            0 => {}
            1 => self.work.notify_one(),
            _ => self.work.notify_all(),
        }
    }

    /// A task has ended and added all that follows from it.
    fn close(&self, listed: usize, looked: usize) {
        let mut state = self.lock();
        state.listed += listed;
        state.looked += looked;
        state.open -= 1;
        if state.open == 0 {
            self.stats.found_all.store(true, Relaxed);
        }
        // What the walk did itself must not pile up here, above all if there are no threads.
        while state.stack.last().is_some_and(Task::is_begun) {
            state.stack.pop();
        }
    }

    /// The walk has come to what was prepared.
    fn reached(&self, listed: usize, looked: usize) {
        let mut state = self.lock();
        let full = |state: &State| state.listed >= AHEAD_MAX || state.looked >= AHEAD_MAX;
        let was_full = full(&state);
        state.listed -= listed;
        state.looked -= looked;
        if was_full && !full(&state) && state.waiting > 0 {
            self.work.notify_all();
        }
    }

    /// List a directory, unless somebody else does, and look at its first batch.
    fn list(&self, subdir: &Arc<Subdir>, scratch: &mut Scratch) {
        let Some(claim) = subdir.listing.claim() else { return };
        let listing = self.read_names(&subdir.dir, scratch).map(Arc::new);
        let mut listed = 0;
        if let Ok(listing) = &listing {
            listed = listing.names.len();
            let rest = (1..listing.batches.len()).rev();
            if rest.len() > 0 {
                self.push(rest.map(|batch| Task::Look(listing.clone(), batch)));
            }
            if listed > 0 {
                self.lock().open += 1;
                self.look(listing, 0, scratch);
            }
        }
        self.close(listed, 0);
        claim.put(listing);
    }

    fn read_names(&self, dir: &Arc<Dir>, scratch: &mut Scratch) -> Result<Listing, Errno> {
        let (fd, stat) = self.dirs.open(dir)?;
        let mut listing = Listing {
            dir: dir.clone(),
            meta: Meta::of(&stat),
            text: Vec::new(),
            names: Vec::new(),
            batches: Vec::new(),
            pseudo: None,
            failed: None,
        };
        let above = dir.parent().and_then(|parent| parent.dev());
        if above.is_some_and(|dev| dev != stat.st_dev) {
            listing.pseudo = pseudo::mounted_at(&fd);
            if listing.pseudo.is_some() {
                return Ok(listing);
            }
        }
        let mut entries = RawDir::new(&fd, scratch.dents.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    listing.failed = Some(errno);
                    break;
                }
            };
            let name = entry.file_name().to_bytes_with_nul();
            if name == b".\0" || name == b"..\0" {
                continue;
            }
            let (Ok(start), Ok(len)) = (u32::try_from(listing.text.len()), u16::try_from(name.len())) else {
                listing.failed = Some(Errno::FBIG);
                break;
            };
            listing.text.extend_from_slice(name);
            listing.names.push(Name { start, len });
        }
        let text = &listing.text;
        listing.names.sort_unstable_by(|a, b| name_in(text, *a).cmp(name_in(text, *b)));
        // A directory that changes while it is read may show a name twice.
        listing.names.dedup_by(|a, b| name_in(text, *a) == name_in(text, *b));
        listing.batches.resize_with(listing.names.len().div_ceil(BATCH_LEN), Cell::new);
        Ok(listing)
    }

    /// Look at one batch of names, unless somebody else does.
    fn look(&self, listing: &Arc<Listing>, batch: usize, scratch: &mut Scratch) {
        let Some(claim) = listing.batches[batch].claim() else { return };
        let from = batch * BATCH_LEN;
        let to = listing.names.len().min(from + BATCH_LEN);
        let mut looks = Vec::with_capacity(to - from);
        let (mut entries, mut bytes) = (0, 0);
        match self.dirs.get(&listing.dir) {
            Ok(fd) => {
                for i in from..to {
                    let look = self.look_at(&listing.dir, &fd, listing.name(i), scratch);
                    if !matches!(look.found, Found::Failed(_)) && look.meta.file_type != FileType::Socket {
                        entries += 1;
                    }
                    if matches!(look.found, Found::Plain) && look.meta.file_type == FileType::RegularFile {
                        bytes += look.meta.size;
                    }
                    looks.push(look);
                }
            }
            Err(errno) => looks.extend((from..to).map(|_| Look::failed(errno))),
        }
        self.stats.entries_found.fetch_add(entries, Relaxed);
        self.stats.bytes_found.fetch_add(bytes, Relaxed);
        let subdirs = looks.iter().filter_map(|look| match &look.found {
            Found::Directory(subdir) => Some(Task::List(subdir.clone())),
            _ => None,
        });
        let looked = looks.len();
        if looks.iter().any(|look| matches!(look.found, Found::Directory(_))) {
            self.push(subdirs.rev());
        }
        self.close(0, looked);
        claim.put(looks);
    }

    fn look_at(&self, dir: &Arc<Dir>, fd: &impl std::os::fd::AsFd, name: &CStr, scratch: &mut Scratch) -> Look {
        let stat = match rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) => return Look::failed(errno),
        };
        Look::of(&stat, dir, name, fd, &mut scratch.target)
    }
}

impl Look {
    fn failed(errno: Errno) -> Look {
        let nothing = Meta {
            inode: super::dirs::Inode { dev: 0, ino: 0 },
            file_type: FileType::Unknown,
            size: 0,
            mtime: Default::default(),
            mode: 0,
            uid: 0,
            gid: 0,
            links: 0,
        };
        Look { meta: nothing, found: Found::Failed(errno) }
    }

    /// What `stat` says of `name` in `dir`, with what belongs to its type.
    pub fn of(stat: &Stat, dir: &Arc<Dir>, name: &CStr, fd: &impl std::os::fd::AsFd, buf: &mut Vec<u8>) -> Look {
        let meta = Meta::of(stat);
        let found = match meta.file_type {
            FileType::Directory if dir.child_path_len(name) > PATH_LEN_MAX => Found::TooDeep,
            FileType::Directory => {
                let dir = Dir::child(dir, name);
                Found::Directory(Arc::new(Subdir { dir, listing: Cell::new() }))
            }
            FileType::Symlink => match rustix::fs::readlinkat(fd, name, std::mem::take(buf)) {
                Ok(target) => {
                    let found = Found::Symlink(target.as_bytes().into());
                    *buf = target.into_bytes();
                    found
                }
                Err(errno) => Found::Failed(errno),
            },
            _ => Found::Plain,
        };
        Look { meta, found }
    }
}

/// One entry in the walk's order.
pub(super) struct Step<'a> {
    /// The directory it is in, and its name there.
    pub dir: &'a Arc<Dir>,
    pub name: &'a CStr,
    /// Its path in the transfer.
    pub path: &'a [u8],
    pub meta: Meta,
    /// A symbolic link's target.
    pub target: &'a [u8],
}

/// The sequential end of the walk. Dropping it ends its threads.
pub(super) struct Walk {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    notes: Arc<NoteSink>,
    roots: VecDeque<Root>,
    /// The source that was begun last.
    root: Option<Root>,
    stack: Vec<Frame>,
    path: Vec<u8>,
    scratch: Scratch,
}

/// A directory the walk is in.
struct Frame {
    listing: Arc<Listing>,
    /// The name that comes next.
    next: usize,
    /// What is known of the batch that the last name came from.
    batch: Vec<Look>,
    /// Bytes of the directory's path.
    path_len: usize,
}

impl Walk {
    /// Begin to walk `roots`, with that many threads ahead of it.
    pub fn new(roots: Vec<Root>, dirs: Arc<Dirs>, stats: Arc<Stats>, notes: Arc<NoteSink>, threads: usize) -> Walk {
        let shared = Arc::new(Shared { dirs, stats, state: Mutex::default(), work: Condvar::new() });
        shared.stats.entries_found.fetch_add(roots.len() as u64, Relaxed);
        let plain = |root: &&Root| matches!(root.look.found, Found::Plain);
        shared.stats.bytes_found.fetch_add(roots.iter().filter(plain).map(|root| root.look.meta.size).sum(), Relaxed);
        let subdirs: Vec<_> = roots
            .iter()
            .filter_map(|root| match &root.look.found {
                Found::Directory(subdir) => Some(Task::List(subdir.clone())),
                _ => None,
            })
            .collect();
        if subdirs.is_empty() {
            shared.stats.found_all.store(true, Relaxed);
        } else {
            shared.push(subdirs.into_iter().rev());
        }
        let threads = (0..threads)
            .filter_map(|i| {
                let shared = shared.clone();
                // Without a thread the walk is slower, and complete.
                std::thread::Builder::new().name(format!("walk {i}")).spawn(move || shared.run()).ok()
            })
            .collect();
        Walk {
            shared,
            threads,
            notes,
            roots: roots.into(),
            root: None,
            stack: Vec::new(),
            path: Vec::new(),
            scratch: Scratch::new(),
        }
    }

    /// The next entry that can be carried on; what cannot be read is noted.
    pub fn step(&mut self) -> Option<Step<'_>> {
        loop {
            let (level, at) = match self.stack.last_mut() {
                Some(frame) if frame.next == frame.listing.names.len() => {
                    self.stack.pop();
                    continue;
                }
                Some(frame) => {
                    let at = frame.next;
                    frame.next += 1;
                    if at % BATCH_LEN == 0 {
                        let listing = frame.listing.clone();
                        self.enter_batch(&listing, at / BATCH_LEN);
                    }
                    self.set_path(at);
                    (Some(self.stack.len() - 1), at)
                }
                None => {
                    self.root = Some(self.roots.pop_front()?);
                    let root = self.root.as_ref()?;
                    root.place.path_into(root.name.to_bytes(), &mut self.path);
                    (None, 0)
                }
            };
            if let Some(meta) = self.admit(level, at) {
                let (dir, name, look) = match level {
                    Some(level) => {
                        let frame = &self.stack[level];
                        (&frame.listing.dir, frame.listing.name(at), &frame.batch[at % BATCH_LEN])
                    }
                    None => {
                        let root = self.root.as_ref()?;
                        (&root.place, &*root.name, &root.look)
                    }
                };
                let target = match &look.found {
                    Found::Symlink(target) => &target[..],
                    _ => b"",
                };
                return Some(Step { dir, name, path: &self.path, meta, target });
            }
        }
    }

    /// Whether the entry goes on, and with which metadata. A directory's listing must be there before its entry: it
    /// tells whether the directory still is. Entering it makes its names come next.
    fn admit(&mut self, level: Option<usize>, at: usize) -> Option<Meta> {
        let look = match level {
            Some(level) => &self.stack[level].batch[at % BATCH_LEN],
            None => &self.root.as_ref()?.look,
        };
        let meta = look.meta;
        match &look.found {
            Found::Plain | Found::Symlink(_) => Some(meta),
            Found::TooDeep => {
                self.notes.add(NoteKind::NotCarried, &self.path, "the path is too long; nothing below it was sent");
                None
            }
            Found::Failed(errno) => {
                let errno = *errno;
                let dir = level.map(|level| self.stack[level].listing.dir.clone());
                self.note_missing(dir.as_ref(), errno);
                None
            }
            Found::Directory(subdir) => {
                let subdir = subdir.clone();
                self.shared.list(&subdir, &mut self.scratch);
                match subdir.listing.take() {
                    Ok(listing) => Some(self.enter(listing)),
                    Err(errno) if is_vanished(errno) => {
                        let dir = level.map(|level| self.stack[level].listing.dir.clone());
                        self.note_missing(dir.as_ref(), errno);
                        None
                    }
                    Err(errno) => {
                        self.notes.add(NoteKind::Unreadable, &self.path, cannot_list(errno));
                        Some(meta)
                    }
                }
            }
        }
    }

    fn enter(&mut self, listing: Arc<Listing>) -> Meta {
        if let Some(kind) = listing.pseudo {
            self.notes.add(NoteKind::Pseudo, &self.path, kind);
        }
        if let Some(errno) = listing.failed {
            self.notes.add(NoteKind::Unreadable, &self.path, cannot_list(errno));
        }
        self.shared.reached(listing.names.len(), 0);
        let meta = listing.meta;
        self.stack.push(Frame { listing, next: 0, batch: Vec::new(), path_len: self.path.len() });
        meta
    }

    fn enter_batch(&mut self, listing: &Arc<Listing>, batch: usize) {
        self.shared.look(listing, batch, &mut self.scratch);
        let looks = listing.batches[batch].take();
        self.shared.reached(0, looks.len());
        if let Some(frame) = self.stack.last_mut() {
            frame.batch = looks;
        }
    }

    fn set_path(&mut self, at: usize) {
        let Some(frame) = self.stack.last() else { return };
        self.path.truncate(frame.path_len);
        if frame.path_len > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(frame.listing.name(at).to_bytes());
    }

    /// Something was listed in `dir` and cannot be looked at or entered. A directory that vanished is one note.
    fn note_missing(&self, dir: Option<&Arc<Dir>>, errno: Errno) {
        note_missing(&self.shared.dirs, &self.notes, dir, &self.path, errno);
    }
}

fn cannot_list(errno: Errno) -> String {
    format!("it cannot be listed: {}", std::io::Error::from(errno))
}

/// Note that the entry at `path`, which was listed in `dir`, cannot be opened. A directory that vanished is one note,
/// not one for each of its names.
pub(super) fn note_missing(dirs: &Dirs, notes: &NoteSink, dir: Option<&Arc<Dir>>, path: &[u8], errno: Errno) {
    if !is_vanished(errno) {
        notes.add(NoteKind::Unreadable, path, std::io::Error::from(errno).to_string());
        return;
    }
    match dir.map_or(Gone::No, |dir| dirs.gone(dir)) {
        Gone::No => notes.add(NoteKind::Vanished, path, ""),
        Gone::Now(top) => notes.add(NoteKind::Vanished, &top, "a directory, with what was left of it"),
        Gone::Known => {}
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has already been seen through the cell it left.
            let _ = thread.join();
        }
    }
}
