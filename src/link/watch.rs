//! When is a session over without a word? Watches which links are up and, when none is, concludes from how each died.
//!
//! | all links | how long one is waited for |
//! |---|---|
//! | closed by the peer | [`limits::PEER_GONE`]: the peer's process is gone |
//! | silent, or cut by the network | the user's `--timeout`: a cable or a switch may come back |
//! | given up for good | not at all |

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::Ended;
use crate::limits;

/// The links of one session by name, and what became of them.
#[derive(Debug)]
pub struct Watch {
    timeout: Duration,
    links: BTreeMap<String, Link>,
    /// Since when no link is up, or brings anything.
    none_since: Option<Instant>,
    /// Since when no link is up and every one was closed by the peer.
    gone_since: Option<Instant>,
}

#[derive(Debug, Default)]
struct Link {
    up: usize,
    ended: Option<Ended>,
}

impl Watch {
    /// A session without links yet; the clock of silence starts at once.
    pub fn new(timeout: Duration, now: Instant) -> Watch {
        Watch { timeout, links: BTreeMap::new(), none_since: Some(now), gone_since: None }
    }

    /// A connection of that link has come up. True if the link had been up before.
    pub fn up(&mut self, name: &str) -> bool {
        let link = self.links.entry(name.to_owned()).or_default();
        link.up += 1;
        self.none_since = None;
        self.gone_since = None;
        link.ended.take().is_some()
    }

    /// A connection of that link has died.
    pub fn down(&mut self, name: &str, ended: &Ended, now: Instant) {
        let link = self.links.entry(name.to_owned()).or_default();
        link.up = link.up.saturating_sub(1);
        self.unreachable(name, ended, now);
    }

    /// A connection of that link is not needed any more; no fault of the link's.
    pub fn left(&mut self, name: &str, now: Instant) {
        match self.links.get_mut(name) {
            Some(link) if link.up > 1 => link.up -= 1,
            _ => self.down(name, &Ended::left(), now),
        }
    }

    /// That link could not be dialled. True if this is news.
    pub fn unreachable(&mut self, name: &str, ended: &Ended, now: Instant) -> bool {
        let link = self.links.entry(name.to_owned()).or_default();
        let news = link.ended.as_ref().is_none_or(|old| old.reason != ended.reason);
        link.ended = Some(ended.clone());
        if self.connections() == 0 {
            self.none_since.get_or_insert(now.checked_sub(ended.silent_for).unwrap_or(now));
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

    /// Whether a link other than that one is up.
    pub fn is_up_beside(&self, name: &str) -> bool {
        self.links.iter().any(|(other, link)| other != name && link.up > 0)
    }

    /// When the session ends unless a link comes up before.
    pub fn deadline(&self) -> Option<Instant> {
        let silent = self.none_since? + self.timeout;
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
            .filter_map(|(name, link)| link.ended.as_ref().map(|e| format!("{name}: {}", e.reason)))
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
        watch.up("a");
        watch.up("b");
        assert_eq!(watch.deadline(), None);
        watch.down("a", &Ended::by_peer("closed"), start);
        assert_eq!(watch.deadline(), None, "b is up");
        watch.down("b", &Ended::lost("silent"), start);
        assert_eq!(watch.deadline(), Some(start + TIMEOUT), "b may come back");
        let later = start + Duration::from_secs(3);
        watch.unreachable("b", &Ended::by_peer("connection refused"), later);
        assert_eq!(watch.deadline(), Some(later + limits::PEER_GONE));
        assert!(watch.up("a"), "a is back");
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn a_connection_that_is_not_needed_any_more_leaves_its_link_up() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("a");
        watch.up("a");
        watch.left("a", start);
        assert_eq!((watch.connections(), watch.remaining(), watch.deadline()), (1, 1, None));
        assert!(!watch.up("a"), "it is not back: it never went");
        watch.left("a", start);
        watch.left("a", start);
        assert_eq!(watch.deadline(), Some(start + limits::PEER_GONE), "the last one was the peer's to leave");
    }

    #[test]
    fn the_time_without_links_begins_with_their_silence() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("a");
        let later = start + limits::IDLE_TIMEOUT;
        watch.down("a", &Ended::silent(limits::IDLE_TIMEOUT), later);
        assert_eq!(watch.deadline(), Some(start + TIMEOUT));
        watch.unreachable("a", &Ended::lost("no answer"), later + limits::CONNECT_TIMEOUT);
        assert_eq!(watch.deadline(), Some(start + TIMEOUT));
    }

    #[test]
    fn links_given_up_for_good_end_the_session_at_once() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("a");
        watch.down("a", &Ended::damaged_for_good("damaged"), start);
        assert_eq!(watch.deadline(), Some(start));
        assert!(watch.all_damaged());
        assert_eq!(watch.reasons(), "a: damaged");
    }

    #[test]
    fn one_of_several_connections_of_a_link_may_die() {
        let start = Instant::now();
        let mut watch = Watch::new(TIMEOUT, start);
        watch.up("lo");
        watch.up("lo");
        watch.down("lo", &Ended::by_peer("closed"), start);
        assert_eq!((watch.connections(), watch.remaining()), (1, 1));
        assert_eq!(watch.deadline(), None);
    }
}
