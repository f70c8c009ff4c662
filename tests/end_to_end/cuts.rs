//! Somebody in between cuts a connection between any two handshake messages or frames, in either way, by an orderly end
//! or a reset, of one link or two, and lets nobody through afterwards or goes on. Both ends come to an end in time;
//! neither calls it success unless the tree is whole, and nothing is written before the sender has proved itself.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use blast::key::Key;
use rustix::process::Signal;

use crate::ends::{BLAST, Run, recv, scratch};
use crate::relay::Way;
use crate::trees::{assert_same, random_bytes, write};
use crate::units::{Fate, Units};

const LINKS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// What a link that is closed by the peer is waited for, and time for everything else on a busy machine.
const BOUND: Duration = Duration::from_secs(40);

/// More units than a transfer this small has in one way.
const UNITS: u64 = 18;

/// Runs at once; most of their time is spent waiting for links that do not come back.
const AT_ONCE: usize = 12;

/// Where and how.
#[derive(Clone, Copy, Debug)]
struct Cut {
    links: usize,
    /// Of which link, and before which of its units.
    link: usize,
    way: Way,
    number: u64,
    fate: Fate,
    refuses: bool,
}

/// How both ended: the sender's code, and the receiver's unless it went on waiting.
type Codes = (i32, Option<i32>);

fn round(source: &Path, key: &Path, cut: Cut) -> (bool, Codes) {
    let dir = scratch();
    let dest = dir.path().join("d");
    let with_key = ["--key-file", key.to_str().unwrap()];
    let receiver = recv(&dest).args(&with_key).start();
    let done = Arc::new(AtomicBool::new(false));
    let relay = {
        let done = done.clone();
        Units::start(&LINKS[..cut.links], receiver.port(), cut.refuses, move |unit| {
            let is_here = unit.link == LINKS[cut.link] && unit.way == cut.way && unit.number == cut.number;
            if is_here && unit.connection == 0 && !done.swap(true, SeqCst) { cut.fate } else { Fate::Pass }
        })
    };
    let mut sender = Run::of("send", std::process::Command::new(BLAST), &["send", "--compress", "off"]).args(&with_key);
    for link in &LINKS[..cut.links] {
        sender = sender.args(&["--link", &link.to_string()]);
    }
    let sender = sender.last(source).last(format!("{}:{}", LINKS[0], relay.port)).start().wait_within(BOUND);
    let was_cut = done.load(SeqCst);
    if sender.code == Some(0) {
        receiver.wait_within(BOUND).expect(0);
        assert_same(&dest, source);
        return (was_cut, (0, Some(0)));
    }
    sender.claims_nothing();
    let code = sender.code.expect("it was not killed");
    assert!([3, 4].contains(&code), "{cut:?}: {sender:?}");
    if !receiver.said().contains("connected with") {
        assert!(!dest.exists(), "{cut:?}: something was written for nobody");
        receiver.signal(Signal::TERM);
        receiver.wait_within(BOUND).expect(7).claims_nothing();
        return (was_cut, (code, None));
    }
    let receiver = receiver.wait_within(BOUND);
    if receiver.code == Some(0) {
        // its last word was lost: what it has is whole all the same, and the sender says that it cannot know
        sender.tells("outcome unknown");
        assert_same(&dest, source);
    } else {
        receiver.expect(4).claims_nothing();
    }
    (was_cut, (code, receiver.code))
}

#[test]
fn a_connection_cut_at_any_boundary_neither_hangs_nor_passes_for_success() {
    let dir = scratch();
    let (source, key) = (dir.path().join("s"), dir.path().join("k"));
    Key::create(&key).unwrap();
    write(source.join("large"), random_bytes(1, (3 << 20) + 5));
    write(source.join("small"), b"content");
    fs::create_dir(source.join("empty")).unwrap();
    let mut cuts = Vec::new();
    for way in [Way::Forth, Way::Back] {
        for number in 0..UNITS {
            for fate in [Fate::End, Fate::Reset] {
                let cut = Cut { links: 1, link: 0, way, number, fate, refuses: false };
                cuts.push(cut);
                // each of these waits for a link that does not come back; by turns, not both
                if (number % 2 == 0) == (fate == Fate::End) {
                    cuts.push(Cut { refuses: true, ..cut });
                    cuts.push(Cut { links: 2, ..cut });
                } else {
                    cuts.push(Cut { links: 2, link: 1, refuses: true, ..cut });
                }
            }
        }
    }
    let (next, (source, key)) = (AtomicUsize::new(0), (&source, &key));
    let ends = std::sync::Mutex::new(std::collections::BTreeMap::<Codes, usize>::new());
    let reached = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(cut) = cuts.get(next.fetch_add(1, SeqCst)) {
                    let (was_cut, codes) = round(source, key, *cut);
                    println!("{cut:?}: cut {was_cut}, {codes:?}");
                    // the other link carries all of it
                    if cut.links == 2 && cut.link == 1 || !was_cut {
                        assert_eq!(codes, (0, Some(0)), "{cut:?}");
                    }
                    reached.fetch_add(usize::from(was_cut), SeqCst);
                    *ends.lock().unwrap().entry(codes).or_default() += 1;
                }
            });
        }
    });
    let reached = reached.into_inner();
    println!("{} transfers, {reached} of them cut: {:?}", cuts.len(), ends.into_inner().unwrap());
    assert!(reached > 80, "{reached} of {} were cut", cuts.len());
}
