//! Our interfaces and addresses, and which of them share a network with the receiver's.
//!
//! A *pair* is one of our interfaces and one of the receiver's; it carries one link. Two interfaces on one cable
//! (VLANs) are one. Pairs are found by network: an address of ours whose prefix holds an address of the receiver's.
//! Where the same network is on several interfaces, and where an interface has no pair, IPv6 link-local addresses are
//! tried, since neighbour discovery stays on its wire; which of the receiver's is at the other end of the wire only
//! connecting can tell.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::interfaces::{self, Interface, Objection, is_link_local};
use super::socket::Route;
use crate::wire::Address;

/// One of our addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The interface's name.
    pub interface: String,
    /// Its index, which scopes link-local addresses.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// Whether the interface is up and its cable plugged in.
    pub running: bool,
}

/// Several routes that may lead over the same pair, best first; a link takes the first that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What people call the link: our interface's name, or the receiver's address where that is all we know.
    pub name: String,
    /// Where to try.
    pub routes: Vec<Route>,
}

impl Candidate {
    /// As what it is known once it has a link.
    pub fn kept(&self) -> Kept {
        let remote = match &self.routes[..] {
            [only] => Some(only.remote.ip()),
            // which of them answers is not known yet
            _ => None,
        };
        let interface = self.routes.first().and_then(|r| r.device.clone()).unwrap_or_else(|| self.name.clone());
        Kept { link: self.name.clone(), interface, remote }
    }
}

/// A pair that has a link already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The link's name.
    pub link: String,
    /// Our interface.
    pub interface: String,
    /// The receiver's address, if it is known.
    pub remote: Option<IpAddr>,
}

/// Why an interface gets no link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLink {
    /// It is none that leads to another machine.
    Objection(Objection),
    /// The user has left it out.
    LeftOut,
    /// It has one.
    Kept,
    /// It leaves by the same cable as that interface, which has one.
    SameCable(String),
    /// None of its networks is one of the receiver's.
    NoNetwork,
    /// Both ends are this machine.
    SameMachine,
    /// Others have been named.
    NotNamed,
}

impl fmt::Display for NoLink {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            NoLink::Objection(objection) => objection.fmt(f),
            NoLink::LeftOut => write!(f, "left out with --link"),
            NoLink::Kept => write!(f, "it has a link"),
            NoLink::SameCable(other) => write!(f, "leaves by the same cable as {other}"),
            NoLink::NoNetwork => write!(f, "shares no network with the receiver"),
            NoLink::SameMachine => write!(f, "the receiver is this machine"),
            NoLink::NotNamed => write!(f, "not named with --link"),
        }
    }
}

/// All our addresses, loopback included.
///
/// # Errors
/// As [`interfaces::list`].
pub fn locals() -> io::Result<Vec<Local>> {
    Ok(addresses(&interfaces::list_without_speed()?))
}

/// The addresses of these interfaces.
pub fn addresses(interfaces: &[Interface]) -> Vec<Local> {
    let of = |i: &Interface| {
        let (interface, index, running) = (i.name.clone(), i.index, i.carrier);
        let local = move |(ip, prefix): &(IpAddr, u8)| {
            let (ip, prefix) = (*ip, *prefix);
            Local { interface: interface.clone(), index, ip, prefix, running }
        };
        i.addresses.iter().map(local).collect::<Vec<_>>()
    };
    interfaces.iter().flat_map(of).collect()
}

/// What the receiver tells of itself: every address worth dialling from another machine.
pub fn advertise(interfaces: &[Interface], port: u16) -> Vec<Address> {
    let cables = interfaces.iter().filter(|i| i.is_cable());
    cables
        .flat_map(|i| i.addresses.iter().map(move |(ip, prefix)| (i, *ip, *prefix)))
        .filter(|(_, ip, _)| !ip.is_loopback())
        .map(|(i, ip, prefix)| Address {
            interface: i.name.clone(),
            addr: SocketAddr::new(ip, port),
            prefix,
            speed_mbit: i.speed_mbit,
        })
        .collect()
}

