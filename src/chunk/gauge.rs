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
//! Nothing is remembered longer than a second or so: links that become faster or slower, and a CPU that becomes busy or
//! idle, change the decision in less than two.

use std::time::Duration;

use crate::limits;

/// Time since some start.
type Time = Duration;

/// What was measured counts for 1/e after this long.
const MEMORY: Duration = Duration::from_millis(500);

/// How many times as fast as the links' wire rate all workers together must compress; for a level above 1, how many
/// times as fast as the links carry what is compressed, unless very much waits.
const MARGIN: f64 = 1.5;

/// Chunks that must wait for each link before one is compressed.
const WAITING_PER_LINK: usize = 2;

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
}

/// A chunk that was compressed.
#[derive(Clone, Copy, Debug)]
pub struct Compressed {
    /// When it was done.
    pub now: Time,
    /// How long it took.
    pub took: Duration,
    /// The level.
    pub level: i32,
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
        }
    }

    /// The level at which to try the next chunk; `None` to send it as it is.
    pub fn level(&mut self, look: Look) -> Option<i32> {
        self.observe(look);
        let Look { now, waiting, .. } = look;
        let links = look.links.max(1);
        let most = (self.pool / 4).max(1);
        let least = (WAITING_PER_LINK * links).min(most);
        let surely = (self.pool / 8 + WAITING_SURELY).max(2 * least).min(most);
        let work = self.work.value().filter(|_| self.work.over(now) >= WORK_KNOWN_AFTER.as_secs_f64());
        if work.is_some_and(|work| work < WORK_MIN) && waiting < surely {
            return None;
        }
        let Some(rate) = self.known_rate(now, links) else {
            // Sending everything as it is until the rate is known would fill the pool with it, which a slow link
            // carries for seconds. Links that turn out to be fast lose only milliseconds.
            return (waiting >= least).then_some(1);
        };
        if waiting < least {
            return None;
        }
        let Some(speed) = self.speed.value().map(|one| one * self.workers as f64) else { return Some(1) };
        if speed < MARGIN * rate {
            return self.try_again(now).then_some(1);
        }
        if waiting < (2 * least).min(most) {
            return Some(1);
        }
        // Half of the pool lasts a slow link for seconds: time enough to see that a level is too slow after all.
        let margin = if waiting >= self.pool / 2 { 1.0 } else { MARGIN };
        let needed = margin * rate * self.shrinks.value().unwrap_or(1.0);
        let fits = |l: &&Level| l.level == 1 || l.memory * self.workers <= limits::COMPRESS_MEMORY;
        LEVELS.iter().filter(fits).find(|l| l.level == 1 || speed * l.speed >= needed).map(|l| l.level)
    }

    /// Learn from a chunk that was compressed at a level that [`Gauge::level`] gave.
    pub fn learn(&mut self, chunk: &Compressed) {
        let Compressed { now, took, level, .. } = *chunk;
        let (content, payload) = (chunk.content_len as f64, chunk.payload_len as f64);
        let speed = LEVELS.iter().find(|l| l.level == level).map_or(1.0, |l| l.speed);
        self.speed.add(now, content / speed, took.as_secs_f64());
        self.shrinks.add(now, content, payload);
        self.tried = Some(now);
    }

    /// Learn from what happened since the last look.
    fn observe(&mut self, look: Look) {
        let last = self.last.replace(look).filter(|last| last.links > 0 && look.links > 0);
        let Some(last) = last else { return };
        let span = look.now.saturating_sub(last.now).as_secs_f64();
        let had_work = last.waiting > 0 && look.waiting > 0 && last.ran_dry == look.ran_dry;
        let bytes = look.wire_bytes.saturating_sub(last.wire_bytes) as f64;
        self.work.add(look.now, if had_work { span } else { 0.0 }, span);
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

    fn try_again(&mut self, now: Time) -> bool {
        let due = self.tried.is_none_or(|tried| now.saturating_sub(tried) >= TRY_AGAIN);
        if due {
            self.tried = Some(now);
        }
        due
    }
}

/// One sum over another. What was added counts less and less as time goes by.
#[derive(Default, Debug)]
struct Mean {
    sum: f64,
    over: f64,
    at: Time,
}

impl Mean {
    fn add(&mut self, now: Time, sum: f64, over: f64) {
        *self = Mean { sum: self.sum(now) + sum, over: self.over(now) + over, at: now.max(self.at) };
    }

    fn kept(&self, now: Time) -> f64 {
        (-now.saturating_sub(self.at).as_secs_f64() / MEMORY.as_secs_f64()).exp()
    }

