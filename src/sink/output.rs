//! Standard output: the bytes of what others have opened, in order. Nothing is held up by a reader that does not read,
//! and one that leaves is noticed while nothing is written, too.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::raw::Target;
use super::{Failure, Shared, Stopped};
use crate::limits::{COMMAND_LOOK, WRITE_LEN};
use crate::pipe;
use crate::stats::{Stage, timed};

/// Standard output, or what stands for it in a test.
pub(super) struct Output {
    fd: OwnedFd,
    kind: Kind,
    /// Time without room, since somebody asked.
    waited: Duration,
}

/// How to write without being held by a consumer that does not read: the thread must end when it is told to.
enum Kind {
    /// The same pipe, opened once more without waiting. The flag on the descriptor we were given would hold for every
    /// process that has it.
    Pipe(OwnedFd),
    /// A pipe that cannot be opened again (it belongs to another user): what is announced as writable takes this much.
    ForeignPipe,
    Socket,
    /// Files and devices do not wait for anybody.
    Other,
}

/// A write of this length to a writable pipe does not wait (POSIX's PIPE_BUF on Linux).
const PIPE_BUF: usize = 4096;

impl Output {
    pub fn new(fd: OwnedFd) -> Output {
        let kind = rustix::fs::fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let kind = match kind {
            Ok(FileType::Fifo) => {
                pipe::widen(&fd);
                reopen(&fd).map_or(Kind::ForeignPipe, Kind::Pipe)
            }
            Ok(FileType::Socket) => Kind::Socket,
            _ => Kind::Other,
        };
        Output { fd, kind, waited: Duration::ZERO }
    }

