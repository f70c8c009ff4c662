//! Reading what may be damaged.

use std::ops::Range;

use rustix::io::Errno;

/// A range that cannot be read is tried again in steps of this many bytes, a page and a sector of today's disks.
const STEP_LEN: u64 = 4096;

/// Ranges named in a note; more are only counted.
const RANGES_SHOWN: usize = 16;

/// Ranges kept of one file: one on a dead disk is a note, not a gigabyte of ranges.
const RANGES_MAX: usize = 4096;

/// Fill `buf` from `offset` on; returns the bytes before the end of the file. What cannot be read is zeroed and added
/// to `bad`.
pub(super) fn read_at(
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    buf: &mut [u8],
    offset: u64,
    bad: &mut Bad,
) -> usize {
    let mut len = 0;
    let mut in_steps = false;
    while len < buf.len() {
        let at = offset + len as u64;
        let to_boundary = (STEP_LEN - at % STEP_LEN).min((buf.len() - len) as u64) as usize;
        let most = if in_steps { to_boundary } else { buf.len() - len };
        match read(&mut buf[len..len + most], at) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTR) => {}
            Err(_) if !in_steps => in_steps = true,
            Err(errno) => {
                buf[len..len + most].fill(0);
                bad.add(at..at + most as u64, errno);
                len += most;
            }
        }
    }
    len
}

/// The ranges of one file that could not be read, in any order.
#[derive(Default, Debug)]
pub(super) struct Bad {
    ranges: Vec<Range<u64>>,
    bytes: u64,
    errno: Option<Errno>,
}

impl Bad {
    fn add(&mut self, range: Range<u64>, errno: Errno) {
        self.bytes += range.end - range.start;
        self.errno = Some(errno);
        let room = self.ranges.len() < RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if room => self.ranges.push(range),
            _ => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Take over what another part of the file lacks.
    pub fn merge(&mut self, other: Bad) {
        let Some(errno) = other.errno else { return };
        let counted = self.bytes + other.bytes;
        other.ranges.into_iter().for_each(|range| self.add(range, errno));
        self.bytes = counted;
    }

    /// For the note: how much, why and where.
    pub fn describe(mut self) -> String {
        self.ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in self.ranges {
            match joined.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        let cause = std::io::Error::from(self.errno.unwrap_or(Errno::IO));
        let shown: Vec<String> =
            joined.iter().take(RANGES_SHOWN).map(|r| format!("{}-{}", r.start, r.end - 1)).collect();
        let more = match joined.len().saturating_sub(RANGES_SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more ranges"),
        };
        format!("{} bytes could not be read and are zeros ({cause}): {}{more}", self.bytes, shown.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of `len` bytes, each the low byte of its page's number, with bad pages; reads fail if they touch one.
    fn disk(len: u64, bad_pages: &[u64]) -> impl FnMut(&mut [u8], u64) -> Result<usize, Errno> {
        move |buf, at| {
            let n = (buf.len() as u64).min(len.saturating_sub(at));
            if (at / 4096..(at + n).div_ceil(4096)).any(|page| bad_pages.contains(&page)) {
                return Err(Errno::IO);
            }
            (at..at + n).zip(&mut *buf).for_each(|(at, b)| *b = (at / 4096) as u8 + 1);
            Ok(n as usize)
        }
    }

    #[test]
    fn only_pages_that_stay_bad_are_zeroed_and_all_are_named() {
        let mut buf = vec![0xaa; 64 << 10];
        let mut bad = Bad::default();
        let offset = 1 << 20;
        let first = offset / 4096;
        let got = read_at(disk(2 << 20, &[first + 3, first + 4, first + 15]), &mut buf, offset, &mut bad);
        assert_eq!(got, buf.len());
        for (page, bytes) in buf.chunks(4096).enumerate() {
            let right = if [3, 4, 15].contains(&page) { 0 } else { (first as usize + page) as u8 + 1 };
            assert!(bytes.iter().all(|b| *b == right), "page {page}");
        }
        let text = bad.describe();
        assert!(text.starts_with("12288 bytes could not be read"), "{text}");
        assert!(text.ends_with(": 1060864-1069055, 1110016-1114111"), "{text}");
    }

    #[test]
    fn the_end_of_the_file_is_found_after_a_bad_page() {
        let mut buf = vec![0xaa; 20_000];
        let mut bad = Bad::default();
        assert_eq!(read_at(disk(10_000, &[1]), &mut buf, 0, &mut bad), 10_000);
        assert!(!bad.is_empty());
        assert_eq!(
            bad.describe(),
            "4096 bytes could not be read and are zeros (Input/output error (os error 5)): 4096-8191"
        );
    }

    #[test]
    fn an_interrupted_read_is_no_damage() {
        let mut calls = 0;
        let mut buf = [0; 10];
        let mut bad = Bad::default();
        let read = |buf: &mut [u8], _: u64| {
            calls += 1;
            match calls {
                1 => Err(Errno::INTR),
                _ => {
                    buf[0] = 1;
                    Ok(1)
                }
            }
        };
        assert_eq!(read_at(read, &mut buf, 0, &mut bad), 10);
        assert!(bad.is_empty());
        assert_eq!(buf, [1; 10]);
    }

    #[test]
    fn many_slices_of_a_dead_file_make_one_short_note() {
        let mut all = Bad::default();
        for slice in (0..10_000u64).rev() {
            let mut bad = Bad::default();
            bad.add(slice * 8192..slice * 8192 + 4096, Errno::IO);
            all.merge(bad);
        }
        let text = all.describe();
        assert!(text.starts_with("40960000 bytes"), "{text}");
        assert!(text.ends_with("more ranges"), "{text}");
        assert!(text.len() < 500, "{}", text.len());
    }
}
