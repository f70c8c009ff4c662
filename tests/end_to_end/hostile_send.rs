//! A sender that says anything, against the real receiver: any frame in any state, every limit and one past it, numbers
//! far ahead, ends that contradict each other, lying digests, bombs, floods. Each is named for what it is, on the
//! receiver's own words and with its exit code; or it is harmless, and then the same session still comes to its end as
//! if nothing had been. Memory stays within the window, whatever is said.

use std::time::{Duration, Instant};

use blast::chunk::chunk_digest;
use blast::ids::{Digest, LinkId, Seq, SessionId};
use blast::limits::{CHUNK_LEN, CONTROL_MAX, NOTES_MAX};
use blast::report::{Note, NoteKind};
use blast::wire::*;

use super::wire_peer::*;
use crate::ends::{End, peak_memory, recv, scratch};
use crate::first;
use crate::trees::random_bytes;

/// What the receiver has to make of it.
#[derive(Clone, Copy)]
pub enum Right {
    /// It ends with that code and says so.
    Names(i32, &'static str),
    /// The session goes on: the same peer sends everything as it should, and all is well.
    Harmless,
}
use Right::{Harmless, Names};

/// One kind of mischief in a session whose port is known.
type Row = (&'static str, fn(&mut Peer, u16), Right);

/// The window that the receivers are given, MiB.
const WINDOW: u64 = 8;

/// What a process may hold beside its window and a buffer for each link: the program, its caches, its queues.
const BESIDE: u64 = 64 << 20;

/// Chunks of 8 damaged copies in a row make a link hopeless.
const HOPELESS: &str = "damages every chunk";

const RECEIVERS: &str = "a receiver's frame to the receiver";

const ROWS: &[Row] = &[
    ("nothing at all", |_, _| {}, Harmless),
    // numbers
    ("a chunk at the limit", |p, _| at_number(p, |limit| limit), Names(6, "only chunks below")),
    ("a chunk far ahead", |p, _| at_number(p, |_| 1 << 40), Names(6, "only chunks below")),
    ("the highest chunk there is", |p, _| at_number(p, |_| u64::MAX), Names(6, "only chunks below")),
    ("the last chunk allowed, first", |p, _| at_number(p, |limit| limit - 1), Names(6, "was said to end after")),
    ("a chunk a hundred times", |p, _| (0..100).for_each(|_| p.chunk(piece(0))), Harmless),
    ("another content under a number that is taken", another_content, Names(6, "digest")),
    (
        "another content after the true one",
        |p, _| {
            p.chunk(piece(0));
            p.in_step();
            p.chunk(lie(0))
        },
        Harmless,
    ),
    ("empty chunks without end", |p, _| empty_chunks(p), Names(6, "does not go on where the file's slices end")),
    // the end
    (
        "Finish twice",
        |p, _| {
            p.control(Control::Finish(finish()));
            p.control(Control::Finish(finish()))
        },
        Harmless,
    ),
    ("two different ends", |p, _| ends(p, &[f(|f| f.entries = 2), finish()]), Names(6, "contradicts its own Finish")),
    ("an end that is never reached", |p, _| ends(p, &[f(|f| f.chunks = u64::MAX), finish()]), Names(6, "contradicts")),
    ("an end before what has come", |p, _| ended_early(p), Names(6, "was said to end after 1 chunks, but 2 are known")),
    ("data after the end", |p, _| after_the_end(p), Names(6, "has only 1 chunks")),
    ("a wrong number of bytes", |p, _| whole_with(p, f(|f| f.bytes += 1)), Names(6, "stream bytes")),
    ("a highest number of bytes", |p, _| whole_with(p, f(|f| f.bytes = u64::MAX)), Names(6, "stream bytes")),
    ("a lying digest of all", |p, _| whole_with(p, f(|f| f.digest = Digest([1; 32]))), Names(6, "the sender says")),
    ("one note too many announced", |p, _| ends(p, &[f(|f| f.notes = NOTES_MAX as u64 + 1)]), Names(6, "announces")),
    ("losses beyond counting", |p, _| whole_with(p, f(|f| f.unnamed = (u64::MAX, u64::MAX))), Names(1, "")),
    ("losses beyond counting, and a note", losses_and_a_note, Names(1, "")),
    (
        "goodbye before the end",
        |p, port| {
            p.control(Control::Bye);
            p.rejoin(port, 1)
        },
        Harmless,
    ),
    // notes
    ("notes without end", |p, _| notes_without_end(p, 10), Names(6, "more notes than a side keeps")),
    ("long notes without end", |p, _| notes_without_end(p, 4000), Names(6, "more notes than a side keeps")),
    ("notes far ahead", |p, _| p.say(&notes(1 << 40, 3, 10)), Harmless),
    ("notes with the highest number", |p, _| p.say(&notes(u64::MAX - 1, 3, 10)), Names(6, "too large")),
    ("the same notes a hundred times", |p, _| (0..100).for_each(|_| p.say(&notes(0, 0, 10))), Harmless),
    ("more notes in a frame than it says", |p, _| control(p, 3, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 4]), Names(6, "notes")),
    ("a note that ends early", |p, _| control(p, 3, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]), Names(6, "ends early")),
    // what only a receiver says
    ("an acknowledgement", |p, _| p.control(Control::Ack(Ack::default())), Names(6, RECEIVERS)),
    ("addresses", |p, _| p.control(Control::Links(Vec::new())), Names(6, RECEIVERS)),
    ("a commit", |p, _| control(p, 8, &[0; 132]), Names(6, "Commit")),
    // frames that are none
    ("kind 0", |p, _| control(p, 0, b""), Names(6, "unknown kind of frame: 0")),
    ("kind 11", |p, _| control(p, 11, b""), Names(6, "unknown kind of frame: 11")),
    ("kind 255", |p, _| control(p, 255, b""), Names(6, "unknown kind of frame: 255")),
    ("a ping of nine bytes", |p, _| control(p, 4, &[0; 9]), Names(6, "malformed Ping")),
    ("a ping of seven bytes", |p, _| control(p, 4, &[0; 7]), Names(6, "malformed Ping")),
    ("a goodbye with words", |p, _| control(p, 9, b"x"), Names(6, "malformed Bye")),
    ("a Finish that ends early", |p, _| control(p, 7, &[0; 80]), Names(6, "malformed Finish")),
    ("a control frame with a number", |p, _| changed(p, |b| b[24] = 1), Names(6, "reserved")),
    ("a control frame with flags", |p, _| changed(p, |b| b[17] = 2), Names(6, "reserved")),
    ("a control frame that is too long", |p, _| length(p, CONTROL_MAX + 1), Names(6, "more than")),
    ("a control frame of 4 GiB", |p, _| length(p, u32::MAX as usize), Names(6, "more than")),
    ("reserved flags", |p, _| bad_chunk(p, |b| b[17] |= 0x80), Names(6, "reserved bits")),
    ("reserved bytes", |p, _| bad_chunk(p, |b| b[18] = 1), Names(6, "reserved bits")),
    ("a frame of the listing", |p, _| bad_chunk(p, |b| b[17] |= 1), Names(6, "listing")),
    ("a payload beyond a chunk", |p, _| bad_chunk(p, |b| put(b, 20, CHUNK_LEN as u32 + 1)), Names(6, "more than")),
    ("a payload of 4 GiB", |p, _| bad_chunk(p, |b| put(b, 20, u32::MAX)), Names(6, "more than")),
    ("a content of 4 GiB", |p, _| bad_chunk(p, |b| put(b, 40, u32::MAX)), Names(6, "more than")),
    ("a payload of another length", |p, _| bad_chunk(p, |b| put(b, 20, 7)), Names(6, "not as long as its content")),
    (
        "an empty slice",
        |p, _| {
            bad_chunk(p, |b| {
                put(b, 20, 0);
                put(b, 40, 0)
            })
        },
        Names(6, "an empty slice"),
    ),
    ("a slice between chunks", |p, _| bad_chunk(p, |b| b[32] = 1), Names(6, "impossible offset")),
    ("a slice beyond the end of files", |p, _| bad_chunk(p, |b| b[39] = 0xff), Names(6, "impossible offset")),
    (
        "a mixed slice",
        |p, _| {
            bad_chunk(p, |b| {
                b[17] = 0;
                b[34] = 16
            })
        },
        Names(6, "mixed and a slice"),
    ),
    ("compressed to more", |p, _| bad_chunk(p, |b| b[17] |= 8), Names(6, "did not make it smaller")),
    (
        "noise",
        |p, port| {
            p.say_as_it_is(&random_bytes(3, 10_000));
            p.rejoin(port, 1)
        },
        Harmless,
    ),
    ("a header with another tag", |p, port| broken_tag(p, port), Harmless),
    ("a control frame with another digest", |p, port| broken_digest(p, port), Harmless),
    // what is in a chunk
    ("a lying digest", |p, _| p.chunk(liar(0)), Harmless),
    ("lying digests, one after the other", |p, _| repeat(p, liar(0)), Names(6, HOPELESS)),
    ("a bomb that says what it is", |p, _| p.chunk(compressed(&bomb())), Harmless),
    ("bombs that say what they are", |p, _| repeat(p, compressed(&bomb())), Names(6, HOPELESS)),
    ("a bomb that lies about itself", |p, _| p.chunk(compressed(&lying_bomb())), Harmless),
    ("bombs that lie about themselves", |p, _| repeat(p, compressed(&lying_bomb())), Names(6, HOPELESS)),
    ("a window of 3.75 TiB", |p, _| p.chunk(compressed(&wide(0xff))), Harmless),
    ("windows of 3.75 TiB", |p, _| repeat(p, compressed(&wide(0xff))), Names(6, HOPELESS)),
    ("windows of 2 GiB", |p, _| repeat(p, compressed(&wide(21 << 3))), Names(6, HOPELESS)),
    ("no frame of zstd", |p, _| repeat(p, compressed(&[7; 1000])), Names(6, HOPELESS)),
    ("no stream of bzip2", |p, _| repeat(p, in_codec(Codec::Bzip2, &[7; 1000])), Names(6, HOPELESS)),
    ("a bzip2 stream of more than it says", |p, _| p.chunk(in_codec(Codec::Bzip2, &bzip2_bomb())), Harmless),
    (
        "bzip2 streams of more than they say",
        |p, _| repeat(p, in_codec(Codec::Bzip2, &bzip2_bomb())),
        Names(6, HOPELESS),
    ),
    ("a slice of elsewhere", |p, _| p.chunk(data(0, 1 << 30, &content()[..CHUNK_LEN])), Names(6, "")),
    (
        "a mixed chunk of a raw stream",
        |p, _| p.chunk(of_kind(0, ChunkKind::Mixed, b"x")),
        Names(6, "does not go on where the file's slices end"),
    ),
    ("an only slice of several", only_of_several, Names(6, "")),
    ("a slice after the last", after_the_last, Names(6, "")),
    // floods
    ("pings without end", |p, _| flood(p, &encoded(&Control::Ping(1)), 200_000), Harmless),
    (
        "pings from one who never listens",
        |p, _| {
            p.go_deaf();
            flood(p, &encoded(&Control::Ping(1)), 200_000);
            p.close()
        },
        Names(4, "incomplete"),
    ),
    ("duplicates without end", |p, _| duplicates(p), Harmless),
    ("ends without end", |p, _| flood(p, &encoded(&Control::Finish(finish())), 50_000), Harmless),
    // connections
    ("a Join under an id that is taken", |p, port| joins(p, port, &[0, 0, 0]), Harmless),
    ("joins without end", |p, port| joins(p, port, &(1..200).collect::<Vec<_>>()), Harmless),
    ("the same Join again and again", |p, port| joins(p, port, &[5; 100]), Harmless),
    ("the highest id", |p, port| joins(p, port, &[u32::MAX, u32::MAX]), Harmless),
    ("a Join of another session", |_, port| stranger(port, |s| join(s, 1)), Harmless),
    (
        "another Hello",
        |p, port| {
            p.in_step();
            another_hello(port)
        },
        Harmless,
    ),
    ("a receiver's greeting", |_, port| stranger(port, joined), Harmless),
    // last words
    ("an end that was well", |p, _| abort(p, blast::ExitCode::Whole), Names(6, "the other side stopped")),
    ("an end that was nearly well", |p, _| abort(p, blast::ExitCode::Partial), Names(6, "the other side stopped")),
    (
        "an end with a code",
        |p, _| abort(p, blast::ExitCode::Destination),
        Names(5, "the other side stopped: \\x1b[31m"),
    ),
    ("goodbye without what was announced", |p, _| goodbye_early(p), Names(4, "incomplete")),
];

