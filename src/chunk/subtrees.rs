//! BLAKE3 of a file with holes, from its data and the lengths of its holes.
//!
//! Every 1 KiB leaf of BLAKE3 is hashed with its place in the file, so that zeros have another digest at each place, on
//! purpose: there is no short cut for a hole, it costs as much as if it were data that is in the cache. What can be
//! done is to leave it to several cores, and to none unless somebody asked for the digest.
//!
//! Like slices of 1 MiB, parts of any whole number of leaves give subtrees that merge; only that there is more than one
//! size of them.

use std::sync::Mutex;
use std::thread;

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::ids::Digest;
use crate::limits::CHUNK_LEN;

/// Bytes of a leaf of the tree.
const LEAF_LEN: u64 = 1024;

/// Zeros in this amount and more, aligned to it, are shared among cores.
const SHARE_LEN: u64 = 16 << 20;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// One node of a file's tree: the chaining value of so many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subtree {
    /// Bytes.
    pub len: u64,
    /// Its chaining value.
    pub digest: Digest,
}

/// Hashes one part of a file that is longer than a leaf, in order.
#[derive(Debug)]
pub struct PartHasher {
    at: u64,
    end: u64,
    /// No subtree is longer: all of a file would be none.
    len_max: u64,
    /// The subtree at hand.
    open: Option<Open>,
    done: Vec<Subtree>,
}

/// A subtree in the making.
#[derive(Debug)]
struct Open {
    hasher: Box<Hasher>,
    start: u64,
    end: u64,
}

impl PartHasher {
    /// The part from `start` to `end` of a file of `size` bytes. Both are multiples of 1 KiB, but for the file's end.
    pub fn new(start: u64, end: u64, size: u64) -> PartHasher {
        debug_assert!(start.is_multiple_of(LEAF_LEN) && size > LEAF_LEN);
        let len_max = (CHUNK_LEN as u64).min(1 << (size - 1).ilog2());
        PartHasher { at: start, end, len_max, open: None, done: Vec::new() }
    }

    /// The next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let take = self.room().min(bytes.len() as u64);
            let (now, rest) = bytes.split_at(take as usize);
            self.feed(now);
            bytes = rest;
        }
    }

    /// That many zeros.
    pub fn zeros(&mut self, mut len: u64) {
        while len > 0 {
            if self.open.is_none() && self.at.is_multiple_of(SHARE_LEN) && len >= 2 * SHARE_LEN {
                let count = len / SHARE_LEN;
                self.done.extend(shared_zeros(self.at, count));
                self.at += count * SHARE_LEN;
                len -= count * SHARE_LEN;
                continue;
            }
            let take = self.room().min(len).min(ZEROS.len() as u64);
            self.feed(&ZEROS[..take as usize]);
            len -= take;
        }
    }

    /// The part's subtrees so far, in order; the last of them ends where the part does, once all of it was added.
    pub fn take(&mut self) -> Vec<Subtree> {
        std::mem::take(&mut self.done)
    }

    /// Bytes that the subtree at hand, or the next one, still takes.
    fn room(&self) -> u64 {
        match &self.open {
            Some(open) => open.end - self.at,
            None => self.next_len(),
        }
    }

    /// The largest subtree that can begin here.
    fn next_len(&self) -> u64 {
        let left = self.end - self.at;
        if left < LEAF_LEN {
            return left;
        }
        let aligned = if self.at == 0 { u64::MAX } else { 1 << self.at.trailing_zeros() };
        aligned.min(1 << left.ilog2()).min(self.len_max)
    }

    /// Bytes of one subtree.
    fn feed(&mut self, bytes: &[u8]) {
        let (at, len) = (self.at, self.next_len());
        let open = self.open.get_or_insert_with(|| {
            let mut hasher = Box::new(Hasher::new());
            hasher.set_input_offset(at);
            Open { hasher, start: at, end: at + len }
        });
        open.hasher.update(bytes);
        self.at += bytes.len() as u64;
        if self.at == open.end {
            let len = open.end - open.start;
            self.done.push(Subtree { len, digest: Digest(open.hasher.finalize_non_root()) });
            self.open = None;
        }
    }
}

/// The subtrees of `count` times [`SHARE_LEN`] zeros from `start` on.
fn shared_zeros(start: u64, count: u64) -> Vec<Subtree> {
    let mut subtrees = vec![Subtree { len: SHARE_LEN, digest: Digest([0; 32]) }; count as usize];
    let left = Mutex::new(subtrees.iter_mut().enumerate());
    let work = || {
        let next = || left.lock().expect("no thread panics while it holds this lock").next();
        while let Some((i, subtree)) = next() {
            let mut hasher = Hasher::new();
            hasher.set_input_offset(start + i as u64 * SHARE_LEN);
            for _ in 0..SHARE_LEN / ZEROS.len() as u64 {
                hasher.update(&ZEROS);
            }
            subtree.digest = Digest(hasher.finalize_non_root());
        }
    };
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    thread::scope(|scope| {
        for _ in 1..cores {
            // Without a thread to spare this one does it all.
            let _ = thread::Builder::new().name("zeros".into()).spawn_scoped(scope, work);
        }
        work();
    });
    subtrees
}

/// BLAKE3 of a file longer than a leaf, from all its subtrees in order. Holds a few dozen values.
#[derive(Clone, Debug, Default)]
pub struct TreeDigest {
    /// The largest first. Two of equal size are merged only when a further one shows that their parent is not the root.
    subtrees: Vec<Subtree>,
    len: u64,
}

