//! POSIX access control lists: the text that archives carry and the bytes that Linux keeps (`system.posix_acl_access`
//! and `system.posix_acl_default`), to each other. Ids are numbers on both sides; whether they have names, here or
//! there, is never asked.

use super::pax::parse_decimal;

/// Who an entry of a list is about, in the order that Linux demands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AclWho {
    /// The owner.
    Owner,
    /// One more user.
    User(u32),
    /// The owning group.
    Group,
    /// One more group.
    NamedGroup(u32),
    /// The most that users and groups get, owner and others aside.
    Mask,
    /// Everybody else.
    Other,
}

/// One entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclEntry {
    /// Who.
    pub who: AclWho,
    /// Read 4, write 2, execute 1.
    pub perms: u8,
}

/// A list that Linux takes: in order, nobody twice, owner, group and others there, and a mask if more are named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<AclEntry>);

/// The version of the bytes.
const VERSION: u32 = 2;

/// Bytes of the version, and of one entry.
const HEAD_LEN: usize = 4;
const ENTRY_LEN: usize = 8;

/// The id of an entry that names nobody, and of nobody.
const NO_ID: u32 = u32::MAX;

/// The most entries that an attribute of 64 KiB holds.
const ENTRIES_MAX: usize = (crate::limits::XATTR_VALUE_MAX - HEAD_LEN) / ENTRY_LEN;

impl Acl {
    /// A list, if it is one.
    pub fn new(entries: Vec<AclEntry>) -> Option<Acl> {
        let in_order = entries.is_sorted_by(|a, b| a.who < b.who) && entries.len() <= ENTRIES_MAX;
        let sound = |entry: &AclEntry| {
            let id = match entry.who {
                AclWho::User(id) | AclWho::NamedGroup(id) => id,
                _ => 0,
            };
            entry.perms <= 7 && id != NO_ID
        };
        let has = |who| entries.iter().any(|entry| entry.who == who);
        let named = entries.iter().any(|entry| matches!(entry.who, AclWho::User(_) | AclWho::NamedGroup(_)));
        let complete = [AclWho::Owner, AclWho::Group, AclWho::Other].into_iter().all(has);
        let whole = in_order && complete && entries.iter().all(sound) && (!named || has(AclWho::Mask));
        whole.then_some(Acl(entries))
    }

    /// Its entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// The same for others. Where two become one, that one gets what both had.
    pub fn mapped(&self, map: impl Fn(AclWho) -> AclWho) -> Acl {
        let mut entries: Vec<AclEntry> = self.0.iter().map(|e| AclEntry { who: map(e.who), ..*e }).collect();
        entries.sort_by_key(|entry| entry.who);
        entries.dedup_by(|again, first| {
            let same = again.who == first.who;
            if same {
                first.perms &= again.perms;
            }
            same
        });
        Acl(entries)
    }

    /// What it gives, read 4, write 2, execute 1; nothing to who is not in it.
    pub fn perms(&self, who: AclWho) -> u8 {
        self.0.iter().find(|entry| entry.who == who).map_or(0, |entry| entry.perms)
    }

    /// From what Linux keeps. It may hold users and groups in any order; of two entries for one the first counts, as it
    /// does for Linux.
    pub fn from_bytes(bytes: &[u8]) -> Option<Acl> {
        let (version, entries) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let (entries, []) = entries.as_chunks::<ENTRY_LEN>() else { return None };
        if u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let entry = |[tag, tag_high, perms, perms_high, id @ ..]: &[u8; ENTRY_LEN]| {
            let id = u32::from_le_bytes(*id);
            let who = match u16::from_le_bytes([*tag, *tag_high]) {
                0x01 => AclWho::Owner,
                0x02 => AclWho::User(id),
                0x04 => AclWho::Group,
                0x08 => AclWho::NamedGroup(id),
                0x10 => AclWho::Mask,
                0x20 => AclWho::Other,
                _ => return None,
            };
            (*perms_high == 0).then_some(AclEntry { who, perms: *perms })
        };
        let mut entries = entries.iter().map(entry).collect::<Option<Vec<_>>>()?;
        entries.sort_by_key(|entry| entry.who);
        entries.dedup_by_key(|entry| entry.who);
        Acl::new(entries)
    }

