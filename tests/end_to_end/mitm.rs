//! A man in the middle of the first connection: he flips each byte in turn, cuts at each record, repeats, drops and
//! swaps records, reflects what he hears, and replays what he has recorded. The two ends never agree over him, and
//! never hang.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use blast::ids::SessionId;
use blast::key::Key;
use blast::link::greet::{self, Agreement, Dialer, Welcomed};
use blast::link::handshake::{self, HandshakeError};
use blast::link::tls;
use blast::options::Trust;
use blast::wire::{Layout, Offer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::ends::{End, PATIENCE, recv, scratch, send};
use crate::relay::{Relay, Way};
use crate::trees::{assert_same, small};
use crate::units::{Fate, Units};

/// One record or other piece, with everything that came before it in that way.
struct Record {
    way: Way,
    /// Bytes of this way before it.
    at: usize,
    bytes: Vec<u8>,
}

/// What he sends on in place of a record; nothing ends both connections.
type Act<'a> = &'a dyn Fn(&Record) -> Option<Vec<u8>>;

/// How both ends ended over him.
struct Ended {
    dialer: Result<Agreement, HandshakeError>,
    listener: Result<Agreement, HandshakeError>,
    took: Duration,
}

impl Ended {
    fn is_agreed(&self) -> bool {
        self.dialer.is_ok() && self.listener.is_ok()
    }
}

/// Both ends of the library, and him between them.
fn meet(trust: &Trust, act: Act) -> Ended {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let began = Instant::now();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let pair = async || {
            let near = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            near.set_nodelay(true).unwrap();
            (near, listener.accept().await.unwrap().0)
        };
        let ((mut dials, left), (right, mut listens)) = (pair().await, pair().await);
        let dialer = async {
            let session = SessionId([7; 16]);
            let agreed = greet::dial(Dialer::new()?, &mut dials, trust, session, Offer::Stream).await;
            drop(dials);
            agreed.map(|(_, agreement)| agreement)
        };
        let listener = async {
            let heard = handshake::within(Duration::from_secs(5), async {
                let knock = tls::hear(&mut listens).await?;
                greet::hear(&mut listens, knock, trust).await
            });
            let guest = match heard.await {
                Ok(guest) => guest,
                Err(e) => {
                    drop(listens);
                    return Err(e);
                }
            };
            let (answer, agreement) = guest.agree(Welcomed {
                layout: Layout::Raw,
                owner_names: false,
                window_chunks: 4,
                addresses: Vec::new(),
            });
            answer.welcome(&mut listens).await?;
            // for as long as the other end may still read
            let _ = listens.read(&mut [0]).await;
            Ok(agreement)
        };
        let ((from_dialer, to_dialer), (from_listener, to_listener)) = (left.into_split(), right.into_split());
        let middle = async {
            tokio::select! {
                () = pass(Way::Forth, from_dialer, to_listener, act) => {}
                () = pass(Way::Back, from_listener, to_dialer, act) => {}
            }
        };
        let (dialer, listener, ()) = tokio::join!(dialer, listener, middle);
        Ended { dialer, listener, took: began.elapsed() }
    })
}

/// Pass records on until one is kept or the way ends; then everything is closed, since the caller drops it.
async fn pass(
    way: Way,
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    act: Act<'_>,
) {
    let mut at = 0;
    loop {
        let mut bytes = vec![0; 5];
        if from.read_exact(&mut bytes).await.is_err() {
            return;
        }
        bytes.resize(5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]])), 0);
        if from.read_exact(&mut bytes[5..]).await.is_err() {
            return;
        }
        let len = bytes.len();
        let Some(instead) = act(&Record { way, at, bytes }) else { return };
        if to.write_all(&instead).await.is_err() {
            return;
        }
        at += len;
    }
}

/// What passes if nothing is done: each record's way, place and bytes.
fn recorded(trust: &Trust) -> Vec<(Way, usize, Vec<u8>)> {
    let records = RefCell::new(Vec::new());
    let ended = meet(trust, &|record| {
        records.borrow_mut().push((record.way, record.at, record.bytes.clone()));
        Some(record.bytes.clone())
    });
    let (dialer, listener) = (ended.dialer.unwrap(), ended.listener.unwrap());
    assert_eq!((dialer.protection, dialer.protection.trusted), (listener.protection, trust.key.is_some()));
    records.into_inner()
}

fn keyed() -> Trust {
    Trust { key: Some(Arc::new(Key::generate().unwrap())), plain: false }
}

/// Run each, on as many threads as there are cores.
fn each(count: usize, run: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n >= count {
                        return;
                    }
                    run(n);
                }
            });
        }
    });
}

