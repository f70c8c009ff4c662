//! What was measured a moment ago.

use std::time::Duration;

use super::gauge::Time;

/// What was measured counts for 1/e after this long.
const MEMORY: Duration = Duration::from_millis(500);

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