    /// As Linux takes it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_LEN + ENTRY_LEN * self.0.len());
        bytes.extend(VERSION.to_le_bytes());
        for entry in &self.0 {
            let (tag, id) = match entry.who {
                AclWho::Owner => (0x01u16, NO_ID),
                AclWho::User(id) => (0x02, id),
                AclWho::Group => (0x04, NO_ID),
                AclWho::NamedGroup(id) => (0x08, id),
                AclWho::Mask => (0x10, NO_ID),
                AclWho::Other => (0x20, NO_ID),
            };
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(entry.perms).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// As archives carry it: an entry a line.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(16 * self.0.len());
        for entry in &self.0 {
            match entry.who {
                AclWho::Owner => text.push_str("user::"),
                AclWho::User(id) => text.push_str(&format!("user:{id}:")),
                AclWho::Group => text.push_str("group::"),
                AclWho::NamedGroup(id) => text.push_str(&format!("group:{id}:")),
                AclWho::Mask => text.push_str("mask::"),
                AclWho::Other => text.push_str("other::"),
            }
            for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
                text.push(if entry.perms & bit != 0 { letter } else { '-' });
            }
            text.push('\n');
        }
        text
    }

    /// The inverse of [`Acl::to_text`], and of nothing else.
    pub fn from_text(text: &[u8]) -> Option<Acl> {
        let lines = text.strip_suffix(b"\n")?.split(|b| *b == b'\n');
        Acl::new(lines.take(ENTRIES_MAX + 1).map(line).collect::<Option<Vec<_>>>()?)
    }
}

