//! Where a file has data and where it has holes, as far as its file system can be believed.
//!
//! That a file takes less of the disk than it is long is only why it is worth asking: it may be compressed, or not on the
//! disk yet. What a hole is only `SEEK_DATA` and `SEEK_HOLE` say, and file systems have said so of data that had just been
//! written. So a file that was changed shortly before is written to the disk first, and its holes are read as well if
//! they are not too long; and so are all holes of a file whose data does not account for what it takes of the disk. A
//! hole with anything but zeros in it, or an answer that makes no sense, and the file is read whole.
//!
//! Zeros that are allocated are data: they take their place on the disk at the other end too.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::meta::Meta;
use crate::archive::{Extent, SparseMap};
use crate::limits::{CHUNK_LEN, HOLE_LEN_MIN, HOLES_READ_MAX, SPARSE_EXTENTS_MAX};

/// How holes are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holes {
    /// What was changed before this, seconds after 1970, is on the disk.
    settled_before: i64,
    /// Nothing is read or written to find them: what the file system says is believed.
    only_asked_for: bool,
}

/// What a file takes of the disk beyond its data (indirect blocks, attributes, what is allocated ahead) before its map
/// is doubted.
const OVERHEAD: u64 = 64 << 10;

impl Holes {
    /// What was changed from `settled_before` on, seconds after 1970, may not be on the disk yet.
    pub fn new(settled_before: i64) -> Holes {
        Holes { settled_before, only_asked_for: false }
    }

    /// The same without touching a file, for who wants to know about how much there is.
    pub(super) fn only_asked_for(self) -> Holes {
        Holes { only_asked_for: true, ..self }
    }

    /// Whether asking could be worthwhile.
    pub(super) fn may_be_in(meta: &Meta) -> bool {
        meta.allocated.saturating_add(HOLE_LEN_MIN) <= meta.size
    }

    /// The file's map; `None` if it has no holes or they cannot be believed: it is to be read whole.
    pub(super) fn map(self, fd: impl AsFd, meta: &Meta) -> Option<SparseMap> {
        if !Holes::may_be_in(meta) {
            return None;
        }
        let fd = fd.as_fd();
        if self.only_asked_for {
            return ask(fd, meta.size);
        }
        let fresh = meta.mtime.secs >= self.settled_before;
        if fresh {
            rustix::fs::fdatasync(fd).ok()?;
        }
        let map = ask(fd, meta.size)?;
        let data = map.data_len();
        let is_doubtful = meta.allocated > data.saturating_add(data / 8).saturating_add(OVERHEAD);
        let is_short = meta.size - data <= HOLES_READ_MAX;
        let believed = !(is_doubtful || (fresh && is_short)) || are_zeros(fd, &map);
        believed.then_some(map)
    }

    /// The map of a small file of which `content` is all: a hole is what is zeros, and is called a hole.
    pub(super) fn map_read(self, fd: impl AsFd, content: &[u8]) -> Option<SparseMap> {
        let map = ask(fd.as_fd(), content.len() as u64)?;
        if self.only_asked_for {
            return Some(map);
        }
        let is_zero = |hole: (u64, u64)| content[hole.0 as usize..hole.1 as usize].iter().all(|b| *b == 0);
        let believed = holes(&map).all(is_zero);
        believed.then_some(map)
    }
}

/// What the file system says; `None` if that is "no holes", or nothing that can be meant.
fn ask(fd: BorrowedFd<'_>, size: u64) -> Option<SparseMap> {
    let mut found = Found::default();
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(data) if data < at => return None,
            Ok(data) => data,
            // no data from here on
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        if data >= size {
            break;
        }
        let hole = rustix::fs::seek(fd, SeekFrom::Hole(data)).ok().filter(|hole| *hole > data)?;
        found.add(data, hole, size);
        at = hole;
    }
    SparseMap::new(size, found.extents).ok()
}

/// Data found so far, its ends moved outwards and what is close together joined.
struct Found {
    extents: Vec<Extent>,
    /// Holes that are shorter become data; it grows with the number of extents.
    hole_len_min: u64,
}

