//! How many connections a link shall have, found by trying. One is right for most links. Where one may be held back by
//! something other than the cable (its window over a long way, the policing of single flows, one port of a bond, one
//! core on a very fast interface) twice as many are tried, and again, for as long as that gains. Decides only: no
//! socket, and time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::ids::LinkId;
use crate::limits;

/// A link is the limit if its connections have a chunk in hand for this part of their time.
const BUSY: f64 = 0.9;

/// One connection is at its steady rate if it no longer gains so much from one span to the next.
const STEADY: f64 = 1.1;

/// A new connection has this many round trips to come up to speed.
const START_TRIPS: u32 = 12;

/// … and this long at least.
const START: Duration = Duration::from_millis(500);

/// What a link looks like at one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// Connections that are up, in order.
    pub links: Vec<LinkId>,
    /// Bytes that the peer's kernel has of all of them together.
    pub acked: u64,
    /// The time they have had a chunk in hand, summed.
    pub used: Duration,
    /// The shortest round trip of any.
    pub rtt: Duration,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Step {
    /// Nothing yet.
    Wait,
    /// Have so many connections, to try.
    Try(u16),
    /// Have so many connections from now on; what they gained over one, or what twice as many would.
    Keep(u16, f64),
}

/// The search on one link.
#[derive(Debug)]
pub(super) struct Knee {
    /// The interface is a bond, whose ports carry a flow each.
    bond: bool,
    /// The interface has the speed from which on one core may be too slow.
    fast: bool,
    /// Connections there shall be.
    want: u16,
    /// Since when.
    asked: Instant,
    /// Nothing is measured before, while connections come up to speed.
    settled: Instant,
    /// Where the span that is measured began.
    from: Option<(Instant, Look)>,
    /// What one connection carried in the last span, bytes a second.
    before: Option<f64>,
    /// The most that any number carried, and the number.
    best: (u16, f64),
    /// What one carried.
    one: f64,
    done: bool,
}

impl Knee {
    /// A link with one connection.
    pub fn new(bond: bool, speed_mbit: u32, now: Instant) -> Knee {
        Knee {
            bond,
            fast: speed_mbit >= limits::STREAMS_SPEED_MBIT,
            want: 1,
            asked: now,
            settled: now,
            from: None,
            before: None,
            best: (1, 0.0),
            one: 0.0,
            done: false,
        }
    }

    /// Whether there is nothing left to find.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Take a look; `most` connections are possible.
    pub fn step(&mut self, look: Look, most: u16, now: Instant) -> Step {
        if self.done {
            return Step::Wait;
        }
        if look.links.len() != usize::from(self.want) {
            self.from = None;
            self.before = None;
            if self.want > 1 && now - self.asked > limits::STREAMS_PATIENCE {
                return self.keep();
            }
            return Step::Wait;
        }
        if now < self.settled {
            return Step::Wait;
        }
        let span = limits::STREAMS_SPAN.max(look.rtt * limits::STREAMS_SPAN_TRIPS);
        let (since, first) = match &self.from {
            Some((since, first)) if first.links == look.links => (*since, first),
            _ => {
                self.from = Some((now, look));
                return Step::Wait;
            }
        };
        let took = (now - since).as_secs_f64();
        if now - since < span {
            return Step::Wait;
        }
        let rate = look.acked.saturating_sub(first.acked) as f64 / took;
        let used = look.used.saturating_sub(first.used).as_secs_f64() / took / f64::from(self.want);
        let rtt = look.rtt;
        self.from = Some((now, look));
        if self.want == 1 { self.one(rate, used, rtt, most, now) } else { self.several(rate, used, rtt, most, now) }
    }

    fn one(&mut self, rate: f64, used: f64, rtt: Duration, most: u16, now: Instant) -> Step {
        let may_pay = self.bond || rtt >= limits::STREAMS_RTT || (self.fast && rate >= limits::STREAMS_FAST);
        let before = self.before.replace(rate);
        // a link that brings nothing at all does not need more of the same
        if !may_pay || used < BUSY || rate == 0.0 {
            self.before = None;
            return Step::Wait;
        }
        if before.is_none_or(|before| rate > before * STEADY) || most < 2 {
            return Step::Wait;
        }
        (self.one, self.best) = (rate, (1, rate));
        self.ask(2, rtt, now)
    }

    fn several(&mut self, rate: f64, used: f64, rtt: Duration, most: u16, now: Instant) -> Step {
        let gained = rate >= self.best.1 * limits::STREAMS_GAIN;
        if !gained {
            if self.best.0 == 1 {
                self.best.1 = rate;
            }
            return self.keep();
        }
        self.best = (self.want, rate);
        let more = (self.want * 2).min(most);
        if used < BUSY || more == self.want {
            return self.keep();
        }
        self.ask(more, rtt, now)
    }

    fn ask(&mut self, want: u16, rtt: Duration, now: Instant) -> Step {
        (self.want, self.asked, self.settled, self.from) = (want, now, now + START.max(rtt * START_TRIPS), None);
        Step::Try(want)
    }

