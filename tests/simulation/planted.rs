//! For each invariant, bugs that its check finds: the proof that the checks see something.

use blast::flow::planted::{Bug, plant};

use super::check::Invariant::{self, *};
use super::{replay, run};

/// Seeds in which a bug must show.
const SEEDS: u64 = 20_000;

/// Every planted bug, with the check that finds it.
const BUGS: [(Bug, Invariant); 25] = [
    (Bug::RequeueSkipped, Ends),
    (Bug::LossNotResent, Ends),
    (Bug::HedgeForgotten, Tail),
    (Bug::CreditIgnored, Credit),
    (Bug::StaleSealedTaken, Stale),
    (Bug::WindowNotEnforced, Memory),
    (Bug::DuplicateDelivered, Applied),
    (Bug::StaleVerifiedTaken, Stale),
    (Bug::StaleReleaseCounted, Stale),
    (Bug::StaleDurableTaken, Stale),
    (Bug::HeldDropped, Ends),
    (Bug::JoinWithoutState, Ends),
    (Bug::TakenUnverified, Applied),
    (Bug::ReleasedEarly, Memory),
    (Bug::DurableBeforeSync, Durable),
    (Bug::SyncRetried, Durable),
    (Bug::CommitUnchecked, Equal),
    (Bug::NoStallDeadline, Ends),
    (Bug::SealedTwice, Nonce),
    (Bug::ReleasedTwice, Kept),
    (Bug::SettledUnsentTaken, Named),
    (Bug::FinishChanged, Named),
    (Bug::CommitBelieved, Named),
    (Bug::HalfCutUnnoticed, Ends),
    (Bug::FirstLinkOnly, Tail),
];

/// Each planted bug is found, and by the check that is there for it.
#[test]
fn every_planted_bug_is_found_by_its_check() {
    for (bug, invariant) in BUGS {
        plant(Some(bug));
        let found = (0..SEEDS).find_map(|seed| run(seed, false).err().map(|failure| (seed, failure)));
        plant(None);
        let (seed, failure) = found.unwrap_or_else(|| panic!("{bug:?} does not show in {SEEDS} seeds"));
        eprintln!("{bug:?}: seed {seed}, {failure}");
        assert_eq!(failure.invariant, invariant, "{bug:?} in seed {seed}: {failure}; replay: {}", replay(seed));
    }
}