/// The number of an interface by that name.
pub fn index_of(interface: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).ok()?;
    text.trim().parse().ok()
}

/// The interface that has `ip`.
pub fn interface_of(locals: &[Local], ip: IpAddr) -> Option<&Local> {
    let ip = canonical(ip);
    locals.iter().find(|l| canonical(l.ip) == ip)
}

/// An address without the IPv4-in-IPv6 form that dual-stack sockets report.
pub fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// A peer as people would write it, see [`canonical`].
pub fn plain(peer: SocketAddr) -> SocketAddr {
    match canonical(peer.ip()) {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), peer.port()),
        IpAddr::V6(_) => peer,
    }
}

/// The links that can be had beside those that exist, each of which joins one of our interfaces with one of the
/// receiver's.
pub fn pair(interfaces: &[Interface], remotes: &[Address], kept: &[Kept], left_out: &[String]) -> Vec<Candidate> {
    survey(interfaces, remotes, kept, left_out).into_iter().filter_map(Result::ok).collect()
}

/// For each interface the link that can be had over it, or why there is none.
pub fn survey(
    interfaces: &[Interface],
    remotes: &[Address],
    kept: &[Kept],
    left_out: &[String],
) -> Vec<Result<Candidate, NoLink>> {
    let locals = addresses(interfaces);
    let ours: HashSet<IpAddr> = locals.iter().map(|l| canonical(l.ip)).collect();
    let is_ours = |ip: IpAddr| ip.is_loopback() || ours.contains(&ip);
    if kept.iter().filter_map(|k| k.remote).any(|remote| is_ours(canonical(remote))) {
        return interfaces.iter().map(|_| Err(NoLink::SameMachine)).collect();
    }
    let mut pairing = Pairing {
        interfaces,
        locals: &locals,
        remotes: remotes
            .iter()
            .map(|r| Address { addr: SocketAddr::new(canonical(r.addr.ip()), r.addr.port()), ..r.clone() })
            .collect(),
        taken: HashMap::new(),
        tried_first: Vec::new(),
        cables: Vec::new(),
    };
    for k in kept {
        pairing.keep(k);
    }
    let mut found: Vec<Option<Result<Candidate, NoLink>>> = interfaces
        .iter()
        .map(|i| match i.objection() {
            _ if kept.iter().any(|k| k.interface == i.name) => Some(Err(NoLink::Kept)),
            _ if left_out.contains(&i.name) => Some(Err(NoLink::LeftOut)),
            Some(objection) => Some(Err(NoLink::Objection(objection))),
            None => None,
        })
        .collect();
    // a network that both sides have on one interface only needs no guess, so these come first
    for look in [Pairing::by_network, Pairing::by_cable] {
        for (interface, found) in interfaces.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            *found = match pairing.same_cable(interface) {
                Some(other) => Some(Err(NoLink::SameCable(other))),
                None => look(&mut pairing, interface).map(Ok),
            };
        }
    }
    found.into_iter().map(|found| found.unwrap_or(Err(NoLink::NoNetwork))).collect()
}

/// Who is joined with whom, while that is being found out.
struct Pairing<'a> {
    interfaces: &'a [Interface],
    locals: &'a [Local],
    remotes: Vec<Address>,
    /// How much of the receiver's interfaces is taken, Mbit/s; all of it if that is not known.
    taken: HashMap<String, u32>,
    /// The receiver's interfaces that may be joined, each as often as it was the first to be tried.
    tried_first: Vec<String>,
    /// Our cables that are joined, by index, and by whom.
    cables: Vec<(u32, String)>,
}

