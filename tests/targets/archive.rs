//! The archive: whatever bytes a peer calls one, and whatever entries are written.

use blast::archive::{
    ArchiveError, BLOCK_LEN, Entry, EntryKind, MapReader, Parser, Timestamp, check_padding, header_len, padding,
    write_header,
};

use super::Bytes;

/// An archive, as it is and with its checksums put right.
pub fn archives(input: &[u8]) {
    let _ = read(input);
    let _ = read(&mended(input));
}

/// An entry made of these bytes: what may be written is read back as it was.
pub fn entries(input: &[u8]) {
    let mut bytes = Bytes(input);
    let kind = bytes.u8() % 7;
    let (mode, uid, gid) = (bytes.u64() as u32 & 0o17777, bytes.u64() as u32, bytes.u64() as u32);
    let mtime = Timestamp { secs: bytes.u64() as i64, nanos: bytes.u64() as u32 & 0x3fff_ffff };
    let size = bytes.u64();
    let (path, target) = bytes.0.split_at(usize::from(bytes.u8()).min(bytes.0.len()));
    let target = target.to_vec();
    let kind = match kind {
        0 => EntryKind::File { size },
        1 => EntryKind::Directory,
        2 => EntryKind::Symlink { target },
        3 => EntryKind::Hardlink { target },
        4 => EntryKind::Fifo,
        5 => EntryKind::Sparse { size, packed: mtime.secs as u64 },
        _ => EntryKind::Device { block: size & 1 == 1, major: mode >> 1, minor: uid & 0x1f_ffff },
    };
    let entry = Entry { path: path.to_vec(), kind, mode, uid, gid, mtime, extras: None };
    if entry.check().is_err() {
        return;
    }
    let mut header = vec![0; header_len(&entry)];
    write_header(&entry, &mut header);
    let parsed = Parser::new().next(&header).expect("what we write can be read").expect("an entry, not the end");
    assert_eq!((parsed.entry, parsed.header_len), (entry, header.len()));
}

/// Read to the end as the receiver does, skipping content.
pub fn read(bytes: &[u8]) -> Result<(), ArchiveError> {
    let (mut parser, mut at) = (Parser::new(), 0);
    while let Some(parsed) = parser.next(&bytes[at..])? {
        let entry = &parsed.entry;
        assert_eq!(entry.check(), Ok(()));
        assert_eq!(header_len(entry), parsed.header_len);
        let mut again = vec![0; parsed.header_len];
        write_header(entry, &mut again);
        assert_eq!(again, bytes[at..at + parsed.header_len]);
        at += parsed.header_len;
        let Some(end) = usize::try_from(entry.kind.content_len()).ok().and_then(|len| at.checked_add(len)) else {
            break;
        };
        if let EntryKind::Sparse { size, packed } = entry.kind {
            map(&bytes[at..], size, packed)?;
        }
        // Content that is not there travels elsewhere.
        let Some(zeros) = bytes.get(end..).and_then(|rest| rest.get(..padding(entry.kind.content_len()))) else {
            break;
        };
        check_padding(zeros)?;
        at = end + zeros.len();
    }
    Ok(())
}

/// A sparse file's map, as far as it is there: what is accepted has one text.
fn map(bytes: &[u8], size: u64, packed: u64) -> Result<(), ArchiveError> {
    let mut reader = MapReader::new();
    let read = reader.push(&bytes[..bytes.len().min(usize::try_from(packed).unwrap_or(usize::MAX))])?;
    if reader.is_complete() {
        let map = reader.into_map(size)?;
        let mut text = vec![0; map.map_len() as usize];
        map.writer().write(&mut text);
        assert_eq!(text, bytes[..read]);
    }
    Ok(())
}

/// The same archive with its checksums put right.
pub fn mended(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK_LEN).filter(|block| block[257..].starts_with(b"ustar")) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes
}
