//! Where a file with holes has its data: the map that is in front of a sparse entry's data, to bytes and back.

use super::pax::Decimal;
use super::{ArchiveError, BLOCK_LEN, padding};
use crate::limits::SPARSE_EXTENTS_MAX;

/// One range of a file that is data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes of it.
    pub len: u64,
}

impl Extent {
    /// Where it ends in the file.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A file's data and, between and around it, its holes: as the dialect has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SparseMap {
    size: u64,
    /// In order, none empty, a hole between any two.
    extents: Vec<Extent>,
    /// Of the map as it is written, padding included.
    map_len: u64,
    data_len: u64,
}

impl SparseMap {
    /// The map of a file of `size` bytes with data in these places and holes everywhere else.
    ///
    /// # Errors
    /// There is no hole, or the places break a rule of the dialect.
    pub fn new(size: u64, extents: Vec<Extent>) -> Result<SparseMap, ArchiveError> {
        check_extents(&extents, size)?;
        if extents.len() > SPARSE_EXTENTS_MAX {
            return Err(TOO_MANY);
        }
        let mut end = None;
        for extent in &extents {
            let aligned = |at: u64| at.is_multiple_of(BLOCK_LEN as u64);
            if extent.len == 0 {
                return Err(wrong("has an empty extent"));
            }
            if end == Some(extent.offset) {
                return Err(wrong("has no hole between two extents"));
            }
            if !aligned(extent.offset) || !(aligned(extent.end()) || extent.end() == size) {
                return Err(wrong("has an extent that is not made of blocks"));
            }
            end = Some(extent.end());
        }
        let data_len = extents.iter().map(|extent| extent.len).sum();
        if data_len == size {
            return Err(wrong("has no hole"));
        }
        let mut map = SparseMap { size, extents, map_len: 0, data_len };
        let text_len: u64 = map.numbers().map(|n| Decimal::of(n).text().len() as u64 + 1).sum();
        map.map_len = text_len + padding(text_len) as u64;
        Ok(map)
    }

    /// Bytes of the file, its holes included.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The places that are data, in order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Bytes of data.
    pub fn data_len(&self) -> u64 {
        self.data_len
    }

    /// Bytes of the map as it is written, a multiple of [`BLOCK_LEN`].
    pub fn map_len(&self) -> u64 {
        self.map_len
    }

    /// Bytes of map and data: what follows the entry's header.
    pub fn packed_len(&self) -> u64 {
        self.map_len + self.data_len
    }

    /// All numbers of the map, in the order they are written: how many places, then each. Readers learn from an empty
    /// last one that a hole ends the file.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        let end = self.extents.last().map_or(0, Extent::end);
        let last = (end < self.size).then_some(Extent { offset: self.size, len: 0 });
        let count = self.extents.len() as u64 + u64::from(last.is_some());
        let places = self.extents.iter().copied().chain(last).flat_map(|extent| [extent.offset, extent.len]);
        std::iter::once(count).chain(places)
    }

    /// Something that writes the map piece by piece.
    pub fn writer(&self) -> MapWriter<impl Iterator<Item = u64>> {
        MapWriter { numbers: self.numbers(), text: Decimal::of(0), at: LINE_DONE, left: self.map_len }
    }
}

/// Writes a map; it may be longer than any buffer.
pub struct MapWriter<I> {
    numbers: I,
    /// The number at hand.
    text: Decimal,
    /// How much of it is written; its newline counts as one more.
    at: usize,
    /// Bytes of the map that are not written yet.
    left: u64,
}

/// No number is at hand.
const LINE_DONE: usize = usize::MAX;

