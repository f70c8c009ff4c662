//! The archive dialect: how a tree becomes one tar stream, and back. No I/O; bytes in memory only.
//!
//! # Specification
//!
//! The stream is POSIX pax: entries one after the other, then [`END`]. An entry is its *header*, then for a regular
//! file its content and [`padding`] of zeros up to a multiple of 512. A header is one 512-byte ustar block, and before
//! it, only where that block cannot say everything, one extended header (`x`): a block, its body of records, zeros up
//! to a multiple of 512.
//!
//! *Block.* Magic `ustar\0`, version `00`. Numbers are octal digits over the whole field with one NUL at its end; the
//! checksum is six digits, NUL, space. User and group names are empty here. The type is `0` (file), `1` (hard link),
//! `2` (symbolic link), `3` (character device), `4` (block device), `5` (directory) or `6` (FIFO). Device numbers are 0
//! but for a device; those of Linux always fit. The size is 0 for everything but a file. The mode is the twelve
//! permission bits.
//!
//! *Path.* Relative, components joined by single slashes, none of them empty, `.` or `..`, none longer than
//! [`limits::NAME_LEN_MAX`]; all of it no longer than [`limits::PATH_LEN_MAX`]. A directory's ends in a slash. The root
//! of the transfer is the directory `./`. A path of more than 100 bytes is split over `prefix` and `name` at the first
//! slash that leaves at most 100 bytes for the name, if the prefix then has at most 155. The path of a hard link's
//! target follows the same rules; a symbolic link's target is any text without NUL.
//!
//! *Extended header.* Its block is named `././@PaxHeader`, mode 0644, all else 0 but the size. Its records, in this
//! order, each present exactly when the block cannot say it:
//!
//! | key | present when | block then holds |
//! |---|---|---|
//! | `hdrcharset` | a path or target below is not UTF-8; the value is `BINARY` | |
//! | `path` | it cannot be split | as much of the last component as fits |
//! | `linkpath` | more than 100 bytes | its first 100 bytes |
//! | `GNU.sparse.major`, `.minor`, `.name`, `.realsize` | a sparse file; the values are `1`, `0`, its path and its size with its holes | see below |
//! | `size` | 8 GiB and more | 0 |
//! | `uid`, `gid` | more than 2097151 | 0 |
//! | `mtime` | fraction of a second, before 1970, or from 8589934592 s (2242) on | whole seconds, or 0 if out of range |
//! | `uname`, `gname` | the receiver asked for the names of owners and groups, and it has one | nothing of it |
//! | `SCHILY.acl.access` | it has an ACL | the mode, whose group bits are the mask |
//! | `SCHILY.acl.default` | it is a directory that has one | |
//! | `SCHILY.xattr.NAME`, in the order of the names | it has that extended attribute | |
//!
//! Names in the block are bytes in no particular charset, which is how readers take them.
//!
//! A record is `LENGTH KEY=VALUE\n` with the length of all of it in decimal. Values are found by length, never by
//! searching for the newline: a value may hold anything, `\n` and what looks like the next record included. Numbers
//! are decimal without leading zeros; a time has up to nine digits of fraction without trailing zeros, and -1.5 is
//! half a second before -1.
//!
//! *Names of owners.* UTF-8, 1 to [`limits::NAME_LEN_MAX`] bytes. A hard link has none. Without being asked for they
//! are not there, so that no other tar gives things away by names.
//!
//! *ACL.* One line for each entry, its final newline included: `user::rwx`, `user:ID:r--`, `group::r-x`,
//! `group:ID:r--`, `mask::rwx`, `other::---`, in this order, ids in numbers and rising. That is how GNU tar writes
//! them, save that it writes names where it finds any; GNU tar and bsdtar read numbers.
//!
//! *Extended attributes.* Of the namespaces `user`, `trusted` and `security`; a name's `%` is `%25` in the key and its
//! `=` is `%3D`, as with GNU tar. The value is as it is. All that one entry has is at most [`limits::XATTRS_LEN_MAX`].
//! A hard link has neither attributes nor ACL: the entry that it is one more name of has them.
//!
//! *Sparse files.* A file with holes is an entry in the format that GNU tar calls 1.0: its block holds the number of
//! bytes that follow, and a name for readers that do not know the format, `GNUSparseFile.0/` and the last component of
//! the path, cut to fit the field, with the directory before it as the prefix if that fits. What follows is its map,
//! then its data without the holes, then padding. The map is lines of decimal numbers, then zeros up to a multiple of
//! 512: how many extents there are, then the offset and the length of each. Extents are in order and not empty, a hole
//! is between any two, and each begins and ends at a multiple of 512 or at the file's end (a reader that takes the data
//! by blocks finds the same as one that takes it by bytes). An extent of no length at the file's size says that a hole
//! ends the file, and is there exactly then; all others hold data. There is at least one hole, and there are at most
//! [`limits::SPARSE_EXTENTS_MAX`] extents with data: of a file with more, the shortest holes are carried as zeros.
//!
//! Nothing else exists: no global headers, no GNU types, no base-256 numbers. So an entry has exactly one encoding, and
//! [`Parser`] accepts no other: what it accepts is, byte for byte, what [`write_header`] writes. Any difference between
//! our reading of a stream and another tar's could then only come from our own writer, whose output GNU tar and bsdtar
//! extract to the same tree (a test).
//!
//! Foreign readers, as far as they differ. bsdtar 3.6 adds the fraction of a time before 1970 instead of subtracting
//! it, gives no times to a directory that was there before (the one it extracts into), and wants a UTF-8 locale for
//! records that are not ASCII. GNU tar 1.34 takes names as they are, but prints a line for each `hdrcharset`, which is
//! why it is used only where bsdtar needs it. bsdtar does not undo the escapes in names of extended attributes.

