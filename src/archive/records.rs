//! The records of one extended header: which keys the dialect has, each once, each with a value that is one.

use super::entry::shown;
use super::pax::{parse_decimal, parse_time, split_record};
use super::write::{ACCESS_ACL, DEFAULT_ACL, XATTR};
use super::{Acl, ArchiveError, Extras, Timestamp, Xattr};

/// The records of one extended header.
#[derive(Default)]
pub(super) struct Records<'a> {
    pub(super) hdrcharset: Option<&'a [u8]>,
    pub(super) path: Option<&'a [u8]>,
    pub(super) linkpath: Option<&'a [u8]>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) extras: Extras,
    pub(super) sparse: SparseRecords<'a>,
}

/// Those of a sparse file.
#[derive(Default)]
pub(super) struct SparseRecords<'a> {
    major: Option<&'a [u8]>,
    minor: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
    realsize: Option<u64>,
}

impl SparseRecords<'_> {
    /// Path and size, if it is one.
    pub(super) fn file(&self) -> Result<Option<(&[u8], u64)>, &'static str> {
        match self {
            SparseRecords { major: None, minor: None, name: None, realsize: None } => Ok(None),
            SparseRecords { major: Some(b"1"), minor: Some(b"0"), name: Some(name), realsize: Some(size) } => {
                Ok(Some((name, *size)))
            }
            SparseRecords { major: Some(_), minor: Some(_), name: Some(_), realsize: Some(_) } => {
                Err("is of another version of the format than 1.0")
            }
            _ => Err("lacks one of the version, the name and the size"),
        }
    }
}

impl Records<'_> {
    /// All of them, each at most once.
    pub(super) fn parse(mut body: &[u8]) -> Result<Records<'_>, ArchiveError> {
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
                b"GNU.sparse.major" => set("GNU.sparse.major", &mut records.sparse.major, value)?,
                b"GNU.sparse.minor" => set("GNU.sparse.minor", &mut records.sparse.minor, value)?,
                b"GNU.sparse.name" => set("GNU.sparse.name", &mut records.sparse.name, value)?,
                b"GNU.sparse.realsize" => {
                    let size = number("size of a sparse file", parse_decimal(value))?;
                    set("GNU.sparse.realsize", &mut records.sparse.realsize, size)?;
                }
                _ => records.extra(key, value)?,
            }
        }
        Ok(records)
    }

    fn extra(&mut self, key: &[u8], value: &[u8]) -> Result<(), ArchiveError> {
        let acl = |key| Acl::from_text(value).ok_or(ArchiveError::Acl { key });
        if key == b"uname" {
            set("uname", &mut self.extras.uname, value.to_vec())
        } else if key == b"gname" {
            set("gname", &mut self.extras.gname, value.to_vec())
        } else if key == ACCESS_ACL.as_bytes() {
            set(ACCESS_ACL, &mut self.extras.access_acl, acl(ACCESS_ACL)?)
        } else if key == DEFAULT_ACL.as_bytes() {
            set(DEFAULT_ACL, &mut self.extras.default_acl, acl(DEFAULT_ACL)?)
        } else if let Some(name) = key.strip_prefix(XATTR.as_bytes()) {
            let name = Xattr::unescape_name(name);
            self.extras.xattrs.push(Xattr { name, value: value.to_vec() });
            Ok(())
        } else {
            Err(ArchiveError::UnknownKey { key: shown(key) })
        }
    }
}

fn set<T>(key: &'static str, slot: &mut Option<T>, value: T) -> Result<(), ArchiveError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(ArchiveError::DuplicateKey { key }),
    }
}

/// A number that can be said in that field.
pub(super) fn number<T>(field: &'static str, value: Option<T>) -> Result<T, ArchiveError> {
    value.ok_or(ArchiveError::Number { field })
}
