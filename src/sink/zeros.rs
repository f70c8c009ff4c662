//! Where content is nothing but zeros, for destinations that need not be written to there.

use std::ops::Range;

/// Zeros are looked for in blocks of this many bytes, what file systems have.
const BLOCK_LEN: usize = 4096;

/// Content that begins at `offset`, cut into stretches that are zeros or not. The cuts lie at multiples of a block of
/// the offset.
pub(super) fn stretches(content: &[u8], offset: u64) -> impl Iterator<Item = (Range<usize>, bool)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at;
        let block_at = |at: usize| {
            let left = BLOCK_LEN - (offset + at as u64) as usize % BLOCK_LEN;
            at..content.len().min(at + left)
        };
        let is_zero = |block: Range<usize>| content[block].iter().all(|byte| *byte == 0);
        if begin == content.len() {
            return None;
        }
        let zeros = is_zero(block_at(begin));
        while at < content.len() && is_zero(block_at(at)) == zeros {
            at = block_at(at).end;
        }
        Some((begin..at, zeros))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_blocks_of_zeros_are_told_from_the_rest() {
        let mut content = vec![0; 5 * BLOCK_LEN + 10];
        content[2 * BLOCK_LEN] = 1;
        content[4 * BLOCK_LEN - 1] = 1;
        let all: Vec<_> = stretches(&content, 0).collect();
        let (two, four) = (2 * BLOCK_LEN, 4 * BLOCK_LEN);
        assert_eq!(all, [(0..two, true), (two..four, false), (four..content.len(), true)]);
        assert_eq!(stretches(&content, 1).next(), Some((0..BLOCK_LEN - 1 + BLOCK_LEN, true)), "cut by the offset");
        assert_eq!(stretches(b"", 7).next(), None);
    }

    proptest! {
        #[test]
        fn stretches_are_all_of_it_in_order_and_true(
            bytes in prop::collection::vec((0..3u8, 1..3 * BLOCK_LEN), 0..6),
            offset in any::<u32>(),
        ) {
            let content: Vec<u8> = bytes.into_iter().flat_map(|(byte, len)| std::iter::repeat_n(byte / 2, len)).collect();
            let mut next = 0;
            let mut last = None;
            for (range, zeros) in stretches(&content, offset.into()) {
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty());
                prop_assert_ne!(last, Some(zeros), "neighbours differ");
                prop_assert!(!zeros || content[range.clone()].iter().all(|b| *b == 0));
                let cut = range.end as u64 + u64::from(offset);
                prop_assert!(range.end == content.len() || cut.is_multiple_of(BLOCK_LEN as u64));
                (next, last) = (range.end, Some(zeros));
            }
            prop_assert_eq!(next, content.len());
        }
    }
}
