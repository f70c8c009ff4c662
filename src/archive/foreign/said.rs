//! What extended headers and long names say about the member that follows them. Of a key that comes twice the last one
//! holds, an empty value takes back what was said before, and a global header never names a file or says its size.

use super::extras::SaidExtras;
use super::{Extent, ForeignError, RemarkKind, Remarks};
use crate::archive::Timestamp;
use crate::archive::pax::split_record;

/// What was said about the next member.
#[derive(Default)]
pub(super) struct Said {
    pub path: Option<Vec<u8>>,
    pub link_path: Option<Vec<u8>>,
    pub long_name: Option<Vec<u8>>,
    pub long_link: Option<Vec<u8>>,
    pub size: Number,
    pub uid: Number,
    pub gid: Number,
    pub mtime: Option<Option<Timestamp>>,
    pub sparse: Sparse,
    pub extras: SaidExtras,
    /// Keys that mean nothing here: how many, and the first.
    pub unknown: u64,
    pub first_unknown: Vec<u8>,
    /// Bytes of all bodies so far, as they claim; bounded by whoever reads them.
    pub len: u64,
}

/// What global headers have said: attributes only.
#[derive(Default)]
pub(super) struct Everywhere {
    pub uid: Number,
    pub gid: Number,
    pub mtime: Option<Option<Timestamp>>,
}

/// Not said, not a number in range, or a number.
pub(super) type Number = Option<Option<u64>>;

/// What the keys `GNU.sparse.*` say, in any of their versions.
#[derive(Default)]
pub(super) struct Sparse {
    pub present: bool,
    /// Something in it cannot be meant, or is of a version that nobody knows.
    pub broken: bool,
    pub major: Option<u64>,
    pub minor: Option<u64>,
    pub name: Option<Vec<u8>>,
    pub real_size: Option<u64>,
    pub extents: Vec<Extent>,
    /// An offset whose length has not come yet.
    offset: Option<u64>,
}

impl Said {
    /// Read an extended header's body. `at` is where in the archive it begins.
    pub fn records(&mut self, body: &[u8], at: u64) -> Result<(), ForeignError> {
        each(body, at, |key, value| {
            match key {
                b"path" => self.path = said(value),
                b"linkpath" => self.link_path = said(value),
                b"size" => self.size = number(value),
                b"uid" => self.uid = number(value),
                b"gid" => self.gid = number(value),
                b"mtime" => self.mtime = time(value),
                _ if key.starts_with(b"GNU.sparse.") => self.sparse.record(&key[11..], value),
                // Another tar's way to leave holes out.
                b"SUN.holesdata" => (self.sparse.present, self.sparse.broken) = (true, true),
                _ if is_harmless(key) || self.extras.record(key, value) => {}
                _ => {
                    if self.unknown == 0 {
                        self.first_unknown = key.to_vec();
                    }
                    self.unknown += 1;
                }
            }
        })
    }
}

impl Everywhere {
    /// Read a global header's body.
    pub fn records(&mut self, body: &[u8], at: u64, remarks: &mut Remarks) -> Result<(), ForeignError> {
        each(body, at, |key, value| match key {
            b"uid" => self.uid = number(value),
            b"gid" => self.gid = number(value),
            b"mtime" => self.mtime = time(value),
            _ if is_harmless(key) => {}
            _ => remarks.add(RemarkKind::GlobalKey, key),
        })
    }
}

impl Sparse {
    fn record(&mut self, key: &[u8], value: &[u8]) {
        self.present = true;
        match key {
            b"major" => self.major = self.number(value),
            b"minor" => self.minor = self.number(value),
            b"name" => self.name = Some(value.to_vec()),
            b"realsize" | b"size" => self.real_size = self.number(value),
            // Told by the extents themselves.
            b"numblocks" => {}
            b"offset" => {
                self.broken |= self.offset.is_some();
                self.offset = self.number(value);
            }
            b"numbytes" => match (self.offset.take(), self.number(value)) {
                (Some(offset), Some(len)) => self.extents.push(Extent { offset, len }),
                _ => self.broken = true,
            },
            b"map" => {
                self.extents.clear();
                let mut numbers = value.split(|b| *b == b',').filter(|text| !text.is_empty());
                while let Some(offset) = numbers.next() {
                    match (self.number(offset), numbers.next().and_then(|len| self.number(len))) {
                        (Some(offset), Some(len)) => self.extents.push(Extent { offset, len }),
                        _ => self.broken = true,
                    }
                }
            }
            _ => self.broken = true,
        }
    }

    fn number(&mut self, value: &[u8]) -> Option<u64> {
        let number = decimal(value);
        self.broken |= number.is_none();
        number
    }
}

