//! What an entry has besides its content: owner, mode, times, set in the one order that keeps them all. Setting the
//! owner clears setuid and setgid, writing clears them too, and everything before the times changes the times. Extended
//! attributes and ACLs will come between owner and mode, and after mode.
//!
//! By file descriptor wherever the thing can be opened; a symbolic link by name in its directory, never followed.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid};
use rustix::io::Errno;

use super::{Shared, describe};
use crate::archive::{Entry, Timestamp};
use crate::report::NoteKind;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// What is to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
}

impl From<&Entry> for Attributes {
    fn from(entry: &Entry) -> Attributes {
        Attributes { mode: entry.mode, uid: entry.uid, gid: entry.gid, mtime: entry.mtime }
    }
}

/// Who we are, and so what is ours to set.
#[derive(Debug)]
pub(super) struct Who {
    pub uid: u32,
    pub gid: u32,
    groups: Vec<Gid>,
    /// What the system takes away from the mode of what we create.
    pub umask: u32,
}

impl Who {
    pub fn ask() -> Who {
        Who {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: rustix::process::getgroups().unwrap_or_default(),
            umask: read_umask().unwrap_or(0o777),
        }
    }

    fn is_root(&self) -> bool {
        self.uid == 0
    }

    fn may_give_to(&self, gid: u32) -> bool {
        gid == self.gid || self.groups.iter().any(|g| g.as_raw() == gid)
    }
}

/// The umask without changing it, which would change it for every thread of the process.
fn read_umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(value.trim(), 8).ok()
}

/// What creation has already made as it should be.
#[derive(Clone, Copy, Default)]
pub(super) struct Already {
    pub owner: bool,
    pub mode: bool,
}

/// What attributes are set on.
#[derive(Clone, Copy)]
pub(super) enum Object<'a> {
    File(BorrowedFd<'a>),
    Directory(BorrowedFd<'a>),
    /// A symbolic link, open as a place only (O_PATH). By its name it could be something else by now.
    Symlink(BorrowedFd<'a>),
}

/// Set all of them. What cannot be set becomes a note and does not keep the rest from being set.
pub(super) fn apply(
    object: Object<'_>,
    wanted: &Attributes,
    already: Already,
    shared: &Shared,
    path: impl Fn() -> Vec<u8>,
) {
    let note = |what: &str, errno: Errno| {
        shared.note(NoteKind::Attribute, path(), format!("cannot set the {what}: {}", describe(errno)));
    };
    let owned = if already.owner { Owned { uid: true, gid: true } } else { set_owner(object, wanted, shared, &note) };
    if !(owned.uid && owned.gid) {
        shared.note_owner(&path);
    }
    let mode = permitted_mode(object, wanted.mode, owned);
    if !(already.mode && mode == wanted.mode)
        && let Err(errno) = object.set_mode(mode)
    {
        note("mode", errno);
    }
    match object.set_mtime(wanted.mtime) {
        Ok(()) => check_mtime(object, wanted.mtime, shared, &path),
        Err(errno) => note("time", errno),
    }
}

/// Which ids are as they should be.
#[derive(Clone, Copy)]
struct Owned {
    uid: bool,
    gid: bool,
}

/// Root sets every owner. Anybody else owns what he creates, and may give it to his own groups; the system is not even
/// asked for more.
fn set_owner(object: Object<'_>, wanted: &Attributes, shared: &Shared, note: &impl Fn(&str, Errno)) -> Owned {
    let who = &shared.who;
    let (uid, owned) = if who.is_root() {
        (Some(Uid::from_raw(wanted.uid)), Owned { uid: true, gid: true })
    } else {
        (None, Owned { uid: wanted.uid == who.uid, gid: who.may_give_to(wanted.gid) })
    };
    if !owned.gid {
        return owned;
    }
    match object.set_owner(uid, Some(Gid::from_raw(wanted.gid))) {
        Ok(()) => owned,
        // Root without the capability, an id that the user namespace or the file system does not have.
        Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => Owned { uid: owned.uid && uid.is_none(), gid: false },
        Err(errno) => {
            note("owner", errno);
            Owned { uid: owned.uid && uid.is_none(), gid: false }
        }
    }
}

/// A bit that lends the owner's rights would lend ours, if the owner could not be set. On a directory setgid lends
/// nothing.
fn permitted_mode(object: Object<'_>, mode: u32, owned: Owned) -> u32 {
    match object {
        Object::Directory(_) => mode,
        _ => mode & !if owned.uid { 0 } else { SETUID } & !if owned.gid { 0 } else { SETGID },
    }
}

/// A file system that cannot hold a time takes the nearest it can, and says nothing. All of them hold 1902 to 2038, so
/// only a time beyond costs a look.
fn check_mtime(object: Object<'_>, wanted: Timestamp, shared: &Shared, path: &impl Fn() -> Vec<u8>) {
    if i32::try_from(wanted.secs).is_ok() {
        return;
    }
    if let Ok(secs) = object.mtime_secs()
        && secs != wanted.secs
    {
        let detail = format!("the file system cannot hold the time {} s; it is {secs} s now", wanted.secs);
        shared.note(NoteKind::Attribute, path(), detail);
    }
}

impl Object<'_> {
    fn set_owner(self, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Errno> {
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fchown(fd, uid, gid),
            Object::Symlink(link) => rustix::fs::chownat(link, c"", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    fn set_mode(self, mode: u32) -> Result<(), Errno> {
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)),
            // Linux keeps no mode for a symbolic link.
            Object::Symlink(_) => Ok(()),
        }
    }

    fn set_mtime(self, mtime: Timestamp) -> Result<(), Errno> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
        };
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::futimens(fd, &times),
            Object::Symlink(link) => match rustix::fs::utimensat(link, c"", &times, AtFlags::EMPTY_PATH) {
                // Before Linux 5.8 there is only this way to say "that one".
                Err(Errno::INVAL) => {
                    let place = format!("/proc/self/fd/{}", link.as_raw_fd());
                    rustix::fs::utimensat(rustix::fs::CWD, place, &times, AtFlags::empty())
                }
                other => other,
            },
        }
    }

    fn mtime_secs(self) -> Result<i64, Errno> {
        let stat = match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fstat(fd),
            Object::Symlink(link) => rustix::fs::statat(link, c"", AtFlags::EMPTY_PATH),
        };
        Ok(stat?.st_mtime)
    }
}
