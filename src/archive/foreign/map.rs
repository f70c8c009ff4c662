//! The map that pax version 1.0 puts at the start of a file's content: how many extents, then the offset and length of
//! each, all decimal and each ended by a newline; zeros fill it up to whole blocks.

use super::Extent;
use crate::archive::BLOCK_LEN;
use crate::limits::FOREIGN_EXTENTS_MAX;

/// A map as it comes.
#[derive(Default)]
pub(super) struct Map {
    /// How many there will be, once that is known.
    count: Option<u64>,
    extents: Vec<Extent>,
    /// An offset whose length has not come yet.
    offset: Option<u64>,
    /// The number that is being read.
    number: Option<u64>,
    /// Bytes taken.
    len: u64,
    state: Reading,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Reading {
    #[default]
    Numbers,
    Padding,
    Broken,
}

impl Map {
    /// Take what belongs to the map, of which `stored` bytes can still come; how much that was.
    pub fn take(&mut self, input: &mut &[u8], stored: u64) -> u64 {
        let before = self.len;
        let end = before + stored;
        while self.len < end && !self.is_done() {
            let Some((byte, rest)) = input.split_first() else { return self.len - before };
            *input = rest;
            self.len += 1;
            if self.state == Reading::Numbers && self.number(*byte).is_none() {
                self.state = Reading::Broken;
            }
        }
        if !self.is_done() {
            self.state = Reading::Broken;
        }
        self.len - before
    }

    /// `None` while there is more to come; then the extents, or nothing if they cannot be read.
    pub fn done(&mut self) -> Option<Option<Vec<Extent>>> {
        self.is_done().then(|| (self.state == Reading::Padding).then(|| std::mem::take(&mut self.extents)))
    }

    fn is_done(&self) -> bool {
        match self.state {
            Reading::Broken => true,
            Reading::Padding => self.len.is_multiple_of(BLOCK_LEN as u64),
            Reading::Numbers => false,
        }
    }

    fn number(&mut self, byte: u8) -> Option<()> {
        if byte != b'\n' {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            let number = self.number.unwrap_or(0).checked_mul(10)?.checked_add(digit.into())?;
            self.number = i64::try_from(number).ok().and(Some(number));
            return self.number.map(|_| ());
        }
        let number = self.number.take()?;
        match (self.count, self.offset.take()) {
            (None, _) if number > FOREIGN_EXTENTS_MAX as u64 => return None,
            (None, _) => self.count = Some(number),
            (Some(_), None) => self.offset = Some(number),
            (Some(_), Some(offset)) => self.extents.push(Extent { offset, len: number }),
        }
        if self.offset.is_none() && self.count == Some(self.extents.len() as u64) {
            self.state = Reading::Padding;
        }
        Some(())
    }
}
