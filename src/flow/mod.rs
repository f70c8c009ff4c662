//! The protocol's decisions: which link takes which chunk, what must be sent again, what is taken, held, delivered and
//! acknowledged. Pure state machines: no I/O, no clock, no threads, nothing of sockets or files. Time is an argument,
//! the payload is generic; that is what lets the simulation run a whole session in microseconds.
//!
//! ```text
//!   sealed ──► SendFlow ──poll_send/sent──► link ════ chunk frames ════► link ──begin──► RecvFlow ──poll_deliver──►
//!                 ▲                                                                  verified │ ▲
//!                 └────handle_ack──── link ◄════ absolute acks, any link ════ link ◄───ack()──┘ └── released, durable
//! ```
//!
//! - [`SendFlow`] keeps every chunk sealed until it is acknowledged and says what a link with room sends next: the
//!   lowest number that waits (resends come before fresh ones because they are lower), or a hedge. [`InFlight`] knows
//!   which link carries what and since when, [`Scheduler`] whose turn it is.
//! - [`RecvFlow`] admits chunk frames, takes a number only from a verified copy, holds it in the [`Reassembler`] until
//!   it can be delivered in order, and turns freed buffers into credit.
//!
//! Rules for whoever drives them:
//! - Completions of work done elsewhere (a chunk sealed, verified, written, synced) carry the session in which the work
//!   began; those of another session change nothing.
//! - Whatever the peer does is answered with `Ok` or a [`Violation`], never with a panic. After a violation the session
//!   is over and the flow must not be used again. Misuse by our own side panics.
//! - After any call that can make a chunk ready (`sealed`, `ended`, `handle_ack`, `link_down`, and `sent` in strict
//!   rotation) every link with room asks `poll_send` again. A link that was told a time asks again then at the latest,
//!   whether or not anybody woke it: chunks become late without an event.
//! - A link sends an ack when [`RecvFlow::version`] differs from what it last sent, and a full one as its first frame.

mod answers;
mod arrivals;
mod in_flight;
pub mod planted;
mod reassembler;
mod recv_flow;
mod scheduler;
mod send_flow;
mod seq_set;

use crate::ids::{LinkId, Seq};

pub use answers::{Acked, Lack, Poll, Take, Why};
pub use in_flight::InFlight;
pub use reassembler::Reassembler;
pub use recv_flow::{Arrival, RecvFlow, Strikes, Verdict};
pub use scheduler::Scheduler;
pub use send_flow::SendFlow;
pub use seq_set::SeqSet;

/// Time since the session began. The flow compares and adds; it never asks what time it is.
pub type Time = std::time::Duration;

/// How the peer broke the protocol, in words for a person.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A chunk at or past the credit limit.
    #[error("chunk {seq} was sent although only chunks below {limit} were allowed")]
    BeyondCredit {
        /// The chunk's number.
        seq: Seq,
        /// The credit limit.
        limit: u64,
    },
    /// A chunk at or past the end that Finish announced.
    #[error("chunk {seq} was sent although the stream has only {chunks} chunks")]
    BeyondEnd {
        /// The chunk's number.
        seq: Seq,
        /// What Finish said.
        chunks: u64,
    },
    /// Finish contradicts an earlier one, or chunks that have come.
    #[error("the stream was said to end after {now} chunks, but {before} are known")]
    Finish {
        /// What was known or said before.
        before: u64,
        /// What is said now.
        now: u64,
    },
    /// A chunk that was never sent is acknowledged.
    #[error("chunk {seq} was acknowledged but never sent")]
    AckOfUnsent {
        /// The chunk's number.
        seq: Seq,
    },
    /// More frames are settled than a link has carried.
    #[error("{settled} frames were settled on link {link}, which carried only {sent}")]
    SettledUnsent {
        /// The link.
        link: LinkId,
        /// What the peer says.
        settled: u64,
        /// What the link carried.
        sent: u64,
    },
    /// An acknowledgement that no state of a receiver can produce.
    #[error("an acknowledgement contradicts itself: {0}")]
    Nonsense(&'static str),
    /// One chunk failed verification again and again, on whatever link.
    #[error("chunk {seq} failed verification {times} times")]
    NeverVerifies {
        /// The chunk's number.
        seq: Seq,
        /// Copies that failed.
        times: u32,
    },
    /// A connection joined under an id that another one holds.
    #[error("link {0} is already up")]
    LinkInUse(LinkId),
    /// More connections than a session may have.
    #[error("a session has at most {} links", crate::limits::LINKS_MAX)]
    TooManyLinks,
}
