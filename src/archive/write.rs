//! From an entry to the bytes of its header. Called once for each entry, small files included: no allocation, but
//! for an ACL's text.

use super::header::{Fields, NAME_FIELD_LEN, OCTAL_7_MAX, OCTAL_11_MAX, PREFIX_FIELD_LEN, write_block};
use super::pax::{Decimal, record_len, write_keyed, write_record};
use super::{Acl, BLOCK_LEN, Entry, EntryKind, Xattr, padding};

/// Bytes of an entry's header, a multiple of [`BLOCK_LEN`]: what [`write_header`] will write.
pub fn header_len(entry: &Entry) -> usize {
    Extended::of(entry).header_len()
}

/// Write an entry's header at the start of `out`, which need not be zeroed; returns its length. The entry must pass
/// [`Entry::check`] and the header must fit, or this panics or writes what no [`super::Parser`] accepts.
pub fn write_header(entry: &Entry, out: &mut [u8]) -> usize {
    debug_assert_eq!(entry.check(), Ok(()));
    let extended = Extended::of(entry);
    let len = extended.header_len();
    write_extended(entry, &extended, &mut out[..len]);
    len
}

/// Whether `bytes` are an entry's header as [`write_header`] writes it. `scratch` is kept for its memory.
pub(super) fn is_header(entry: &Entry, bytes: &[u8], scratch: &mut Vec<u8>) -> bool {
    let extended = Extended::of(entry);
    let len = extended.header_len();
    if len != bytes.len() {
        return false;
    }
    scratch.resize(scratch.len().max(len), 0);
    write_extended(entry, &extended, &mut scratch[..len]);
    scratch[..len] == *bytes
}

fn write_extended(entry: &Entry, extended: &Extended<'_>, out: &mut [u8]) {
    let base = out.len() - BLOCK_LEN;
    if extended.body_len > 0 {
        write_block(&extended_fields(extended.body_len as u64), &mut out[..BLOCK_LEN]);
        let mut at = BLOCK_LEN;
        for (key, value) in extended.records() {
            at += write_record(key, value, &mut out[at..]);
        }
        for extra in extras(entry) {
            at += extra.write(&mut out[at..]);
        }
        out[at..base].fill(0);
    }
    write_block(&base_fields(entry, extended), &mut out[base..]);
}

/// A record's value in its two parts, as [`write_record`] takes it.
type Value<'a> = [&'a [u8]; 2];

/// What the plain block cannot say of an entry.
struct Extended<'a> {
    binary: bool,
    path: Option<Value<'a>>,
    linkpath: Option<&'a [u8]>,
    sparse: Option<Sparse<'a>>,
    size: Option<Decimal>,
    uid: Option<Decimal>,
    gid: Option<Decimal>,
    mtime: Option<Decimal>,
    /// The path as the block takes it, if it does.
    split: Option<Split<'a>>,
    /// Bytes of all records, the extras' included.
    body_len: usize,
}