#[test]
fn whatever_a_sender_says_is_named_or_harmless_and_costs_no_memory() {
    assert!(ROWS.len() > 70);
    in_parallel(ROWS.len(), |row| {
        let (name, mischief, right) = ROWS[row];
        let receiver = recv("-").args(&["--window", &format!("{WINDOW}M"), "--no-encrypt"]).start();
        let port = receiver.port();
        let began = Instant::now();
        let (committed, peak) = watched(name, &receiver, || {
            let mut peer = Peer::sender(port, Offer::Stream);
            mischief(&mut peer, port);
            match right {
                Harmless => peer.send_honestly(),
                Names(..) => {
                    peer.hear_out();
                    false
                }
            }
        });
        let outcome = receiver.wait();
        println!("{name}: code {:?} after {:?}, peak {} MiB", outcome.code, began.elapsed(), peak >> 20);
        match right {
            Harmless => {
                assert_eq!((outcome.code, committed), (Some(0), true), "{name}: {outcome:?}");
                assert!(outcome.out == content(), "{name}: the stream arrived as it was sent");
            }
            Names(code, words) => {
                assert_eq!(outcome.code, Some(code), "{name}: {outcome:?}");
                assert!(outcome.err.contains(words), "{name}: '{words}' is missing: {outcome:?}");
                assert!(code == 1 || !outcome.err.contains("whole:"), "{name}: {outcome:?}");
            }
        }
        assert!(!outcome.err.contains("panicked") && outcome.code != Some(70), "{name}: {outcome:?}");
        let bound = BESIDE + (WINDOW << 20) + (64 << 20);
        assert!(peak <= bound, "{name}: {} MiB", peak >> 20);
    });
}

