//! BLAKE3 of chunks, of the files and streams whose slices they are, and of a whole transfer.
//!
//! A large file's slices are hashed apart, in any order and on any core, and still give the one digest that `b3sum`
//! prints. BLAKE3 is a binary tree in which the left part of a node always covers the largest power of two of its
//! 1 KiB leaves that is less than the whole. A slice is aligned and a power of two long, or the last, so it is a
//! subtree; what a node hands to its parent is its chaining value. Only the topmost node is finished differently (as
//! the root), which is why a file's only slice has to be known as such before it is hashed.

use std::collections::VecDeque;

use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use super::ChunkKind;
use crate::ids::Digest;
use crate::limits::CHUNK_LEN;

/// The digest of a chunk's content, as its kind says. A slice that is not the only one must not be empty, and its
/// offset must be a multiple of the chunk length; wire refuses others.
pub fn chunk_digest(kind: ChunkKind, content: &[u8]) -> Digest {
    match kind {
        ChunkKind::Mixed | ChunkKind::Data { sole: true, .. } => Digest(blake3::hash(content).into()),
        ChunkKind::Data { offset, sole: false } => {
            Digest(Hasher::new().set_input_offset(offset).update(content).finalize_non_root())
        }
    }
}

/// A slice that cannot be the next of its file.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("a slice at byte {offset} does not go on where the file's slices end, at byte {end}")]
pub struct Misplaced {
    /// Where the slice says it belongs.
    pub offset: u64,
    /// Where the next slice would begin, if there can be one.
    pub end: u64,
}

/// BLAKE3 of a large file or raw stream, from the digests of its slices in order. Holds a few dozen values, however
/// long the file.
#[derive(Clone, Debug, Default)]
pub struct FileDigest {
    /// Chaining values of complete subtrees, the largest first. Two of equal size are merged only when a further slice
    /// shows that their parent is not the root.
    subtrees: Vec<Digest>,
    /// Full slices so far.
    full: u64,
    /// Bytes of the last slice, if it was short: no slice can follow.
    short: Option<usize>,
    /// Whether the one slice so far was the only one.
    sole: bool,
}

impl FileDigest {
    /// Of no bytes yet.
    pub fn new() -> FileDigest {
        FileDigest::default()
    }

    /// Bytes of all slices so far.
    pub fn len(&self) -> u64 {
        self.full * CHUNK_LEN as u64 + self.short.unwrap_or(0) as u64
    }

    /// Whether there was no slice yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Add the next slice: its kind, its length and its verified digest. A chunk that is no slice, or not the next one,
    /// is refused and changes nothing.
    pub fn push(&mut self, kind: ChunkKind, len: usize, digest: Digest) -> Result<(), Misplaced> {
        let (offset, sole) = match kind {
            ChunkKind::Data { offset, sole } => (offset, sole),
            ChunkKind::Mixed => (0, false),
        };
        let is_next = offset == self.len() && self.short.is_none() && !self.sole && (!sole || offset == 0);
        if kind == ChunkKind::Mixed || !is_next || len == 0 || len > CHUNK_LEN {
            return Err(Misplaced { offset, end: self.len() });
        }
        while self.subtrees.len() > self.full.count_ones() as usize {
            self.merge_last_two();
        }
        self.subtrees.push(digest);
        self.sole = sole;
        if len == CHUNK_LEN {
            self.full += 1;
        } else {
            self.short = Some(len);
        }
        Ok(())
    }

    /// The digest of all slices: what `b3sum` prints for the file. `None` if there is one slice only and it was not
    /// hashed as such.
    pub fn finish(mut self) -> Option<Digest> {
        while self.subtrees.len() > 2 {
            self.merge_last_two();
        }
        match self.subtrees[..] {
            [] => Some(Digest(blake3::hash(b"").into())),
            [only] => self.sole.then_some(only),
            [left, right, ..] => Some(Digest(merge_subtrees_root(&left.0, &right.0, Mode::Hash).into())),
        }
    }

    fn merge_last_two(&mut self) {
        let (right, left) = (self.subtrees.pop(), self.subtrees.pop());
        let (left, right) = (left.expect("there are two"), right.expect("there are two"));
        self.subtrees.push(Digest(merge_subtrees_non_root(&left.0, &right.0, Mode::Hash)));
    }
}

/// BLAKE3 over (length, digest) of all chunks in order: both ends compute it, and it says that they agree on all of
/// the stream and on how it was cut. Length is 4 bytes, little-endian.
#[derive(Clone, Debug, Default)]
pub struct TransferDigest {
    hasher: Hasher,
}

impl TransferDigest {
    /// Of no chunks yet.
    pub fn new() -> TransferDigest {
        TransferDigest::default()
    }

    /// Add the next chunk.
    pub fn push(&mut self, len: usize, digest: Digest) {
        let len = u32::try_from(len).expect("a chunk's length");
        self.hasher.update(&len.to_le_bytes()).update(&digest.0);
    }

    /// The digest of all chunks so far.
    pub fn finish(&self) -> Digest {
        Digest(self.hasher.finalize().into())
    }
}

/// Puts values back in order: each has a number, comes once, in any order. Holds those that came early, which are no
/// more than the chunks at work.
#[derive(Clone, Debug)]
pub struct Ordered<T> {
    next: u64,
    /// What came early: the first place is for the number after `next`. As long as the farthest ever was, so that in
    /// the long run nothing is allocated.
    early: VecDeque<Option<T>>,
}

impl<T> Ordered<T> {
    /// Nothing came yet; the first number is 0.
    pub fn new() -> Ordered<T> {
        Ordered { next: 0, early: VecDeque::new() }
    }

