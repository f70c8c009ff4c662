//! The jail: directories below the destination's root, reached from its descriptor and no other way. One component at
//! a time, never through a symbolic link, never upwards except to the very directory we came from. No path of the
//! sender is ever given to the system whole, so its length has no limit here.
//!
//! The order of entries is depth first with parents first, so the directory of the next entry is always the current
//! one or above it. [`Jail`] keeps that chain; an entry whose directory is not on it is a violation. A directory
//! belongs to the chain and to the jobs that write into it; when the last of them lets go, it is finished.
//!
//! Descriptors are bounded twice. Of the chain only the deepest [`CHAIN_OPEN_MAX`] levels and the root are kept open:
//! going up, a level is opened again as the `..` of the one below, and must be the same device and inode. And there
//! are [`Permits`] for all directories together, jobs included: who makes directories waits for who fills them.

mod wander;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::wander::AsItWas;
use super::attributes::{Already, Attributes, Object, Part, Who, apply, remove_default_acl, set_xattrs};
use super::space::space;
use super::{Failure, Shared, Stopped, describe};
use crate::archive::{Entry, Extras};
use crate::error::escape;
use crate::report::NoteKind;
use crate::sys;

/// Levels of the current path that are kept open, besides the root.
const CHAIN_OPEN_MAX: usize = 32;

/// Directories open at once, jobs' included: at most this many, and at most half of what the system allows us.
const DIRECTORIES_OPEN_MAX: usize = 4096;

/// Device and inode: what a directory is, whatever it is called.
pub(super) type Identity = (u64, u64);

/// What was below the root before the transfer began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Before {
    /// A directory that held nothing but such directories.
    Empty,
    /// A mount point or `lost+found`; it may hold anything, and nothing in it counts as ours.
    Foreign,
}

/// An open directory.
pub(super) struct Handle {
    fd: OwnedFd,
    nature: Nature,
    /// Given back on drop; the root has none.
    _permit: Option<Permit>,
}

/// What is known of a directory.
#[derive(Clone, Copy)]
struct Nature {
    identity: Identity,
    /// What is created in it is ours, and has exactly the mode asked for where the umask leaves it: no default ACL, no
    /// inherited group, no file system with ideas of its own.
    exact: bool,
    /// It has no default ACL, and so neither has what is made in it.
    heirless: bool,
    /// It, or one above it, held things before the transfer.
    foreign: bool,
}

impl Handle {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What creating something in it with `mode` leaves to be set.
    pub fn already(&self, wanted: &Attributes, who: &Who) -> Already {
        let exact = self.nature.exact;
        Already {
            owner: exact && (wanted.uid, wanted.gid) == (who.uid, who.gid),
            // Bits beyond the nine are set last, since a change of owner and each write clear them.
            // To set anything else the owner must be able to write.
            mode: exact && wanted.mode & (0o7000 | who.umask) == 0 && wanted.extras.is_none(),
            no_acl: self.nature.heirless,
            file_system: self.nature.identity.0,
        }
    }

    /// How full the file system is, for an error's text.
    pub fn space(&self) -> String {
        space(&self.fd)
    }
}

/// A directory of the transfer.
pub(super) struct Dir {
    parent: Option<Arc<Dir>>,
    /// Its last name; empty for the root.
    name: Box<[u8]>,
    nature: Nature,
    /// `None` while it is too far above the current one to be kept open.
    handle: Mutex<Option<Arc<Handle>>>,
    /// What is set once its last user lets go; nothing if it was not announced, which only the root may be.
    attributes: Mutex<Option<Attributes>>,
    /// It has no ACL of its own before it is finished.
    no_acl: bool,
    /// We have made it. If it is not announced, which only the root and what is on the way to an entry of a foreign
    /// archive may be, it gets the mode of any new directory.
    fresh: bool,
    /// What it was when we went back to it, if it is not announced once more.
    was: Option<AsItWas>,
    shared: Arc<Shared>,
}

impl Dir {
    fn handle(&self) -> Option<Arc<Handle>> {
        self.handle.lock().expect("no thread panics while it holds this lock").clone()
    }

    fn set_handle(&self, handle: Option<Arc<Handle>>) {
        *self.handle.lock().expect("no thread panics while it holds this lock") = handle;
    }

