//! Counters and stopwatches that stages add to, and the progress display and the report read. Plain atomics; nobody
//! waits on them.

mod memory;
mod stage;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use memory::available as memory_available;
use stage::Usage;
pub use stage::{Lap, Stage, StageTimes, Stopwatch, Tally, timed};

use crate::report::LinkReport;

/// Where a transfer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Waiting for the other side.
    Waiting = 0,
    /// Chunks are moving.
    Moving = 1,
    /// Everything has arrived; the receiver's disk is being synced.
    Syncing = 2,
    /// All is synced, and read again from the receiver's disk.
    ReadingBack = 3,
    /// Committed.
    Done = 4,
}

/// Counters of one transfer, shared by all its threads.
#[derive(Default, Debug)]
pub struct Stats {
    /// Entries known to the sender's walk so far.
    pub entries_found: AtomicU64,
    /// Bytes of content known to the sender's walk so far.
    pub bytes_found: AtomicU64,
    /// True once the two numbers above are final.
    pub found_all: AtomicBool,
    /// Entries laid out (sender) or finished on disk (receiver).
    pub entries_done: AtomicU64,
    /// Content bytes laid out (sender) or written (receiver).
    pub content_done: AtomicU64,
    /// Stream bytes acknowledged (sender) or delivered in order (receiver).
    pub stream_done: AtomicU64,
    /// See [`Report::payload_bytes`](crate::report::Report::payload_bytes).
    pub payload_bytes: AtomicU64,
    /// Bytes read back from the receiver's disk.
    pub read_back: AtomicU64,
    phase: AtomicU8,
    links: Mutex<Vec<Arc<LinkStats>>>,
    stages: Mutex<Vec<(Stage, Arc<Stopwatch>)>>,
    /// CPU time when the transfer began.
    began: Mutex<Usage>,
}

/// Counters of one link.
#[derive(Default, Debug)]
pub struct LinkStats {
    /// What people call it.
    pub name: String,
    /// Connections up right now.
    pub up: AtomicU64,
    /// See [`LinkReport::connections`].
    pub connections: AtomicU64,
    /// See [`LinkReport::wire_bytes`].
    pub wire_bytes: AtomicU64,
    /// See [`LinkReport::chunks`].
    pub chunks: AtomicU64,
    /// See [`LinkReport::resends`].
    pub resends: AtomicU64,
    /// See [`LinkReport::hedges`].
    pub hedges: AtomicU64,
    /// See [`LinkReport::corrupt`].
    pub corrupt: AtomicU64,
    /// See [`LinkReport::outages`].
    pub outages: AtomicU64,
    /// See [`LinkReport::last_error`].
    pub last_error: Mutex<Option<String>>,
    /// How its connections spend their time.
    pub times: LinkWatch,
}

/// How the connections of one link spend their time while they are up, summed over them.
#[derive(Default, Debug)]
pub struct LinkWatch {
    /// Moving a chunk's bytes to or from the socket.
    pub busy: Tally,
    /// In the middle of a chunk, with no room in the socket (sender) or no bytes from it (receiver).
    pub network: Tally,
    /// Of that, waiting for leave by `--bwlimit`.
    pub limited: Tally,
    /// Without a chunk: none is sealed (sender), or none comes (receiver).
    pub idle: Tally,
    /// Without credit for the next chunk (sender) or a buffer for it (receiver).
    pub held: Tally,
}

