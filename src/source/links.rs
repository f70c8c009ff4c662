//! Names that share an inode. The first one carries the content, each later one is a hard link to it.
//!
//! Whether the first name's content really is in the stream is known only when its chunk has been filled: the file may
//! vanish or refuse to be opened until then. A later name must not point to what is not there, so it waits for that
//! chunk, which is on its way, and carries the content itself if the first could not. Within one chunk no wait is
//! possible nor needed: the chunk is filled in order, and the worker decides.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::dirs::{Dir, Inode};
use crate::ids::Seq;

/// Inodes of which a name was seen and more are to come. About 100 bytes and a name each; forgotten with the last name.
#[derive(Default)]
pub(super) struct Links {
    groups: HashMap<Inode, Group>,
}

struct Group {
    dir: Arc<Dir>,
    name: Box<[u8]>,
    /// Names not seen yet.
    remaining: u32,
    /// The chunk that has the first name, unless it is certain already that it is sent.
    chunk: Option<Seq>,
}

impl Links {
    /// Remember the first name of an inode with `links` names.
    pub fn first(&mut self, inode: Inode, links: u32, dir: &Arc<Dir>, name: &[u8], chunk: Option<Seq>) {
        let group = Group { dir: dir.clone(), name: name.into(), remaining: links.saturating_sub(1), chunk };
        self.groups.insert(inode, group);
    }

    /// Put the path of an inode's first name into `path`; returns the chunk that has it, `Some(None)` if it is certain
    /// to be sent, `None` if this is the first name.
    pub fn find(&self, inode: Inode, path: &mut Vec<u8>) -> Option<Option<Seq>> {
        let group = self.groups.get(&inode)?;
        group.dir.path_into(&group.name, path);
        Some(group.chunk)
    }

    /// One more name was seen and planned as a link.
    pub fn again(&mut self, inode: Inode) {
        match self.groups.entry(inode) {
            Occupied(mut group) if group.get().remaining > 1 => group.get_mut().remaining -= 1,
            Occupied(group) => drop(group.remove()),
            Vacant(_) => {}
        }
    }

    /// The first name was not sent; the next one begins anew.
    pub fn forget(&mut self, inode: Inode) {
        self.groups.remove(&inode);
    }
}

/// Which chunks are filled, and which inodes' first names were left out while filling them.
#[derive(Default)]
pub(super) struct Fates {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// All chunks below it are filled or given up.
    next: u64,
    /// Filled ones above it.
    above: BTreeSet<u64>,
    failed: HashSet<Inode>,
}

impl Fates {
    /// The first name of `inode` was left out; to be said before its chunk is filled.
    pub fn fail(&self, inode: Inode) {
        self.lock().failed.insert(inode);
    }

    /// Whether the first name of `inode` was left out, for somebody who knows that its fate is decided.
    pub fn has_failed(&self, inode: Inode) -> bool {
        self.lock().failed.contains(&inode)
    }

    /// A chunk is filled or given up.
    pub fn filled(&self, seq: Seq) {
        let mut state = self.lock();
        state.above.insert(seq.0);
        while state.above.first() == Some(&state.next) {
            state.above.pop_first();
            state.next += 1;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Wait until `seq` is filled; whether the first name of `inode` in it is sent. A failure is reported once.
    pub fn is_sent(&self, seq: Seq, inode: Inode) -> bool {
        let open = |state: &mut State| state.next <= seq.0 && !state.above.contains(&seq.0);
        let mut state = self.changed.wait_while(self.lock(), open).expect("no thread panics while it holds this lock");
        !state.failed.remove(&inode)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }
}