/// Call `take` for each record. Zeros that fill a body up are no record.
fn each(mut body: &[u8], at: u64, mut take: impl FnMut(&[u8], &[u8])) -> Result<(), ForeignError> {
    let len = body.len();
    while body.iter().any(|b| *b != 0) {
        let offset = at + (len - body.len()) as u64;
        let (key, value) = split_record(&mut body).map_err(|_| ForeignError::Record { offset })?;
        take(key, value);
    }
    Ok(())
}

fn said(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

fn number(value: &[u8]) -> Number {
    (!value.is_empty()).then(|| decimal(value))
}

fn time(value: &[u8]) -> Option<Option<Timestamp>> {
    (!value.is_empty()).then(|| parse_time(value))
}

/// Keys that every reader passes over: what they say is said elsewhere, or is nothing that a file system keeps.
fn is_harmless(key: &[u8]) -> bool {
    matches!(key, b"atime" | b"ctime" | b"comment" | b"charset" | b"hdrcharset")
}

/// Digits only, no more than a file offset.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let n = text.iter().try_fold(0u64, |n, b| {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 { None } else { n.checked_mul(10)?.checked_add(digit.into()) }
    })?;
    i64::try_from(n).is_ok().then_some(n)
}

/// Seconds with any number of digits of fraction; what is finer than a nanosecond is rounded down.
fn parse_time(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    let dot = text.iter().position(|b| *b == b'.').unwrap_or(text.len());
    let (whole, fraction) = (&text[..dot], text.get(dot + 1..).unwrap_or(b""));
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let secs = i64::try_from(decimal(whole)?).ok()?;
    let digit = |place: usize| fraction.get(place).map_or(0, |b| u32::from(b - b'0'));
    let nanos = (0..9).fold(0, |n, place| n * 10 + digit(place));
    if !negative {
        return Some(Timestamp { secs, nanos });
    }
    let finer = fraction.iter().skip(9).any(|b| *b != b'0');
    let nanos = nanos + u32::from(finer);
    if nanos == 0 {
        Some(Timestamp { secs: -secs, nanos })
    } else {
        Some(Timestamp { secs: -secs - 1, nanos: 1_000_000_000 - nanos })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_any_precision() {
        for (text, secs, nanos) in [
            ("0", 0, 0),
            ("1.5", 1, 500_000_000),
            ("1.50", 1, 500_000_000),
            ("1.", 1, 0),
            ("0001.0000000019", 1, 1),
            ("-1", -1, 0),
            ("-1.5", -2, 500_000_000),
            ("-0.000000001", -1, 999_999_999),
            ("-0.0000000001", -1, 999_999_999),
            ("-0.9999999999", -1, 0),
            ("-0", 0, 0),
        ] {
            assert_eq!(parse_time(text.as_bytes()), Some(Timestamp { secs, nanos }), "{text}");
        }
        for text in ["", "-", "x", "1.x", "+1", ".5", "1e3", "--1", "1.5.5", "99999999999999999999"] {
            assert_eq!(parse_time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_last_of_a_key_holds_and_an_empty_one_takes_it_back() {
        let mut said = Said::default();
        said.records(b"9 path=a\n9 path=b\n10 size=7\n7 uid=\n", 0).unwrap();
        assert_eq!((said.path.as_deref(), said.size, said.uid), (Some(&b"b"[..]), Some(Some(7)), None));
        said.records(b"8 path=\n10 size=x\n\0\0", 0).unwrap();
        assert_eq!((said.path.as_deref(), said.size), (None, Some(None)));
        let wrong = said.records(b"9 path=a\n12 path=b\n", 512).unwrap_err();
        assert_eq!(wrong, ForeignError::Record { offset: 521 });
    }

    #[test]
    fn a_global_header_names_no_file_and_says_no_size() {
        let (mut everywhere, mut remarks) = (Everywhere::default(), Remarks::default());
        let body = b"9 path=a\n12 linkpath=b\n10 size=7\n10 uid=12\n13 comment=xyz\n";
        let wrong = everywhere.records(body, 0, &mut remarks);
        assert!(wrong.is_err(), "the second record's length is not its own");
        let body = b"9 path=a\n14 linkpath=b\n10 size=7\n10 uid=12\n15 comment=xyz\n";
        let (mut everywhere, mut remarks) = (Everywhere::default(), Remarks::default());
        everywhere.records(body, 0, &mut remarks).unwrap();
        assert_eq!(everywhere.uid, Some(Some(12)));
        assert_eq!(remarks.count(RemarkKind::GlobalKey), 3);
    }
}
