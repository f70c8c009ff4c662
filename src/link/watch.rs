//! When is a session over without a word? Watches which links are up and, when none is, concludes from how each died.
//!
//! | all links | how long one is waited for |
//! |---|---|
//! | closed by the peer | [`limits::PEER_GONE`]: the peer's process is gone |
//! | silent, or cut by the network | the user's `--timeout`: a cable or a switch may come back |
//! | given up for good | not at all |
//! | of no use: they come up, and nothing gets through | as if they were silent |

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::Ended;
use crate::limits;
use crate::report::LinkReport;
use crate::stats::Stats;

/// The links of one session by name, and what became of them.
#[derive(Debug)]
pub struct Watch {
    timeout: Duration,
    links: BTreeMap<String, Link>,
    /// Since when no link is of use. One that has come up has yet to prove it: connections that come about and let
    /// nothing through shall not keep a session waiting for ever.
    none_since: Option<Instant>,
    /// Since when a link is up, or has been now and then, while none is of use.
    unproven_since: Option<Instant>,
    /// Since when no link is up and every one was closed by the peer.
    gone_since: Option<Instant>,
}

#[derive(Debug, Default)]
struct Link {
    /// Connections that are up, and those of them that have been of use.
    up: usize,
    proven: usize,
    ended: Option<Ended>,
    /// Why the last one ended, until another is of use.
    why: Option<String>,
    /// When a connection of it died that no other has followed.
    lost_at: Option<Instant>,
    /// Since when no connection of it is up.
    away_since: Option<Instant>,
    /// How long none was, before that.
    away: Duration,
    /// When a connection of it last came up.
    up_at: Option<Instant>,
}

impl Watch {
    /// A session without links yet; the clock of silence starts at once.
    pub fn new(timeout: Duration, now: Instant) -> Watch {
        Watch { timeout, links: BTreeMap::new(), none_since: Some(now), unproven_since: None, gone_since: None }
    }

    /// A connection of that link has come up. If one had been lost or could not be had before, since how long.
    pub fn up(&mut self, name: &str, now: Instant) -> Option<Duration> {
        let link = self.links.entry(name.to_owned()).or_default();
        link.up += 1;
        link.up_at = Some(now);
        link.ended = None;
        if let Some(since) = link.away_since.take() {
            link.away += now.saturating_duration_since(since);
        }
        let lost_at = link.lost_at.take();
        if self.none_since.is_some() {
            self.unproven_since.get_or_insert(now);
        }
        self.gone_since = None;
        lost_at.map(|at| now.saturating_duration_since(at))
    }

    /// A connection of that link has carried something, or lived without having to.
    pub fn proven(&mut self, name: &str) {
        let link = self.links.entry(name.to_owned()).or_default();
        link.proven += 1;
        link.why = None;
        (self.none_since, self.unproven_since) = (None, None);
    }

    /// A connection of that link has died.
    pub fn down(&mut self, name: &str, ended: &Ended, now: Instant) {
        let link = self.links.entry(name.to_owned()).or_default();
        link.up = link.up.saturating_sub(1);
        if let Some(up_at) = link.up_at
            && link.up > 0
            && let Some(silent_since) = now.checked_sub(ended.silent_for)
        {
            // until another connection took its place
            link.away += up_at.saturating_duration_since(silent_since);
        }
        if ended.carried {
            link.proven = link.proven.saturating_sub(1);
        }
        self.unreachable(name, ended, now);
    }

    /// A connection of that link is not needed any more; no fault of the link's.
    pub fn left(&mut self, name: &str, ended: &Ended, now: Instant) {
        match self.links.get_mut(name) {
            Some(link) if link.up > 1 => {
                link.up -= 1;
                link.proven = link.proven.saturating_sub(usize::from(ended.carried));
            }
            _ => self.down(name, ended, now),
        }
    }

    /// That link could not be dialled. True if this is news, and the link has no other connection.
    pub fn unreachable(&mut self, name: &str, ended: &Ended, now: Instant) -> bool {
        let link = self.links.entry(name.to_owned()).or_default();
        let news = link.ended.as_ref().is_none_or(|old| old.reason != ended.reason) && (link.up == 0 || ended.for_good);
        link.ended = Some(ended.clone());
        link.why = Some(ended.reason.clone());
        let since = now.checked_sub(ended.silent_for).unwrap_or(now);
        link.lost_at.get_or_insert(since);
        if link.up == 0 {
            link.away_since.get_or_insert(since);
        }
        if self.links.values().all(|l| l.proven == 0) {
            self.none_since.get_or_insert(since);
            if self.connections() > 0 {
                self.unproven_since.get_or_insert(now);
            }
        }
        if self.connections() == 0 {
            if self.links.values().all(|l| l.ended.as_ref().is_none_or(|e| e.by_peer || e.for_good)) {
                self.gone_since.get_or_insert(now);
            } else {
                self.gone_since = None;
            }
        }
        news
    }