impl Pairing<'_> {
    fn keep(&mut self, kept: &Kept) {
        let Some(interface) = self.interfaces.iter().find(|i| i.name == kept.interface) else { return };
        self.join(interface);
        let Some(remote) = kept.remote.map(canonical) else { return };
        // where a network is on several interfaces, an address does not tell by which one it was reached
        let is_guess = self.locals.iter().any(|l| {
            l.interface == interface.name
                && same_network(l.ip, remote, l.prefix)
                && !is_link_local(l.ip)
                && is_on_several(self.locals, l)
        });
        if is_guess {
            let theirs = self.remotes.iter().filter(|r| r.addr.ip() == remote).map(|r| r.interface.clone());
            self.tried_first.extend(theirs);
        } else {
            let theirs = self.remotes.iter().find(|r| r.addr.ip() == remote).map(|r| r.interface.clone());
            theirs.into_iter().for_each(|theirs| self.take(theirs, interface));
        }
    }

    /// That interface of the receiver's gets what ours can bring.
    fn take(&mut self, theirs: String, ours: &Interface) {
        let speed = if ours.speed_mbit == 0 { u32::MAX } else { ours.speed_mbit };
        let taken = self.taken.entry(theirs).or_insert(0);
        *taken = taken.saturating_add(speed);
    }

    /// Whether an interface of the receiver's is joined with none of ours, or can take what one more brings: one of 10
    /// Gbit/s several of 1 Gbit/s.
    fn has_room(&self, theirs: &Address, ours: &Interface) -> bool {
        self.taken
            .get(&theirs.interface)
            .is_none_or(|taken| ours.speed_mbit > 0 && taken.saturating_add(ours.speed_mbit) <= theirs.speed_mbit)
    }

    fn join(&mut self, interface: &Interface) {
        self.cables.push((self.cable(interface), interface.name.clone()));
    }

    /// The interface at the bottom of those that carry each other's packets.
    fn cable(&self, interface: &Interface) -> u32 {
        let mut at = interface;
        // no deeper than there are interfaces
        for _ in self.interfaces {
            let below = at.below.and_then(|index| self.interfaces.iter().find(|i| i.index == index));
            match below {
                Some(below) => at = below,
                None => break,
            }
        }
        at.index
    }

    fn same_cable(&self, interface: &Interface) -> Option<String> {
        let cable = self.cable(interface);
        self.cables.iter().find(|(index, _)| *index == cable).map(|(_, name)| name.clone())
    }

    fn own<'a>(&'a self, interface: &'a Interface) -> impl Iterator<Item = &'a Local> {
        self.locals.iter().filter(|l| l.interface == interface.name)
    }

    /// A network that the receiver is on too.
    fn by_network(&mut self, interface: &Interface) -> Option<Candidate> {
        let (local, remote) = self
            .own(interface)
            .filter(|l| !is_link_local(l.ip) && !is_on_several(self.locals, l))
            .find_map(|local| Some((local, self.remotes_in(local, interface).next()?)))?;
        let found = candidate(local, [remote.addr]);
        let remote = remote.interface.clone();
        self.take(remote, interface);
        self.join(interface);
        Some(found)
    }

    /// Whoever answers at the other end of the cable: neighbour discovery stays on its wire. Where one side has no
    /// IPv6, the addresses of a network that is on several interfaces, although ARP answers for every one of them.
    fn by_cable(&mut self, interface: &Interface) -> Option<Candidate> {
        let mut routes: Vec<(&str, Route)> = Vec::new();
        for own in [is_link_local as fn(IpAddr) -> bool, |ip| !is_link_local(ip)] {
            for local in self.own(interface).filter(|l| own(l.ip)) {
                let remotes = self.remotes_in(local, interface);
                routes.extend(remotes.map(|r| (r.interface.as_str(), route(local, r.addr))));
            }
            if !routes.is_empty() {
                break;
            }
        }
        if routes.is_empty() {
            return None;
        }
        // behind a switch everybody answers: each of our interfaces begins with another one of theirs
        routes.sort_by_key(|(theirs, _)| self.tried_first.iter().filter(|first| *first == theirs).count());
        let first = routes[0].0.to_owned();
        let routes = routes.into_iter().map(|(_, route)| route).collect();
        self.tried_first.push(first);
        self.join(interface);
        Some(Candidate { name: interface.name.clone(), routes })
    }

    /// The receiver's addresses in the network of `local`, of interfaces that have room for ours.
    fn remotes_in<'a>(&'a self, local: &'a Local, ours: &'a Interface) -> impl Iterator<Item = &'a Address> {
        self.remotes.iter().filter(|r| {
            self.has_room(r, ours)
                && is_link_local(r.addr.ip()) == is_link_local(local.ip)
                && r.prefix == local.prefix
                && same_network(local.ip, r.addr.ip(), local.prefix)
        })
    }
}

