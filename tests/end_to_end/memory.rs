//! Memory is bounded by the window on both ends: with a consumer that stands still, and with a link that does.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::ends::{BLAST, PATIENCE, Run, recv, scratch, send};
use crate::relay::{CHUNK, Relay, Way, What};
use crate::trees::{assert_same, random_bytes, write};

const MIB: u64 = 1 << 20;

/// What a process may have beside its window.
const BESIDE: u64 = 64 * MIB;

#[test]
fn neither_end_grows_beyond_its_window_while_the_consumer_stands_still() {
    // What each side chooses by itself where memory is plenty, and what it is told.
    for (sends, window, args) in [(128, 256, &[][..]), (32, 32, &["--window", "32M"])] {
        let mut receiver = recv("-").args(args).start_apart();
        let mut output = receiver.take_stdout();
        let mut sender = send("-", receiver.port()).args(args).args(&["--streams", "2"]).stdin(Stdio::piped()).start();
        let mut input = sender.take_stdin();
        let (told, progress) = mpsc::channel();
        let total = sends + window + 64;
        let producer = thread::spawn(move || {
            let mut hasher = blake3::Hasher::new();
            for i in 0..total {
                let chunk = random_bytes(i, MIB as usize);
                hasher.update(&chunk);
                input.write_all(&chunk).unwrap();
                let _ = told.send(i);
            }
            *hasher.finalize().as_bytes()
        });
        // With nothing read, both windows fill, and this much has been taken from the producer.
        let full = sends + window - window / 8;
        while progress.recv_timeout(PATIENCE).expect("the windows fill") < full {}
        let bound = BESIDE + window * MIB;
        let both = [("sender", sender.peak_memory()), ("receiver", receiver.peak_memory())];
        println!("window {window} MiB, standing still: {both:?}");
        assert!(both.iter().all(|(_, peak)| *peak <= bound), "{both:?} of {bound}");
        // The last byte is left in the pipe, so that both still run when they are looked at again.
        let mut all_but_one = (&mut output).take(total * MIB - 1);
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut all_but_one, &mut hasher).unwrap();
        let both = [("sender", sender.peak_memory()), ("receiver", receiver.peak_memory())];
        println!("window {window} MiB, at the end: {both:?}");
        assert!(both.iter().all(|(_, peak)| *peak <= bound), "{both:?} of {bound}");
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).unwrap();
        hasher.update(&rest);
        assert_eq!(*hasher.finalize().as_bytes(), producer.join().unwrap());
        sender.wait().expect(0);
        receiver.wait().expect(0);
    }
}

#[test]
fn a_link_that_stands_still_holds_up_neither_the_transfer_nor_memory() {
    const STALLED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
    let dir = scratch();
    let (source, dest) = (dir.path().join("s"), dir.path().join("d"));
    write(source.join("large"), random_bytes(1, 300 << 20));
    let receiver = recv(&dest).start();
    // In the middle of its third chunk that link stops, until the transfer is over.
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let (closed, stopped) = (gate.clone(), Arc::new(AtomicU64::new(0)));
    let count = stopped.clone();
    let relay = Relay::of_frames(&[Ipv4Addr::new(127, 0, 0, 2), STALLED], receiver.port(), move |passing, piece| {
        let hit = passing.link == STALLED && passing.way == Way::Forth && piece.what == What::Payload(CHUNK);
        if hit && piece.number >= 2 {
            count.fetch_add(1, SeqCst);
            drop(closed.1.wait_while(closed.0.lock().unwrap(), |open| !*open).unwrap());
        }
    });
    let sender = Run::of("send", Command::new(BLAST), &["send", "--link", "127.0.0.2", "--link", "127.0.0.3"]);
    let sender = sender.last(&source).last(format!("127.0.0.2:{}", relay.port)).start();
    let (sender_id, receiver_id) = (sender.id(), receiver.id());
    let peaks = thread::spawn(move || {
        let mut peaks = (0, 0);
        while let (Some(a), Some(b)) = (crate::ends::peak_memory(sender_id), crate::ends::peak_memory(receiver_id)) {
            peaks = (a.max(peaks.0), b.max(peaks.1));
            thread::yield_now();
        }
        peaks
    });
    let sender = sender.wait_within(Duration::from_secs(30));
    let receiver = receiver.wait_within(Duration::from_secs(10));
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    sender.expect(0);
    receiver.expect(0);
    assert_same(&dest, &source);
    assert!(stopped.load(SeqCst) > 0, "the link was used");
    let peaks = peaks.join().unwrap();
    println!("peaks {peaks:?}, {:?}", sender.took);
    assert!(peaks.0 <= BESIDE + 128 * MIB && peaks.1 <= BESIDE + 256 * MIB, "{peaks:?}");
}
