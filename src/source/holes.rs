//! Where a file has data and where it has holes, as far as its file system can be believed.
//!
//! That a file takes less of the disk than it is long is only why it is worth asking: it may be compressed, or not on
//! the disk yet. What a hole is only `SEEK_DATA` and `SEEK_HOLE` say, and file systems have said so of data that had
//! just been written. So a file that was changed shortly before is written to the disk first, and its holes are read as
//! well if they are not too long; and so are all holes of a file whose data does not account for what it takes of the
//! disk. A hole with anything but zeros in it, or an answer that makes no sense, and the file is read whole.
//!
//! Zeros that are allocated are data: they take their place on the disk at the other end too.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::meta::Meta;
use crate::archive::{Extent, SparseMap};
use crate::limits::{CHUNK_LEN, HOLE_LEN_MIN, HOLES_READ_MAX, SPARSE_EXTENTS_MAX};
use crate::storage::Storage;

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

    /// Whether asking could be worthwhile. The last page takes a whole one of the disk, however short it is.
    pub(super) fn may_be_in(meta: &Meta) -> bool {
        let pages = meta.size.checked_next_multiple_of(HOLE_LEN_MIN).unwrap_or(meta.size);
        meta.size >= HOLE_LEN_MIN && meta.allocated.saturating_add(HOLE_LEN_MIN) <= pages
    }

    /// The file's map; `None` if it has no holes or they cannot be believed: it is to be read whole.
    pub(super) fn map(self, fd: impl AsFd, meta: &Meta) -> Option<SparseMap> {
        if !Holes::may_be_in(meta) {
            return None;
        }
        let fd = fd.as_fd();
        self.map_as(fd, meta, |from| rustix::fs::seek(fd, from))
    }

    /// See [`Holes::map`]; `seek` is the file system.
    fn map_as(
        self,
        fd: BorrowedFd<'_>,
        meta: &Meta,
        seek: impl FnMut(SeekFrom) -> Result<u64, Errno>,
    ) -> Option<SparseMap> {
        if self.only_asked_for {
            return ask(seek, meta.size);
        }
        let fresh = meta.mtime.secs >= self.settled_before;
        if fresh {
            rustix::fs::fdatasync(fd).ok()?;
        }
        let map = ask(seek, meta.size)?;
        let data = map.data_len();
        let is_doubtful = meta.allocated > data.saturating_add(data / 8).saturating_add(OVERHEAD);
        let is_short = meta.size - data <= HOLES_READ_MAX;
        let believed = !(is_doubtful || (fresh && is_short)) || are_zeros(fd, &map);
        believed.then_some(map)
    }

    /// The map of a small file of which `content` is all: a hole is what is zeros, and is called a hole.
    pub(super) fn map_read(self, fd: impl AsFd, content: &[u8]) -> Option<SparseMap> {
        let fd = fd.as_fd();
        self.map_read_as(content, |from| rustix::fs::seek(fd, from))
    }

    /// See [`Holes::map_read`]; `seek` is the file system.
    fn map_read_as(self, content: &[u8], seek: impl FnMut(SeekFrom) -> Result<u64, Errno>) -> Option<SparseMap> {
        let map = ask(seek, content.len() as u64)?;
        if self.only_asked_for {
            return Some(map);
        }
        let is_zero = |hole: (u64, u64)| content[hole.0 as usize..hole.1 as usize].iter().all(|b| *b == 0);
        let believed = holes(&map).all(is_zero);
        believed.then_some(map)
    }
}

