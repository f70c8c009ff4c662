//! What must hold in every run, and which rare branches the runs must have taken.

use std::fmt;

/// The rules of the protocol that a run can break. Each has at least one planted bug that only its check catches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invariant {
    /// Each number is applied once, in order, with the content that was sealed.
    Applied,
    /// Memory is within the window and the links' own buffers, for any peer.
    Memory,
    /// The sender keeps no more than its pool, for any peer.
    Kept,
    /// What breaks the protocol is named as that, and nothing else is.
    Named,
    /// No chunk is called durable that a power loss can take.
    Durable,
    /// A completion of an older session changes nothing.
    Stale,
    /// A session and a number are sealed with one content only.
    Nonce,
    /// Once faults stop and one link is up, it ends within a bound.
    Ends,
    /// Links that harm for ever cost the sum what they would have carried, and a tail that is not theirs to decide.
    Tail,
    /// Success means that everything is on the disk, whole.
    Equal,
    /// Nothing is sent that the receiver has not allowed.
    Credit,
    /// An honest peer is never accused.
    Honest,
    /// Nothing panics.
    Panic,
}

/// A broken invariant.
#[derive(Debug)]
pub struct Failure {
    pub invariant: Invariant,
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.detail)
    }
}

pub type Checked<T = ()> = Result<T, Box<Failure>>;

/// Fail with the invariant unless the condition holds.
pub fn ensure(holds: bool, invariant: Invariant, detail: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Box::new(Failure { invariant, detail: detail() })) }
}

/// Rare branches. A long run that does not take each of them proves less than it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mark {
    /// A dead link gave chunks back.
    Requeued,
    /// A link died with everything it carried in flight elsewhere or acknowledged.
    NothingToRequeue,
    /// A late chunk was sent once more.
    Hedged,
    /// The copy sent once more was there first, and the late one came after all.
    LateDuplicate,
    /// Two copies were in verification at once.
    DuplicateVerified,
    /// A copy failed verification and its chunk was sent again.
    Resent,
    /// A link was dropped because copy after copy failed.
    StruckOut,
    /// An ack arrived after a newer one.
    AckOvertaken,
    /// A chunk was verified after its link had died.
    VerifiedAfterDeath,
    /// A verification, a write or a sync ended in a later session than it began in.
    StaleVerified,
    /// See `StaleVerified`.
    StaleWrote,
    /// See `StaleVerified`.
    StaleSynced,
    /// A chunk was sealed in a later session than it was planned in.
    StaleSealed,
    /// A sync failed.
    SyncFailed,
    /// Power was lost with unsynced writes.
    PowerLost,
    /// The window was closed while the sender had more.
    Blocked,
    /// A link waited for a buffer.
    OutOfBuffers,
    /// A link was declared dead because it was silent.
    Silent,
    /// It was silent one way only.
    HalfCut,
    /// A link healed before that.
    Healed,
    /// The receiver knew a link for longer than the sender.
    HalfOpen,
    /// Commit was lost with a link and repeated on another.
    CommitRepeated,
    /// Finish came before chunks.
    FinishEarly,
    /// The source changed in the middle of a session.
    SourceChanged,
    /// A hostile sender was caught with a chunk past the credit limit.
    BeyondCredit,
    /// With one past its own end.
    BeyondEnd,
    /// With another end than it had said, or one below what had come.
    EndChanged,
    /// A second connection under a link's id was refused.
    LinkRefused,
    /// A hostile receiver was caught with an ack of what was never sent.
    AckOfUnsent,
    /// With more settled frames than a link had carried.
    SettledUnsent,
    /// With one chunk damaged again and again.
    NeverVerifies,
    /// With an ack that contradicts itself.
    NonsenseAck,
    /// With a Commit that came too early or was of something else.
    CommitRefused,
    /// It had the right digest: no sender can tell.
    CommitForged,
    /// Strict rotation was used.
    RoundRobin,
    /// There was nothing to send.
    Empty,
}

impl Mark {
    /// Those that an ordinary number of seeds is sure to hit.
    pub const ALL: [Mark; 35] = {
        use Mark::*;
        [
            Requeued,
            NothingToRequeue,
            Hedged,
            LateDuplicate,
            DuplicateVerified,
            Resent,
            StruckOut,
            AckOvertaken,
            VerifiedAfterDeath,
            StaleVerified,
            StaleWrote,
            StaleSynced,
            StaleSealed,
            SyncFailed,
            PowerLost,
            Blocked,
            OutOfBuffers,
            Silent,
            HalfCut,
            Healed,
            HalfOpen,
            CommitRepeated,
            FinishEarly,
            SourceChanged,
            BeyondCredit,
            BeyondEnd,
            EndChanged,
            LinkRefused,
            AckOfUnsent,
            SettledUnsent,
            NonsenseAck,
            CommitRefused,
            CommitForged,
            RoundRobin,
            Empty,
        ]
    };
}

/// The marks that were hit.
#[derive(Clone, Copy, Default)]
pub struct Marks(u64);

impl Marks {
    pub fn hit(&mut self, mark: Mark) {
        self.0 |= 1 << mark as u8;
    }

    pub fn merge(&mut self, other: Marks) {
        self.0 |= other.0;
    }

    pub fn missed(self) -> Vec<Mark> {
        Mark::ALL.into_iter().filter(|m| self.0 >> *m as u8 & 1 == 0).collect()
    }
}
