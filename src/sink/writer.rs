//! Write jobs to disk: the parallel step. For a small file that is open, write, (owner, attributes, mode, ACL), times,
//! close.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::attributes::{Already, Attributes, Object, apply};
use super::jail::{Handle, Place, last_name};
use super::spread::Spread;
use super::unpack::Part;
use super::{Shared, Stopped, record};
use crate::archive::{Entry, EntryKind, SparseMap};
use crate::chunk::{Chunk, FileDigest};
use crate::ids::Digest;
use crate::queue::Taker;
use crate::report::NoteKind;
use crate::stats::{Lap, Stage};

/// What a writer is given.
pub(super) enum Work {
    /// Entries of one chunk.
    Batch { chunk: Arc<Chunk>, jobs: Vec<Job> },
    /// The next slice of the large file that was begun last.
    Slice(Chunk),
    /// The next data of the sparse file that was begun last.
    Data { chunk: Arc<Chunk>, part: Part },
}

/// One entry to be created; never a directory.
pub(super) struct Job {
    pub place: Place,
    pub entry: Entry,
    pub what: What,
    /// Its place in the manifest, if there is one.
    pub line: Option<record::Place>,
}

/// Where its content comes from.
pub(super) enum What {
    /// From the same chunk.
    Whole { content: Part },
    /// From the chunks that follow.
    Large { size: u64 },
    /// From the same chunk, and only what is between the holes.
    Packed { map: Arc<SparseMap>, content: Part },
    /// From the chunks that follow, and only what is between the holes.
    Sparse { map: Arc<SparseMap> },
    /// From another name; its directory.
    Link { from: Arc<Handle> },
}

/// A large file that is being written.
struct Large {
    job: Job,
    size: u64,
    written: u64,
    /// Of what is written, from the slices' digests; only for a manifest.
    digest: FileDigest,
    /// Where its data goes, if it has holes.
    spread: Option<Spread>,
    /// The file under its temporary name; `None` if it could not be created, and its slices are skipped.
    open: Option<(OwnedFd, String)>,
}

/// Names that no peer can guess and nobody else uses.
pub(super) struct TempNames {
    secret: u64,
    next: AtomicU64,
}

impl TempNames {
    pub fn new() -> TempNames {
        // The standard library's hasher is seeded by the system for just this: to be unpredictable.
        TempNames { secret: RandomState::new().hash_one(std::process::id()), next: AtomicU64::new(0) }
    }

    /// Create a file under such a name.
    pub fn create(&self, dir: impl AsFd) -> Result<(OwnedFd, String), Errno> {
        let mut name = String::new();
        let number = self.next.fetch_add(1, Relaxed);
        write!(name, ".blast-{:016x}-{number}", self.secret).expect("a string takes everything");
        let fd = rustix::fs::openat(dir, name.as_str(), CREATE, Mode::RUSR | Mode::WUSR)?;
        Ok((fd, name))
    }
}

/// Never opens what exists, never follows.
const CREATE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Work until there is no more. After a failure what is queued is dropped, and what has a temporary name removed.
pub(super) fn run(queue: Taker<Work>, shared: &Shared, temp_names: &TempNames) {
    let mut writer = Writer::new(shared, temp_names);
    let (mut lap, watch) = (Lap::start(), shared.stats.watch(Stage::Write));
    for work in queue {
        lap.book(&watch.wait_in);
        if shared.stopping() {
            continue;
        }
        let done = match work {
            Work::Batch { chunk, jobs } => jobs.into_iter().try_for_each(|job| writer.job(job, &chunk)),
            Work::Slice(chunk) => writer.slice(&chunk),
            Work::Data { chunk, part } => writer.data(&chunk.content()[part]),
        };
        lap.book(&watch.busy);
        if let Err(Stopped) = done {
            continue;
        }
    }
}

pub(super) struct Writer<'a> {
    shared: &'a Shared,
    temp_names: &'a TempNames,
    large: Option<Large>,
}

impl Large {
    /// It cannot be had. Told before it is removed: the words say how much room there was.
    fn lose(&mut self, errno: Errno, shared: &Shared) -> Result<(), Stopped> {
        let told = shared.entry_failed(&self.job.entry.path, errno, &self.job.place.handle);
        if let Some((_, name)) = self.open.take() {
            remove(&self.job.place.handle, name.as_bytes());
        }
        told
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if let Some(Large { job, open: Some((_, name)), .. }) = self.large.take() {
            remove(&job.place.handle, name.as_bytes());
        }
    }
}

