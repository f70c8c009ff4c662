//! How much is handed between a socket and us at a time: what the link carries in a few milliseconds. A fast link that
//! was served at every segment would cost a system call and a wake-up for each 64 KiB; a slow one that was served in
//! large portions would hold back what another could carry.

use std::time::Duration;

use tokio::time::Instant;

/// The rate is measured over at least this long.
const SPAN: Duration = Duration::from_millis(20);

/// How much to move at a time, by the rate of the last moments.
#[derive(Debug)]
pub(super) struct Pace {
    /// What is moved at a time should last so long.
    lasting: Duration,
    /// Bounds of what is moved at a time, bytes.
    min: usize,
    max: usize,
    portion: usize,
    since: Instant,
    moved: u64,
}

impl Pace {
    /// A link of which nothing is known: `min` at a time.
    pub fn new(lasting: Duration, min: usize, max: usize) -> Pace {
        Pace { lasting, min, max, portion: min, since: Instant::now(), moved: 0 }
    }

    /// Bytes to move at a time.
    pub fn portion(&self) -> usize {
        self.portion
    }

    /// Bytes were moved; the new portion, if it is another now.
    pub fn moved(&mut self, bytes: usize, now: Instant) -> Option<usize> {
        self.moved += bytes as u64;
        let span = now - self.since;
        if span < SPAN {
            return None;
        }
        let wanted = u128::from(self.moved) * self.lasting.as_nanos() / span.as_nanos();
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).clamp(self.min, self.max);
        (self.since, self.moved) = (now, 0);
        // near what it is it stays as it is: a change costs a system call
        if wanted.abs_diff(self.portion) <= self.portion / 4 {
            return None;
        }
        self.portion = wanted;
        Some(self.portion)
    }

    /// From now on only the least at a time.
    pub fn hurry(&mut self) -> usize {
        (self.portion, self.max) = (self.min, self.min);
        self.portion
    }

    /// The link has fallen far behind its rate: back to `min`, and measure anew.
    pub fn fell_behind(&mut self, now: Instant) -> usize {
        (self.portion, self.since, self.moved) = (self.min, now, 0);
        self.portion
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: usize = 16 << 10;
    const MAX: usize = 256 << 10;

    /// Five seconds at that rate, in steps of a millisecond; how often the portion changed.
    fn run(pace: &mut Pace, now: &mut Instant, bytes_per_second: usize) -> usize {
        let mut changes = 0;
        for _ in 0..5000 {
            *now += Duration::from_millis(1);
            changes += usize::from(pace.moved(bytes_per_second / 1000, *now).is_some());
        }
        changes
    }

    #[test]
    fn a_portion_lasts_a_few_milliseconds_within_its_bounds() {
        let mut now = Instant::now();
        let mut pace = Pace::new(Duration::from_millis(4), MIN, MAX);
        for (mbit, right) in [(10, MIN), (100, 50_000), (1000, MAX), (10_000, MAX), (250, 125_000), (1, MIN)] {
            run(&mut pace, &mut now, mbit * 1_000_000 / 8);
            let portion = pace.portion();
            assert!(portion > right / 2 && portion < right * 2, "{mbit} Mbit/s: {portion}");
            assert!((MIN..=MAX).contains(&portion));
        }
    }

    #[test]
    fn a_steady_rate_changes_nothing_once_it_is_known() {
        let mut now = Instant::now();
        for kilobytes in (1..200_000).step_by(997) {
            let mut pace = Pace::new(Duration::from_millis(4), MIN, MAX);
            run(&mut pace, &mut now, kilobytes * 1000);
            assert_eq!(run(&mut pace, &mut now, kilobytes * 1000), 0, "{kilobytes} kB/s");
        }
    }

    #[test]
    fn a_link_that_fell_behind_starts_again_from_the_least() {
        let mut now = Instant::now();
        let mut pace = Pace::new(Duration::from_millis(4), MIN, MAX);
        run(&mut pace, &mut now, 125_000_000);
        assert_eq!((pace.portion(), pace.fell_behind(now), pace.portion()), (MAX, MIN, MIN));
        assert_eq!(pace.moved(1 << 20, now + Duration::from_millis(1)), None, "one burst is no rate");
        pace.hurry();
        run(&mut pace, &mut now, 125_000_000);
        assert_eq!(pace.portion(), MIN, "who is in a hurry never waits for more");
    }
}
