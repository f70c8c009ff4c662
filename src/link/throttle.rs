//! `--bwlimit`: how much a link may write, and when. It is asked for leave only where there is a limit.
//!
//! A limit is a schedule: whoever takes a piece of bytes gets the next free time on it, and the schedule moves on by
//! what the piece lasts at that rate. So all links that share a limit take turns, one that waits for room in its socket
//! or is gone leaves its time to the others, and a chunk trickles piece by piece however long it takes. The kernel's
//! own pacing (`SO_MAX_PACING_RATE`) could not do this: it is for one socket, and sends at least two segments at once,
//! each of 64 KiB on loopback.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::limits;
use crate::options::Bwlimit;

/// One limit and all who share it.
#[derive(Debug)]
struct Schedule {
    /// Bytes a second.
    rate: NonZeroU64,
    /// When the next piece may go.
    next: Mutex<Instant>,
    /// Links in the middle of a chunk that have room and wait for their time on it.
    waiting: AtomicUsize,
}

/// One of those who wait.
struct Waiting<'a>(&'a Schedule);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

impl Schedule {
    fn new(rate: NonZeroU64, now: Instant) -> Schedule {
        Schedule { rate, next: Mutex::new(now), waiting: AtomicUsize::new(0) }
    }

    fn next(&self) -> MutexGuard<'_, Instant> {
        self.next.lock().expect("no thread panics while it holds this lock")
    }

    fn lasting(&self, bytes: usize) -> Duration {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.rate.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Bytes to take at a time.
    fn piece(&self) -> usize {
        let piece = u128::from(self.rate.get()) * limits::BWLIMIT_PIECE_TIME.as_nanos() / 1_000_000_000;
        usize::try_from(piece).unwrap_or(usize::MAX).clamp(limits::BWLIMIT_PIECE_MIN, limits::WRITE_LEN)
    }

    /// Take the next free time for so many bytes. What was not used is lost, but for a moment that a timer may be late.
    fn take(&self, bytes: usize, now: Instant) -> Instant {
        let mut next = self.next();
        let at = now.checked_sub(limits::BWLIMIT_LATE).map_or(*next, |earliest| (*next).max(earliest));
        *next = at + self.lasting(bytes);
        at
    }

    fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(self)
    }

    /// Whether others use it up, and then when to ask again.
    fn is_used_up(&self, now: Instant) -> Option<Instant> {
        let free = *self.next() + self.lasting(self.piece()) + limits::BWLIMIT_LATE;
        // on a busy machine the time of one who waits can be long past
        let waits = self.waiting.load(Relaxed) > 0;
        (waits || free > now).then(|| free.max(now + limits::BWLIMIT_LATE))
    }
}

/// All limits of a session.
#[derive(Debug, Default)]
pub struct Limits {
    whole: Option<Arc<Schedule>>,
    links: Vec<(String, Arc<Schedule>)>,
}

impl Limits {
    /// What `--bwlimit` asks for.
    pub fn new(bwlimit: &Bwlimit) -> Limits {
        let now = Instant::now();
        let schedule = |rate: NonZeroU64| Arc::new(Schedule::new(rate, now));
        let links = bwlimit.links.iter().filter_map(|(link, rate)| Some((link.name(), schedule((*rate)?)))).collect();
        Limits { whole: bwlimit.whole.map(schedule), links }
    }

    /// For one connection of the link of that name, if there is a limit for it.
    pub(super) fn throttle(&self, name: &str) -> Option<Throttle> {
        let own = self.links.iter().find(|(link, _)| link == name).map(|(_, schedule)| schedule.clone());
        (self.whole.is_some() || own.is_some()).then(|| Throttle::new(self.whole.clone(), own))
    }
}

/// Leave for one connection, piece by piece.
#[derive(Debug)]
pub(super) struct Throttle {
    whole: Option<Arc<Schedule>>,
    own: Option<Arc<Schedule>>,
    piece: usize,
    /// Bytes that may go from `at` on.
    granted: Cell<usize>,
    at: Cell<Instant>,
    /// The limit for the whole decided when that is.
    by_whole: Cell<bool>,
    lifted: Cell<bool>,
    lifting: Notify,
    waited: Cell<Duration>,
}