impl<'a> Writer<'a> {
    pub fn new(shared: &'a Shared, temp_names: &'a TempNames) -> Writer<'a> {
        Writer { shared, temp_names, large: None }
    }

    fn job(&mut self, mut job: Job, chunk: &Chunk) -> Result<(), Stopped> {
        if self.shared.stopping() {
            return Err(Stopped);
        }
        match &job.what {
            What::Large { size } => {
                let size = *size;
                return self.begin(job, size, None);
            }
            What::Sparse { map } => {
                let (size, spread) = (map.data_len(), Spread::new(map.clone(), job.line.is_some()));
                return self.begin(job, size, Some(spread));
            }
            What::Whole { .. } | What::Packed { .. } | What::Link { .. } => {}
        }
        if self.withholds(&job) {
            return Ok(());
        }
        let content = match &job.what {
            What::Whole { content } | What::Packed { content, .. } => &chunk.content()[content.clone()],
            What::Large { .. } | What::Sparse { .. } | What::Link { .. } => &[],
        };
        let made = self.make(&job, content);
        match made {
            Ok(()) => {
                self.shared.entry_done();
                if let Some(line) = job.line.take() {
                    write_down(line, &job, content);
                }
                Ok(())
            }
            Err(errno) => self.shared.entry_failed(&job.entry.path, errno, &job.place.handle),
        }
    }

    /// Whether it lends rights that were not given, which is told.
    pub fn withholds(&self, job: &Job) -> bool {
        let withheld = matches!(job.entry.kind, EntryKind::Device { .. }) && !self.shared.policy.allow.devices;
        if withheld {
            let text = "a device needs --allow devices on the receiver; left out";
            self.shared.note(NoteKind::Withheld, job.entry.path.clone(), text);
        }
        withheld
    }

    /// Create one entry with all that it has; a file with this content.
    pub fn make(&self, job: &Job, content: &[u8]) -> Result<(), Errno> {
        match (&job.what, &job.entry.kind) {
            (What::Whole { .. }, EntryKind::File { .. }) => self.file(job, content),
            (What::Packed { map, .. }, EntryKind::Sparse { .. }) => self.packed(job, map, content),
            (What::Link { from }, EntryKind::Hardlink { target }) => link(from, target, job),
            (_, EntryKind::Symlink { target }) => self.symlink(job, target),
            (_, EntryKind::Fifo) => self.fifo(job),
            (_, EntryKind::Device { block, major, minor }) => self.device(job, *block, (*major, *minor)),
            (
                _,
                EntryKind::File { .. } | EntryKind::Sparse { .. } | EntryKind::Directory | EntryKind::Hardlink { .. },
            ) => {
                unreachable!("unpack makes no such job")
            }
        }
    }

    /// A whole small file.
    fn file(&self, job: &Job, content: &[u8]) -> Result<(), Errno> {
        self.filled(job, content.len(), |fd| write_at(fd, content, 0))
    }

    /// A whole file with holes, whose data is in one chunk.
    fn packed(&self, job: &Job, map: &Arc<SparseMap>, content: &[u8]) -> Result<(), Errno> {
        self.filled(job, content.len(), |fd| {
            rustix::fs::ftruncate(fd, map.size())?;
            Spread::new(map.clone(), false).write(fd, content)
        })
    }

    /// A file that `fill` writes at once, `len` bytes. One that cannot be written whole does not stay.
    fn filled(&self, job: &Job, len: usize, fill: impl FnOnce(&OwnedFd) -> Result<(), Errno>) -> Result<(), Errno> {
        let wanted = Attributes::from(&job.entry);
        let already = job.place.handle.already(&wanted, &self.shared.who);
        let (dir, name) = (job.place.handle.fd(), last_name(&job.entry.path));
        let fd = rustix::fs::openat(dir, name, CREATE, creation_mode(&wanted, already))?;
        if let Err(errno) = fill(&fd) {
            remove(&job.place.handle, name);
            return Err(errno);
        }
        apply(Object::File(fd.as_fd()), &wanted, already, self.shared, || job.entry.path.clone());
        self.sync(&fd)?;
        self.shared.content_done(len);
        Ok(())
    }

    /// Where the sync at the end would hide what went wrong.
    pub fn sync(&self, fd: &OwnedFd) -> Result<(), Errno> {
        if self.shared.sync_each_file { rustix::fs::fdatasync(fd) } else { Ok(()) }
    }

    fn symlink(&self, job: &Job, target: &[u8]) -> Result<(), Errno> {
        let wanted = Attributes::from(&job.entry);
        let already = Already { mode: true, ..job.place.handle.already(&wanted, &self.shared.who) };
        let (dir, name) = (job.place.handle.fd(), last_name(&job.entry.path));
        rustix::fs::symlinkat(target, dir, name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        expect_ours(&fd, FileType::Symlink)?;
        apply(Object::Symlink(fd.as_fd()), &wanted, already, self.shared, || job.entry.path.clone());
        Ok(())
    }

    /// A FIFO is opened to be finished, which disturbs nobody: for reading, without waiting, and only if it is one.
    fn fifo(&self, job: &Job) -> Result<(), Errno> {
        let wanted = Attributes::from(&job.entry);
        let (dir, name) = (job.place.handle.fd(), last_name(&job.entry.path));
        rustix::fs::mknodat(dir, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        expect_ours(&fd, FileType::Fifo)?;
        let already = Already { owner: false, mode: false, ..job.place.handle.already(&wanted, &self.shared.who) };
        apply(Object::File(fd.as_fd()), &wanted, already, self.shared, || job.entry.path.clone());
        Ok(())
    }

    /// A device is never opened: that could rewind a tape. What is made is held as a place.
    fn device(&self, job: &Job, block: bool, (major, minor): (u32, u32)) -> Result<(), Errno> {
        let wanted = Attributes::from(&job.entry);
        let (dir, name) = (job.place.handle.fd(), last_name(&job.entry.path));
        let file_type = if block { FileType::BlockDevice } else { FileType::CharacterDevice };
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(dir, name, file_type, Mode::RUSR | Mode::WUSR, device)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        expect_ours(&fd, file_type)?;
        let already = Already { owner: false, mode: false, ..job.place.handle.already(&wanted, &self.shared.who) };
        apply(Object::Device(fd.as_fd()), &wanted, already, self.shared, || job.entry.path.clone());
        Ok(())
    }

    /// Create a large file under a temporary name. One with holes is one hole at first; `size` counts what will be
    /// written.
    fn begin(&mut self, job: Job, size: u64, spread: Option<Spread>) -> Result<(), Stopped> {
        let open = self.temp_names.create(job.place.handle.fd()).and_then(|(fd, name)| {
            let Some(spread) = &spread else { return Ok((fd, name)) };
            rustix::fs::ftruncate(&fd, spread.map.size())
                .inspect_err(|_| remove(&job.place.handle, name.as_bytes()))?;
            Ok((fd, name))
        });
        let open = match open {
            Ok(open) => Some(open),
            Err(errno) => {
                self.shared.entry_failed(&job.entry.path, errno, &job.place.handle)?;
                None
            }
        };
        self.large = Some(Large { job, size, written: 0, digest: FileDigest::new(), spread, open });
        // All of it may be one hole.
        if size == 0 { self.end() } else { Ok(()) }
    }

    /// Data of a sparse file.
    fn data(&mut self, content: &[u8]) -> Result<(), Stopped> {
        let large = self.large.as_mut().expect("data follows its file's beginning");
        let spread = large.spread.as_mut().expect("only a sparse file's data comes so");
        if let Some((fd, _)) = &large.open {
            match spread.write(fd, content) {
                Ok(()) => self.shared.content_done(content.len()),
                Err(errno) => large.lose(errno, self.shared)?,
            }
        }
        self.went_on(content.len())
    }

    fn slice(&mut self, chunk: &Chunk) -> Result<(), Stopped> {
        let large = self.large.as_mut().expect("a slice follows its file's beginning");
        let content = chunk.content();
        if let Some((fd, _)) = &large.open {
            match write_at(fd, content, large.written) {
                Ok(()) => {
                    self.shared.content_done(content.len());
                    if large.job.line.is_some() {
                        let pushed = large.digest.push(chunk.kind, chunk.len, chunk.digest);
                        pushed.expect("unpack lets only the next slice through");
                    }
                }
                Err(errno) => large.lose(errno, self.shared)?,
            }
        }
        self.went_on(content.len())
    }

    /// So much of the large file has come, written or not.
    fn went_on(&mut self, len: usize) -> Result<(), Stopped> {
        let large = self.large.as_mut().expect("something of it came");
        large.written += len as u64;
        if large.written == large.size { self.end() } else { Ok(()) }
    }

    /// All of a large file is written: its attributes, then its name.
    fn end(&mut self) -> Result<(), Stopped> {
        let Some(Large { mut job, digest, spread, open: Some((fd, temp_name)), .. }) = self.large.take() else {
            return Ok(());
        };
        let wanted = Attributes::from(&job.entry);
        let already = Already { mode: false, ..job.place.handle.already(&wanted, &self.shared.who) };
        apply(Object::File(fd.as_fd()), &wanted, already, self.shared, || job.entry.path.clone());
        let name = last_name(&job.entry.path);
        let named = self.sync(&fd).and_then(|()| name_file(job.place.handle.fd(), temp_name.as_bytes(), name));
        match named {
            Ok(()) => {
                self.shared.entry_done();
                if let Some(line) = job.line.take()
                    && let Some(digest) = spread.map_or_else(|| digest.finish(), Spread::digest)
                {
                    line.file(digest, &job.entry.path);
                }
                Ok(())
            }
            Err(errno) => {
                remove(&job.place.handle, temp_name.as_bytes());
                self.shared.entry_failed(&job.entry.path, errno, &job.place.handle)
            }
        }
    }
}

/// A file is whole, or has one more name: its line. The content is still in the cache.
pub(super) fn write_down(line: record::Place, job: &Job, content: &[u8]) {
    match (&job.what, &job.entry.kind) {
        (What::Whole { .. }, EntryKind::File { .. }) => {
            let hash = blake3::hash(content);
            line.file(Digest(hash.into()), &job.entry.path);
        }
        (What::Packed { map, .. }, EntryKind::Sparse { .. }) => {
            let mut spread = Spread::new(map.clone(), true);
            spread.hash(content);
            if let Some(digest) = spread.digest() {
                line.file(digest, &job.entry.path);
            }
        }
        (What::Link { .. }, EntryKind::Hardlink { target }) => line.link(&job.entry.path, target),
        _ => {}
    }
}

/// The mode to create with: the final one where creation gives just that, since the directory is closed to others
/// until it is finished; else closed until the attributes are set.
fn creation_mode(wanted: &Attributes, already: Already) -> Mode {
    if already.mode { Mode::from_raw_mode(wanted.mode) } else { Mode::RUSR | Mode::WUSR }
}

/// One more name. Both directories are open, the target's name is one component and a link there is not followed, so
/// what gets the name is in the jail; and the target's writer, in whose queue this is, has created it before.
fn link(from: &Handle, target: &[u8], job: &Job) -> Result<(), Errno> {
    let (dir, name) = (job.place.handle.fd(), last_name(&job.entry.path));
    rustix::fs::linkat(from.fd(), last_name(target), dir, name, AtFlags::empty())
}

/// What could only be opened after it was made may be another's by then. Ours has one name; what lies elsewhere could
/// only be given this one as one more.
fn expect_ours(fd: &OwnedFd, file_type: FileType) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let ours = FileType::from_raw_mode(stat.st_mode) == file_type && stat.st_nlink <= 1;
    if ours { Ok(()) } else { Err(Errno::EXIST) }
}

/// Give a file its final name, if nothing has it.
pub(super) fn name_file(dir: impl AsFd + Copy, temp_name: &[u8], name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, temp_name, dir, name, RenameFlags::NOREPLACE) {
        // File systems that cannot rename so can link so.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(dir, temp_name, dir, name, AtFlags::empty())?;
            rustix::fs::unlinkat(dir, temp_name, AtFlags::empty())
        }
        other => other,
    }
}

/// Write all of it; a file system that takes less than it was given says why the next time.
pub(super) fn write_at(fd: impl AsFd, mut content: &[u8], mut offset: u64) -> Result<(), Errno> {
    let fd = fd.as_fd();
    while !content.is_empty() {
        match rustix::io::pwrite(fd, content, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => {
                content = &content[n..];
                offset += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Remove what we have created and could not complete. If even that fails it stays, under the note that it is not
/// whole.
pub(super) fn remove(dir: &Handle, name: &[u8]) {
    let _ = rustix::fs::unlinkat(dir.fd(), name, AtFlags::empty());
}
