//! Trees to send, and whether two of them are the same: type, mode, owner, size, content, time of modification to the
//! nanosecond, links' targets, extended attributes and ACLs, and which names share an inode. Sockets are left out,
//! since no transfer carries them.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blast::error::escape;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};

/// Everything about one entry that a transfer must keep.
#[derive(PartialEq, Eq, Debug, Clone)]
pub struct Item {
    pub kind: FileType,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: (i64, u64),
    /// Of a file; 0 for all else.
    pub size: u64,
    /// A file's BLAKE3, a symbolic link's target or a device's numbers.
    pub content: Vec<u8>,
    /// Every extended attribute that may be read, ACLs among them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first name of its inode, if that has several.
    pub same_as: Option<Vec<u8>>,
}

/// A tree's entries by path, the root's own path being empty.
pub type Listing = BTreeMap<Vec<u8>, Item>;

/// List a tree whole, however deep it is.
pub fn list(root: impl AsRef<Path>) -> Listing {
    let mut found = Listing::new();
    let mut inodes = HashMap::new();
    let fd = open_dir(CWD, root.as_ref());
    add(&fd, c".", Vec::new(), &mut found, &mut inodes);
    // The walk met an inode's names in any order: the first is the least of them.
    let mut first: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
    for path in found.keys().filter(|p| inodes.contains_key(*p)) {
        first.entry(inodes[path]).or_insert_with(|| path.clone());
    }
    for (path, item) in &mut found {
        item.same_as = inodes.get(path).map(|inode| first[inode].clone());
    }
    found
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_dir(at: impl AsFd, path: impl rustix::path::Arg) -> OwnedFd {
    rustix::fs::openat(at, path, DIRECTORY, Mode::empty()).expect("a directory that can be read")
}

fn add(
    dir: &OwnedFd,
    name: &std::ffi::CStr,
    path: Vec<u8>,
    found: &mut Listing,
    inodes: &mut HashMap<Vec<u8>, (u64, u64)>,
) {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).expect("an entry that was just listed");
    let kind = FileType::from_raw_mode(stat.st_mode);
    let mut size = 0;
    let content = match kind {
        FileType::Socket => return,
        FileType::RegularFile => {
            size = stat.st_size as u64;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(dir, name, flags, Mode::empty()).expect("a file that can be read");
            digest(File::from(file)).to_vec()
        }
        FileType::CharacterDevice | FileType::BlockDevice => stat.st_rdev.to_le_bytes().to_vec(),
        FileType::Symlink => rustix::fs::readlinkat(dir, name, Vec::new()).expect("a link").into_bytes(),
        _ => Vec::new(),
    };
    if stat.st_nlink > 1 && kind != FileType::Directory {
        inodes.insert(path.clone(), (stat.st_dev, stat.st_ino));
    }
    let item = Item {
        kind,
        mode: stat.st_mode & 0o7777,
        owner: (stat.st_uid, stat.st_gid),
        mtime: (stat.st_mtime, stat.st_mtime_nsec),
        size,
        content,
        xattrs: xattrs(dir, name),
        same_as: None,
    };
    found.insert(path.clone(), item);
    if kind == FileType::Directory {
        let inside = open_dir(dir, name);
        for entry in Dir::read_from(&inside).expect("a directory that can be listed") {
            let entry = entry.expect("a directory that can be listed");
            let name = entry.file_name();
            if name != c"." && name != c".." {
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(name.to_bytes());
                add(&inside, name, below, found, inodes);
            }
        }
    }
}

/// Every extended attribute of a name, which is not followed.
fn xattrs(dir: &OwnedFd, name: &std::ffi::CStr) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name.to_bytes()].concat();
    let mut buf = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(&path[..], &mut buf[..]).unwrap_or(0);
    let names: Vec<Vec<u8>> = buf[..len].split(|b| *b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect();
    let value = |name: &Vec<u8>| {
        let mut buf = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(&path[..], &name[..], &mut buf[..]).expect("an attribute that was listed");
        buf[..len].to_vec()
    };
    names.into_iter().map(|name| (name.clone(), value(&name))).collect()
}

/// A stream's BLAKE3.
pub fn digest(mut from: impl Read) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match from.read(&mut bytes).expect("a stream that can be read") {
            0 => return *hasher.finalize().as_bytes(),
            n => hasher.update(&bytes[..n]),
        };
    }
}

/// What differs, in words.
pub fn differences(is: &Listing, should: &Listing) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, should) in should {
        match is.get(path) {
            None => wrong.push(format!("'{}' is missing", escape(path))),
            Some(is) if is != should => wrong.push(format!("'{}' is {is:?}, should be {should:?}", escape(path))),
            Some(_) => {}
        }
    }
    wrong.extend(is.keys().filter(|p| !should.contains_key(*p)).map(|p| format!("'{}' is too much", escape(p))));
    wrong
}