    fn write_some(&self, content: &[u8]) -> Result<usize, Errno> {
        let content = &content[..content.len().min(WRITE_LEN)];
        match &self.kind {
            Kind::Pipe(fd) => rustix::io::write(fd, content),
            Kind::ForeignPipe => match self.poll(PollFlags::OUT, Duration::ZERO)? {
                true => rustix::io::write(&self.fd, &content[..content.len().min(PIPE_BUF)]),
                false => Err(Errno::AGAIN),
            },
            Kind::Socket => rustix::net::send(&self.fd, content, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Kind::Other => rustix::io::write(&self.fd, content),
        }
    }

    /// Wait until it can be written to, or has no reader. True if either is so.
    fn poll(&self, events: PollFlags, patience: Duration) -> Result<bool, Errno> {
        let timeout = Timespec::try_from(patience).expect("less than a second");
        match poll(&mut [PollFd::new(&self.fd, events)], Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn failed(&self, offset: u64, errno: Errno, shared: &Shared) -> Stopped {
        let what = match errno {
            Errno::PIPE | Errno::CONNRESET => format!("the reader of standard output went away after {offset} bytes"),
            _ => format!("cannot write to standard output after {offset} bytes"),
        };
        shared.fail(Failure::Destination(what, errno))
    }
}

fn reopen(fd: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

impl Target for Output {
    fn write(&mut self, mut content: &[u8], mut offset: u64, shared: &Shared) -> Result<(), Stopped> {
        while !content.is_empty() {
            if shared.stopping() {
                return Err(Stopped);
            }
            match self.write_some(content) {
                Ok(n) => {
                    content = &content[n..];
                    offset += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let (polled, time) = timed(|| self.poll(PollFlags::OUT, COMMAND_LOOK));
                    self.waited += time;
                    polled.map_err(|errno| self.failed(offset, errno, shared))?;
                }
                Err(errno) => return Err(self.failed(offset, errno, shared)),
            }
        }
        Ok(())
    }

    /// A pipe or socket without a reader says so without being asked for anything else.
    fn look(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped> {
        if matches!(self.kind, Kind::Other) {
            return Ok(());
        }
        match self.poll(PollFlags::empty(), Duration::ZERO) {
            Ok(false) => Ok(()),
            Ok(true) => Err(self.failed(offset, Errno::PIPE, shared)),
            Err(errno) => Err(self.failed(offset, errno, shared)),
        }
    }

    fn complete(&mut self, offset: u64, shared: &Shared) -> Result<(), Stopped> {
        self.look(offset, shared)?;
        match rustix::fs::fsync(&self.fd) {
            // Pipes and the like have nothing to sync.
            Ok(()) | Err(Errno::INVAL | Errno::ROFS | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.failed(offset, errno, shared)),
        }
    }

    fn stage(&self) -> Stage {
        Stage::Output
    }

    fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::chunk::{Chunk, ChunkKind, Pool, Release, chunk_digest};
    use crate::error::Error;
    use crate::ids::{Digest, Seq};
    use crate::limits::CHUNK_LEN;
    use crate::sink::{Prepared, Sink};
    use crate::wire::{Finish, Offer};

    /// Longer than anything here takes, short enough to fail in bounded time.
    const SOON: Duration = Duration::from_secs(20);

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 7) as u8 ^ (i / 1021) as u8).collect()
    }

    fn finish_of(content: &[u8]) -> Finish {
        let len = content.len() as u64;
        let chunks = content.len().div_ceil(CHUNK_LEN) as u64;
        Finish {
            chunks,
            entries: 0,
            bytes: len,
            content_bytes: len,
            notes: 0,
            unnamed: (0, 0),
            digest: Digest([0; 32]),
        }
    }

    fn send(sink: &Sink, content: &[u8], pool: &Arc<Pool>) {
        let sole = content.len() <= CHUNK_LEN;
        for (i, slice) in content.chunks(CHUNK_LEN).enumerate() {
            let kind = ChunkKind::Data { offset: (i * CHUNK_LEN) as u64, sole };
            let mut buf = pool.take().expect("the pool stays open");
            buf[..slice.len()].copy_from_slice(slice);
            let (len, digest) = (slice.len(), chunk_digest(kind, slice));
            let _ = sink.feed().put(Chunk { seq: Seq(i as u64), kind, len, digest, buf, release: None });
        }
    }

    /// A sink onto `fd`, and where its failure is told.
    fn onto(fd: impl Into<OwnedFd>) -> (Sink, mpsc::Receiver<Error>) {
        let (tell, told) = mpsc::channel();
        let on_error = move |error| tell.send(error).unwrap();
        let sink = Prepared::onto(fd.into()).open(&Offer::Stream, Default::default(), 1, on_error);
        (sink.unwrap(), told)
    }

    fn assert_delivers(writer: OwnedFd, mut reader: impl Read + Send + 'static, content: &[u8]) {
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        let (sink, told) = onto(writer);
        send(&sink, content, &Pool::new(4, CHUNK_LEN));
        let end = sink.finish(finish_of(content)).unwrap();
        assert!(read.join().unwrap().unwrap() == content, "what the reader got");
        assert_eq!(end.content_bytes, content.len() as u64);
        assert_eq!(end.stream_digest, Some(Digest(blake3::hash(content).into())));
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_stream_arrives_through_a_pipe_and_a_socket_with_its_digest() {
        for len in [0, 1, CHUNK_LEN, 5 * CHUNK_LEN + 4321] {
            let (reader, writer) = std::io::pipe().unwrap();
            assert_delivers(writer.into(), reader, &content(len));
            let (reader, writer) = UnixStream::pair().unwrap();
            assert_delivers(writer.into(), reader, &content(len));
        }
    }

    #[test]
    fn a_pipe_that_cannot_be_opened_again_is_written_in_small_pieces() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let content = content(300_000);
        let expected = content.clone();
        let read = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        let shared =
            Shared::new("standard output".into(), Default::default(), None, Default::default(), Box::new(|_| {}), None);
        let mut output = Output { fd: writer.into(), kind: Kind::ForeignPipe, waited: Duration::ZERO };
        output.write(&content, 0, &shared).unwrap();
        drop(output);
        assert!(read.join().unwrap().unwrap() == expected);
    }

    #[test]
    fn a_reader_that_goes_away_is_noticed_while_nothing_is_written() {
        for pipe in [true, false] {
            let (reader, writer): (OwnedFd, OwnedFd) = if pipe {
                let (reader, writer) = std::io::pipe().unwrap();
                (reader.into(), writer.into())
            } else {
                let (reader, writer) = UnixStream::pair().unwrap();
                (reader.into(), writer.into())
            };
            let (sink, told) = onto(writer);
            drop(reader);
            let error = told.recv_timeout(SOON).expect("the sink notices");
            assert_eq!(error.exit_code(), crate::ExitCode::Destination);
            assert!(error.to_string().contains("after 0 bytes"), "{error}");
            sink.finish(finish_of(b"")).unwrap_err();
        }
    }

    #[test]
    fn a_reader_that_goes_away_in_the_middle_leaves_the_offset_and_blocks_nobody() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (sink, told) = onto(writer);
        let content = content(8 * CHUNK_LEN);
        let pool = Pool::new(8, CHUNK_LEN);
        send(&sink, &content, &pool);
        let mut some = vec![0; 1_000_000];
        reader.read_exact(&mut some).unwrap();
        drop(reader);
        let error = told.recv_timeout(SOON).expect("the sink notices").to_string();
        let offset: u64 = error.split("after ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(error.contains("reader of standard output went away"), "{error}");
        assert!((1_000_000..=1_000_000 + 2 * CHUNK_LEN as u64).contains(&offset), "{error}");
        // Every buffer comes back although nothing is written any more.
        let all: Vec<_> = (0..8).map(|_| pool.take()).collect();
        assert_eq!(all.len(), 8);
        assert_eq!(sink.finish(finish_of(&content)).unwrap_err().to_string(), error);
    }

    #[test]
    fn a_reader_that_does_not_read_does_not_hold_up_the_end() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (sink, told) = onto(writer);
        send(&sink, &content(4 * CHUNK_LEN), &Pool::new(4, CHUNK_LEN));
        sink.abort();
        assert!(told.try_recv().is_err(), "who aborts needs no telling");
        drop(reader);
    }

    #[test]
    fn a_redirection_to_a_file_continues_where_the_file_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        std::fs::write(&path, "before ").unwrap();
        let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        let (sink, _told) = onto(file);
        send(&sink, b"after", &Pool::new(1, CHUNK_LEN));
        sink.finish(finish_of(b"after")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"before after");
    }