impl Throttle {
    fn new(whole: Option<Arc<Schedule>>, own: Option<Arc<Schedule>>) -> Throttle {
        let piece = whole.iter().chain(&own).map(|s| s.piece()).min().unwrap_or(limits::WRITE_LEN);
        Throttle {
            whole,
            own,
            piece,
            granted: Cell::new(0),
            at: Cell::new(Instant::now()),
            by_whole: Cell::new(false),
            lifted: Cell::new(false),
            lifting: Notify::new(),
            waited: Cell::new(Duration::ZERO),
        }
    }

    /// How many bytes may be written now, or when to ask again.
    pub fn ask(&self, now: Instant) -> Result<usize, Instant> {
        if self.lifted.get() {
            return Ok(usize::MAX);
        }
        if self.granted.get() == 0 {
            let [whole, own] = [&self.whole, &self.own].map(|s| s.as_ref().map(|s| s.take(self.piece, now)));
            self.at.set(whole.max(own).unwrap_or(now));
            self.by_whole.set(whole >= own);
            self.granted.set(self.piece);
        }
        if self.at.get() <= now { Ok(self.granted.get()) } else { Err(self.at.get()) }
    }

    /// Whether a chunk that another link carries may be sent once more, or when to ask again. While others use up the
    /// limit for the whole, what they carry is late because of it, and a second copy would make it later.
    pub fn ask_to_hedge(&self, now: Instant) -> Result<(), Instant> {
        match &self.whole {
            // a piece of our own moves the schedule as well
            Some(whole) if self.granted.get() == 0 => whole.is_used_up(now).map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    /// So many bytes were written.
    pub fn used(&self, bytes: usize) {
        self.granted.set(self.granted.get().saturating_sub(bytes));
    }

    /// Wait until something may be written; how many bytes.
    pub async fn leave(&self) -> usize {
        loop {
            let since = Instant::now();
            let at = match self.ask(since) {
                Ok(bytes) => return bytes,
                Err(at) => at,
            };
            let _waiting = self.whole.as_ref().filter(|_| self.by_whole.get()).map(|whole| whole.wait());
            tokio::select! {
                () = sleep_until(at) => {}
                () = self.lifting.notified() => {}
            }
            self.has_waited(since.elapsed());
        }
    }

    /// The connection has waited for leave.
    pub fn has_waited(&self, time: Duration) {
        self.waited.set(self.waited.get() + time);
    }

    /// How long it has waited for leave since the last call.
    pub fn take_waited(&self) -> Duration {
        self.waited.take()
    }

    /// No limit any more: the chunk under way must be over before the last word can be said.
    pub fn lift(&self) {
        self.lifted.set(true);
        self.lifting.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LinkSpec;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(whole: u64, links: &[(&str, u64)]) -> Limits {
        let links = links.iter().map(|(name, rate)| (LinkSpec::Interface((*name).into()), NonZeroU64::new(*rate)));
        Limits::new(&Bwlimit { whole: NonZeroU64::new(whole), links: links.collect() })
    }

    /// What each of these writes in the seconds from `start`, one that waits being as late as `late` allows; and the
    /// most in one second.
    fn write(throttles: &[&Throttle], start: Instant, seconds: u32, late: Duration) -> (Vec<usize>, usize) {
        let (mut sums, mut wakes) = (vec![0; throttles.len()], vec![start; throttles.len()]);
        let mut by_second = vec![0; seconds as usize];
        let mut turn = 0;
        loop {
            turn += 1;
            let (who, now) = wakes.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap();
            if now >= start + SECOND * seconds {
                return (sums, by_second.into_iter().max().unwrap());
            }
            match throttles[who].ask(now) {
                Ok(bytes) => {
                    throttles[who].used(bytes);
                    sums[who] += bytes;
                    by_second[(now - start).as_secs() as usize] += bytes;
                }
                Err(at) => wakes[who] = at + late * (turn % 3) / 2,
            }
        }
    }

    #[track_caller]
    fn assert_near(got: usize, right: u64) {
        assert!((got as f64 / right as f64 - 1.0).abs() < 0.03, "{got} bytes, not {right}");
    }

    #[test]
    fn every_second_has_what_the_rate_allows_though_timers_are_late() {
        for rate in [1 << 10, 100 << 10, 1_250_000, 125_000_000, 12_500_000_000] {
            for late_ms in [0, 2] {
                let throttle = limits(rate, &[]).throttle("l1").unwrap();
                let start = Instant::now();
                let (sums, most) = write(&[&throttle], start, 10, Duration::from_millis(late_ms));
                assert_near(sums[0], rate * 10);
                // and one piece, of which the slowest has few in a second
                assert!(most as u64 <= rate + rate / 15, "{most} bytes in a second at {rate}");
            }
        }
    }

    #[test]
    fn links_that_are_up_share_the_whole() {
        let limits = limits(1_000_000, &[]);
        let [a, b] = ["l1", "l2"].map(|name| limits.throttle(name).unwrap());
        let start = Instant::now();
        let (both, _) = write(&[&a, &b], start, 10, Duration::ZERO);
        both.into_iter().for_each(|sum| assert_near(sum, 5_000_000));
        let (one, _) = write(&[&b], start + 10 * SECOND, 10, Duration::ZERO);
        assert_near(one[0], 10_000_000);
    }

    #[test]
    fn a_link_with_less_of_its_own_leaves_the_rest_of_the_whole_to_others() {
        let limits = limits(1_000_000, &[("l1", 100_000), ("l3", 50_000)]);
        let [a, b] = ["l1", "l2"].map(|name| limits.throttle(name).unwrap());
        let (sums, _) = write(&[&a, &b], Instant::now(), 10, Duration::ZERO);
        // a little less, since it waits for its turn on both schedules
        assert!((850_000..1_020_000).contains(&sums[0]), "{sums:?}");
        assert_near(sums[0] + sums[1], 10_000_000);
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let throttle = limits(1_000_000, &[]).throttle("l1").unwrap();
        let start = Instant::now();
        write(&[&throttle], start, 1, Duration::ZERO);
        let (_, most) = write(&[&throttle], start + 100 * SECOND, 1, Duration::ZERO);
        assert!(most < 1_100_000, "{most} bytes in a second");
    }

    #[test]
    fn there_is_a_throttle_only_where_there_is_a_limit() {
        assert!(limits(0, &[]).throttle("l1").is_none());
        let one = limits(0, &[("l1", 2000), ("l2", 0)]);
        assert!(one.throttle("l1").is_some() && one.throttle("l2").is_none() && one.throttle("l3").is_none());
        let throttle = one.throttle("l1").unwrap();
        while throttle.ask(Instant::now()).is_ok() {
            throttle.used(throttle.piece);
        }
        throttle.lift();
        assert_eq!(throttle.ask(Instant::now()), Ok(usize::MAX));
    }

    #[test]
    fn a_second_copy_takes_only_what_the_others_leave_of_the_whole() {
        let limits = limits(100_000, &[]);
        let [a, b] = ["l1", "l2"].map(|name| limits.throttle(name).unwrap());
        let start = Instant::now();
        for ms in 0..3000 {
            let now = start + Duration::from_millis(ms);
            if let Ok(bytes) = a.ask(now) {
                a.used(bytes);
            }
            assert!(b.ask_to_hedge(now).is_err(), "after {ms} ms");
        }
        assert_eq!(b.ask_to_hedge(start + 4 * SECOND), Ok(()), "the other stands still");
        let waiting = a.whole.as_ref().map(|whole| whole.wait());
        assert!(b.ask_to_hedge(start + 4 * SECOND).is_err(), "the other will go on as soon as it is woken");
        drop(waiting);
        assert_eq!(b.ask_to_hedge(start + 4 * SECOND), Ok(()));
    }
}
