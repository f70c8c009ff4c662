//! What was measured a moment ago, and when it is worth measuring again.

use std::time::Duration;

use super::look::Time;

/// What was measured counts for 1/e after this long.
const MEMORY: Duration = Duration::from_millis(500);

/// While compressing is too slow to pay, one chunk is compressed this often to see whether it still is.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// One sum over another. What was added counts less and less as time goes by.
#[derive(Default, Debug)]
pub(super) struct Mean {
    sum: f64,
    over: f64,
    at: Time,
}

impl Mean {
    /// Add to both.
    pub fn add(&mut self, now: Time, sum: f64, over: f64) {
        *self = Mean { sum: self.sum(now) + sum, over: self.over(now) + over, at: now.max(self.at) };
    }

    fn kept(&self, now: Time) -> f64 {
        (-now.saturating_sub(self.at).as_secs_f64() / MEMORY.as_secs_f64()).exp()
    }

    /// What counts of the sum now.
    pub fn sum(&self, now: Time) -> f64 {
        self.sum * self.kept(now)
    }

    /// What counts of what it is over.
    pub fn over(&self, now: Time) -> f64 {
        self.over * self.kept(now)
    }

    /// What it came to, however long ago that was.
    pub fn value(&self) -> Option<f64> {
        (self.over > 0.0).then(|| self.sum / self.over)
    }
}

/// When something was last tried that does not pay at present.
#[derive(Default, Debug)]
pub(super) struct LastTry(Option<Time>);

impl LastTry {
    /// It was tried.
    pub fn was(&mut self, now: Time) {
        self.0 = Some(now);
    }

    /// Whether it is time for one more try, which this is then.
    pub fn again(&mut self, now: Time) -> bool {
        let due = self.0.is_none_or(|tried| now.saturating_sub(tried) >= TRY_AGAIN);
        if due {
            self.was(now);
        }
        due
    }
}
