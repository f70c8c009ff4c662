//! The sources as named on the command line: looked at, and refused, before any transfer begins.
//!
//! A single directory is sent as its contents, its own attributes included. Several sources, or a single file, go each
//! under its own last name.
//!
//! Symbolic links: a single source is followed, since it is its content that is meant. Among several, a link is sent as
//! a link, unless a final slash says that its directory is meant. Below a source no link is ever followed.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::ahead::Look;
use super::dirs::Dir;
use super::holes::Holes;
use super::large::LargeFile;
use super::meta::{Meta, type_name};
use super::select::{Selection, Wanted};
use super::walk::Root;
use crate::device;
use crate::error::{Error, escape};
use crate::options::Keep;
use crate::wire::Offer;

/// What will be sent, found and readable.
pub struct Tree {
    pub(super) named: Named,
    sources: u32,
    /// Whether chunks come with their lines of a manifest.
    pub(super) record: bool,
    warning: Option<String>,
    /// Which entries are sent.
    pub(super) selection: Arc<Selection>,
    /// What is read of entries beside content, mode, owner and time.
    pub(super) keep: Keep,
    /// How holes are found, if they are looked for.
    pub(super) holes: Option<Holes>,
    /// Whether entries come with the names of their owners and groups.
    pub(super) owner_names: bool,
}

pub(super) enum Named {
    /// A single file.
    File { name: CString, file: LargeFile },
    /// A single block device.
    Device { name: CString, file: LargeFile },
    /// A single FIFO, read like standard input.
    Fifo(PathBuf),
    /// A single directory's contents, or several sources, in the order of their names.
    Roots(Vec<Root>),
}

impl Tree {
    /// Say with each entry what its owner and group are called here.
    pub fn naming_owners(self, owner_names: bool) -> Tree {
        Tree { owner_names, ..self }
    }

    /// Let every chunk come with its [`super::ChunkLines`].
    pub fn recorded(self) -> Tree {
        Tree { record: true, ..self }
    }

    /// What a person should know before it begins.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Send only what `selection` wants. A list of names needs a single directory; a file or FIFO that is named alone
    /// is sent in any case.
    pub fn selected(mut self, selection: Selection) -> Result<Tree, Error> {
        if let Named::Roots(roots) = &mut self.named
            && let [root] = &mut roots[..]
        {
            root.want(&selection.root);
        }
        let is_one_directory = self.sources == 1 && matches!(self.named, Named::Roots(_));
        if !selection.root.is_all() && !is_one_directory {
            let text = "--files-from names what is sent of one directory: SRC must be one, and only one";
            return Err(Error::Usage(text.into()));
        }
        self.selection = Arc::new(selection);
        Ok(self)
    }

    /// Read these beside content, mode, owner and time; all unless told.
    pub fn keeping(self, keep: Keep) -> Tree {
        Tree { keep, ..self }
    }

    /// Look for holes like this, or, with nothing, send them as the zeros that they read as.
    pub fn with_holes(self, holes: Option<Holes>) -> Tree {
        Tree { holes, ..self }
    }

    /// What the receiver is told.
    pub fn offer(&self) -> Offer {
        match &self.named {
            Named::File { name, file } => Offer::File { name: name.as_bytes().to_vec(), size: file.meta().size },
            Named::Device { name, file } => Offer::Device { name: name.as_bytes().to_vec(), size: file.meta().size },
            Named::Fifo(_) => Offer::Stream,
            Named::Roots(_) => Offer::Tree { sources: self.sources },
        }
    }
}

/// Look at every named source. Fails with the first that is not there, cannot be read or cannot be meant.
pub fn open_tree(paths: &[PathBuf]) -> Result<Tree, Error> {
    let named = match paths {
        [] => return Err(Error::Usage("no source is named".into())),
        [path] => open_single(path)?,
        several => Named::Roots(open_several(several)?),
    };
    let sources = u32::try_from(paths.len()).map_err(|_| Error::Usage("too many sources are named".into()))?;
    let warning = match (&named, paths) {
        (Named::Device { .. }, [path]) => mounted(path),
        _ => None,
    };
    Ok(Tree {
        named,
        sources,
        record: false,
        warning,
        selection: Arc::new(Selection::everything()),
        keep: Keep::default(),
        holes: Some(Holes::new(i64::MIN)),
        owner_names: false,
    })
}

fn open_single(path: &Path) -> Result<Named, Error> {
    let stat = rustix::fs::statat(CWD, path, AtFlags::empty()).map_err(|errno| unreadable(path, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let (fd, meta) = open(path, DIRECTORY)?;
            let dir = Dir::pinned(CString::default(), fd, meta.inode);
            Ok(Named::Roots(vec![Root::directory(Dir::nowhere(), CString::default(), dir, meta)]))
        }
        FileType::RegularFile => {
            let (fd, meta) = open(path, FILE)?;
            if meta.file_type != FileType::RegularFile {
                return Err(not_sendable(path, meta.file_type));
            }
            let name = last_name(path)?;
            let file = LargeFile::new(fd, name.as_bytes(), meta);
            Ok(Named::File { name, file })
        }
        FileType::BlockDevice => open_device(path),
        FileType::Fifo => Ok(Named::Fifo(path.to_owned())),
        other => Err(not_sendable(path, other)),
    }
}

