//! Puts chunks back in order: holds what came early until what is missing below it has come.

use super::SeqSet;
use super::planted::{self, Bug};
use super::seq_set::ones;
use crate::ids::Seq;
use crate::limits::WINDOW_MAX;

/// A ring with one place for each number of the window. A number is put in once, stays until it is taken, and numbers
/// are taken in order. All operations cost O(1) amortised; nothing is allocated after the start.
#[derive(Debug)]
pub struct Reassembler<P> {
    /// The place of number n is n modulo the length.
    ring: Vec<Option<P>>,
    /// Numbers below it were taken.
    delivered: u64,
    /// The lowest number that has not come; at least `delivered`.
    next: u64,
    /// Numbers above `next` that have come.
    held: SeqSet,
}

impl<P> Reassembler<P> {
    /// Empty, for a window of so many chunks.
    pub fn new(window: u32) -> Reassembler<P> {
        let ring = std::iter::repeat_with(|| None).take(window as usize).collect();
        Reassembler { ring, delivered: 0, next: 0, held: SeqSet::default() }
    }

    /// Whether a number has come, and was perhaps taken since.
    pub fn has(&self, seq: Seq) -> bool {
        seq.0 < self.next || self.held.contains(seq.0)
    }

    /// Put a number in; gives it back if it has come before. Panics if the ring has no place for it: the window was
    /// checked when its frame began.
    pub fn put(&mut self, seq: Seq, payload: P) -> Result<(), P> {
        if self.has(seq) {
            if planted::is(Bug::DuplicateDelivered) && seq.0 + 1 == self.delivered {
                self.delivered -= 1;
                let place = self.place(seq.0);
                self.ring[place] = Some(payload);
                return Ok(());
            }
            return Err(payload);
        }
        assert!(seq.0 - self.delivered < self.ring.len() as u64, "chunk {seq} is within the window");
        let place = self.place(seq.0);
        self.ring[place] = Some(payload);
        if seq.0 == self.next {
            self.next = self.held.first_absent(self.next + 1);
            self.held.advance(self.next);
        } else {
            self.held.insert(seq.0);
        }
        Ok(())
    }

    /// Take the next number in order, if it has come.
    pub fn take(&mut self) -> Option<(Seq, P)> {
        if self.delivered == self.next {
            return None;
        }
        let (seq, place) = (Seq(self.delivered), self.place(self.delivered));
        self.delivered += 1;
        Some((seq, self.ring[place].take().expect("every number below next has come")))
    }

    /// The bug [`Bug::HeldDropped`].
    #[cfg(feature = "planted")]
    pub fn drop_held(&mut self) {
        for seq in self.held.iter() {
            let place = self.place(seq);
            self.ring[place] = None;
        }
        self.held = SeqSet::default();
        self.held.advance(self.next);
    }

    /// The lowest number that has not come.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Numbers below it were taken.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Numbers that have come and were not taken.
    pub fn held(&self) -> usize {
        (self.next - self.delivered) as usize + self.held.iter().count()
    }

    /// Bit i of word j is set if number `next + 64 j + i` has come.
    pub fn bitmap(&self) -> [u64; (WINDOW_MAX / 64) as usize] {
        std::array::from_fn(|word| self.held.bits_from(self.next + 64 * word as u64))
    }

    /// Panics unless the buffer agrees with itself. Costs O(window).
    pub fn invariants(&self) {
        assert!(self.delivered <= self.next, "only what has come is taken");
        assert!(!self.held.contains(self.next), "next has not come");
        let in_ring = self.ring.iter().filter(|p| p.is_some()).count();
        assert_eq!(in_ring, self.held(), "the ring holds what has come and was not taken");
        assert!((self.delivered..self.next).all(|seq| self.ring[self.place(seq)].is_some()), "no gap below next");
        for seq in self.bitmap().iter().zip((self.next..).step_by(64)).flat_map(|(word, start)| ones(*word, start)) {
            assert!(self.ring[self.place(seq)].is_some(), "chunk {seq} is held");
        }
    }

    fn place(&self, seq: u64) -> usize {
        (seq % self.ring.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Random arrivals, duplicates and takes agree with an ordered map.
        #[test]
        fn agrees_with_an_ordered_map(
            window in prop::sample::select(vec![1u32, 2, 3, 64, 65, 200, 1024]),
            ops in prop::collection::vec((0..3u8, 0..1024u64), 1..400),
        ) {
            let mut reassembler = Reassembler::new(window);
            let (mut model, mut delivered, mut came) = (BTreeMap::new(), 0, 0u32);
            for (op, at) in ops {
                if op == 0 {
                    let expected = model.remove(&delivered).map(|p| (Seq(delivered), p));
                    delivered += u64::from(expected.is_some());
                    prop_assert_eq!(reassembler.take(), expected);
                } else {
                    // Half of the numbers near the front, so that the window moves.
                    let at = if op == 1 { at % u64::from(window) } else { at % 4 % u64::from(window) };
                    let seq = delivered + at;
                    came += 1;
                    let expected = if model.contains_key(&seq) { Err(came) } else { Ok(()) };
                    prop_assert_eq!(reassembler.put(Seq(seq), came), expected);
                    model.entry(seq).or_insert(came);
                }
                reassembler.invariants();
                let next = (delivered..).find(|s| !model.contains_key(s)).unwrap();
                prop_assert_eq!(reassembler.next(), next);
                prop_assert_eq!(reassembler.held(), model.len());
                let bitmap = reassembler.bitmap();
                for i in 0..u64::from(WINDOW_MAX) {
                    let bit = bitmap[(i / 64) as usize] >> (i % 64) & 1 == 1;
                    prop_assert_eq!(bit, model.contains_key(&(next + i)));
                }
            }
        }
    }

    #[test]
    fn a_number_taken_long_ago_is_still_a_duplicate() {
        let mut reassembler = Reassembler::new(2);
        for seq in 0..100 {
            assert_eq!(reassembler.put(Seq(seq), seq), Ok(()));
            assert_eq!(reassembler.take(), Some((Seq(seq), seq)));
        }
        assert_eq!(reassembler.put(Seq(3), 7), Err(7));
    }
}
