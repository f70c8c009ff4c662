//! Whether the next chunk should be compressed, and how hard. A pure state machine: what it looks at and the time are
//! arguments.
//!
//! Compression costs several times the CPU of all else that is done to a chunk, so it pays only while the links are
//! what limits the transfer. Three questions, asked anew for each chunk:
//!
//! 1. **Do the links limit?** Chunks wait that the receiver has allowed and no link has room for. What waits for credit
//!    does not count: then the receiver is behind, and decompressing would put it further behind. Links that ran out of
//!    chunks in the last second are believed only if many wait: a receiver that gives credit in portions makes chunks
//!    wait too, for moments.
//! 2. **Is the CPU fast enough?** All workers together compress [`MARGIN`] times as fast as the links carry what is not
//!    compressed. The clock on the wall measures both, so a CPU that is busy otherwise counts as a slow one.
//! 3. **Does it shrink?** Only trying says; [`super::Sealer`] does that.
//!
//! Where compression pays but keeps up with the links only in part, the first question mixes: when too little waits,
//! the next chunk goes as it is, which is quick, and gives the links work while the one after it is compressed. The
//! levels above 1 are for links so slow that CPU is left over.
//!
//! Where CPU is left over even then, it goes into [`super::thorough`].
//!
//! At the beginning nothing is known. The first chunks are compressed quickly all the same: on a fast link that costs
//! some milliseconds once, and a slow one would carry them as they are for many times as long.
//!
//! Nothing is remembered longer than a second or so: links that become faster or slower, and a CPU that becomes busy or
//! idle, change the decision in less than two.

use std::time::Duration;

use super::codecs::Method;
use super::mean::Mean;
use super::thorough::Thorough;
use crate::ids::Seq;
use crate::limits;

/// Time since some start.
pub(super) type Time = Duration;

/// How many times as fast as the links' wire rate all workers together must compress; for a level above 1, how many
/// times as fast as the links carry what is compressed, unless very much waits.
const MARGIN: f64 = 1.5;

/// The same for a chunk that is compressed even where nothing waits, and for a level above 1 where little does.
const FAR_AHEAD: f64 = 2.0;

/// Chunks that must wait for each link before one is compressed.
const WAITING_PER_LINK: usize = 2;

/// Before the links' rate is known each worker compresses as many chunks, whatever waits: while that is done, a slow
/// link shows by …
const FIRST: usize = 3;

/// … having carried no whole chunk for so long, with one in hand.
const STUCK: Duration = Duration::from_millis(3);

/// The links' rate is not known before they have worked this long without a pause …
const RATE_KNOWN_AFTER: Duration = Duration::from_millis(50);

/// … or have taken this many bytes each: more than the buffers of a new connection swallow at once.
const RATE_KNOWN_AFTER_BYTES: f64 = (16 << 20) as f64;

/// How much of the time links had work is not known before this long.
const WORK_KNOWN_AFTER: Duration = Duration::from_millis(200);

/// The part of the time for which links must have had work to be what limits.
const WORK_MIN: f64 = 0.85;

/// More chunks than the eighth of its window that a receiver allows at once: so many show by themselves that the links
/// limit, whatever was before.
const WAITING_SURELY: usize = 8;

/// So does what lasts them this long.
const SURELY_WITHIN: Duration = Duration::from_millis(250);

/// While compressing is too slow to pay, one chunk is compressed this often to see whether it still is.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A zstd level.
struct Level {
    level: i32,
    /// Its speed against level 1. Rough: what is measured at the level itself corrects it.
    speed: f64,
    /// Memory of one worker's context for a full chunk.
    memory: usize,
}

/// The levels in use, the highest first. Beyond 6 text shrinks by less than one part in fifty more, for twice the CPU
/// and four times the memory.
const LEVELS: [Level; 3] = [
    Level { level: 6, speed: 0.25, memory: 3600 << 10 },
    Level { level: 3, speed: 0.65, memory: 1300 << 10 },
    Level { level: 1, speed: 1.0, memory: 570 << 10 },
];

