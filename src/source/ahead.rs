//! What runs ahead of the walk: threads that list directories and look at names, next needed first.
//!
//! All of it is optional to the walk, which does itself what nobody has begun when it needs it.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use rustix::fs::{AtFlags, FileType, RawDir, Stat};
use rustix::io::Errno;

use super::cell::Cell;
use super::dirs::{Dir, Dirs, Inode};
use super::extras::{Answers, Asker, At, Taken};
use super::meta::Meta;
use super::pseudo;
use super::select::{self, Selection, Wanted};
use crate::limits::PATH_LEN_MAX;
use crate::stats::Stats;

/// Names of one directory that are looked at together.
pub(super) const BATCH_LEN: usize = 1024;

/// Entries that may be listed, and that may be looked at, before the walk comes to them.
const AHEAD_MAX: usize = 128 << 10;

/// Bytes of one read of a directory.
const DENTS_LEN: usize = 64 << 10;

/// What a source or one name in a directory turned out to be.
pub(super) struct Look {
    /// Meaningless if `found` is `Failed`.
    pub meta: Meta,
    pub found: Found,
    /// Nothing of a directory, whose listing has it.
    pub taken: Taken,
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
    wanted: Wanted,
    listing: Cell<Result<Arc<Listing>, Errno>>,
}

impl Subdir {
    pub fn new(dir: Arc<Dir>, wanted: Wanted) -> Arc<Subdir> {
        Arc::new(Subdir { dir, wanted, listing: Cell::new() })
    }

    /// The same, not listed yet, with something else wanted of it.
    pub fn wanting(&self, wanted: Wanted) -> Arc<Subdir> {
        Subdir::new(self.dir.clone(), wanted)
    }
}

/// The names of one directory and what is known of them.
pub(super) struct Listing {
    pub dir: Arc<Dir>,
    /// Of the directory itself, from its handle.
    pub meta: Meta,
    pub taken: Taken,
    /// Names with their NULs, in the order they were read.
    text: Vec<u8>,
    /// Where the names are in `text`, sorted.
    pub names: Vec<Name>,
    /// What is wanted of each name, if a list says so; empty otherwise.
    wanted: Vec<Wanted>,
    /// Names that a rule leaves out, with its number.
    pub excluded: Vec<(Name, u32)>,
    /// One for each [`BATCH_LEN`] names.
    batches: Vec<Cell<Vec<Look>>>,
    /// Why it was not listed, although it could have been.
    pub skipped: Option<Skipped>,
    /// It is tagged as a cache, and its other names were left out.
    pub is_cache: bool,
    /// Listing it ended early.
    pub failed: Option<Errno>,
}

/// What is mounted on a directory that is not entered.
#[derive(Clone, Copy)]
pub(super) enum Skipped {
    /// A pseudo file system, by its name.
    Pseudo(&'static str),
    OtherFileSystem,
}

/// Where a name is in a listing's text.
#[derive(Clone, Copy)]
pub(super) struct Name {
    start: u32,
    /// The NUL included.
    len: u16,
    /// As the directory says, which may not know.
    file_type: FileType,
}

impl Listing {
    fn of(dir: &Arc<Dir>, meta: Meta) -> Listing {
        Listing {
            dir: dir.clone(),
            meta,
            taken: Taken::default(),
            text: Vec::new(),
            names: Vec::new(),
            wanted: Vec::new(),
            excluded: Vec::new(),
            batches: Vec::new(),
            skipped: None,
            is_cache: false,
            failed: None,
        }
    }

    pub fn name(&self, i: usize) -> &CStr {
        self.text_of(self.names[i])
    }

    pub fn text_of(&self, name: Name) -> &CStr {
        name_in(&self.text, name)
    }

    /// What a list wants of a name; everything, if there is none.
    pub fn wanted(&self, i: usize) -> &Wanted {
        self.wanted.get(i).unwrap_or(&Wanted::ALL)
    }

