//! A receiver that says anything, against the real sender: acknowledgements of what was never sent, credit far ahead or
//! falling, frames that only a sender says, commits too early or of something else, floods. Each is named for what it
//! is, on the sender's own words and with its exit code; or it is harmless, and then the same session still comes to
//! its end as if nothing had been. Memory stays within the window, whatever is said.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Instant;

use blast::ExitCode;
use blast::ids::{Digest, LinkId, SessionId};
use blast::limits::{CONTROL_MAX, WINDOW_MAX};
use blast::wire::*;

use super::hostile_send::Right::{self, Harmless, Names};
use super::hostile_send::{flood, in_parallel, watched};
use super::wire_peer::*;
use crate::ends::{scratch, send};
use crate::trees::write;

/// One kind of mischief once the receiver has agreed.
type Row = (&'static str, fn(&mut Peer), Right);

/// The window that the senders are given, MiB.
const WINDOW: u64 = 8;

/// What a process may hold beside its window and a buffer for each link.
const BESIDE: u64 = 64 << 20;

const SENDERS: &str = "a sender's frame to the sender";

const ROWS: &[Row] = &[
    ("nothing at all", |_| {}, Harmless),
    // acknowledgements
    ("an ack of what was never sent", |p| ack(p, |a| a.next = 100), Names(6, "acknowledged but never sent")),
    ("an ack far ahead", |p| ack(p, |a| a.next = 1 << 40), Names(6, "more chunks are allowed|never sent")),
    ("the highest ack", |p| raw_ack(p, &[u64::MAX, u64::MAX, 0, 0], 0), Names(6, "too large")),
    ("the highest ack that fits", |p| ack(p, |a| a.next = u64::MAX - 1024), Names(6, "never sent")),
    ("a chunk held that was never sent", |p| ack(p, |a| a.bitmap[3] = 1 << 9), Names(6, "never sent")),
    (
        "everything held",
        |p| ack(p, |a| a.bitmap = [!1, !0, !0, !0, !0, !0, !0, !0, !0, !0, !0, !0, !0, !0, !0, !0]),
        Names(6, "never sent"),
    ),
    ("missing and held", |p| raw_ack(p, &[0, 4, 0, 0], 1), Names(6, "missing and held")),
    ("durable before it is here", |p| ack(p, |a| a.durable = 1), Names(6, "durable before it has arrived")),
    ("the highest durable mark", |p| ack(p, |a| a.durable = u64::MAX), Names(6, "durable before it has arrived")),
    ("notes that were never sent", |p| ack(p, |a| a.notes = u64::MAX), Harmless),
    ("the largest window", |p| ack(p, |a| a.credit_limit = u64::from(WINDOW_MAX)), Harmless),
    (
        "one more than the largest window",
        |p| ack(p, |a| a.credit_limit = u64::from(WINDOW_MAX) + 1),
        Names(6, "largest window"),
    ),
    ("credit without end", |p| ack(p, |a| a.credit_limit = u64::MAX), Names(6, "largest window")),
    ("credit that falls", falling_credit, Harmless),
    ("an ack that falls back", |p| falling_ack(p), Harmless),
    ("frames settled that were never carried", |p| settled(p, 0, 1000), Names(6, "frames were settled on link 0")),
    ("the most frames settled", |p| settled(p, 0, u64::MAX), Names(6, "frames were settled on link 0")),
    ("frames settled of no link", |p| settled(p, 4_000_000, u64::MAX), Harmless),
    ("a link named twice", |p| ack(p, |a| a.links.extend([(LinkId(0), 0), (LinkId(0), 0)])), Harmless),
    ("more links than there can be", |p| long_list(p), Names(6, "list of links")),
    ("an ack that ends early", |p| control(p, 2, &[0; 100]), Names(6, "malformed Ack")),
    ("an ack with bytes left over", |p| control(p, 2, &[0; 163]), Names(6, "malformed Ack")),
    ("every chunk lost again and again", lose_all, Names(6, "failed verification 64 times")),
    ("a chunk lost once", |p| lose(p, 1), Harmless),
    // what only a sender says
    ("a chunk", |p| p.chunk(piece(0)), Names(6, "a chunk to the sender")),
    ("an end", |p| p.control(Control::Finish(finish())), Names(6, SENDERS)),
    ("notes", |p| p.control(Control::Notes { first: 0, notes: Vec::new() }), Names(6, SENDERS)),
    ("a goodbye", |p| p.control(Control::Bye), Names(6, SENDERS)),
    // commits
    ("a commit before the end", |p| p.commit(commit()), Names(6, "committed before|has digest|entries")),
    ("a commit of something else", other_commit, Names(6, "the receiver has digest")),
    (
        "a commit with another stream",
        |p| commit_with(p, |c| c.stream_digest = Some(Digest([4; 32]))),
        Names(6, "another BLAKE3"),
    ),
    ("losses beyond counting", |p| commit_with(p, |c| c.totals = (u64::MAX, u64::MAX)), Names(1, "")),
    (
        "a highest number of entries",
        |p| commit_with(p, |c| (c.entries, c.content_bytes) = (u64::MAX, u64::MAX)),
        Names(6, "entries|content bytes"),
    ),
    ("fewer bytes than were sent", |p| commit_with(p, |c| c.content_bytes -= 1), Names(6, "content bytes")),
    ("a commit that ends early", |p| control(p, 8, &[0; 20]), Names(6, "malformed Commit")),
    ("a commit of a failure", |p| control(p, 8, &[6; 132]), Names(6, "Commit")),
    ("a commit from one who hears nothing then", deaf_commit, Names(0, "")),
    // frames that are none
    ("kind 0", |p| control(p, 0, b""), Names(6, "unknown kind of frame: 0")),
    ("kind 11", |p| control(p, 11, b""), Names(6, "unknown kind of frame: 11")),
    ("a control frame that is too long", |p| length(p, CONTROL_MAX + 1), Names(6, "more than")),
    ("a control frame of 4 GiB", |p| length(p, u32::MAX as usize), Names(6, "more than")),
    ("a chunk of 4 GiB", |p| bad_chunk(p), Names(6, "more than")),
    ("a frame of the listing", |p| p.say(&patched(encoded(&Control::Ping(1)), |b| b[17] = 1)), Names(6, "listing")),
    ("more addresses than there can be", |p| control(p, 6, &[0xff; 100]), Names(6, "addresses")),
    ("an address of no family", |p| control(p, 6, &[&[1, 0][..], &[0; 40]].concat()), Names(6, "")),
    // floods
    ("pings without end", |p| flood(p, &encoded(&Control::Ping(1)), 200_000), Harmless),
    ("the same ack without end", |p| flood(p, &encoded(&Control::Ack(Ack::default())), 30_000), Harmless),
    ("addresses without end", addresses, Harmless),
    ("pings from one who never listens", deaf, Names(4, "")),
    // last words
    ("an end that was well", |p| abort(p, ExitCode::Whole), Names(6, "the other side stopped")),
    ("an end that was nearly well", |p| abort(p, ExitCode::Partial), Names(6, "the other side stopped")),
    ("an end with a code", |p| abort(p, ExitCode::Destination), Names(5, "the other side stopped: \\x1b[31m")),
];

#[test]
fn whatever_a_receiver_says_is_named_or_harmless_and_costs_no_memory() {
    in_parallel(ROWS.len(), |row| {
        let (name, mischief, right) = ROWS[row];
        meet(name, welcome(4), right, |peer| {
            mischief(peer);
            if let Names(..) = right {
                peer.hear_out();
            } else {
                peer.receive_honestly();
                let commit = peer.true_commit();
                assert_eq!(commit.digest, finish().digest, "{name}");
                peer.commit(commit);
            }
        });
    });
}

/// What may stand in place of Welcome, and how the sender calls it.
#[test]
fn an_answer_that_is_no_welcome_is_named() {
    type Answer = fn(SessionId) -> Vec<u8>;
    let rows: &[(&str, Answer, i32, &str)] = &[
        ("another session's", |_| greeting(&welcomed(SessionId([1; 16]), 4), |_| {}), 4, "not Welcome"),
        ("no window", |s| greeting(&welcomed(s, 4), |b| b[PREFIX_LEN + 20] = 0), 4, "window"),
        ("a window beyond the largest", |s| greeting(&welcomed(s, 4), |b| b[PREFIX_LEN + 22] = 1), 4, "window"),
        ("no layout", |s| greeting(&welcomed(s, 4), |b| b[PREFIX_LEN + 16] = 9), 4, "layout"),
        (
            "a Joined",
            |s| greeting(&Handshake::Joined { session: s, link: LinkId(0), nonce: [0; 16], own: [0; 16] }, |_| {}),
            4,
            "not Welcome",
        ),
        ("a Hello", |s| crate::first::hello(s, Offer::Stream), 4, "not Welcome"),
        ("a length beyond the bound", |s| greeting(&welcomed(s, 4), |b| b[13] = 0xff), 4, "more than"),
        ("a refusal that is none", |_| refusal(ExitCode::Whole), 6, "the other side stopped"),
    ];
    for (name, answer, code, words) in rows {
        meet(name, answer, Names(*code, words), Peer::hear_out);
    }
}

/// A sender meets a receiver that answers so and then does that.
fn meet(name: &str, answer: impl Fn(SessionId) -> Vec<u8>, right: Right, then: impl FnOnce(&mut Peer)) {
    let dir = scratch();
    let source = dir.path().join("f");
    write(&source, content());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let args = ["--window", &format!("{WINDOW}M"), "--compress", "off", "--no-encrypt"];
    let sender = send(&source, port).args(&args).start();
    let began = Instant::now();
    let ((), peak) = watched(name, &sender, || {
        let mut peer = Peer::receiver(&listener, answer);
        // whoever dials again is not answered
        drop(listener);
        then(&mut peer);
    });
    let outcome = sender.wait();
    println!("{name}: code {:?} after {:?}, peak {} MiB", outcome.code, began.elapsed(), peak >> 20);
    let (code, words) = match right {
        Harmless => (0, ""),
        Names(code, words) => (code, words),
    };
    assert_eq!(outcome.code, Some(code), "{name}: {outcome:?}");
    assert!(words.split('|').any(|words| outcome.err.contains(words)), "{name}: '{words}' is missing: {outcome:?}");
    assert!(!outcome.err.contains("panicked"), "{name}: {outcome:?}");
    assert!(peak <= BESIDE + (WINDOW << 20) + (64 << 20), "{name}: {} MiB", peak >> 20);
}

fn welcomed(session: SessionId, window_chunks: u32) -> Handshake {
    Handshake::Welcome {
        session,
        layout: Layout::Raw,
        owner_names: false,
        cipher: None,
        proof: None,
        window_chunks,
        addresses: Vec::new(),
    }
}

fn welcome(window_chunks: u32) -> impl Fn(SessionId) -> Vec<u8> {
    move |session| greeting(&welcomed(session, window_chunks), |_| {})
}

fn refusal(code: ExitCode) -> Vec<u8> {
    greeting(&Handshake::Refuse { code, reason: "no".into() }, |_| {})
}

/// The first acknowledgement, with a window of two chunks, but for that.
fn ack(peer: &mut Peer, change: impl Fn(&mut Ack)) {
    let mut ack = Ack { credit_limit: 2, ..Ack::default() };
    change(&mut ack);
    peer.control(Control::Ack(ack));
}

/// An acknowledgement that no encoder writes: its four numbers, and the bitmap's first word.
fn raw_ack(peer: &mut Peer, numbers: &[u64; 4], first: u64) {
    let mut payload: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    payload.extend_from_slice(&first.to_le_bytes());
    payload.resize(32 + 16 * 8 + 2, 0);
    control(peer, 2, &payload);
}

fn long_list(peer: &mut Peer) {
    let mut payload = vec![0; 32 + 16 * 8];
    payload.extend_from_slice(&65u16.to_le_bytes());
    payload.resize(payload.len() + 65 * 12, 0);
    control(peer, 2, &payload);
}

fn control(peer: &mut Peer, kind: u8, payload: &[u8]) {
    peer.say(&control_of(kind, payload));
}

fn length(peer: &mut Peer, len: usize) {
    peer.say(&patched(encoded(&Control::Ping(1)), |b| b[20..24].copy_from_slice(&(len as u32).to_le_bytes())));
}

fn bad_chunk(peer: &mut Peer) {
    peer.say(&patched(frame(piece(0)), |b| b[20..24].copy_from_slice(&u32::MAX.to_le_bytes())));
}

fn falling_credit(peer: &mut Peer) {
    ack(peer, |_| {});
    peer.until(|peer, _| peer.frames == 2);
    ack(peer, |ack| ack.credit_limit = 0);
    ack(peer, |ack| ack.credit_limit = 1);
}

fn falling_ack(peer: &mut Peer) {
    ack(peer, |_| {});
    peer.until(|peer, _| peer.frames == 2);
    ack(peer, |ack| (ack.next, ack.credit_limit) = (2, 3));
    ack(peer, |ack| (ack.next, ack.credit_limit) = (0, 2));
    ack(peer, |ack| (ack.next, ack.credit_limit, ack.bitmap[0]) = (0, 2, 2));
}

fn settled(peer: &mut Peer, link: u32, frames: u64) {
    ack(peer, |ack| ack.links.push((LinkId(link), frames)));
}

/// Say of so many copies that they came and were damaged.
fn lose(peer: &mut Peer, copies: u64) {
    ack(peer, |_| {});
    for settled in 1..=copies {
        if !peer.until(|peer, _| peer.frames >= settled) {
            return;
        }
        ack(peer, |ack| ack.links.push((LinkId(0), settled)));
    }
}

fn lose_all(peer: &mut Peer) {
    lose(peer, u64::MAX - 1);
}

fn commit() -> Commit {
    Commit {
        code: ExitCode::Whole,
        entries: 1,
        content_bytes: STREAM_LEN as u64,
        digest: finish().digest,
        stream_digest: None,
        totals: (0, 0),
        stages: Vec::new(),
        notes: Vec::new(),
    }
}

fn other_commit(peer: &mut Peer) {
    commit_with(peer, |commit| commit.digest = Digest([3; 32]));
}

/// All of it, and then a commit that is true but for that.
fn commit_with(peer: &mut Peer, change: impl Fn(&mut Commit)) {
    peer.receive_honestly();
    let mut commit = peer.true_commit();
    change(&mut commit);
    peer.commit(commit);
}

/// It commits, hears nothing more, and talks on.
fn deaf_commit(peer: &mut Peer) {
    peer.receive_honestly();
    let commit = peer.true_commit();
    peer.go_deaf();
    peer.control(Control::Commit(commit));
    peer.ping_until_closed();
}

fn addresses(peer: &mut Peer) {
    for i in 0..2000u32 {
        let address = |n: u32| Address {
            interface: format!("e{i}"),
            addr: SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + i * 64 + n), 9)),
            prefix: 24,
            speed_mbit: u32::MAX,
        };
        peer.control(Control::Links((0..32).map(address).collect()));
    }
}

/// Takes a chunk, then hears nothing, gives credit and talks on, until it is gone.
fn deaf(peer: &mut Peer) {
    ack(peer, |_| {});
    peer.until(|peer, _| peer.frames == 1);
    peer.go_deaf();
    flood(peer, &encoded(&Control::Ping(1)), 100_000);
    peer.close();
}

fn abort(peer: &mut Peer, code: ExitCode) {
    peer.control(Control::Abort { code, reason: "\x1b[31m".into() });
}
