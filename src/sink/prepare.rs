//! Looks at the destination before anybody connects, and creates nothing: what it is, whether it may be filled, and
//! what the sender should send for it.
//!
//! | offered \ destination | directory | file | block device | `-` |
//! |---|---|---|---|---|
//! | tree | its entries | one archive | refused | one archive |
//! | one file | an entry | its bytes | its bytes | its bytes |
//! | block device | refused | its bytes | its bytes | its bytes |
//! | standard input | what it is an archive of | its bytes | its bytes | its bytes |
//!
//! A command that takes what comes is given what `-` would be. A device must be had alone, and have room for what is
//! offered as far as that is known. A destination that does not exist becomes a directory for a tree, a file for the
//! rest, and always a directory if it ends in a slash. Nothing is ever replaced: a directory must hold nothing but
//! empty directories, mount points and `lost+found`, a file must be empty.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};

use super::attributes::Policy;
use super::confine::{Confinement, Leave, confine};
use super::consumer::Consumer;
use super::disk::Disk;
use super::jail::{Before, Identity, Jail};
use super::output::Output;
use super::owners::OwnerMap;
use super::raw::Wish;
use super::shared::{Sharing, sharing};
use super::space::shortage;
use super::{OnError, Recorder, Shared, Sink, foreign, raw, unpack};
use crate::child::Child;
use crate::error::{Error, escape};
use crate::options::{Allow, Destination, Keep, Owners};
use crate::stats::Stats;
use crate::wire::{Layout, Offer};

/// A destination that can be used, as far as can be seen without touching it.
pub struct Prepared {
    target: Target,
    /// As given, escaped.
    shown: String,
    /// Whether zeros need not be written.
    sparse: bool,
    recorder: Option<Arc<Recorder>>,
    policy: Policy,
    /// Whether it is read back in the end.
    readable: bool,
    owners: Option<OwnerMap>,
    confinement: Option<Confinement>,
}

/// Where what was received can be read back.
pub enum Readable {
    /// Files, by the recorder's paths below this directory.
    Below(OwnedFd),
    /// A block device, from its first byte on.
    Device(OwnedFd),
}

enum Target {
    Stdout(OwnedFd),
    Directory {
        fd: OwnedFd,
        before: HashMap<Identity, Before>,
    },
    /// An empty file: its directory, its name, and what it is.
    File {
        parent: OwnedFd,
        name: Vec<u8>,
        empty: fs::Metadata,
    },
    Missing {
        parent: OwnedFd,
        name: Vec<u8>,
        directory: bool,
    },
    Device(Disk),
    /// Not started yet.
    Command(OsString),
}

impl Prepared {
    /// Look at the destination. Refused if it holds anything; an error names what is not there.
    pub fn new(destination: &Destination) -> Result<Prepared, Error> {
        let path = match destination {
            Destination::Stdout => {
                let stdout = rustix::stdio::stdout();
                if rustix::termios::isatty(stdout) {
                    let text = "standard output is a terminal: send it to a pipe or a file, or name a destination";
                    return Err(Error::Usage(text.into()));
                }
                if was_closed(stdout) {
                    return Err(Error::Usage("standard output is closed: everything would be lost".into()));
                }
                let fd = rustix::io::fcntl_dupfd_cloexec(stdout, 0);
                return Ok(Prepared::onto(fd.map_err(|e| failed("cannot use standard output", e))?));
            }
            Destination::Run(command) => {
                let shown = format!("the command '{}'", escape(command.as_bytes()));
                let target = Target::Command(command.clone());
                return Ok(Prepared::of(target, shown));
            }
            Destination::Path(path) => path,
        };
        let shown = escape(path.as_os_str().as_bytes());
        let target = match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => existing_directory(path, &shown)?,
            Ok(meta) if meta.is_file() => existing_file(path, meta, &shown)?,
            Ok(meta) if meta.file_type().is_block_device() => Target::Device(Disk::open(path, &shown)?),
            Ok(meta) => return Err(Error::Refused(other_kind(&shown, &meta))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => missing(path, &shown)?,
            Err(e) => return Err(Error::Usage(format!("cannot use '{shown}': {e}"))),
        };
        Ok(Prepared::of(target, shown))
    }

    fn of(target: Target, shown: String) -> Prepared {
        let policy = Policy::default();
        Prepared {
            target,
            shown,
            sparse: false,
            recorder: None,
            policy,
            owners: None,
            readable: false,
            confinement: None,
        }
    }

