//! The receiver's disk: what was written, and what of it a power loss cannot take.

use super::rng::Rng;

/// Where one chunk's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Nowhere,
    /// In the page cache.
    Cache,
    /// In the page cache, and a sync that has begun will take it along.
    Syncing,
    Durable,
    /// A sync failed: the page cache calls them clean, and they are nowhere.
    Lost,
}

/// One session's chunks on the disk.
#[derive(Default)]
pub struct Disk {
    places: Vec<Place>,
    /// A failing sync is due.
    fails: bool,
}

impl Disk {
    pub fn write(&mut self, seq: u64) {
        let at = seq as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, Place::Nowhere);
        }
        self.places[at] = Place::Cache;
    }

    /// The next sync fails. Those after it succeed without having written what was lost.
    pub fn fail_next_sync(&mut self) {
        self.fails = true;
    }

    /// Whether a sync is to fail yet.
    pub fn will_fail(&self) -> bool {
        self.fails
    }

    pub fn begin_sync(&mut self) {
        self.replace(Place::Cache, Place::Syncing);
    }

    /// Whether the sync succeeded.
    pub fn end_sync(&mut self) -> bool {
        let failed = std::mem::take(&mut self.fails);
        self.replace(Place::Syncing, if failed { Place::Lost } else { Place::Durable });
        !failed
    }

    /// Unsynced writes may or may not have reached the disk.
    pub fn lose_power(&mut self, rng: &mut Rng) -> bool {
        let mut lost = false;
        for place in &mut self.places {
            if *place != Place::Durable {
                let kept = *place != Place::Lost && rng.percent(50);
                *place = if kept { Place::Durable } else { Place::Nowhere };
                lost |= !kept;
            }
        }
        lost
    }

    /// How many chunks, from the first on, a power loss cannot take.
    pub fn durable(&self) -> u64 {
        self.places.iter().take_while(|p| **p == Place::Durable).count() as u64
    }

    /// How many chunks, from the first on, were written, as far as the page cache knows.
    pub fn written(&self) -> u64 {
        self.places.iter().take_while(|p| **p != Place::Nowhere).count() as u64
    }

    fn replace(&mut self, from: Place, to: Place) {
        self.places.iter_mut().filter(|p| **p == from).for_each(|p| *p = to);
    }
}
