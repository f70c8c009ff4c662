//! The only sockets. A *link* is one TCP connection of a session, bound to one interface.
//!
//! | room | what happens there |
//! |---|---|
//! | [`interfaces`] | what interfaces there are, of what kind and in what state, and what they have carried |
//! | [`discover`] | our interfaces and addresses; which of them share a network with the receiver's |
//! | [`by_hand`] | the links that `--link` names |
//! | [`cables`] | the same kept current: a cable that is pulled, or plugged in again |
//! | [`socket`] | options every connection gets; connecting bound to an interface |
//! | [`announce`] | finding a receiver that waits, and answering as one |
//! | [`dial`] | a name to a first connection; one place to dial after the other, again after a loss |
//! | [`listen`] | the listening socket, and who may be waiting in its handshake |
//! | [`handshake`] | single messages before frames begin: Join and Joined, Refuse |
//! | [`tls`] | TLS around the first connection's two messages |
//! | [`greet`] | these two, Hello and Welcome: who the other end is, and the session's secret |
//! | [`proof`] | whether a link leaves by its interface |
//! | [`read`], [`mod@write`] | frames off and onto a connection |
//! | `mtu` | large packets that do not get through |
//! | `pace` | how much is handed between a socket and us at a time |
//! | [`throttle`] | how much may be written, and when, where there is a limit |
//! | [`send_link`], [`recv_link`] | the two ends of one link at work: which frame goes next, what an arriving one means |
//! | [`send_session`], [`recv_session`] | what all links of a session share |
//! | [`watch`] | when a session is over without a word; the signals that end it |
//!
//! Everything here runs on one tokio thread. The flow's mutex is taken for the length of one decision, never over an
//! await. Work on the bytes of a chunk (digest, compression) happens in threads; queues into them are as long as the
//! buffer pool, so handing over never blocks the runtime.

pub mod announce;
pub mod by_hand;
pub mod cables;
pub mod dial;
pub mod discover;
pub mod greet;
pub mod handshake;
pub mod interfaces;
pub mod listen;
mod mtu;
mod pace;
pub mod proof;
pub mod read;
pub mod recv_link;
pub mod recv_session;
pub mod send_link;
pub mod send_session;
pub mod socket;
pub mod throttle;
pub mod tls;
pub mod watch;
pub mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::error::ExitCode;
use crate::ids::LinkId;
use crate::limits;
use crate::stats::LinkStats;
use crate::wire::{Control, FrameKeys};

/// Time since the session's start, as the flow counts it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The flow time of an instant.
    pub fn since(&self, at: Instant) -> Duration {
        at - self.start
    }

    /// The instant of a flow time, for timers.
    pub fn instant(&self, at: Duration) -> Instant {
        self.start + at
    }
}

/// A connection that has had its handshake, as its dialer has it.
pub struct Opened {
    /// Its number.
    pub link: LinkId,
    /// Its socket.
    pub stream: TcpStream,
    /// What its frames are authenticated with.
    pub keys: FrameKeys,
}

/// Why a link is no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// In words.
    pub reason: String,
    /// The peer closed it (end of file, reset, refusal), as against silence or a fault of the network.
    pub by_peer: bool,
    /// It must not be dialled again.
    pub for_good: bool,
    /// Bytes were changed on the way.
    pub damaged: bool,
    /// How long it had brought nothing by then, if that was longer than a link that lives ever does.
    pub silent_for: Duration,
    /// [`LinkEvent::Proven`] was said of it.
    pub carried: bool,
}

/// The reason of [`Ended::over`].
const OVER: &str = "the session is over";

/// The reason of [`Ended::left`].
const LEFT: &str = "one connection less is as fast";

impl Ended {
    /// Closed by the peer.
    pub fn by_peer(reason: impl Into<String>) -> Ended {
        Ended { by_peer: true, ..Ended::lost(reason) }
    }

    /// Both sides have said goodbye.
    pub fn over() -> Ended {
        Ended::by_peer(OVER)
    }

    /// Whether both sides have said goodbye.
    pub fn is_over(&self) -> bool {
        self.by_peer && self.reason == OVER
    }