    /// Deliver to an open descriptor as to standard output.
    pub(crate) fn onto(fd: OwnedFd) -> Prepared {
        let shown = "standard output".into();
        Prepared::of(Target::Stdout(fd), shown)
    }

    /// Do not write zeros: a file gets holes in their place, and a device zeroes itself there, if it can.
    pub fn sparse(self, sparse: bool) -> Prepared {
        Prepared { sparse, ..self }
    }

    /// In words, if what is offered is known to have no room here. It may yet get some, or shrink on a file system that
    /// compresses.
    pub fn shortage(&self, offer: &Offer) -> Option<String> {
        let (Target::File { parent, .. } | Target::Missing { parent, .. }) = &self.target else { return None };
        let lack = shortage(parent, size_of(offer).filter(|_| !self.sparse)?)?;
        Some(format!("there may be too little room for '{}': {lack}", self.shown))
    }

    /// Let `recorder` write down what is received.
    pub fn recorded(self, recorder: Arc<Recorder>) -> Prepared {
        Prepared { recorder: Some(recorder), ..self }
    }

    /// Set these beside content, mode, owner and time; all unless told.
    pub fn keeping(self, keep: Keep) -> Prepared {
        Prepared { policy: Policy { keep, ..self.policy }, ..self }
    }

    /// Let these pass; nothing that lends rights unless told. `trusted`: the sender has proved who it is.
    pub fn allowing(self, allow: Allow, trusted: bool) -> Prepared {
        let allow = if trusted { allow.to_a_known_sender() } else { allow };
        Prepared { policy: Policy { allow, ..self.policy }, ..self }
    }

    /// Keep what it takes to read back what is received, once all of it is written.
    ///
    /// # Errors
    /// It goes where nobody can read it again.
    pub fn read_back(self) -> Result<Prepared, Error> {
        match self.target {
            Target::Stdout(_) | Target::Command(_) => Err(Error::Usage(format!(
                "what goes to {} cannot be read back by --verify: name a directory, file or block device",
                self.shown
            ))),
            _ => Ok(Prepared { readable: true, ..self }),
        }
    }