impl<I: Iterator<Item = u64>> MapWriter<I> {
    /// Bytes that are not written yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Write as much as `out` takes; returns how much.
    pub fn write(&mut self, out: &mut [u8]) -> usize {
        let most = out.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        for byte in &mut out[..most] {
            if self.at == LINE_DONE {
                match self.numbers.next() {
                    Some(number) => (self.text, self.at) = (Decimal::of(number), 0),
                    None => {
                        *byte = 0;
                        continue;
                    }
                }
            }
            match self.text.text().get(self.at) {
                Some(digit) => (*byte, self.at) = (*digit, self.at + 1),
                None => (*byte, self.at) = (b'\n', LINE_DONE),
            }
        }
        self.left -= most as u64;
        most
    }
}

/// Reads a map of the GNU sparse format 1.0, piece by piece, and stops where the data begins. It asks of the text no
/// more than that format does: decimal numbers, each with its newline, zeros or not up to a full block.
#[derive(Debug)]
pub struct MapReader {
    /// The number at hand and how many digits it has.
    number: (u64, u32),
    /// Numbers that are still to come; `None` until the count is there.
    left: Option<usize>,
    /// Where the next place begins, once that is known.
    offset: Option<u64>,
    extents: Vec<Extent>,
    /// Bytes read.
    len: u64,
    /// Whether there was a needless zero in front of a number, or anything but zeros in the padding.
    is_loose: bool,
}

/// The longest text of a number, digits.
const DIGITS_MAX: u32 = 20;

const TOO_MANY: ArchiveError = ArchiveError::SparseMap { why: "has too many extents" };

fn wrong(why: &'static str) -> ArchiveError {
    ArchiveError::SparseMap { why }
}

impl Default for MapReader {
    fn default() -> MapReader {
        MapReader::new()
    }
}

impl MapReader {
    /// Nothing was read yet.
    pub fn new() -> MapReader {
        MapReader { number: (0, 0), left: None, offset: None, extents: Vec::new(), len: 0, is_loose: false }
    }

    /// Read what of `bytes` belongs to the map; returns how much that was. Less than all means that the map is
    /// complete; it may be complete otherwise, too.
    pub fn push(&mut self, bytes: &[u8]) -> Result<usize, ArchiveError> {
        let mut at = 0;
        while !self.has_text() {
            let Some(byte) = bytes.get(at) else {
                self.len += at as u64;
                return Ok(at);
            };
            self.byte(*byte)?;
            at += 1;
        }
        let read = self.len + at as u64;
        let rest = padding(read).min(bytes.len() - at);
        self.is_loose |= bytes[at..at + rest].iter().any(|b| *b != 0);
        self.len = read + rest as u64;
        Ok(at + rest)
    }

    /// Whether all of it was read, its padding included.
    pub fn is_complete(&self) -> bool {
        self.has_text() && self.len.is_multiple_of(BLOCK_LEN as u64)
    }

    /// Bytes read so far; a multiple of [`BLOCK_LEN`] when it is complete.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was read yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The places as they were written, one at the end that is empty included. Nothing is known of them yet.
    pub fn into_extents(self) -> Vec<Extent> {
        self.extents
    }

    /// The map, if it is one that our own sender writes: its places without the empty one that tells of a hole at the
    /// end, and the text exactly as [`SparseMap::writer`] has it.
    pub fn into_map(self, size: u64) -> Result<SparseMap, ArchiveError> {
        let mut extents = self.extents;
        let told = extents.pop_if(|last| *last == Extent { offset: size, len: 0 }).is_some();
        let map = SparseMap::new(size, extents)?;
        let ends_in_hole = map.extents.last().map_or(0, Extent::end) < size;
        if told != ends_in_hole || self.is_loose {
            return Err(wrong("is not written as the dialect has it"));
        }
        Ok(map)
    }

    fn has_text(&self) -> bool {
        self.left == Some(0)
    }

