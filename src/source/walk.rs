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
//! Memory: the names of the directories from the source down to the current one, and a bounded number of entries
//! beyond, exceeded by one directory for each thread at most.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::io::Errno;

use super::ahead::{Ahead, BATCH_LEN, Found, Listing, Look, Scratch, Skipped, Subdir};
use super::dirs::{Dir, Dirs, Gone, is_vanished};
use super::extras::{Answers, Asker, Taken};
use super::meta::Meta;
use super::notes::NoteSink;
use super::select::{Selection, Wanted};
use crate::error::escape;
use crate::report::{NoteKind, OmittedKind};
use crate::stats::Stats;

/// One source, as the walk begins with it.
pub(super) struct Root {
    /// The directory and the name in it that entries refer to.
    pub place: Arc<Dir>,
    pub name: CString,
    pub look: Look,
}

impl Root {
    /// A source that is a directory. It is entered; `place` and `name` are where its own entry belongs.
    pub fn directory(place: Arc<Dir>, name: CString, dir: Arc<Dir>, meta: Meta) -> Root {
        let subdir = Subdir::new(dir, Wanted::ALL);
        Root { place, name, look: Look { meta, found: Found::Directory(subdir), taken: Taken::default() } }
    }

    /// Send of it what a list wants.
    pub fn want(&mut self, wanted: &Wanted) {
        if let Found::Directory(subdir) = &mut self.look.found {
            *subdir = subdir.wanting(wanted.clone());
        }
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
    /// What else it has.
    pub taken: &'a Taken,
    /// A symbolic link's target.
    pub target: &'a [u8],
}

/// The sequential end of the walk. Dropping it ends its threads.
pub(super) struct Walk {
    ahead: Arc<Ahead>,
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
    pub fn new(
        mut roots: Vec<Root>,
        selection: Arc<Selection>,
        dirs: Arc<Dirs>,
        asker: Arc<Asker>,
        stats: Arc<Stats>,
        notes: Arc<NoteSink>,
        threads: usize,
    ) -> Walk {
        // A single directory has no name in the transfer that a rule could be about.
        roots.retain(|root| {
            let name = root.name.to_bytes();
            let rule = selection.excluding(name, 0, || matches!(root.look.found, Found::Directory(_)));
            if let Some(rule) = rule {
                notes.omit(OmittedKind::Excluded, name, selection.rule_text(rule));
            }
            rule.is_none()
        });
        for Root { place, name, look } in &mut roots {
            if let Some(fd) = place.pinned_handle() {
                look.take(&asker, fd.as_fd(), name, &mut Answers::default());
            }
        }
        let ahead = Ahead::new(dirs, selection, asker, stats);
        ahead.begin(roots.iter().map(|root| &root.look));
        let threads = (0..threads)
            .filter_map(|i| {
                let ahead = ahead.clone();
                // Without a thread the walk is slower, and complete.
                std::thread::Builder::new().name(format!("walk {i}")).spawn(move || ahead.run()).ok()
            })
            .collect();
        Walk {
            ahead,
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
                // A directory that was entered is on top of the stack.
                let entered = self.stack.get(level.map_or(0, |level| level + 1));
                let taken = entered.map_or(&look.taken, |frame| &frame.listing.taken);
                return Some(Step { dir, name, path: &self.path, meta, taken, target });
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
        let wanted = level.map(|level| self.stack[level].listing.wanted(at)).filter(|wanted| wanted.named);
        if let Some(wanted) = wanted
            && !self.is_as_named(wanted, &look.found)
        {
            return None;
        }
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
                match self.ahead.listing(&subdir, &mut self.scratch) {
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

    /// Whether something that a list names, or names something below, can go on; if not, it is noted by every name that
    /// the list has.
    fn is_as_named(&self, wanted: &Wanted, found: &Found) -> bool {
        let why = match found {
            Found::Directory(_) | Found::TooDeep => return true,
            Found::Failed(errno) if !is_vanished(*errno) => return true,
            Found::Failed(_) => "it is named by --files-from and is not there".to_owned(),
            Found::Plain | Found::Symlink(_) if !wanted.names_below() => return true,
            Found::Plain | Found::Symlink(_) => {
                format!("it is named by --files-from, and {} is no directory", escape(&self.path))
            }
        };
        let is_there = !matches!(found, Found::Failed(_));
        if wanted.whole && !is_there {
            self.notes.add(NoteKind::Unreadable, &self.path, &*why);
        }
        for below in self.ahead.selection.paths_below(wanted) {
            self.notes.add(NoteKind::Unreadable, &[&self.path, &b"/"[..], &below].concat(), &*why);
        }
        wanted.whole && is_there
    }

    fn enter(&mut self, listing: Arc<Listing>) -> Meta {
        match listing.skipped {
            Some(Skipped::Pseudo(kind)) => self.notes.add(NoteKind::Pseudo, &self.path, kind),
            Some(Skipped::OtherFileSystem) => self.notes.omit(OmittedKind::OtherFileSystem, &self.path, b""),
            None => {}
        }
        if listing.is_cache {
            self.notes.omit(OmittedKind::Cache, &self.path, b"");
        }
        for (name, rule) in &listing.excluded {
            let mut path = Vec::new();
            listing.dir.path_into(listing.text_of(*name).to_bytes(), &mut path);
            self.notes.omit(OmittedKind::Excluded, &path, self.ahead.selection.rule_text(*rule as usize));
        }
        if let Some(errno) = listing.failed {
            self.notes.add(NoteKind::Unreadable, &self.path, cannot_list(errno));
        }
        let meta = listing.meta;
        self.stack.push(Frame { listing, next: 0, batch: Vec::new(), path_len: self.path.len() });
        meta
    }

    fn enter_batch(&mut self, listing: &Arc<Listing>, batch: usize) {
        let looks = self.ahead.looks(listing, batch, &mut self.scratch);
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
        note_missing(&self.ahead.dirs, &self.notes, dir, &self.path, errno);
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
        self.ahead.stop();
        for thread in self.threads.drain(..) {
            // A panic there has already been seen through the cell it left.
            let _ = thread.join();
        }
    }
}
