//! Raw streams and files: the bytes, and nothing else.

use std::io::Write;
use std::os::fd::OwnedFd;

use super::*;
use crate::chunk::{FileDigest, chunk_digest};

const PIECES: [usize; 9] = [
    0,
    1,
    CHUNK_LEN - 1,
    CHUNK_LEN,
    CHUNK_LEN + 1,
    2 * CHUNK_LEN - 1,
    2 * CHUNK_LEN,
    2 * CHUNK_LEN + 1,
    5 * CHUNK_LEN + 3,
];

/// Full aligned slices but for the last, `sole` said truly, the right bytes, and the digest of the whole.
fn check_raw(sent: &Sent, content: &[u8]) {
    assert_eq!(sent.stream().len(), content.len());
    assert!(sent.stream() == content);
    assert_eq!(sent.chunks.len(), content.len().div_ceil(CHUNK_LEN));
    let mut whole = FileDigest::new();
    for (i, (kind, bytes)) in sent.chunks.iter().enumerate() {
        let (offset, sole) = ((i * CHUNK_LEN) as u64, sent.chunks.len() == 1);
        assert_eq!(*kind, ChunkKind::Data { offset, sole });
        assert_eq!(bytes.len(), CHUNK_LEN.min(content.len() - i * CHUNK_LEN));
        whole.push(*kind, bytes.len(), chunk_digest(*kind, bytes)).unwrap();
    }
    if !content.is_empty() {
        assert_eq!(whole.finish().unwrap().0, *blake3::hash(content).as_bytes());
    }
    let end = SourceEnd {
        chunks: sent.chunks.len() as u64,
        entries: 0,
        content_bytes: content.len() as u64,
        stream_bytes: content.len() as u64,
    };
    assert_eq!(sent.end, end);
    assert!(sent.stats.found_all.load(Relaxed));
    assert_eq!(sent.stats.content_done.load(Relaxed), content.len() as u64);
}

/// What a source makes of a pipe that somebody writes to.
fn send_pipe(writer: impl FnOnce(std::fs::File) + Send) -> Sent {
    let (read, write) = rustix::pipe::pipe().unwrap();
    std::thread::scope(|s| {
        s.spawn(move || writer(write.into()));
        send_fd(read)
    })
}

fn send_fd(fd: OwnedFd) -> Sent {
    let (running, notes, stats) = start_fd(fd, Pool::new(1, CHUNK_LEN));
    drain(running, notes, stats)
}

fn start_fd(fd: OwnedFd, pool: Arc<Pool>) -> (Running, Arc<NoteSink>, Arc<Stats>) {
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let context = Context::new(stats.clone(), notes.clone(), Keep::default());
    let running = run(pool, context, Stage::Input, move |mut emitter| {
        send_stream(&Origin { fd: fd.as_fd(), name: Path::new("the pipe"), producer: None }, &mut emitter)?;
        Ok(emitter)
    });
    (running, notes, stats)
}

#[test]
fn a_stream_of_any_length_is_aligned_slices() {
    for len in PIECES {
        let content = noise(len as u64, len);
        check_raw(&send_pipe(|mut pipe| pipe.write_all(&content).unwrap()), &content);
    }
}

#[test]
fn small_writes_make_full_chunks_all_the_same() {
    let content = noise(7, 2 * CHUNK_LEN + 100);
    let sent = send_pipe(|mut pipe| content.chunks(4093).for_each(|piece| pipe.write_all(piece).unwrap()));
    check_raw(&sent, &content);
}

#[test]
fn a_descriptor_that_somebody_made_non_blocking_is_waited_for() {
    let content = noise(8, CHUNK_LEN + 1);
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::empty()).unwrap();
    let sent = std::thread::scope(|s| {
        s.spawn(|| std::fs::File::from(write).write_all(&content).unwrap());
        send_fd(read)
    });
    check_raw(&sent, &content);
}

#[test]
fn a_stream_that_cannot_be_read_is_an_error_and_not_an_end() {
    let directory = std::fs::File::open("/").unwrap();
    let (running, ..) = start_fd(directory.into(), Pool::new(2, CHUNK_LEN));
    let err = running.join().unwrap_err();
    assert!(matches!(err, Error::Source { .. }), "{err}");
    assert_eq!(err.to_string(), "cannot read the pipe: Is a directory (os error 21)");
}

#[test]
fn a_stream_ends_when_nobody_wants_more() {
    let (read, write) = rustix::pipe::pipe().unwrap();
    let writer = std::thread::spawn(move || {
        let mut pipe = std::fs::File::from(write);
        while pipe.write_all(&[0; 4096]).is_ok() {}
    });
    let pool = Pool::new(2, CHUNK_LEN);
    let (running, ..) = start_fd(read, pool.clone());
    let held = running.planned.recv().unwrap();
    pool.close();
    drop(held);
    assert!(matches!(running.join(), Err(Error::Interrupted(_))));
    writer.join().unwrap();
}

#[test]
fn a_named_fifo_is_read_like_standard_input() {
    let src = tree();
    let fifo = src.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    let tree = open_tree(std::slice::from_ref(&fifo)).unwrap();
    assert_eq!(tree.offer(), crate::wire::Offer::Stream);
    let content = noise(1, CHUNK_LEN + 10);
    let sent = std::thread::scope(|s| {
        s.spawn(|| std::fs::write(&fifo, &content).unwrap());
        let (running, notes, stats) = begin(tree, Layout::Raw);
        drain(running, notes, stats)
    });
    check_raw(&sent, &content);
}

#[test]
fn a_raw_file_of_any_length_is_aligned_slices() {
    let src = tree();
    for len in PIECES {
        let content = noise(len as u64, len);
        write(src.path(), "f", &content);
        let sent = send(&[&src.path().join("f")], Layout::Raw);
        check_raw(&sent, &content);
        assert_eq!(sent.stats.bytes_found.load(Relaxed), len as u64);
        assert_eq!(sent.notes, []);
    }
}

#[test]
fn a_raw_file_that_shrinks_keeps_its_length_and_is_noted() {
    let src = tree();
    write(src.path(), "f", &noise(1, 3 * CHUNK_LEN));
    let path = src.path().join("f");
    let (running, notes, stats) = begin(open_tree(std::slice::from_ref(&path)).unwrap(), Layout::Raw);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
    let sent = drain(running, notes, stats);
    assert_eq!(sent.stream().len(), 3 * CHUNK_LEN);
    assert_eq!(sent.noted(), [(NoteKind::Shrank, "f".into())]);
}
