//! Records of an extended header, to bytes and back, and the decimal numbers in them.
//!
//! The length in front is the only thing that ends a record. A reader that looks for the newline instead can be made to
//! see records that are part of a value.

use super::{ArchiveError, Timestamp};

/// Bytes of the record `LENGTH KEY=VALUE\n`.
pub(super) fn record_len(key_len: usize, value_len: usize) -> usize {
    // The length counts its own digits; they may push it over one more power of ten.
    let rest = key_len + value_len + 3;
    let mut len = rest + digits(rest);
    if digits(len) > digits(rest) {
        len += 1;
    }
    debug_assert_eq!(len, rest + digits(len));
    len
}

fn digits(n: usize) -> usize {
    // Nearly all records are shorter than a hundred bytes.
    match n {
        0..10 => 1,
        10..100 => 2,
        _ => n.ilog10() as usize + 1,
    }
}

/// Write one record at the start of `out`; returns its length. The value comes in two parts, so that a directory's
/// path and its slash need no copy.
pub(super) fn write_record(key: &[u8], value: [&[u8]; 2], out: &mut [u8]) -> usize {
    write_keyed([key, b""], value, out)
}

/// The same with a key in two parts, of which one may be foreign.
pub(super) fn write_keyed(key: [&[u8]; 2], value: [&[u8]; 2], out: &mut [u8]) -> usize {
    let len = record_len(key[0].len() + key[1].len(), value[0].len() + value[1].len());
    let prefix = Decimal::of(len as u64);
    let mut at = 0;
    for part in [prefix.text(), b" ", key[0], key[1], b"=", value[0], value[1], b"\n"] {
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert_eq!(at, len);
    len
}

/// Split the first record off `body`.
pub(super) fn split_record<'a>(body: &mut &'a [u8]) -> Result<(&'a [u8], &'a [u8]), ArchiveError> {
    let space = body.iter().position(|b| *b == b' ').ok_or(ArchiveError::Record)?;
    let len = parse_decimal(&body[..space]).and_then(|len| usize::try_from(len).ok()).ok_or(ArchiveError::Record)?;
    let (record, rest) = body.split_at_checked(len).ok_or(ArchiveError::Record)?;
    let [pair @ .., b'\n'] = record.get(space + 1..).ok_or(ArchiveError::Record)? else {
        return Err(ArchiveError::Record);
    };
    let equals = pair.iter().position(|b| *b == b'=').ok_or(ArchiveError::Record)?;
    *body = rest;
    Ok((&pair[..equals], &pair[equals + 1..]))
}

/// The text of a number, without allocating.
pub(super) struct Decimal {
    buf: [u8; Decimal::LEN_MAX],
    start: u8,
}

impl Decimal {
    /// "-9223372036854775808.000000001" is the longest.
    const LEN_MAX: usize = 30;

    pub(super) fn of(n: u64) -> Decimal {
        let mut text = Decimal { buf: [0; Decimal::LEN_MAX], start: Decimal::LEN_MAX as u8 };
        text.push_number(n);
        text
    }

    pub(super) fn of_time(time: Timestamp) -> Decimal {
        let mut text = Decimal { buf: [0; Decimal::LEN_MAX], start: Decimal::LEN_MAX as u8 };
        // Below zero the text counts downwards: the fraction is what is missing to the second above.
        let (whole, mut fraction) = match (time.secs < 0, time.nanos) {
            (true, 1..) => ((time.secs + 1).unsigned_abs(), 1_000_000_000 - time.nanos),
            (_, nanos) => (time.secs.unsigned_abs(), nanos),
        };
        if fraction != 0 {
            let mut places = 9;
            while fraction % 10 == 0 {
                fraction /= 10;
                places -= 1;
            }
            for _ in 0..places {
                text.push(b'0' + (fraction % 10) as u8);
                fraction /= 10;
            }
            text.push(b'.');
        }
        text.push_number(whole);
        if time.secs < 0 {
            text.push(b'-');
        }
        text
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.buf[self.start as usize..]
    }

    fn push(&mut self, digit: u8) {
        self.start -= 1;
        self.buf[self.start as usize] = digit;
    }

    fn push_number(&mut self, mut n: u64) {
        loop {
            self.push(b'0' + (n % 10) as u8);
            n /= 10;
            if n == 0 {
                break;
            }
        }
    }
}

