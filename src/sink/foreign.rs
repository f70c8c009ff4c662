//! Archives of other programs, that come as a raw stream: one thread reads, walks and writes, as tar does.
//!
//! - The stream is held to its own BLAKE3 like any raw stream; what it is an archive of is checked by nobody but us.
//! - Entries come in any order ([`Jail::approach`]). Of two with one name the last holds: what the first has made is
//!   removed, never opened, so that another name of the same file keeps what it has. A directory that is not empty is
//!   not removed, and what would replace it is left out and named.
//! - A file of one chunk at most is gathered and written whole; a larger one, or one with holes, is written under a
//!   temporary name as it comes, and gets its own when it is whole.
//! - Damage ends it at once: what came before stays, unfinished as after any failure. What follows the archive's end is
//!   named, and costs exit code 1.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use blake3::Hasher;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::attributes::{Already, Attributes, Object, apply};
use super::inlet::{Inlet, Next};
use super::jail::{Jail, Place, last_name};
use super::writer::{Job, TempNames, What, Writer, name_file, remove, write_at, write_down};
use super::{Failure, Shared, SinkEnd, Stopped, describe, owners};
use crate::archive::foreign::{Event, ForeignError, Member, Names, Reader};
use crate::archive::{Entry, EntryKind};
use crate::chunk::{Chunk, FileDigest};
use crate::ids::Digest;
use crate::limits::CHUNK_LEN;
use crate::report::NoteKind;
use crate::stats::{Lap, Stage, timed};
use crate::wire::Finish;

/// Unpack all that comes below the jail's root.
pub(super) fn run(mut inlet: Inlet, jail: Jail, shared: &Arc<Shared>) -> Result<SinkEnd, Stopped> {
    let temp_names = TempNames::new();
    let writer = Writer::new(shared, &temp_names);
    let [users, groups] = ["/etc/passwd", "/etc/group"].map(|path| std::fs::read(path).unwrap_or_default());
    let foreign = Foreign {
        jail,
        writer,
        temp_names: &temp_names,
        reader: Reader::with_names(Names::of(&users, &groups)),
        file: Incoming::Nothing,
        gathered: Vec::new(),
        counts: Counts::default(),
        shared,
    };
    foreign.all(&mut inlet).map_err(|Stopped| inlet.drain())
}

struct Foreign<'a> {
    jail: Jail,
    writer: Writer<'a>,
    temp_names: &'a TempNames,
    reader: Reader,
    file: Incoming,
    /// The content of a small file; kept for its memory.
    gathered: Vec<u8>,
    counts: Counts,
    shared: &'a Arc<Shared>,
}

#[derive(Default)]
struct Counts {
    chunks: u64,
    bytes: u64,
    digest: Option<FileDigest>,
}

/// The file whose content comes.
enum Incoming {
    /// None, or one that is not to be had.
    Nothing,
    Small(Box<Job>),
    Large(Box<Large>),
}

/// A file under a temporary name; removed unless it is named.
struct Large {
    job: Job,
    fd: OwnedFd,
    temp_name: Option<String>,
    size: u64,
    /// Where the last piece ended.
    end: u64,
    /// For a manifest.
    hasher: Option<Hasher>,
}

impl Drop for Large {
    fn drop(&mut self) {
        if let Some(name) = &self.temp_name {
            remove(&self.job.place.handle, name.as_bytes());
        }
    }
}