    /// One of a link's connections that is not needed any more, given up by the sender.
    pub fn left() -> Ended {
        Ended::by_peer(LEFT)
    }

    /// Whether it is one that was not needed any more.
    pub fn is_left(&self) -> bool {
        self.by_peer && self.reason == LEFT
    }

    /// Lost on the way.
    pub fn lost(reason: impl Into<String>) -> Ended {
        let (by_peer, for_good, damaged) = (false, false, false);
        Ended { reason: reason.into(), by_peer, for_good, damaged, silent_for: Duration::ZERO, carried: true }
    }

    /// It brought nothing for that long.
    pub fn silent(silent_for: Duration) -> Ended {
        Ended { silent_for, ..Ended::lost(format!("silent for {} s", silent_for.as_secs())) }
    }

    /// Whether it was given up for bringing nothing, here or by TCP.
    fn is_silence(&self) -> bool {
        !self.by_peer && self.silent_for >= limits::IDLE_TIMEOUT
    }

    /// Ended since its bytes make no sense.
    pub fn damaged(reason: impl Into<String>) -> Ended {
        Ended { damaged: true, ..Ended::lost(reason) }
    }

    /// Given up.
    pub fn for_good(reason: impl Into<String>) -> Ended {
        Ended { for_good: true, ..Ended::lost(reason) }
    }

    /// Given up since it damages what it carries.
    pub fn damaged_for_good(reason: impl Into<String>) -> Ended {
        Ended { for_good: true, ..Ended::damaged(reason) }
    }

    /// The same of a connection of which this is known: how long it had been silent by then, and whether it carried.
    fn after(mut self, quiet: Duration, carried: bool) -> Ended {
        // it was away since it was last heard, however it ended
        if quiet > limits::HEARTBEAT_LATE {
            self.silent_for = self.silent_for.max(quiet);
        }
        self.carried = carried;
        self
    }

    /// What an I/O error on a connection means.
    pub fn from_io(error: &std::io::Error) -> Ended {
        use std::io::ErrorKind::*;
        match error.kind() {
            ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof | ConnectionRefused => {
                Ended::by_peer(describe_io(error))
            }
            _ => Ended::lost(describe_io(error)),
        }
    }
}

/// An I/O error in plain words, without the number.
pub fn describe_io(error: &std::io::Error) -> String {
    use std::io::ErrorKind::*;
    match error.kind() {
        ConnectionReset => "reset by the peer".into(),
        BrokenPipe | UnexpectedEof => "closed by the peer".into(),
        ConnectionRefused => "connection refused".into(),
        TimedOut => "no answer".into(),
        _ => {
            let text = error.to_string();
            match text.find(" (os error") {
                Some(at) => text[..at].to_owned(),
                None => text,
            }
        }
    }
}

/// What links tell the conductor.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "events are few, and each is moved twice")]
pub enum LinkEvent {
    /// A connection has joined the session.
    Up {
        /// Its id.
        link: LinkId,
        /// Its counters and name.
        stats: Arc<LinkStats>,
    },
    /// A connection has carried a chunk, or lived for a while without having to.
    Proven {
        /// Its counters and name.
        stats: Arc<LinkStats>,
    },
    /// A connection is gone.
    Down {
        /// Its id.
        link: LinkId,
        /// Its counters and name.
        stats: Arc<LinkStats>,
        /// Why.
        ended: Ended,
    },
    /// A connection has joined the session and was gone before it brought a frame: nobody heard that it was up.
    Stillborn {
        /// Its id.
        link: LinkId,
        /// Its counters and name.
        stats: Arc<LinkStats>,
        /// Why.
        ended: Ended,
    },
    /// A place to dial could not be reached.
    Unreachable {
        /// The counters and name of what could not be reached.
        stats: Arc<LinkStats>,
        /// Why.
        ended: Ended,
    },
    /// A control frame that the conductor decides about: Notes, Finish, Commit, Abort, Bye.
    Control(Control),
    /// The peer broke the protocol.
    Violation {
        /// What it did, in words.
        what: String,
        /// The exit code for both ends.
        code: ExitCode,
    },
    /// A chunk failed verification.
    Corrupt {
        /// The link that brought it.
        stats: Arc<LinkStats>,
        /// Such chunks so far on it.
        count: u64,
    },
    /// A connection has brought so many damaged chunks in a row that it must go.
    Hopeless {
        /// Its id.
        link: LinkId,
    },
    /// Every chunk of the transfer has been delivered.
    Complete,
    /// A measurement has seen enough.
    Enough,
    /// A thread that works on chunks has panicked.
    Panicked,
}