/// Digits only, no leading zero, at most `u64::MAX`.
pub(super) fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || (text[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut n = 0u64;
    for b in text {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n = n.checked_mul(10)?.checked_add(digit.into())?;
    }
    Some(n)
}

/// The inverse of [`Decimal::of_time`], and of nothing else: no leading or trailing zeros, no "-0".
pub(super) fn parse_time(text: &[u8]) -> Option<Timestamp> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|b| *b == b'.') {
        Some(dot) => (&text[..dot], parse_fraction(&text[dot + 1..])?),
        None => (text, 0),
    };
    let whole = parse_decimal(whole)?;
    if !negative {
        return Some(Timestamp { secs: i64::try_from(whole).ok()?, nanos: fraction });
    }
    if fraction == 0 {
        return if whole == 0 { None } else { Some(Timestamp { secs: 0i64.checked_sub_unsigned(whole)?, nanos: 0 }) };
    }
    Some(Timestamp { secs: (-1i64).checked_sub_unsigned(whole)?, nanos: 1_000_000_000 - fraction })
}

fn parse_fraction(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 9 || text.last() == Some(&b'0') {
        return None;
    }
    let mut nanos = 0;
    for place in 0..9 {
        let digit = text.get(place).unwrap_or(&b'0').wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        nanos = nanos * 10 + u32::from(digit);
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    #[test]
    fn times_have_the_decimal_text_of_their_value() {
        for (t, text) in [
            (time(0, 0), "0"),
            (time(1, 500_000_000), "1.5"),
            (time(-1, 500_000_000), "-0.5"),
            (time(-2, 500_000_000), "-1.5"),
            (time(-2, 0), "-2"),
            (time(-1, 999_999_999), "-0.000000001"),
            (time(0, 1), "0.000000001"),
            (time(1700000000, 123_456_780), "1700000000.12345678"),
            (time(8589934592, 1), "8589934592.000000001"),
            (time(i64::MAX, 999_999_999), "9223372036854775807.999999999"),
            (time(i64::MIN, 0), "-9223372036854775808"),
            (time(i64::MIN, 1), "-9223372036854775807.999999999"),
            (time(i64::MIN, 999_999_999), "-9223372036854775807.000000001"),
        ] {
            assert_eq!(std::str::from_utf8(Decimal::of_time(t).text()).unwrap(), text);
            assert_eq!(parse_time(text.as_bytes()), Some(t), "{text}");
        }
    }

    #[test]
    fn a_time_has_one_text_only() {
        for text in [
            "",
            "-",
            ".",
            "1.",
            ".5",
            "-.5",
            "01",
            "+1",
            "1.50",
            "1.0",
            "-0",
            "-0.0",
            "1e3",
            "0x1",
            " 1",
            "1 ",
            "1.5.5",
            "1.-5",
            "--1",
            "1.0000000001",
            "9223372036854775808",
            "-9223372036854775809",
            "-9223372036854775808.5",
        ] {
            assert_eq!(parse_time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn numbers_are_plain_decimal_and_never_wrap() {
        assert_eq!(parse_decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(Decimal::of(u64::MAX).text(), b"18446744073709551615");
        for text in ["", "00", "01", "-1", "+1", "1.", "1 ", "18446744073709551616", "99999999999999999999999"] {
            assert_eq!(parse_decimal(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_record_counts_its_own_digits_at_every_length() {
        let mut out = vec![0; 120_000];
        let value = vec![b'v'; 110_000];
        for value_len in (0..1200).chain(9_980..10_010).chain(99_970..100_010) {
            let len = write_record(b"path", [&value[..value_len], b""], &mut out);
            assert_eq!(len, record_len(4, value_len));
            let mut body = &out[..len];
            let (key, got) = split_record(&mut body).unwrap();
            assert_eq!((key, got.len(), body.len()), (&b"path"[..], value_len, 0));
        }
    }

    #[test]
    fn a_value_that_looks_like_a_record_stays_a_value() {
        let mut out = [0; 100];
        let value = b"x\n15 path=evil.x\n";
        let len = write_record(b"SCHILY.xattr.user.a", [value, b""], &mut out);
        let mut body = &out[..len];
        assert_eq!(split_record(&mut body).unwrap(), (&b"SCHILY.xattr.user.a"[..], &value[..]));
        assert!(body.is_empty());
    }

    #[test]
    fn malformed_records_are_refused() {
        for body in [
            &b""[..],
            b"6 a=b",
            b"6 a=bc",
            b"7 a=b\n",
            b"5 a=b\n",
            b"06 a=b\n",
            b"+6 a=b\n",
            b"6a=b\n",
            b"4 ab\n",
            b" a=b\n",
            b"2 a=b\n",
            b"1 a=b\n",
            b"0 a=b\n",
            b"99999999999999999999999 a=b\n",
            b"6\ta=b\n",
        ] {
            assert_eq!(split_record(&mut &body[..]), Err(ArchiveError::Record), "{}", body.escape_ascii());
        }
    }
}