    /// A directory on what is probably the destination's file system.
    pub fn beside(&self) -> Option<BorrowedFd<'_>> {
        match &self.target {
            Target::Directory { fd, .. } => Some(fd.as_fd()),
            Target::File { parent, .. } | Target::Missing { parent, .. } => Some(parent.as_fd()),
            Target::Stdout(_) | Target::Device(_) | Target::Command(_) => None,
        }
    }

    /// Give what arrives to others than the sender's numbers say. Looks for names on this machine, so before
    /// [`Prepared::confined`] counts.
    ///
    /// # Errors
    /// A map names somebody whom nobody is here, or nothing will be unpacked that it could be for.
    pub fn mapping(self, owners: &Owners) -> Result<Prepared, Error> {
        let prepared = Prepared { owners: OwnerMap::new(owners)?, ..self };
        match prepared.target {
            Target::Directory { .. } | Target::Missing { .. } => Ok(prepared),
            _ => prepared.without_rules().map_err(Error::Usage).map(|()| prepared),
        }
    }

    /// Why nothing can come of it if there are rules for owners, although nothing will be unpacked.
    fn without_rules(&self) -> Result<(), String> {
        if !self.owners.as_ref().is_some_and(OwnerMap::has_rules) {
            return Ok(());
        }
        let text = "--owner-map and --group-map are for what is unpacked, and nothing is unpacked into";
        Err(format!("{text} {}: name a directory", self.shown))
    }

    /// Before the first thread starts, hold this thread and all that it starts to the destination, and to the files in
    /// the directories `also`. `tell` hears whether the system could do that; if not, all goes on as it would have.
    pub fn confined(self, also: Vec<OwnedFd>, tell: impl FnOnce(Result<(), String>) + Send + 'static) -> Prepared {
        Prepared { confinement: Some(Confinement { also, tell: Box::new(tell) }), ..self }
    }

    /// Who else can write to the destination, or to a directory above it.
    pub fn sharing(&self) -> Vec<Sharing> {
        match &self.target {
            // A device that is open stays what it is, whatever becomes of its name.
            Target::Stdout(_) | Target::Device(_) | Target::Command(_) => Vec::new(),
            Target::Directory { fd, .. } => sharing(fd.as_fd()),
            Target::File { parent, .. } | Target::Missing { parent, .. } => sharing(parent.as_fd()),
        }
    }

    /// What the sender should send, or why nothing can come of it.
    pub fn layout(&self, offer: &Offer) -> Result<Layout, Error> {
        let directory = self.becomes_directory(offer);
        if let Target::Device(disk) = &self.target {
            return fits(offer, disk.size(), &self.shown);
        }
        if directory && self.sparse {
            return Err(Error::Refused(format!(
                "--sparse is for one file or a block device, and '{}' is to be a directory, in which files have the \
                 holes that they had",
                self.shown
            )));
        }
        if !directory {
            self.without_rules().map_err(Error::Refused)?;
        }
        match offer {
            Offer::Device { name, .. } if directory => Err(Error::Refused(format!(
                "'{}' is a directory, and a block device's content is one file: name the file, as {}",
                self.shown,
                self.inside(name),
            ))),
            Offer::Tree { .. } => Ok(Layout::Archive),
            Offer::File { .. } if directory => Ok(Layout::Archive),
            Offer::File { .. } | Offer::Device { .. } | Offer::Stream | Offer::Measure => Ok(Layout::Raw),
        }
    }

    /// A file of that name in the destination, escaped.
    fn inside(&self, name: &[u8]) -> String {
        format!("'{}/{}'", self.shown.trim_end_matches('/'), escape(name))
    }

    /// Create what is missing and begin. `workers` write at once into a directory; `on_error` is called at once if the
    /// whole sink fails.
    pub fn open(
        self,
        offer: &Offer,
        stats: Arc<Stats>,
        workers: usize,
        on_error: impl Fn(Error) + Send + Sync + 'static,
    ) -> Result<Sink, Error> {
        let layout = self.layout(offer)?;
        let directory = self.becomes_directory(offer);
        let wish = Wish { needed: size_of(offer).filter(|_| layout == Layout::Raw), sparse: self.sparse };
        let on_error: OnError = Box::new(on_error);
        let shared = Shared::new(self.shown, self.policy, self.owners, stats, on_error, self.recorder);
        // Before this thread is confined and signals are ignored, which the command would inherit.
        let command = match &self.target {
            Target::Command(command) => Some(Child::consumer(command).map_err(|source| Error::Destination {
                what: format!("cannot start {}", shared.destination),
                source,
            })?),
            _ => None,
        };
        crate::sys::ignore_file_size_signal();
        let confine = |leave: &[(BorrowedFd<'_>, Leave)]| {
            if let Some(Confinement { also, tell }) = self.confinement {
                let also = also.iter().map(|fd| (fd.as_fd(), Leave::Files));
                tell(confine(&leave.iter().copied().chain(also).collect::<Vec<_>>()));
            }
        };
        let mut readable = match &self.target {
            _ if !self.readable => None,
            Target::Directory { fd: place, .. } | Target::File { parent: place, .. } => Some(below(place)?),
            Target::Missing { parent, .. } if !directory => Some(below(parent)?),
            Target::Device(disk) => Some(Readable::Device(disk.reopen().map_err(cannot_read_back)?)),
            Target::Missing { .. } | Target::Stdout(_) | Target::Command(_) => None,
        };
        let mut sink = match self.target {
            Target::Stdout(fd) => {
                let output = Output::new(fd);
                confine(&[]);
                Sink::start(shared, move |inlet, shared| raw::run(inlet, output, None, layout, shared))
            }
            Target::File { parent, name, empty } => {
                let file = raw::File::create(parent, name.clone(), Some(empty), wish, &shared)?;
                confine(&[(file.parent(), Leave::Names)]);
                Sink::start(shared, move |inlet, shared| raw::run(inlet, file, Some(name), layout, shared))
            }
            Target::Command(_) => {
                let command = command.expect("it was started above");
                let child = command.0.clone();
                let consumer = Consumer::new(command);
                confine(&[]);
                let start = move |inlet, shared: &Arc<Shared>| raw::run(inlet, consumer, None, layout, shared);
                let mut sink = Sink::start(shared, start)?;
                sink.command = Some(child);
                Ok(sink)
            }
            Target::Device(disk) => {
                let disk = disk.zeroing(wish.sparse);
                confine(&[]);
                Sink::start(shared, move |inlet, shared| raw::run(inlet, disk, None, layout, shared))
            }
            Target::Missing { parent, name, .. } if !directory => {
                let file = raw::File::create(parent, name.clone(), None, wish, &shared)?;
                confine(&[(file.parent(), Leave::Names)]);
                Sink::start(shared, move |inlet, shared| raw::run(inlet, file, Some(name), layout, shared))
            }
            Target::Missing { parent, name, .. } => {
                let root = make_root(&parent, &name)
                    .map_err(|e| failed(&format!("cannot create '{}'", shared.destination), e))?;
                if self.readable {
                    readable = Some(below(&root)?);
                }
                confine(&[(root.as_fd(), Leave::All), (parent.as_fd(), Leave::EmptyDirectories)]);
                let foreign = *offer == Offer::Stream;
                open_tree(root, Some((parent, name)), HashMap::new(), (!foreign).then_some(workers), shared)
            }
            Target::Directory { fd, before } => {
                confine(&[(fd.as_fd(), Leave::All)]);
                open_tree(fd, None, before, (*offer != Offer::Stream).then_some(workers), shared)
            }
        }?;
        sink.readable = readable;
        Ok(sink)
    }

    fn becomes_directory(&self, offer: &Offer) -> bool {
        match &self.target {
            Target::Stdout(_) | Target::File { .. } | Target::Device(_) | Target::Command(_) => false,
            Target::Directory { .. } => true,
            Target::Missing { directory, .. } => *directory || matches!(offer, Offer::Tree { .. }),
        }
    }
}

