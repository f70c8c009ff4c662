//! One 512-byte header as any tar may have written it: which fields there are, and numbers in every notation.

use std::ffi::CStr;

use super::Extent;
use crate::archive::{BLOCK_LEN, Timestamp};
use crate::limits::{DEVICE_MAJOR_MAX, DEVICE_MINOR_MAX};

/// Entries of a sparse map in a header, and in each block that continues it.
const IN_HEADER: usize = 4;
const IN_CONTINUATION: usize = 21;
const EXTENT_LEN: usize = 24;

/// A header, or a block that continues one.
#[derive(Clone)]
pub(super) struct Block(pub [u8; BLOCK_LEN]);

/// Which of the layouts that share the first 257 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// No magic: nothing after the link's name means anything.
    V7,
    /// With a prefix of 155 bytes.
    Ustar,
    /// With a prefix of 131 bytes, times after it and "tar" at the end.
    Star,
    /// No prefix; a sparse map in its place.
    Gnu,
}

impl Block {
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|b| *b == 0)
    }

    /// Whether the checksum fits, summed over the bytes as they are or, as some old tars did, as signed ones.
    pub fn is_header(&self) -> bool {
        let Some(stored) = octal(&self.0[148..156]).filter(|sum| *sum != 0) else { return false };
        let rest = || self.0[..148].iter().chain(&self.0[156..]);
        let unsigned = rest().map(|b| i64::from(*b)).sum::<i64>() + 8 * i64::from(b' ');
        let signed = rest().map(|b| i64::from(*b as i8)).sum::<i64>() + 8 * i64::from(b' ');
        [unsigned, signed].map(|sum| u64::try_from(sum).ok()).contains(&Some(stored))
    }

    pub fn layout(&self) -> Layout {
        match &self.0[257..265] {
            b"ustar  \0" => Layout::Gnu,
            magic if magic.starts_with(b"ustar") => {
                let is_star = &self.0[508..] == b"tar\0" && self.0[475] == 0;
                if is_star { Layout::Star } else { Layout::Ustar }
            }
            _ => Layout::V7,
        }
    }

    pub fn type_flag(&self) -> u8 {
        self.0[156]
    }

    /// With its prefix, where the layout has one.
    pub fn name(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = match self.layout() {
            Layout::Ustar => text(&self.0[345..500]),
            Layout::Star => text(&self.0[345..476]),
            Layout::V7 | Layout::Gnu => b"",
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, name].join(&b'/') }
    }

    pub fn link_name(&self) -> &[u8] {
        text(&self.0[157..257])
    }

    /// What owner and group are called.
    pub fn owner_names(&self) -> [&[u8]; 2] {
        if self.layout() == Layout::V7 { [b"", b""] } else { [text(&self.0[265..297]), text(&self.0[297..329])] }
    }

    pub fn mode(&self) -> Option<u64> {
        number(&self.0[100..108]).and_then(|n| n.try_into().ok())
    }

    pub fn uid(&self) -> Option<u64> {
        number(&self.0[108..116]).and_then(|n| n.try_into().ok())
    }

    pub fn gid(&self) -> Option<u64> {
        number(&self.0[116..124]).and_then(|n| n.try_into().ok())
    }

    /// What follows, as the system has file offsets: no more than their largest.
    pub fn size(&self) -> Option<u64> {
        offset(&self.0[124..136])
    }

    pub fn mtime(&self) -> Option<Timestamp> {
        let secs = number(&self.0[136..148]).and_then(|n| n.try_into().ok())?;
        Some(Timestamp { secs, nanos: 0 })
    }

    /// Which device it is, if this system can have such a one.
    pub fn device(&self) -> Option<(u32, u32)> {
        let part = |at: usize, max: u32| {
            number(&self.0[at..at + 8]).and_then(|n| u32::try_from(n).ok()).filter(|number| *number <= max)
        };
        if self.layout() == Layout::V7 {
            return None;
        }
        Some((part(329, DEVICE_MAJOR_MAX)?, part(337, DEVICE_MINOR_MAX)?))
    }

    /// GNU's map in a header of type S, if it can be read, and whether another block continues it.
    pub fn extents(&self) -> (Option<Vec<Extent>>, bool) {
        (self.extents_at(386, IN_HEADER), self.0[482] != 0)
    }

    /// How long such a file really is.
    pub fn real_size(&self) -> Option<u64> {
        offset(&self.0[483..495])
    }

    /// The same of a block that continues a map.
    pub fn more_extents(&self) -> (Option<Vec<Extent>>, bool) {
        (self.extents_at(0, IN_CONTINUATION), self.0[504] != 0)
    }

    /// Those in use: the first empty pair of fields ends them.
    fn extents_at(&self, at: usize, count: usize) -> Option<Vec<Extent>> {
        let fields = self.0[at..at + count * EXTENT_LEN].chunks_exact(EXTENT_LEN);
        let used = fields.take_while(|field| field[12] != 0);
        used.map(|field| Some(Extent { offset: offset(&field[..12])?, len: offset(&field[12..])? })).collect()
    }
}

/// A field's text: up to the first NUL, or all of it.
pub(super) fn text(field: &[u8]) -> &[u8] {
    CStr::from_bytes_until_nul(field).map_or(field, CStr::to_bytes)
}

fn offset(field: &[u8]) -> Option<u64> {
    number(field).and_then(|n| i64::try_from(n).ok()).and_then(|n| u64::try_from(n).ok())
}

/// Octal digits, or with the first bit set a two's complement over all the field's other bits. Nothing at all is 0.
fn number(field: &[u8]) -> Option<i128> {
    if field[0] & 0x80 == 0 {
        return octal(field).map(i128::from);
    }
    // Twelve bytes at most, so it cannot overflow.
    let negative = field[0] & 0x40 != 0;
    let first = i128::from(field[0] & 0x7f) - if negative { 0x80 } else { 0 };
    Some(field[1..].iter().fold(first, |n, b| n << 8 | i128::from(*b)))
}

/// Spaces may come first, a space or a NUL ends it, and what comes after means nothing.
fn octal(field: &[u8]) -> Option<u64> {
    let start = field.iter().position(|b| *b != b' ').unwrap_or(field.len());
    let mut n = 0u64;
    for b in field[start..].iter().take_while(|b| !matches!(b, 0 | b' ')) {
        let digit = b.wrapping_sub(b'0');
        if digit > 7 {
            return None;
        }
        n = n.checked_mul(8)? | u64::from(digit);
    }
    Some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_notation() {
        for (field, value) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"644\0junk", Some(0o644)),
            (b"00000644", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"77777777", Some(0o77777777)),
            (b"\x80\0\0\0\0\0\x02\x01", Some(513)),
            (b"\x80\0\0\0\xff\xff\xff\xfe", Some(4294967294)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\0\0\0\0\x02\0\0\0\0", Some(0x200000000)),
            (b"0000688\0", None),
            (b"-000001\0", None),
            (b"0x10\0\0\0\0", None),
        ] {
            assert_eq!(number(field), value, "{}", field.escape_ascii());
        }
        assert_eq!(offset(b"\x80\0\0\0\x80\0\0\0\0\0\0\0"), None, "beyond the largest offset");
        assert_eq!(offset(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), Some(i64::MAX as u64));
        assert_eq!(offset(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None, "below zero");
    }
}