    /// Add a name, with its NUL; false if there are too many.
    fn push(&mut self, name: &[u8], file_type: FileType) -> bool {
        let (Ok(start), Ok(len)) = (u32::try_from(self.text.len()), u16::try_from(name.len())) else {
            return false;
        };
        self.text.extend_from_slice(name);
        self.names.push(Name { start, len, file_type });
        true
    }

    fn sort(&mut self) {
        let text = &self.text;
        self.names.sort_unstable_by(|a, b| name_in(text, *a).cmp(name_in(text, *b)));
        // A directory that changes while it is read may show a name twice, and a list may name what was read.
        self.names.dedup_by(|a, b| name_in(text, *a) == name_in(text, *b));
    }
}

fn name_in(text: &[u8], name: Name) -> &CStr {
    let bytes = &text[name.start as usize..][..usize::from(name.len)];
    CStr::from_bytes_with_nul(bytes).expect("names are stored with their NUL")
}

/// One piece of work; whoever comes first does it.
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

/// What the walk and its threads share.
pub(super) struct Ahead {
    pub dirs: Arc<Dirs>,
    pub selection: Arc<Selection>,
    asker: Arc<Asker>,
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

impl State {
    /// Whether a thread may take the task on top.
    fn may_begin(&self) -> bool {
        match self.stack.last() {
            None => false,
            Some(Task::List(_)) => self.listed < AHEAD_MAX && self.looked < AHEAD_MAX,
            Some(Task::Look(..)) => self.looked < AHEAD_MAX,
        }
    }
}

/// Memory that one thread needs for its tasks.
pub(super) struct Scratch {
    dents: Vec<u8>,
    target: Vec<u8>,
    answers: Answers,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch { dents: Vec::with_capacity(DENTS_LEN), target: Vec::new(), answers: Answers::default() }
    }
}

impl Ahead {
    pub fn new(dirs: Arc<Dirs>, selection: Arc<Selection>, asker: Arc<Asker>, stats: Arc<Stats>) -> Arc<Ahead> {
        Arc::new(Ahead { dirs, selection, asker, stats, state: Mutex::default(), work: Condvar::new() })
    }

    /// Begin with the sources, in the walk's order.
    pub fn begin<'a>(&self, sources: impl DoubleEndedIterator<Item = &'a Look> + Clone) {
        self.count(sources.clone());
        self.push_subdirs(sources);
        if self.lock().open == 0 {
            self.stats.found_all.store(true, Relaxed);
        }
    }

    /// A directory's listing, now: the walk has come to it.
    pub fn listing(&self, subdir: &Arc<Subdir>, scratch: &mut Scratch) -> Result<Arc<Listing>, Errno> {
        self.list(subdir, scratch);
        let listing = subdir.listing.take();
        self.reached(listing.as_ref().map_or(0, |listing| listing.names.len()), 0);
        listing
    }

    /// What is known of one batch of a listing's names, now: the walk has come to them.
    pub fn looks(&self, listing: &Arc<Listing>, batch: usize, scratch: &mut Scratch) -> Vec<Look> {
        self.look(listing, batch, scratch);
        let looks = listing.batches[batch].take();
        self.reached(0, looks.len());
        looks
    }

