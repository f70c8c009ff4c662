//! One file, device or consumer: the chunks' contents, in order, written by one thread. What the bytes are, an archive
//! or a raw stream, matters only to the digest: a raw stream's slices merge into its own BLAKE3.

use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use blake3::Hasher;
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::Errno;

use super::inlet::{Inlet, Next};
use super::space::space;
use super::writer::{TempNames, name_file, write_at};
use super::zeros::stretches;
use super::{Failure, Shared, SinkEnd, Stopped};
use crate::child::Exit;
use crate::chunk::{Chunk, FileDigest};
use crate::error::Error;
use crate::ids::Digest;
use crate::limits::COMMAND_LOOK;
use crate::stats::{Lap, Stage, timed};
use crate::wire::{Finish, Layout};

/// What takes bytes in order.
pub(super) trait Target {
    /// Write content that begins at `offset`.
    fn write(&mut self, content: &[u8], offset: u64, shared: &Shared) -> Result<(), Stopped>;
    /// Nothing came for a while: is it still there?
    fn look(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped>;
    /// All is written: make it durable.
    fn complete(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped>;
    /// What writing to it counts as.
    fn stage(&self) -> Stage;
    /// How long it had no room since the last call.
    fn take_waited(&mut self) -> Duration;
    /// Bytes that it has whatever comes, if it is a device.
    fn device_size(&self) -> Option<u64> {
        None
    }
    /// How it ended, if it is a command that has taken all.
    fn command(&self) -> Option<Exit> {
        None
    }
}

/// Write everything that comes. `name` is for the manifest; standard output has none.
pub(super) fn run(
    mut inlet: Inlet,
    mut target: impl Target,
    name: Option<Vec<u8>>,
    layout: Layout,
    shared: &Arc<Shared>,
) -> Result<SinkEnd, Stopped> {
    let is_raw = layout == Layout::Raw;
    let mut stream = Stream {
        offset: 0,
        chunks: 0,
        digest: is_raw.then(FileDigest::new),
        archive: (!is_raw && shared.recorder.is_some()).then(Hasher::new),
        name,
    };
    match stream.all(&mut inlet, &mut target, shared) {
        Ok(end) => Ok(end),
        // The target goes first: what it has under a temporary name must not wait for somebody to notice.
        Err(Stopped) => {
            drop(target);
            Err(inlet.drain())
        }
    }
}

struct Stream {
    offset: u64,
    chunks: u64,
    /// Of a raw stream.
    digest: Option<FileDigest>,
    /// Of an archive, whose chunks' digests do not merge; only for a manifest.
    archive: Option<Hasher>,
    name: Option<Vec<u8>>,
}

impl Stream {
    fn all(&mut self, inlet: &mut Inlet, target: &mut impl Target, shared: &Shared) -> Result<SinkEnd, Stopped> {
        let (mut lap, watch) = (Lap::start(), shared.stats.watch(target.stage()));
        let finish = loop {
            if shared.stopping() {
                return Err(Stopped);
            }
            let next = inlet.next(COMMAND_LOOK);
            lap.book(&watch.wait_in);
            match next {
                Next::Chunk(chunk) => {
                    self.chunk(&chunk, target, shared)?;
                    lap.split(&watch.busy, target.take_waited(), &watch.wait_out);
                }
                Next::Quiet => target.look(self.offset, shared)?,
                Next::Finish(finish) => break finish,
                Next::Abort => return Err(Stopped),
            }
        };
        shared.check("chunks", self.chunks, finish.chunks)?;
        shared.check("stream bytes", self.offset, finish.bytes)?;
        let stream_digest = match self.digest.take() {
            Some(digest) => {
                Some(digest.finish().ok_or_else(|| self.misplaced("the only slice is not marked so", shared))?)
            }
            None => None,
        };
        let (completed, time) = timed(|| target.complete(self.offset, shared));
        shared.stats.watch(Stage::Sync).busy.add(time);
        completed?;
        let hashed = self.archive.as_ref().map(|hasher| Digest(hasher.finalize().into()));
        if let (Some(recorder), Some(digest)) = (&shared.recorder, stream_digest.or(hashed)) {
            recorder.only(digest, self.name.as_deref());
        }
        let (device_size, command) = (target.device_size(), target.command());
        Ok(SinkEnd { device_size, command, ..self.end(&finish, stream_digest, shared) })
    }

    fn chunk(&mut self, chunk: &Chunk, target: &mut impl Target, shared: &Shared) -> Result<(), Stopped> {
        if let Some(digest) = &mut self.digest {
            let pushed = digest.push(chunk.kind, chunk.len, chunk.digest);
            pushed.map_err(|e| self.misplaced(&e.to_string(), shared))?;
        }
        if let Some(hasher) = &mut self.archive {
            hasher.update(chunk.content());
        }
        target.write(chunk.content(), self.offset, shared)?;
        self.chunks += 1;
        self.offset += chunk.len as u64;
        shared.stats.stream_done.fetch_add(chunk.len as u64, Relaxed);
        shared.content_done(chunk.len);
        Ok(())
    }

    /// An archive is not looked into, so its entries are what the sender says; the digest of the transfer holds it to
    /// that.
    fn end(&self, finish: &Finish, stream_digest: Option<Digest>, shared: &Shared) -> SinkEnd {
        let content_bytes = if stream_digest.is_some() { self.offset } else { finish.content_bytes };
        SinkEnd {
            entries: finish.entries,
            content_bytes,
            stream_digest,
            notes: shared.take_notes(),
            ..SinkEnd::default()
        }
    }

    fn misplaced(&self, what: &str, shared: &Shared) -> Stopped {
        shared.fail(Failure::Verification(format!("{what}, in chunk {}", self.chunks)))
    }
}

/// A file beside its final name, which it gets when it is whole and synced.
pub(super) struct File {
    parent: OwnedFd,
    name: Vec<u8>,
    fd: OwnedFd,
    /// `None` once it has its final name.
    temp_name: Option<String>,
    /// The empty file that had the name before.
    empty: Option<Metadata>,
    wish: Wish,
}

/// What is known of the bytes that will come, and what is wished for.
#[derive(Clone, Copy, Default)]
pub(super) struct Wish {
    /// How many they are, if that is known.
    pub needed: Option<u64>,
    /// Whether zeros need not be written: a new file has them, where nothing was written.
    pub sparse: bool,
}

impl File {
    /// Create the temporary file.
    pub fn create(
        parent: OwnedFd,
        name: Vec<u8>,
        empty: Option<Metadata>,
        wish: Wish,
        shared: &Shared,
    ) -> Result<File, Error> {
        let created = TempNames::new().create(&parent);
        let (fd, temp_name) = created.map_err(|errno| Error::Destination {
            what: format!("cannot create a file beside '{}'{}", shared.destination, space(&parent)),
            source: errno.into(),
        })?;
        Ok(File { parent, name, fd, temp_name: Some(temp_name), empty, wish })
    }

    /// The directory it is in.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// Mode and owner: of the empty file that was there, or what any new file gets.
    fn set_attributes(&self, shared: &Shared) -> Result<(), Errno> {
        let mode = match &self.empty {
            Some(empty) => {
                // What is not ours to give away stays ours; the bytes are what was asked for.
                let _ =
                    rustix::fs::fchown(&self.fd, Some(Uid::from_raw(empty.uid())), Some(Gid::from_raw(empty.gid())));
                empty.mode() & 0o777
            }
            None => 0o666 & !shared.who.umask,
        };
        rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode))
    }

