//! Extended attributes and ACLs as other tars write them. Attributes are `SCHILY.xattr.*`, as bytes, or
//! `LIBARCHIVE.xattr.*`, with an encoded name and base 64. ACLs are text with names where the writer knew some, with
//! the number behind (star, libarchive) or without it (GNU), or the attribute that Linux keeps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::archive::{Acl, AclEntry, AclWho, EntryKind, Extras, Xattr};
use crate::limits::XATTR_VALUE_MAX;

/// Numbers of the users and groups of this machine, for ACLs that name them.
#[derive(Default)]
pub struct Names {
    users: HashMap<Vec<u8>, u32>,
    groups: HashMap<Vec<u8>, u32>,
}

impl Names {
    /// From the lines of `/etc/passwd` and `/etc/group`.
    pub fn of(passwd: &[u8], group: &[u8]) -> Names {
        let table = |text: &[u8]| {
            let lines = text.split(|b| *b == b'\n');
            let pair = |line: &[u8]| {
                let mut fields = line.split(|b| *b == b':');
                let name = fields.next().filter(|name| !name.is_empty())?;
                Some((name.to_vec(), number(fields.nth(1)?)?))
            };
            lines.filter_map(pair).collect()
        };
        Names { users: table(passwd), groups: table(group) }
    }
}

const XATTR_FLAW: &str = "the archive has an extended attribute that Linux does not take";
const ACL_FLAW: &str = "the archive has an ACL that is none, or names somebody who is not known here";

/// What was said of them about the next member.
#[derive(Default)]
pub(super) struct SaidExtras {
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
    pub uname: Option<Vec<u8>>,
    pub gname: Option<Vec<u8>>,
    /// A record that could not be decoded.
    broken: bool,
}

impl SaidExtras {
    /// Take a record, if it is one of theirs.
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> bool {
        match key {
            b"SCHILY.acl.access" => self.access = Some(value.to_vec()),
            b"SCHILY.acl.default" => self.default = Some(value.to_vec()),
            b"uname" => self.uname = Some(value.to_vec()),
            b"gname" => self.gname = Some(value.to_vec()),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.insert(Xattr::unescape_name(name), value.to_vec());
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    match (decode_name(name), decode_value(value)) {
                        (Some(name), Some(value)) => drop(self.xattrs.insert(name, value)),
                        _ => self.broken = true,
                    }
                } else {
                    return false;
                }
            }
        }
        true
    }

    /// What of it such an entry can have; what it cannot is a flaw.
    pub fn build(mut self, kind: &EntryKind, names: &Names, flaws: &mut Vec<&'static str>) -> Option<Arc<Extras>> {
        // One more name of something that has them already.
        if matches!(kind, EntryKind::Hardlink { .. }) {
            return None;
        }
        let mut raw = |name: &[u8]| self.xattrs.remove(name).and_then(|bytes| Acl::from_bytes(&bytes));
        let (raw_access, raw_default) = (raw(b"system.posix_acl_access"), raw(b"system.posix_acl_default"));
        let mut acl = |text: Option<Vec<u8>>, raw: Option<Acl>| match (text.filter(|text| !text.is_empty()), raw) {
            (_, Some(acl)) => Some(acl),
            (None, None) => None,
            (Some(text), None) => {
                let acl = from_text(&text, names);
                if acl.is_none() {
                    flaws.push(ACL_FLAW);
                }
                acl
            }
        };
        let access_acl = acl(self.access.take(), raw_access).filter(|_| !matches!(kind, EntryKind::Symlink { .. }));
        let default_acl = acl(self.default.take(), raw_default).filter(|_| kind.is_directory());
        let before = self.xattrs.len();
        self.xattrs.retain(|name, value| Xattr::is_name(name) && value.len() <= XATTR_VALUE_MAX);
        if self.broken || self.xattrs.len() < before {
            flaws.push(XATTR_FLAW);
        }
        let xattrs = self.xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect();
        let name = |name: Option<Vec<u8>>| name.filter(|name| Extras::is_owner_name(name));
        let (uname, gname) = (name(self.uname.take()), name(self.gname.take()));
        let extras = Extras { xattrs, access_acl, default_acl, uname, gname };
        (!extras.is_empty()).then(|| Arc::new(extras))
    }
}

/// Entries ended by commas or newlines, comments after `#`; in any order, as the text is for people too.
fn from_text(text: &[u8], names: &Names) -> Option<Acl> {
    let mut entries = Vec::new();
    for line in text.split(|b| matches!(b, b'\n' | b',')) {
        let line = line.split(|b| *b == b'#').next().unwrap_or(line).trim_ascii();
        if !line.is_empty() {
            entries.push(entry(line, names)?);
        }
    }
    entries.sort_by_key(|entry: &AclEntry| entry.who);
    Acl::new(entries)
}