/// RUSTSEC-2026-0185: each piece that came out of order left a gap that was remembered, without a bound. Here every
/// other number that may come comes first, each again and again, and what is said of numbers beyond costs nothing at
/// all.
#[test]
fn rustsec_2026_0185_gaps_without_end_cost_no_more_than_the_window() {
    let receiver = recv("-").args(&["--window", &format!("{WINDOW}M"), "--no-encrypt"]).start();
    let port = receiver.port();
    let ((), peak) = watched("gaps", &receiver, || {
        let mut peer = Peer::sender(port, Offer::Stream);
        let limit = peer.credited();
        assert!(limit <= WINDOW, "{limit} chunks are allowed");
        for round in 0..40 {
            for seq in (1..limit).step_by(2) {
                peer.chunk(data(seq, seq * CHUNK_LEN as u64, &content()[..CHUNK_LEN]));
            }
            peer.in_step();
            assert!(!peer.gone, "round {round}");
        }
        let held: u32 = peer.ack.bitmap.iter().map(|word| word.count_ones()).sum();
        assert!(u64::from(held) <= limit / 2 && peer.ack.next == 0, "{held} are held");
        peer.chunk(data(limit + 1, (limit + 1) * CHUNK_LEN as u64, b"x"));
        peer.hear_out();
    });
    receiver.wait().expect(6).claims_nothing().tells("only chunks below");
    println!("peak {} MiB", peak >> 20);
    assert!(peak <= BESIDE + (WINDOW << 20) + (64 << 20), "{} MiB", peak >> 20);
}