    /// Whether nothing has been heard of any link yet.
    pub fn is_untried(&self) -> bool {
        self.links.is_empty()
    }

    /// Connections up right now.
    pub fn connections(&self) -> usize {
        self.links.values().map(|l| l.up).sum()
    }

    /// Links with a connection up right now.
    pub fn remaining(&self) -> usize {
        self.links.values().filter(|l| l.up > 0).count()
    }

    /// How long in all that link had no connection, until `end` if it has none.
    pub fn away(&self, name: &str, end: Instant) -> Duration {
        let Some(link) = self.links.get(name) else { return Duration::ZERO };
        link.away + link.away_since.map_or(Duration::ZERO, |since| end.saturating_duration_since(since))
    }

    /// What the final report says of each link of a transfer that was over at `end`.
    pub fn report(&self, stats: &Stats, end: Instant) -> Vec<LinkReport> {
        stats.links().iter().map(|l| l.report(self.away(&l.name, end))).collect()
    }

    /// Whether a link other than that one is up.
    pub fn is_up_beside(&self, name: &str) -> bool {
        self.links.iter().any(|(other, link)| other != name && link.up > 0)
    }

    /// When the session ends unless a link comes up before.
    pub fn deadline(&self) -> Option<Instant> {
        let silent = self.none_since? + self.timeout;
        if self.connections() > 0 {
            return self.unproven_since.map(|since| silent.max(since + limits::IDLE_TIMEOUT));
        }
        let given_up =
            !self.links.is_empty() && self.links.values().all(|l| l.ended.as_ref().is_some_and(|e| e.for_good));
        if given_up {
            return self.none_since;
        }
        Some(self.gone_since.map_or(silent, |since| silent.min(since + limits::PEER_GONE)))
    }

    /// Whether every link was given up for good, at least one since it damages what it carries.
    pub fn all_damaged(&self) -> bool {
        let mut ends = self.links.values().map(|l| l.ended.as_ref());
        ends.clone().any(|e| e.is_some_and(|e| e.damaged)) && ends.all(|e| e.is_some_and(|e| e.for_good))
    }

