//! The hot stages, each run a fixed number of times on one thread, for `scripts/bench --instructions` to count what a
//! stage executes inside [`measured`]. As tests they show that the stages fit together, and take a moment.

use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use blast::archive::{Entry, EntryKind, Parser, Timestamp, header_len, write_header};
use blast::chunk::{Buf, ChunkKind, Opener, Pool, Sealer, TransferDigest};
use blast::flow::{Poll, RecvFlow, SendFlow, Verdict};
use blast::ids::{Digest, LinkId, Seq, SessionId};
use blast::limits::CHUNK_LEN;
use blast::options::{Schedule, Window};
use blast::source::{FillScratch, NoteSink, open_tree, start};
use blast::stats::Stats;
use blast::wire::{
    ChunkHead, Cipher, Control, FIRST_NONCES, FrameKeys, HEADER_LEN, Header, Layout, SessionKeys, decode_control,
    decode_header, encode_chunk_header, encode_control,
};

/// Counting is on while this runs; it is found by its name.
#[inline(never)]
fn measured<R>(stage: impl FnOnce() -> R) -> R {
    black_box(stage())
}

/// As a walk of a home directory finds them: times with nanoseconds, one name in fifty too long for the plain block.
fn entries(count: u32) -> Vec<Entry> {
    let entry = |i: u32| Entry {
        path: match i % 50 {
            0 => format!("projects/{}/{}/{i}.dat", "deep".repeat(20), "name".repeat(40)),
            _ => format!("projects/m{:02}/d{:02}/f{i:06}.dat", i % 40, i % 53),
        }
        .into_bytes(),
        kind: EntryKind::File { size: u64::from(i % 7919) },
        mode: 0o644,
        uid: 1000,
        gid: 1000,
        extras: None,
        mtime: Timestamp { secs: 1_700_000_000 + i64::from(i), nanos: 123_456_789 },
    };
    (0..count).map(entry).collect()
}

fn headers(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = vec![0; entries.iter().map(header_len).sum()];
    let mut at = 0;
    for entry in entries {
        at += write_header(entry, &mut bytes[at..]);
    }
    bytes
}

/// Bytes without any pattern, the same every time.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| word()).take(len).collect()
}

fn text(len: usize) -> Vec<u8> {
    (0u32..)
        .flat_map(|i| format!("{} ERROR host{} took {} ms\n", i * 7, i % 40, i % 997).into_bytes())
        .take(len)
        .collect()
}

fn filled(pool: &Arc<Pool>, content: &[u8]) -> Buf {
    let mut buf = pool.take().expect("a buffer is free");
    buf[..content.len()].copy_from_slice(content);
    buf
}

#[test]
fn archive_write() {
    let entries = entries(5000);
    let mut bytes = headers(&entries);
    let len = measured(|| {
        let mut at = 0;
        for entry in &entries {
            at += header_len(entry).min(write_header(entry, &mut bytes[at..]));
        }
        at
    });
    assert_eq!(len, bytes.len());
}

#[test]
fn archive_parse() {
    let entries = entries(5000);
    let bytes = headers(&entries);
    let mut parser = Parser::new();
    let count = measured(|| {
        let (mut at, mut count) = (0, 0);
        while let Some(parsed) = parser.next(&bytes[at..]).expect("our own headers") {
            at += parsed.header_len;
            count += 1;
        }
        count
    });
    assert_eq!(count, entries.len());
}

#[test]
fn wire_headers() {
    let head = |seq| ChunkHead {
        seq: Seq(seq),
        kind: ChunkKind::Data { offset: seq << 20, sole: false },
        content_len: CHUNK_LEN as u32,
        payload_len: CHUNK_LEN as u32,
        codec: None,
        digest: Digest([seq as u8; 32]),
        seal: [0; 16],
    };
    let FrameKeys { mut out, .. } = SessionKeys::new([1; 32], None).dialer(LinkId(0), FIRST_NONCES);
    let FrameKeys { mut into, .. } = SessionKeys::new([1; 32], None).listener(LinkId(0), FIRST_NONCES);
    measured(|| {
        for seq in 0..2000 {
            let bytes = encode_chunk_header(&head(seq), &out);
            let read = decode_header(&bytes, &mut into).expect("our own header");
            out.sent();
            assert!(matches!(read, Header::Chunk(read) if read.seq.0 == seq));
        }
    });
}

#[test]
fn wire_acks() {
    let mut flow = RecvFlow::<()>::new(SessionId([1; 16]), Window::fixed(128));
    for link in 0..4 {
        flow.link_up(LinkId(link)).expect("a new link");
    }
    let ack = flow.ack();
    let mut bytes = Vec::new();
    let FrameKeys { mut out, .. } = SessionKeys::new([1; 32], Some(Cipher::Aes256Gcm)).dialer(LinkId(0), FIRST_NONCES);
    let FrameKeys { mut into, .. } =
        SessionKeys::new([1; 32], Some(Cipher::Aes256Gcm)).listener(LinkId(0), FIRST_NONCES);
    measured(|| {
        for _ in 0..2000 {
            bytes.clear();
            encode_control(&Control::Ack(ack.clone()), &mut out, &mut bytes);
            let (header, payload) = bytes.split_first_chunk_mut::<HEADER_LEN>().expect("a header");
            let Ok(Header::Control(header)) = decode_header(header, &mut into) else { panic!("our own header") };
            assert!(matches!(decode_control(&header, payload, &into), Ok(Control::Ack(_))));
        }
    });
}