/// Bytes of the one thing that is offered, if they are known.
fn size_of(offer: &Offer) -> Option<u64> {
    match offer {
        Offer::File { size, .. } | Offer::Device { size, .. } => Some(*size),
        Offer::Tree { .. } | Offer::Stream | Offer::Measure => None,
    }
}

/// Whether what is offered has room on a device of `size` bytes, as far as it is known.
fn fits(offer: &Offer, size: u64, shown: &str) -> Result<Layout, Error> {
    match offer {
        Offer::Tree { .. } => Err(Error::Refused(format!(
            "'{shown}' is a block device, and directories or several sources are no device's content: \
             name a directory, or a file for an archive"
        ))),
        Offer::File { name, size: needed } | Offer::Device { name, size: needed } if *needed > size => {
            Err(Error::Refused(format!(
                "'{shown}' is too small: '{}' has {needed} bytes, the device {size}; nothing was written",
                escape(name)
            )))
        }
        Offer::File { .. } | Offer::Device { .. } | Offer::Stream | Offer::Measure => Ok(Layout::Raw),
    }
}

fn failed(what: &str, errno: rustix::io::Errno) -> Error {
    Error::Destination { what: what.into(), source: errno.into() }
}

/// What is received below a directory, to be read back.
fn below(place: &OwnedFd) -> Result<Readable, Error> {
    place.try_clone().map(Readable::Below).map_err(cannot_read_back)
}

fn cannot_read_back(source: io::Error) -> Error {
    Error::Destination { what: "cannot open the destination to read it back".into(), source }
}

/// Without workers, what comes is the archive of another program.
fn open_tree(
    root: OwnedFd,
    made: Option<(OwnedFd, Vec<u8>)>,
    before: HashMap<Identity, Before>,
    workers: Option<usize>,
    shared: Arc<Shared>,
) -> Result<Sink, Error> {
    let jail = Jail::new(root, made.is_some(), before, &shared);
    let jail = jail.map_err(|e| failed(&format!("cannot use '{}'", shared.destination), e))?;
    Sink::start(shared, move |inlet, shared| {
        let end = match workers {
            Some(workers) => unpack::run(inlet, jail, workers, shared),
            None => foreign::run(inlet, jail, shared),
        };
        if let (Err(_), Some((parent, name))) = (&end, &made) {
            // What we have made goes again if nothing came into it; if something did, this fails and it stays.
            let _ = rustix::fs::unlinkat(parent, name.as_slice(), AtFlags::REMOVEDIR);
        }
        end
    })
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn make_root(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, rustix::io::Errno> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    rustix::fs::openat(parent, name, DIRECTORY.union(OFlags::NOFOLLOW), Mode::empty())
}

/// Whether standard output was closed when the process began: the standard library then opens `/dev/null` in its place,
/// for reading and writing, which a shell's redirection to it does not.
fn was_closed(stdout: impl AsFd + Copy) -> bool {
    let is_null =
        rustix::fs::fstat(stdout).is_ok_and(|s| (rustix::fs::major(s.st_rdev), rustix::fs::minor(s.st_rdev)) == (1, 3));
    is_null && rustix::fs::fcntl_getfl(stdout).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}

fn existing_directory(path: &Path, shown: &str) -> Result<Target, Error> {
    let unusable = |errno| failed(&format!("cannot write into '{shown}'"), errno);
    let fd = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty()).map_err(unusable)?;
    let before = look_inside(&fd, path, shown)?;
    may_write(&fd).map_err(unusable)?;
    Ok(Target::Directory { fd, before })
}