#[test]
fn no_flipped_byte_of_the_first_connection_is_agreed_over() {
    let trust = keyed();
    let records = recorded(&trust);
    let places: Vec<(Way, usize)> =
        records.iter().flat_map(|(way, at, bytes)| (*at..at + bytes.len()).map(|at| (*way, at))).collect();
    assert!(places.len() > 800 && places.iter().any(|(way, _)| *way == Way::Back), "{}", places.len());
    let slowest = Mutex::new(Duration::ZERO);
    let began = Instant::now();
    each(places.len(), |n| {
        let (way, at) = places[n];
        let ended = meet(&trust, &|record| {
            let mut bytes = record.bytes.clone();
            let here = at.checked_sub(record.at).filter(|_| record.way == way);
            if let Some(byte) = here.and_then(|here| bytes.get_mut(here)) {
                *byte ^= 1 << (n % 8);
            }
            Some(bytes)
        });
        assert!(!ended.is_agreed(), "{way:?} byte {at}");
        assert!(ended.dialer.is_err(), "{way:?} byte {at}: nothing is sent");
        let mut slowest = slowest.lock().unwrap();
        *slowest = ended.took.max(*slowest);
    });
    println!("{} bytes in {:?}, the slowest {:?}", places.len(), began.elapsed(), slowest.lock().unwrap());
    assert!(*slowest.lock().unwrap() < Duration::from_secs(12), "two deadlines and no more");
}

#[test]
fn records_that_are_kept_repeated_swapped_or_put_in_are_not_agreed_over() {
    let trust = keyed();
    let records = recorded(&trust);
    let old = recorded(&trust);
    let is_compatibility = |bytes: &[u8]| bytes[0] == 20;
    let rows: Vec<(usize, &str)> = (0..records.len())
        .flat_map(|n| ["cut", "drop", "twice", "swap", "old", "half"].map(|what| (n, what)))
        .collect();
    each(rows.len(), |row| {
        let (n, what) = rows[row];
        let (way, at, _) = records[n];
        // TLS itself allows the records that only middleboxes look at to be missing
        if is_compatibility(&records[n].2) && what != "cut" && what != "half" {
            return;
        }
        let kept = RefCell::new(Vec::new());
        let ended = meet(&trust, &|record| {
            let kept_before = std::mem::take(&mut *kept.borrow_mut());
            if record.way != way || record.at != at {
                return Some([&record.bytes[..], &kept_before].concat());
            }
            let bytes = &record.bytes;
            match what {
                "cut" => None,
                "drop" => Some(Vec::new()),
                "twice" => Some([&bytes[..], bytes].concat()),
                "old" => Some(old[n].2.clone()),
                "half" => Some(bytes[..bytes.len() / 2].to_vec()),
                _ => {
                    kept.borrow_mut().extend_from_slice(bytes);
                    Some(Vec::new())
                }
            }
        });
        // a message that is said twice once both have agreed is the first frame that is none
        let is_last = what == "twice" && records.iter().rposition(|(other, ..)| *other == way) == Some(n);
        assert!(is_last || !ended.is_agreed(), "{what} of record {n}, {way:?} byte {at}");
        assert!(ended.took < Duration::from_secs(12), "{what} of record {n}: {:?}", ended.took);
    });
}

#[test]
fn each_connection_shows_a_code_of_its_own_to_both_ends() {
    // so a man in the middle, who has one with each, shows them two
    let code = || {
        let ended = meet(&Trust::default(), &|record| Some(record.bytes.clone()));
        let (dialer, listener) = (ended.dialer.unwrap(), ended.listener.unwrap());
        assert_eq!(dialer.protection, listener.protection);
        dialer.protection.code.expect("without a key there is one")
    };
    assert_ne!(code(), code());
}

/// A place, a small tree in it, and a key.
fn source_and_key() -> (TempDir, PathBuf, PathBuf) {
    let dir = scratch();
    let (source, key) = (dir.path().join("s"), dir.path().join("k"));
    small(&source, 1);
    Key::create(&key).unwrap();
    (dir, source, key)
}

#[test]
fn a_dialer_and_a_listener_that_hear_themselves_agree_with_nobody() {
    let (dir, source, key) = source_and_key();
    let with_key = ["--key-file", key.to_str().unwrap()];
    // the sender hears itself
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = near.try_clone().unwrap();
        let _ = std::io::copy(&mut near, &mut far);
    });
    let sender = send(&source, port).args(&with_key).outcome();
    assert!([3, 4].contains(&sender.code.unwrap()), "{sender:?}");
    sender.claims_nothing();
    echo.join().unwrap();
    // the receiver hears itself, after a first message that is not its own
    let dest = dir.path().join("d");
    let receiver = recv(&dest).args(&with_key).start();
    let port = receiver.port();
    let first = recorded(&keyed()).swap_remove(0).2;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&first).unwrap();
    let mut back = stream.try_clone().unwrap();
    let _ = std::io::copy(&mut stream, &mut back);
    turned_away_and_still_there(receiver, &source, &dest, &with_key);
}

