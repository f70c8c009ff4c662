//! Whether there is time to compress the next chunk with bzip2, and a use. Part of [`super::gauge`], which asks once it
//! knows that the links limit and zstd keeps up with them.
//!
//! bzip2 shrinks text by a third more, for ten times the CPU at one end and more of it at the other. So some chunks are
//! compressed with it, as many as there is time for:
//!
//! - What waits lasts the links for longer than it takes, so that they do not run dry meanwhile.
//! - It shrank the last chunks it was tried on by more than zstd did.
//! - The receiver opens what comes about as fast as it comes. One that does not is seen late, behind all that waits; so
//!   the chunks that are out are held to a number that grows slowly and is halved when the receiver is behind, as TCP
//!   does with what it has in flight.

use std::time::Duration;

use super::codecs::BZIP2_MEMORY;
use super::look::{CHUNK_LEN, Compressed, Look, Time};
use super::mean::{LastTry, Mean};
use crate::ids::Seq;
use crate::limits;

/// What waits must last the links as many times as long as one chunk takes.
const LASTS: f64 = 1.5;

/// What was sent and is not acknowledged must be no more than the links carry in this time: a receiver that opens more
/// slowly than the links bring is behind, and would be at the end.
const BEHIND: Duration = Duration::from_millis(700);

/// Content over payload must be so many times what it is with zstd.
const GAIN: f64 = 1.1;

/// The speed against that of zstd's level 1, until it is measured.
const SPEED: f64 = 0.07;

/// Workers that have a context at once.
pub(super) const AT_ONCE: usize = limits::COMPRESS_MORE_MEMORY / BZIP2_MEMORY;

/// Chunks that may be out at first, and at least.
const OUT_FIRST: f64 = 32.0;
/// See [`OUT_FIRST`].
const OUT_MIN: f64 = 8.0;

/// How many more for each that comes to be acknowledged.
const OUT_MORE: f64 = 0.5;

/// The number is not halved again for what was sealed before, which may take so long.
const EASED_FOR: Duration = Duration::from_secs(2);

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Thorough {
    /// Content bytes of one worker over seconds.
    speed: Mean,
    /// Content over payload.
    shrinks: Mean,
    /// When it was last tried.
    tried: LastTry,
    /// Workers that are at it.
    now: usize,
    /// Chunks that are sealed so and not acknowledged, in no order.
    out: Vec<Seq>,
    /// How many may be, with those that workers are at.
    most: f64,
    /// When that was last halved.
    eased: Option<Time>,
}

impl Thorough {
    pub(super) fn new() -> Thorough {
        let (speed, shrinks, out) = (Mean::default(), Mean::default(), Vec::new());
        Thorough { speed, shrinks, tried: LastTry::default(), now: 0, out, most: OUT_FIRST, eased: None }
    }

    /// Whether the next chunk should be, with links of that wire rate, and zstd's speed of one worker at level 1 and its
    /// content over payload.
    pub(super) fn pays(&mut self, look: &Look, rate: f64, zstd_speed: f64, zstd_shrinks: f64) -> bool {
        let lasts = |chunks: usize| chunks as f64 * CHUNK_LEN / zstd_shrinks / rate;
        let were_out = self.out.len();
        self.out.retain(|seq| *seq >= look.acked);
        self.most += OUT_MORE * (were_out - self.out.len()) as f64;
        let is_behind = lasts(look.unacked) > BEHIND.as_secs_f64();
        if is_behind && self.eased.is_none_or(|eased| look.now >= eased + EASED_FOR) {
            self.most = (self.most.min((self.out.len() + self.now) as f64) / 2.0).max(OUT_MIN);
            self.eased = Some(look.now);
        }
        let takes = CHUNK_LEN / self.speed.value().unwrap_or(zstd_speed * SPEED);
        let has_time = look.content_len >= limits::CHUNK_LEN / 2
            && lasts(look.waiting) >= LASTS * takes
            && !is_behind
            && self.now < AT_ONCE
            && ((self.out.len() + self.now) as f64) < self.most;
        let is_of_use = self.shrinks.value().is_none_or(|more| more >= GAIN * zstd_shrinks);
        has_time && (is_of_use || self.tried.again(look.now))
    }

    /// A worker begins.
    pub(super) fn begin(&mut self) {
        self.now += 1;
    }

    /// It is done; what came of it, if the chunk shrank.
    pub(super) fn end(&mut self, came: Option<&Compressed>) {
        self.now -= 1;
        let Some(chunk) = came else { return };
        let (content, payload) = (chunk.content_len as f64, chunk.payload_len as f64);
        self.speed.add(chunk.now, content, chunk.took.as_secs_f64());
        self.shrinks.add(chunk.now, content, payload);
        self.tried.was(chunk.now);
        self.out.push(chunk.seq);
    }
}