impl TreeDigest {
    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Add the next subtree.
    pub fn push(&mut self, subtree: Subtree) {
        while let [.., left, right] = self.subtrees[..]
            && left.len == right.len
        {
            self.merge_last_two();
        }
        self.len += subtree.len;
        self.subtrees.push(subtree);
    }

    /// The digest of all of it: what `b3sum` prints for the file. `None` if there was one subtree at most, since the
    /// topmost one is not hashed like the others.
    pub fn finish(mut self) -> Option<Digest> {
        while self.subtrees.len() > 2 {
            self.merge_last_two();
        }
        match self.subtrees[..] {
            [left, right] => Some(Digest(merge_subtrees_root(&left.digest.0, &right.digest.0, Mode::Hash).into())),
            _ => None,
        }
    }

    fn merge_last_two(&mut self) {
        let (right, left) = (self.subtrees.pop(), self.subtrees.pop());
        let (left, right) = (left.expect("there are two"), right.expect("there are two"));
        let digest = Digest(merge_subtrees_non_root(&left.digest.0, &right.digest.0, Mode::Hash));
        self.subtrees.push(Subtree { len: left.len + right.len, digest });
    }
}

/// BLAKE3 of a whole file, in order, its holes given by their lengths.
#[derive(Debug)]
pub enum SparseHasher {
    /// It is no longer than a chunk.
    Short(Box<Hasher>),
    /// Its parts are merged as they come.
    Long(PartHasher, TreeDigest),
}

impl SparseHasher {
    /// Of a file of that many bytes.
    pub fn new(size: u64) -> SparseHasher {
        if size <= CHUNK_LEN as u64 {
            SparseHasher::Short(Box::default())
        } else {
            SparseHasher::Long(PartHasher::new(0, size, size), TreeDigest::default())
        }
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            SparseHasher::Short(hasher) => drop(hasher.update(bytes)),
            SparseHasher::Long(part, tree) => {
                part.update(bytes);
                part.take().into_iter().for_each(|subtree| tree.push(subtree));
            }
        }
    }

    /// That many zeros.
    pub fn zeros(&mut self, mut len: u64) {
        match self {
            SparseHasher::Short(hasher) => {
                while len > 0 {
                    let take = len.min(ZEROS.len() as u64);
                    hasher.update(&ZEROS[..take as usize]);
                    len -= take;
                }
            }
            SparseHasher::Long(part, tree) => {
                part.zeros(len);
                part.take().into_iter().for_each(|subtree| tree.push(subtree));
            }
        }
    }

    /// What `b3sum` prints for the file; `None` if not all of it was added.
    pub fn finish(self) -> Option<Digest> {
        match self {
            SparseHasher::Short(hasher) => Some(Digest(hasher.finalize().into())),
            SparseHasher::Long(part, tree) => (tree.len() == part.end).then(|| tree.finish()).flatten(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file of ranges that are zeros or not, and its digest as the crate has it.
    fn file(ranges: &[(bool, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (n, (data, len)) in ranges.iter().enumerate() {
            let start = bytes.len();
            bytes.resize(start + len, 0);
            if *data {
                Hasher::new().update(&[n as u8]).finalize_xof().fill(&mut bytes[start..]);
            }
        }
        bytes
    }

    fn hashed(ranges: &[(bool, usize)], bytes: &[u8]) -> Option<Digest> {
        let mut hasher = SparseHasher::new(bytes.len() as u64);
        let mut at = 0;
        for (data, len) in ranges {
            if *data {
                hasher.update(&bytes[at..at + len])
            } else {
                hasher.zeros(*len as u64)
            }
            at += len;
        }
        hasher.finish()
    }

    #[test]
    fn long_holes_are_shared_and_give_the_digest_of_their_zeros() {
        const M: usize = 1 << 20;
        for ranges in [
            vec![(false, 70 * M)],
            vec![(true, 1), (false, 64 * M - 1), (true, M)],
            vec![(false, 32 * M), (true, 4096), (false, 48 * M + 5)],
            vec![(true, 20 * M), (false, 50 * M)],
        ] {
            let bytes = file(&ranges);
            assert_eq!(hashed(&ranges, &bytes), Some(Digest(blake3::hash(&bytes).into())), "{ranges:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_all_there_has_no_digest() {
        let mut hasher = SparseHasher::new(3 << 20);
        hasher.zeros(2 << 20);
        assert_eq!(hasher.finish(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

        #[test]
        fn parts_cut_anywhere_merge_into_the_digest_of_the_file(
            ranges in proptest::collection::vec((any::<bool>(), prop_oneof![1..2000usize, 1..700_000usize]), 1..9),
            cuts in proptest::collection::vec(0..3000u64, 0..6),
        ) {
            let bytes = file(&ranges);
            let size = bytes.len() as u64;
            let right = Digest(blake3::hash(&bytes).into());
            prop_assert_eq!(hashed(&ranges, &bytes), Some(right));
            if size > LEAF_LEN {
                let mut cuts: Vec<u64> = cuts.into_iter().map(|cut| cut * LEAF_LEN).filter(|cut| *cut < size).collect();
                cuts.extend([0, size]);
                cuts.sort_unstable();
                let mut tree = TreeDigest::default();
                for part in cuts.windows(2) {
                    let mut hasher = PartHasher::new(part[0], part[1], size);
                    hasher.update(&bytes[part[0] as usize..part[1] as usize]);
                    hasher.take().into_iter().for_each(|subtree| tree.push(subtree));
                }
                prop_assert_eq!(tree.finish(), Some(right));
            }
        }
    }
}