/// Nothing came of who was there, not a byte was written, and the real sender is served.
fn turned_away_and_still_there(receiver: End, source: &Path, dest: &Path, with_key: &[&str]) {
    receiver.says("turned away");
    assert!(!dest.exists(), "not a byte of it was taken");
    assert!(!receiver.said().contains("connected with"), "{}", receiver.said());
    send(source, receiver.port()).args(with_key).outcome().expect(0);
    receiver.wait().expect(0);
    assert_same(dest, source);
}

#[test]
fn a_recorded_session_gets_nothing_when_it_is_replayed() {
    let (dir, source, key) = source_and_key();
    let with_key = ["--key-file", key.to_str().unwrap()];
    // each connection of a whole session, as it came from the sender
    let said: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let receiver = recv(dir.path().join("first")).args(&with_key).start();
    let relay = {
        let said = said.clone();
        Relay::start(&[Ipv4Addr::new(127, 0, 0, 2)], receiver.port(), move |passing, bytes| {
            let mut said = said.lock().unwrap();
            let at = passing.connection as usize;
            if said.len() <= at {
                said.resize(at + 1, Vec::new());
            }
            if passing.way == Way::Forth {
                said[at].extend_from_slice(bytes);
            }
            true
        })
    };
    let run = send(&source, relay.port).args(&with_key).args(&["--link", "127.0.0.2"]);
    run.outcome().expect(0);
    receiver.wait().expect(0);
    drop(relay);
    let said = std::mem::take(&mut *said.lock().unwrap());
    assert!(said[0].len() > 3000, "{} bytes", said[0].len());
    let dest = dir.path().join("d");
    let receiver = recv(&dest).args(&with_key).start();
    let port = receiver.port();
    for connection in &said {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut pen = stream.try_clone().unwrap();
        let connection = connection.clone();
        // it may be closed while he still speaks
        let writer = thread::spawn(move || drop(pen.write_all(&connection)));
        let _ = stream.read_to_end(&mut Vec::new());
        drop(stream);
        writer.join().unwrap();
    }
    turned_away_and_still_there(receiver, &source, &dest, &with_key);
}

/// What the receiver said in a session is said again to a sender that comes anew.
#[test]
fn a_recorded_receiver_gets_nothing_of_a_sender_that_comes_anew() {
    let (dir, source, key) = source_and_key();
    for keys in [&["--key-file", key.to_str().unwrap()][..], &[]] {
        let said: Arc<Mutex<Vec<u8>>> = Arc::default();
        let dest = dir.path().join(format!("d{}", keys.len()));
        let receiver = recv(&dest).args(keys).start();
        let relay = {
            let said = said.clone();
            Relay::start(&[Ipv4Addr::new(127, 0, 0, 2)], receiver.port(), move |passing, bytes| {
                if passing.way == Way::Back && passing.connection == 0 {
                    said.lock().unwrap().extend_from_slice(bytes);
                }
                true
            })
        };
        send(&source, relay.port).args(keys).args(&["--link", "127.0.0.2"]).outcome().expect(0);
        receiver.wait().expect(0);
        drop(relay);
        let said = std::mem::take(&mut *said.lock().unwrap());
        assert!(said.len() > 500, "{} bytes", said.len());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let replays = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            drop(listener);
            let _ = stream.write_all(&said);
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            heard.len()
        });
        let sender = send(&source, port).args(keys).outcome();
        assert!([3, 4].contains(&sender.code.unwrap()), "{sender:?}");
        sender.claims_nothing();
        assert!(!sender.err.contains("connected with"), "{sender:?}");
        let heard = replays.join().unwrap();
        assert!(heard < 1000, "{heard} bytes: no more than its first message");
    }
}

/// Somebody in between lets senders' Hellos through, and damages or swallows what is answered.
#[test]
fn a_damaged_welcome_ends_no_receiver_and_the_next_sender_is_served() {
    let (dir, source, key) = source_and_key();
    let with_key = ["--key-file", key.to_str().unwrap()];
    for keys in [&with_key[..], &[]] {
        let dest = dir.path().join(format!("d{}", keys.len()));
        let receiver = recv(&dest).args(keys).start();
        let port = receiver.port();
        for round in 0..3 {
            let relay = Units::start(&[Ipv4Addr::new(127, 0, 0, 2)], port, false, move |unit| {
                // the listener's first record after all four of the dialer's
                if unit.way == Way::Back && unit.others == 4 {
                    match round {
                        0 => *unit.bytes.last_mut().unwrap() ^= 1,
                        1 => return Fate::End,
                        _ => return Fate::Reset,
                    }
                }
                Fate::Pass
            });
            let sender = send(&source, relay.port).args(keys).args(&["--link", "127.0.0.2"]).outcome();
            assert!([3, 4].contains(&sender.code.unwrap()), "round {round}: {sender:?}");
            sender.claims_nothing();
            assert!(!dest.exists(), "nothing was created for it");
        }
        receiver.says("left during the handshake");
        assert!(!receiver.said().contains("connected with"), "{}", receiver.said());
        send(&source, port).args(keys).outcome().expect(0);
        receiver.wait().expect(0);
        assert_same(&dest, &source);
    }
}
