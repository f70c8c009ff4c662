//! What is said while a transfer runs: one line for each event that is worth one. Nothing is printed here, and every
//! foreign name leaves escaped.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::args::Verbosity;
use super::numbers::{absence, count, plural};
use crate::error::escape;
use crate::ids::InstanceCode;
use crate::limits;
use crate::options::From;
use crate::report::Event;

/// Addresses suggested to the person who must type one, unless `-v` asks for all.
const ADDRESSES_SHOWN: usize = 4;

/// What to say of an event, or nothing. Several lines are separated by newlines.
pub fn said(event: &Event, verbosity: Verbosity) -> Option<String> {
    let verbose = verbosity >= Verbosity::Verbose;
    let said = match event {
        Event::Listening { addrs, code } => listening(addrs, *code, if verbose { usize::MAX } else { ADDRESSES_SHOWN }),
        Event::NotAnnounced { .. } if !verbose => return None,
        Event::NotAnnounced { why } => format!("warning: 'blast send SRC... auto' cannot find this receiver: {why}"),
        // A socket of both families calls an IPv4 peer ::ffff:10.0.0.1, which nobody types.
        Event::Connected { peer, protection } => {
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            let plain = if protection.cipher.is_none() { ", nothing is encrypted" } else { "" };
            let code = match protection.code {
                Some(code) => format!(", code {code} (nobody is in between if the other side shows the same)"),
                None => String::new(),
            };
            format!("connected with {peer}{plain}{code}")
        }
        Event::Keyless { from } => keyless(from),
        Event::LinkUp { name, after: None } if verbose => format!("link {} is up", escape(name.as_bytes())),
        Event::LinkUp { after: None, .. } => return None,
        Event::LinkUp { name, after: Some(after) } => {
            format!("link {} is back after {}", escape(name.as_bytes()), absence(*after))
        }
        Event::LinkDown { name, reason, remaining } => {
            let left = match remaining {
                0 => "no link remains, waiting for one to come back".to_owned(),
                n => plural(*n as u64, "link remains", "links remain"),
            };
            format!("link {} is down: {reason}; {left}", escape(name.as_bytes()))
        }
        // A link that corrupts one chunk in a thousand for hours must not fill a log.
        Event::Corrupt { count, .. } if !verbose && !count.is_power_of_two() => return None,
        Event::Corrupt { link, count: n } => format!(
            "link {} brought a chunk that fails verification; it is sent again ({} so far)",
            escape(link.as_bytes()),
            count(*n)
        ),
        // that one is enough is what everybody expects
        Event::Streams { connections: 1, .. } if !verbose => return None,
        Event::Streams { link, connections: 1, gain } => {
            format!("link {}: 1 connection (measured: 2 carry {gain:.1}x of one)", escape(link.as_bytes()))
        }
        Event::Streams { link, connections, gain } => {
            format!("link {}: {connections} connections (measured: {gain:.1}x of one)", escape(link.as_bytes()))
        }
        Event::Unconfined { .. } if !verbose => return None,
        Event::Unconfined { why } => format!("this process is not confined to the destination: {why}"),
        Event::Measured { .. } if !verbose => return None,
        Event::Measured { peer } => format!("{} measures the links", peer.ip().to_canonical()),
        Event::Warning(text) => format!("warning: {text}"),
    };
    (verbosity > Verbosity::Quiet).then_some(said)
}

fn listening(addrs: &[SocketAddr], code: Option<InstanceCode>, most: usize) -> String {
    let port = addrs.first().map_or(limits::PORT, SocketAddr::port);
    let mut said = format!("listening on port {port}; on the sending machine type");
    let mut useful: Vec<String> = addrs.iter().filter(|a| is_useful(a.ip())).map(typed).collect();
    if useful.is_empty() {
        // Loopback only, or link-local addresses, whose zone has another name on the other machine.
        useful = addrs.iter().filter(|a| !a.ip().is_unspecified()).map(typed).collect();
    }
    if useful.is_empty() {
        useful.push(if port == limits::PORT { "HOST".to_owned() } else { format!("HOST:{port}") });
    }
    for target in useful.iter().take(most) {
        let _ = write!(said, "\n    blast send SRC... {target}");
    }
    if useful.len() > most {
        let _ = write!(said, "\n    (or another of {} addresses; -v lists them)", useful.len());
    }
    if let Some(code) = code {
        let _ = write!(said, "\nor: blast send SRC... auto  (code {code})");
    }
    said
}

fn keyless(from: &[From]) -> String {
    let networks: Vec<String> = from
        .iter()
        .map(|from| match from {
            From::Any => "any network".to_owned(),
            From::Network(ip, prefix) => format!("{ip}/{prefix}"),
        })
        .collect();
    let beside = if networks.is_empty() { String::new() } else { format!(" and from {}", networks.join(", ")) };
    format!(
        "no key: anybody on this machine's networks{beside} can send here; 'blast keygen' makes a key for both sides"
    )
}

fn is_useful(ip: IpAddr) -> bool {
    !ip.is_unspecified()
        && !ip.is_loopback()
        && match ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        }
}

