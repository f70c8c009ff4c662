//! Virtual time and the cables: events in order of (time, sequence), connections that carry messages in order with a
//! rate and a delay, break, fall silent and heal.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use blast::flow::Time;
use blast::ids::LinkId;
use blast::limits::{CONNECT_TIMEOUT, IDLE_TIMEOUT, REDIAL_MAX, REDIAL_MIN};
use blast::wire::Ack;

use super::check::{Mark, Marks};
use super::rng::{Rng, mix};
use super::scenario::{CableSpec, Micros, Ways};

/// One of the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Send,
    Recv,
}

/// What happens. Connections are named by their place in [`Net::conns`]; `process` tells which incarnation of a process
/// a completion belongs to, `session` in which session the work began.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A chunk is read, laid out and sealed.
    Sealed { process: u32, session: u32, seq: u64 },
    /// A socket has room again.
    Room { conn: usize },
    /// The next message of a connection is there.
    Arrive { conn: usize, at: Side },
    /// The receiver accepts a connection.
    Join { conn: usize },
    /// A copy has been read and verified.
    Verified { process: u32, session: u32, conn: usize, copy: Copied },
    /// A chunk is written.
    Wrote { process: u32, session: u32, seq: u64 },
    /// A sync is over.
    Synced { process: u32, session: u32, mark: u64 },
    /// A link may send its next ack.
    AckDue { conn: usize, at: Micros },
    /// A chunk may be late.
    HedgeDue { conn: usize, at: Micros },
    /// The sender dials a cable.
    Dial { cable: usize, epoch: u32 },
    /// A side learns that a connection is dead.
    Down { conn: usize, side: Side },
    /// A connection has been silent for the longest time that is allowed.
    Silence { conn: usize, epoch: u32 },
    /// A silent cable works again.
    Heal { cable: usize, epoch: u32 },
    /// A fault of the plan.
    Fault { index: usize },
    /// No more faults.
    Calm,
    /// A hostile peer does something.
    Mischief,
}

/// One copy of a chunk that arrived on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    pub index: u64,
    pub seq: u64,
    pub content: u64,
    /// Whether it will pass verification.
    pub intact: bool,
}

/// Sender to receiver.
#[derive(Clone, Copy, Debug)]
pub enum Forward {
    Chunk { seq: u64, content: u64, intact: bool },
    Finish { chunks: u64 },
}

/// Receiver to sender.
#[derive(Debug)]
pub enum Backward {
    Joined,
    Ack(Box<Ack>),
    /// With the digest of what was applied.
    Commit {
        digest: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Not joined yet.
    New,
    Up,
    Dead,
}

/// One connection, from dial to death.
pub struct Conn {
    pub id: LinkId,
    pub cable: usize,
    pub send_end: End,
    pub recv_end: End,
    /// Nothing gets through any more.
    pub broken: bool,
    /// The ways in which nothing gets through, and nobody is told.
    pub stalled: Ways,
    /// Rises with each stall and each healing.
    epoch: u32,
    /// While it is stalled either way (TCP's own acks do not come back, or are not sent): chunks that the socket still
    /// takes.
    stall_room: usize,
    /// Chunk frames that it took.
    pub frames: u64,
    pub forward: Pipe<Forward>,
    pub backward: Pipe<Backward>,
    /// When the chunks in the sending socket are on the wire.
    socket: VecDeque<Micros>,
    room_due: bool,
    pub hedge_due: Option<Micros>,
    pub ack_due: Option<Micros>,
    /// The receiver's version of which this link last told.
    pub acked_version: u64,
    /// A copy whose header has been read and that waits for a buffer; nothing is read behind it.
    pub waiting: Option<Copied>,
    /// The copy that was being read when the connection broke.
    pub torn: Option<u64>,
}

/// Messages under way in one direction.
pub struct Pipe<T> {
    messages: VecDeque<T>,
    /// When the last is there.
    last: Micros,
    /// Messages that were there while nobody could read them.
    postponed: usize,
}

impl<T> Default for Pipe<T> {
    fn default() -> Pipe<T> {
        Pipe { messages: VecDeque::new(), last: 0, postponed: 0 }
    }
}

/// A cable, and the sender's attempts to keep one connection on it.
pub struct Cable {
    pub spec: CableSpec,
    /// The sender's latest connection.
    pub conn: Option<usize>,
    pub stalled: Ways,
    pub stall_epoch: u32,
    pub slow_until: Micros,
    /// Until then it takes so many times as long for a chunk.
    pub slow_factor: u64,
    pub corrupt_until: Micros,
    pub refuse_until: Micros,
    backoff: Duration,
    /// Rises with each connection; an older dial is void.
    dial_epoch: u32,
}

pub struct Net {
    pub rng: Rng,
    pub now: Micros,
    pub marks: Marks,
    pub conns: Vec<Conn>,
    pub cables: Vec<Cable>,
    /// Of everything that happened.
    pub trace: u64,
    pub hedges: u64,
    pub printing: bool,
    queue: BinaryHeap<Entry>,
    order: u64,
    next_link: u32,
}

struct Entry {
    at: Micros,
    order: u64,
    event: Event,
}

impl Cable {
    /// When a chunk is on the wire that begins now: slowly as far as that lasts.
    fn carried(&self, start: Micros) -> Micros {
        let (slow, work) = (self.slow_until.saturating_sub(start), self.spec.serialise);
        let slowly = work.min(slow / self.slow_factor);
        start + slowly * self.slow_factor + (work - slowly)
    }
}

impl Net {
    pub fn new(rng: Rng, cables: &[CableSpec]) -> Net {
        let cables = cables.iter().map(|spec| Cable {
            spec: spec.clone(),
            conn: None,
            stalled: Ways::NONE,
            stall_epoch: 0,
            slow_until: 0,
            slow_factor: 1,
            corrupt_until: 0,
            refuse_until: 0,
            backoff: REDIAL_MIN,
            dial_epoch: 0,
        });
        Net {
            rng,
            now: 0,
            marks: Marks::default(),
            conns: Vec::with_capacity(16),
            cables: cables.collect(),
            trace: 0,
            hedges: 0,
            printing: false,
            queue: BinaryHeap::with_capacity(128),
            order: 0,
            next_link: 0,
        }
    }