/// Seal and open `count` chunks of this content.
fn seal_and_open(compress: Option<i32>, kind: ChunkKind, content: &[u8], count: u64) {
    let pool = Pool::new(2, CHUNK_LEN);
    let (mut sealer, mut opener) = (Sealer::new(compress), Opener::new());
    let mut transfer = TransferDigest::new();
    let mut buf = filled(&pool, content);
    let buf = measured(|| {
        for seq in 0..count {
            let sealed = sealer.seal(Seq(seq), kind, content.len(), buf);
            // the way through a socket, at its least
            let mut arrived = pool.take().expect("one is free");
            arrived[..sealed.payload().len()].copy_from_slice(sealed.payload());
            let chunk = opener.open(&sealed.head, arrived).unwrap_or_else(|(error, _)| panic!("{error}"));
            transfer.push(chunk.len, chunk.digest);
            buf = chunk.buf;
        }
        buf
    });
    assert!(buf[..content.len()] == *content);
}

#[test]
fn seal_and_open_data() {
    seal_and_open(None, ChunkKind::Data { offset: 1 << 30, sole: false }, &noise(CHUNK_LEN), 16);
}

#[test]
fn seal_and_open_small() {
    seal_and_open(None, ChunkKind::Mixed, &noise(3000), 1000);
}

#[test]
fn seal_and_open_noise_compressing() {
    seal_and_open(Some(3), ChunkKind::Mixed, &noise(CHUNK_LEN), 16);
}

#[test]
fn seal_and_open_text_compressing() {
    seal_and_open(Some(3), ChunkKind::Mixed, &text(CHUNK_LEN), 4);
}

/// Both halves of the protocol, four links that carry the chunks out of order, an ack for every fourth.
#[test]
fn flow() {
    const CHUNKS: u64 = 20_000;
    const LINKS: u32 = 4;
    let session = SessionId([7; 16]);
    let mut send = SendFlow::new(session, Schedule::Pull);
    let mut recv = RecvFlow::new(session, Window::fixed(128));
    for link in (0..LINKS).map(LinkId) {
        send.link_up(link);
        recv.link_up(link).expect("a new link");
    }
    let delivered = measured(|| {
        let (mut sealed, mut delivered, mut turn) = (0, 0, 0u64);
        while !send.all_acked() {
            let now = Duration::from_micros(turn * 10);
            turn += 1;
            while sealed < CHUNKS.min(send.acked() + 128) {
                send.sealed(session, Seq(sealed), sealed);
                sealed += 1;
            }
            if sealed == CHUNKS {
                send.ended(CHUNKS);
            }
            // What the links carry at once arrives last link first.
            let mut on_the_way = [None; LINKS as usize];
            for (link, slot) in (0..LINKS).map(LinkId).zip(&mut on_the_way) {
                if let Poll::Send(take) = send.poll_send(link, now) {
                    send.sent(link, take.seq, now);
                    *slot = Some((link, take.seq, take.payload));
                }
            }
            for (link, seq, payload) in on_the_way.into_iter().rev().flatten() {
                let arrival = recv.begin(link, seq).expect("within the credit");
                let verdict = recv.verified(session, link, arrival.index, seq, payload);
                assert!(matches!(verdict, Verdict::Held));
            }
            while let Some((seq, payload)) = recv.poll_deliver() {
                assert_eq!(seq.0, payload);
                delivered += 1;
                recv.released(session, 1);
            }
            send.handle_ack(&recv.ack(), now).expect("an ack of our own");
        }
        delivered
    });
    assert_eq!(delivered, CHUNKS);
}

/// Opening, reading and laying out small files: what the kernel does for it is not counted.
#[test]
fn fill_small_files() {
    const FILES: usize = 600;
    let dir = tempfile::tempdir().expect("a place for temporary files");
    for i in 0..FILES {
        let sub = dir.path().join(format!("d{:02}", i % 20));
        fs::create_dir_all(&sub).expect("a directory");
        fs::write(sub.join(format!("f{i:04}")), noise(100 + i * 13)).expect("a file");
    }
    let pool = Pool::new(4, CHUNK_LEN);
    let tree = open_tree(&[dir.path().to_path_buf()]).expect("it is there");
    let notes = Arc::new(NoteSink::new());
    let running = start(tree, Layout::Archive, pool, Arc::new(Stats::default()), notes.clone(), 1);
    let mut scratch = FillScratch::default();
    let mut bytes = 0;
    for planned in &running.planned {
        bytes += measured(|| planned.fill(&mut scratch)).len;
    }
    let end = running.join().expect("all was read");
    assert_eq!((end.entries, end.stream_bytes), (FILES as u64 + 21, bytes as u64));
    assert!(notes.is_empty());
}
