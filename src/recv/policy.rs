//! Whom the receiver talks to, and how it says whom it did not talk to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::door::peer_name;
use crate::limits;
use crate::link::{discover, interfaces};
use crate::options::{From, Observer, RecvOptions, Trust};
use crate::report::Event;

/// Who may begin a session.
pub(super) struct Policy {
    pub(super) trust: Trust,
    from: Vec<From>,
}

impl Policy {
    pub(super) fn of(options: &RecvOptions) -> Policy {
        Policy { trust: options.trust.clone(), from: options.from.clone() }
    }

    /// Whether a sender at that address may even show who it is; otherwise what to tell it. The key decides where there
    /// is one, unless networks are named.
    pub(super) fn admits(&self, peer: IpAddr) -> Result<(), String> {
        let peer = discover::canonical(peer);
        if self.from.is_empty() && self.trust.key.is_some() {
            return Ok(());
        }
        let is_named = |from: &From| match *from {
            From::Any => true,
            From::Network(network, prefix) => discover::same_network(network, peer, prefix),
        };
        if self.from.iter().any(is_named) || is_near(peer) {
            return Ok(());
        }
        let keyless = if self.trust.key.is_none() { ", or give both sides a key (blast keygen)" } else { "" };
        Err(format!(
            "the receiver takes senders from its own networks, and {peer} is on none of them: start it with \
             --from {peer}{keyless}"
        ))
    }
}

/// On this machine, or at the other end of one of its cables.
fn is_near(peer: IpAddr) -> bool {
    if peer.is_loopback() || interfaces::is_link_local(peer) {
        return true;
    }
    let locals = discover::addresses(&interfaces::list_without_speed().unwrap_or_default());
    locals.iter().any(|own| own.prefix > 0 && discover::same_network(own.ip, peer, own.prefix))
}

/// Who was turned away without having been understood: the first few by name, then how many whenever that is ten times
/// what it was, so that neither a scan of the port nor a flood fills a log.
#[derive(Clone)]
pub(super) struct Strangers {
    count: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    left: Arc<AtomicU64>,
    observer: Observer,
}

impl Strangers {
    pub(super) fn seen_by(observer: &Observer) -> Strangers {
        Strangers { count: Arc::default(), refused: Arc::default(), left: Arc::default(), observer: observer.clone() }
    }

    /// A sender of blast's that must not talk to us; counted apart, since it is somebody's mistake more often than not.
    pub(super) fn refused(&self, peer: SocketAddr, why: &str) {
        let count = self.refused.fetch_add(1, Relaxed) + 1;
        self.tell(count, |times| format!("refused a sender at {}{times}: {why}", peer_name(peer)));
    }

    /// One that was welcomed and was not heard of again.
    pub(super) fn left(&self, peer: SocketAddr, why: &str) {
        let count = self.left.fetch_add(1, Relaxed) + 1;
        let peer = peer_name(peer);
        self.tell(count, |times| format!("the sender at {peer} left during the handshake{times}: {why}; waiting on"));
    }

    fn tell(&self, count: u64, text: impl FnOnce(&str) -> String) {
        if is_worth_a_line(count) {
            let times = if count <= limits::STRANGERS_NAMED { String::new() } else { format!(" (the {count}th)") };
            (self.observer)(Event::Warning(text(&times)));
        }
    }

    pub(super) fn turned_away(&self, peer: SocketAddr, why: &str) {
        let count = self.count.fetch_add(1, Relaxed) + 1;
        let peer = peer_name(peer);
        if !is_worth_a_line(count) {
            return;
        }
        (self.observer)(Event::Warning(if count <= limits::STRANGERS_NAMED {
            format!("turned away {peer}: {why}")
        } else {
            format!("turned away {count} connections that were not blast's, the last from {peer}")
        }));
    }
}

/// Whether to say that a stranger has done something for the so-manieth time.
pub(super) fn is_worth_a_line(count: u64) -> bool {
    count <= limits::STRANGERS_NAMED || count.checked_ilog10().is_some_and(|digits| 10_u64.pow(digits) == count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::options::Destination;

    fn admits(key: bool, from: &[From], peer: &str) -> Result<(), String> {
        let mut options = RecvOptions::new(Destination::Stdout);
        options.trust.key = key.then(|| Arc::new(Key::generate().expect("random bytes")));
        options.from = from.to_vec();
        Policy::of(&options).admits(peer.parse().expect("an address"))
    }

    #[test]
    fn without_a_key_only_neighbours_are_taken_unless_networks_are_named() {
        for near in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "fe80::1"] {
            assert_eq!(admits(false, &[], near), Ok(()), "{near}");
        }
        // for documentation: on nobody's network
        let far = ["198.51.100.1", "2001:db8:77::1"];
        for far in far {
            let why = admits(false, &[], far).unwrap_err();
            assert!(why.contains(&format!("--from {far}")) && why.contains("blast keygen"), "{why}");
            assert_eq!(admits(true, &[], far), Ok(()), "the key decides");
            assert_eq!(admits(false, &[From::Any], far), Ok(()));
        }
        let net = From::Network("198.51.100.128".parse().unwrap(), 25);
        assert_eq!(admits(false, &[net], "198.51.100.200"), Ok(()));
        assert!(admits(false, &[net], "198.51.100.1").is_err());
        let named = admits(true, &[net], "198.51.100.1").unwrap_err();
        assert!(!named.contains("keygen"), "there is one: {named}");
        assert_eq!(admits(true, &[net], "127.0.0.1"), Ok(()));
    }
}
