//! What [`SendFlow`](super::SendFlow) answers its links: what to send and why, what is lacking, what an ack changed.

use super::Time;
use crate::ids::{LinkId, Seq};

/// What a link does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Poll<P> {
    /// Send this.
    Send(Take<P>),
    /// Nothing now; ask again at this time, when a chunk may have become late.
    Until(Time),
    /// Nothing until something changes.
    Idle,
}

/// A chunk to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Take<P> {
    /// Its number.
    pub seq: Seq,
    /// What was sealed.
    pub payload: P,
    /// Why it is sent.
    pub why: Why,
}

/// Why a chunk is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// For the first time.
    Fresh,
    /// It was lost with a link or failed verification.
    Resend,
    /// It is late on another link.
    Hedge,
}

/// What keeps the lowest chunk that was never sent from being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// There is none; only acknowledgements are outstanding.
    Nothing,
    /// It is not sealed yet, or has just been.
    Chunk,
    /// The receiver does not allow it yet.
    Credit,
}

/// What an ack changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Acked {
    /// Chunks newly acknowledged; their payloads are dropped.
    pub released: u64,
    /// Whether the credit limit rose.
    pub credit_rose: bool,
    /// Copies that arrived and failed verification, with the link that brought them.
    pub lost: Vec<(Seq, LinkId)>,
}