/// Archives: what the parser refuses is the session's end as well, and nothing is left of it.
#[test]
fn an_archive_that_is_none_ends_the_session_and_leaves_nothing() {
    let not_tar: &[(&str, ChunkKind, &[u8], &str)] = &[
        ("noise", ChunkKind::Mixed, &[0x5a; 1024], "a header is not in ustar format"),
        ("half a block", ChunkKind::Mixed, &[0; 100], ""),
        ("a slice of no file", ChunkKind::Data { offset: 0, sole: true }, b"x", ""),
    ];
    for (name, kind, content, words) in not_tar {
        let dir = scratch();
        let dest = dir.path().join("d");
        let receiver = recv(&dest).args(&["--window", "8M", "--no-encrypt"]).start();
        let mut peer = Peer::sender(receiver.port(), Offer::Tree { sources: 1 });
        let chunk = of_kind(0, *kind, content);
        let mut digest = blast::chunk::TransferDigest::new();
        digest.push(content.len(), chunk.0.digest);
        peer.chunk(chunk);
        let end = f(|f| (f.chunks, f.bytes, f.digest) = (1, content.len() as u64, digest.finish()));
        peer.control(Control::Finish(end));
        let outcome = receiver.wait_within(Duration::from_secs(20));
        println!("{name}: {outcome:?}");
        outcome.expect(6).claims_nothing().tells(words);
        assert!(std::fs::read_dir(&dest).map_or(0, Iterator::count) == 0, "{name}: nothing is left");
    }
}