    fn byte(&mut self, byte: u8) -> Result<(), ArchiveError> {
        let (number, digits) = self.number;
        match byte {
            b'0'..=b'9' if digits < DIGITS_MAX => {
                self.is_loose |= digits > 0 && number == 0;
                let longer = number.checked_mul(10).and_then(|n| n.checked_add(u64::from(byte - b'0')));
                self.number = (longer.ok_or(wrong("has a number that is too large"))?, digits + 1);
                Ok(())
            }
            b'0'..=b'9' => Err(wrong("has a number that is too large")),
            b'\n' if digits > 0 => {
                self.number = (0, 0);
                self.take(number)
            }
            _ => Err(wrong("is not made of decimal numbers")),
        }
    }

    fn take(&mut self, number: u64) -> Result<(), ArchiveError> {
        let Some(left) = &mut self.left else {
            // One more than we write, for an empty place at the end.
            let count = usize::try_from(number).ok().filter(|count| *count <= SPARSE_EXTENTS_MAX + 1);
            self.left = Some(2 * count.ok_or(TOO_MANY)?);
            return Ok(());
        };
        *left -= 1;
        match self.offset.take() {
            None => self.offset = Some(number),
            Some(offset) => self.extents.push(Extent { offset, len: number }),
        }
        Ok(())
    }
}