    /// Each link's last word, for the error.
    pub fn reasons(&self) -> String {
        self.links
            .iter()
            .filter_map(|(name, link)| link.why.as_ref().map(|why| format!("{name}: {why}")))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// Until `deadline`, or for ever.
pub async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The signals that ask a transfer to stop. A hang-up that was ignored when we started (nohup) stays ignored.
pub struct Interrupts {
    signals: Vec<(Signal, &'static str)>,
}

impl Interrupts {
    /// Start listening for them.
    pub fn listen() -> std::io::Result<Interrupts> {
        let mut wanted = vec![(SignalKind::interrupt(), "SIGINT"), (SignalKind::terminate(), "SIGTERM")];
        if !crate::sys::is_ignored(libc::SIGHUP) {
            wanted.push((SignalKind::hangup(), "SIGHUP"));
        }
        let signals =
            wanted.into_iter().map(|(kind, name)| Ok((signal(kind)?, name))).collect::<std::io::Result<_>>()?;
        Ok(Interrupts { signals })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        std::future::poll_fn(|cx| {
            for (signal, name) in &mut self.signals {
                if signal.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*name);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(600);

    #[test]
    fn links_closed_by_the_peer_end_the_session_soon_and_silent_ones_late() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        for name in ["a", "b"] {
            watch.up(name, start);
            watch.proven(name);
        }
        assert_eq!(watch.deadline(), None);
        watch.down("a", &Ended::by_peer("closed"), start);
        assert_eq!(watch.deadline(), None, "b is up");
        watch.down("b", &Ended::lost("silent"), start);
        assert_eq!(watch.deadline(), Some(start + TIMEOUT), "b may come back");
        let later = start + Duration::from_secs(3);
        watch.unreachable("b", &Ended::by_peer("connection refused"), later);
        assert_eq!(watch.deadline(), Some(later + limits::PEER_GONE));
        assert_eq!(watch.up("a", later), Some(Duration::from_secs(3)), "a is back");
        assert_eq!(watch.deadline(), Some(start + TIMEOUT), "it is to prove itself");
        watch.proven("a");
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn a_connection_that_is_not_needed_any_more_leaves_its_link_up() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        let left = Ended { carried: true, ..Ended::left() };
        for _ in 0..2 {
            watch.up("a", start);
            watch.proven("a");
        }
        watch.left("a", &left, start);
        assert_eq!((watch.connections(), watch.remaining(), watch.deadline()), (1, 1, None));
        assert_eq!(watch.up("a", start), None, "it is not back: it never went");
        watch.proven("a");
        watch.left("a", &left, start);
        watch.left("a", &left, start);
        assert_eq!(watch.deadline(), Some(start + limits::PEER_GONE), "the last one was the peer's to leave");
    }

    #[test]
    fn the_time_without_links_begins_with_their_silence() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("a", start);
        watch.proven("a");
        let later = start + limits::IDLE_TIMEOUT;
        watch.down("a", &Ended::silent(limits::IDLE_TIMEOUT), later);
        assert_eq!(watch.deadline(), Some(start + TIMEOUT));
        watch.unreachable("a", &Ended::lost("no answer"), later + limits::CONNECT_TIMEOUT);
        assert_eq!(watch.deadline(), Some(start + TIMEOUT));
    }

    #[test]
    fn connections_that_carry_nothing_do_not_put_off_the_end() {
        let start = Instant::now();
        let after = |secs| start + Duration::from_secs(secs);
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("a", start);
        watch.proven("a");
        watch.down("a", &Ended::lost("cut"), after(100));
        let useless = Ended { carried: false, ..Ended::lost("narrow") };
        for i in 0..5 {
            watch.up("a", after(110 + 10 * i));
            watch.up("b", after(112 + 10 * i));
            watch.down("a", &useless, after(115 + 10 * i));
            watch.down("b", &useless, after(118 + 10 * i));
            assert_eq!(watch.deadline(), Some(after(100) + TIMEOUT));
        }
        watch.up("b", after(200));
        assert_eq!(watch.deadline(), Some(after(100) + TIMEOUT));
        assert_eq!(watch.reasons(), "a: narrow; b: narrow");
        watch.proven("b");
        assert_eq!((watch.deadline(), watch.reasons().as_str()), (None, "a: narrow"));
        watch.down("b", &Ended::lost("cut"), after(300));
        assert_eq!(watch.deadline(), Some(after(300) + TIMEOUT));
    }

    #[test]
    fn a_link_that_comes_up_has_time_to_prove_itself_however_short_the_timeout() {
        let start = Instant::now();
        let mut watch = Watch::new(Duration::from_secs(1), start);
        watch.up("a", start);
        assert_eq!(watch.deadline(), Some(start + limits::IDLE_TIMEOUT));
        watch.proven("a");
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn a_link_is_away_while_none_of_its_connections_is_up() {
        let start = Instant::now();
        let (after, secs) = (|secs| start + Duration::from_secs(secs), Duration::from_secs);
        let mut watch = Watch::new(TIMEOUT, start);
        assert_eq!(watch.up("a", start), None);
        assert_eq!(watch.up("a", start), None);
        watch.down("a", &Ended::lost("cut"), after(10));
        assert_eq!(watch.away("a", after(20)), secs(0), "the other is up");
        assert_eq!(watch.up("a", after(20)), Some(secs(10)));
        watch.down("a", &Ended::lost("cut"), after(30));
        watch.down("a", &Ended::silent(secs(10)), after(45));
        assert_eq!(watch.away("a", after(50)), secs(15), "silence counts from its beginning");
        assert_eq!(watch.up("a", after(60)), Some(secs(30)));
        watch.up("a", after(70));
        // it was silent before the other came up
        watch.down("a", &Ended::silent(secs(12)), after(71));
        assert_eq!((watch.away("a", after(80)), watch.away("b", after(80))), (secs(25 + 11), secs(0)));
        // what never comes up is away from when it was first missed
        watch.unreachable("b", &Ended::lost("no answer"), after(80));
        watch.unreachable("b", &Ended::lost("no answer"), after(90));
        assert_eq!((watch.away("a", after(95)), watch.away("b", after(95))), (secs(36), secs(15)));
    }

    #[test]
    fn a_link_that_has_a_connection_is_not_reported_down_for_another_that_cannot_be_had() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("a", start);
        assert!(!watch.unreachable("a", &Ended::lost("no answer"), start));
        watch.down("a", &Ended::lost("cut"), start);
        assert!(watch.unreachable("a", &Ended::lost("no answer"), start));
    }

    #[test]
    fn links_given_up_for_good_end_the_session_at_once() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("a", start);
        watch.down("a", &Ended::damaged_for_good("damaged"), start);
        assert_eq!(watch.deadline(), Some(start));
        assert!(watch.all_damaged());
        assert_eq!(watch.reasons(), "a: damaged");
    }

    #[test]
    fn one_of_several_connections_of_a_link_may_die() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        for _ in 0..2 {
            watch.up("lo", start);
            watch.proven("lo");
        }
        watch.down("lo", &Ended::by_peer("closed"), start);
        assert_eq!((watch.connections(), watch.remaining()), (1, 1));
        assert_eq!(watch.deadline(), None);
    }
}