    /// The walk has ended, or is given up.
    pub fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_all();
    }

    /// Work until the walk ends: what each of its threads does.
    pub fn run(&self) {
        let mut scratch = Scratch::new();
        while let Some(task) = self.next_task() {
            match task {
                Task::List(subdir) => self.list(&subdir, &mut scratch),
                Task::Look(listing, batch) => self.look(&listing, batch, &mut scratch),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            if state.may_begin() {
                return state.stack.pop();
            }
            state.waiting += 1;
            state = self.work.wait(state).expect("no thread panics while it holds this lock");
            state.waiting -= 1;
        }
    }

    /// Add tasks, the one needed first last.
    fn push(&self, tasks: impl Iterator<Item = Task>) {
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
        if state.waiting > 0 && state.may_begin() {
            self.work.notify_one();
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
        let listing = self.read_names(subdir, scratch).map(Arc::new);
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

    fn read_names(&self, subdir: &Subdir, scratch: &mut Scratch) -> Result<Listing, Errno> {
        let Subdir { dir, wanted, .. } = subdir;
        let (fd, stat) = self.dirs.open(dir)?;
        let mut listing = Listing::of(dir, Meta::of(&stat));
        let above = dir.parent().and_then(|parent| parent.dev());
        if above.is_some_and(|dev| dev != stat.st_dev) {
            let pseudo = pseudo::mounted_at(&fd).map(Skipped::Pseudo);
            listing.skipped = pseudo.or(self.selection.one_file_system.then_some(Skipped::OtherFileSystem));
            if listing.skipped.is_some() {
                return Ok(listing);
            }
        }
        listing.taken = self.asker.take(At::Open(fd.as_fd()), &listing.meta, &mut scratch.answers);
        if wanted.whole {
            read_all(&fd, scratch, &mut listing);
        }
        for (name, _) in self.selection.named_in(wanted) {
            if !listing.push(&[name, b"\0"].concat(), FileType::Unknown) {
                listing.failed = Some(Errno::FBIG);
                break;
            }
        }
        listing.sort();
        if wanted.whole && self.selection.exclude_caches {
            keep_only_tag(&fd, &mut listing);
        }
        if self.selection.has_rules() {
            self.leave_out(&fd, &mut listing);
        }
        self.want(wanted, &mut listing);
        listing.batches.resize_with(listing.names.len().div_ceil(BATCH_LEN), Cell::new);
        Ok(listing)
    }

    /// Take the names out that a rule excludes.
    fn leave_out(&self, fd: &impl AsFd, listing: &mut Listing) {
        let mut path = listing.dir.path();
        if !path.is_empty() {
            path.push(b'/');
        }
        let name_at = path.len();
        let Listing { text, names, excluded, .. } = listing;
        names.retain(|name| {
            let text = name_in(text, *name);
            path.truncate(name_at);
            path.extend_from_slice(text.to_bytes());
            let is_dir = || match name.file_type {
                FileType::Unknown => rustix::fs::statat(fd, text, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
                known => known == FileType::Directory,
            };
            let rule = self.selection.excluding(&path, name_at, is_dir);
            excluded.extend(rule.map(|rule| (*name, rule as u32)));
            rule.is_none()
        });
    }

    /// Say of each name what the list wants of it.
    fn want(&self, dir: &Wanted, listing: &mut Listing) {
        if !dir.names_below() {
            return;
        }
        let mut named = self.selection.named_in(dir).peekable();
        let Listing { text, names, wanted, .. } = listing;
        wanted.extend(names.iter().map(|name| {
            let name = name_in(text, *name).to_bytes();
            while named.next_if(|(other, _)| *other < name).is_some() {}
            named.next_if(|(other, _)| *other == name).map_or(Wanted::ALL, |(_, wanted)| wanted)
        }));
    }

    /// Look at one batch of names, unless somebody else does.
    fn look(&self, listing: &Arc<Listing>, batch: usize, scratch: &mut Scratch) {
        let Some(claim) = listing.batches[batch].claim() else { return };
        let from = batch * BATCH_LEN;
        let to = listing.names.len().min(from + BATCH_LEN);
        let mut looks = Vec::with_capacity(to - from);
        match self.dirs.get(&listing.dir) {
            Ok(fd) => looks.extend((from..to).map(|i| look_at(listing, i, &fd, &self.asker, scratch))),
            Err(errno) => looks.extend((from..to).map(|_| Look::failed(errno))),
        }
        self.count(looks.iter());
        self.push_subdirs(looks.iter());
        let looked = looks.len();
        self.close(0, looked);
        claim.put(looks);
    }

    fn count<'a>(&self, looks: impl Iterator<Item = &'a Look>) {
        let (mut entries, mut bytes) = (0, 0);
        for look in looks {
            entries += u64::from(!matches!(look.found, Found::Failed(_)) && look.meta.file_type != FileType::Socket);
            if look.meta.file_type == FileType::RegularFile {
                bytes += look.meta.size;
            }
        }
        self.stats.entries_found.fetch_add(entries, Relaxed);
        self.stats.bytes_found.fetch_add(bytes, Relaxed);
    }

    fn push_subdirs<'a>(&self, looks: impl DoubleEndedIterator<Item = &'a Look>) {
        let mut subdirs = looks.rev().filter_map(|look| match &look.found {
            Found::Directory(subdir) => Some(Task::List(subdir.clone())),
            _ => None,
        });
        // Most batches have none, and need no lock.
        if let Some(last) = subdirs.next() {
            self.push(std::iter::once(last).chain(subdirs));
        }
    }
}

/// Read all names of a directory.
fn read_all(fd: &impl AsFd, scratch: &mut Scratch, listing: &mut Listing) {
    let mut entries = RawDir::new(fd, scratch.dents.spare_capacity_mut());
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
        if !listing.push(name, entry.file_type()) {
            listing.failed = Some(Errno::FBIG);
            break;
        }
    }
}

