//! What the system says of one entry, reduced to what is carried and compared.

use rustix::fs::{FileType, Stat};

use super::dirs::Inode;
use crate::archive::{Entry, EntryKind, Timestamp};

/// The attributes of one entry at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub inode: Inode,
    pub file_type: FileType,
    /// Bytes, of a regular file.
    pub size: u64,
    /// Bytes that it takes of the disk: a hint, since it says nothing about what reads as zeros.
    pub allocated: u64,
    pub mtime: Timestamp,
    /// When anything of it was last changed.
    pub ctime: Timestamp,
    /// The twelve permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    /// Which device it is, if it is one; 0 else.
    pub rdev: u64,
}

impl Meta {
    pub fn of(stat: &Stat) -> Meta {
        // A damaged file system can hold more than a second of nanoseconds or a negative size.
        let time = |secs, nanos: u64| Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0).min(999_999_999) };
        Meta {
            inode: Inode::of(stat),
            file_type: FileType::from_raw_mode(stat.st_mode),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            rdev: stat.st_rdev,
        }
    }

    /// Whether nothing was changed between this look and that one, attributes included.
    pub fn is_as_at(&self, other: &Meta) -> bool {
        self.inode == other.inode && self.ctime == other.ctime
    }

    /// The kind of entry that a device is.
    pub fn device(&self) -> EntryKind {
        let (major, minor) = (rustix::fs::major(self.rdev), rustix::fs::minor(self.rdev));
        EntryKind::Device { block: self.file_type == FileType::BlockDevice, major, minor }
    }

    /// Everything of the entry but its path, kind and extras.
    pub fn describe(&self, entry: &mut Entry) {
        entry.mode = self.mode;
        entry.uid = self.uid;
        entry.gid = self.gid;
        entry.mtime = self.mtime;
    }
}

/// What people call a type.
pub(super) fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "of a type that is not known",
    }
}
