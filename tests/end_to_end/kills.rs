//! Either end is killed at a byte chosen by chance, of either way, from the first word to the last. The other one ends
//! within 15 s, not with success, and says why; only when everything was durable already may it say so. No large file
//! stands under its own name with anything but its content.
//!
//! `BLAST_KILLS=N` kills so many times instead of 20; `BLAST_SEED=N` begins at another seed.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::finish::half_way;
use crate::ends::{Run, from_env, recv, scratch};
use crate::relay::Relay;
use crate::trees::{list, random_bytes, small, write};

/// Waiting for a peer that is gone takes 10 s.
const SURVIVES: Duration = Duration::from_secs(15);

/// How many go on at once; nearly all of their time is waiting.
const AT_ONCE: usize = 20;

/// Who is to be killed, once it is known.
#[derive(Default)]
struct Victim(Mutex<Option<u32>>, Condvar);

impl Victim {
    fn is(&self, id: u32) {
        *self.0.lock().unwrap() = Some(id);
        self.1.notify_all();
    }

    fn kill(&self) {
        let id = self.1.wait_while(self.0.lock().unwrap(), |id| id.is_none()).unwrap();
        let id = id.and_then(|id| Pid::from_raw(id as i32)).expect("a process");
        // Not waited for before the relay is gone, so the number is its own; it may have ended by itself.
        let _ = kill_process(id, Signal::KILL);
    }
}

/// One transfer through a relay that kills at byte `at`. Returns how many bytes passed.
fn round(source: &Path, sender_dies: bool, at: u64, name: &str) -> u64 {
    let dir = scratch();
    let dest = dir.path().join("d");
    let receiver = recv(&dest).start();
    let victim = Arc::new(Victim::default());
    let condemned = victim.clone();
    let relay = Relay::start(&[[127, 0, 0, 1].into()], receiver.port(), move |passing, bytes| {
        let reached = passing.total + bytes.len() as u64 > at;
        if reached {
            condemned.kill();
        }
        !reached
    });
    let sender = Run::of("send", std::process::Command::new(crate::ends::BLAST), &["send", "--streams", "2"]);
    let sender = sender.last(source).last(crate::ends::address(relay.port)).start();
    victim.is(if sender_dies { sender.id() } else { receiver.id() });
    let (victim, survivor) = if sender_dies { (sender, receiver) } else { (receiver, sender) };
    let victim = victim.wait_within(SURVIVES * 2);
    if victim.signal.is_none() {
        // The transfer was over before that byte.
        victim.expect(0);
        survivor.wait_within(SURVIVES).expect(0);
        return relay.total();
    }
    if sender_dies && !survivor.said().contains("connected") {
        // The receiver has not heard a whole word yet: it waits for a sender, as it should.
        survivor.signal(Signal::TERM);
        survivor.wait_within(SURVIVES).expect(7).claims_nothing();
        return relay.total();
    }
    let survivor = survivor.wait_within(SURVIVES);
    if survivor.code == Some(0) {
        assert_eq!(list(&dest), list(source), "{name}: success, and the trees differ: {survivor:?}");
    } else {
        assert!(survivor.code.is_some_and(|code| [4, 7].contains(&code)), "{name}: {survivor:?}");
        survivor.claims_nothing();
        if survivor.err.contains("connected") {
            survivor.tells("incomplete");
        }
        let reasons = ["all links", "no agreement with", "left during the handshake"];
        assert!(reasons.iter().any(|r| survivor.err.contains(r)), "{name}: a reason is given: {survivor:?}");
    }
    if dest.join("large").exists() {
        let whole = fs::read(dest.join("large")).unwrap() == fs::read(source.join("large")).unwrap();
        assert!(whole, "{name}: a large file under its own name is whole");
    }
    relay.total()
}

/// The same without a relay between, so that the kernel's own reset is what the survivor sees.
fn without_a_relay(sender_dies: bool) {
    let (receiver, sender, _input) = half_way();
    let (victim, survivor) = if sender_dies { (sender, receiver) } else { (receiver, sender) };
    victim.signal(Signal::KILL);
    drop(victim);
    let survivor = survivor.wait_within(SURVIVES);
    survivor.expect(4).claims_nothing().tells("all links").tells("incomplete");
}

#[test]
fn an_end_whose_peer_is_killed_at_any_moment_neither_hangs_nor_calls_it_success() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 5);
    write(source.join("large"), random_bytes(6, 16 << 20));
    let whole = round(&source, true, u64::MAX, "nobody is killed");
    let (rounds, first) = (from_env("BLAST_KILLS", 20), from_env("BLAST_SEED", 1));
    println!("BLAST_SEED={first} BLAST_KILLS={rounds}; {whole} bytes pass in all");
    let (next, source) = (AtomicUsize::new(0), &source);
    thread::scope(|scope| {
        scope.spawn(|| without_a_relay(true));
        scope.spawn(|| without_a_relay(false));
        for _ in 0..AT_ONCE.min(rounds as usize) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Relaxed) as u64;
                    if i >= rounds {
                        return;
                    }
                    let seed = first + i;
                    let random = blake3::hash(&seed.to_le_bytes());
                    let random = u64::from_le_bytes(*random.as_bytes().first_chunk().unwrap());
                    // One in five in the first words, one in five in the last.
                    let at = match i % 5 {
                        0 => random % 1500,
                        1 => whole.saturating_sub(random % 3000),
                        _ => random % whole,
                    };
                    let sender_dies = random >> 63 == 0;
                    let name = format!(
                        "seed {seed}: the {} dies at byte {at}",
                        if sender_dies { "sender" } else { "receiver" }
                    );
                    round(source, sender_dies, at, &name);
                }
            });
        }
    });
}