impl Stats {
    /// The phase the transfer is in.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Waiting,
            1 => Phase::Moving,
            2 => Phase::Syncing,
            3 => Phase::ReadingBack,
            _ => Phase::Done,
        }
    }

    /// Enter a phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    /// The counters of the link of that name, made on first use.
    pub fn link(&self, name: &str) -> Arc<LinkStats> {
        let mut links = self.links.lock().expect("no thread panics while it holds this lock");
        if let Some(link) = links.iter().find(|l| l.name == name) {
            return link.clone();
        }
        let link = Arc::new(LinkStats { name: name.to_owned(), ..LinkStats::default() });
        links.push(link.clone());
        link
    }

    /// The transfer begins: what CPU time is used counts from now on.
    pub fn begin(&self) {
        *self.began.lock().expect("no thread panics while it holds this lock") = Usage::now();
    }

    /// A stopwatch for one more thread at a stage.
    pub fn watch(&self, stage: Stage) -> Arc<Stopwatch> {
        let watch = Arc::new(Stopwatch::default());
        self.stages.lock().expect("no thread panics while it holds this lock").push((stage, watch.clone()));
        watch
    }

    /// What the stopwatches have come to, each stage that had a thread once, in the order of [`Stage::ALL`]. `links` is
    /// the stage that this side's links are.
    pub fn stages(&self, links: Stage) -> Vec<StageTimes> {
        let mut all: Vec<StageTimes> = Vec::new();
        let mut add = |stage: Stage, busy: Duration, wait_in: Duration, wait_out: Duration| {
            let at = all.iter().position(|t| t.stage == stage).unwrap_or_else(|| {
                let zero = Duration::ZERO;
                let none = StageTimes { stage, threads: 0, busy: zero, wait_in: zero, wait_out: zero, busiest: zero };
                all.push(none);
                all.len() - 1
            });
            let times = &mut all[at];
            times.threads = times.threads.saturating_add(1);
            times.busy += busy;
            times.wait_in += wait_in;
            times.wait_out += wait_out;
            times.busiest = times.busiest.max(busy);
        };
        for (stage, watch) in self.stages.lock().expect("no thread panics while it holds this lock").iter() {
            add(*stage, watch.busy.total(), watch.wait_in.total(), watch.wait_out.total());
        }
        for link in self.links() {
            let LinkWatch { busy, network, idle, held, .. } = &link.times;
            let (busy, network, idle, held) = (busy.total(), network.total(), idle.total(), held.total());
            match links {
                Stage::Send => add(links, busy, idle + held, network),
                _ => add(links, busy, idle + network, held),
            }
        }
        let began = *self.began.lock().expect("no thread panics while it holds this lock");
        all.extend(Usage::now().since(began));
        all.sort_by_key(|times| times.stage);
        all
    }

    /// Chunk frames and bytes that all links have carried, see [`LinkReport::chunks`] and [`LinkReport::wire_bytes`].
    pub fn carried(&self) -> (u64, u64) {
        let links = self.links.lock().expect("no thread panics while it holds this lock");
        links.iter().fold((0, 0), |(chunks, bytes), link| {
            (chunks + link.chunks.load(Relaxed), bytes + link.wire_bytes.load(Relaxed))
        })
    }

    /// All links so far, in the order they came up.
    pub fn links(&self) -> Vec<Arc<LinkStats>> {
        self.links.lock().expect("no thread panics while it holds this lock").clone()
    }
}

impl LinkStats {
    /// One more connection.
    pub fn connected(&self) {
        let up = self.up.fetch_add(1, Relaxed) + 1;
        self.connections.fetch_max(up, Relaxed);
    }

    /// One connection less, which did not pay if `left`.
    pub fn disconnected(&self, left: bool) {
        let up = self.up.fetch_sub(1, Relaxed) - 1;
        if left {
            self.connections.store(up, Relaxed);
        }
    }

    /// The counters as the final report has them; how long the link was away is known elsewhere.
    pub fn report(&self, away: Duration) -> LinkReport {
        LinkReport {
            name: self.name.clone(),
            wire_bytes: self.wire_bytes.load(Relaxed),
            chunks: self.chunks.load(Relaxed),
            resends: self.resends.load(Relaxed),
            hedges: self.hedges.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
            outages: self.outages.load(Relaxed),
            away,
            connections: self.connections.load(Relaxed),
            last_error: self.last_error.lock().expect("no thread panics while it holds this lock").clone(),
            busy: self.times.busy.total(),
            network: self.times.network.total(),
            limited: self.times.limited.total(),
            idle: self.times.idle.total(),
            held: self.times.held.total(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_stage_is_the_sum_of_its_threads_and_links_are_one() {
        let stats = Stats::default();
        stats.begin();
        let second = stats.watch(Stage::Write);
        let first = stats.watch(Stage::Unpack);
        second.busy.add(5 * MS);
        stats.watch(Stage::Write).busy.add(7 * MS);
        first.wait_in.add(MS);
        first.wait_out.add(2 * MS);
        let link = stats.link("a");
        link.times.busy.add(3 * MS);
        link.times.network.add(4 * MS);
        link.times.idle.add(10 * MS);
        stats.link("b").times.held.add(MS);
        let times = |stage, threads, [busy, wait_in, wait_out, busiest]: [u32; 4]| StageTimes {
            stage,
            threads,
            busy: busy * MS,
            wait_in: wait_in * MS,
            wait_out: wait_out * MS,
            busiest: busiest * MS,
        };
        let all = stats.stages(Stage::Receive);
        assert_eq!(all[0], times(Stage::Receive, 2, [3, 14, 1, 3]));
        assert_eq!(all[1], times(Stage::Unpack, 1, [0, 1, 2, 0]));
        assert_eq!(all[2], times(Stage::Write, 2, [12, 0, 0, 7]));
        assert_eq!(all[3].stage, Stage::Process);
        assert!(all.is_sorted_by(|a, b| a.stage < b.stage));
        let sender = stats.stages(Stage::Send);
        assert_eq!(sender[0], times(Stage::Send, 2, [3, 11, 4, 3]));
    }
}