/// Whether places are in order, apart from each other and inside a file of that many bytes. They may be empty, and next
/// to each other.
pub fn check_extents(extents: &[Extent], size: u64) -> Result<(), ArchiveError> {
    let mut end = 0;
    for Extent { offset, len } in extents {
        if *offset < end {
            return Err(wrong("has extents that overlap or are out of order"));
        }
        end =
            offset.checked_add(*len).filter(|end| *end <= size).ok_or(wrong("has an extent beyond the file's end"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(offset: u64, len: u64) -> Extent {
        Extent { offset, len }
    }

    fn text(map: &SparseMap) -> Vec<u8> {
        let mut out = vec![0xaa; map.map_len() as usize];
        let mut writer = map.writer();
        assert_eq!(writer.write(&mut out), out.len());
        assert_eq!(writer.left(), 0);
        out
    }

    fn read(text: &[u8], size: u64) -> Result<SparseMap, ArchiveError> {
        let mut reader = MapReader::new();
        assert_eq!(reader.push(text)?, text.len());
        assert!(reader.is_complete());
        reader.into_map(size)
    }

    /// A map's text, padded.
    fn written(text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len() + padding(bytes.len() as u64), 0);
        bytes
    }

    fn why(result: Result<SparseMap, ArchiveError>) -> &'static str {
        match result.unwrap_err() {
            ArchiveError::SparseMap { why } => why,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_map_is_its_places_and_an_empty_one_where_a_hole_ends_the_file() {
        for (size, extents, expected) in [
            (1 << 40, vec![], "1\n1099511627776\n0\n"),
            (8192, vec![extent(4096, 4096)], "1\n4096\n4096\n"),
            (8193, vec![extent(4096, 4096)], "2\n4096\n4096\n8193\n0\n"),
            (5000, vec![extent(4096, 904)], "1\n4096\n904\n"),
            (
                1 << 50,
                vec![extent(0, 512), extent(1 << 49, 512)],
                "3\n0\n512\n562949953421312\n512\n1125899906842624\n0\n",
            ),
        ] {
            let map = SparseMap::new(size, extents).unwrap();
            assert_eq!(text(&map), written(expected));
            assert_eq!(read(&text(&map), size), Ok(map));
        }
    }

    #[test]
    fn places_that_cannot_be_meant_are_refused_each_for_its_reason() {
        for (size, text, reason) in [
            (9000, "2\n4096\n512\n0\n512\n", "overlap or are out of order"),
            (9000, "2\n0\n1024\n512\n512\n", "overlap or are out of order"),
            (9000, "1\n8704\n512\n", "beyond the file's end"),
            (9000, "1\n0\n18446744073709551615\n", "beyond the file's end"),
            (9000, "1\n18446744073709551615\n512\n", "beyond the file's end"),
            (9000, "1\n18446744073709551616\n512\n", "too large"),
            (9000, "1\n000000000000000000512\n512\n", "too large"),
            (9000, "2\n0\n512\n512\n512\n", "no hole between"),
            (9000, "1\n0\n9000\n", "has no hole"),
            (9000, "2\n512\n0\n1024\n512\n", "empty extent"),
            (9000, "1\n100\n412\n", "not made of blocks"),
            (9000, "1\n512\n100\n", "not made of blocks"),
            (9000, "1\n0\n512\n", "not written as the dialect has it"),
            (9000, "2\n8704\n296\n9000\n0\n", "not written as the dialect has it"),
            (9000, "1\n08704\n296\n", "not written as the dialect has it"),
            (9000, "1048578\n", "too many"),
            (9000, "99999999999999999999\n", "too large"),
            (9000, "-1\n", "not made of decimal numbers"),
            (9000, "1\n\n0\n", "not made of decimal numbers"),
            (9000, "1\n0x2\n0\n", "not made of decimal numbers"),
            (9000, "\0", "not made of decimal numbers"),
        ] {
            let found = why(read(&written(text), size));
            assert!(found.contains(reason), "{text:?}: {found}");
        }
    }

    #[test]
    fn a_count_allocates_nothing() {
        let mut reader = MapReader::new();
        assert_eq!(reader.push(b"1048577\n").unwrap(), 8);
        assert_eq!(reader.extents.capacity(), 0);
        assert!(!reader.is_complete());
    }

    /// Any map of the dialect: holes and places of that many blocks, and an odd end.
    fn map() -> impl Strategy<Value = SparseMap> {
        let blocks = || prop_oneof![1..9u64, 1..5000u64, 1..1u64 << 32];
        let places = proptest::collection::vec((blocks(), blocks()), 0..200);
        let parts = (places, any::<bool>(), prop_oneof![Just(0), 1..1u64 << 40], 0..512u64);
        parts.prop_filter_map("no hole", |(places, leading, tail, odd)| {
            let mut at = 0;
            let mut extents = Vec::new();
            for (n, (hole, data)) in places.into_iter().enumerate() {
                if n > 0 || leading {
                    at += hole * 512;
                }
                extents.push(extent(at, data * 512));
                at += data * 512;
            }
            let mut size = at + tail;
            match extents.last_mut() {
                Some(last) if tail == 0 => {
                    last.len -= odd;
                    size -= odd;
                }
                _ => size += 1,
            }
            SparseMap::new(size, extents).ok()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

        #[test]
        fn what_is_written_in_any_pieces_is_read_in_any_pieces(map in map(), out in 1..700usize, back in 1..700usize) {
            let mut text = Vec::new();
            let mut writer = map.writer();
            let mut piece = vec![0xaa; out];
            while writer.left() > 0 {
                let n = writer.write(&mut piece);
                text.extend_from_slice(&piece[..n]);
            }
            prop_assert_eq!(text.len() as u64, map.map_len());
            text.extend_from_slice(b"data");
            let mut reader = MapReader::new();
            let mut at = 0;
            while !reader.is_complete() {
                let piece = &text[at..text.len().min(at + back)];
                at += reader.push(piece)?;
            }
            prop_assert_eq!(&text[at..], b"data");
            drop(writer);
            prop_assert_eq!(reader.into_map(map.size())?, map);
        }

        #[test]
        fn no_bytes_panic_and_what_is_accepted_has_one_text(mut bytes: Vec<u8>, size: u64, digits in any::<bool>()) {
            if digits {
                bytes.iter_mut().for_each(|b| *b = b"0123456789\n\n"[usize::from(*b) % 12]);
            }
            bytes.resize(bytes.len() + padding(bytes.len() as u64), 0);
            let mut reader = MapReader::new();
            if let Ok(used) = reader.push(&bytes)
                && reader.is_complete()
                && let Ok(map) = reader.into_map(size)
            {
                prop_assert_eq!(text(&map).len(), used);
            }
        }
    }
}