fn open_device(path: &Path) -> Result<Named, Error> {
    // Not as a file: without waiting, some drives would be opened without their medium.
    let (fd, meta) = open(path, OFlags::RDONLY.union(OFlags::NOCTTY).union(OFlags::CLOEXEC))?;
    if meta.file_type != FileType::BlockDevice {
        return Err(not_sendable(path, meta.file_type));
    }
    let size = device::len(&fd).map_err(|source| Error::Source { path: path.to_owned(), source })?;
    if size == 0 {
        return Err(Error::Usage(format!("{} is a block device with nothing in it: it has 0 bytes", shown(path))));
    }
    let name = last_name(path)?;
    let file = LargeFile::device(fd, name.as_bytes(), path, meta, size);
    Ok(Named::Device { name, file })
}

/// Why a device may not hold still while it is read.
fn mounted(path: &Path) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    let at = device::mounted_at(stat.st_rdev).into_iter().next()?;
    Some(format!(
        "{} is mounted at '{}': what changes while it is read makes a copy that never was; \
         unmount it, make it read-only (mount -o remount,ro) or send a snapshot",
        shown(path),
        escape(at.as_os_str().as_bytes())
    ))
}

fn open_several(paths: &[PathBuf]) -> Result<Vec<Root>, Error> {
    let mut places: HashMap<PathBuf, Arc<Dir>> = HashMap::new();
    let mut by_name: HashMap<CString, &Path> = HashMap::new();
    let mut roots = Vec::with_capacity(paths.len());
    for path in paths {
        let root = open_one_of_several(path, &mut places)?;
        if let Some(other) = by_name.insert(root.name.clone(), path) {
            return Err(Error::Usage(format!(
                "{} and {} would both be sent as {}: send them one after the other, or the directory that holds them",
                shown(other),
                shown(path),
                escape(root.name.as_bytes())
            )));
        }
        roots.push(root);
    }
    roots.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(roots)
}

fn open_one_of_several(path: &Path, places: &mut HashMap<PathBuf, Arc<Dir>>) -> Result<Root, Error> {
    let follow = path.as_os_str().as_bytes().ends_with(b"/");
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statat(CWD, path, flags).map_err(|errno| unreadable(path, errno))?;
    let name = last_name(path)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let (fd, meta) = open(path, DIRECTORY)?;
            let dir = Dir::pinned(name.clone(), fd, meta.inode);
            return Ok(Root::directory(Dir::nowhere(), name, dir, meta));
        }
        FileType::RegularFile => drop(open(path, FILE)?),
        FileType::Symlink | FileType::Fifo => {}
        other => return Err(not_sendable(path, other)),
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let place = match places.get(parent) {
        Some(place) => place.clone(),
        None => {
            let (fd, meta) = open(parent, OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC))?;
            let place = Dir::pinned(CString::default(), fd, meta.inode);
            places.insert(parent.to_owned(), place.clone());
            place
        }
    };
    let fd = place.pinned_handle().ok_or_else(|| unreadable(path, Errno::NOENT))?;
    let look = Look::of(&stat, &place, &name, &Wanted::ALL, &fd, &mut Vec::new());
    Ok(Root { place, name, look })
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Here links are followed: the path is the user's own word.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

fn open(path: &Path, flags: OFlags) -> Result<(OwnedFd, Meta), Error> {
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty()).and_then(|fd| {
        let meta = Meta::of(&rustix::fs::fstat(&fd)?);
        Ok((fd, meta))
    });
    opened.map_err(|errno| unreadable(path, errno))
}

/// The name a source goes by: its last one, also of `.` and `..`.
fn last_name(path: &Path) -> Result<CString, Error> {
    let resolved;
    let name = match path.file_name() {
        Some(name) => name,
        None => {
            resolved = path.canonicalize().map_err(|source| Error::Source { path: path.to_owned(), source })?;
            resolved.file_name().unwrap_or(OsStr::new(""))
        }
    };
    match CString::new(name.as_bytes()) {
        Ok(name) if !name.is_empty() => Ok(name),
        _ => Err(Error::Usage(format!("{} has no name of its own: send it alone, as its contents", shown(path)))),
    }
}

fn not_sendable(path: &Path, file_type: FileType) -> Error {
    let hint = match file_type {
        FileType::BlockDevice => "; a block device is sent alone",
        FileType::CharacterDevice => ": 'blast send - < DEVICE' reads one as a stream",
        _ => "",
    };
    let what = type_name(file_type);
    Error::Refused(format!(
        "{} is {what}; this version sends files, directories, block devices and streams{hint}",
        shown(path)
    ))
}

fn unreadable(path: &Path, errno: Errno) -> Error {
    Error::Source { path: path.to_owned(), source: errno.into() }
}

fn shown(path: &Path) -> String {
    escape(path.as_os_str().as_bytes())
}
