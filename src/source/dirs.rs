//! Directory handles. Everything below a source is reached from an open directory and one name, so that renames and
//! links made meanwhile lead nowhere else, and paths may be longer than `PATH_MAX`.
//!
//! Open handles are bounded: beyond the bound the ones not used lately are closed, and opened again when needed through
//! the nearest open ancestor, each step checked to be the directory that was listed.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::sys;

/// An inode's name in this system while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Inode {
    pub dev: u64,
    pub ino: u64,
}

impl Inode {
    pub fn of(stat: &Stat) -> Inode {
        Inode { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// A directory of the source, from its discovery until nothing planned refers to it.
pub(super) struct Dir {
    /// `None` for a source itself, whose handle is never closed.
    parent: Option<Arc<Dir>>,
    /// The last name; empty for what has no name in the transfer.
    name: CString,
    /// Bytes of its path in the transfer.
    path_len: usize,
    /// Set when it is first opened.
    inode: OnceLock<Inode>,
    fd: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether the handle was used since the bound was last enforced.
    used: AtomicBool,
    /// Whether it was noted as vanished, and everything below with it.
    gone: AtomicBool,
}

/// What came of asking whether a directory has vanished.
pub(super) enum Gone {
    /// It is there.
    No,
    /// It is not, or one above it is not; this is the topmost one's path, told once.
    Now(Vec<u8>),
    /// It is not, and that was told before.
    Known,
}

impl Dir {
    /// A directory that is reached by its own handle: a source, or the place of a named file.
    pub fn pinned(name: CString, fd: OwnedFd, inode: Inode) -> Arc<Dir> {
        Arc::new(Dir {
            parent: None,
            path_len: name.as_bytes().len(),
            name,
            inode: OnceLock::from(inode),
            fd: Mutex::new(Some(Arc::new(fd))),
            used: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// What has no directory: the source's own entry, or a file that was opened by its path.
    pub fn nowhere() -> Arc<Dir> {
        Arc::new(Dir {
            parent: None,
            name: CString::default(),
            path_len: 0,
            inode: OnceLock::new(),
            fd: Mutex::new(None),
            used: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// A directory found in `parent`, not opened yet.
    pub fn child(parent: &Arc<Dir>, name: &CStr) -> Arc<Dir> {
        Arc::new(Dir {
            path_len: parent.child_path_len(name),
            parent: Some(parent.clone()),
            name: name.to_owned(),
            inode: OnceLock::new(),
            fd: Mutex::new(None),
            used: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Bytes of the path that `name` in this directory has.
    pub fn child_path_len(&self, name: &CStr) -> usize {
        self.path_len + usize::from(self.path_len > 0) + name.to_bytes().len()
    }

    /// The device it is on, once it was opened.
    pub fn dev(&self) -> Option<u64> {
        self.inode.get().map(|i| i.dev)
    }

    /// The directory it was found in.
    pub fn parent(&self) -> Option<&Arc<Dir>> {
        self.parent.as_ref()
    }

    /// Replace `out` by the path of `name` in this directory; an empty name is the directory itself.
    pub fn path_into(&self, name: &[u8], out: &mut Vec<u8>) {
        let slash = usize::from(self.path_len > 0 && !name.is_empty());
        out.resize(self.path_len + slash + name.len(), b'/');
        out[self.path_len + slash..].copy_from_slice(name);
        let mut end = self.path_len;
        if slash > 0 {
            out[end] = b'/';
        }
        let mut dir = self;
        loop {
            let name = dir.name.as_bytes();
            out[end - name.len()..end].copy_from_slice(name);
            end -= name.len();
            match &dir.parent {
                Some(parent) if parent.path_len > 0 => {
                    end -= 1;
                    out[end] = b'/';
                    dir = parent;
                }
                _ => break,
            }
        }
    }

    /// Its path in the transfer.
    pub fn path(&self) -> Vec<u8> {
        let mut path = Vec::new();
        self.path_into(b"", &mut path);
        path
    }

    /// The handle of a directory made by [`Dir::pinned`].
    pub fn pinned_handle(&self) -> Option<Arc<OwnedFd>> {
        self.lock().clone()
    }

    fn cached(&self) -> Option<Arc<OwnedFd>> {
        let fd = self.lock().clone();
        if fd.is_some() {
            self.used.store(true, Relaxed);
        }
        fd
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.fd.lock().expect("no thread panics while it holds this lock")
    }
}

impl Drop for Dir {
    /// Lets go of the ancestors one by one: a chain of ten thousand must not be dropped by recursion.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut dir) = next.and_then(Arc::into_inner) {
            next = dir.parent.take();
        }
    }
}

/// The open handles of one source, and their bound.
pub(super) struct Dirs {
    capacity: usize,
    /// Directories whose handle may be closed, the next candidate first.
    ring: Mutex<VecDeque<Weak<Dir>>>,
}

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

impl Dirs {
    /// As many handles as the process's limit, raised as far as it goes, allows beside sockets and open files.
    pub fn new() -> Dirs {
        Dirs::with_capacity((sys::open_files_limit() / 4).clamp(16, 1024))
    }

    fn with_capacity(capacity: usize) -> Dirs {
        Dirs { capacity, ring: Mutex::new(VecDeque::with_capacity(capacity + 1)) }
    }

    /// A directory's handle. Fails with ENOENT if the directory is no longer what was listed.
    pub fn get(&self, dir: &Arc<Dir>) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(fd) = dir.cached() {
            return Ok(fd);
        }
        let mut closed = vec![dir];
        let mut fd = loop {
            let parent = closed[closed.len() - 1].parent.as_ref().ok_or(Errno::NOENT)?;
            match parent.cached() {
                Some(fd) => break fd,
                None => closed.push(parent),
            }
        };
        while let Some(dir) = closed.pop() {
            fd = Arc::new(self.retry(|| rustix::fs::openat(&*fd, &*dir.name, DIR_FLAGS, Mode::empty()))?);
            if dir.inode.get() != Some(&Inode::of(&rustix::fs::fstat(&*fd)?)) {
                return Err(Errno::NOENT);
            }
            // A walk that comes back up a deep tree needs the ancestors next, the nearest first.
            if closed.len() <= self.capacity / 2 {
                self.keep(dir, &fd);
            }
        }
        Ok(fd)
    }

    /// Open a directory for the first time. What is there now counts, if it is a directory at all; from then on it must
    /// be the same one.
    pub fn open(&self, dir: &Arc<Dir>) -> Result<(Arc<OwnedFd>, Stat), Errno> {
        let fd = match &dir.parent {
            None => dir.cached().ok_or(Errno::NOENT)?,
            Some(parent) => {
                let at = self.get(parent)?;
                Arc::new(self.retry(|| rustix::fs::openat(&*at, &*dir.name, DIR_FLAGS, Mode::empty()))?)
            }
        };
        let stat = rustix::fs::fstat(&*fd)?;
        if dir.parent.is_some() {
            let _ = dir.inode.set(Inode::of(&stat));
            self.keep(dir, &fd);
        }
        Ok((fd, stat))
    }

    /// Call `open`, and once more after closing handles if the process has too many.
    pub fn retry<T>(&self, open: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.shrink(self.capacity / 4);
                open()
            }
            other => other,
        }
    }

    /// Whether something is missing because its directory, or one above, has vanished.
    pub fn gone(&self, dir: &Arc<Dir>) -> Gone {
        let mut ancestor = Some(dir);
        while let Some(dir) = ancestor {
            if dir.gone.load(Relaxed) {
                return Gone::Known;
            }
            ancestor = dir.parent.as_ref();
        }
        if !self.is_gone(dir) {
            return Gone::No;
        }
        let mut topmost = dir;
        while let Some(parent) = topmost.parent.as_ref().filter(|parent| self.is_gone(parent)) {
            topmost = parent;
        }
        if topmost.gone.swap(true, Relaxed) { Gone::Known } else { Gone::Now(topmost.path()) }
    }

    fn is_gone(&self, dir: &Arc<Dir>) -> bool {
        match self.get(dir).and_then(rustix::fs::fstat) {
            Ok(stat) => stat.st_nlink == 0,
            Err(errno) => is_vanished(errno),
        }
    }

    fn keep(&self, dir: &Arc<Dir>, fd: &Arc<OwnedFd>) {
        *dir.lock() = Some(fd.clone());
        let mut ring = self.ring.lock().expect("no thread panics while it holds this lock");
        if ring.len() >= self.capacity {
            Self::close_unused(&mut ring, self.capacity - 1);
        }
        ring.push_back(Arc::downgrade(dir));
    }

    fn shrink(&self, len: usize) {
        let mut ring = self.ring.lock().expect("no thread panics while it holds this lock");
        Self::close_unused(&mut ring, len);
    }

    /// Second chance: a handle used since it was last looked at goes to the end, once.
    fn close_unused(ring: &mut VecDeque<Weak<Dir>>, len: usize) {
        let mut chances = ring.len();
        while ring.len() > len {
            let Some(next) = ring.pop_front() else { break };
            let Some(dir) = next.upgrade() else { continue };
            if dir.used.swap(false, Relaxed) && chances > 0 {
                chances -= 1;
                ring.push_back(next);
            } else {
                drop(dir.lock().take());
            }
        }
    }
}

/// Errors that mean: it was listed, and is no longer there.
pub(super) fn is_vanished(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::STALE | Errno::NOTDIR | Errno::LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(path: &std::path::Path) -> Arc<Dir> {
        let fd = rustix::fs::open(path, DIR_FLAGS, Mode::empty()).unwrap();
        let inode = Inode::of(&rustix::fs::fstat(&fd).unwrap());
        Dir::pinned(CString::default(), fd, inode)
    }

    fn chain(root: &Arc<Dir>, names: &[&str]) -> Arc<Dir> {
        names.iter().fold(root.clone(), |dir, name| Dir::child(&dir, &CString::new(*name).unwrap()))
    }

    #[test]
    fn paths_are_composed_from_the_chain() {
        let tmp = tempfile::tempdir().unwrap();
        let root = pinned(tmp.path());
        let mut path = b"left over".to_vec();
        root.path_into(b"", &mut path);
        assert_eq!(path, b"");
        root.path_into(b"x", &mut path);
        assert_eq!(path, b"x");
        let dir = chain(&root, &["a", "bb"]);
        assert_eq!(dir.path(), b"a/bb");
        dir.path_into(b"ccc", &mut path);
        assert_eq!(path, b"a/bb/ccc");
        let named = Dir::pinned(c"src".into(), rustix::fs::open(tmp.path(), DIR_FLAGS, Mode::empty()).unwrap(), {
            Inode { dev: 0, ino: 0 }
        });
        chain(&named, &["d"]).path_into(b"f", &mut path);
        assert_eq!(path, b"src/d/f");
    }

    #[test]
    fn closed_handles_open_again_to_the_same_directory_or_not_at_all() {
        let tmp = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..60).map(|i| format!("d{i}")).collect();
        std::fs::create_dir_all(tmp.path().join(names.join("/"))).unwrap();
        let root = pinned(tmp.path());
        let dirs = Dirs::with_capacity(16);
        let mut chain = vec![root];
        for name in &names {
            let dir = Dir::child(&chain[chain.len() - 1], &CString::new(name.as_str()).unwrap());
            dirs.open(&dir).unwrap();
            chain.push(dir);
        }
        let open = chain.iter().filter(|d| d.lock().is_some()).count();
        assert!(open <= 17, "{open} handles are open");
        for dir in chain.iter().rev() {
            dirs.get(dir).unwrap();
        }
        dirs.shrink(0);
        assert_eq!(chain.iter().filter(|d| d.lock().is_some()).count(), 1, "only the source's own stays open");

        let swapped = tmp.path().join("d0/d1");
        std::fs::rename(&swapped, tmp.path().join("kept")).unwrap();
        std::fs::create_dir_all(tmp.path().join(names.join("/"))).unwrap();
        assert_eq!(dirs.get(&chain[2]).err(), Some(Errno::NOENT), "another directory took the name");
    }

    #[test]
    fn a_vanished_subtree_is_told_once_and_by_its_top() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tmp.path().join("a/b/c")).unwrap();
        let root = pinned(tmp.path());
        let dirs = Dirs::with_capacity(16);
        let c = chain(&root, &["a", "b", "c"]);
        let b = c.parent.clone().unwrap();
        for dir in [b.parent.as_ref().unwrap(), &b, &c] {
            dirs.open(dir).unwrap();
        }
        assert!(matches!(dirs.gone(&c), Gone::No));
        std::fs::remove_dir_all(tmp.path().join("a/b")).unwrap();
        assert!(matches!(dirs.gone(&c), Gone::Now(path) if path == b"a/b"));
        assert!(matches!(dirs.gone(&c), Gone::Known));
        assert!(matches!(dirs.gone(&b), Gone::Known));
        assert!(matches!(dirs.gone(b.parent.as_ref().unwrap()), Gone::No));
    }

    #[test]
    fn a_long_chain_is_dropped_without_recursion() {
        let tmp = tempfile::tempdir().unwrap();
        let mut dir = pinned(tmp.path());
        for _ in 0..200_000 {
            dir = Dir::child(&dir, c"d");
        }
        drop(dir);
    }
}