impl Extended<'_> {
    fn of(entry: &Entry) -> Extended<'_> {
        let target = entry.kind.target().unwrap_or_default();
        let size = entry.kind.content_len();
        let sparse = match entry.kind {
            EntryKind::Sparse { size, .. } => Some(Sparse::of(&entry.path, size)),
            _ => None,
        };
        let split = split(entry);
        let slash: &[u8] = if entry.kind.is_directory() { b"/" } else { b"" };
        let path = (split.is_none() && sparse.is_none()).then_some([&entry.path[..], slash]);
        let linkpath = (target.len() > NAME_FIELD_LEN).then_some(target);
        let is_text = |value: Option<&[u8]>| value.is_none_or(|value| std::str::from_utf8(value).is_ok());
        let plain_time = entry.mtime.nanos == 0 && (0..=OCTAL_11_MAX as i64).contains(&entry.mtime.secs);
        let beyond = |n: u64, max: u64| (n > max).then(|| Decimal::of(n));
        let mut extended = Extended {
            binary: !(is_text(path.map(|[path, _]| path))
                && is_text(linkpath)
                && is_text(sparse.as_ref().map(|sparse| sparse.path))),
            path,
            linkpath,
            sparse,
            size: beyond(size, OCTAL_11_MAX),
            uid: beyond(entry.uid.into(), OCTAL_7_MAX),
            gid: beyond(entry.gid.into(), OCTAL_7_MAX),
            mtime: (!plain_time).then(|| Decimal::of_time(entry.mtime)),
            split,
            body_len: 0,
        };
        let record_lens = extended.records().map(|(key, value)| record_len(key.len(), value[0].len() + value[1].len()));
        extended.body_len = record_lens.sum::<usize>() + extras(entry).map(|extra| extra.len()).sum::<usize>();
        extended
    }

    fn header_len(&self) -> usize {
        match self.body_len {
            0 => BLOCK_LEN,
            body_len => 2 * BLOCK_LEN + body_len + padding(body_len as u64),
        }
    }

    /// Keys and values of all but the extras, in the order they are written.
    fn records(&self) -> impl Iterator<Item = (&'static [u8], Value<'_>)> {
        fn number(n: &Option<Decimal>) -> Option<Value<'_>> {
            n.as_ref().map(|n| [n.text(), b""])
        }
        fn fixed(present: bool, value: &[u8]) -> Option<Value<'_>> {
            present.then_some([value, b""])
        }
        let is_sparse = self.sparse.is_some();
        let (name, realsize) = self.sparse.as_ref().map(|s| ([s.path, b""], [s.size.text(), b""])).unzip();
        let records: [(&'static [u8], Option<Value<'_>>); 11] = [
            (b"hdrcharset", fixed(self.binary, b"BINARY")),
            (b"path", self.path),
            (b"linkpath", self.linkpath.map(|target| [target, b""])),
            (b"GNU.sparse.major", fixed(is_sparse, b"1")),
            (b"GNU.sparse.minor", fixed(is_sparse, b"0")),
            (b"GNU.sparse.name", name),
            (b"GNU.sparse.realsize", realsize),
            (b"size", number(&self.size)),
            (b"uid", number(&self.uid)),
            (b"gid", number(&self.gid)),
            (b"mtime", number(&self.mtime)),
        ];
        records.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }
}

/// The records that follow those.
enum Extra<'a> {
    Name(&'static [u8], &'a [u8]),
    Acl(&'static [u8], &'a Acl),
    Xattr(&'a Xattr),
}

pub(super) const ACCESS_ACL: &str = "SCHILY.acl.access";
pub(super) const DEFAULT_ACL: &str = "SCHILY.acl.default";
/// What stands before the name.
pub(super) const XATTR: &str = "SCHILY.xattr.";

/// In the order they are written.
fn extras(entry: &Entry) -> impl Iterator<Item = Extra<'_>> {
    entry.extras.iter().flat_map(|extras| {
        let access = extras.access_acl.iter().map(|acl| Extra::Acl(ACCESS_ACL.as_bytes(), acl));
        let default = extras.default_acl.iter().map(|acl| Extra::Acl(DEFAULT_ACL.as_bytes(), acl));
        let uname = extras.uname.iter().map(|name| Extra::Name(b"uname", name));
        let gname = extras.gname.iter().map(|name| Extra::Name(b"gname", name));
        uname.chain(gname).chain(access).chain(default).chain(extras.xattrs.iter().map(Extra::Xattr))
    })
}

impl Extra<'_> {
    fn len(&self) -> usize {
        match self {
            Extra::Name(key, name) => record_len(key.len(), name.len()),
            Extra::Acl(key, acl) => record_len(key.len(), acl.to_text().len()),
            Extra::Xattr(xattr) => record_len(XATTR.len() + xattr.escaped_name().len(), xattr.value.len()),
        }
    }

    fn write(&self, out: &mut [u8]) -> usize {
        match self {
            Extra::Name(key, name) => write_record(key, [name, b""], out),
            Extra::Acl(key, acl) => write_record(key, [acl.to_text().as_bytes(), b""], out),
            Extra::Xattr(xattr) => write_keyed([XATTR.as_bytes(), &xattr.escaped_name()], [&xattr.value, b""], out),
        }
    }
}