/// What the sender's side of a session looks like before a chunk is sealed.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When.
    pub now: Time,
    /// Chunks that may be sent and that no link has taken.
    pub waiting: usize,
    /// Links that are up.
    pub links: usize,
    /// Bytes that all links have taken so far.
    pub wire_bytes: u64,
    /// How often the links have taken the last chunk that waited.
    pub ran_dry: u64,
    /// Chunks that links have begun so far, and of these, those they have taken whole.
    pub begun: u64,
    /// See `begun`.
    pub carried: u64,
    /// Chunks that links have taken and that are not acknowledged.
    pub unacked: usize,
    /// Chunks below it are acknowledged.
    pub acked: Seq,
    /// Bytes of the chunk's content.
    pub content_len: usize,
}

/// A chunk that was compressed.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// When it was done.
    pub now: Time,
    /// How long it took.
    pub took: Duration,
    /// How.
    pub method: Method,
    /// Bytes of content.
    pub content_len: usize,
    /// Bytes of payload.
    pub payload_len: usize,
}

/// See the head of this file. One for all workers of a session.
#[derive(Debug)]
pub struct Gauge {
    workers: usize,
    /// Chunks between their plan and their acknowledgement are never more.
    pool: usize,
    last: Option<Look>,
    /// Wire bytes over seconds, of times in which the links always had work.
    rate: Mean,
    /// Wire bytes over seconds, of all times.
    carried: Mean,
    /// Seconds with work over seconds.
    work: Mean,
    /// Content bytes that one worker compresses over seconds, as if at level 1.
    speed: Mean,
    /// Content over payload of what was compressed.
    shrinks: Mean,
    /// When a chunk was last compressed to see how fast that is.
    tried: Option<Time>,
    /// Chunks that were asked about.
    asked: usize,
    /// Since when links have carried no further chunk whole.
    stuck_since: Time,
    thorough: Thorough,
    /// Workers that compress, and whether one has since the last look: that the links ran dry meanwhile says nothing
    /// about them.
    compressing: usize,
    compressed: bool,
}

impl Gauge {
    /// For so many workers and chunks in the pool.
    pub fn new(workers: usize, pool: usize) -> Gauge {
        Gauge {
            workers: workers.max(1),
            pool,
            last: None,
            rate: Mean::default(),
            carried: Mean::default(),
            work: Mean::default(),
            speed: Mean::default(),
            shrinks: Mean::default(),
            tried: None,
            asked: 0,
            stuck_since: Time::ZERO,
            thorough: Thorough::new(),
            compressing: 0,
            compressed: false,
        }
    }

    /// How to try to compress the next chunk; `None` to send it as it is. Whatever comes of it, [`Gauge::done`] must be
    /// told.
    pub fn method(&mut self, look: Look) -> Option<Method> {
        self.observe(look);
        let method = self.choose(look);
        self.asked += 1;
        if method == Some(Method::Bzip2) {
            self.thorough.begin();
        }
        self.compressing += usize::from(method.is_some());
        self.compressed |= method.is_some();
        method
    }

    /// The chunk of that number, which was asked about, is sealed.
    pub fn done(&mut self, method: Option<Method>, seq: Seq) {
        if method == Some(Method::Bzip2) {
            self.thorough.end(seq);
        }
        self.compressing -= usize::from(method.is_some());
    }