/// `user:NAME:rwx`, and perhaps `:ID`.
fn entry(line: &[u8], names: &Names) -> Option<AclEntry> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b':').map(<[u8]>::trim_ascii).collect();
    let (tag, name, perms, id) = match fields[..] {
        // star leaves the name out of what has none.
        [tag @ (b"mask" | b"m" | b"other" | b"o"), perms] => (tag, &b""[..], perms, None),
        [tag, name, perms] => (tag, name, perms, None),
        [tag, name, perms, id] => (tag, name, perms, Some(number(id)?)),
        _ => return None,
    };
    let somebody = |table: &HashMap<Vec<u8>, u32>| id.or_else(|| number(name)).or_else(|| table.get(name).copied());
    let who = match (tag, name) {
        (b"user" | b"u", b"") => AclWho::Owner,
        (b"user" | b"u", _) => AclWho::User(somebody(&names.users)?),
        (b"group" | b"g", b"") => AclWho::Group,
        (b"group" | b"g", _) => AclWho::NamedGroup(somebody(&names.groups)?),
        (b"mask" | b"m", b"") => AclWho::Mask,
        (b"other" | b"o", b"") => AclWho::Other,
        _ => return None,
    };
    let [r, w, x] = perms.first_chunk::<3>()?;
    let bit = |b: &u8, letter, value| match *b {
        b'-' => Some(0),
        b if b == letter => Some(value),
        _ => None,
    };
    Some(AclEntry { who, perms: bit(r, b'r', 4)? | bit(w, b'w', 2)? | bit(x, b'x', 1)? })
}

fn number(text: &[u8]) -> Option<u32> {
    super::said::decimal(text).and_then(|n| u32::try_from(n).ok())
}

/// `%XX` is a byte.
fn decode_name(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(text.len());
    while let [b, rest @ ..] = text {
        let (byte, rest) = match (b, rest) {
            (b'%', [high, low, rest @ ..]) => {
                let digit = |b: &u8| char::from(*b).to_digit(16);
                ((digit(high)? << 4 | digit(low)?) as u8, rest)
            }
            (b'%', _) => return None,
            _ => (*b, rest),
        };
        name.push(byte);
        text = rest;
    }
    Some(name)
}

/// Base 64, with or without what fills it up.
fn decode_value(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.trim_ascii_end();
    let end = text.iter().rposition(|b| *b != b'=').map_or(0, |last| last + 1);
    let mut value = Vec::with_capacity(end / 4 * 3 + 2);
    let (mut bits, mut count) = (0u32, 0);
    for b in &text[..end] {
        let digit = match b {
            b'A'..=b'Z' => b - b'A',
            b'a'..=b'z' => b - b'a' + 26,
            b'0'..=b'9' => b - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            value.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (count < 6).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acls_as_every_tar_writes_them() {
        let names = Names::of(
            b"root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/x\nbroken\n:x:9\n",
            b"root:x:0:\nstaff:x:50:\n",
        );
        let expected = "user::rw-\nuser:1:rwx\ngroup::r--\ngroup:50:r-x\nmask::rwx\nother::r--\n";
        for text in [
            "user::rw-\nuser:daemon:rwx\ngroup::r--\ngroup:staff:r-x\nmask::rwx\nother::r--\n",
            "user::rw-,user:daemon:rwx:1,group::r--,group:other-name:r-x:50,mask::rwx,other::r--",
            "user::rw-,user:1:rwx,group::r--,group:50:r-x,mask:rwx,other:r--",
            "# file: x\nu::rw-\no::r--\nm::rwx #effective\ng::r--\nu:1:rwx\ng:50:r-x",
        ] {
            let acl = from_text(text.as_bytes(), &names).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(acl.to_text(), expected, "{text}");
        }
        for text in [
            "user::rwx",
            "user::rw-,user:nobody-here:rwx,group::r--,mask::rwx,other::r--",
            "x",
            "user::888,group::r--,other::r--",
        ] {
            assert_eq!(from_text(text.as_bytes(), &names), None, "{text}");
        }
    }

    #[test]
    fn libarchives_attributes_are_decoded() {
        for (text, value) in [
            ("", Some(&b""[..])),
            ("YQ", Some(b"a")),
            ("YQ==", Some(b"a")),
            ("AAECAw==", Some(b"\0\x01\x02\x03")),
            ("Y", None),
            ("Y?Q=", None),
        ] {
            assert_eq!(decode_value(text.as_bytes()).as_deref(), value, "{text}");
        }
        assert_eq!(decode_name(b"user.a%3Db%25").as_deref(), Some(&b"user.a=b%"[..]));
        assert_eq!(decode_name(b"user.a%3"), None);
    }
}
