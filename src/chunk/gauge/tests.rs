//! A sender's workers, links and a receiver in virtual time, and what the gauge makes of them.

use std::collections::VecDeque;

use super::super::thorough::AT_ONCE;
use super::*;
use crate::ids::Seq;

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
                let (now, took, content_len, payload_len) = (self.now, done - began, CHUNK as usize, payload as usize);
                let compressed = |method| Compressed { seq, now, took, method, content_len, payload_len };
                self.gauge.done(method, method.filter(|_| payload < CHUNK).map(compressed).as_ref());
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
    let before = world.methods.iter().flatten().count();
    assert!(before <= 2 * FIRST * world.workers.len(), "{before} before the link's rate is known");
    let ran = world.run(4 * SECOND);
    assert_eq!(world.methods.iter().flatten().count(), before, "none once it is: {ran:?}");
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