    fn choose(&mut self, look: Look) -> Option<Method> {
        const FAST: Option<Method> = Some(Method::Zstd(1));
        let Look { now, waiting, .. } = look;
        let links = look.links.max(1);
        let most = (self.pool / 4).max(1);
        let least = (WAITING_PER_LINK * links).min(most);
        let surely = (self.pool / 8 + WAITING_SURELY).max(2 * least).min(most);
        let rate = self.known_rate(now, links);
        // What goes as it is meanwhile must not keep a slow link busy for long.
        let soon = rate.map_or(surely, |rate| (SURELY_WITHIN.as_secs_f64() * rate / CHUNK_LEN) as usize);
        let surely = surely.min(soon.max(2 * least));
        let work = self.work.value().filter(|_| self.work.over(now) >= WORK_KNOWN_AFTER.as_secs_f64());
        if work.is_some_and(|work| work < WORK_MIN) && waiting < surely {
            return None;
        }
        let workers = self.workers;
        let fits = |l: &&Level| l.level == 1 || l.memory * workers <= limits::COMPRESS_MEMORY;
        let Some(rate) = rate else {
            // Sending everything as it is until the rate is known would fill the pool with it, which a slow link
            // carries for seconds. Links that turn out to be fast lose only milliseconds.
            if waiting >= 2 * least {
                return LEVELS.iter().skip(1).find(fits).map(|l| Method::Zstd(l.level));
            }
            let all_stuck = look.begun >= look.carried + links as u64 && now >= self.stuck_since + STUCK;
            return FAST.filter(|_| waiting >= least || all_stuck || self.asked < FIRST * self.workers);
        };
        let speed = self.speed.value().map(|one| one * self.workers as f64);
        let shrinks = self.shrinks.value().unwrap_or(1.0);
        let best = |margin: f64| {
            let keeps_up = |l: &&Level| speed.is_some_and(|speed| speed * l.speed >= margin * rate * shrinks);
            LEVELS.iter().filter(fits).find(keeps_up).map(|l| Method::Zstd(l.level))
        };
        if waiting < least {
            // Where that is far faster than the links they would take longer for the difference.
            return best(FAR_AHEAD);
        }
        if speed.is_some_and(|speed| speed < MARGIN * rate) {
            return FAST.filter(|_| try_again(&mut self.tried, now));
        }
        if waiting < (2 * least).min(most) {
            return best(FAR_AHEAD).or(FAST);
        }
        if let Some(one) = self.speed.value()
            && self.thorough.pays(&look, rate, one, shrinks)
        {
            return Some(Method::Bzip2);
        }
        // Half of the pool lasts a slow link for seconds: time enough to see that a level is too slow after all.
        best(if waiting >= self.pool / 2 { 1.0 } else { MARGIN }).or(FAST)
    }

    /// Learn from a chunk that was compressed as [`Gauge::method`] said.
    pub fn learn(&mut self, chunk: &Compressed) {
        let Compressed { now, took, method, .. } = *chunk;
        let (content, payload) = (chunk.content_len as f64, chunk.payload_len as f64);
        let Method::Zstd(level) = method else {
            return self.thorough.learn(chunk);
        };
        let speed = LEVELS.iter().find(|l| l.level == level).map_or(1.0, |l| l.speed);
        self.speed.add(now, content / speed, took.as_secs_f64());
        self.shrinks.add(now, content, payload);
        self.tried = Some(now);
    }

    /// Learn from what happened since the last look.
    fn observe(&mut self, look: Look) {
        if self.last.is_none_or(|last| last.carried != look.carried) {
            self.stuck_since = look.now;
        }
        let last = self.last.replace(look).filter(|last| last.links > 0 && look.links > 0);
        let Some(last) = last else { return };
        let span = look.now.saturating_sub(last.now).as_secs_f64();
        let had_work = last.waiting > 0 && look.waiting > 0 && last.ran_dry == look.ran_dry;
        let bytes = look.wire_bytes.saturating_sub(last.wire_bytes) as f64;
        let compressed = std::mem::replace(&mut self.compressed, self.compressing > 0);
        if had_work || !compressed {
            self.work.add(look.now, if had_work { span } else { 0.0 }, span);
        }
        self.carried.add(look.now, bytes, span);
        if had_work {
            self.rate.add(look.now, bytes, span);
        }
    }

    /// Wire bytes a second that the links can carry, if that is known: what they carried while they always had work,
    /// and at least what they carried whether or not.
    fn known_rate(&self, now: Time, links: usize) -> Option<f64> {
        let enough = RATE_KNOWN_AFTER_BYTES * links as f64;
        let long = self.rate.over(now) >= RATE_KNOWN_AFTER.as_secs_f64() || self.rate.sum(now) >= enough;
        let rate = self.rate.value().filter(|_| long);
        let least = self.carried.value().filter(|_| self.carried.sum(now) >= enough);
        [rate, least].into_iter().flatten().reduce(f64::max)
    }
}

/// Whether it is time for one more try.
pub(super) fn try_again(tried: &mut Option<Time>, now: Time) -> bool {
    let due = tried.is_none_or(|tried| now.saturating_sub(tried) >= TRY_AGAIN);
    if due {
        *tried = Some(now);
    }
    due
}

