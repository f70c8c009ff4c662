//! What an entry has besides content, mode, owner and time; most have nothing of it.

use std::borrow::Cow;

use super::Acl;
use crate::limits::{NAME_LEN_MAX, XATTR_NAME_MAX, XATTR_VALUE_MAX};

/// Extended attributes and access control lists of one entry, and how its owner and group are called.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extras {
    /// In the order of their names, bytewise; no name twice. The lists are not among them.
    pub xattrs: Vec<Xattr>,
    /// Who may do what with it, beyond the mode.
    pub access_acl: Option<Acl>,
    /// What is created in the directory gets this one.
    pub default_acl: Option<Acl>,
    /// What the owner is called where it comes from; text of 1 to [`NAME_LEN_MAX`] bytes.
    pub uname: Option<Vec<u8>>,
    /// The same of the group.
    pub gname: Option<Vec<u8>>,
}

/// One extended attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattr {
    /// With its namespace. See [`Xattr::is_name`].
    pub name: Vec<u8>,
    /// Any bytes, at most [`XATTR_VALUE_MAX`].
    pub value: Vec<u8>,
}

impl Extras {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        let Extras { xattrs, access_acl, default_acl, uname, gname } = self;
        xattrs.is_empty() && access_acl.is_none() && default_acl.is_none() && uname.is_none() && gname.is_none()
    }

    /// Whether an owner or group can be called so.
    pub fn is_owner_name(name: &[u8]) -> bool {
        (1..=NAME_LEN_MAX).contains(&name.len()) && !name.contains(&0) && std::str::from_utf8(name).is_ok()
    }

    /// Why a list of attributes is none, if so.
    pub(super) fn wrong(&self) -> Option<&'static str> {
        let names = || self.xattrs.iter().map(|xattr| &xattr.name);
        if self.is_empty() {
            Some("are none")
        } else if ![&self.uname, &self.gname].into_iter().flatten().all(|name| Extras::is_owner_name(name)) {
            Some("have an owner's name that is none")
        } else if !names().all(|name| Xattr::is_name(name)) {
            Some("have a name that is none")
        } else if self.xattrs.iter().any(|xattr| xattr.value.len() > XATTR_VALUE_MAX) {
            Some("have a value that is too long")
        } else if !names().is_sorted_by(|a, b| a < b) {
            Some("are not each there once, in order")
        } else {
            None
        }
    }
}

/// The namespaces whose attributes are carried. `system` holds the access control lists, which travel as such, and what
/// a file system makes up.
const NAMESPACES: [&[u8]; 3] = [b"security.", b"trusted.", b"user."];

impl Xattr {
    /// Whether an attribute of this name can be carried: in one of the namespaces user, trusted and security, at most
    /// [`XATTR_NAME_MAX`] bytes, none of them a NUL.
    pub fn is_name(name: &[u8]) -> bool {
        let in_namespace =
            NAMESPACES.iter().any(|namespace| name.strip_prefix(*namespace).is_some_and(|rest| !rest.is_empty()));
        in_namespace && name.len() <= XATTR_NAME_MAX && !name.contains(&0)
    }

    /// The name as a key of a record, which the first `=` ends.
    pub(super) fn escaped_name(&self) -> Cow<'_, [u8]> {
        if !self.name.iter().any(|b| matches!(b, b'=' | b'%')) {
            return Cow::Borrowed(&self.name);
        }
        let mut escaped = Vec::with_capacity(self.name.len() + 16);
        for b in &self.name {
            match b {
                b'=' => escaped.extend(b"%3D"),
                b'%' => escaped.extend(b"%25"),
                b => escaped.push(*b),
            }
        }
        Cow::Owned(escaped)
    }

    /// The name that has this escaped form; of another form, some name with another.
    pub(super) fn unescape_name(mut escaped: &[u8]) -> Vec<u8> {
        let mut name = Vec::with_capacity(escaped.len());
        loop {
            let b;
            (b, escaped) = match escaped {
                [] => return name,
                [b'%', b'3', b'D', rest @ ..] => (b'=', rest),
                [b'%', b'2', b'5', rest @ ..] => (b'%', rest),
                [b, rest @ ..] => (*b, rest),
            };
            name.push(b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattr(name: &[u8]) -> Xattr {
        Xattr { name: name.to_vec(), value: Vec::new() }
    }

    #[test]
    fn names_are_escaped_as_gnu_tar_does_and_come_back() {
        for (name, escaped) in [
            (&b"user.a"[..], &b"user.a"[..]),
            (b"user.a=b", b"user.a%3Db"),
            (b"user.50%", b"user.50%25"),
            (b"user.%3D", b"user.%253D"),
            (b"user.==%%", b"user.%3D%3D%25%25"),
            (b"user.\n \xff", b"user.\n \xff"),
        ] {
            assert_eq!(&*xattr(name).escaped_name(), escaped);
            assert_eq!(Xattr::unescape_name(escaped), name);
        }
    }

    #[test]
    fn only_three_namespaces_have_names() {
        for name in [&b"user.a"[..], b"trusted.overlay.opaque", b"security.capability", b"user..", b"user.\n=%\xff"] {
            assert!(Xattr::is_name(name), "{}", name.escape_ascii());
        }
        let long = [&b"user."[..], &b"n".repeat(251)].concat();
        assert!(Xattr::is_name(&long[..255]) && !Xattr::is_name(&long));
        for name in
            [&b""[..], b"user", b"user.", b"system.posix_acl_access", b"btrfs.compression", b"User.a", b"user.a\0b"]
        {
            assert!(!Xattr::is_name(name), "{}", name.escape_ascii());
        }
    }
}
