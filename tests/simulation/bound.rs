//! When a run must have ended: computed from what the scenario leaves, never a number that is always enough.
//!
//! - *sum*: when the cables that stay as they are have carried all chunks together, each at its rate from when it is
//!   up.
//! - *rounds*: where a window or a pool is smaller than that takes, so many chunks at a time, one round after the
//!   other.
//! - *disk*: the writer, and the syncs that can be in the way of the last one.
//! - *late*: where several links are harmed, how long a chunk may be in flight twice before it is sent a third time.
//! - [`TAIL`] beyond that. One harmed link must not cost more.

use blast::limits::{
    CONNECT_TIMEOUT, HEDGE_AGAIN, HEDGE_MAX, HEDGE_STARVED, HEDGE_UNMEASURED, IDLE_TIMEOUT, REDIAL_MAX,
};
use blast::options::Schedule;

use super::scenario::{Fault, Micros, SECOND, Scenario};

/// How much longer the end may take than all else accounts for.
pub const TAIL: Micros = SECOND;

/// With faults that never heal and one good cable: the end of the whole run.
pub fn lasting(scenario: &Scenario) -> Micros {
    let stays = |cable: usize| match scenario.faults.iter().find(|f| harms(&f.1) == Some(cable)) {
        // What is under way when it is harmed does not arrive.
        Some((at, _)) => at.saturating_sub(trip(scenario, cable)),
        None => Micros::MAX,
    };
    let spans: Vec<Span> = (0..scenario.cables.len()).map(|c| span(scenario, c, stays(c))).collect();
    let bad = (0..scenario.cables.len()).filter(|c| stays(*c) != Micros::MAX).count() as u64;
    sum(scenario, &spans) + latencies(scenario, longest_trip(scenario)) + late(scenario, bad) + TAIL
}

/// Once faults have stopped: one session from its beginning to its end.
pub fn session(scenario: &Scenario) -> Micros {
    let good = (0..scenario.cables.len()).filter(|c| !scenario.falls_silent(*c) && scenario.slows_down(*c) == 1);
    let spans: Vec<Span> = good.map(|c| span(scenario, c, Micros::MAX)).collect();
    let sum = match scenario.schedule {
        Schedule::Pull => sum(scenario, &spans),
        Schedule::RoundRobin => {
            let slowest = spans.iter().map(|s| s.serialise).max().expect("one cable survives");
            scenario.chunks * slowest
        }
    };
    // With a small window every round can have to wait for a copy of what the slow cable has.
    let slow = (0..scenario.cables.len()).any(|c| scenario.slows_down(c) > 1);
    let trip = longest_trip(scenario) + if slow { patience(scenario) } else { 0 };
    sum + latencies(scenario, trip) + TAIL
}

/// How long faults can be felt after they have stopped: a connection is found silent at last, or its end is heard of,
/// and it is dialled again; a socket empties that was filled while its cable was slow.
pub fn aftermath(scenario: &Scenario) -> Micros {
    let slow = |f: &(Micros, Fault)| match f.1 {
        Fault::Slow { cable, factor, .. } => {
            let cable = &scenario.cables[cable];
            cable.socket as u64 * factor * cable.serialise
        }
        _ => 0,
    };
    let emptied = scenario.faults.iter().map(slow).max().unwrap_or(0);
    micros(IDLE_TIMEOUT + CONNECT_TIMEOUT + 2 * REDIAL_MAX) + emptied
}

/// From when to when a cable surely carries, and how long it takes for a chunk.
struct Span {
    from: Micros,
    until: Micros,
    serialise: Micros,
}

fn span(scenario: &Scenario, cable: usize, until: Micros) -> Span {
    let spec = &scenario.cables[cable];
    // Dialled, joined, told of the credit.
    Span { from: spec.up_at + 3 * spec.delay, until, serialise: spec.serialise }
}

fn harms(fault: &Fault) -> Option<usize> {
    match *fault {
        Fault::Cut { cable, .. }
        | Fault::Stall { cable, .. }
        | Fault::StallConnection { cable, .. }
        | Fault::Slow { cable, .. }
        | Fault::Corrupt { cable, .. }
        | Fault::Refuse { cable, .. } => Some(cable),
        Fault::SinkStops { .. } | Fault::SyncFails | Fault::SourceChanges | Fault::Restart { .. } => None,
    }
}

/// When the cables have carried all chunks together.
fn sum(scenario: &Scenario, spans: &[Span]) -> Micros {
    let carried = |time: Micros| -> u64 {
        spans.iter().map(|s| time.min(s.until).saturating_sub(s.from) * 1024 / s.serialise).sum()
    };
    let (mut low, mut high) = (0, 1 << 40);
    while low + 1 < high {
        let middle = (low + high) / 2;
        if carried(middle) >= scenario.chunks * 1024 { high = middle } else { low = middle }
    }
    high
}

/// From when a chunk is planned to when its buffer is free again on both sides.
fn trip(scenario: &Scenario, cable: usize) -> Micros {
    let spec = &scenario.cables[cable];
    let serialise = spec.socket as u64 * spec.serialise;
    let told = scenario.ack_gap.max(scenario.ack_repeat);
    scenario.seal + serialise + 2 * spec.delay + scenario.verify + 2 * scenario.write + told
}

/// All that is not the links' rate.
fn latencies(scenario: &Scenario, trip: Micros) -> Micros {
    let at_once = scenario.send_pool.min(scenario.window_start.into());
    let rounds = (scenario.chunks / at_once + 2) * trip;
    let disk = scenario.chunks * scenario.write + 2 * scenario.sync;
    rounds + disk
}

fn longest_trip(scenario: &Scenario) -> Micros {
    (0..scenario.cables.len()).map(|c| trip(scenario, c)).max().expect("one cable at least")
}

/// When links are harmed one after the other, the copy of what the first holds may be on the next, and is sent a third
/// time only after a while: four times what a link without a measurement waits for the second. The first is part of
/// the tail.
fn late(scenario: &Scenario, bad: u64) -> Micros {
    bad.saturating_sub(1) * patience(scenario).max(micros(HEDGE_AGAIN.max(4 * HEDGE_UNMEASURED)))
}

/// How long an idle link waits, about, before it sends what a silent or slow one holds.
fn patience(scenario: &Scenario) -> Micros {
    (2 * longest_trip(scenario)).clamp(2 * micros(HEDGE_UNMEASURED.max(HEDGE_STARVED)), micros(HEDGE_MAX))
}

fn micros(time: std::time::Duration) -> Micros {
    time.as_micros() as Micros
}