    /// The final name. An empty file that was there is replaced if it is still that one and still empty.
    fn give_name(&self, temp_name: &str) -> Result<(), Errno> {
        let Some(empty) = &self.empty else {
            return name_file(self.parent.as_fd(), temp_name.as_bytes(), &self.name);
        };
        let now = rustix::fs::statat(&self.parent, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
        if (now.st_dev, now.st_ino, now.st_size) != (empty.dev(), empty.ino(), 0) {
            return Err(Errno::EXIST);
        }
        rustix::fs::renameat(&self.parent, temp_name, &self.parent, self.name.as_slice())
    }

    fn failed(&self, what: &str, offset: u64, errno: Errno, shared: &Shared) -> Stopped {
        let of_all = self.wish.needed.map(|needed| format!(" of {needed}")).unwrap_or_default();
        // Told before what was written is removed.
        let free = if is_lack_of_space(errno) { space(&self.parent) } else { String::new() };
        let what = format!("cannot {what} '{}' after {offset}{of_all} bytes{free}", shared.destination);
        shared.fail(Failure::Destination(what, errno))
    }
}

impl Target for File {
    fn write(&mut self, content: &[u8], offset: u64, shared: &Shared) -> Result<(), Stopped> {
        let written = match self.wish.sparse {
            false => write_at(&self.fd, content, offset),
            true => stretches(content, offset)
                .filter(|(_, zeros)| !zeros)
                .try_for_each(|(range, _)| write_at(&self.fd, &content[range.clone()], offset + range.start as u64)),
        };
        written.map_err(|errno| self.failed("write", offset, errno, shared))
    }

    fn look(&mut self, _: u64, _: &Shared) -> Result<(), Stopped> {
        Ok(())
    }

    fn complete(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped> {
        let Some(temp_name) = self.temp_name.as_deref() else { return Ok(()) };
        let whole = || if self.wish.sparse { rustix::fs::ftruncate(&self.fd, offset) } else { Ok(()) };
        self.set_attributes(shared)
            .and_then(|()| whole())
            .and_then(|()| rustix::fs::fsync(&self.fd))
            .and_then(|()| self.give_name(temp_name))
            .map_err(|errno| self.failed("complete", offset, errno, shared))?;
        self.temp_name = None;
        rustix::fs::fsync(&self.parent).map_err(|errno| self.failed("sync the directory of", offset, errno, shared))
    }

    fn stage(&self) -> Stage {
        Stage::Write
    }

    fn take_waited(&mut self) -> Duration {
        Duration::ZERO
    }
}

fn is_lack_of_space(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(temp_name) = &self.temp_name {
            // If it cannot be removed it stays; its name says what it is.
            let _ = rustix::fs::unlinkat(&self.parent, temp_name.as_str(), AtFlags::empty());
        }
    }
}