pub(super) const CHUNK_LEN: f64 = limits::CHUNK_LEN as f64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::thorough::AT_ONCE;
    use std::collections::VecDeque;

    const CHUNK: f64 = CHUNK_LEN;
    const STEP: Duration = Duration::from_micros(250);
    const MBIT: f64 = 125_000.0;
    const GBIT: f64 = 125_000_000.0;

    /// A sender's workers, its links taken together, and a receiver, in steps of virtual time. Rates are bytes a
    /// second.
    struct World {
        gauge: Gauge,
        now: Time,
        links: usize,
        link_rate: f64,
        /// What the receiver's disk takes.
        sink_rate: f64,
        /// Until the sender hears of what has arrived.
        delay: Duration,
        acks: VecDeque<(Time, usize, usize)>,
        /// What one worker reads, and what it compresses at level 1.
        read_rate: f64,
        compress_rate: f64,
        /// The same with bzip2.
        bzip2_rate: f64,
        /// Content over payload; 1 for what does not shrink.
        ratio: f64,
        /// The same with bzip2.
        bzip2_ratio: f64,
        /// What the receiver opens of it, content.
        open_rate: f64,
        /// When it will have opened what has arrived so far.
        opened: Time,
        arrived: usize,
        workers: Vec<Option<Work>>,
        sealed: VecDeque<(f64, bool)>,
        /// What is on the wire, and how much of it has gone.
        on_wire: Option<(f64, f64)>,
        wire_bytes: f64,
        ran_dry: u64,
        /// Chunks sent, acknowledged, released by the sink, allowed.
        sent: usize,
        acked: usize,
        released: usize,
        credit: usize,
        sink: f64,
        /// Whether chunks on their way, the next to arrive first, were compressed with bzip2.
        on_its_way: VecDeque<bool>,
        /// How chunks were compressed, in the order of their sealing.
        methods: Vec<Option<Method>>,
    }

    /// A chunk that a worker is at.
    #[derive(Clone, Copy)]
    struct Work {
        began: Time,
        done: Time,
        payload: f64,
        method: Option<Method>,
    }

    const POOL: usize = 128;
    const WINDOW: usize = 128;

    impl World {
        fn new(workers: usize, link_rate: f64, ratio: f64) -> World {
            World {
                gauge: Gauge::new(workers, POOL),
                now: Time::ZERO,
                links: 1,
                link_rate,
                sink_rate: 10e9,
                delay: Duration::ZERO,
                acks: VecDeque::new(),
                read_rate: 3e9,
                compress_rate: 300e6,
                bzip2_rate: 20e6,
                ratio,
                bzip2_ratio: ratio,
                open_rate: 60e6,
                opened: Time::ZERO,
                arrived: 0,
                workers: vec![None; workers],
                sealed: VecDeque::new(),
                on_wire: None,
                wire_bytes: 0.0,
                ran_dry: 0,
                sent: 0,
                acked: 0,
                released: 0,
                credit: 0,
                sink: 0.0,
                on_its_way: VecDeque::new(),
                methods: Vec::new(),
            }
        }

        fn waiting(&self) -> usize {
            if self.credit == 0 { self.sealed.len() } else { self.sealed.len().min(self.credit - self.sent) }
        }

        /// Let it run for so long; what happened meanwhile.
        fn run(&mut self, time: Duration) -> Ran {
            let (end, sent, methods) = (self.now + time, self.sent, self.methods.len());
            while self.now < end {
                self.step();
            }
            let methods = &self.methods[methods..];
            let all = methods.len().max(1) as f64;
            let levels: Vec<i32> = methods.iter().flatten().filter_map(level).collect();
            let bzip2 = methods.iter().filter(|m| **m == Some(Method::Bzip2)).count() as f64;
            Ran {
                goodput: (self.sent - sent) as f64 * CHUNK / time.as_secs_f64(),
                compressed: (levels.len() as f64 + bzip2) / all,
                level: levels.iter().sum::<i32>() as f64 / levels.len().max(1) as f64,
                bzip2: bzip2 / all,
                raw: methods.iter().filter(|m| m.is_none()).count(),
            }
        }

        fn step(&mut self) {
            self.now += STEP;
            let dt = STEP.as_secs_f64();
            for i in 0..self.workers.len() {
                if let Some(Work { began, done, payload, method }) = self.workers[i]
                    && done <= self.now
                {
                    self.workers[i] = None;
                    let seq = Seq((self.sent + self.sealed.len()) as u64);
                    self.sealed.push_back((payload, method == Some(Method::Bzip2)));
                    self.gauge.done(method, seq);
                    if let Some(method) = method.filter(|_| payload < CHUNK) {
                        let (content_len, payload_len) = (CHUNK as usize, payload as usize);
                        let took = done - began;
                        self.gauge.learn(&Compressed { now: self.now, took, method, content_len, payload_len });
                    }
                }
                let working = self.workers.iter().flatten().count();
                let in_pool = self.sealed.len() + working + self.sent - self.acked;
                if self.workers[i].is_none() && in_pool < POOL {
                    self.begin(i);
                }
            }
            let mut room = self.link_rate * dt;
            while room > 0.0 {
                if self.on_wire.is_none() && self.sent < self.credit {
                    self.on_wire = self.sealed.pop_front().map(|(len, bzip2)| {
                        self.on_its_way.push_back(bzip2);
                        (len, 0.0)
                    });
                    if self.on_wire.is_some() {
                        self.sent += 1;
                        self.ran_dry += u64::from(self.waiting() == 0);
                    }
                }
                let Some((len, gone)) = &mut self.on_wire else { break };
                let now = room.min(*len - *gone);
                *gone += now;
                room -= now.max(1.0);
                if *gone >= *len {
                    self.wire_bytes += *len;
                    self.on_wire = None;
                }
            }
            let on_wire = usize::from(self.on_wire.is_some());
            while self.on_its_way.len() > on_wire && self.opened <= self.now {
                self.arrived += 1;
                if self.on_its_way.pop_front() == Some(true) {
                    self.opened = self.now + Duration::from_secs_f64(CHUNK / self.open_rate);
                }
            }
            let arrived = self.arrived;
            self.sink = (self.sink + self.sink_rate * dt / CHUNK).min((arrived - self.released) as f64);
            self.released += self.sink as usize;
            self.sink -= self.sink.floor();
            // credit is told an eighth of the window at once, or with what has arrived
            let (_, told, limit) = self.acks.back().copied().unwrap_or((Time::ZERO, self.acked, self.credit));
            let now = self.released + WINDOW;
            if arrived > told || now >= limit + WINDOW / 8 {
                self.acks.push_back((self.now + self.delay, arrived, now));
            }
            while let Some((_, acked, credit)) = self.acks.pop_front_if(|(at, ..)| *at <= self.now) {
                (self.acked, self.credit) = (acked, credit);
            }
        }

        fn begin(&mut self, worker: usize) {
            let on_wire = u64::from(self.on_wire.is_some());
            let method = self.gauge.method(Look {
                now: self.now,
                waiting: self.waiting(),
                links: self.links,
                wire_bytes: self.wire_bytes as u64,
                ran_dry: self.ran_dry,
                begun: self.sent as u64,
                carried: self.sent as u64 - on_wire,
                unacked: self.sent - self.acked,
                acked: Seq(self.acked as u64),
                content_len: CHUNK as usize,
            });
            self.methods.push(method.filter(|_| self.ratio > 1.0));
            let mut took = CHUNK / self.read_rate;
            let mut payload = CHUNK;
            match method.filter(|_| self.ratio > 1.0) {
                Some(Method::Zstd(level)) => {
                    let speed = LEVELS.iter().find(|l| l.level == level).unwrap().speed;
                    took += CHUNK / (self.compress_rate * speed);
                    payload = CHUNK / self.ratio;
                }
                Some(Method::Bzip2) => {
                    took += CHUNK / self.bzip2_rate;
                    payload = CHUNK / self.bzip2_ratio;
                }
                None => {}
            }
            let done = self.now + Duration::from_secs_f64(took);
            self.workers[worker] = Some(Work { began: self.now, done, payload, method });
        }
    }

    /// Of zstd.
    fn level(method: &Method) -> Option<i32> {
        if let Method::Zstd(level) = method { Some(*level) } else { None }
    }

    #[derive(Debug)]
    struct Ran {
        goodput: f64,
        /// The part of the chunks that were.
        compressed: f64,
        /// The mean level of those that zstd compressed.
        level: f64,
        /// The part of the chunks that bzip2 compressed.
        bzip2: f64,
        /// The number of those that went as they are.
        raw: usize,
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn text_over_a_slow_link_is_compressed_from_the_first_chunks_on() {
        let mut world = World::new(2, 100.0 * MBIT, 3.0);
        let ran = world.run(SECOND);
        let raw = world.methods.iter().filter(|m| m.is_none()).count();
        assert_eq!(raw, 0, "{ran:?}");
        let ran = world.run(4 * SECOND);
        assert!(ran.compressed == 1.0 && ran.goodput > 2.9 * 100.0 * MBIT, "{ran:?}");
        assert!(ran.level > 2.5, "the CPU that is left over shrinks it further: {ran:?}");
    }

    #[test]
    fn what_cpu_is_left_over_goes_into_bzip2_and_the_link_never_rests() {
        // Two workers with bzip2 only would feed a third of this link, with zstd only many times of it.
        for (workers, least) in [(2, 0.1), (4, 0.4)] {
            let mut world = World::new(workers, 200.0 * MBIT, 3.0);
            world.bzip2_ratio = 4.0;
            world.run(2 * SECOND);
            let ran = world.run(8 * SECOND);
            let best = 200.0 * MBIT / ((1.0 - ran.bzip2) / 3.0 + ran.bzip2 / 4.0);
            assert!(ran.compressed == 1.0 && ran.bzip2 > least && ran.goodput > 0.95 * best, "{workers}: {ran:?}");
        }
    }

    #[test]
    fn bzip2_is_only_tried_where_it_shrinks_no_further() {
        let mut world = World::new(2, 100.0 * MBIT, 3.0);
        world.bzip2_ratio = 3.2;
        world.run(2 * SECOND);
        let ran = world.run(10 * SECOND);
        assert!(ran.bzip2 > 0.0 && ran.bzip2 < 0.04, "{ran:?}");
    }

    #[test]
    fn a_receiver_that_opens_bzip2_too_slowly_gets_what_it_can_open_and_is_never_far_behind() {
        // One core that opens half of what the sender could bring.
        let mut world = World::new(8, 100.0 * MBIT, 3.0);
        (world.bzip2_ratio, world.open_rate) = (4.0, 20e6);
        let (mut behind, mut raw) = (0, 0);
        let before = world.sent;
        for _ in 0..30 {
            raw += world.run(SECOND).raw;
            behind = behind.max(world.sent - world.acked);
        }
        let goodput = (world.sent - before) as f64 * CHUNK / 30.0;
        assert!(raw == 0 && behind < WINDOW / 2, "{behind} chunks, {raw} raw");
        assert!(goodput > 3.1 * 100.0 * MBIT, "{goodput}");
    }

    #[test]
    fn no_more_workers_than_there_is_memory_for_use_bzip2_at_once() {
        let mut world = World::new(32, 100.0 * MBIT, 3.0);
        (world.bzip2_ratio, world.open_rate) = (4.0, 1e9);
        let mut most = 0;
        while world.now < 4 * SECOND {
            world.step();
            let now = world.workers.iter().flatten().filter(|w| w.method == Some(Method::Bzip2)).count();
            most = most.max(now);
        }
        assert!((2..=AT_ONCE).contains(&most), "{most}");
    }

    #[test]
    fn a_round_trip_before_the_first_credit_does_not_fill_the_pool_with_what_is_not_compressed() {
        let mut world = World::new(16, 100.0 * MBIT, 3.0);
        world.delay = Duration::from_millis(100);
        world.run(world.delay);
        let raw = world.methods.iter().filter(|m| m.is_none()).count();
        assert!(raw <= 16 + 8, "{raw}");
    }

    #[test]
    fn text_over_a_link_faster_than_the_cpu_compresses_goes_as_it_is() {
        let mut world = World::new(2, 10.0 * GBIT, 3.0);
        let ran = world.run(SECOND);
        assert!(ran.compressed < 0.03 && ran.goodput > 0.97 * 10.0 * GBIT, "{ran:?}");
        let ran = world.run(4 * SECOND);
        assert!(ran.compressed < 0.01 && ran.goodput > 0.99 * 10.0 * GBIT, "{ran:?}");
    }

    #[test]
    fn where_compressing_everything_is_too_slow_some_chunks_go_as_they_are_and_the_link_never_rests() {
        // All compressed: 600 MB/s. None: 250. The best mixture keeps both busy.
        let mut world = World::new(2, 2.0 * GBIT, 5.0);
        world.run(SECOND);
        let ran = world.run(4 * SECOND);
        assert!(ran.goodput > 600e6 && ran.compressed > 0.7 && ran.level < 1.1, "{ran:?}");
    }

    #[test]
    fn a_link_that_becomes_fast_is_fed_with_what_is_not_compressed_within_two_seconds() {
        let mut world = World::new(2, 100.0 * MBIT, 3.0);
        world.run(5 * SECOND);
        world.link_rate = 10.0 * GBIT;
        world.run(2 * SECOND);
        let ran = world.run(SECOND);
        assert!(ran.compressed < 0.02 && ran.goodput > 0.98 * 10.0 * GBIT, "{ran:?}");
        world.link_rate = 100.0 * MBIT;
        let done = world.methods.len();
        world.run(4 * SECOND);
        let raw = world.methods[done..].iter().filter(|m| m.is_none()).count();
        assert!(raw <= 24, "{raw} chunks, two seconds of this link, until its new rate was known");
    }

    #[test]
    fn a_slow_receiver_gets_what_is_not_compressed() {
        for (link, sink_rate, delay) in
            [(1.0, 20e6, 0), (1.0, 60e6, 0), (1.0, 90e6, 0), (1.0, 60e6, 50), (10.0, 100e6, 0), (10.0, 300e6, 20)]
        {
            let mut world = World::new(2, link * GBIT, 3.0);
            (world.sink_rate, world.delay) = (sink_rate, Duration::from_millis(delay));
            world.run(4 * SECOND);
            let ran = world.run(6 * SECOND);
            assert!(ran.compressed < 0.05 && ran.goodput > 0.9 * sink_rate, "{link} {sink_rate} {delay}: {ran:?}");
        }
    }

    #[test]
    fn a_slow_source_is_not_compressed() {
        let mut world = World::new(2, GBIT, 3.0);
        world.read_rate = 30e6;
        world.run(SECOND);
        let ran = world.run(4 * SECOND);
        assert!(ran.compressed < 0.01, "{ran:?}");
    }

    #[test]
    fn a_cpu_that_becomes_busy_stops_it_and_one_that_is_idle_again_resumes_it() {
        let mut world = World::new(2, GBIT, 3.0);
        world.run(3 * SECOND);
        assert!(world.run(SECOND).compressed > 0.9);
        world.compress_rate = 50e6;
        world.run(2 * SECOND);
        let ran = world.run(2 * SECOND);
        assert!(ran.compressed < 0.05 && ran.goodput > 0.98 * GBIT, "{ran:?}");
        world.compress_rate = 300e6;
        world.run(2 * SECOND);
        let ran = world.run(SECOND);
        assert!(ran.compressed > 0.9 && ran.goodput > 2.0 * GBIT, "{ran:?}");
    }

    #[test]
    fn many_workers_stay_within_the_memory_for_contexts() {
        let highest = |workers| {
            let mut world = World::new(workers, 20.0 * MBIT, 3.0);
            world.run(6 * SECOND);
            world.methods.iter().flatten().filter_map(level).max().unwrap()
        };
        assert_eq!((highest(4), highest(16), highest(64)), (6, 3, 1));
    }

    #[test]
    fn what_does_not_shrink_changes_nothing() {
        let mut world = World::new(2, GBIT, 1.0);
        let ran = world.run(3 * SECOND);
        assert!(ran.goodput > 0.98 * GBIT, "{ran:?}");
        assert_eq!(world.gauge.speed.value(), None, "and says nothing about the speed of what does");
    }
}
