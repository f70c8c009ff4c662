//! Names that share an inode. The first one carries the content, each later one is a hard link to it.
//!
//! Whether the first name's content really is in the stream is known only when its chunk has been filled: the file may
//! vanish or refuse to be opened until then. A later name must not point to what is not there, so it waits for that
//! chunk, which is on its way, and carries the content itself if the first could not. Within one chunk no wait is
//! possible nor needed: the chunk is filled in order, and the worker decides.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::dirs::{Dir, Inode};
use crate::ids::Seq;

/// Inodes of which a name was seen and more are to come; forgotten with the last name. There can be millions: an inode
/// takes about 100 bytes, its name included, which is why devices have tables of their own and numbers are packed.
#[derive(Default)]
pub(super) struct Links {
    devices: HashMap<u64, HashMap<u64, Group>>,
}

struct Group {
    dir: Arc<Dir>,
    name: Box<[u8]>,
    /// The number, plus one, of the chunk that has the first name, unless it is certain already that it is sent.
    chunk: Option<NonZeroU64>,
    /// Names not seen yet.
    remaining: u32,
}

const _: () = assert!(size_of::<(u64, Group)>() == 48);

impl Links {
    /// Remember the first name of an inode with `links` names.
    pub fn first(&mut self, inode: Inode, links: u32, dir: &Arc<Dir>, name: &[u8], chunk: Option<Seq>) {
        let chunk = chunk.and_then(|seq| NonZeroU64::new(seq.0 + 1));
        let group = Group { dir: dir.clone(), name: name.into(), chunk, remaining: links.saturating_sub(1) };
        self.devices.entry(inode.dev).or_default().insert(inode.ino, group);
    }

    /// Put the path of an inode's first name into `path`; returns the chunk that has it, `Some(None)` if it is certain
    /// to be sent, `None` if this is the first name.
    pub fn find(&self, inode: Inode, path: &mut Vec<u8>) -> Option<Option<Seq>> {
        let group = self.devices.get(&inode.dev)?.get(&inode.ino)?;
        group.dir.path_into(&group.name, path);
        Some(group.chunk.map(|number| Seq(number.get() - 1)))
    }

    /// One more name was seen and planned as a link.
    pub fn again(&mut self, inode: Inode) {
        let Some(group) = self.devices.get_mut(&inode.dev).and_then(|groups| groups.get_mut(&inode.ino)) else {
            return;
        };
        group.remaining -= 1;
        if group.remaining == 0 {
            self.forget(inode);
        }
    }

    /// The first name was not sent; the next one begins anew.
    pub fn forget(&mut self, inode: Inode) {
        if let Some(groups) = self.devices.get_mut(&inode.dev) {
            groups.remove(&inode.ino);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: Inode = Inode { dev: 1, ino: 2 };

    #[test]
    fn an_inode_is_forgotten_with_its_last_name() {
        let mut links = Links::default();
        let mut path = Vec::new();
        assert_eq!(links.find(INODE, &mut path), None);
        links.first(INODE, 3, &Dir::nowhere(), b"a", Some(Seq(0)));
        for _ in 0..2 {
            assert_eq!(links.find(INODE, &mut path), Some(Some(Seq(0))));
            assert_eq!(path, b"a");
            assert_eq!(links.find(Inode { dev: 2, ..INODE }, &mut Vec::new()), None);
            links.again(INODE);
        }
        assert_eq!(links.find(INODE, &mut path), None);
    }

    #[test]
    fn a_name_more_than_the_count_said_is_a_link_all_the_same_or_begins_anew() {
        let mut links = Links::default();
        links.first(INODE, 2, &Dir::nowhere(), b"a", None);
        links.again(INODE);
        links.again(INODE);
        assert_eq!(links.find(INODE, &mut Vec::new()), None);
    }

    #[test]
    fn who_asks_for_a_fate_waits_for_that_chunk_and_no_other() {
        let fates = Fates::default();
        fates.filled(Seq(2));
        assert!(fates.is_sent(Seq(2), INODE));
        std::thread::scope(|s| {
            let asked = s.spawn(|| fates.is_sent(Seq(1), INODE));
            fates.filled(Seq(0));
            fates.fail(INODE);
            fates.filled(Seq(1));
            assert!(!asked.join().unwrap());
        });
        assert!(fates.is_sent(Seq(1), INODE), "told once");
    }
}