/// A sparse file's real path and size, and what its block is called for readers that do not know the format.
struct Sparse<'a> {
    path: &'a [u8],
    size: Decimal,
    prefix: &'a [u8],
    name: [u8; NAME_FIELD_LEN],
    name_len: usize,
}

impl<'a> Sparse<'a> {
    /// What GNU tar puts before the last component, with a number in place of its process id.
    const DIRECTORY: &'static [u8] = b"GNUSparseFile.0/";

    fn of(path: &'a [u8], size: u64) -> Sparse<'a> {
        let (above, last) = match path.iter().rposition(|b| *b == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        let prefix = if above.len() <= PREFIX_FIELD_LEN { above } else { b"" };
        let directory_len = Sparse::DIRECTORY.len();
        let last = &last[..last.len().min(NAME_FIELD_LEN - directory_len)];
        let mut name = [0; NAME_FIELD_LEN];
        name[..directory_len].copy_from_slice(Sparse::DIRECTORY);
        name[directory_len..directory_len + last.len()].copy_from_slice(last);
        Sparse { path, size: Decimal::of(size), prefix, name, name_len: directory_len + last.len() }
    }

    fn name(&self) -> &[u8] {
        &self.name[..self.name_len]
    }
}

fn extended_fields(body_len: u64) -> Fields<'static> {
    Fields {
        type_flag: b'x',
        name: b"././@PaxHeader",
        slash: false,
        prefix: b"",
        linkname: b"",
        mode: 0o644,
        uid: 0,
        gid: 0,
        size: body_len,
        mtime: 0,
        device: (0, 0),
    }
}

fn base_fields<'a>(entry: &'a Entry, extended: &'a Extended<'a>) -> Fields<'a> {
    let type_flag = match entry.kind {
        EntryKind::File { .. } | EntryKind::Sparse { .. } => b'0',
        EntryKind::Hardlink { .. } => b'1',
        EntryKind::Symlink { .. } => b'2',
        EntryKind::Directory => b'5',
        EntryKind::Fifo => b'6',
        EntryKind::Device { block: false, .. } => b'3',
        EntryKind::Device { block: true, .. } => b'4',
    };
    let within = |n: u64, max: u64| if n <= max { n } else { 0 };
    let device = match entry.kind {
        EntryKind::Device { major, minor, .. } => (major.into(), minor.into()),
        _ => (0, 0),
    };
    let (prefix, name) = match &extended.sparse {
        Some(sparse) => (sparse.prefix, sparse.name()),
        None => extended.split.unwrap_or_else(|| (b"", stand_in(entry))),
    };
    let target = entry.kind.target().unwrap_or_default();
    Fields {
        type_flag,
        name,
        slash: entry.kind.is_directory(),
        prefix,
        linkname: &target[..target.len().min(NAME_FIELD_LEN)],
        mode: entry.mode.into(),
        uid: within(entry.uid.into(), OCTAL_7_MAX),
        gid: within(entry.gid.into(), OCTAL_7_MAX),
        size: within(entry.kind.content_len(), OCTAL_11_MAX),
        mtime: within(entry.mtime.secs.try_into().unwrap_or(0), OCTAL_11_MAX),
        device,
    }
}

/// Prefix and name, the name without a directory's slash.
type Split<'a> = (&'a [u8], &'a [u8]);

/// Divide a path over the two fields of the block, if it fits.
fn split(entry: &Entry) -> Option<Split<'_>> {
    let path = &entry.path[..];
    if path.is_empty() {
        return Some((b"", b"."));
    }
    let name_max = NAME_FIELD_LEN - usize::from(entry.kind.is_directory());
    if path.len() <= name_max {
        return Some((b"", path));
    }
    // The slash between the two is in neither.
    let first = path.len() - name_max - 1;
    let slash = first + path[first..].iter().take(PREFIX_FIELD_LEN + 1).position(|b| *b == b'/')?;
    (slash <= PREFIX_FIELD_LEN).then(|| (&path[..slash], &path[slash + 1..]))
}