    /// Its path inside the transfer.
    fn path(&self) -> Vec<u8> {
        let mut names = Vec::new();
        let mut dir = self;
        while let Some(parent) = &dir.parent {
            names.push(&*dir.name);
            dir = parent;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Owner, mode, times: the last thing that happens to it. Twice is the same as once.
    fn finish(&mut self) {
        let handle = self.handle.get_mut().expect("no thread panics while it holds this lock").take();
        let attributes = self.attributes.get_mut().expect("no thread panics while it holds this lock").take();
        let shared = &self.shared;
        if shared.stopping() {
            return;
        }
        match (attributes, handle) {
            (Some(attributes), Some(handle)) => {
                let already = handle.already(&attributes, &shared.who);
                let already = Already { mode: false, no_acl: self.no_acl, ..already };
                let object = Object::Directory(handle.fd());
                apply(object, &attributes, already, shared, || self.path());
                shared.entry_done();
            }
            (Some(_), None) => {
                shared.note(NoteKind::Attribute, self.path(), "somebody moved it while it was being filled");
                shared.entry_done();
            }
            (None, Some(handle)) if self.fresh || self.was.is_some() => {
                let mode = self.was.map_or(0o777 & !shared.who.umask, |was| was.mode);
                let object = Object::Directory(handle.fd());
                let time = |was: AsItWas| object.set_mtime(was.mtime);
                if let Err(errno) = object.set_mode(mode).and_then(|()| self.was.map_or(Ok(()), time)) {
                    shared.note(NoteKind::Attribute, self.path(), describe(errno));
                }
            }
            (None, _) => {}
        }
    }
}

impl Drop for Dir {
    /// Finishes it, and every directory above that has no other user left. A loop, since the chain may be deeper than
    /// the stack.
    fn drop(&mut self) {
        self.finish();
        let mut above = self.parent.take();
        while let Some(mut dir) = above.and_then(Arc::into_inner) {
            dir.finish();
            above = dir.parent.take();
        }
    }
}

/// Where an entry goes: its directory, and a name that is one component.
pub(super) struct Place {
    /// Keeps the directory from being finished.
    pub dir: Arc<Dir>,
    pub handle: Arc<Handle>,
}

/// The chain of directories from the root to the current one, and the root's surroundings.
pub(super) struct Jail {
    /// The current directory's path.
    path: Vec<u8>,
    /// The root first; never empty.
    levels: Vec<Level>,
    /// `levels[1..first_open]` are closed.
    first_open: usize,
    before: HashMap<Identity, Before>,
    devices: Devices,
    permits: Arc<Permits>,
    /// The directory a hard link's target was last found in; links come in runs.
    located: Option<(Vec<u8>, Arc<Handle>)>,
    shared: Arc<Shared>,
}

struct Level {
    /// Its path is that much of the chain's.
    end: usize,
    /// `None` if it could not be made; what is in it cannot be made either.
    dir: Option<Arc<Dir>>,
}

/// One descriptor for each file system that was written to, opened before the first write to it: errors of writing
/// back are told to descriptors that were open when they happened.
pub(super) struct Devices(Vec<(u64, OwnedFd)>);

impl Devices {
    fn touch(&mut self, device: u64, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.0.iter().all(|(known, _)| *known != device) {
            self.0.push((device, rustix::io::fcntl_dupfd_cloexec(fd, 0)?));
        }
        Ok(())
    }

    /// Make everything durable. The first error is final: after it nobody knows what is on the disk.
    pub fn sync(&self, shared: &Shared) -> Result<(), Stopped> {
        for (_, fd) in &self.0 {
            rustix::fs::syncfs(fd).map_err(|errno| {
                shared
                    .fail(Failure::Destination(format!("cannot sync the file system of {}", shared.destination), errno))
            })?;
        }
        Ok(())
    }
}

impl Jail {
    /// A jail below `root`. `fresh`: we have made it.
    pub fn new(
        root: OwnedFd,
        fresh: bool,
        before: HashMap<Identity, Before>,
        shared: &Arc<Shared>,
    ) -> Result<Jail, Errno> {
        let stat = rustix::fs::fstat(&root)?;
        let mut devices = Devices(Vec::new());
        devices.touch(stat.st_dev, root.as_fd())?;
        let heirless = !has_default_acl(root.as_fd());
        let exact = fresh && heirless && is_plain(&stat, shared);
        let nature = Nature { identity: (stat.st_dev, stat.st_ino), exact, heirless, foreign: false };
        let root = Arc::new(Handle { fd: root, nature, _permit: None });
        let dir = Dir {
            parent: None,
            name: Box::default(),
            nature,
            handle: Mutex::new(Some(root)),
            attributes: Mutex::default(),
            no_acl: fresh && heirless,
            fresh,
            was: None,
            shared: shared.clone(),
        };
        Ok(Jail {
            path: Vec::new(),
            levels: vec![Level { end: 0, dir: Some(Arc::new(dir)) }],
            first_open: 1,
            before,
            devices,
            permits: Permits::new(),
            located: None,
            shared: shared.clone(),
        })
    }

    /// Whether so many directories are open that making another could wait for jobs: let go of all there are first.
    pub fn is_crowded(&self) -> bool {
        self.permits.is_crowded()
    }

    /// Leave directories that `path` is not in, a few at a time. True if there may be more: each takes a permit that
    /// only a job may be able to give back, so let go of jobs in between if it is crowded.
    pub fn leave_some(&mut self, path: &[u8]) -> bool {
        let dir_path = dir_of(path);
        if self.path == dir_path {
            return false;
        }
        let common = common_len(&self.path, dir_path);
        for _ in 0..CHAIN_OPEN_MAX {
            if is_on_the_way(self.top().end, common, dir_path) {
                return false;
            }
            self.leave();
        }
        true
    }

    /// The directory of `path`, once [`Jail::leave_some`] has nothing more to leave. `None` if it could not be made.
    pub fn enter(&mut self, path: &[u8]) -> Result<Option<Place>, Stopped> {
        if self.path != dir_of(path) {
            let text = format!("'{}' came when its directory was not open", shown(path));
            return Err(self.shared.fail(Failure::Verification(text)));
        }
        let place = self.top().dir.as_ref().and_then(|dir| Some(Place { dir: dir.clone(), handle: dir.handle()? }));
        Ok(place)
    }

    /// The root's own entry: its attributes, set at the very end.
    pub fn announce_root(&mut self, entry: &Entry) -> Result<(), Stopped> {
        let root = self.levels[0].dir.as_ref().expect("the root is there");
        if let Some(handle) = root.handle() {
            set_early(&handle, entry, &self.shared);
        }
        let attributes = left_for_later(entry);
        let before = root.attributes.lock().expect("no thread panics while it holds this lock").replace(attributes);
        if before.is_some() {
            return Err(self.shared.fail(Failure::Verification("the root came twice".into())));
        }
        Ok(())
    }

    /// Make a directory and go into it. One that could not be made is noted and gone into all the same.
    pub fn make(&mut self, entry: &Entry) -> Result<(), Stopped> {
        let place = self.enter(&entry.path)?;
        let name = last_name(&entry.path);
        let dir = match place {
            None => {
                self.shared.note(NoteKind::NotCreated, entry.path.clone(), "its directory could not be created");
                None
            }
            Some(place) => match self.make_in(&place.handle, name) {
                Ok((handle, no_acl)) => Some(Arc::new(Dir {
                    parent: Some(place.dir),
                    name: name.into(),
                    nature: handle.nature,
                    handle: Mutex::new(Some({
                        set_early(&handle, entry, &self.shared);
                        Arc::new(handle)
                    })),
                    attributes: Mutex::new(Some(left_for_later(entry))),
                    no_acl,
                    fresh: false,
                    was: None,
                    shared: self.shared.clone(),
                })),
                Err(errno) => {
                    self.shared.entry_failed(&entry.path, errno, &place.handle)?;
                    None
                }
            },
        };
        self.path.clear();
        self.path.extend_from_slice(&entry.path);
        let made = dir.is_some();
        self.levels.push(Level { end: self.path.len(), dir });
        if made {
            self.close_far_levels();
        }
        Ok(())
    }

    /// Where a hard link's target is: its directory, open. The target must be something that this transfer created.
    /// What was empty when the transfer began holds only what it created; in what was not, nothing counts.
    pub fn locate(&mut self, target: &[u8]) -> Result<Arc<Handle>, Errno> {
        let dir_path = dir_of(target);
        if let Some((path, handle)) = &self.located
            && path == dir_path
        {
            return Ok(handle.clone());
        }
        let handle = self.walk(dir_path)?;
        if handle.nature.foreign {
            return Err(Errno::XDEV);
        }
        self.located = Some((dir_path.to_vec(), handle.clone()));
        Ok(handle)
    }

    /// Leave every directory. The root's handle on itself and the file systems are returned; drop the first when all
    /// jobs are done, then sync the second.
    pub fn close(mut self) -> (Arc<Dir>, Devices) {
        while self.levels.len() > 1 {
            self.leave();
        }
        let root = self.levels.pop().and_then(|level| level.dir).expect("the root is there");
        (root, self.devices)
    }

    fn top(&self) -> &Level {
        self.levels.last().expect("the root is there")
    }

    /// Go up one level. What we leave is finished as soon as its jobs are done.
    fn leave(&mut self) {
        let left = self.levels.pop().expect("the root is never left");
        let top = self.levels.len() - 1;
        self.path.truncate(self.levels[top].end);
        if top > 0 && top < self.first_open {
            if let (Some(below), Some(dir)) = (&left.dir, &self.levels[top].dir) {
                dir.set_handle(below.handle().and_then(|below| self.reopen(dir, &below)).map(Arc::new));
            }
            self.first_open = top;
        }
    }

    /// A directory that was closed, as the parent of one that is open.
    fn reopen(&self, dir: &Dir, below: &Handle) -> Option<Handle> {
        let permit = self.permits.take();
        let fd = rustix::fs::openat(below.fd(), "..", READABLE, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let same = (stat.st_dev, stat.st_ino) == dir.nature.identity;
        same.then(|| Handle { fd, nature: dir.nature, _permit: Some(permit) })
    }

    /// Close what is too far up. Levels that could not be made are always the deepest and have nothing to close.
    fn close_far_levels(&mut self) {
        while self.levels.len() - self.first_open > CHAIN_OPEN_MAX {
            if let Some(dir) = &self.levels[self.first_open].dir {
                dir.set_handle(None);
            }
            self.first_open += 1;
        }
    }

    /// Make a directory, or take one that was there and empty before. Also whether it has no ACL.
    fn make_in(&mut self, parent: &Handle, name: &[u8]) -> Result<(Handle, bool), Errno> {
        let permit = self.permits.take();
        let made = rustix::fs::mkdirat(parent.fd(), name, Mode::RWXU);
        if let Err(errno) = made
            && errno != Errno::EXIST
        {
            return Err(errno);
        }
        let fd = match rustix::fs::openat(parent.fd(), name, READABLE, Mode::empty()) {
            // It was there, and is not ours to read. Its attributes will not be ours to set either.
            Err(Errno::ACCESS) if made.is_err() => rustix::fs::openat(parent.fd(), name, SEARCHABLE, Mode::empty()),
            other => other,
        };
        let fd = match (fd, made) {
            (Ok(fd), _) => fd,
            // What is there is no directory.
            (Err(_), Err(exists)) => return Err(exists),
            (Err(errno), Ok(())) => return Err(errno),
        };
        let stat = rustix::fs::fstat(&fd)?;
        let identity = (stat.st_dev, stat.st_ino);
        let before = self.before.get(&identity).copied();
        let foreign = parent.nature.foreign || before == Some(Before::Foreign);
        if made.is_err() && before.is_none() && !parent.nature.foreign {
            return Err(Errno::EXIST);
        }
        self.devices.touch(stat.st_dev, fd.as_fd())?;
        let exact = made.is_ok() && parent.nature.heirless && is_plain(&stat, &self.shared);
        let no_acl = made.is_ok() && parent.nature.heirless;
        // What is made in it shall not inherit what is not to stay.
        let heirless = no_acl || remove_default_acl(fd.as_fd());
        Ok((Handle { fd, nature: Nature { identity, exact, heirless, foreign }, _permit: Some(permit) }, no_acl))
    }

    /// A directory that exists, from the deepest level of the chain that is open and on the way.
    fn walk(&mut self, path: &[u8]) -> Result<Arc<Handle>, Errno> {
        let common = common_len(&self.path, path);
        let start = self.levels.iter().rev().find_map(|level| {
            let dir = level.dir.as_ref().filter(|_| is_on_the_way(level.end, common, path));
            let handle = dir?.handle()?;
            Some((level.end, handle))
        });
        let (start, mut handle) = start.expect("the root is open and on every way");
        for name in path[start..].split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            let permit = self.permits.take();
            let fd = rustix::fs::openat(handle.fd(), name, SEARCHABLE, Mode::empty())?;
            let mut nature = Nature { exact: false, ..handle.nature };
            if !self.before.is_empty() {
                let stat = rustix::fs::fstat(&fd)?;
                nature.identity = (stat.st_dev, stat.st_ino);
                nature.foreign |= self.before.get(&nature.identity) == Some(&Before::Foreign);
            }
            handle = Arc::new(Handle { fd, nature, _permit: Some(permit) });
        }
        Ok(handle)
    }
}

/// A directory's extended attributes, at once: what waits until it is finished takes memory as deep as the tree is.
fn set_early(handle: &Handle, entry: &Entry, shared: &Shared) {
    set_xattrs(Object::Directory(handle.fd()), entry.extras.as_deref(), Part::BeforeMode, shared, &|| {
        entry.path.clone()
    });
}

/// What is set once it is finished. ACLs are among it, since what is created in it would inherit them.
fn left_for_later(entry: &Entry) -> Attributes {
    let extras = entry.extras.as_ref().and_then(|extras| {
        let Extras { access_acl, default_acl, .. } = &**extras;
        let (access_acl, default_acl) = (access_acl.clone(), default_acl.clone());
        let acls = Extras { access_acl, default_acl, ..Extras::default() };
        (!acls.is_empty()).then(|| Arc::new(acls))
    });
    Attributes { extras, ..entry.into() }
}

/// To list, fill and finish a directory.
const READABLE: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// To reach what is in it, which needs no right to read it.
const SEARCHABLE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether a directory that we have just made 0700 came out as just that.
fn is_plain(stat: &rustix::fs::Stat, shared: &Shared) -> bool {
    stat.st_mode & 0o7777 == 0o700 && (stat.st_uid, stat.st_gid) == (shared.who.uid, shared.who.gid)
}

/// A default ACL decides over the modes of what is created below; where we cannot tell, assume one.
fn has_default_acl(dir: BorrowedFd<'_>) -> bool {
    let found = rustix::fs::fgetxattr(dir, "system.posix_acl_default", &mut [0u8; 0][..]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// A path without its last component.
fn dir_of(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|b| *b == b'/').unwrap_or(0)]
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Whether the first `end` bytes of a path that has `common` bytes in common with `path` are `path` or above it.
fn is_on_the_way(end: usize, common: usize, path: &[u8]) -> bool {
    end <= common && (end == 0 || end == path.len() || path[end] == b'/')
}

/// The last component of a path.
pub(super) fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// A path for an error's text: escaped, its beginning only if it is long.
pub(super) fn shown(path: &[u8]) -> String {
    const SHOWN_MAX: usize = 300;
    match path.get(..SHOWN_MAX) {
        Some(start) => escape(start) + "…",
        None => escape(path),
    }
}

/// Leave to have a directory open.
struct Permits {
    limit: usize,
    held: Mutex<usize>,
    freed: Condvar,
}

struct Permit(Arc<Permits>);

impl Permits {
    fn new() -> Arc<Permits> {
        let limit = (sys::open_files_limit() / 2).clamp(4 * CHAIN_OPEN_MAX, DIRECTORIES_OPEN_MAX);
        Arc::new(Permits { limit, held: Mutex::new(0), freed: Condvar::new() })
    }

    /// Waits until there is one. The chain holds a quarter of them at most; jobs hold the others, and end.
    fn take(self: &Arc<Permits>) -> Permit {
        let held = self.held.lock().expect("no thread panics while it holds this lock");
        let full = |held: &mut usize| *held >= self.limit;
        *self.freed.wait_while(held, full).expect("no thread panics while it holds this lock") += 1;
        Permit(self.clone())
    }

    fn is_crowded(&self) -> bool {
        *self.held.lock().expect("no thread panics while it holds this lock") + 2 * CHAIN_OPEN_MAX >= self.limit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.held.lock().expect("no thread panics while it holds this lock") -= 1;
        self.0.freed.notify_one();
    }
}
