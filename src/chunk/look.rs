//! What [`super::gauge`] goes by: how the sender's side looks before a chunk is sealed, and what came of compressing it.

use std::time::Duration;

use super::codecs::Method;
use crate::ids::Seq;
use crate::limits;

/// Time since some start.
pub type Time = Duration;

/// Bytes of content in a full chunk.
pub(super) const CHUNK_LEN: f64 = limits::CHUNK_LEN as f64;

/// What the sender's side of a session looks like before a chunk is sealed.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When.
    pub now: Time,
    /// Chunks that may be sent and that no link has taken.
    pub waiting: usize,
    /// Links that are up.
    pub links: usize,
    /// Bytes that all links have taken so far.
    pub wire_bytes: u64,
    /// How often the links have taken the last chunk that waited.
    pub ran_dry: u64,
    /// Chunks that links have begun so far, and of these, those they have taken whole.
    pub begun: u64,
    /// See `begun`.
    pub carried: u64,
    /// Chunks that links have taken and that are not acknowledged.
    pub unacked: usize,
    /// Chunks below it are acknowledged.
    pub acked: Seq,
    /// Bytes of the chunk's content.
    pub content_len: usize,
}

/// A chunk that was compressed.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// Its number.
    pub seq: Seq,
    /// When it was done.
    pub now: Time,
    /// How long it took.
    pub took: Duration,
    /// How.
    pub method: Method,
    /// Bytes of content.
    pub content_len: usize,
    /// Bytes of payload.
    pub payload_len: usize,
}