    fn sum(&self, now: Time) -> f64 {
        self.sum * self.kept(now)
    }

    fn over(&self, now: Time) -> f64 {
        self.over * self.kept(now)
    }

    /// What it came to, however long ago that was.
    fn value(&self) -> Option<f64> {
        (self.over > 0.0).then(|| self.sum / self.over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const CHUNK: f64 = limits::CHUNK_LEN as f64;
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
        /// Content over payload; 1 for what does not shrink.
        ratio: f64,
        workers: Vec<Option<Work>>,
        sealed: VecDeque<f64>,
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
        /// Levels of chunks in the order of their sealing.
        levels: Vec<Option<i32>>,
    }

    /// A chunk that a worker is at.
    #[derive(Clone, Copy)]
    struct Work {
        began: Time,
        done: Time,
        payload: f64,
        level: Option<i32>,
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
                ratio,
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
                levels: Vec::new(),
            }
        }

        fn waiting(&self) -> usize {
            if self.credit == 0 { self.sealed.len() } else { self.sealed.len().min(self.credit - self.sent) }
        }

        /// Let it run for so long; what happened meanwhile.
        fn run(&mut self, time: Duration) -> Ran {
            let (end, sent, levels) = (self.now + time, self.sent, self.levels.len());
            while self.now < end {
                self.step();
            }
            let levels = &self.levels[levels..];
            let compressed = levels.iter().flatten().count() as f64;
            Ran {
                goodput: (self.sent - sent) as f64 * CHUNK / time.as_secs_f64(),
                compressed: compressed / levels.len().max(1) as f64,
                level: levels.iter().flatten().sum::<i32>() as f64 / compressed.max(1.0),
            }
        }

        fn step(&mut self) {
            self.now += STEP;
            let dt = STEP.as_secs_f64();
            for i in 0..self.workers.len() {
                if let Some(Work { began, done, payload, level }) = self.workers[i]
                    && done <= self.now
                {
                    self.workers[i] = None;
                    self.sealed.push_back(payload);
                    if let Some(level) = level {
                        let (content_len, payload_len) = (CHUNK as usize, payload as usize);
                        let took = done - began;
                        self.gauge.learn(&Compressed { now: self.now, took, level, content_len, payload_len });
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
                    self.on_wire = self.sealed.pop_front().map(|len| (len, 0.0));
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
            let arrived = self.sent - usize::from(self.on_wire.is_some());
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
            let level = self.gauge.level(Look {
                now: self.now,
                waiting: self.waiting(),
                links: self.links,
                wire_bytes: self.wire_bytes as u64,
                ran_dry: self.ran_dry,
            });
            let level = level.filter(|_| self.ratio > 1.0);
            self.levels.push(level);
            let mut took = CHUNK / self.read_rate;
            let mut payload = CHUNK;
            if let Some(level) = level {
                let speed = LEVELS.iter().find(|l| l.level == level).unwrap().speed;
                took += CHUNK / (self.compress_rate * speed);
                payload = CHUNK / self.ratio;
            }
            let done = self.now + Duration::from_secs_f64(took);
            self.workers[worker] = Some(Work { began: self.now, done, payload, level });
        }
    }

    #[derive(Debug)]
    struct Ran {
        goodput: f64,
        /// The part of the chunks that were.
        compressed: f64,
        /// Their mean level.
        level: f64,
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn text_over_a_slow_link_is_compressed_from_the_first_chunks_on() {
        let mut world = World::new(2, 100.0 * MBIT, 3.0);
        let ran = world.run(SECOND);
        let raw = world.levels.iter().filter(|l| l.is_none()).count();
        assert!(raw <= 4, "{raw} raw, {ran:?}");
        let ran = world.run(4 * SECOND);
        assert!(ran.compressed == 1.0 && ran.goodput > 2.9 * 100.0 * MBIT, "{ran:?}");
        assert!(ran.level > 2.5, "the CPU that is left over shrinks it further: {ran:?}");
    }

    #[test]
    fn a_round_trip_before_the_first_credit_does_not_fill_the_pool_with_what_is_not_compressed() {
        let mut world = World::new(16, 100.0 * MBIT, 3.0);
        world.delay = Duration::from_millis(100);
        world.run(world.delay);
        let raw = world.levels.iter().filter(|l| l.is_none()).count();
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
        let done = world.levels.len();
        world.run(4 * SECOND);
        let raw = world.levels[done..].iter().filter(|l| l.is_none()).count();
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
        let ran = world.run(5 * SECOND);
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
            world.levels.iter().flatten().max().copied().unwrap()
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
