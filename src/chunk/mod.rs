//! Chunks, the buffers they live in, their digests, and how they are made ready for the wire. No I/O.

mod codecs;
mod digest;
mod gauge;
mod look;
mod mean;
mod pool;
mod seal;
mod subtrees;
mod thorough;

use std::sync::Arc;

pub use crate::wire::{ChunkHead, ChunkKind, Codec};
pub use codecs::{CodecError, Method};
pub use digest::{FileDigest, Misplaced, Ordered, TransferDigest, chunk_digest};
pub use gauge::Gauge;
pub use look::{Compressed, Look};
pub use pool::{Buf, Pool, SharedBuf};
pub use seal::{OpenError, Opener, Sealer};
pub use subtrees::{PartHasher, SparseHasher, Subtree, TreeDigest};

use crate::ids::{Digest, Seq};

/// A verified chunk on its way to the sink.
#[derive(Debug)]
pub struct Chunk {
    /// Its place in the stream.
    pub seq: Seq,
    /// What its content is.
    pub kind: ChunkKind,
    /// Bytes of content, at the start of `buf`.
    pub len: usize,
    /// Of the content, as `kind` says; verified.
    pub digest: Digest,
    /// Where the content is.
    pub buf: Buf,
    /// Dropped after `buf`, so that the buffer is free when the hook turns it into credit.
    pub release: Option<Release>,
}

impl Chunk {
    /// The content.
    pub fn content(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

/// Calls its hook once, when it is dropped: wherever a chunk ends, its buffer is free again.
pub struct Release(Arc<dyn Fn() + Send + Sync>);

impl Release {
    /// Call `hook` on drop.
    pub fn new(hook: Arc<dyn Fn() + Send + Sync>) -> Release {
        Release(hook)
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Release")
    }
}

/// A chunk ready for the wire. It is kept as it is until it is acknowledged, and sent again as the same bytes.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// What its header says.
    pub head: ChunkHead,
    /// Of the content, which the header hides where the chunk is encrypted.
    pub digest: Digest,
    /// Where the payload is.
    pub buf: SharedBuf,
}

impl Sealed {
    /// The bytes that follow the header.
    pub fn payload(&self) -> &[u8] {
        &self.buf[..self.head.payload_len as usize]
    }
}
