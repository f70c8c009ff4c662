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
use super::look::{CHUNK_LEN, Compressed, Look, Time};
use super::mean::{LastTry, Mean};
use super::thorough::Thorough;
use crate::limits;

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
    tried: LastTry,
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
            tried: LastTry::default(),
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

    /// A chunk is sealed for which [`Gauge::method`] said `asked`; what came of it, if it was compressed.
    pub fn done(&mut self, asked: Option<Method>, came: Option<&Compressed>) {
        self.compressing -= usize::from(asked.is_some());
        if asked == Some(Method::Bzip2) {
            self.thorough.end(came);
        } else if let Some(chunk) = came {
            self.learn(chunk);
        }
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
            return FAST.filter(|_| self.tried.again(now));
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

    fn learn(&mut self, chunk: &Compressed) {
        let Compressed { now, took, method, .. } = *chunk;
        let (content, payload) = (chunk.content_len as f64, chunk.payload_len as f64);
        let of_level = LEVELS.iter().find(|l| method == Method::Zstd(l.level));
        self.speed.add(now, content / of_level.map_or(1.0, |l| l.speed), took.as_secs_f64());
        self.shrinks.add(now, content, payload);
        self.tried.was(now);
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

#[cfg(test)]
mod tests;
