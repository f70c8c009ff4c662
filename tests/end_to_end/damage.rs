//! Bits that change on the way, past what TCP notices: the chunk is sent again, counted and its link named; a link that
//! does nothing else is dropped; damage to anything else costs a connection at most. Whatever is damaged, what arrives
//! is what was sent, or both ends say that it is not.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::ends::{Outcome, Run, from_env, recv, scratch, send};
use crate::relay::{ACK, CHUNK, COMMIT, FINISH, Passing, Piece, Relay, Way, What};
use crate::trees::{assert_same, list, random_bytes, small, write};

const LINK_2: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const LINK_3: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Generous, for a busy machine; nothing waits this long.
const BOUND: Duration = Duration::from_secs(40);

/// A sender over both links of a relay.
fn send_over(relay: &Relay, source: impl AsRef<std::ffi::OsStr>) -> Run {
    let links = ["--link", "127.0.0.2", "--link", "127.0.0.3"];
    Run::of("send", std::process::Command::new(crate::ends::BLAST), &["send"])
        .args(&links)
        .last(source)
        .last(format!("{LINK_2}:{}", relay.port))
}

/// A transfer whose frames `see` may change; both outcomes, and whether the tree arrived as it was.
fn damaged(see: impl Fn(&Passing, &mut Piece) + Send + Sync + 'static) -> (Outcome, Outcome, bool) {
    let dir = scratch();
    let (source, dest) = (dir.path().join("s"), dir.path().join("d"));
    small(&source, 3);
    write(source.join("large"), random_bytes(4, (40 << 20) + 5));
    let receiver = recv(&dest).start();
    let relay = Relay::of_frames(&[LINK_2, LINK_3], receiver.port(), see);
    let sender = send_over(&relay, &source).start();
    let sender = sender.wait_within(BOUND);
    let receiver = receiver.wait_within(BOUND);
    let same = dest.exists() && list(&dest) == list(&source);
    (sender, receiver, same)
}

/// A number in a link's row of a report: it ends where its column's heading ends.
fn column(end: &Outcome, link: &str, heading: &str) -> u64 {
    let line = |first: &str| {
        let line = end.report().lines().find(|l| l.trim_start().starts_with(&format!("{first} ")));
        line.unwrap_or_else(|| panic!("no row for {first}: {end:?}"))
    };
    let ends = line("link").find(heading).expect("a column of that name") + heading.len();
    let cell = line(link)[..ends].split_whitespace().next_back().expect("a number");
    cell.replace(',', "").parse().unwrap_or_else(|_| panic!("{heading} of {link}: '{cell}'"))
}

#[test]
fn a_bit_that_flips_now_and_then_costs_that_chunk_and_is_counted_on_its_link() {
    let flips = Arc::new(AtomicU64::new(0));
    let count = flips.clone();
    let (flipped, is_flipped) = (Mutex::new(0), Condvar::new());
    let (sender, receiver, same) = damaged(move |passing, piece| {
        let hit = passing.link == LINK_3 && piece.what == What::Payload(CHUNK) && piece.number % 5 == 2;
        if hit && piece.flip(100) {
            count.fetch_add(1, SeqCst);
            *flipped.lock().unwrap() += 1;
            is_flipped.notify_all();
        }
        // The other link is held up until then, or it may carry everything, late copies included.
        if passing.link == LINK_2 && piece.what == What::Payload(CHUNK) && piece.number >= 2 {
            let waiting = is_flipped.wait_timeout_while(flipped.lock().unwrap(), BOUND, |flipped| *flipped < 2);
            assert!(*waiting.unwrap().0 >= 2, "the link that damages some is used");
        }
    });
    sender.expect(0);
    receiver.expect(0);
    assert!(same);
    let flips = flips.load(SeqCst);
    // A copy that was not needed any more, since the chunk was late and had come on the other link, is not looked at.
    let (here, there) = (column(&sender, "127.0.0.3", "corrupt"), column(&receiver, "lo", "corrupt"));
    assert!((1..=flips).contains(&there), "{flips} bits flipped: {receiver:?}");
    assert!((1..=there).contains(&here), "{flips} bits flipped: {sender:?}");
    assert_eq!(column(&sender, "127.0.0.2", "corrupt"), 0, "{sender:?}");
    // A damaged chunk of which another copy is on its way need not be sent again.
    let again = |of| column(&sender, "127.0.0.2", of) + column(&sender, "127.0.0.3", of);
    assert!(again("resent") + again("hedged") >= here, "{sender:?}");
    assert_eq!(column(&sender, "127.0.0.3", "outages"), 0, "{sender:?}");
    sender.tells("link 127.0.0.3 brought a chunk that fails verification");
    receiver.tells("link lo brought a chunk that fails verification");
}

