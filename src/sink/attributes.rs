//! What an entry has besides its content, set in the one order that keeps it all: owner, extended attributes, mode,
//! ACL, file capability, times. Setting the owner clears setuid, setgid and the capability, writing clears them too, a
//! mode takes bits from an ACL, and everything before the times changes the times.
//!
//! By file descriptor wherever the thing can be opened; what cannot is open as a place only and reached through that,
//! never by a name that could lead elsewhere by now.
//!
//! What the destination would add (a default ACL's heirs, a group that is inherited) is taken away again.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{AtFlags, Gid, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Shared, describe};
use crate::archive::{AclWho, Entry, Extras, Timestamp, Xattr};
use crate::error::escape;
use crate::options::{Allow, Keep};
use crate::report::NoteKind;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// What is to be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    pub extras: Option<Arc<Extras>>,
}

impl From<&Entry> for Attributes {
    fn from(entry: &Entry) -> Attributes {
        let Entry { mode, uid, gid, mtime, .. } = *entry;
        Attributes { mode, uid, gid, mtime, extras: entry.extras.clone() }
    }
}

/// Of what a sender asks, what is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Policy {
    pub keep: Keep,
    pub allow: Allow,
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

    pub fn is_root(&self) -> bool {
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
#[derive(Clone, Copy)]
pub(super) struct Already {
    pub owner: bool,
    pub mode: bool,
    /// It has no ACL from the directory it was made in.
    pub no_acl: bool,
    /// The device it is on.
    pub file_system: u64,
}

/// What attributes are set on.
#[derive(Clone, Copy)]
pub(super) enum Object<'a> {
    File(BorrowedFd<'a>),
    Directory(BorrowedFd<'a>),
    /// A symbolic link, open as a place only (O_PATH). By its name it could be something else by now.
    Symlink(BorrowedFd<'a>),
    /// A device, open as a place only.
    Device(BorrowedFd<'a>),
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
    let owned = if already.owner { Owned { uid: true, gid: true } } else { set_owner(object, wanted, shared, &path) };
    set_xattrs(object, wanted.extras.as_deref(), Part::BeforeMode, shared, &path);
    if !already.no_acl {
        disinherit(object, wanted, shared).unwrap_or_else(|errno| note("ACL", errno));
    }
    let mode = permitted_mode(object, wanted.mode, owned);
    let mode = withhold(object, mode, shared, &path);
    if !(already.mode && mode == wanted.mode)
        && let Err(errno) = object.set_mode(mode)
    {
        note("mode", errno);
    }
    set_acls(object, wanted.extras.as_deref(), mode, shared, &path);
    set_xattrs(object, wanted.extras.as_deref(), Part::AfterMode, shared, &path);
    match object.set_mtime(wanted.mtime) {
        Ok(()) => check_mtime(object, wanted.mtime, already.file_system, shared, &path),
        Err(errno) => note("time", errno),
    }
}

const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

/// When extended attributes are set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    BeforeMode,
    /// The capability alone.
    AfterMode,
}

/// Set extended attributes, as far as they are let pass.
pub(super) fn set_xattrs(
    object: Object<'_>,
    extras: Option<&Extras>,
    part: Part,
    shared: &Shared,
    path: &impl Fn() -> Vec<u8>,
) {
    let Some(extras) = extras.filter(|_| shared.policy.keep.xattrs) else { return };
    let in_part = |xattr: &&Xattr| (xattr.name == CAPABILITY) == (part == Part::AfterMode);
    for xattr in extras.xattrs.iter().filter(in_part) {
        match pass(&xattr.name, shared) {
            Pass::Yes => {}
            Pass::Withheld(word) => {
                let name = escape(&xattr.name);
                shared.note(NoteKind::Withheld, path(), format!("{name} needs --allow {word} on the receiver"));
                continue;
            }
            Pass::NotOurs => {
                shared.note_not_ours(path, &xattr.name);
                continue;
            }
        }
        if let Err(errno) = object.set_xattr(&xattr.name, &xattr.value) {
            let text = format!("cannot set {}: {}", escape(&xattr.name), describe(errno));
            shared.note(NoteKind::Xattr, path(), text);
        }
    }
}

/// Whether an extended attribute is let pass.
enum Pass {
    Yes,
    /// It lends rights, or tells the kernel what to trust: only with this word.
    Withheld(&'static str),
    /// It belongs to another system's policy, or is not for a plain user to set.
    NotOurs,
}

fn pass(name: &[u8], shared: &Shared) -> Pass {
    let allow = &shared.policy.allow;
    let privileged = |allowed: bool, word| match (allowed, shared.who.is_root()) {
        (true, _) => Pass::Yes,
        (false, true) => Pass::Withheld(word),
        (false, false) => Pass::NotOurs,
    };
    if name == CAPABILITY {
        privileged(allow.caps, "caps")
    } else if name.starts_with(b"trusted.") {
        privileged(allow.trusted, "trusted")
    } else if name.starts_with(b"security.") {
        if allow.labels { Pass::Yes } else { Pass::NotOurs }
    } else {
        Pass::Yes
    }
}

/// Take away what its directory gave it and will not be replaced.
fn disinherit(object: Object<'_>, wanted: &Attributes, shared: &Shared) -> Result<(), Errno> {
    let extras = wanted.extras.as_deref().filter(|_| shared.policy.keep.acls);
    if extras.is_none_or(|extras| extras.access_acl.is_none()) {
        object.remove_acl(ACCESS_ACL)?;
    }
    if matches!(object, Object::Directory(_)) && extras.is_none_or(|extras| extras.default_acl.is_none()) {
        object.remove_acl(DEFAULT_ACL)?;
    }
    Ok(())
}

/// Set the lists.
fn set_acls(object: Object<'_>, extras: Option<&Extras>, mode: u32, shared: &Shared, path: &impl Fn() -> Vec<u8>) {
    let Some(extras) = extras.filter(|_| shared.policy.keep.acls) else { return };
    let note = |errno| shared.note(NoteKind::Acl, path(), format!("cannot set the ACL: {}", describe(errno)));
    if let Some(acl) = &extras.access_acl
        && let Err(errno) = object.set_xattr(ACCESS_ACL.as_bytes(), &acl.to_bytes())
    {
        note(errno);
        // The group's bits of the mode are the most that anybody named in the list gets. Without the list they would
        // be the group's.
        let group =
            acl.perms(AclWho::Group) & acl.entries().iter().find(|e| e.who == AclWho::Mask).map_or(7, |e| e.perms);
        let _ = object.set_mode(mode & !0o070 | u32::from(group) << 3);
    }
    if let Some(acl) = &extras.default_acl
        && let Err(errno) = object.set_xattr(DEFAULT_ACL.as_bytes(), &acl.to_bytes())
    {
        note(errno);
    }
}

/// Take a directory's default ACL away, whoever gave it one. Whether it has none now.
pub(super) fn remove_default_acl(directory: BorrowedFd<'_>) -> bool {
    Object::Directory(directory).remove_acl(DEFAULT_ACL).is_ok()
}

/// Which ids are as they should be.
#[derive(Clone, Copy)]
struct Owned {
    uid: bool,
    gid: bool,
}

/// Root sets every owner. Anybody else owns what he creates, and may give it to his own groups; the system is not even
/// asked for more.
fn set_owner(object: Object<'_>, wanted: &Attributes, shared: &Shared, path: &impl Fn() -> Vec<u8>) -> Owned {
    let who = &shared.who;
    let (uid, owned) = if who.is_root() {
        (Some(Uid::from_raw(wanted.uid)), Owned { uid: true, gid: true })
    } else {
        (None, Owned { uid: wanted.uid == who.uid, gid: who.may_give_to(wanted.gid) })
    };
    if !owned.gid {
        // Not the group that a directory would have given it either.
        let _ = object.set_owner(None, Some(Gid::from_raw(who.gid)));
        shared.note_owner(path);
        return owned;
    }
    match object.set_owner(uid, Some(Gid::from_raw(wanted.gid))) {
        Ok(()) => {
            if !owned.uid {
                shared.note_owner(path);
            }
            owned
        }
        // Root without the capability, an id that the user namespace or the file system does not have, a server that
        // takes root for nobody.
        Err(errno) => {
            let got = object.owner().map_or_else(|_| "another".to_owned(), |(uid, gid)| format!("{uid}:{gid}"));
            let text = format!("it is {got} and not {}:{}: {}", wanted.uid, wanted.gid, describe(errno));
            shared.note(NoteKind::OwnerRefused, path(), text);
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

/// Bits that lend rights need leave, even where the owner is as it should be.
fn withhold(object: Object<'_>, mode: u32, shared: &Shared, path: &impl Fn() -> Vec<u8>) -> u32 {
    let lent = mode & (SETUID | SETGID);
    if lent == 0 || shared.policy.allow.suid || !matches!(object, Object::File(_)) {
        return mode;
    }
    let bits = match lent {
        SETUID => "setuid needs",
        SETGID => "setgid needs",
        _ => "setuid and setgid need",
    };
    shared.note(NoteKind::Withheld, path(), format!("{bits} --allow suid on the receiver"));
    mode & !lent
}

/// A file system that cannot hold a time takes the nearest it can, and says nothing. All of them hold 1980 to 2038, but
/// not all hold odd seconds or nanoseconds: until one has proved that it does, each file costs a look.
fn check_mtime(object: Object<'_>, wanted: Timestamp, file_system: u64, shared: &Shared, path: &impl Fn() -> Vec<u8>) {
    const FIRST_OF_1980: i64 = 315_532_800;
    let is_usual = (FIRST_OF_1980..=i32::MAX.into()).contains(&wanted.secs);
    if is_usual && shared.times.holds(file_system, wanted) {
        return;
    }
    match object.mtime() {
        Ok(is) if is == wanted => shared.times.proved(file_system, wanted),
        Ok(is) => {
            let shown =
                |t: Timestamp| if t.nanos == 0 { t.secs.to_string() } else { format!("{}.{:09}", t.secs, t.nanos) };
            let text = format!("the file system cannot hold the time {} s; it is {} s now", shown(wanted), shown(is));
            shared.note(NoteKind::Time, path(), text);
        }
        Err(_) => {}
    }
}

/// How fine the times are that the file system last written to has proved to hold. Only the last: a second one costs
/// looks, and nothing else.
#[derive(Default, Debug)]
pub(super) struct Times(AtomicU64);

impl Times {
    /// An odd second, and nanoseconds that are no multiple of what any file system counts in.
    fn proof(time: Timestamp) -> u64 {
        match (time.secs % 2, time.nanos % 100) {
            (_, 1..) => 2,
            (0, 0) => 0,
            _ => 1,
        }
    }

    fn holds(&self, file_system: u64, time: Timestamp) -> bool {
        let known = self.0.load(Relaxed);
        let needed = if time.nanos == 0 { 1 } else { 2 };
        known >> 2 == file_system << 2 >> 2 && known & 3 >= needed
    }

    fn proved(&self, file_system: u64, time: Timestamp) {
        let (proof, known) = (Self::proof(time), self.0.load(Relaxed));
        let before = if known >> 2 == file_system << 2 >> 2 { known & 3 } else { 0 };
        if proof > before {
            self.0.store(file_system << 2 | proof, Relaxed);
        }
    }
}

impl Object<'_> {
    fn set_owner(self, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Errno> {
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fchown(fd, uid, gid),
            Object::Symlink(fd) | Object::Device(fd) => rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    pub fn set_mode(self, mode: u32) -> Result<(), Errno> {
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)),
            // Linux keeps no mode for a symbolic link.
            Object::Symlink(_) => Ok(()),
            Object::Device(fd) => rustix::fs::chmod(place(fd), Mode::from_raw_mode(mode)),
        }
    }

    fn set_xattr(self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            Object::Symlink(fd) | Object::Device(fd) => {
                rustix::fs::setxattr(place(fd), name, value, XattrFlags::empty())
            }
        }
    }

    /// Remove an ACL, if there is one.
    fn remove_acl(self, name: &str) -> Result<(), Errno> {
        let removed = match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fremovexattr(fd, name),
            Object::Device(fd) => rustix::fs::removexattr(place(fd), name),
            // It never has one.
            Object::Symlink(_) => Ok(()),
        };
        match removed {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            other => other,
        }
    }

    pub fn set_mtime(self, mtime: Timestamp) -> Result<(), Errno> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
        };
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::futimens(fd, &times),
            Object::Symlink(link) | Object::Device(link) => {
                match rustix::fs::utimensat(link, c"", &times, AtFlags::EMPTY_PATH) {
                    // Before Linux 5.8 there is only this way to say "that one".
                    Err(Errno::INVAL) => rustix::fs::utimensat(rustix::fs::CWD, place(link), &times, AtFlags::empty()),
                    other => other,
                }
            }
        }
    }

    fn mtime(self) -> Result<Timestamp, Errno> {
        let stat = self.stat()?;
        Ok(Timestamp { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) })
    }

    fn owner(self) -> Result<(u32, u32), Errno> {
        self.stat().map(|stat| (stat.st_uid, stat.st_gid))
    }

    fn stat(self) -> Result<Stat, Errno> {
        match self {
            Object::File(fd) | Object::Directory(fd) => rustix::fs::fstat(fd),
            Object::Symlink(fd) | Object::Device(fd) => rustix::fs::statat(fd, c"", AtFlags::EMPTY_PATH),
        }
    }
}

/// What is open as a place only, for calls that take no descriptor of that kind. It leads there and no further.
fn place(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