    #[test]
    fn slices_out_of_place_are_a_violation() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let (sink, told) = onto(writer);
        let pool = Pool::new(1, CHUNK_LEN);
        let kind = ChunkKind::Data { offset: CHUNK_LEN as u64, sole: false };
        let digest = chunk_digest(kind, b"x");
        let mut buf = pool.take().unwrap();
        buf[0] = b'x';
        sink.feed().put(Chunk { seq: Seq(0), kind, len: 1, digest, buf, release: None }).unwrap();
        let error = told.recv_timeout(SOON).unwrap();
        assert_eq!(error.exit_code(), crate::ExitCode::Verification, "{error}");
        sink.abort();
    }

    #[test]
    fn a_panic_is_told_as_a_bug_and_ends_the_thread() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let (sink, told) = onto(writer);
        let kind = ChunkKind::Data { offset: 0, sole: true };
        let digest = chunk_digest(kind, b"x");
        let buf = Pool::new(1, CHUNK_LEN).take().unwrap();
        let release = Some(Release::new(Arc::new(|| panic!("planted"))));
        sink.feed().put(Chunk { seq: Seq(0), kind, len: 1, digest, buf, release }).unwrap();
        let error = told.recv_timeout(SOON).unwrap();
        assert_eq!(error.exit_code(), crate::ExitCode::Bug);
        assert!(error.to_string().contains("planted"), "{error}");
        assert_eq!(sink.finish(finish_of(b"x")).unwrap_err().to_string(), error.to_string());
    }
}
