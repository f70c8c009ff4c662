//! Counters that stages add to and the progress display reads. Plain atomics; nobody waits on them.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

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
    /// Committed.
    Done = 3,
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
    phase: AtomicU8,
    links: Mutex<Vec<Arc<LinkStats>>>,
}

/// Counters of one link.
#[derive(Default, Debug)]
pub struct LinkStats {
    /// What people call it.
    pub name: String,
    /// Connections up right now.
    pub up: AtomicU64,
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
}

impl Stats {
    /// The phase the transfer is in.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Waiting,
            1 => Phase::Moving,
            2 => Phase::Syncing,
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

    /// All links so far, in the order they came up.
    pub fn links(&self) -> Vec<Arc<LinkStats>> {
        self.links.lock().expect("no thread panics while it holds this lock").clone()
    }
}

impl LinkStats {
    /// The counters as the final report has them.
    pub fn report(&self) -> LinkReport {
        LinkReport {
            name: self.name.clone(),
            wire_bytes: self.wire_bytes.load(Relaxed),
            chunks: self.chunks.load(Relaxed),
            resends: self.resends.load(Relaxed),
            hedges: self.hedges.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
            outages: self.outages.load(Relaxed),
            last_error: self.last_error.lock().expect("no thread panics while it holds this lock").clone(),
        }
    }
}
