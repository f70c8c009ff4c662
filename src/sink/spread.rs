//! The data of a file with holes, in order, to its places. The holes are not written; they are there already, since the
//! file was made one hole first.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::writer::write_at;
use crate::archive::SparseMap;
use crate::chunk::SparseHasher;
use crate::ids::Digest;

/// A file with holes that is being written.
pub(super) struct Spread {
    pub map: Arc<SparseMap>,
    /// The extent that comes next, and how much of it is written.
    next: usize,
    within: u64,
    /// Only for a manifest, and how far it has come.
    hasher: Option<(SparseHasher, u64)>,
}

impl Spread {
    /// Nothing is written yet.
    pub fn new(map: Arc<SparseMap>, hash: bool) -> Spread {
        let hasher = hash.then(|| (SparseHasher::new(map.size()), 0));
        Spread { map, next: 0, within: 0, hasher }
    }

    /// Write what comes next; a file's data is no more than its map says.
    pub fn write(&mut self, fd: impl AsFd, data: &[u8]) -> Result<(), Errno> {
        self.each(data, |part, offset| write_at(&fd, part, offset))
    }

    /// Take notice of what comes next without writing it.
    pub fn hash(&mut self, data: &[u8]) {
        let done = self.each(data, |_, _| Ok(()));
        debug_assert!(done.is_ok());
    }

    /// The whole file's digest, after all of its data; `None` if it was not wanted.
    pub fn digest(self) -> Option<Digest> {
        let (mut hasher, hashed) = self.hasher?;
        hasher.zeros(self.map.size() - hashed);
        hasher.finish()
    }

    fn each(&mut self, mut data: &[u8], mut part: impl FnMut(&[u8], u64) -> Result<(), Errno>) -> Result<(), Errno> {
        while !data.is_empty() {
            let extent = self.map.extents()[self.next];
            let take = (extent.len - self.within).min(data.len() as u64);
            let (now, rest) = data.split_at(take as usize);
            let offset = extent.offset + self.within;
            part(now, offset)?;
            if let Some((hasher, hashed)) = &mut self.hasher {
                hasher.zeros(offset - *hashed);
                hasher.update(now);
                *hashed = offset + take;
            }
            self.within += take;
            if self.within == extent.len {
                (self.next, self.within) = (self.next + 1, 0);
            }
            data = rest;
        }
        Ok(())
    }
}