/// The route that `local` and the receiver's address make.
pub fn route(local: &Local, remote: SocketAddr) -> Route {
    let remote = match remote {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, local.index).into()
        }
        other => other,
    };
    Route { device: Some(local.interface.clone()), local: Some(local.ip), remote }
}

fn candidate(local: &Local, remotes: impl IntoIterator<Item = SocketAddr>) -> Candidate {
    Candidate {
        name: local.interface.clone(),
        routes: remotes.into_iter().map(|remote| route(local, remote)).collect(),
    }
}

/// Whether `local` and `remote` are in a network that is on several of our interfaces, so that neither the routes nor
/// ARP keep to one cable, and IPv6 tells the cables apart.
pub fn is_better_found_anew(
    interfaces: &[Interface],
    local: IpAddr,
    remote: IpAddr,
    found: &[Result<Candidate, NoLink>],
) -> bool {
    let (locals, remote) = (addresses(interfaces), canonical(remote));
    let Some(own) = interface_of(&locals, local) else { return false };
    let is_near = same_network(own.ip, remote, own.prefix) && !locals.iter().any(|l| l.ip == remote);
    let by_cable = |c: &Candidate| c.name == own.interface && is_link_local(c.routes[0].remote.ip());
    !is_link_local(own.ip) && is_near && is_on_several(&locals, own) && found.iter().flatten().any(by_cable)
}

/// Whether that network is on another interface too.
pub fn is_on_several(locals: &[Local], local: &Local) -> bool {
    locals.iter().any(|other| {
        other.interface != local.interface
            && other.prefix == local.prefix
            && same_network(other.ip, local.ip, local.prefix)
    })
}

