//! Archives of other tars, as they come through a pipe: v7, ustar, pax, old GNU, star. No I/O and no trust.
//!
//! [`Reader`] is fed bytes cut anywhere and says what they are, one [`Event`] at a time: a member, its content with
//! the place of each piece in the file, its end. It is tolerant where tars differ and nowhere else:
//!
//! - *Layouts*: by their magic; a prefix only where there is one. A checksum may be of signed or unsigned bytes.
//!   Numbers are octal or a two's complement in base 256, down to times before 1970.
//! - *Types*: files (`0`, NUL, `7`), directories (`5`, or a file whose name ends in a slash), links, FIFOs, GNU's `S`.
//!   What is not a file has no content, whatever size it claims; after a hard link that claims some, it is content only
//!   if it does not look like a header. GNU's `D` is a directory, and its list of names is passed over. Everything
//!   else is left out and named.
//! - *Before a member*: pax `x`, GNU `L` and `K`, together no longer than [`limits::FOREIGN_META_MAX`]. Records are
//!   told apart by their length only; of a key that comes twice the last holds; pax is believed before GNU, and both
//!   before the header. A pax `g` gives owners and times, never a name, a target or a size. Unknown keys are counted.
//! - *Attributes*: `SCHILY.xattr.*`, `LIBARCHIVE.xattr.*`, `SCHILY.acl.*`; an ACL that names users is read with the
//!   names of this machine, everything else is numbers.
//! - *Names*: `.` and slashes that mean nothing are dropped, also those at the start. A name with a component `..` is
//!   left out and named.
//! - *Holes*: GNU's `S` with its continuations and the pax versions 0.0, 0.1 and 1.0, in maps of at most
//!   [`limits::FOREIGN_EXTENTS_MAX`] extents that must ascend, fit the size and account for every stored byte.
//! - *The end* is two blocks of zeros, then nothing but zeros. One alone, or anything after them, is
//!   [`Event::Beyond`]; no end at all is an error, wherever the bytes stop.
//!
//! From the first block that is no header on, nothing is believed. Memory does not depend on what is claimed: a body or
//! a map grows as its bytes come, up to those bounds.

mod block;
mod extras;
mod map;
mod name;
mod reader;
mod said;
mod sniff;

pub use extras::Names;
pub use reader::{Ended, Reader};

use super::Entry;
#[cfg(doc)]
use crate::limits;

/// What the next bytes are.
#[derive(PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A member. If it is a file its content follows, then [`Event::FileEnd`].
    Member(Member),
    /// The next piece of the file's content; pieces ascend, and what lies between them is a hole.
    Content {
        /// Where in the file.
        offset: u64,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// The file is whole.
    FileEnd,
    /// A hard link to itself. It says nothing, but only if there is such an entry.
    LinkToItself {
        /// The entry's path.
        path: Vec<u8>,
    },
    /// A member that cannot be had.
    LeftOut {
        /// Its name as far as it is known; raw bytes.
        path: Vec<u8>,
        /// Why, escaped.
        why: String,
    },
    /// Bytes that are not zero where the archive has ended. They are passed over, and so is all that comes after them.
    Beyond {
        /// Where the end is: the first block of zeros.
        end: u64,
        /// Where the first of them is.
        offset: u64,
        /// Whether the end was one block of zeros only.
        lone: bool,
    },
}

/// One member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// What it is; it passes [`Entry::check`]. A file's size is its real one, holes included.
    pub entry: Entry,
    /// Bytes of a file that are not in holes.
    pub stored: u64,
    /// Attributes that the archive does not say as numbers, and what stands in their place.
    pub flaws: Vec<&'static str>,
}

/// A part of a file that is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extent {
    offset: u64,
    len: u64,
}