    fn keep(&mut self) -> Step {
        self.done = true;
        Step::Keep(self.best.0, self.best.1 / self.one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link with that round trip on which `n` connections carry `rate(n)` bytes a second and are used for `used` of
    /// their time, for two minutes; what was tried and what was kept.
    fn search(
        knee: &mut Knee,
        rtt_ms: u64,
        used: f64,
        rate: impl Fn(f64, usize) -> f64,
    ) -> (Vec<u16>, Option<(u16, f64)>) {
        let (mut now, mut n, mut tried, mut kept) = (knee.asked, 1, Vec::new(), None);
        let (mut acked, mut busy) = (0.0, Duration::ZERO);
        for tick in 0..480 {
            let seconds = limits::STREAMS_LOOK.as_secs_f64();
            now += limits::STREAMS_LOOK;
            acked += rate(f64::from(tick) * seconds, n) * seconds;
            busy += limits::STREAMS_LOOK.mul_f64(used) * n as u32;
            let links = (0..n as u32).map(LinkId).collect();
            let look = Look { links, acked: acked as u64, used: busy, rtt: Duration::from_millis(rtt_ms) };
            match knee.step(look, limits::STREAMS_AUTO_MAX, now) {
                Step::Wait => {}
                Step::Try(more) => {
                    tried.push(more);
                    n = usize::from(more);
                }
                Step::Keep(count, gain) => {
                    assert!(kept.replace((count, gain)).is_none(), "it is found once");
                    n = usize::from(count);
                }
            }
        }
        assert_eq!(kept.is_some(), knee.is_done());
        (tried, kept.map(|(count, gain)| (count, (gain * 100.0).round() / 100.0)))
    }

    fn plain() -> Knee {
        Knee::new(false, 1000, Instant::now())
    }

    #[test]
    fn connections_are_doubled_for_as_long_as_that_gains() {
        let windows = |most: f64| move |_, n: usize| (n as f64 * 30e6).min(most);
        assert_eq!(search(&mut plain(), 100, 1.0, windows(118e6)), (vec![2, 4, 8], Some((4, 3.93))));
        assert_eq!(search(&mut plain(), 100, 1.0, windows(1e9)), (vec![2, 4, 8], Some((8, 8.0))));
        assert_eq!(search(&mut plain(), 100, 1.0, windows(62e6)), (vec![2, 4], Some((2, 2.0))));
        assert_eq!(search(&mut plain(), 100, 1.0, windows(31e6)), (vec![2], Some((1, 1.03))));
    }

    #[test]
    fn a_plain_link_is_left_alone() {
        assert_eq!(search(&mut plain(), 1, 1.0, |_, n| n as f64 * 1e9), (vec![], None));
        let mut slow_but_fast_by_name = Knee::new(false, 10_000, Instant::now());
        assert_eq!(search(&mut slow_but_fast_by_name, 1, 1.0, |_, _| 118e6), (vec![], None));
    }

    #[test]
    fn a_bond_and_a_very_fast_interface_are_tried() {
        let mut bond = Knee::new(true, 2000, Instant::now());
        assert_eq!(search(&mut bond, 0, 1.0, |_, n| (n as f64 * 118e6).min(236e6)), (vec![2, 4], Some((2, 2.0))));
        let mut fast = Knee::new(false, 25_000, Instant::now());
        assert_eq!(search(&mut fast, 0, 1.0, |_, n| (n as f64 * 1e9).min(3e9)), (vec![2, 4, 8], Some((4, 3.0))));
    }

    #[test]
    fn nothing_is_tried_while_something_else_is_the_limit_or_the_rate_still_grows() {
        assert_eq!(search(&mut plain(), 100, 0.5, |_, n| n as f64 * 30e6), (vec![], None));
        assert_eq!(search(&mut plain(), 100, 1.0, |_, _| 0.0), (vec![], None), "a link that is silent");
        let grows = |seconds: f64, n: usize| n as f64 * 1e6 * 1.3f64.powf(seconds.min(20.0));
        let mut knee = plain();
        let (tried, kept) = search(&mut knee, 100, 1.0, grows);
        assert_eq!(
            (tried, kept),
            (vec![2, 4, 8], Some((8, 8.0))),
            "what grows by itself is no gain of more connections"
        );
    }

    #[test]
    fn connections_that_do_not_come_up_are_not_waited_for() {
        let mut knee = plain();
        let (mut now, mut steps) = (knee.asked, Vec::new());
        for tick in 0..480u32 {
            now += limits::STREAMS_LOOK;
            let used = limits::STREAMS_LOOK * tick;
            let look =
                Look { links: vec![LinkId(0)], acked: u64::from(tick) << 20, used, rtt: Duration::from_millis(9) };
            match knee.step(look, 8, now) {
                Step::Wait => {}
                step => steps.push(step),
            }
        }
        assert_eq!(steps, [Step::Try(2), Step::Keep(1, 1.0)]);
        assert_eq!(search(&mut plain(), 100, 1.0, |_, n| n as f64 * 30e6).0, [2, 4, 8]);
    }
}