/// Whether two addresses agree in their first `prefix` bits.
pub fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let (a, b, width) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32u8),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let host_bits = width.saturating_sub(prefix);
    host_bits == 128 || (a >> host_bits) == (b >> host_bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::interfaces::{Carried, Kind};

    fn cable(name: &str, addresses: &[&str]) -> Interface {
        Interface {
            name: name.into(),
            index: u32::from(*name.as_bytes().last().unwrap()),
            kind: Kind::Cable,
            up: true,
            carrier: true,
            mtu: 1500,
            speed_mbit: 1000,
            below: None,
            addresses: addresses.iter().map(|a| network(a)).collect(),
            carried: Carried::default(),
        }
    }

    fn network(text: &str) -> (IpAddr, u8) {
        let (ip, prefix) = text.split_once('/').unwrap();
        (ip.parse().unwrap(), prefix.parse().unwrap())
    }

    fn remotes(all: &[(&str, &[&str])]) -> Vec<Address> {
        let of = |(name, addresses): &(&str, &[&str])| advertise(&[cable(name, addresses)], 7411);
        all.iter().flat_map(of).collect()
    }

    fn kept(interface: &str, remote: &str) -> [Kept; 1] {
        [Kept { link: interface.into(), interface: interface.into(), remote: Some(remote.parse().unwrap()) }]
    }

    /// Each link's name with the receiver's address that is tried first.
    fn pairs(interfaces: &[Interface], remotes: &[Address], kept: &[Kept]) -> Vec<(String, String)> {
        let found = pair(interfaces, remotes, kept, &[]);
        found.iter().map(|c| (c.name.clone(), c.routes[0].remote.ip().to_string())).collect()
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn each_shared_network_gives_one_link_and_the_first_is_not_repeated() {
        let interfaces = [
            cable("e1", &["10.0.1.1/24", "fd00:1::1/64"]),
            cable("e2", &["10.0.2.1/24", "fd00:2::1/64"]),
            cable("e3", &["10.0.3.1/24"]),
        ];
        let remotes = remotes(&[
            ("x1", &["10.0.1.2/24", "fd00:1::2/64"]),
            ("x2", &["10.0.2.2/24", "fd00:2::2/64"]),
            ("x9", &["192.168.0.1/24"]),
        ]);
        let first = kept("e1", "10.0.1.2");
        assert_eq!(pairs(&interfaces, &remotes, &first), owned(&[("e2", "10.0.2.2")]));
        let why: Vec<_> = survey(&interfaces, &remotes, &first, &["e2".into()]).into_iter().map(Result::err).collect();
        assert_eq!(why, [Some(NoLink::Kept), Some(NoLink::LeftOut), Some(NoLink::NoNetwork)]);
    }

    #[test]
    fn cables_without_addresses_are_paired_by_link_local_scoped_to_our_interface() {
        let interfaces = [cable("e1", &["10.0.1.1/24", "fe80::1/64"]), cable("e2", &["fe80::2/64"])];
        let remotes = remotes(&[("x1", &["10.0.1.2/24", "fe80::a/64"]), ("x2", &["fe80::b/64"])]);
        let found = pair(&interfaces, &remotes, &kept("e1", "10.0.1.2"), &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "e2");
        let SocketAddr::V6(remote) = found[0].routes[0].remote else { panic!("an IPv6 address") };
        assert_eq!((remote.ip().to_string().as_str(), remote.scope_id()), ("fe80::b", u32::from(b'2')));
    }

    #[test]
    fn one_network_on_two_interfaces_is_paired_by_link_local_each_beginning_with_another() {
        let interfaces = [
            cable("e1", &["10.0.1.1/24"]),
            cable("e2", &["10.0.2.1/24", "fe80::2/64"]),
            cable("e3", &["10.0.2.3/24", "fe80::3/64"]),
        ];
        let remotes = remotes(&[
            ("x1", &["10.0.1.2/24"]),
            ("x2", &["10.0.2.2/24", "fe80::b/64"]),
            ("x3", &["10.0.2.4/24", "fe80::c/64"]),
        ]);
        let found = pair(&interfaces, &remotes, &kept("e1", "10.0.1.2"), &[]);
        assert_eq!(found.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["e2", "e3"]);
        assert!(found.iter().all(|c| c.routes.len() == 2 && c.routes.iter().all(|r| r.remote.is_ipv6())));
        assert_ne!(found[0].routes[0].remote.ip(), found[1].routes[0].remote.ip());
    }

    #[test]
    fn the_first_link_may_be_in_a_network_that_is_on_two_interfaces() {
        let interfaces = [cable("e1", &["10.0.0.1/24", "fe80::1/64"]), cable("e2", &["10.0.0.2/24", "fe80::2/64"])];
        let remotes = remotes(&[("x1", &["10.0.0.11/24", "fe80::a/64"]), ("x2", &["10.0.0.12/24", "fe80::b/64"])]);
        // routed over e1 to an address that is on x2: which cable that took nobody knows
        let found = pair(&interfaces, &remotes, &kept("e1", "10.0.0.12"), &[]);
        let tried: HashSet<String> = found[0].routes.iter().map(|r| r.remote.ip().to_string()).collect();
        assert_eq!((found.len(), found[0].name.as_str()), (1, "e2"));
        let first = found[0].routes[0].remote.ip().to_string();
        assert_eq!(first, "fe80::a", "the other one, should a switch be between them");
        assert_eq!(tried, HashSet::from(["fe80::a".to_string(), "fe80::b".to_string()]));
    }

    #[test]
    fn without_ipv6_one_network_on_two_interfaces_is_paired_by_its_addresses() {
        let interfaces = [cable("e1", &["10.0.0.1/24"]), cable("e2", &["10.0.0.2/24"])];
        let remotes = remotes(&[("x1", &["10.0.0.11/24"]), ("x2", &["10.0.0.12/24"])]);
        let found = pair(&interfaces, &remotes, &kept("e1", "10.0.0.11"), &[]);
        assert_eq!((found.len(), found[0].name.as_str(), found[0].routes.len()), (1, "e2", 2));
        assert!(found[0].routes.iter().all(|r| r.device.as_deref() == Some("e2")));
    }

    #[test]
    fn what_is_no_cable_is_left_alone_by_kind_and_not_by_name() {
        let kind = |name: &str, address: &str, kind| Interface { kind, ..cable(name, &[address]) };
        let interfaces = [
            cable("e1", &["10.0.1.1/24"]),
            kind("docker0", "172.17.0.1/16", Kind::InnerBridge),
            kind("eth9", "10.9.0.1/24", Kind::Tunnel("wireguard".into())),
            Interface { carrier: false, ..cable("e4", &["10.4.0.1/24"]) },
            cable("veth5", &["10.5.0.1/24"]),
        ];
        let remotes = remotes(&[
            ("x1", &["10.0.1.2/24"]),
            ("docker0", &["172.17.0.9/16"]),
            ("wg0", &["10.9.0.2/24"]),
            ("x4", &["10.4.0.2/24"]),
            ("tun5", &["10.5.0.2/24"]),
        ]);
        assert_eq!(pairs(&interfaces, &remotes, &kept("e1", "10.0.1.2")), owned(&[("veth5", "10.5.0.2")]));
        assert_eq!(advertise(&interfaces, 7411).len(), 3, "what has no carrier may get one");
    }

    #[test]
    fn one_cable_is_one_link_however_many_interfaces_are_on_it() {
        let above = |name: &str, address: &str| Interface { below: Some(u32::from(b'1')), ..cable(name, &[address]) };
        let interfaces = [cable("e1", &["10.0.1.1/24"]), above("e1.7", "10.7.0.1/24"), above("e1.8", "10.8.0.1/24")];
        let remotes = remotes(&[("x1", &["10.0.1.2/24"]), ("x7", &["10.7.0.2/24"]), ("x8", &["10.8.0.2/24"])]);
        assert!(pair(&interfaces, &remotes, &kept("e1", "10.0.1.2"), &[]).is_empty());
        // the cable itself need not be in a network that both are on
        assert_eq!(pairs(&interfaces, &remotes[1..], &[]), owned(&[("e1.7", "10.7.0.2")]));
        let why = survey(&interfaces, &remotes[1..], &[], &[]);
        assert_eq!(why[2], Err(NoLink::SameCable("e1.7".into())));
    }

    #[test]
    fn one_fast_interface_of_the_receiver_takes_several_slow_ones_of_ours() {
        let interfaces = ["1", "2", "3"].map(|n| cable(&format!("e{n}"), &[&format!("10.0.{n}.1/24")]));
        let addresses = ["10.0.1.2/24", "10.0.2.2/24", "10.0.3.2/24"];
        let with_speed = |speed_mbit| advertise(&[Interface { speed_mbit, ..cable("x", &addresses) }], 7411);
        for (speed, expected) in [
            (10_000, &[("e2", "10.0.2.2"), ("e3", "10.0.3.2")][..]),
            (2_500, &[("e2", "10.0.2.2")]),
            (1_000, &[]),
            (0, &[]),
        ] {
            assert_eq!(pairs(&interfaces, &with_speed(speed), &kept("e1", "10.0.1.2")), owned(expected), "{speed}");
        }
    }

    #[test]
    fn nothing_is_joined_on_one_machine() {
        let interfaces = [cable("e1", &["10.0.1.1/24"]), cable("e2", &["10.0.2.1/24"])];
        let remotes = remotes(&[("e1", &["10.0.1.1/24"]), ("e2", &["10.0.2.1/24"])]);
        assert!(pair(&interfaces, &remotes, &kept("e1", "10.0.1.1"), &[]).is_empty());
        assert!(pair(&interfaces, &remotes, &kept("lo", "127.0.0.1"), &[]).is_empty());
    }
}