/// Of a directory that is tagged as a cache only the tag stays.
fn keep_only_tag(fd: &impl AsFd, listing: &mut Listing) {
    let Listing { text, names, .. } = &mut *listing;
    let tag = names.binary_search_by(|name| name_in(text, *name).cmp(select::CACHE_TAG));
    if let Ok(at) = tag
        && select::is_cache(fd)
    {
        *names = vec![names[at]];
        listing.is_cache = true;
    }
}

fn look_at(listing: &Listing, i: usize, fd: &impl AsFd, asker: &Asker, scratch: &mut Scratch) -> Look {
    let name = listing.name(i);
    let stat = match rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(errno) => return Look::failed(errno),
    };
    let mut look = Look::of(&stat, &listing.dir, name, listing.wanted(i), fd, &mut scratch.target);
    look.take(asker, fd.as_fd(), name, &mut scratch.answers);
    look
}

impl Look {
    fn failed(errno: Errno) -> Look {
        let nothing = Meta {
            inode: Inode { dev: 0, ino: 0 },
            file_type: FileType::Unknown,
            size: 0,
            allocated: 0,
            mtime: Default::default(),
            ctime: Default::default(),
            mode: 0,
            uid: 0,
            gid: 0,
            links: 0,
            rdev: 0,
        };
        Look { meta: nothing, found: Found::Failed(errno), taken: Taken::default() }
    }

    /// Take what else it has.
    pub fn take(&mut self, asker: &Asker, dir: BorrowedFd<'_>, name: &CStr, answers: &mut Answers) {
        let is_asked =
            matches!(self.found, Found::Plain | Found::Symlink(_)) && self.meta.file_type != FileType::Socket;
        if is_asked {
            self.taken = asker.take(At::Name(dir, name), &self.meta, answers);
        }
    }

    /// What `stat` says of `name` in `dir`, with what belongs to its type.
    pub fn of(stat: &Stat, dir: &Arc<Dir>, name: &CStr, wanted: &Wanted, fd: &impl AsFd, buf: &mut Vec<u8>) -> Look {
        let meta = Meta::of(stat);
        let found = match meta.file_type {
            FileType::Directory if dir.child_path_len(name) > PATH_LEN_MAX => Found::TooDeep,
            FileType::Directory => {
                let dir = Dir::child(dir, name);
                Found::Directory(Subdir::new(dir, wanted.clone()))
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
        Look { meta, found, taken: Taken::default() }
    }
}