/// Do that while the process is watched to its end; with the most memory that it had.
pub fn watched<T>(name: &str, end: &End, act: impl FnOnce() -> T) -> (T, u64) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while let Some(now) = peak_memory(end.id()) {
                peak = now.max(peak);
                if end.ends_within(Duration::from_millis(20)) {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(40), "{name}: {}", end.said());
            }
            peak
        });
        let done = act();
        (done, watch.join().unwrap())
    })
}

/// Run each row once, a few at the same time.
pub fn in_parallel(rows: usize, run: impl Fn(usize) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let row = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if row >= rows {
                        return;
                    }
                    run(row);
                }
            });
        }
    });
}

fn at_number(peer: &mut Peer, number: impl Fn(u64) -> u64) {
    let limit = peer.credited();
    peer.chunk(data(number(limit), 0, &content()[..CHUNK_LEN]));
    peer.control(Control::Finish(finish()));
}

fn lie(seq: u64) -> (ChunkHead, Vec<u8>) {
    data(seq, seq * CHUNK_LEN as u64, &vec![1; CHUNK_LEN])
}

fn another_content(peer: &mut Peer, _: u16) {
    peer.chunk(lie(0));
    peer.in_step();
    (0..CHUNKS).for_each(|seq| peer.chunk(piece(seq)));
    peer.control(Control::Finish(finish()));
}

fn empty_chunks(peer: &mut Peer) {
    let mut seq = 0;
    while seq < 10_000 && !peer.gone {
        peer.chunk(of_kind(seq % 4, ChunkKind::Mixed, b""));
        seq += 1;
    }
}

/// The true Finish but for that.
fn f(change: impl Fn(&mut Finish)) -> Finish {
    let mut finish = finish();
    change(&mut finish);
    finish
}

fn ends(peer: &mut Peer, ends: &[Finish]) {
    ends.iter().for_each(|end| peer.control(Control::Finish(*end)));
}

fn ended_early(peer: &mut Peer) {
    peer.chunk(piece(1));
    peer.in_step();
    ends(peer, &[f(|f| f.chunks = 1)]);
}

fn after_the_end(peer: &mut Peer) {
    ends(peer, &[f(|f| f.chunks = 1)]);
    peer.in_step();
    peer.chunk(piece(1));
}

/// All chunks, and then that end.
fn whole_with(peer: &mut Peer, end: Finish) {
    (0..CHUNKS).for_each(|seq| peer.chunk(piece(seq)));
    ends(peer, &[end]);
    if peer.until(|_, heard| matches!(heard, Heard::Control(Control::Commit(_)))) {
        peer.control(Control::Bye);
    }
}