#[track_caller]
pub fn assert_same(is: impl AsRef<Path>, should: impl AsRef<Path>) {
    assert_listed(&list(is), &list(should));
}

#[track_caller]
pub fn assert_listed(is: &Listing, should: &Listing) {
    let wrong = differences(is, should);
    assert!(wrong.is_empty(), "{} entries differ:\n  {}", wrong.len(), wrong[..wrong.len().min(20)].join("\n  "));
}

/// Bytes that no compressor shrinks, the same for the same seed.
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Bytes that a compressor shrinks, of no short period.
pub fn text_bytes(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 64);
    let mut n = 0u64;
    while bytes.len() < len {
        bytes.extend_from_slice(format!("line {n} of a log that says little, {}\n", n * n % 977).as_bytes());
        n += 1;
    }
    bytes.truncate(len);
    bytes
}

/// Write a file and the directories above it.
pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A small tree of a bit of everything: files of several sizes at the edges of a chunk, directories, links.
pub fn small(root: &Path, seed: u64) {
    for (i, size) in
        [0, 1, 511, 512, 513, 70_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 5].iter().enumerate()
    {
        write(root.join(format!("sizes/{size}")), random_bytes(seed + i as u64, *size));
        write(root.join(format!("sizes/{size}.after")), format!("after {size}"));
    }
    for i in 0..200 {
        write(root.join(format!("many/{}/{i}", i % 7)), format!("{i} of {seed}"));
    }
    fs::create_dir_all(root.join("empty/below")).unwrap();
    std::os::unix::fs::symlink("sizes/1", root.join("link")).unwrap();
    fs::hard_link(root.join("sizes/70000"), root.join("many/hard")).unwrap();
}

/// Sets what a transfer must keep, however odd.
pub struct Set<'a>(pub &'a Path);

impl Set<'_> {
    pub fn path(&self, name: impl AsRef<[u8]>) -> PathBuf {
        self.0.join(std::ffi::OsStr::from_bytes(name.as_ref()))
    }

    pub fn file(&self, name: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        write(&path, content);
        path
    }

    pub fn dir(&self, name: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn symlink(&self, target: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target.as_ref()), &path).unwrap();
        path
    }

    pub fn hard_link(&self, name: impl AsRef<[u8]>, another: impl AsRef<[u8]>) {
        // std's follows no link on Linux, which is what is wanted.
        fs::hard_link(self.path(name), self.path(another)).unwrap();
    }

    /// A device node, as far as this process may make one.
    pub fn device(
        &self,
        name: impl AsRef<[u8]>,
        kind: FileType,
        major: u32,
        minor: u32,
    ) -> rustix::io::Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), device)?;
        Ok(path)
    }

    pub fn fifo(&self, name: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
        path
    }
}

pub fn set_mode(path: impl AsRef<Path>, mode: u32) {
    rustix::fs::chmodat(CWD, path.as_ref(), Mode::from_raw_mode(mode), AtFlags::empty()).unwrap();
}

pub fn set_owner(path: impl AsRef<Path>, uid: u32, gid: u32) {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::fs::chownat(CWD, path.as_ref(), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

pub fn set_xattr(path: impl AsRef<Path>, name: &[u8], value: &[u8]) {
    rustix::fs::lsetxattr(path.as_ref(), name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// Bytes of an ACL as Linux keeps it, of tags, permissions and ids.
pub fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry =
        |(tag, perms, id): &(u16, u16, u32)| [&tag.to_le_bytes()[..], &perms.to_le_bytes(), &id.to_le_bytes()].concat();
    let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
    [&2u32.to_le_bytes()[..], &entries].concat()
}

/// Whether files at `dir` may have such an attribute; says so if not.
pub fn takes_xattr(dir: &Path, name: &str, value: &[u8]) -> bool {
    let probe = tempfile::NamedTempFile::new_in(dir).unwrap();
    let set = rustix::fs::setxattr(probe.path(), name, value, rustix::fs::XattrFlags::empty());
    if let Err(errno) = set {
        eprintln!("SKIPPED: no {name} here: {errno}");
    }
    set.is_ok()
}

pub fn set_mtime(path: impl AsRef<Path>, secs: i64, nanos: u32) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path.as_ref(), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Give every entry a time of its own, directories after what is in them.
pub fn spread_mtimes(root: &Path) {
    let mut n = 0;
    for path in depth_first(root) {
        n += 1;
        set_mtime(path, 981_173_106 + n * 86_399, (n as u32).wrapping_mul(123_456_789) % 1_000_000_000);
    }
}

/// Every path below and including `root`, children before parents. No deeper than a path can be long.
pub fn depth_first(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        found.push(path);
    }
    found.reverse();
    found
}