fn line(line: &[u8]) -> Option<AclEntry> {
    let mut fields = line.split(|b| *b == b':');
    let (Some(kind), Some(id), Some(perms), None) = (fields.next(), fields.next(), fields.next(), fields.next()) else {
        return None;
    };
    let named = || u32::try_from(parse_decimal(id)?).ok();
    let who = match (kind, id) {
        (b"user", b"") => AclWho::Owner,
        (b"user", _) => AclWho::User(named()?),
        (b"group", b"") => AclWho::Group,
        (b"group", _) => AclWho::NamedGroup(named()?),
        (b"mask", b"") => AclWho::Mask,
        (b"other", b"") => AclWho::Other,
        _ => return None,
    };
    let [r @ (b'r' | b'-'), w @ (b'w' | b'-'), x @ (b'x' | b'-')] = *perms else { return None };
    let perms = [r, w, x].iter().fold(0, |perms, letter| perms << 1 | u8::from(*letter != b'-'));
    Some(AclEntry { who, perms })
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    /// What `setfacl -m u:12345:rwx,u:0:r,g:4:rx` leaves on a file of mode 754, and its text.
    const BYTES: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x04\0\0\0\0\0\x02\0\x07\0\x39\x30\0\0\
        \x04\0\x05\0\xff\xff\xff\xff\x08\0\x05\0\x04\0\0\0\x10\0\x07\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
    const TEXT: &str = "user::rwx\nuser:0:r--\nuser:12345:rwx\ngroup::r-x\ngroup:4:r-x\nmask::rwx\nother::r--\n";

    #[test]
    fn a_list_for_others_is_a_list_again_and_two_that_become_one_get_what_both_had() {
        let map = |who| match who {
            AclWho::User(12345) => AclWho::User(0),
            AclWho::NamedGroup(4) => AclWho::NamedGroup(9),
            other => other,
        };
        let mapped = Acl::from_bytes(BYTES).unwrap().mapped(map);
        let text = "user::rwx\nuser:0:r--\ngroup::r-x\ngroup:9:r-x\nmask::rwx\nother::r--\n";
        assert_eq!(mapped.to_text(), text);
        assert_eq!(Acl::from_text(text.as_bytes()), Some(mapped));
    }

    /// Lists of every kind.
    pub fn acl() -> impl Strategy<Value = Acl> {
        let ids = || btree_set(prop_oneof![0..10u32, 60_000..70_000u32, 0..NO_ID], 0..5);
        (ids(), ids(), any::<bool>(), vec(0..8u8, 20)).prop_map(|(users, groups, mask, perms)| {
            let mask = mask || !users.is_empty() || !groups.is_empty();
            let mut who = vec![AclWho::Owner];
            who.extend(users.into_iter().map(AclWho::User));
            who.push(AclWho::Group);
            who.extend(groups.into_iter().map(AclWho::NamedGroup));
            who.extend(mask.then_some(AclWho::Mask));
            who.push(AclWho::Other);
            let entries = who.into_iter().zip(perms).map(|(who, perms)| AclEntry { who, perms }).collect();
            Acl::new(entries).expect("a list in order")
        })
    }

    #[test]
    fn a_list_of_the_system_has_this_text() {
        let acl = Acl::from_bytes(BYTES).unwrap();
        assert_eq!(acl.to_text(), TEXT);
        assert_eq!(acl.to_bytes(), BYTES);
        assert_eq!(acl.perms(AclWho::NamedGroup(4)), 5);
        assert_eq!(acl.perms(AclWho::User(1)), 0);
    }

    #[test]
    fn users_in_any_order_come_out_in_one() {
        let mut bytes = BYTES.to_vec();
        bytes[12..28].rotate_left(8);
        assert_ne!(bytes, BYTES);
        assert_eq!(Acl::from_bytes(&bytes).unwrap().to_bytes(), BYTES);
    }

    #[test]
    fn what_linux_would_not_take_is_no_list() {
        for text in [
            "",
            "\n",
            "user::rwx\ngroup::r-x\nother::r--",
            "user::rwx\ngroup::r-x\nother::r--\n\n",
            "user::rwx\ngroup::r-x\n",
            "group::r-x\nuser::rwx\nother::r--\n",
            "user::rwx\nuser:1:r--\ngroup::r-x\nother::r--\n",
            "user::rwx\nuser:2:r--\nuser:1:r--\ngroup::r-x\nmask::r--\nother::r--\n",
            "user::rwx\nuser:1:r--\nuser:1:r--\ngroup::r-x\nmask::r--\nother::r--\n",
            "user::rwx\nuser:01:r--\ngroup::r-x\nmask::r--\nother::r--\n",
            "user::rwx\nuser:root:r--\ngroup::r-x\nmask::r--\nother::r--\n",
            "user::rwx\nuser:4294967295:r--\ngroup::r-x\nmask::r--\nother::r--\n",
            "user::rwx\nuser:4294967296:r--\ngroup::r-x\nmask::r--\nother::r--\n",
            "user::rwx\ngroup::r-x\nmask:1:r--\nother::r--\n",
            "user::rwxx\ngroup::r-x\nother::r--\n",
            "user::xwr\ngroup::r-x\nother::r--\n",
            "user::7\ngroup::r-x\nother::r--\n",
            "u::rwx\ngroup::r-x\nother::r--\n",
            "user::rwx,group::r-x,other::r--\n",
            "user::rwx:0\ngroup::r-x\nother::r--\n",
            "user:rwx\ngroup::r-x\nother::r--\n",
            " user::rwx\ngroup::r-x\nother::r--\n",
        ] {
            assert_eq!(Acl::from_text(text.as_bytes()), None, "{text:?}");
        }
        assert!(Acl::from_text(b"user::rwx\ngroup::r-x\nmask::---\nother::r--\n").is_some());
        for (what, at, wrong) in [
            ("another version", 0, &b"\x01"[..]),
            ("a tag that is none", 4, b"\x03"),
            ("a tag in place of another", 4, b"\x20"),
            ("an id that is none", 16, b"\xff\xff\xff\xff"),
            ("permissions that are none", 6, b"\x08"),
            ("high permissions", 7, b"\x01"),
        ] {
            let mut bytes = BYTES.to_vec();
            bytes[at..at + wrong.len()].copy_from_slice(wrong);
            assert_eq!(Acl::from_bytes(&bytes), None, "{what}");
        }
        for len in 0..BYTES.len() {
            assert_eq!(Acl::from_bytes(&BYTES[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

        #[test]
        fn text_and_bytes_say_the_same(acl in acl()) {
            prop_assert_eq!(Acl::from_text(acl.to_text().as_bytes()), Some(acl.clone()));
            prop_assert_eq!(Acl::from_bytes(&acl.to_bytes()), Some(acl));
        }

        #[test]
        fn a_text_that_is_taken_is_the_only_one_of_its_list(
            acl in acl(), at in any::<prop::sample::Index>(), byte in any::<u8>(), insert: bool,
        ) {
            let mut text = acl.to_text().into_bytes();
            let at = at.index(text.len());
            if insert { text.insert(at, byte) } else { text[at] = byte }
            if let Some(acl) = Acl::from_text(&text) {
                prop_assert_eq!(acl.to_text().into_bytes(), text);
            }
        }

        #[test]
        fn bytes_of_any_kind_never_panic(bytes in vec(any::<u8>(), 0..80)) {
            let _ = (Acl::from_bytes(&bytes), Acl::from_text(&bytes));
        }
    }
}