/// An address as the last operand of `send`, without the port if it is the default one.
pub fn typed(addr: &SocketAddr) -> String {
    match addr {
        addr if addr.port() != limits::PORT => addr.to_string(),
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        addr => addr.ip().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionCode;
    use crate::report::Protection;
    use std::time::Duration;

    #[test]
    fn the_receiver_prints_the_line_to_paste() {
        let addrs = |list: &[&str]| list.iter().map(|a| a.parse().expect("an address")).collect::<Vec<SocketAddr>>();
        let said =
            listening(&addrs(&["10.0.0.2:7411", "[fd00::2]:7411", "[fe80::1%3]:7411", "127.0.0.1:7411"]), None, 4);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines,
            [
                "listening on port 7411; on the sending machine type",
                "    blast send SRC... 10.0.0.2",
                "    blast send SRC... fd00::2"
            ]
        );
        let said = listening(&addrs(&["127.0.0.1:9", "[::1]:9"]), None, 4);
        assert!(said.ends_with("    blast send SRC... 127.0.0.1:9\n    blast send SRC... [::1]:9"), "{said}");
        let said = listening(&addrs(&["[::]:9"]), None, 4);
        assert!(said.ends_with("    blast send SRC... HOST:9"), "{said}");
        let many: Vec<SocketAddr> = (1..100).map(|i| SocketAddr::from(([10, 0, 0, i], 7411))).collect();
        let said = listening(&many, Some("7KQ-4M2".parse().expect("a code")), 4);
        assert_eq!(said.lines().count(), 1 + 4 + 1 + 1);
        let ends = "    (or another of 99 addresses; -v lists them)\nor: blast send SRC... auto  (code 7KQ-4M2)";
        assert!(said.ends_with(ends), "{said}");
    }

    #[test]
    fn events_say_what_changed_and_quiet_says_nothing() {
        let up = |after| Event::LinkUp { name: "l\x1b1".into(), after };
        let away = Some(Duration::from_millis(4_210));
        let down = |remaining| Event::LinkDown { name: "l1".into(), reason: "cut".into(), remaining };
        let streams = |connections| Event::Streams { link: "l\x1b1".into(), connections, gain: 1.94 };
        let normal = |connections| said(&streams(connections), Verbosity::Normal);
        assert_eq!(normal(4).as_deref(), Some("link l\\x1b1: 4 connections (measured: 1.9x of one)"));
        assert_eq!(normal(1), None, "one is what everybody expects");
        assert!(said(&streams(1), Verbosity::Verbose).is_some_and(|said| said.contains("2 carry 1.9x of one")));
        let corrupt = |count| Event::Corrupt { link: "l1".into(), count };
        let peer = "[::ffff:10.0.0.1]:7411".parse().expect("an address");
        let connected = |cipher, code: Option<SessionCode>| {
            let protection = Protection { trusted: code.is_none(), cipher, code };
            said(&Event::Connected { peer, protection }, Verbosity::Normal)
        };
        assert_eq!(connected(Some("AES"), None).as_deref(), Some("connected with 10.0.0.1:7411"));
        assert_eq!(connected(None, None).as_deref(), Some("connected with 10.0.0.1:7411, nothing is encrypted"));
        let code = Some(SessionCode::of(&[7; 32]));
        assert!(connected(Some("AES"), code).expect("said").contains(", code 7R1E-G3W0 (nobody"));
        assert!(keyless(&[]).starts_with("no key: anybody on this machine's networks can send"));
        let from = [From::Any, From::Network([10, 0, 0, 0].into(), 8)];
        assert!(keyless(&from).contains("networks and from any network, 10.0.0.0/8 can send"));
        assert_eq!(said(&up(None), Verbosity::Normal), None);
        assert_eq!(said(&up(away), Verbosity::Normal).as_deref(), Some("link l\\x1b1 is back after 4.2 s"));
        let short = said(&up(Some(Duration::from_millis(31))), Verbosity::Normal);
        assert_eq!(short.as_deref(), Some("link l\\x1b1 is back after less than 0.1 s"));
        assert_eq!(said(&up(None), Verbosity::Verbose).as_deref(), Some("link l\\x1b1 is up"));
        assert_eq!(said(&down(3), Verbosity::Normal).as_deref(), Some("link l1 is down: cut; 3 links remain"));
        assert!(said(&down(0), Verbosity::Normal).expect("said").contains("no link remains"));
        let told = (1..=1000).filter(|n| said(&corrupt(*n), Verbosity::Normal).is_some()).count();
        assert_eq!(told, 10, "corrupt chunks are told at each doubling");
        assert!(said(&corrupt(3), Verbosity::Verbose).expect("said").contains("(3 so far)"));
        let hidden = Event::NotAnnounced { why: "w".into() };
        assert_eq!(said(&hidden, Verbosity::Normal), None);
        assert!(said(&hidden, Verbosity::Verbose).expect("said").contains("cannot find this receiver: w"));
        let unconfined = Event::Unconfined { why: "w".into() };
        assert_eq!(said(&unconfined, Verbosity::Normal), None);
        assert!(said(&unconfined, Verbosity::Verbose).expect("said").ends_with("not confined to the destination: w"));
        let listening = Event::Listening { addrs: Vec::new(), code: None };
        for e in [up(away), down(0), corrupt(1), Event::Warning("w".into()), listening] {
            assert_eq!(said(&e, Verbosity::Quiet), None);
            assert!(said(&e, Verbosity::Normal).is_some());
        }
    }
}
