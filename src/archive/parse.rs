//! From bytes to entries, for what our own sender writes and nothing else.
//!
//! Two steps. First the header is read into an entry, refusing by name whatever could not have been meant. Then the
//! entry is written again, and must give the same bytes. The second step costs about a third of a microsecond
//! and is what makes the dialect closed: no field, order or spelling is left that another reader could see differently.

use std::sync::Arc;

use super::entry::shown;
use super::header::{Fields, read_block};
use super::records::{Records, number};
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
        let entry = assemble(&fields, records)?;
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

fn assemble(fields: &Fields<'_>, records: Records<'_>) -> Result<Entry, ArchiveError> {
    let size = records.size.unwrap_or(fields.size);
    let target = records.linkpath.unwrap_or(fields.linkname).to_vec();
    let sparse = records.sparse.file();
    let sparse = sparse.map_err(|why| ArchiveError::Sparse { path: shown(fields.name), why })?;
    let kind = match fields.type_flag {
        b'0' if let Some((_, real)) = sparse => EntryKind::Sparse { size: real, packed: size },
        b'0' => EntryKind::File { size },
        b'1' => EntryKind::Hardlink { target },
        b'2' => EntryKind::Symlink { target },
        b'5' => EntryKind::Directory,
        b'6' => EntryKind::Fifo,
        b'3' | b'4' => {
            let number_of = |n: u64| number("device number", u32::try_from(n).ok());
            let (major, minor) = (number_of(fields.device.0)?, number_of(fields.device.1)?);
            EntryKind::Device { block: fields.type_flag == b'4', major, minor }
        }
        type_flag => return Err(ArchiveError::Type { type_flag }),
    };
    if size != kind.content_len() {
        return Err(ArchiveError::SizeWithoutContent);
    }
    let id = |field, record: Option<u64>, base| number(field, u32::try_from(record.unwrap_or(base)).ok());
    let path = match (&kind, sparse) {
        (EntryKind::Sparse { .. }, Some((path, _))) => path.to_vec(),
        // What is no file but has these records is found when it is written again.
        _ => assemble_path(fields, &records, kind.is_directory()),
    };
    Ok(Entry {
        path,
        kind,
        mode: number("mode", u32::try_from(fields.mode).ok())?,
        uid: id("uid", records.uid, fields.uid)?,
        gid: id("gid", records.gid, fields.gid)?,
        mtime: records.mtime.unwrap_or(Timestamp { secs: fields.mtime as i64, nanos: 0 }),
        extras: (!records.extras.is_empty()).then(|| Arc::new(records.extras)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::header::write_block;
    use crate::archive::pax::write_record;
    use crate::archive::{Extras, Xattr, write_header};

    fn entry(path: &str, kind: EntryKind) -> Entry {
        let mtime = Timestamp { secs: 1_700_000_000, nanos: 0 };
        Entry { path: path.into(), kind, mode: 0o644, uid: 1000, gid: 1000, mtime, extras: None }
    }

    fn file(path: &str) -> Entry {
        entry(path, EntryKind::File { size: 5 })
    }

    fn symlink(target: impl AsRef<[u8]>) -> Entry {
        entry("link", EntryKind::Symlink { target: target.as_ref().to_vec() })
    }

    fn written(entry: &Entry) -> Vec<u8> {
        let mut out = vec![0; super::super::header_len(entry)];
        write_header(entry, &mut out);
        out
    }

    /// A block that need not obey the rules.
    fn block(type_flag: u8, name: &str, change: impl FnOnce(&mut Fields<'_>)) -> Vec<u8> {
        let mut fields = Fields {
            type_flag,
            name: name.as_bytes(),
            slash: type_flag == b'5',
            prefix: b"",
            linkname: b"",
            mode: 0o644,
            uid: 1000,
            gid: 1000,
            size: 0,
            mtime: 1_700_000_000,
            device: (0, 0),
        };
        change(&mut fields);
        let mut out = vec![0; BLOCK_LEN];
        write_block(&fields, &mut out);
        out
    }

    /// An extended header with these records, in this order, as our writer would frame it.
    fn extended(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = vec![0; 1 << 20];
        let mut len = 0;
        for (key, value) in records {
            len += write_record(key.as_bytes(), [value, b""], &mut body[len..]);
        }
        body.truncate(len + padding(len as u64));
        let mut out = block(b'x', "././@PaxHeader", |f| (f.uid, f.gid, f.mtime, f.size) = (0, 0, 0, len as u64));
        out.extend(body);
        out
    }

    /// The checksum, mended after a change.
    fn mend(block: &mut [u8]) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    fn parse(bytes: &[u8]) -> Result<Option<Parsed>, ArchiveError> {
        Parser::new().next(bytes)
    }

    fn refused(bytes: &[u8]) -> ArchiveError {
        parse(bytes).expect_err("this must not pass")
    }

    #[test]
    fn a_value_with_a_newline_and_a_record_in_it_stays_data() {
        let target = [&b"t".repeat(120)[..], b"x\n15 path=evil.x\n"].concat();
        let parsed = parse(&written(&symlink(&target))).unwrap().unwrap();
        assert_eq!(parsed.entry, symlink(&target));

        let name = "n".repeat(120) + "x\n15 path=evil.x\n";
        assert_eq!(parse(&written(&file(&name))).unwrap().unwrap().entry.path, name.as_bytes());

        // The same in an extended attribute's value, and in its name.
        let value = b"x\n15 path=evil.x\n";
        for name in [&b"user.a"[..], b"user.\n15 path=evil.x\n"] {
            let entry = with_xattrs(&[(name, value)]);
            assert_eq!(parse(&written(&entry)).unwrap().unwrap().entry, entry);
        }
    }

    #[test]
    fn the_end_is_two_zero_blocks_and_nothing_after_them() {
        let mut parser = Parser::new();
        assert_eq!(parser.next(&[]), Ok(None));
        assert!(!parser.ended());
        assert_eq!(parser.next(&END), Ok(None));
        assert!(parser.ended());
        assert_eq!(parser.next(&[0; 10_000]), Ok(None));
        assert_eq!(parser.next(&written(&file("more"))), Err(ArchiveError::AfterEnd { offset: 0 }));

        // A zero block too many hides nothing.
        let lone = [&[0; BLOCK_LEN][..], &written(&file("hidden"))].concat();
        assert_eq!(refused(&lone), ArchiveError::AfterEnd { offset: BLOCK_LEN });
        let after = [&END[..], &written(&file("hidden"))].concat();
        assert_eq!(refused(&after), ArchiveError::AfterEnd { offset: 2 * BLOCK_LEN });
        assert_eq!(refused(&END[..1023]), ArchiveError::Truncated);
    }

    #[test]
    fn a_header_cut_at_any_byte_is_refused() {
        let whole = written(&file("p/".repeat(200).trim_end_matches('/')));
        for len in 1..whole.len() {
            assert_eq!(refused(&whole[..len]), ArchiveError::Truncated, "{len} bytes");
        }
    }

    #[test]
    fn a_changed_byte_is_refused_and_what_mends_the_checksum_is_not_enough() {
        let whole = written(&file("some/file"));
        for at in 0..BLOCK_LEN {
            let mut changed = whole.clone();
            changed[at] ^= 0x40;
            assert!(parse(&changed).is_err(), "byte {at}");
        }
        // User name, group name, device numbers of a file, what follows a name's NUL, the block's tail.
        for at in [60, 220, 265, 297, 330, 343, 510] {
            let mut changed = whole.clone();
            changed[at] = b'7';
            mend(&mut changed);
            assert!(matches!(refused(&changed), ArchiveError::NotCanonical { .. }), "byte {at}");
        }
    }

    #[test]
    fn other_formats_and_types_are_refused_by_name() {
        for magic in [b"ustar  \0", b"\0\0\0\0\0\0\0\0", b"ustar\x0001", b"USTAR\x0000"] {
            let mut changed = written(&file("a"));
            changed[257..265].copy_from_slice(magic);
            mend(&mut changed);
            assert_eq!(refused(&changed), ArchiveError::NotUstar);
        }
        for type_flag in *b"\x007gLKSVDNX\xff" {
            assert_eq!(refused(&block(type_flag, "a", |_| {})), ArchiveError::Type { type_flag });
        }
    }

    #[test]
    fn one_extended_header_with_known_keys_once_each() {
        let path = b"n".repeat(200);
        let base = block(b'0', &"n".repeat(100), |_| {});
        let good = extended(&[("path", &path)]);
        assert!(parse(&[&good[..], &base].concat()).is_ok());
        assert_eq!(refused(&[&good[..], &good, &base].concat()), ArchiveError::TwoExtended);
        let twice = extended(&[("path", &path), ("path", &path)]);
        assert_eq!(refused(&[&twice[..], &base].concat()), ArchiveError::DuplicateKey { key: "path" });
        for key in [
            "comment",
            "atime",
            "GNU.sparse.map",
            "SCHILY.acl.ace",
            "SCHILY.xattr",
            "RHT.security.selinux",
            "LIBARCHIVE.xattr.user.a",
            "Path",
            "Uname",
            "",
            "a\nb",
        ] {
            let bytes = [extended(&[(key, b"1")]), base.clone()].concat();
            assert_eq!(refused(&bytes), ArchiveError::UnknownKey { key: crate::error::escape(key.as_bytes()) });
        }
        let version: [(&str, &[u8]); 2] = [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")];
        let name: (&str, &[u8]) = ("GNU.sparse.name", b"a");
        let size: (&str, &[u8]) = ("GNU.sparse.realsize", b"9");
        for (records, why) in [
            (vec![version[0]], "lacks one of"),
            (vec![version[0], version[1], name], "lacks one of"),
            (vec![name, size], "lacks one of"),
            (vec![version[0], ("GNU.sparse.minor", b"1"), name, size], "another version"),
            (vec![("GNU.sparse.major", b"0"), version[1], name, size], "another version"),
            (vec![version[0], version[1], name, ("GNU.sparse.realsize", b"0")], "no room for a hole"),
            (vec![version[0], version[1], name, size], "no room for the map"),
        ] {
            let error = refused(&[extended(&records), block(b'0', "GNUSparseFile.0/a", |_| {})].concat());
            assert!(error.to_string().contains(why), "{error}");
        }
        // Whole and in order, but on what is no file, or under another name than ours.
        let records = [version[0], version[1], name, size];
        for bytes in [
            block(b'5', "GNUSparseFile.0/a", |_| {}),
            block(b'0', "GNUSparseFile.1/a", |f| f.size = 512),
            block(b'0', "a", |f| f.size = 512),
        ] {
            let error = refused(&[extended(&records), bytes].concat());
            assert!(matches!(error, ArchiveError::NotCanonical { .. }), "{error}");
        }
        let too_long = block(b'x', "././@PaxHeader", |f| f.size = PAX_LEN_MAX as u64 + 1);
        assert_eq!(refused(&too_long), ArchiveError::ExtendedTooLong { len: PAX_LEN_MAX as u64 + 1 });
        // Followed by the end instead of an entry.
        assert_eq!(refused(&[&good[..], &END].concat()), ArchiveError::NotUstar);
    }

    fn with_xattrs(xattrs: &[(&[u8], &[u8])]) -> Entry {
        let xattrs = xattrs.iter().map(|(name, value)| Xattr { name: name.to_vec(), value: value.to_vec() }).collect();
        Entry { extras: Some(Arc::new(Extras { xattrs, ..Extras::default() })), ..file("f") }
    }

    #[test]
    fn extended_attributes_have_one_place_each_and_one_spelling() {
        let base = || block(b'0', "f", |f| f.size = 5);
        let of = |records: &[(&str, &[u8])]| parse(&[extended(records), base()].concat());
        let good: [(&[u8], &[u8]); 4] =
            [(b"security.capability", b"\0"), (b"trusted.t", b""), (b"user.a=%", b"a=b\nc"), (b"user.b", b"")];
        let records: [(&str, &[u8]); 4] = [
            ("SCHILY.xattr.security.capability", b"\0"),
            ("SCHILY.xattr.trusted.t", b""),
            ("SCHILY.xattr.user.a%3D%25", b"a=b\nc"),
            ("SCHILY.xattr.user.b", b""),
        ];
        assert_eq!(of(&records).unwrap().unwrap().entry, with_xattrs(&good));
        for wrong in [
            &[("SCHILY.xattr.user.a", &b"1"[..]), ("SCHILY.xattr.user.a", b"1")][..],
            &[("SCHILY.xattr.user.b", b""), ("SCHILY.xattr.user.a", b"")],
            &[("SCHILY.xattr.system.posix_acl_access", b"")],
            &[("SCHILY.xattr.", b"")],
            &[("SCHILY.xattr.user.", b"")],
            &[("SCHILY.xattr.user.a\0", b"")],
            &[("SCHILY.xattr.user.a", &[0; crate::limits::XATTR_VALUE_MAX + 1])],
        ] {
            assert!(matches!(of(wrong), Err(ArchiveError::Extras { .. })), "{}", wrong[0].0);
        }
        for wrong in [
            &[("SCHILY.xattr.user.%3d", &b"1"[..])][..],
            &[("SCHILY.xattr.user.%41", b"1")],
            &[("SCHILY.xattr.user.%", b"1")],
            &[("SCHILY.xattr.user.a", b"1"), ("mtime", b"5.5")],
        ] {
            assert!(matches!(of(wrong), Err(ArchiveError::NotCanonical { .. })), "{}", wrong[0].0);
        }
    }

    #[test]
    fn an_acl_is_taken_only_as_it_would_be_written_and_where_it_can_be() {
        const ACL: &[u8] = b"user::rwx\nuser:12345:rwx\ngroup::r-x\nmask::rwx\nother::r--\n";
        let [access, default] = ["SCHILY.acl.access", "SCHILY.acl.default"];
        let of = |type_flag, records: &[(&str, &[u8])]| {
            let target: &[u8] = if matches!(type_flag, b'1' | b'2') { b"t" } else { b"" };
            parse(&[extended(records), block(type_flag, "f", |f| f.linkname = target)].concat())
        };
        for (type_flag, records) in [
            (b'0', &[(access, ACL)][..]),
            (b'6', &[(access, ACL)]),
            (b'5', &[(access, ACL), (default, ACL), ("SCHILY.xattr.user.a", b"")]),
            (b'5', &[(default, ACL)]),
            (b'2', &[("SCHILY.xattr.trusted.a", b"")]),
        ] {
            let entry = of(type_flag, records).unwrap().unwrap().entry;
            let extras = entry.extras.unwrap();
            assert!(extras.access_acl.iter().chain(&extras.default_acl).all(|acl| acl.to_text().as_bytes() == ACL));
        }
        for (type_flag, records) in [
            (b'0', &[(default, ACL)][..]),
            (b'2', &[(access, ACL)]),
            (b'1', &[(access, ACL)]),
            (b'1', &[("SCHILY.xattr.user.a", b"")]),
        ] {
            assert!(matches!(of(type_flag, records), Err(ArchiveError::Extras { .. })), "{records:?}");
        }
        let commas = b"user::rwx,group::r-x,other::r--";
        for text in [&b""[..], b"user::rwx\n", commas, b"user:root:rwx\n", b"\x02\0\0\0"] {
            assert_eq!(of(b'5', &[(access, text)]), Err(ArchiveError::Acl { key: "SCHILY.acl.access" }));
            assert_eq!(of(b'5', &[(default, text)]), Err(ArchiveError::Acl { key: "SCHILY.acl.default" }));
        }
        assert_eq!(
            of(b'5', &[(access, ACL), (access, ACL)]),
            Err(ArchiveError::DuplicateKey { key: "SCHILY.acl.access" })
        );
        assert!(matches!(of(b'5', &[(default, ACL), (access, ACL)]), Err(ArchiveError::NotCanonical { .. })));
    }

    #[test]
    fn what_could_be_said_otherwise_is_said_in_one_way() {
        let path = b"n".repeat(200);
        let cut = "n".repeat(100);
        for (what, bytes) in [
            ("a path that fits", [extended(&[("path", b"a")]), block(b'0', "a", |_| {})].concat()),
            ("another name in the block", [extended(&[("path", &path)]), block(b'0', "other", |_| {})].concat()),
            (
                "the order of records",
                [extended(&[("uid", b"3000000"), ("path", &path)]), block(b'0', &cut, |f| f.uid = 0)].concat(),
            ),
            ("no records", [extended(&[]), block(b'0', "a", |_| {})].concat()),
            ("an id that fits", [extended(&[("uid", b"1000")]), block(b'0', "a", |_| {})].concat()),
            ("two ids", [extended(&[("uid", b"3000000")]), block(b'0', "a", |_| {})].concat()),
            ("a size that fits", [extended(&[("size", b"5")]), block(b'0', "a", |f| f.size = 5)].concat()),
            ("two sizes", [extended(&[("size", b"8589934592")]), block(b'0', "a", |f| f.size = 5)].concat()),
            ("two times", [extended(&[("mtime", b"5.5")]), block(b'0', "a", |f| f.mtime = 6)].concat()),
            ("a charset for nothing", [extended(&[("hdrcharset", b"BINARY")]), block(b'0', "a", |_| {})].concat()),
            ("a directory without its slash", block(b'5', "d", |f| f.slash = false)),
            ("a file with a slash", block(b'0', "f", |f| f.slash = true)),
            ("a prefix for a short path", block(b'0', "b", |f| f.prefix = b"a")),
            ("a target on a file", block(b'0', "a", |f| f.linkname = b"t")),
        ] {
            assert!(matches!(refused(&bytes), ArchiveError::NotCanonical { .. }), "{what}");
        }
    }

    #[test]
    fn only_files_have_content() {
        for type_flag in *b"123456" {
            let bytes = block(type_flag, "a", |f| (f.size, f.linkname) = (5, b"t"));
            assert_eq!(refused(&bytes), ArchiveError::SizeWithoutContent);
            let bytes = [extended(&[("size", b"8589934592")]), block(type_flag, "a", |f| f.linkname = b"t")].concat();
            assert_eq!(refused(&bytes), ArchiveError::SizeWithoutContent);
        }
    }

    #[test]
    fn numbers_are_refused_unless_plain_and_in_range() {
        for (at, len, field) in
            [(100, 8, "mode"), (108, 8, "uid"), (116, 8, "gid"), (124, 12, "size"), (136, 12, "mtime")]
        {
            for start in [&b"\x80"[..], b"\xff", b" ", b"-", b"8", b"0x"] {
                let mut changed = written(&file("a"));
                changed[at..at + start.len()].copy_from_slice(start);
                mend(&mut changed);
                assert_eq!(refused(&changed), ArchiveError::Number { field }, "{}", start.escape_ascii());
            }
            let mut unended = written(&file("a"));
            unended[at + len - 1] = b'0';
            mend(&mut unended);
            assert_eq!(refused(&unended), ArchiveError::Number { field });
        }
        assert_eq!(refused(&block(b'0', "a", |f| f.mode = 0o10644)), ArchiveError::Number { field: "mode" });
        for field in ["uid", "gid", "size"] {
            for text in ["", "-1", "+3000000", "03000000", "3e9", "0x1", "3000000 ", "18446744073709551616"] {
                let bytes = [extended(&[(field, text.as_bytes())]), block(b'0', "a", |_| {})].concat();
                assert_eq!(refused(&bytes), ArchiveError::Number { field }, "{field}={text}");
            }
        }
        // -1 is "no change" to chown; file offsets are signed.
        for (field, text) in [("uid", "4294967295"), ("gid", "4294967296"), ("size", "9223372036854775808")] {
            let bytes = [extended(&[(field, text.as_bytes())]), block(b'0', "a", |_| {})].concat();
            assert_eq!(refused(&bytes), ArchiveError::Number { field }, "{field}={text}");
        }
    }

    #[test]
    fn devices_have_the_numbers_that_linux_has() {
        for (type_flag, is_block) in [(b'3', false), (b'4', true)] {
            for (major, minor) in [(0, 0), (1, 3), (259, 1_048_575), (4095, 0)] {
                let bytes = block(type_flag, "d", |f| f.device = (major.into(), minor.into()));
                let right = EntryKind::Device { block: is_block, major, minor };
                assert_eq!(parse(&bytes).unwrap().unwrap().entry.kind, right);
            }
            for device in [(4096, 0), (0, 1_048_576)] {
                let bytes = block(type_flag, "d", |f| f.device = device);
                assert_eq!(refused(&bytes), ArchiveError::Number { field: "device number" });
            }
            for at in [329, 337] {
                let mut bytes = block(type_flag, "d", |_| {});
                bytes[at] = b' ';
                mend(&mut bytes);
                assert_eq!(refused(&bytes), ArchiveError::Number { field: "device number" });
            }
        }
    }

    #[test]
    fn paths_that_lead_anywhere_else_are_refused() {
        let long_name = "n".repeat(256);
        let long_path = "d/".repeat(crate::limits::PATH_LEN_MAX / 2) + "ff";
        for path in
            ["/etc/passwd", "..", "../a", "a/..", "a/../../b", ".", "./a", "a/.", "a//b", "a//", "/", "//", "", "a\0b"]
                .into_iter()
                .chain([&long_name[..], &long_path])
        {
            let bytes = [extended(&[("path", path.as_bytes())]), block(b'0', "a", |_| {})].concat();
            assert!(matches!(refused(&bytes), ArchiveError::Path { .. }), "file {path}");
            let bytes = [extended(&[("linkpath", path.as_bytes())]), block(b'1', "a", |_| {})].concat();
            assert!(matches!(refused(&bytes), ArchiveError::Path { .. }), "hard link to {path}");
        }
        for path in ["/etc", "..", "../a", "a/..", "a//b", "./a", "a/."] {
            assert!(matches!(refused(&block(b'5', path, |_| {})), ArchiveError::Path { .. }), "directory {path}");
            assert!(matches!(refused(&block(b'0', path, |_| {})), ArchiveError::Path { .. }), "file {path}");
        }
        assert!(matches!(refused(&block(b'0', "b", |f| f.prefix = b"..")), ArchiveError::Path { .. }));
        assert!(matches!(refused(&block(b'0', "b", |f| f.prefix = b"/a")), ArchiveError::Path { .. }));
        assert!(matches!(refused(&block(b'1', "a", |f| f.linkname = b"a")), ArchiveError::Path { .. }));
        assert!(matches!(refused(&block(b'0', ".", |f| f.slash = true)), ArchiveError::Path { .. }));
    }

    #[test]
    fn a_symbolic_links_target_is_data() {
        for target in ["/etc/passwd", "../../../..", ".", "a//b/", " ", "link", "x:y", "-rf"] {
            assert_eq!(parse(&written(&symlink(target))).unwrap().unwrap().entry, symlink(target));
        }
        let longest = "t".repeat(4095);
        assert_eq!(parse(&written(&symlink(&longest))).unwrap().unwrap().entry, symlink(&longest));
        for target in ["", "a\0b", &"t".repeat(4096)] {
            let bytes = [extended(&[("linkpath", target.as_bytes())]), block(b'2', "a", |_| {})].concat();
            assert!(matches!(refused(&bytes), ArchiveError::Target { .. }), "{} bytes", target.len());
        }
        assert!(matches!(refused(&block(b'2', "a", |_| {})), ArchiveError::Target { .. }));
    }

    #[test]
    fn padding_must_be_zero() {
        assert_eq!(check_padding(&[0; 511]), Ok(()));
        assert_eq!(check_padding(&[0, 0, 1]), Err(ArchiveError::Padding));
        let mut bytes = written(&file(&"n".repeat(200)));
        bytes[1023] = 1;
        assert!(matches!(refused(&bytes), ArchiveError::NotCanonical { .. }));
    }
}