#[test]
fn a_link_that_damages_every_chunk_is_dropped_and_the_others_finish() {
    let connections = Arc::new(AtomicU64::new(0));
    let count = connections.clone();
    let flipped = Arc::new(AtomicU64::new(0));
    let count_flipped = flipped.clone();
    let (dropped, is_dropped) = (Mutex::new(false), Condvar::new());
    let (sender, receiver, same) = damaged(move |passing, piece| {
        if passing.link == LINK_3 && piece.what == What::Payload(CHUNK) {
            piece.flip(7);
            count_flipped.fetch_add(1, SeqCst);
        }
        // The sound link is held up until then, or a transfer this small may be over before.
        if passing.link == LINK_3 && piece.what == What::End {
            *dropped.lock().unwrap() = true;
            is_dropped.notify_all();
        }
        if passing.link == LINK_2 && piece.what == What::Payload(CHUNK) && piece.number >= 2 {
            let waiting = is_dropped.wait_timeout_while(dropped.lock().unwrap(), BOUND, |dropped| !*dropped);
            assert!(*waiting.unwrap().0, "the link that damages everything is dropped");
        }
        if passing.link == LINK_3 && piece.what == What::Handshake && passing.way == Way::Forth && piece.offset == 0 {
            count.fetch_add(1, SeqCst);
        }
    });
    sender.expect(0).tells("link 127.0.0.3 is down");
    receiver.expect(0);
    assert!(same);
    assert!(column(&sender, "127.0.0.2", "chunks") >= 41, "{sender:?}");
    assert_eq!(column(&sender, "127.0.0.2", "corrupt"), 0, "{sender:?}");
    // the last of them may not be told apart from what was lost when the link was dropped
    assert!(flipped.load(SeqCst) >= 8 && column(&sender, "127.0.0.3", "corrupt") >= 4, "{flipped:?}: {sender:?}");
    assert!(connections.load(SeqCst) <= 2, "it is not dialled again and again: {connections:?}");
}

#[test]
fn when_every_link_damages_every_chunk_both_ends_fail_verification() {
    let (sender, receiver, same) = damaged(|_, piece| {
        if piece.what == What::Payload(CHUNK) {
            piece.flip(7);
        }
    });
    assert!(!same);
    for end in [&sender, &receiver] {
        end.expect(6).claims_nothing();
    }
}

#[test]
fn damage_to_headers_and_control_frames_costs_connections_and_no_more() {
    // Each: which kind, which of them, and where.
    let cases: [(&str, What, u64, usize); 6] = [
        ("a chunk's header", What::Header(CHUNK), 3, 40),
        ("a chunk's tag", What::Header(CHUNK), 2, 79),
        ("an acknowledgement", What::Payload(ACK), 1, 9),
        ("an acknowledgement's header", What::Header(ACK), 2, 30),
        ("Finish", What::Payload(FINISH), 0, 20),
        ("Commit", What::Payload(COMMIT), 0, 20),
    ];
    thread::scope(|scope| {
        for (name, what, number, offset) in cases {
            scope.spawn(move || {
                let hits = Arc::new(AtomicU64::new(0));
                let count = hits.clone();
                // On every link, but not for ever.
                let (sender, receiver, same) = damaged(move |_, piece| {
                    let hit = piece.what == what && piece.number == number && count.load(SeqCst) < 4;
                    if hit && piece.flip(offset) {
                        count.fetch_add(1, SeqCst);
                    }
                });
                assert!(hits.load(SeqCst) > 0, "{name} came by");
                assert_eq!((sender.code, receiver.code), (Some(0), Some(0)), "{name}: {sender:?}\n{receiver:?}");
                assert!(same, "{name}");
                let outages = column(&sender, "127.0.0.2", "outages") + column(&sender, "127.0.0.3", "outages");
                assert!(outages > 0, "{name}: {sender:?}");
            });
        }
    });
}

#[test]
fn a_commit_that_never_gets_through_is_no_success_for_the_sender() {
    let (sender, receiver, same) = damaged(|_, piece| {
        if piece.what == What::Payload(COMMIT) {
            piece.flip(20);
        }
    });
    assert!(sender.code.is_some_and(|code| [4, 6].contains(&code)), "{sender:?}");
    sender.claims_nothing().tells("outcome unknown");
    // It is there and durable, whoever knows.
    assert!(same);
    receiver.expect(0).tells("before it confirmed");
}

#[test]
fn a_damaged_first_word_is_turned_away_and_the_receiver_goes_on() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"content");
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    let relay = Relay::of_frames(&[LINK_2], port, |passing, piece| {
        if passing.way == Way::Forth && piece.what == What::Handshake {
            piece.flip(20);
        }
    });
    let sender = Run::of("send", std::process::Command::new(crate::ends::BLAST), &["send"]);
    let sender = sender.last(dir.path().join("s")).last(format!("{LINK_2}:{}", relay.port)).start();
    let sender = sender.wait_within(Duration::from_secs(6));
    sender.expect(4).claims_nothing();
    receiver.says("turned away");
    send(dir.path().join("s"), port).outcome().expect(0);
    receiver.wait().expect(0);
    assert_same(dir.path().join("d"), dir.path().join("s"));
}

#[test]
fn bits_that_flip_anywhere_end_in_the_right_tree_or_in_a_failure_of_both() {
    let first = from_env("BLAST_SEED", 0);
    println!("BLAST_SEED={first}");
    thread::scope(|scope| {
        for seed in first..first + 6 {
            scope.spawn(move || {
                let rarely = [20_000, 300_000, 3_000_000][seed as usize % 3];
                let (sender, receiver, same) = damaged(move |passing, piece| {
                    let place = passing.at + piece.offset as u64;
                    let random =
                        blake3::hash(format!("{seed} {} {place} {:?}", passing.connection, piece.what).as_bytes());
                    let random = u64::from_le_bytes(*random.as_bytes().first_chunk().unwrap());
                    // Once in about so many bytes.
                    if random % rarely < piece.bytes.len() as u64 {
                        let at = piece.offset + random as usize / 7 % piece.bytes.len();
                        piece.flip(at);
                    }
                });
                if sender.code == Some(0) {
                    assert!(same && receiver.code == Some(0), "seed {seed}: {sender:?}\n{receiver:?}");
                } else {
                    sender.claims_nothing();
                    assert!(receiver.code != Some(0) || same, "seed {seed}: {sender:?}\n{receiver:?}");
                }
            });
        }
    });
}
