//! What has arrived on one link: its chunk frames, counted in order, and which of them are settled.

use super::SeqSet;
use crate::ids::LinkId;

/// The count of one link. A frame is *settled* once it is known what came of it: verified, duplicate or dropped. Frames
/// settle in any order, because verification runs in parallel; the peer is told the length of the settled prefix.
///
/// Frames are named by an index that starts at `first`, not at 0: the flow gives each link a range that no earlier link
/// of the same id has used, so that a late completion of a dead link cannot settle a frame of its successor.
#[derive(Debug)]
pub struct Arrivals {
    /// The link.
    pub id: LinkId,
    first: u64,
    /// The index of the next frame.
    begun: u64,
    /// Frames below it are settled.
    settled: u64,
    /// Settled frames above it.
    above: SeqSet,
    /// Frames dropped since the last that verified.
    pub strikes_in_a_row: u32,
    /// Frames dropped.
    pub strikes: u64,
}

impl Arrivals {
    /// A link that has brought nothing, its first frame named `first`.
    pub fn new(id: LinkId, first: u64) -> Arrivals {
        let mut above = SeqSet::default();
        above.advance(first);
        Arrivals { id, first, begun: first, settled: first, above, strikes_in_a_row: 0, strikes: 0 }
    }

    /// A frame's header has come; its index.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun - 1
    }

    /// It is known what came of a frame; true if the settled prefix grew. Panics on a frame that never began or is
    /// settled already: completions are ours.
    pub fn settle(&mut self, index: u64) -> bool {
        assert!((self.settled..self.begun).contains(&index), "frame {index} of link {} is settled once", self.id);
        if index != self.settled {
            assert!(self.above.insert(index), "frame {index} of link {} is settled once", self.id);
            return false;
        }
        self.settled = self.above.first_absent(index + 1);
        self.above.advance(self.settled);
        true
    }

    /// Whether an index is of this incarnation of the link.
    pub fn owns(&self, index: u64) -> bool {
        index >= self.first
    }

    /// How many frames, counted in order, are settled.
    pub fn count(&self) -> u64 {
        self.settled - self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settled_prefix_waits_for_the_earliest_frame() {
        let mut arrivals = Arrivals::new(LinkId(3), 1000);
        let indices: Vec<u64> = (0..200).map(|_| arrivals.begin()).collect();
        for index in &indices[1..] {
            assert!(!arrivals.settle(*index));
        }
        assert_eq!(arrivals.count(), 0);
        assert!(arrivals.settle(indices[0]));
        assert_eq!(arrivals.count(), 200);
        assert!(!arrivals.owns(999));
    }
}