fn losses_and_a_note(peer: &mut Peer, _: u16) {
    peer.say(&notes(0, 1, 10));
    whole_with(peer, f(|f| (f.notes, f.unnamed) = (1, (u64::MAX, u64::MAX))));
}

fn notes(first: u64, count: usize, len: usize) -> Vec<u8> {
    let note = Note { kind: NoteKind::Vanished, path: vec![b'x'; len], detail: String::new() };
    encoded(&Control::Notes { first, notes: vec![note; count] })
}

fn notes_without_end(peer: &mut Peer, len: usize) {
    let mut first = 0;
    for _ in 0..20_000 {
        let note = Note { kind: NoteKind::Vanished, path: vec![b'x'; len], detail: String::new() };
        let notes = vec![note; 1000];
        let fitting = notes_that_fit(&notes);
        peer.control(Control::Notes { first, notes: notes[..fitting].to_vec() });
        if peer.gone {
            return;
        }
        first += fitting as u64;
    }
}

fn control(peer: &mut Peer, kind: u8, payload: &[u8]) {
    peer.say(&control_of(kind, payload));
}

/// A ping whose header was changed.
fn changed(peer: &mut Peer, patch: impl Fn(&mut [u8])) {
    peer.say(&patched(encoded(&Control::Ping(1)), patch));
}

fn length(peer: &mut Peer, len: usize) {
    changed(peer, |bytes| put(bytes, 20, len as u32));
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Chunk 0 with another header.
fn bad_chunk(peer: &mut Peer, patch: impl Fn(&mut [u8])) {
    peer.say(&patched(frame(piece(0)), patch));
}

fn broken_tag(peer: &mut Peer, port: u16) {
    let mut bytes = frame(piece(0));
    bytes[3] ^= 1;
    peer.say_as_it_is(&bytes);
    peer.rejoin(port, 1);
}

fn broken_digest(peer: &mut Peer, port: u16) {
    let mut bytes = encoded(&Control::Finish(f(|f| f.entries = 9)));
    bytes[HEADER_LEN] ^= 1;
    peer.say(&bytes);
    peer.rejoin(port, 1);
}

/// A chunk that is not what its digest says.
fn liar(seq: u64) -> (ChunkHead, Vec<u8>) {
    let (head, content) = piece(seq);
    (ChunkHead { digest: Digest([1; 32]), ..head }, content)
}

fn repeat(peer: &mut Peer, chunk: (ChunkHead, Vec<u8>)) {
    (0..20).for_each(|_| peer.chunk((chunk.0, chunk.1.clone())));
}

/// Chunk 0 in these bytes, which are said to be zstd's.
fn compressed(payload: &[u8]) -> (ChunkHead, Vec<u8>) {
    in_codec(Codec::Zstd, payload)
}

/// Chunk 0 in these bytes, which are said to be that codec's.
fn in_codec(codec: Codec, payload: &[u8]) -> (ChunkHead, Vec<u8>) {
    let zeros = vec![0; CHUNK_LEN];
    let kind = ChunkKind::Data { offset: 0, sole: false };
    let digest = chunk_digest(kind, &zeros);
    let (content_len, payload_len) = (CHUNK_LEN as u32, payload.len() as u32);
    (
        ChunkHead { seq: Seq(0), kind, content_len, payload_len, codec: Some(codec), digest, seal: [0; 16] },
        payload.to_vec(),
    )
}

/// 64 MiB in a few hundred bytes.
fn bzip2_bomb() -> Vec<u8> {
    let mut out = vec![0; 4096];
    let mut stream = bzip2::Compress::new(bzip2::Compression::best(), 0);
    let done = stream.compress(&vec![0; 64 << 20], &mut out, bzip2::Action::Finish).unwrap();
    assert_eq!(done, bzip2::Status::StreamEnd);
    out.truncate(stream.total_out() as usize);
    out
}

/// 256 MiB in a few KiB.
fn bomb() -> Vec<u8> {
    zstd::bulk::compress(&vec![0; 256 << 20], 1).unwrap()
}

/// The same, which says that it is one chunk.
fn lying_bomb() -> Vec<u8> {
    let mut bytes = bomb();
    // magic 4, descriptor 1, then the content's length, of four bytes, behind the window's where there is one
    let at = if bytes[4] & 0x20 != 0 { 5 } else { 6 };
    assert_eq!(bytes[4] >> 6, 2);
    put(&mut bytes, at, CHUNK_LEN as u32);
    bytes
}

/// A frame that asks for that window and holds a block of a kind that there is not.
fn wide(window: u8) -> Vec<u8> {
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0x80, window];
    bytes.extend_from_slice(&(CHUNK_LEN as u32).to_le_bytes());
    // eight blocks of 128 KiB of one byte that is not what the digest says, the last marked
    for block in 0..8u32 {
        let header = (128u32 << 10) << 3 | 1 << 1 | u32::from(block == 7);
        bytes.extend_from_slice(&header.to_le_bytes()[..3]);
        bytes.push(1);
    }
    bytes
}