/// Something to know about the archive, which costs nothing; once for each kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The first name it is about, raw bytes; empty if it is about the archive.
    pub path: Vec<u8>,
    /// What it is, escaped.
    pub text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemarkKind {
    Absolute,
    UnknownKey,
    GlobalKey,
    Dumpdir,
    Label,
    Empty,
}

/// How often each kind came, and its first name.
#[derive(Default)]
struct Remarks(Vec<(RemarkKind, Vec<u8>, u64)>);

impl Remarks {
    fn add(&mut self, kind: RemarkKind, first: &[u8]) {
        self.add_many(kind, first, 1);
    }

    fn add_many(&mut self, kind: RemarkKind, first: &[u8], count: u64) {
        match self.0.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., known)) => *known += count,
            None => self.0.push((kind, first.to_vec(), count)),
        }
    }

    #[cfg(test)]
    fn count(&self, kind: RemarkKind) -> u64 {
        self.0.iter().find(|(known, ..)| *known == kind).map_or(0, |(.., count)| *count)
    }

    fn told(self) -> Vec<Remark> {
        self.0.into_iter().map(|(kind, first, count)| kind.tell(first, count)).collect()
    }
}

impl RemarkKind {
    fn tell(self, first: Vec<u8>, count: u64) -> Remark {
        let others = |what: &str| if count > 1 { format!(" ({count} {what})") } else { String::new() };
        let text = match self {
            RemarkKind::Absolute => format!("a slash before the name was dropped{}", others("names")),
            RemarkKind::UnknownKey => {
                let key = super::entry::shown(&first);
                format!("{count} records of extended headers mean nothing here and were passed over, first '{key}'")
            }
            RemarkKind::GlobalKey => {
                let key = super::entry::shown(&first);
                format!("{count} records of global headers were passed over, first '{key}'")
            }
            RemarkKind::Dumpdir => {
                format!("an incremental dump's list of names was passed over{}", others("directories"))
            }
            RemarkKind::Label => format!("a volume label was passed over{}", others("labels")),
            RemarkKind::Empty => "the archive is empty".into(),
        };
        let about_a_key = matches!(self, RemarkKind::UnknownKey | RemarkKind::GlobalKey);
        Remark { path: if about_a_key { Vec::new() } else { first }, text }
    }
}

/// Why bytes are not an archive that can be read on.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ForeignError {
    /// No bytes at all.
    #[error("nothing came: not one byte")]
    Empty,
    /// The first bytes are no header of a tar.
    #[error("it is not a tar archive: {looks}")]
    NotAnArchive {
        /// What it looks like, and what to do about it.
        looks: &'static str,
    },
    /// A block that should be a header has no checksum that fits.
    #[error(
        "at offset {offset} there should be a header, and its checksum is wrong; nothing from there on was unpacked"
    )]
    Checksum {
        /// Where.
        offset: u64,
    },
    /// The size of a member is not a number, so nobody knows where the next one begins.
    #[error("the header at offset {offset} does not say its size; nothing from there on was unpacked")]
    Size {
        /// Where.
        offset: u64,
    },
    /// The records of an extended header cannot be told apart.
    #[error("the extended header's record at offset {offset} is malformed; nothing from there on was unpacked")]
    Record {
        /// Where.
        offset: u64,
    },
    /// What is said about one member is longer than [`limits::FOREIGN_META_MAX`].
    #[error("the extended header at offset {offset} is too long ({len} bytes); nothing from there on was unpacked")]
    TooLong {
        /// Where.
        offset: u64,
        /// The length it claims.
        len: u64,
    },
    /// The bytes stop before the archive's end.
    #[error("it is cut off at offset {offset}, {place}")]
    Truncated {
        /// Bytes that came.
        offset: u64,
        /// What was being read.
        place: &'static str,
    },
}

impl ForeignError {
    /// Whether nothing of an archive was there, rather than a part.
    pub fn is_none(&self) -> bool {
        matches!(self, ForeignError::Empty | ForeignError::NotAnArchive { .. })
    }
}