impl Foreign<'_> {
    fn all(mut self, inlet: &mut Inlet) -> Result<SinkEnd, Stopped> {
        let (mut lap, watch) = (Lap::start(), self.shared.stats.watch(Stage::Write));
        self.counts.digest = Some(FileDigest::new());
        let finish = loop {
            let next = inlet.next(Duration::from_secs(3600));
            lap.book(&watch.wait_in);
            match next {
                Next::Quiet => {}
                Next::Abort => return Err(Stopped),
                Next::Chunk(_) if self.shared.stopping() => return Err(Stopped),
                Next::Chunk(chunk) => {
                    self.chunk(&chunk)?;
                    lap.book(&watch.busy);
                }
                Next::Finish(finish) => break finish,
            }
        };
        self.end(&finish)
    }

    fn chunk(&mut self, chunk: &Chunk) -> Result<(), Stopped> {
        let digest = self.counts.digest.as_mut().expect("it is taken at the end");
        if let Err(e) = digest.push(chunk.kind, chunk.len, chunk.digest) {
            return Err(self.shared.fail(Failure::Verification(format!("{e}, in chunk {}", self.counts.chunks))));
        }
        self.counts.chunks += 1;
        self.counts.bytes += chunk.len as u64;
        self.shared.stats.stream_done.fetch_add(chunk.len as u64, Relaxed);
        let mut input = chunk.content();
        loop {
            match self.reader.next(&mut input) {
                Ok(Some(event)) => self.event(event)?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.unreadable(&error)),
            }
            if self.shared.stopping() {
                return Err(Stopped);
            }
        }
    }

    /// All has come: is it whole, and on disk?
    fn end(mut self, finish: &Finish) -> Result<SinkEnd, Stopped> {
        let shared = self.shared;
        shared.check("chunks", self.counts.chunks, finish.chunks)?;
        shared.check("stream bytes", self.counts.bytes, finish.bytes)?;
        let ended = match std::mem::take(&mut self.reader).finish() {
            Ok(ended) => ended,
            Err(error) => return Err(self.unreadable(&error)),
        };
        let digest = self.counts.digest.take().and_then(FileDigest::finish);
        let Some(digest) = digest else {
            return Err(shared.fail(Failure::Verification("the only slice is not marked so".into())));
        };
        if let Some(offset) = ended.short {
            let text = format!("the archive ends with one block of zeros, at offset {offset}, where two should be");
            shared.note(NoteKind::Unread, Vec::new(), format!("{text}: what should follow may be missing"));
        }
        for remark in ended.remarks {
            shared.note(NoteKind::Remark, remark.path, remark.text);
        }
        let (root, devices) = self.jail.close();
        drop(root);
        let (synced, time) = timed(|| devices.sync(shared));
        shared.stats.watch(Stage::Sync).busy.add(time);
        synced?;
        let (entries, content_bytes) = (shared.entries.load(Relaxed), shared.content_bytes.load(Relaxed));
        Ok(SinkEnd {
            entries,
            content_bytes,
            stream_digest: Some(digest),
            notes: shared.take_notes(),
            ..SinkEnd::default()
        })
    }

    fn event(&mut self, event: Event<'_>) -> Result<(), Stopped> {
        match event {
            Event::Member(member) => self.member(member),
            Event::Content { offset, bytes } => self.content(offset, bytes),
            Event::FileEnd => self.file_end(),
            Event::LinkToItself { path } => {
                self.link_to_itself(path);
                Ok(())
            }
            Event::LeftOut { path, why } => {
                self.shared.note(NoteKind::NotCreated, path, why);
                Ok(())
            }
            Event::Beyond { end, offset, lone } => {
                let end = if lone {
                    format!("one block of zeros at offset {end}")
                } else {
                    format!("its end at offset {end}")
                };
                let text = format!(
                    "after {end} more bytes follow, from offset {offset} on (another archive is to be sent by itself)"
                );
                self.shared.note(NoteKind::Unread, Vec::new(), text);
                Ok(())
            }
        }
    }

    fn member(&mut self, member: Member) -> Result<(), Stopped> {
        let Member { mut entry, stored, flaws } = member;
        owners::apply(&mut entry, self.shared);
        for flaw in flaws {
            self.shared.note(NoteKind::Attribute, entry.path.clone(), flaw);
        }
        if entry.kind.is_directory() {
            if entry.path.is_empty() {
                self.jail.reannounce_root(&entry);
                return Ok(());
            }
            return self.jail.make_again(&entry).or_else(|errno| self.failed(&entry.path, errno));
        }
        let place = match self.jail.approach(&entry.path) {
            Ok(place) => place,
            Err(errno) => return self.failed(&entry.path, errno),
        };
        match entry.kind {
            EntryKind::File { size } => self.begin(entry, place, size, stored),
            EntryKind::Hardlink { ref target } => match self.jail.locate(target) {
                Ok(from) => {
                    let job = self.job(entry, place, What::Link { from });
                    self.make(job)
                }
                Err(errno) => {
                    let detail = format!("its target is not there: {}", describe(errno));
                    self.shared.note(NoteKind::NotCreated, entry.path, detail);
                    Ok(())
                }
            },
            _ => {
                let job = self.job(entry, place, What::Whole { content: 0..0 });
                self.make(job)
            }
        }
    }

    /// It gets its line's place when it is there, behind what it may have taken the name of.
    fn job(&self, entry: Entry, place: Place, what: What) -> Job {
        Job { place, entry, what, line: None }
    }

    /// An entry that has no content, or has all of it.
    fn make(&mut self, job: Job) -> Result<(), Stopped> {
        let (writer, gathered) = (&self.writer, &self.gathered);
        if writer.withholds(&job) {
            return Ok(());
        }
        let made = in_place(&mut self.jail, &job, || writer.make(&job, gathered));
        match made {
            Ok(()) => {
                self.shared.entry_done();
                if let Some(recorder) = &self.shared.recorder {
                    write_down(recorder.place(), &job, &self.gathered);
                }
                Ok(())
            }
            Err(errno) => self.shared.entry_failed(&job.entry.path, errno, &job.place.handle),
        }
    }

    fn begin(&mut self, entry: Entry, place: Place, size: u64, stored: u64) -> Result<(), Stopped> {
        self.gathered.clear();
        if size <= CHUNK_LEN as u64 && stored == size {
            self.file = Incoming::Small(Box::new(self.job(entry, place, What::Whole { content: 0..0 })));
            return Ok(());
        }
        match self.temp_names.create(place.handle.fd()) {
            Ok((fd, temp_name)) => {
                let job = self.job(entry, place, What::Large { size });
                let hasher = self.shared.recorder.is_some().then(Hasher::new);
                self.file =
                    Incoming::Large(Box::new(Large { job, fd, temp_name: Some(temp_name), size, end: 0, hasher }));
                Ok(())
            }
            Err(errno) => self.shared.entry_failed(&entry.path, errno, &place.handle),
        }
    }

    fn content(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Stopped> {
        match &mut self.file {
            Incoming::Nothing => Ok(()),
            Incoming::Small(_) => {
                self.gathered.extend_from_slice(bytes);
                Ok(())
            }
            Incoming::Large(large) => match write_at(&large.fd, bytes, offset) {
                Ok(()) => {
                    self.shared.content_done(bytes.len());
                    large.hash(offset, bytes);
                    large.end = offset + bytes.len() as u64;
                    Ok(())
                }
                Err(errno) => self.spoiled(errno),
            },
        }
    }

    /// What was begun cannot be had. Told before it is removed: the words say how much room there was.
    fn spoiled(&mut self, errno: Errno) -> Result<(), Stopped> {
        let Incoming::Large(large) = std::mem::replace(&mut self.file, Incoming::Nothing) else { return Ok(()) };
        self.shared.entry_failed(&large.job.entry.path, errno, &large.job.place.handle)
    }

    fn file_end(&mut self) -> Result<(), Stopped> {
        match std::mem::replace(&mut self.file, Incoming::Nothing) {
            Incoming::Nothing => Ok(()),
            Incoming::Small(job) => {
                let made = self.make(*job);
                self.gathered.clear();
                made
            }
            Incoming::Large(mut large) => match self.name(&mut large) {
                Ok(()) => {
                    self.shared.entry_done();
                    if let (Some(recorder), Some(hasher)) = (&self.shared.recorder, &large.hasher) {
                        recorder.place().file(Digest(hasher.finalize().into()), &large.job.entry.path);
                    }
                    Ok(())
                }
                Err(errno) => {
                    self.file = Incoming::Large(large);
                    self.spoiled(errno)
                }
            },
        }
    }

    /// Its length, its attributes, then its name.
    fn name(&mut self, large: &mut Large) -> Result<(), Errno> {
        if large.end < large.size {
            rustix::fs::ftruncate(&large.fd, large.size)?;
            large.hash(large.size, &[]);
        }
        let (job, fd) = (&large.job, &large.fd);
        let wanted = Attributes::from(&job.entry);
        let already = Already { mode: false, ..job.place.handle.already(&wanted, &self.shared.who) };
        apply(Object::File(std::os::fd::AsFd::as_fd(fd)), &wanted, already, self.shared, || job.entry.path.clone());
        self.writer.sync(fd)?;
        let temp_name = large.temp_name.as_deref().expect("it has no other name yet").as_bytes();
        let name = last_name(&job.entry.path);
        in_place(&mut self.jail, job, || name_file(job.place.handle.fd(), temp_name, name))?;
        large.temp_name = None;
        Ok(())
    }

    /// Nothing to do, if it is there.
    fn link_to_itself(&mut self, path: Vec<u8>) {
        let found = self.jail.approach(&path).and_then(|place| {
            rustix::fs::statat(place.handle.fd(), last_name(&path), AtFlags::SYMLINK_NOFOLLOW).map(|_| ())
        });
        match found {
            Ok(()) => self.shared.note(NoteKind::Remark, path, "a hard link to itself says nothing"),
            Err(_) => self.shared.note(NoteKind::NotCreated, path, "it is a hard link to itself, and nothing else is"),
        }
    }

    /// A directory on the way could not be made, or is none.
    fn failed(&self, path: &[u8], errno: Errno) -> Result<(), Stopped> {
        self.shared.entry_failed(path, errno, &self.jail.nearest())
    }

    fn unreadable(&self, error: &ForeignError) -> Stopped {
        if error.is_none() {
            let text = format!("'{}' is a directory, so an archive is wanted: {error}", self.shared.destination);
            return self.shared.fail(Failure::Refused(text));
        }
        self.shared.fail(Failure::Archive(error.to_string()))
    }
}

impl Large {
    /// Up to `offset` there is a hole.
    fn hash(&mut self, offset: u64, bytes: &[u8]) {
        let Some(hasher) = &mut self.hasher else { return };
        let mut hole = offset - self.end;
        while hole > 0 {
            static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
            let len = hole.min(ZEROS.len() as u64);
            hasher.update(&ZEROS[..len as usize]);
            hole -= len;
        }
        hasher.update(bytes);
    }
}

/// Create something where an earlier entry may have the name; that one goes first. What the new one is made of is
/// there, or the name would not have been asked for.
fn in_place(jail: &mut Jail, job: &Job, create: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    match create() {
        Err(Errno::EXIST) => {
            if let (What::Link { from }, EntryKind::Hardlink { target }) = (&job.what, &job.entry.kind) {
                let stat = rustix::fs::statat(from.fd(), last_name(target), AtFlags::SYMLINK_NOFOLLOW)?;
                if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory {
                    return Err(Errno::PERM);
                }
            }
            jail.make_room(&job.place, &job.entry.path)?;
            create()
        }
        other => other,
    }
}
