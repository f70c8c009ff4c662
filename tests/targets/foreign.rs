//! Archives of other tars, and maps of sparse files: whatever bytes they are, and however they are cut.

use blast::archive::foreign::{Ended, Event, ForeignError, Member, Reader};
use blast::archive::{EntryKind, Extent, MapReader, SparseMap};

use super::Bytes;
use super::archive::mended;

/// A byte for the length of the pieces, then an archive, as it is and with its checksums put right.
pub fn foreign_archives(input: &[u8]) {
    let mut bytes = Bytes(input);
    let piece = usize::from(bytes.u8()).max(1) * 3;
    for archive in [bytes.0.to_vec(), mended(bytes.0)] {
        let whole = read(&archive, usize::MAX);
        assert_eq!(read(&archive, piece), whole, "it means the same in pieces of {piece}");
    }
}

#[derive(PartialEq, Debug)]
enum Seen {
    Member(Member),
    Content(u64, Vec<u8>),
    FileEnd,
    Itself(Vec<u8>),
    LeftOut(Vec<u8>, String),
    Beyond(u64, u64, bool),
}

fn read(archive: &[u8], piece: usize) -> (Vec<Seen>, Result<Ended, ForeignError>) {
    let mut reader = Reader::new();
    let mut seen = Vec::new();
    // where the file's next content may begin, how much of it there is, and its size
    let mut open: Option<(u64, u64, Member)> = None;
    for mut input in archive.chunks(piece) {
        loop {
            match reader.next(&mut input) {
                Err(error) => return (seen, Err(error)),
                Ok(None) => break,
                Ok(Some(Event::Member(member))) => {
                    assert!(open.is_none(), "a member within a file");
                    assert_eq!(member.entry.check(), Ok(()));
                    if matches!(member.entry.kind, EntryKind::File { .. }) {
                        open = Some((0, 0, member.clone()));
                    }
                    seen.push(Seen::Member(member));
                }
                Ok(Some(Event::Content { offset, bytes })) => {
                    let (next, came, member) = open.as_mut().expect("content is a file's");
                    assert!(offset >= *next && !bytes.is_empty(), "pieces ascend");
                    (*next, *came) = (offset + bytes.len() as u64, *came + bytes.len() as u64);
                    assert!(*next <= member.entry.kind.content_len() && *came <= member.stored, "{member:?}");
                    match seen.last_mut() {
                        Some(Seen::Content(at, last)) if *at + last.len() as u64 == offset => {
                            last.extend_from_slice(bytes);
                        }
                        _ => seen.push(Seen::Content(offset, bytes.to_vec())),
                    }
                }
                Ok(Some(Event::FileEnd)) => {
                    let (_, came, member) = open.take().expect("a file ends");
                    assert_eq!(came, member.stored, "all of it came");
                    seen.push(Seen::FileEnd);
                }
                Ok(Some(Event::LinkToItself { path })) => seen.push(Seen::Itself(path)),
                Ok(Some(Event::LeftOut { path, why })) => seen.push(Seen::LeftOut(path, why)),
                Ok(Some(Event::Beyond { end, offset, lone })) => seen.push(Seen::Beyond(end, offset, lone)),
            }
        }
        assert!(input.is_empty(), "all is taken");
    }
    (seen, reader.finish())
}

/// Eight bytes of a file's size, one for the length of the pieces, then the text of a map.
pub fn sparse_maps(input: &[u8]) {
    let mut bytes = Bytes(input);
    let (size, piece) = (bytes.u64(), usize::from(bytes.u8()).max(1));
    let (whole, taken) = map(bytes.0, usize::MAX, size);
    let (again, taken_again) = map(bytes.0, piece, size);
    assert_eq!((&again, taken_again), (&whole, taken), "it means the same in pieces of {piece}");
    let Some(map) = whole else { return };
    let mut text = vec![0; map.map_len() as usize];
    map.writer().write(&mut text);
    assert_eq!(text, bytes.0[..taken], "a map has one text");
    let mut last = 0;
    for Extent { offset, len } in map.extents() {
        assert!(*offset >= last && *len > 0, "extents ascend");
        last = offset.checked_add(*len).expect("within the file");
    }
    assert!(last <= size && map.data_len() <= size);
}

/// The map, if there is one, and how many bytes were its own.
fn map(text: &[u8], piece: usize, size: u64) -> (Option<SparseMap>, usize) {
    let (mut reader, mut taken) = (MapReader::new(), 0);
    for bytes in text.chunks(piece) {
        let Ok(read) = reader.push(bytes) else { return (None, 0) };
        taken += read;
        if read < bytes.len() {
            break;
        }
    }
    assert!(taken as u64 == reader.len());
    let complete = reader.is_complete();
    match reader.into_map(size) {
        Ok(map) if complete => (Some(map), taken),
        _ => (None, 0),
    }
}