/// Tells the conductor if the thread that holds it panics: a chunk that is lost in a thread would stall the session
/// without a word.
pub struct Alarm<'a>(&'a UnboundedSender<LinkEvent>);

impl Alarm<'_> {
    /// Set until it is dropped.
    pub fn new(events: &UnboundedSender<LinkEvent>) -> Alarm<'_> {
        Alarm(events)
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.send(LinkEvent::Panicked);
        }
    }
}

/// The bell of one link's writing side.
#[derive(Default, Debug)]
pub struct Bell {
    notify: Notify,
    /// Whether the next [`Bell::ring_if_waiting`] is to be heard.
    waiting: AtomicBool,
}

impl Bell {
    /// Wake the writing side, now or when it next waits.
    pub fn ring(&self) {
        self.notify.notify_one();
    }

    /// Ring only if it waits for just that; true if it did.
    fn ring_if_waiting(&self) -> bool {
        let waited = self.waiting.swap(false, Ordering::AcqRel);
        if waited {
            self.ring();
        }
        waited
    }

    /// Say, before looking for something to do, that what comes from now on should ring.
    pub fn will_wait(&self) {
        self.waiting.store(true, Ordering::Release);
    }

    /// Say that something was found, or that there will be another look anyway.
    pub fn wont_wait(&self) {
        self.waiting.store(false, Ordering::Release);
    }

    /// Until rung.
    pub async fn rung(&self) {
        self.notify.notified().await;
    }
}

/// The bells of all links, so that a change in the flow reaches whom it concerns.
#[derive(Default, Debug)]
pub struct Bells {
    ring: Mutex<Ring>,
}

#[derive(Default, Debug)]
struct Ring {
    bells: Vec<(LinkId, Arc<Bell>)>,
    /// Whose turn it was last.
    turn: usize,
}

impl Bells {
    /// A new link's bell.
    pub fn add(&self, link: LinkId) -> Arc<Bell> {
        let bell = Arc::new(Bell::default());
        self.lock().bells.push((link, bell.clone()));
        bell
    }

    /// The link is gone.
    pub fn remove(&self, link: LinkId) {
        self.lock().bells.retain(|(id, _)| *id != link);
    }

    /// There is something for one link, whichever is waiting; the links take turns.
    pub fn ring_one(&self) {
        let mut ring = self.lock();
        let n = ring.bells.len();
        for _ in 0..n {
            ring.turn = (ring.turn + 1) % n;
            if ring.bells[ring.turn].1.ring_if_waiting() {
                return;
            }
        }
    }

    /// There is something that cannot wait for one link, whichever; the links take turns.
    pub fn ring_next(&self) {
        let mut ring = self.lock();
        ring.turn = (ring.turn + 1) % ring.bells.len().max(1);
        if let Some((_, bell)) = ring.bells.get(ring.turn) {
            bell.ring();
        }
    }

    /// There is something that cannot wait for that link, if it still lives.
    pub fn ring(&self, link: LinkId) {
        if let Some((_, bell)) = self.lock().bells.iter().find(|(id, _)| *id == link) {
            bell.ring();
        }
    }

    /// There is something for that link, if it still lives and waits for it.
    pub fn ring_if_waiting(&self, link: LinkId) {
        if let Some((_, bell)) = self.lock().bells.iter().find(|(id, _)| *id == link) {
            bell.ring_if_waiting();
        }
    }

    /// There is something for every link.
    pub fn ring_all(&self) {
        for (_, bell) in &self.lock().bells {
            bell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().expect("no thread panics while it holds this lock")
    }
}
