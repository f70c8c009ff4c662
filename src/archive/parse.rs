//! From bytes to entries, for what our own sender writes and nothing else.
//!
//! Two steps. First the header is read into an entry, refusing by name whatever could not have been meant. Then the
//! entry is written again, and must give the same bytes. The second step costs less than a quarter of a microsecond
//! and is what makes the dialect closed: no field, order or spelling is left that another reader could see differently.

use super::entry::shown;
use super::header::{Fields, read_block};
use super::pax::{parse_decimal, parse_time, split_record};
use super::write::is_header;
use super::{ArchiveError, BLOCK_LEN, END, Entry, EntryKind, Timestamp, padding};
use crate::limits::PAX_LEN_MAX;

/// One entry found in the bytes. Its content, if it has any, begins `header_len` bytes further on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// The entry; it passes [`Entry::check`].
    pub entry: Entry,
    /// Bytes of its header.
    pub header_len: usize,
}

/// Reads headers. It keeps nothing from one entry to the next but whether the end was seen, so the caller may skip
/// content that travels elsewhere.
#[derive(Default)]
pub struct Parser {
    ended: bool,
    /// The header as it should be; kept for its memory.
    canonical: Vec<u8>,
}

impl Parser {
    /// A parser at the start of an archive.
    pub fn new() -> Parser {
        Parser::default()
    }

    /// Whether the end of the archive was seen.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The entry whose header `bytes` begins with. The header must be there whole; content and more may follow. `None`
    /// if there are no bytes, or if they are the end of the archive: nothing but zeros, two blocks at least.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<Parsed>, ArchiveError> {
        match bytes.first() {
            None => return Ok(None),
            Some(0) => return self.end(bytes).map(|()| None),
            Some(_) if self.ended => return Err(ArchiveError::AfterEnd { offset: 0 }),
            Some(_) => {}
        }
        let mut header_len = 0;
        let mut fields = read_block(block_at(bytes, 0)?)?;
        let mut records = Records::default();
        if fields.type_flag == b'x' {
            let body = extended_body(bytes, &fields)?;
            header_len = BLOCK_LEN + body.len() + padding(body.len() as u64);
            records = Records::parse(body)?;
            fields = read_block(block_at(bytes, header_len)?)?;
            if fields.type_flag == b'x' {
                return Err(ArchiveError::TwoExtended);
            }
        }
        header_len += BLOCK_LEN;
        let entry = assemble(&fields, &records)?;
        entry.check()?;

        if !is_header(&entry, &bytes[..header_len], &mut self.canonical) {
            return Err(ArchiveError::NotCanonical { path: shown(&entry.path) });
        }
        Ok(Some(Parsed { entry, header_len }))
    }

    fn end(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        if let Some(offset) = bytes.iter().position(|b| *b != 0) {
            return Err(ArchiveError::AfterEnd { offset });
        }
        if !self.ended && bytes.len() < END.len() {
            return Err(ArchiveError::Truncated);
        }
        self.ended = true;
        Ok(())
    }
}

/// Whether bytes that must be zero are.
pub fn check_padding(bytes: &[u8]) -> Result<(), ArchiveError> {
    if bytes.iter().all(|b| *b == 0) { Ok(()) } else { Err(ArchiveError::Padding) }
}

fn block_at(bytes: &[u8], at: usize) -> Result<&[u8; BLOCK_LEN], ArchiveError> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(ArchiveError::Truncated)
}

fn extended_body<'a>(bytes: &'a [u8], fields: &Fields<'_>) -> Result<&'a [u8], ArchiveError> {
    let len = match usize::try_from(fields.size) {
        Ok(len) if len <= PAX_LEN_MAX => len,
        _ => return Err(ArchiveError::ExtendedTooLong { len: fields.size }),
    };
    bytes.get(BLOCK_LEN..BLOCK_LEN + len).ok_or(ArchiveError::Truncated)
}

/// The records of one extended header.
#[derive(Default)]
struct Records<'a> {
    hdrcharset: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    linkpath: Option<&'a [u8]>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Timestamp>,
}

impl Records<'_> {
    fn parse(mut body: &[u8]) -> Result<Records<'_>, ArchiveError> {
        let mut records = Records::default();
        while !body.is_empty() {
            let (key, value) = split_record(&mut body)?;
            match key {
                b"hdrcharset" => set("hdrcharset", &mut records.hdrcharset, value)?,
                b"path" => set("path", &mut records.path, value)?,
                b"linkpath" => set("linkpath", &mut records.linkpath, value)?,
                b"size" => set("size", &mut records.size, number("size", parse_decimal(value))?)?,
                b"uid" => set("uid", &mut records.uid, number("uid", parse_decimal(value))?)?,
                b"gid" => set("gid", &mut records.gid, number("gid", parse_decimal(value))?)?,
                b"mtime" => set("mtime", &mut records.mtime, number("mtime", parse_time(value))?)?,
                _ => return Err(ArchiveError::UnknownKey { key: shown(key) }),
            }
        }
        Ok(records)
    }
}

fn set<T>(key: &'static str, slot: &mut Option<T>, value: T) -> Result<(), ArchiveError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(ArchiveError::DuplicateKey { key }),
    }
}

fn number<T>(field: &'static str, value: Option<T>) -> Result<T, ArchiveError> {
    value.ok_or(ArchiveError::Number { field })
}

fn assemble(fields: &Fields<'_>, records: &Records<'_>) -> Result<Entry, ArchiveError> {
    let size = records.size.unwrap_or(fields.size);
    let target = records.linkpath.unwrap_or(fields.linkname).to_vec();
    let kind = match fields.type_flag {
        b'0' => EntryKind::File { size },
        b'1' => EntryKind::Hardlink { target },
        b'2' => EntryKind::Symlink { target },
        b'5' => EntryKind::Directory,
        b'6' => EntryKind::Fifo,
        type_flag => return Err(ArchiveError::Type { type_flag }),
    };
    if size != kind.content_len() {
        return Err(ArchiveError::SizeWithoutContent);
    }
    let id = |field, record: Option<u64>, base| number(field, u32::try_from(record.unwrap_or(base)).ok());
    Ok(Entry {
        path: assemble_path(fields, records, kind.is_directory()),
        kind,
        mode: number("mode", u32::try_from(fields.mode).ok())?,
        uid: id("uid", records.uid, fields.uid)?,
        gid: id("gid", records.gid, fields.gid)?,
        mtime: records.mtime.unwrap_or(Timestamp { secs: fields.mtime as i64, nanos: 0 }),
    })
}

/// The path without a directory's slash; the root's is empty. A slash missing or too many is found when the entry is
/// checked or written again.
fn assemble_path(fields: &Fields<'_>, records: &Records<'_>, directory: bool) -> Vec<u8> {
    if let Some(path) = records.path {
        let stem = if directory { path.strip_suffix(b"/") } else { None };
        return stem.unwrap_or(path).to_vec();
    }
    if directory && fields.prefix.is_empty() && fields.name == b"." {
        return Vec::new();
    }
    let mut path = Vec::with_capacity(fields.prefix.len() + 1 + fields.name.len());
    if !fields.prefix.is_empty() {
        path.extend_from_slice(fields.prefix);
        path.push(b'/');
    }
    path.extend_from_slice(fields.name);
    path
}
