//! What the links' time is spent on: that unlike links each carry their share, that the end is not waited for on the
//! slowest, and that equal links do not send each other's chunks.

use blast::options::Schedule;

use super::rng::Rng;
use super::scenario::{CableSpec, Fault, Kind, Micros, SECOND, Scenario, Ways};
use super::world::{Outcome, run_scenario};

/// One chunk on a link of so many Mbit/s, with 0.2 ms of delay and room for three chunks in its socket.
fn link(mbit: u64) -> CableSpec {
    CableSpec { serialise: (1 << 20) * 8 / mbit, delay: 200, socket: 3, up_at: 0 }
}

/// Big windows, quick ends, no faults.
fn quiet(chunks: u64, cables: Vec<CableSpec>) -> Scenario {
    Scenario {
        kind: Kind::Faults,
        schedule: Schedule::Pull,
        chunks,
        send_pool: 160,
        window: 128,
        window_start: 128,
        cables,
        seal: 1000,
        verify: 1000,
        write: 100,
        sync: 1000,
        sync_group: 100,
        ack_gap: 200,
        ack_repeat: 50_000,
        faults: Vec::new(),
        calm_at: 0,
    }
}

fn run(seed: u64, scenario: &Scenario) -> Outcome {
    run_scenario(seed, scenario.clone(), Rng::new(seed), false)
        .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

/// The time that all links together need, were there no start and no end.
fn ideal(scenario: &Scenario) -> f64 {
    let rate: f64 = scenario.cables.iter().map(|c| 1.0 / c.serialise as f64).sum();
    scenario.chunks as f64 / rate
}

#[test]
fn unlike_links_each_carry_their_share_to_the_end() {
    for mbits in [&[1000, 1000, 1000, 1000][..], &[1000, 700], &[1000, 250, 100], &[1000, 100], &[1000, 10], &[100, 1]]
    {
        let scenario = quiet(1000, mbits.iter().map(|m| link(*m)).collect());
        let outcome = run(1, &scenario);
        let share = ideal(&scenario) / outcome.ended as f64;
        eprintln!("{mbits:?} Mbit/s: {share:.3} of their sum, {} hedges", outcome.hedges);
        assert!(share > 0.97, "{mbits:?} Mbit/s: only {share:.3} of their sum");
    }
}

#[test]
fn equal_links_leave_each_others_chunks_alone() {
    // Nothing limits but the ends: a chunk takes 20 us on a link, and up to `busy` to be verified.
    for busy in [500, 8000, 40_000] {
        let (mut hedges, runs, chunks) = (0, 20, 1000);
        for seed in 0..runs {
            let cable = CableSpec { serialise: 20, delay: 20, socket: 2, up_at: 0 };
            let scenario = Scenario { verify: busy, write: 600, ..quiet(chunks, vec![cable; 4]) };
            hedges += run(seed, &scenario).hedges;
        }
        eprintln!("verified in up to {busy} us: {hedges} hedges for {} chunks", runs * chunks);
        assert!(hedges * 500 < runs * chunks, "verified in up to {busy} us: {hedges} hedges");
    }
}

#[test]
fn a_silent_link_costs_what_it_would_have_carried_and_no_more() {
    let mut scenario = quiet(1000, vec![link(250); 4]);
    let stalled_at: Micros = 3 * SECOND;
    scenario.faults.push((stalled_at, Fault::Stall { cable: 2, ways: Ways::BOTH, heal: None }));
    scenario.calm_at = stalled_at + 1;
    let (outcome, all) = (run(1, &scenario), ideal(&scenario));
    let rest = (all - stalled_at as f64) * 4.0 / 3.0 + stalled_at as f64;
    let share = rest / outcome.ended as f64;
    eprintln!("one of four silent: {share:.3} of what the others could carry, {} hedges", outcome.hedges);
    assert!(share > 0.95, "only {share:.3} of what the others could carry");
}

/// Links that change in mid-run, and what the sum of them allows.
#[test]
fn what_changes_in_mid_run_is_followed_and_leaves_no_tail() {
    let changes: Micros = 2 * SECOND;
    let slower = Fault::Slow { cable: 0, factor: 100, lasts: None };
    let back = Fault::Slow { cable: 0, factor: 100, lasts: Some(SECOND) };
    let silent = |ways| Fault::Stall { cable: 0, ways, heal: None };
    let far = |cable| CableSpec { delay: 20_000, ..cable };
    let later = |cable| CableSpec { up_at: changes, ..cable };
    // Mbit/s of both links together, before and after.
    let cases = [
        ("falls to a hundredth", vec![link(1000), link(500)], Some(slower), (1500, 510)),
        ("falls and recovers", vec![link(1000), link(500)], Some(back), (1500, 1500)),
        ("is cut one way", vec![link(1000), link(500)], Some(silent(Ways::FORWARD)), (1500, 500)),
        ("is cut the other way", vec![link(1000), link(500)], Some(silent(Ways::BACKWARD)), (1500, 500)),
        ("joins with ten times the rate", vec![link(100), later(link(1000))], None, (100, 1100)),
        ("is a hundred times as far", vec![link(500), far(link(500))], None, (1000, 1000)),
    ];
    for (what, cables, fault, (before, after)) in cases {
        let mut scenario = quiet(1000, cables);
        scenario.faults.extend(fault.map(|fault| (changes, fault)));
        scenario.calm_at = 3600 * SECOND;
        let outcome = run(1, &scenario);
        // What is recovered late is missing for a second.
        let missing = if matches!(fault, Some(Fault::Slow { lasts: Some(_), .. })) { 990 * SECOND } else { 0 };
        let bits = (scenario.chunks << 23) - before * changes + missing;
        let ideal = changes + bits / after;
        let (over, share) = (outcome.ended.saturating_sub(ideal), ideal as f64 / outcome.ended as f64);
        eprintln!("a link {what}: {share:.3} of what the sum allows, {over} us over, {} hedges", outcome.hedges);
        assert!(share > 0.95 && over < SECOND / 4, "a link {what}: {share:.3} of what the sum allows, {over} us over");
    }
}