fn may_write(dir: impl AsFd) -> Result<(), rustix::io::Errno> {
    rustix::fs::accessat(dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
}

/// Everything below the root, which must be nothing but empty directories and what is not ours to judge.
fn look_inside(root: &OwnedFd, path: &Path, shown: &str) -> Result<HashMap<Identity, Before>, Error> {
    let mut before = HashMap::new();
    let mut found = Vec::new();
    // Paths below the root, to be listed.
    let mut to_list = vec![PathBuf::new()];
    while let Some(below) = to_list.pop() {
        let cannot = |e: io::Error| {
            let below = escape(path.join(&below).as_os_str().as_bytes());
            Error::Refused(format!("cannot see whether '{below}' is empty: {e}"))
        };
        for entry in fs::read_dir(path.join(&below)).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let inner = below.join(entry.file_name());
            if !entry.file_type().map_err(cannot)?.is_dir() {
                found.push(escape(inner.as_os_str().as_bytes()));
                if found.len() > 2 {
                    return Err(not_empty(shown, &found));
                }
                continue;
            }
            let meta = entry.metadata().map_err(cannot)?;
            let lost_found = below == Path::new("") && entry.file_name() == OsStr::new("lost+found");
            let foreign = lost_found || is_mount_point(root, &inner) || !same_device(root, &meta);
            let kind = if foreign { Before::Foreign } else { Before::Empty };
            before.insert((meta.dev(), meta.ino()), kind);
            if !foreign {
                to_list.push(inner);
            }
        }
    }
    if found.is_empty() { Ok(before) } else { Err(not_empty(shown, &found)) }
}

fn same_device(root: &OwnedFd, meta: &fs::Metadata) -> bool {
    rustix::fs::fstat(root).is_ok_and(|stat| stat.st_dev == meta.dev())
}

/// A bind mount may have its surroundings' device.
fn is_mount_point(root: &OwnedFd, below: &Path) -> bool {
    let statx = rustix::fs::statx(root, below, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    statx.is_ok_and(|statx| statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn not_empty(shown: &str, found: &[String]) -> Error {
    let named: Vec<String> = found.iter().take(2).map(|name| format!("'{name}'")).collect();
    let more = if found.len() > 2 { " and more" } else { "" };
    Error::Refused(format!(
        "'{shown}' is not empty, and nothing in it would be replaced: it holds {}{more}; \
         name an empty directory, or one that does not exist yet",
        named.join(", ")
    ))
}

fn existing_file(path: &Path, meta: fs::Metadata, shown: &str) -> Result<Target, Error> {
    if meta.len() > 0 {
        return Err(Error::Refused(format!(
            "'{shown}' exists and holds {} bytes, and nothing is replaced: remove it, or name another",
            meta.len()
        )));
    }
    // Through a link to the file itself, since it is the file's own name that will be given to what was received.
    let real = fs::canonicalize(path).map_err(|e| Error::Usage(format!("cannot use '{shown}': {e}")))?;
    let (parent, name) = parent_of(&real, shown)?;
    Ok(Target::File { parent, name, empty: meta })
}

fn missing(path: &Path, shown: &str) -> Result<Target, Error> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(Error::Refused(format!("'{shown}' is a symbolic link to nothing: name what it should point to")));
    }
    let (parent, name) = parent_of(path, shown)?;
    Ok(Target::Missing { parent, name, directory: path.as_os_str().as_bytes().ends_with(b"/") })
}

/// The directory that a path is in, which must be there and take new names, and the last name.
fn parent_of(path: &Path, shown: &str) -> Result<(OwnedFd, Vec<u8>), Error> {
    let Some(name) = path.file_name() else {
        return Err(Error::Usage(format!("'{shown}' does not exist and is no name for something new")));
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent_shown = escape(parent.as_os_str().as_bytes());
    let fd = rustix::fs::openat(CWD, parent, DIRECTORY, Mode::empty()).map_err(|errno| {
        let cause = io::Error::from(errno);
        Error::Usage(format!("cannot create '{shown}': its directory '{parent_shown}' cannot be used: {cause}"))
    })?;
    may_write(&fd).map_err(|errno| failed(&format!("cannot create anything in '{parent_shown}'"), errno))?;
    Ok((fd, name.as_bytes().to_vec()))
}

fn other_kind(shown: &str, meta: &fs::Metadata) -> String {
    let kind = meta.file_type();
    let what = if kind.is_char_device() {
        "a character device"
    } else if kind.is_fifo() {
        "a FIFO"
    } else {
        "a socket"
    };
    format!("'{shown}' is {what}: use 'recv -' and redirect its output")
}