    /// The lowest number that has not come.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Add one, and hand every value whose turn has come to `fold`, in order.
    pub fn push(&mut self, number: u64, value: T, mut fold: impl FnMut(T)) {
        if number != self.next {
            let at = number.checked_sub(self.next + 1).expect("each number comes once") as usize;
            if self.early.len() <= at {
                self.early.resize_with(at + 1, || None);
            }
            let before = self.early[at].replace(value);
            assert!(before.is_none(), "each number comes once");
            return;
        }
        fold(value);
        self.next += 1;
        while let Some(value) = self.early.pop_front().flatten() {
            fold(value);
            self.next += 1;
        }
    }
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: usize = CHUNK_LEN;

    fn bytes(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    /// The digests of a file's slices, as chunks carry them.
    fn slices(file: &[u8]) -> Vec<(ChunkKind, usize, Digest)> {
        let sole = file.len() <= C;
        file.chunks(C)
            .enumerate()
            .map(|(i, slice)| {
                let kind = ChunkKind::Data { offset: (i * C) as u64, sole };
                (kind, slice.len(), chunk_digest(kind, slice))
            })
            .collect()
    }

    #[test]
    fn slices_merge_into_the_digest_of_the_whole_file() {
        let file = bytes(33 * C + 5);
        let partial_lens = [1, 1023, 1024, 1025, 64 << 10, C - 1];
        let full = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33].map(|n| n * C);
        let lens = full.into_iter().chain(full.into_iter().flat_map(|n| partial_lens.map(|p| n + p)));
        for len in lens.filter(|len| *len <= file.len()) {
            let mut digest = FileDigest::new();
            for (kind, len, slice) in slices(&file[..len]) {
                digest.push(kind, len, slice).unwrap();
            }
            assert_eq!(digest.len(), len as u64);
            assert!(digest.subtrees.len() <= 7, "a value for each power of two and no more");
            assert_eq!(digest.finish(), Some(Digest(blake3::hash(&file[..len]).into())), "{len} bytes");
        }
    }

    #[test]
    fn a_file_far_beyond_memory_keeps_a_few_dozen_values() {
        let mut digest = FileDigest::new();
        for i in 0..1 << 20 {
            let kind = ChunkKind::Data { offset: i * C as u64, sole: false };
            digest.push(kind, C, Digest([i as u8; 32])).unwrap();
            assert!(digest.subtrees.len() <= 21);
        }
        assert_eq!(digest.len(), 1 << 40);
    }

    #[test]
    fn a_slice_out_of_place_is_refused_and_changes_nothing() {
        let file = bytes(2 * C + 9);
        let slices = slices(&file);
        let mut digest = FileDigest::new();
        let refused = |digest: &mut FileDigest, (kind, len, value)| {
            let end = digest.len();
            assert_eq!(digest.push(kind, len, value).unwrap_err().end, end);
        };
        refused(&mut digest, slices[1]);
        refused(&mut digest, (ChunkKind::Mixed, C, slices[0].2));
        refused(&mut digest, (ChunkKind::Data { offset: 0, sole: false }, 0, slices[0].2));
        refused(&mut digest, (ChunkKind::Data { offset: C as u64, sole: true }, 9, slices[0].2));
        digest.push(slices[0].0, slices[0].1, slices[0].2).unwrap();
        refused(&mut digest, slices[0]);
        refused(&mut digest, slices[2]);
        digest.push(slices[1].0, slices[1].1, slices[1].2).unwrap();
        digest.push(slices[2].0, slices[2].1, slices[2].2).unwrap();
        refused(&mut digest, (ChunkKind::Data { offset: 2 * C as u64 + 9, sole: false }, 1, slices[0].2));
        assert_eq!(digest.finish(), Some(Digest(blake3::hash(&file).into())));
    }

    #[test]
    fn nothing_follows_an_only_slice_and_one_slice_must_be_hashed_as_the_only_one() {
        let mut sole = FileDigest::new();
        sole.push(ChunkKind::Data { offset: 0, sole: true }, C, Digest([1; 32])).unwrap();
        assert!(sole.push(ChunkKind::Data { offset: C as u64, sole: false }, C, Digest([2; 32])).is_err());
        assert_eq!(sole.finish(), Some(Digest([1; 32])));

        let mut first_of_more = FileDigest::new();
        first_of_more.push(ChunkKind::Data { offset: 0, sole: false }, C, Digest([1; 32])).unwrap();
        assert_eq!(first_of_more.finish(), None);
    }

    #[test]
    fn a_transfers_digest_depends_on_order_cuts_and_contents() {
        let digest = |chunks: &[(usize, u8)]| {
            let mut digest = TransferDigest::new();
            chunks.iter().for_each(|(len, d)| digest.push(*len, Digest([*d; 32])));
            digest.finish()
        };
        let base = digest(&[(1, 1), (2, 2)]);
        assert_ne!(base, digest(&[(2, 2), (1, 1)]));
        assert_ne!(base, digest(&[(2, 1), (2, 2)]));
        assert_ne!(base, digest(&[(1, 1), (2, 3)]));
        assert_ne!(base, digest(&[(1, 1)]));
        assert_eq!(digest(&[]), Digest(blake3::hash(b"").into()));
    }

    #[test]
    fn early_values_wait_for_their_turn() {
        let (mut ordered, mut folded) = (Ordered::new(), Vec::new());
        for number in [2, 0, 1, 4, 5, 3] {
            ordered.push(number, number, |n| folded.push(n));
        }
        assert_eq!(folded, [0, 1, 2, 3, 4, 5]);
        assert_eq!(ordered.next(), 6);
        assert!(ordered.early.is_empty());
    }
}