fn only_of_several(peer: &mut Peer, _: u16) {
    peer.chunk(of_kind(0, ChunkKind::Data { offset: 0, sole: true }, &content()[..CHUNK_LEN]));
    (1..CHUNKS).for_each(|seq| peer.chunk(piece(seq)));
    ends(peer, &[finish()]);
}

fn after_the_last(peer: &mut Peer, _: u16) {
    (0..CHUNKS).for_each(|seq| peer.chunk(piece(seq)));
    peer.chunk(data(3, 3 * CHUNK_LEN as u64, b"more"));
    ends(peer, &[f(|f| f.chunks = 4)]);
}

pub fn flood(peer: &mut Peer, frame: &[u8], count: usize) {
    let many = frame.repeat(100);
    (0..count / 100).for_each(|_| peer.say(&many));
}

fn duplicates(peer: &mut Peer) {
    peer.chunk(piece(0));
    peer.in_step();
    let again = frame(piece(0));
    (0..300).for_each(|_| peer.say(&again));
}

fn join(session: SessionId, link: u32) -> Handshake {
    Handshake::Join { session, link: LinkId(link), nonce: [9; 16] }
}

fn joined(session: SessionId) -> Handshake {
    Handshake::Joined { session, link: LinkId(1), nonce: [9; 16], own: [8; 16] }
}

/// Connections that join and then say nothing; those that are up stay until the end.
fn joins(peer: &mut Peer, port: u16, links: &[u32]) {
    peer.in_step();
    let key = peer.keys.joins();
    let kept: Vec<_> = links.iter().filter_map(|link| knock(port, &join(peer.session, *link), &key)).collect();
    let taken = kept.iter().filter(|(_, answer)| matches!(answer, Handshake::Joined { .. })).count();
    let mut ids = links.to_vec();
    ids.dedup();
    assert!(taken <= ids.len().min(64), "{taken} of {links:?}");
    assert!(taken == 0 || links[0] != 0, "an id that is taken");
    peer.kept.extend(kept.into_iter().map(|(stream, _)| stream));
}

fn stranger(port: u16, message: impl Fn(SessionId) -> Handshake) {
    let key = SessionKeys::new([8; 32], None).joins();
    let (_, answer) = knock(port, &message(SessionId([8; 16])), &key).expect("an answer");
    assert!(matches!(answer, Handshake::Refuse { .. }), "{answer:?}");
}

fn another_hello(port: u16) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let answer = first::greet(&mut stream, &first::hello(SessionId([8; 16]), Offer::Stream));
    let refused = answer.map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("busy with another sender"), "{refused}");
}

fn abort(peer: &mut Peer, code: blast::ExitCode) {
    peer.control(Control::Abort { code, reason: "\x1b[31m".into() });
}

fn goodbye_early(peer: &mut Peer) {
    peer.chunk(piece(0));
    ends(peer, &[finish()]);
    peer.control(Control::Bye);
}