mod acl;
mod entry;
mod extras;
pub mod foreign;
mod header;
mod parse;
mod pax;
mod records;
mod sparse;
#[cfg(test)]
mod tests;
mod write;

pub use acl::{Acl, AclEntry, AclWho};
pub use entry::{Entry, EntryKind, Timestamp};
pub use extras::{Extras, Xattr};
pub use parse::{Parsed, Parser, check_padding};
pub use sparse::{Extent, MapReader, MapWriter, SparseMap, check_extents};
pub use write::{header_len, write_header};

#[cfg(doc)]
use crate::limits;

/// Bytes of a block; every header, and every file's content with its padding, is a multiple of it.
pub const BLOCK_LEN: usize = 512;

/// The end of the archive.
pub static END: [u8; 2 * BLOCK_LEN] = [0; 2 * BLOCK_LEN];

/// Bytes of zeros after `size` bytes of content: 0 to 511.
pub fn padding(size: u64) -> usize {
    let over = (size % BLOCK_LEN as u64) as usize;
    (BLOCK_LEN - over) % BLOCK_LEN
}

/// Why bytes are not an entry of the dialect, or why an entry cannot be carried in it.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ArchiveError {
    /// The bytes end inside a header.
    #[error("the archive ends inside a header")]
    Truncated,
    /// The checksum does not fit the block.
    #[error("a header's checksum is wrong")]
    Checksum,
    /// The block is not a ustar header.
    #[error("a header is not in ustar format")]
    NotUstar,
    /// The type is not part of the dialect.
    #[error("entry type '{}' is not part of the dialect", type_flag.escape_ascii())]
    Type {
        /// The byte found.
        type_flag: u8,
    },
    /// An extended header follows an extended header.
    #[error("two extended headers before one entry")]
    TwoExtended,
    /// An extended header is longer than [`limits::PAX_LEN_MAX`].
    #[error("an extended header of {len} bytes is too long")]
    ExtendedTooLong {
        /// The length it claims.
        len: u64,
    },
    /// The records of an extended header cannot be told apart.
    #[error("an extended header's record is malformed")]
    Record,
    /// A key that is not part of the dialect.
    #[error("extended header key '{key}' is not part of the dialect")]
    UnknownKey {
        /// The key, escaped.
        key: String,
    },
    /// A key twice in one extended header.
    #[error("extended header key '{key}' appears twice")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// A field or record is not the number it should be, or out of range.
    #[error("the {field} is not a number in range")]
    Number {
        /// Which.
        field: &'static str,
    },
    /// A path that must not or cannot be carried.
    #[error("path '{path}' {why}")]
    Path {
        /// The path, escaped, its beginning if it is long.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A symbolic link's target that does not exist on Linux.
    #[error("the target of symbolic link '{path}' is empty, too long or holds a NUL")]
    Target {
        /// The link's path, escaped, its beginning if it is long.
        path: String,
    },
    /// Extended attributes or ACLs that must not or cannot be carried.
    #[error("the attributes of '{path}' {why}")]
    Extras {
        /// The entry's path, escaped, its beginning if it is long.
        path: String,
        /// What is wrong with them.
        why: &'static str,
    },
    /// An ACL's text that Linux would not take, or that the dialect writes otherwise.
    #[error("{key} is not the text of an ACL")]
    Acl {
        /// The record's key.
        key: &'static str,
    },
    /// The records that make a file a sparse one contradict each other, or the block.
    #[error("the header of sparse file '{path}' {why}")]
    Sparse {
        /// The file's path, escaped, its beginning if it is long.
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The map of a sparse file.
    #[error("the map of a sparse file {why}")]
    SparseMap {
        /// What is wrong with it.
        why: &'static str,
    },
    /// Something that is not a file claims to have content.
    #[error("an entry that is not a file has a size")]
    SizeWithoutContent,
    /// Bytes that must be zero are not.
    #[error("padding is not zero")]
    Padding,
    /// A zero block that does not begin the end of the archive, or something after that end.
    #[error("bytes after the end of the archive, at offset {offset} from there")]
    AfterEnd {
        /// Bytes from the first zero block.
        offset: usize,
    },
    /// The header says what an entry can say, but not in the one way the dialect has for it.
    #[error("the header of '{path}' is not written as the dialect has it")]
    NotCanonical {
        /// The entry's path, escaped, its beginning if it is long.
        path: String,
    },
}