    /// The time as the flow sees it.
    pub fn time(&self) -> Time {
        Duration::from_micros(self.now)
    }

    /// Let something happen later.
    pub fn after(&mut self, delay: Micros, event: Event) {
        self.queue.push(Entry { at: self.now + delay, order: self.order, event });
        self.order += 1;
    }

    /// The next event; virtual time moves on to it.
    pub fn next(&mut self) -> Option<Event> {
        let Entry { at, order, event } = self.queue.pop()?;
        self.now = at;
        self.note(at ^ order << 32);
        Some(event)
    }

    /// Mix something that happened into the hash of the trace.
    pub fn note(&mut self, what: u64) {
        self.trace = mix(self.trace ^ what).wrapping_add(what);
    }

    /// A random time up to `most`, and not nothing.
    pub fn some(&mut self, most: Micros) -> Micros {
        self.rng.range(1, most)
    }

    pub fn up(&self, side: Side) -> impl Iterator<Item = usize> + '_ {
        let at = move |c: &Conn| if side == Side::Send { c.send_end } else { c.recv_end };
        self.conns.iter().enumerate().filter(move |(_, c)| at(c) == End::Up).map(|(n, _)| n)
    }

    /// Dial a cable after a pause that doubles with each failure.
    pub fn redial(&mut self, cable: usize) {
        let c = &mut self.cables[cable];
        let (pause, epoch) = (c.backoff, c.dial_epoch);
        c.backoff = (c.backoff * 2).min(REDIAL_MAX);
        self.after(pause.as_micros() as u64, Event::Dial { cable, epoch });
    }

    /// Dial a cable now, with no failures to remember.
    pub fn dial_afresh(&mut self, cable: usize, delay: Micros) {
        let c = &mut self.cables[cable];
        c.backoff = REDIAL_MIN;
        c.dial_epoch += 1;
        let epoch = c.dial_epoch;
        self.after(delay, Event::Dial { cable, epoch });
    }

    /// The dial of this epoch reaches the other side, is refused, or is lost.
    pub fn dial(&mut self, cable: usize, epoch: u32) {
        let (now, c) = (self.now, &mut self.cables[cable]);
        if epoch != c.dial_epoch {
            return;
        }
        if c.stalled.any() {
            let pause = CONNECT_TIMEOUT.as_micros() as u64;
            return self.after(pause, Event::Dial { cable, epoch });
        }
        if now < c.refuse_until {
            return self.redial(cable);
        }
        c.dial_epoch += 1;
        let delay = 2 * c.spec.delay;
        let conn = self.conns.len();
        c.conn = Some(conn);
        self.conns.push(Conn {
            id: LinkId(self.next_link),
            cable,
            send_end: End::New,
            recv_end: End::New,
            broken: false,
            stalled: Ways::NONE,
            epoch: 0,
            stall_room: 0,
            frames: 0,
            forward: Pipe::default(),
            backward: Pipe::default(),
            socket: VecDeque::new(),
            room_due: false,
            hedge_due: None,
            ack_due: None,
            acked_version: 0,
            waiting: None,
            torn: None,
        });
        self.next_link += 1;
        self.after(delay, Event::Join { conn });
    }

    /// The sender's side of a dial has succeeded.
    pub fn joined(&mut self, conn: usize) {
        self.conns[conn].send_end = End::Up;
        self.cables[self.conns[conn].cable].backoff = REDIAL_MIN;
    }

