//! A set of sequence numbers close to each other, one bit each: what waits, what is in flight, what is held.

use std::collections::VecDeque;

/// A set of numbers at or above a base that only rises. Operations cost O(1); the search for the lowest member costs
/// one step for each 64 numbers between the base and it. Memory is one bit for each number between the base and the
/// highest member there ever was, so callers insert only numbers that a window or a pool bounds.
#[derive(Clone, Default, Debug)]
pub struct SeqSet {
    /// Numbers below `64 * first` are not in the set.
    first: u64,
    words: VecDeque<u64>,
}

impl SeqSet {
    /// Add a number at or above the base; false if it was there.
    pub fn insert(&mut self, seq: u64) -> bool {
        let word = usize::try_from((seq / 64).checked_sub(self.first).expect("a number at or above the base"))
            .expect("numbers in one set are close");
        while self.words.len() <= word {
            self.words.push_back(0);
        }
        let before = self.words[word];
        self.words[word] |= 1 << (seq % 64);
        self.words[word] != before
    }

    /// Take a number out; false if it was not there.
    pub fn remove(&mut self, seq: u64) -> bool {
        let Some(word) = self.word_mut(seq) else { return false };
        let before = *word;
        *word &= !(1 << (seq % 64));
        *word != before
    }

    /// Whether a number is in the set.
    pub fn contains(&self, seq: u64) -> bool {
        self.word(seq / 64) >> (seq % 64) & 1 == 1
    }

    /// The lowest member.
    pub fn lowest(&self) -> Option<u64> {
        self.iter().next()
    }

    /// How many members are below `end`.
    pub fn count_below(&self, end: u64) -> usize {
        let below = |(word, index): (&u64, u64)| match end.saturating_sub(index * 64) {
            bits @ 0..64 => (word & ((1 << bits) - 1)).count_ones() as usize,
            64.. => word.count_ones() as usize,
        };
        self.words.iter().zip(self.first..).map(below).sum()
    }

    /// Members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().zip(self.first..).flat_map(|(word, index)| ones(*word, index * 64))
    }

    /// The lowest number at or above `from` that is not in the set.
    pub fn first_absent(&self, from: u64) -> u64 {
        let mut at = from;
        loop {
            let run = u64::from((self.word(at / 64) >> (at % 64)).trailing_ones());
            at += run;
            if run == 0 || !at.is_multiple_of(64) {
                return at;
            }
        }
    }

    /// Bit i is set if `start + i` is in the set.
    pub fn bits_from(&self, start: u64) -> u64 {
        let (index, shift) = (start / 64, start % 64);
        let low = self.word(index) >> shift;
        if shift == 0 { low } else { low | self.word(index + 1) << (64 - shift) }
    }

    /// Raise the base: members below it are forgotten.
    pub fn advance(&mut self, base: u64) {
        while self.first < base / 64 {
            if self.words.pop_front().is_none() {
                self.first = base / 64;
                return;
            }
            self.first += 1;
        }
        if let Some(word) = self.word_mut(base) {
            *word &= u64::MAX << (base % 64);
        }
    }

    fn word(&self, index: u64) -> u64 {
        let at = index.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.words.get(at)).copied().unwrap_or(0)
    }

    fn word_mut(&mut self, seq: u64) -> Option<&mut u64> {
        let at = (seq / 64).checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.words.get_mut(at))
    }
}

/// The numbers of the set bits of a word whose bit 0 stands for `start`, rising.
pub fn ones(mut word: u64, start: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.checked_sub(1)?;
        Some(start + u64::from(bit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Every operation agrees with a plain ordered set.
        #[test]
        fn agrees_with_an_ordered_set(ops in prop::collection::vec((0..5u8, 0..300u64), 1..200)) {
            let (mut set, mut model, mut base) = (SeqSet::default(), BTreeSet::new(), 0);
            for (op, offset) in ops {
                let seq = base + offset;
                match op {
                    0..=2 => prop_assert_eq!(set.insert(seq), model.insert(seq)),
                    3 => prop_assert_eq!(set.remove(seq), model.remove(&seq)),
                    _ => {
                        base += offset / 4;
                        set.advance(base);
                        model.retain(|m| *m >= base);
                    }
                }
                prop_assert_eq!(set.contains(seq), model.contains(&seq));
                prop_assert_eq!(set.lowest(), model.first().copied());
                prop_assert_eq!(set.count_below(seq), model.range(..seq).count());
                prop_assert_eq!(set.first_absent(seq), (seq..).find(|s| !model.contains(s)).unwrap());
                let bits = (0..64).filter(|i| model.contains(&(seq + i))).fold(0, |word, i| word | 1 << i);
                prop_assert_eq!(set.bits_from(seq), bits);
                prop_assert!(set.iter().eq(model.iter().copied()));
            }
        }
    }
}
