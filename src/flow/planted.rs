//! Known bugs, planted one at a time to prove that the checks of the simulation catch them. Without the feature
//! `planted` the question is a constant and nothing of this is compiled in.
//!
//! Those marked *driver* are mistakes that whoever drives the flow could make; the simulation's hosts ask for them.

/// One known bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// What a dead link carried is forgotten.
    RequeueSkipped,
    /// A copy that failed verification is forgotten.
    LossNotResent,
    /// A late chunk is never sent once more.
    HedgeForgotten,
    /// Only the link that has been up for longest takes chunks that wait; others help when they are late.
    FirstLinkOnly,
    /// The sender ignores the credit limit.
    CreditIgnored,
    /// A chunk sealed in an older session is taken.
    StaleSealedTaken,
    /// The receiver accepts any number.
    WindowNotEnforced,
    /// A second copy of a delivered chunk is delivered again.
    DuplicateDelivered,
    /// A chunk verified in an older session is taken.
    StaleVerifiedTaken,
    /// A buffer released in an older session is counted.
    StaleReleaseCounted,
    /// A durable mark of an older session is taken.
    StaleDurableTaken,
    /// Chunks held above a gap are dropped when a link dies.
    HeldDropped,
    /// A chunk acknowledged above the cumulative ack counts again when that has reached it.
    ReleasedTwice,
    /// More frames than a link has carried may be settled on it.
    SettledUnsentTaken,
    /// Another end than the one that was announced is taken.
    FinishChanged,
    /// Driver: the first frame of a new link is not the whole state.
    JoinWithoutState,
    /// Driver: a number is taken although verification failed.
    TakenUnverified,
    /// Driver: credit is given before the buffer is free.
    ReleasedEarly,
    /// Driver: written counts as durable.
    DurableBeforeSync,
    /// Driver: a failed sync is tried again and believed.
    SyncRetried,
    /// Driver: Commit follows Finish, whatever has come.
    CommitUnchecked,
    /// Driver: a silent link is never declared dead.
    NoStallDeadline,
    /// Driver: a resend is read and sealed again.
    SealedTwice,
    /// Driver: any Commit is success.
    CommitBelieved,
    /// Driver: a link that is silent one way only is never declared dead.
    HalfCutUnnoticed,
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plant a bug in everything this thread runs from now on, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether a bug is planted.
#[cfg(feature = "planted")]
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether a bug is planted: never.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}