    /// Whether a connection's socket takes a chunk now; if not, [`Event::Room`] tells when.
    pub fn has_room(&mut self, conn: usize) -> bool {
        let now = self.now;
        let c = &mut self.conns[conn];
        if c.stalled.any() {
            return c.stall_room > 0;
        }
        while c.socket.front().is_some_and(|done| *done <= now) {
            c.socket.pop_front();
        }
        if c.socket.len() < self.cables[c.cable].spec.socket {
            return true;
        }
        if !std::mem::replace(&mut c.room_due, true) {
            let wait = c.socket[0] - now;
            self.after(wait, Event::Room { conn });
        }
        false
    }

    pub fn room(&mut self, conn: usize) {
        self.conns[conn].room_due = false;
    }

    /// A socket with room takes a message.
    pub fn send_forward(&mut self, conn: usize, mut message: Forward) {
        let now = self.now;
        let c = &mut self.conns[conn];
        let cable = &self.cables[c.cable];
        let mut start = c.socket.back().copied().unwrap_or(now).max(now);
        if let Forward::Chunk { intact, .. } = &mut message {
            start = cable.carried(start);
            c.socket.push_back(start);
            c.frames += 1;
            c.stall_room = c.stall_room.saturating_sub(1);
            *intact = *intact && (now >= cable.corrupt_until || self.rng.percent(50));
        }
        let at = (start + cable.spec.delay).max(c.forward.last);
        if !c.broken {
            c.forward.last = at;
            c.forward.messages.push_back(message);
            self.after(at - now, Event::Arrive { conn, at: Side::Recv });
        }
    }

    pub fn send_backward(&mut self, conn: usize, message: Backward) {
        let now = self.now;
        let c = &mut self.conns[conn];
        let at = (now + self.cables[c.cable].spec.delay).max(c.backward.last);
        if !c.broken {
            c.backward.last = at;
            c.backward.messages.push_back(message);
            self.after(at - now, Event::Arrive { conn, at: Side::Send });
        }
    }

    /// The message that has arrived at the receiver, unless it cannot be read now.
    pub fn read_forward(&mut self, conn: usize) -> Option<Forward> {
        let c = &mut self.conns[conn];
        if c.broken || c.recv_end != End::Up {
            return None;
        }
        if c.stalled.forward || c.waiting.is_some() {
            c.forward.postponed += 1;
            return None;
        }
        c.forward.messages.pop_front()
    }

    /// The message that has arrived at the sender, unless it cannot be read now.
    pub fn read_backward(&mut self, conn: usize) -> Option<Backward> {
        let c = &mut self.conns[conn];
        if c.broken || c.send_end == End::Dead {
            return None;
        }
        if c.stalled.backward {
            c.backward.postponed += 1;
            return None;
        }
        c.backward.messages.pop_front()
    }

    /// What could not be read when it arrived can be read now.
    pub fn resume(&mut self, conn: usize) {
        let c = &mut self.conns[conn];
        let (forward, backward) = (std::mem::take(&mut c.forward.postponed), std::mem::take(&mut c.backward.postponed));
        (0..forward).for_each(|_| self.after(1, Event::Arrive { conn, at: Side::Recv }));
        (0..backward).for_each(|_| self.after(1, Event::Arrive { conn, at: Side::Send }));
    }

    /// Everything under way on a connection is lost.
    pub fn break_off(&mut self, conn: usize) {
        let c = &mut self.conns[conn];
        c.broken = true;
        c.forward.messages.clear();
        c.backward.messages.clear();
    }

    /// Nothing gets through these ways from now on, and nobody is told. After the longest silence allowed whoever hears
    /// nothing finds out.
    pub fn stall(&mut self, conn: usize, ways: Ways) {
        let room = self.rng.below(1 + self.cables[self.conns[conn].cable].spec.socket as u64) as usize;
        let c = &mut self.conns[conn];
        if c.broken {
            return;
        }
        if c.stalled.any() {
            c.stalled = c.stalled.and(ways);
            return;
        }
        c.stalled = ways;
        c.epoch += 1;
        c.stall_room = room;
        let epoch = c.epoch;
        self.after(IDLE_TIMEOUT.as_micros() as u64, Event::Silence { conn, epoch });
    }

    /// Whether a connection has been silent all the time since the stall of this epoch began.
    pub fn is_silent(&self, conn: usize, epoch: u32) -> bool {
        let c = &self.conns[conn];
        c.stalled.any() && !c.broken && c.epoch == epoch
    }

    /// What was held up gets through.
    pub fn heal(&mut self, conn: usize) {
        let c = &mut self.conns[conn];
        if !c.stalled.any() || c.broken {
            return;
        }
        c.stalled = Ways::NONE;
        c.epoch += 1;
        c.socket.clear();
        if c.send_end == End::Up && c.recv_end == End::Up {
            self.marks.hit(Mark::Healed);
        }
        self.resume(conn);
        // The sender's socket has room again.
        self.after(1, Event::Room { conn });
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest, so that a heap gives it first.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