/// What the file system says; `None` if that is "no holes", or nothing that can be meant.
fn ask(mut seek: impl FnMut(SeekFrom) -> Result<u64, Errno>, size: u64) -> Option<SparseMap> {
    let mut found = Found::default();
    let mut at = 0;
    while at < size {
        let data = match seek(SeekFrom::Data(at)) {
            Ok(data) if data < at => return None,
            Ok(data) => data,
            // no data from here on
            Err(Errno::NXIO) => break,
            Err(_) => return None,
        };
        if data >= size {
            break;
        }
        let hole = seek(SeekFrom::Hole(data)).ok().filter(|hole| *hole > data)?;
        found.add(data, hole, size);
        at = hole;
    }
    // of less than that only the end of the file can be a hole, which is carried as zeros
    SparseMap::new(size, found.extents).ok().filter(|map| size - map.data_len() >= HOLE_LEN_MIN)
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
    let mut buf = Storage::new(CHUNK_LEN);
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
        let seek = |from| rustix::fs::seek(&file, from);
        let Some(map) = ask(seek, 1 << 20) else {
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

    #[test]
    fn one_page_that_is_missing_is_found_whatever_length_the_file_has() {
        for len in [8192, 12_288, 13_769, 16_383, 16_384] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len).unwrap();
            file.write_all_at(&vec![b'd'; len as usize - 4096], 4096).unwrap();
            let meta = Meta::of(&rustix::fs::fstat(&file).unwrap());
            if ask(|from| rustix::fs::seek(&file, from), len).is_none() {
                return eprintln!("SKIPPED: this file system keeps no holes");
            }
            let map = Holes::new(0).map(&file, &meta).expect("a file with a hole");
            assert_eq!(map.extents(), [Extent { offset: 4096, len: len - 4096 }]);
        }
    }

    #[test]
    fn a_file_whose_only_hole_is_shorter_than_a_page_has_none() {
        for (len, data) in [(100, 0), (4095, 0), (13_769, 12_288), (20_000, 20_000)] {
            let mut answers = [Ok(0), Ok(data), Err(Errno::NXIO)].into_iter().skip(usize::from(data == 0) * 2);
            assert_eq!(ask(|_| answers.next().unwrap(), len), None, "{len} bytes with {data} of data");
        }
    }

    /// A file with holes of 8 KiB in front, of 20 MiB in the middle, and of nearly 5 MiB at its end, changed at 1000 s.
    fn sparse() -> Option<(std::fs::File, Meta)> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(40 << 20).unwrap();
        file.write_all_at(&vec![b'd'; 15 << 20], 8192).unwrap();
        file.write_all_at(b"the end", 35 << 20).unwrap();
        let mut meta = Meta::of(&rustix::fs::fstat(&file).unwrap());
        meta.mtime.secs = 1000;
        if !Holes::may_be_in(&meta) {
            eprintln!("SKIPPED: this file system keeps no holes");
            return None;
        }
        Some((file, meta))
    }

    /// What a file system may say of a file instead of the truth.
    type Lie<'a> = Box<dyn Fn(SeekFrom, &dyn Fn(SeekFrom) -> Result<u64, Errno>) -> Result<u64, Errno> + 'a>;

    #[test]
    fn a_file_system_that_hides_data_or_answers_nonsense_is_read_whole() {
        let Some((file, meta)) = sparse() else { return };
        let fd = file.as_fd();
        let truth = |from: SeekFrom| rustix::fs::seek(fd, from);
        let settled = Holes::new(2000);
        let lies: [(&str, Lie<'_>); 8] = [
            ("no data anywhere", Box::new(|_, _| Err(Errno::NXIO))),
            (
                "the first data comes late",
                Box::new(|from, truth| match from {
                    SeekFrom::Data(at) => truth(SeekFrom::Data(at.max(14 << 20))),
                    other => truth(other),
                }),
            ),
            ("data before what was asked for", Box::new(|from, truth| Ok(truth(from)?.saturating_sub(9000)))),
            ("all ends beyond the file", Box::new(|_, _| Ok(1 << 50))),
            (
                "a hole where data begins",
                Box::new(|from, truth| match from {
                    SeekFrom::Hole(at) => Ok(at),
                    other => truth(other),
                }),
            ),
            (
                "no end of the data",
                Box::new(|from, truth| match from {
                    SeekFrom::Hole(_) => Err(Errno::NXIO),
                    other => truth(other),
                }),
            ),
            ("no such question", Box::new(|_, _| Err(Errno::INVAL))),
            ("a broken disk", Box::new(|_, _| Err(Errno::IO))),
        ];
        assert!(settled.map_as(fd, &meta, truth).is_some(), "the truth is believed");
        for (what, lie) in &lies {
            assert_eq!(settled.map_as(fd, &meta, |from| lie(from, &truth)), None, "{what}");
        }
        let mut content = vec![0; 40 << 20];
        file.read_exact_at(&mut content, 0).unwrap();
        for (what, lie) in &lies {
            assert_eq!(settled.map_read_as(&content, |from| lie(from, &truth)), None, "{what}, read before");
        }
    }

    #[test]
    fn little_that_is_hidden_is_found_if_it_was_written_shortly_before() {
        let Some((file, meta)) = sparse() else { return };
        let fd = file.as_fd();
        // The last bytes are in a hole, as may be before they are on the disk.
        let hides = |from: SeekFrom| match from {
            SeekFrom::Data(at) if at > 10 << 20 => Err(Errno::NXIO),
            other => rustix::fs::seek(fd, other),
        };
        assert_eq!(Holes::new(1000).map_as(fd, &meta, hides), None);
        let lost = Holes::new(1001).map_as(fd, &meta, hides);
        assert!(lost.is_some(), "long after it was written there is no reason to doubt");
        let asked = Holes::new(0).only_asked_for().map_as(fd, &meta, hides);
        assert_eq!(asked, lost, "nothing is read for who only asks");
    }

    #[test]
    fn what_takes_more_of_the_disk_than_its_data_is_believed_if_its_holes_are_zeros() {
        let file = tempfile::tempfile().unwrap();
        let keep = rustix::fs::FallocateFlags::empty();
        if rustix::fs::fallocate(&file, keep, 0, 4 << 20).is_err() {
            return eprintln!("SKIPPED: this file system allocates nothing ahead");
        }
        file.set_len(30 << 20).unwrap();
        let mut meta = Meta::of(&rustix::fs::fstat(&file).unwrap());
        meta.mtime.secs = 0;
        let all_hole = |_| Err(Errno::NXIO);
        let map = Holes::new(2000).map_as(file.as_fd(), &meta, all_hole);
        assert_eq!(map.map(|map| map.data_len()), Some(0));
    }
}