/// What the block is called when the path is in the extended header. One component: a reader that knows no extended
/// headers puts it nowhere but in front of itself, and a cut can neither end in a slash nor make a `..`.
fn stand_in(entry: &Entry) -> &[u8] {
    let name = entry.path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    &name[..name.len().min(NAME_FIELD_LEN - usize::from(entry.kind.is_directory()))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Parser, Timestamp};

    fn file(path: impl AsRef<[u8]>) -> Entry {
        Entry {
            path: path.as_ref().to_vec(),
            kind: EntryKind::File { size: 5 },
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            mtime: Timestamp { secs: 1, nanos: 0 },
            extras: None,
        }
    }

    fn written(entry: &Entry) -> Vec<u8> {
        let mut out = vec![0xaa; header_len(entry)];
        assert_eq!(write_header(entry, &mut out), out.len());
        let parsed = Parser::new().next(&out).unwrap().unwrap();
        assert_eq!((&parsed.entry, parsed.header_len), (entry, out.len()));
        out
    }

    #[test]
    fn what_a_plain_block_can_say_takes_one_block() {
        let long = [&b"p".repeat(155)[..], b"/", &b"n".repeat(100)].concat();
        let plain = [
            file("a"),
            file("n".repeat(100)),
            file(long),
            file("é"),
            file(b"\xff"),
            Entry { uid: 2097151, gid: 2097151, mode: 0o7777, ..file("ids") },
            Entry { mtime: Timestamp { secs: 8589934591, nanos: 0 }, ..file("2242") },
            Entry { kind: EntryKind::File { size: 8589934591 }, ..file("8G") },
            Entry { kind: EntryKind::Symlink { target: vec![b't'; 100] }, ..file("link") },
            Entry { kind: EntryKind::Directory, ..file("n".repeat(99)) },
            Entry { kind: EntryKind::Directory, ..file("") },
        ];
        for entry in plain {
            assert_eq!(written(&entry).len(), 512, "{entry:?}");
        }
    }

    #[test]
    fn what_it_cannot_say_takes_an_extended_header() {
        let extended = [
            (file("n".repeat(101)), "111 path="),
            (Entry { kind: EntryKind::Directory, ..file("n".repeat(100)) }, "111 path="),
            (file([&b"p".repeat(156)[..], b"/", &b"n".repeat(100)].concat()), "267 path="),
            (file(b"\xff".repeat(101)), "21 hdrcharset=BINARY\n111 path=\u{fffd}"),
            (Entry { uid: 2097152, ..file("uid") }, "15 uid=2097152\n"),
            (Entry { gid: u32::MAX - 1, ..file("gid") }, "18 gid=4294967294\n"),
            (Entry { mtime: Timestamp { secs: 8589934592, nanos: 0 }, ..file("2242") }, "20 mtime=8589934592\n"),
            (Entry { mtime: Timestamp { secs: -2, nanos: 500_000_000 }, ..file("1969") }, "14 mtime=-1.5\n"),
            (Entry { mtime: Timestamp { secs: 3, nanos: 1 }, ..file("ns") }, "21 mtime=3.000000001\n"),
            (Entry { kind: EntryKind::File { size: 8589934592 }, ..file("8G") }, "19 size=8589934592\n"),
            (Entry { kind: EntryKind::Symlink { target: vec![b't'; 101] }, ..file("link") }, "115 linkpath="),
            (
                Entry { kind: EntryKind::Symlink { target: vec![0xff; 101] }, ..file("link") },
                "21 hdrcharset=BINARY\n115 linkpath=\u{fffd}",
            ),
        ];
        for (entry, start) in extended {
            let out = written(&entry);
            assert_eq!(out.len(), 1536, "{entry:?}");
            let body = String::from_utf8_lossy(&out[512..1024]);
            assert!(body.starts_with(start), "{entry:?}: {body}");
        }
    }

    #[test]
    fn a_stand_in_name_neither_leaves_its_place_nor_names_a_directory() {
        for path in [
            "d/".repeat(200) + "..f",
            "x".repeat(97) + "/.." + &"y".repeat(200),
            "x".repeat(99) + "/" + &"y".repeat(200),
            "x/".repeat(49) + "..." + &"/z".repeat(80),
        ] {
            let out = written(&file(&path));
            let name = &out[out.len() - 512..][..100];
            assert!(!name.contains(&b'/') && !name.starts_with(b"..\0") && !name.starts_with(b".\0"), "{path}");
        }
    }
}