impl Default for Found {
    fn default() -> Found {
        Found { extents: Vec::new(), hole_len_min: HOLE_LEN_MIN }
    }
}

impl Found {
    fn add(&mut self, data: u64, hole: u64, size: u64) {
        let start = data - data % HOLE_LEN_MIN;
        let end = hole.checked_next_multiple_of(HOLE_LEN_MIN).unwrap_or(size).min(size);
        self.push(Extent { offset: start, len: end - start });
        while self.extents.len() > SPARSE_EXTENTS_MAX {
            self.hole_len_min *= 2;
            let all = std::mem::take(&mut self.extents);
            all.into_iter().for_each(|extent| self.push(extent));
        }
    }

    fn push(&mut self, extent: Extent) {
        match self.extents.last_mut() {
            Some(last) if extent.offset < last.end().saturating_add(self.hole_len_min) => {
                last.len = last.len.max(extent.end() - last.offset);
            }
            _ => self.extents.push(extent),
        }
    }
}

/// The holes of a map: where each begins and ends.
fn holes(map: &SparseMap) -> impl Iterator<Item = (u64, u64)> {
    let starts = std::iter::once(0).chain(map.extents().iter().map(Extent::end));
    let ends = map.extents().iter().map(|extent| extent.offset).chain(std::iter::once(map.size()));
    starts.zip(ends).filter(|(start, end)| start < end)
}

/// Whether all holes read as zeros.
fn are_zeros(fd: BorrowedFd<'_>, map: &SparseMap) -> bool {
    let mut buf = vec![0; CHUNK_LEN];
    holes(map).all(|(mut at, end)| {
        while at < end {
            let most = (end - at).min(buf.len() as u64) as usize;
            match rustix::io::pread(fd, &mut buf[..most], at) {
                // shorter by now, which is told when its data is read
                Ok(0) => return true,
                Ok(n) if buf[..n].iter().any(|b| *b != 0) => return false,
                Ok(n) => at += n as u64,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn extents(found: Found) -> Vec<(u64, u64)> {
        found.extents.iter().map(|extent| (extent.offset, extent.end())).collect()
    }

    #[test]
    fn data_is_rounded_outwards_and_short_holes_are_data() {
        let mut found = Found::default();
        for (data, hole) in [(5000, 5001), (9000, 12288), (20480, 20481), (30000, 40001)] {
            found.add(data, hole, 40001);
        }
        assert_eq!(extents(found), [(4096, 12288), (20480, 24576), (28672, 40001)]);
    }

    #[test]
    fn beyond_the_most_extents_the_shortest_holes_go_first() {
        let mut found = Found::default();
        // A hole of 4 KiB after each, and one of 1 MiB after every 1000th.
        let (mut at, mut long) = (0, 0);
        for n in 1..=SPARSE_EXTENTS_MAX as u64 + 1 {
            found.add(at, at + 4096, u64::MAX);
            at += 8192;
            if n % 1000 == 0 {
                at += 1 << 20;
                long += 1;
            }
        }
        assert_eq!(found.extents.len(), long + 1, "only the long holes are left");
    }

    #[test]
    fn a_hole_is_what_the_file_system_calls_so_and_reads_as_zeros() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"x", 300_000).unwrap();
        let Some(map) = ask(file.as_fd(), 1 << 20) else {
            return eprintln!("SKIPPED: this file system keeps no holes");
        };
        assert!(map.extents().iter().any(|e| e.offset <= 300_000 && 300_000 < e.end()));
        assert!(are_zeros(file.as_fd(), &map));
        let lie = SparseMap::new(1 << 20, vec![Extent { offset: 0, len: 4096 }]).unwrap();
        assert!(!are_zeros(file.as_fd(), &lie));
        let mut content = vec![0; 1 << 20];
        content[300_000] = b'x';
        let holes = Holes::new(0);
        assert_eq!(holes.map_read(&file, &content), Some(map));
        content[900_000] = 1;
        assert_eq!(holes.map_read(&file, &content), None, "data where a hole should be");
    }
}
