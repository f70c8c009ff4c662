//! One member of the archive, and the rules that every entry on either side obeys.

use std::sync::Arc;

use super::{ArchiveError, BLOCK_LEN, Extras, header_len};
use crate::error::escape;
use crate::limits::{DEVICE_MAJOR_MAX, DEVICE_MINOR_MAX, NAME_LEN_MAX, PATH_LEN_MAX, PAX_LEN_MAX, TARGET_LEN_MAX};

/// One member of the archive, without its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where it is, relative to the transfer's root: no slash at either end, any bytes but NUL. Empty is the root.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// The twelve permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// When its content was last changed.
    pub mtime: Timestamp,
    /// What else there is; `None` if nothing.
    pub extras: Option<Arc<Extras>>,
}

/// What an entry is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// A regular file; that many bytes of content follow the header.
    File {
        /// Bytes of content.
        size: u64,
    },
    /// A regular file with holes; its map and its data without the holes follow the header.
    Sparse {
        /// Bytes of the file, its holes included.
        size: u64,
        /// Bytes of map and data.
        packed: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Where it points: data, never interpreted.
        target: Vec<u8>,
    },
    /// One more name of an entry before it: a file, a FIFO or a symbolic link.
    Hardlink {
        /// That entry's path in this archive.
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// A device node.
    Device {
        /// A block device, not a character device.
        block: bool,
        /// Which driver, at most [`DEVICE_MAJOR_MAX`].
        major: u32,
        /// Which of its devices, at most [`DEVICE_MINOR_MAX`].
        minor: u32,
    },
}

impl EntryKind {
    /// Bytes between the header and the padding.
    pub fn content_len(&self) -> u64 {
        match self {
            EntryKind::File { size } => *size,
            EntryKind::Sparse { packed, .. } => *packed,
            _ => 0,
        }
    }

    /// What a symbolic or hard link points to.
    pub fn target(&self) -> Option<&[u8]> {
        match self {
            EntryKind::Symlink { target } | EntryKind::Hardlink { target } => Some(target),
            _ => None,
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self, EntryKind::Directory)
    }
}

/// A point in time as Linux keeps it: `secs + nanos / 10^9` seconds after 1970, so -1.5 is `secs` -2, `nanos` 5 * 10^8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub secs: i64,
    /// Nanoseconds on top of them, below 10^9.
    pub nanos: u32,
}

impl Entry {
    /// Whether the archive can carry it. A walk of a real tree meets only the two limits on a path's length that way;
    /// what a peer says may break any of the rules.
    pub fn check(&self) -> Result<(), ArchiveError> {
        if self.path.is_empty() {
            if !self.kind.is_directory() {
                return Err(path_error(&self.path, "is empty"));
            }
        } else {
            check_path(&self.path)?;
        }
        match &self.kind {
            EntryKind::Symlink { target } => {
                if target.is_empty() || target.len() > TARGET_LEN_MAX || target.contains(&0) {
                    return Err(ArchiveError::Target { path: shown(&self.path) });
                }
            }
            EntryKind::Hardlink { target } => {
                check_path(target)?;
                if *target == self.path {
                    return Err(path_error(&self.path, "is a hard link to itself"));
                }
            }
            // The system's file offsets are signed.
            EntryKind::File { size } if i64::try_from(*size).is_err() => {
                return Err(ArchiveError::Number { field: "size" });
            }
            EntryKind::Sparse { size, packed } => {
                let wrong = |why| Err(ArchiveError::Sparse { path: shown(&self.path), why });
                if i64::try_from(*size).is_err() || i64::try_from(*packed).is_err() {
                    return Err(ArchiveError::Number { field: "size" });
                }
                if *size == 0 {
                    return wrong("has no room for a hole");
                }
                if *packed < BLOCK_LEN as u64 {
                    return wrong("leaves no room for the map");
                }
            }
            EntryKind::Device { major, minor, .. } if *major > DEVICE_MAJOR_MAX || *minor > DEVICE_MINOR_MAX => {
                return Err(ArchiveError::Number { field: "device number" });
            }
            EntryKind::Device { .. } | EntryKind::File { .. } | EntryKind::Directory | EntryKind::Fifo => {}
        }
        if self.mode > 0o7777 {
            return Err(ArchiveError::Number { field: "mode" });
        }
        // The highest number is no id: chown takes it for "leave as it is".
        if self.uid == u32::MAX {
            return Err(ArchiveError::Number { field: "uid" });
        }
        if self.gid == u32::MAX {
            return Err(ArchiveError::Number { field: "gid" });
        }
        if self.mtime.nanos >= 1_000_000_000 {
            return Err(ArchiveError::Number { field: "mtime" });
        }
        self.extras.as_ref().map_or(Ok(()), |extras| self.check_extras(extras))
    }

    fn check_extras(&self, extras: &Extras) -> Result<(), ArchiveError> {
        let has_acl = extras.access_acl.is_some() || extras.default_acl.is_some();
        let wrong = match &self.kind {
            EntryKind::Hardlink { .. } => Some("are on a hard link, whose first name has them"),
            EntryKind::Symlink { .. } if has_acl => Some("have an ACL on a symbolic link"),
            kind if !kind.is_directory() && extras.default_acl.is_some() => Some("have a default ACL on no directory"),
            _ => extras.wrong(),
        };
        if let Some(why) = wrong {
            return Err(ArchiveError::Extras { path: shown(&self.path), why });
        }
        // Two blocks and the padding of the body are the least that comes on top of it.
        if header_len(self) > PAX_LEN_MAX {
            return Err(ArchiveError::Extras { path: shown(&self.path), why: "are too large to be carried" });
        }
        Ok(())
    }
}

fn check_path(path: &[u8]) -> Result<(), ArchiveError> {
    if path.len() > PATH_LEN_MAX {
        return Err(path_error(path, "is too long"));
    }
    if path.contains(&0) {
        return Err(path_error(path, "holds a NUL"));
    }
    for component in path.split(|b| *b == b'/') {
        match component {
            b"" => return Err(path_error(path, "is absolute or has an empty component")),
            b"." | b".." => return Err(path_error(path, "has a component '.' or '..'")),
            _ if component.len() > NAME_LEN_MAX => return Err(path_error(path, "has a component that is too long")),
            _ => {}
        }
    }
    Ok(())
}

fn path_error(path: &[u8], why: &'static str) -> ArchiveError {
    ArchiveError::Path { path: shown(path), why }
}

/// A path for an error's text: escaped, and its beginning only if it is long.
pub(super) fn shown(path: &[u8]) -> String {
    const SHOWN_MAX: usize = 300;
    match path.get(..SHOWN_MAX) {
        Some(start) => escape(start) + "…",
        None => escape(path),
    }
}
