//! Whole sessions in virtual time: the real flow of both ends, modelled hosts, cables, disk and faults. One seed
//! decides everything, so a failure is replayed by its number.
//!
//! - [`scenario`]: what a seed decides; the plan of faults.
//! - [`net`]: events, virtual time, cables and connections.
//! - [`send_host`], [`recv_host`], [`disk`]: what surrounds the flow, small on purpose: they specify the conductors.
//! - [`hostile`]: peers that say anything.
//! - [`world`]: one run. Faults, then calm, then it must end within a bound, whole.
//! - [`bound`]: when a run must have ended, computed from its scenario.
//! - [`kept`]: what the flows keep, counted.
//! - [`speed`]: what the links' time is spent on.
//! - [`check`]: the invariants, and marks on rare branches.
//! - [`planted`]: for each invariant, bugs that its check finds.
//!
//! `BLAST_SIM_SEEDS=1000000` runs as many seeds (use `--release`), `BLAST_SIM_FIRST=n` begins at another one,
//! `BLAST_SIM_SEED=n` replays one and prints its events.

mod bound;
mod check;
mod disk;
mod hostile;
mod kept;
mod net;
#[cfg(feature = "planted")]
mod planted;
mod recv_host;
mod rng;
mod scenario;
mod send_host;
mod speed;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use check::{Checked, Failure, Invariant, Marks};
use world::Outcome;

/// Seeds of an ordinary test run; a few seconds without optimisation.
const SEEDS: u64 = 20_000;

/// One seed; a panic is a failure like any other.
fn run(seed: u64, printing: bool) -> Checked<Outcome> {
    catch_unwind(AssertUnwindSafe(|| world::run(seed, printing))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
        Err(Box::new(Failure { invariant: Invariant::Panic, detail: text }))
    })
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// No seed breaks an invariant, and every thousandth, run twice, leaves the same trace.
#[test]
fn no_seed_breaks_an_invariant() {
    if let Some(seed) = number("BLAST_SIM_SEED") {
        match run(seed, true) {
            Ok(outcome) => eprintln!("seed {seed} holds after {} events", outcome.events),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
        return;
    }
    let (first, seeds) = (number("BLAST_SIM_FIRST").unwrap_or(0), number("BLAST_SIM_SEEDS").unwrap_or(SEEDS));
    let (next, events, failed) = (AtomicU64::new(first), AtomicU64::new(0), AtomicBool::new(false));
    let marks = Mutex::new(Marks::default());
    let start = Instant::now();
    let worker = || {
        let mut hit = Marks::default();
        while !failed.load(Relaxed) {
            let from = next.fetch_add(100, Relaxed);
            if from >= first + seeds {
                break;
            }
            for seed in from..(from + 100).min(first + seeds) {
                let outcome = run(seed, false).unwrap_or_else(|failure| {
                    failed.store(true, Relaxed);
                    panic!("seed {seed}: {failure}\nreplay: {}", replay(seed));
                });
                if seed % 1000 == 0 {
                    let again = run(seed, false).expect("it held before");
                    assert_eq!(outcome.trace, again.trace, "seed {seed} left two traces; replay: {}", replay(seed));
                }
                events.fetch_add(outcome.events, Relaxed);
                hit.merge(outcome.marks);
            }
        }
        marks.lock().expect("no worker panics while it holds this").merge(hit);
    };
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
    let (events, seconds) = (events.into_inner(), start.elapsed().as_secs_f64());
    eprintln!("{seeds} seeds from {first} on, {events} events, {seconds:.1} s on {workers} threads");
    let missed = marks.into_inner().expect("no worker panicked").missed();
    assert!(seeds < SEEDS || missed.is_empty(), "no seed went through {missed:?}");
}

fn replay(seed: u64) -> String {
    format!("BLAST_SIM_SEED={seed} cargo test --test blast simulation -- --nocapture")
}
