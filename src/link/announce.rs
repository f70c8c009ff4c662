//! Finding a receiver that waits, without an address: the sender asks two multicast groups on every interface, IPv6
//! link-local and IPv4 for this link only, and whoever waits answers. Cables without any configured address are enough.
//!
//! Nothing here is trusted: anybody on the networks can ask and answer. A receiver answers only who is on a network of
//! its own, and not without bound; a sender takes answers to its own question only, and a person confirms what it
//! found. Where a family or multicast is off, the rest does without it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::cables::{self, Cables};
use super::dial::fresh_nonce;
use super::discover::{self, Local};
use super::interfaces::{self, is_link_local};
use crate::ids::{InstanceCode, InstanceId};
use crate::limits;
use crate::options::LinkSpec;
use crate::wire::{Announce, DATAGRAM_LEN, GROUP_V4, GROUP_V6, decode_announce, encode_announce};

/// How long a socket that failed is left alone.
const AFTER_ERROR: Duration = Duration::from_millis(50);

/// What a receiver that waits tells of itself.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Which process it is.
    pub instance: InstanceId,
    /// Where it listens.
    pub port: u16,
    /// The one address it listens on, if it is one.
    pub only: Option<IpAddr>,
    /// The one interface, if it is one.
    pub interface: Option<String>,
}

impl Waiting {
    /// Whether it can be reached at that address of ours.
    fn is_at(&self, local: &Local) -> bool {
        let only = self.only.filter(|ip| !ip.is_unspecified());
        only.is_none_or(|ip| ip == local.ip) && self.interface.as_ref().is_none_or(|name| *name == local.interface)
    }
}

/// The answers of a receiver that waits; it answers for as long as [`Announcer::answer`] runs.
pub struct Announcer {
    waiting: Waiting,
    host: Vec<u8>,
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
    joined: HashSet<(u32, bool)>,
    cables: Arc<Cables>,
}

impl Announcer {
    /// Join the groups on every interface there is, or say why not on a single one.
    pub fn open(waiting: Waiting, cables: Arc<Cables>) -> Result<Announcer, String> {
        let only = waiting.only.filter(|ip| *ip != IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        if only.is_some_and(|ip| ip.is_ipv6()) {
            // link-local addresses are what we would be found at, and it does not listen there
            return Err("it listens on one IPv6 address only".to_owned());
        }
        let mut failed = None;
        let mut opened = |socket: io::Result<UdpSocket>| socket.map_err(|e| failed = Some(super::describe_io(&e))).ok();
        let v4 = opened(group_socket(SocketAddr::new(GROUP_V4.into(), limits::PORT)));
        let v6 = match only {
            None => opened(group_socket(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), limits::PORT))),
            Some(_) => None,
        };
        let host = rustix::system::uname().nodename().to_bytes().to_vec();
        let mut announcer = Announcer { waiting, host, v4, v6, joined: HashSet::new(), cables };
        let locals = announcer.cables.changes().borrow().clone();
        announcer.join(&locals);
        if announcer.joined.is_empty() {
            return Err(failed.unwrap_or_else(|| "no interface has multicast".to_owned()));
        }
        Ok(announcer)
    }

    /// Answer, and join on interfaces that appear. Never fails: what cannot be received or sent is no reason to stop
    /// waiting for a sender that knows the address.
    pub async fn answer(&mut self) -> Infallible {
        let mut changes = self.cables.changes();
        let mut allowance = Allowance::full(Instant::now());
        let (mut heard_v4, mut heard_v6) = ([0; DATAGRAM_LEN + 1], [0; DATAGRAM_LEN + 1]);
        loop {
            let (heard, bytes, socket) = tokio::select! {
                heard = hear(self.v4.as_ref(), &mut heard_v4) => (heard, &heard_v4, &self.v4),
                heard = hear(self.v6.as_ref(), &mut heard_v6) => (heard, &heard_v6, &self.v6),
                () = cables::changed(&mut changes) => {
                    let locals = changes.borrow_and_update().clone();
                    self.join(&locals);
                    continue;
                }
            };
            let Ok((len, from)) = heard else {
                sleep(AFTER_ERROR).await;
                continue;
            };
            let Ok(Announce::Query { nonce }) = decode_announce(&bytes[..len]) else { continue };
            let is_near = is_attached(&changes.borrow(), from, |local| self.waiting.is_at(local));
            if is_near && allowance.take(Instant::now()) {
                let Waiting { instance, port, .. } = self.waiting;
                let answer = encode_announce(&Announce::Answer { nonce, port, instance, host: self.host.clone() });
                // a datagram that does not fit into the socket now is like one that the network lost
                let _ = socket.as_ref().map(|socket| socket.try_send_to(&answer, from));
            }
        }
    }

    fn join(&mut self, locals: &[Local]) {
        let indices: HashSet<u32> = locals.iter().filter(|l| self.waiting.is_at(l)).map(|l| l.index).collect();
        self.joined.retain(|(index, _)| indices.contains(index));
        for index in indices {
            for (socket, is_v6) in [(&self.v4, false), (&self.v6, true)] {
                let Some(socket) = socket else { continue };
                if !self.joined.contains(&(index, is_v6)) && join(socket, index, is_v6).is_ok() {
                    self.joined.insert((index, is_v6));
                }
            }
        }
    }
}

fn join(socket: &UdpSocket, index: u32, is_v6: bool) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    let joined = match is_v6 {
        true => socket.join_multicast_v6(&GROUP_V6, index),
        false => socket.join_multicast_v4_n(&GROUP_V4, &InterfaceIndexOrAddress::Index(index)),
    };
    match joined {
        // the interface was away and is back under its number
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(()),
        other => other,
    }
}

/// A socket for what is sent to a group; several receivers of one host have one each. Bound to an IPv4 group it hears
/// nothing else.
fn group_socket(addr: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    // groups that another process has joined, on interfaces that this one does not want
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
        let _ = socket.set_multicast_all_v6(false);
        socket.set_unicast_hops_v6(1)?;
    } else {
        let _ = socket.set_multicast_all_v4(false);
        socket.set_ttl_v4(1)?;
    }
    socket.bind(&addr.into())?;
    UdpSocket::from_std(socket.into())
}

async fn hear(socket: Option<&UdpSocket>, bytes: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(bytes).await,
        None => std::future::pending().await,
    }
}

/// Whether whoever sends from `addr` is on a network of those of our addresses.
fn is_attached(locals: &[Local], addr: SocketAddr, those: impl Fn(&Local) -> bool) -> bool {
    let mut ours = locals.iter().filter(|l| those(l));
    match addr {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => ours.any(|l| l.index == v6.scope_id()),
        // a prefix of no bits is a default route, not a network
        _ => ours.any(|l| l.prefix > 0 && discover::same_network(l.ip, addr.ip(), l.prefix)),
    }
}

/// How many answers may be given: a bucket that fills slowly.
struct Allowance {
    left: u32,
    filled: Instant,
}

impl Allowance {
    fn full(now: Instant) -> Allowance {
        Allowance { left: limits::ANSWERS_BURST, filled: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / limits::ANSWERS_PER_SECOND;
        let earned = now.saturating_duration_since(self.filled).as_nanos() / each.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(limits::ANSWERS_BURST).min(limits::ANSWERS_BURST);
        if self.left + earned >= limits::ANSWERS_BURST {
            *self = Allowance::full(now);
        } else {
            self.left += earned;
            self.filled += each * earned;
        }
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

/// A receiver that answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Which process it is.
    pub instance: InstanceId,
    /// What its host calls itself. Escape before printing.
    pub host: Vec<u8>,
    /// Where it can be dialled, best first.
    pub addrs: Vec<SocketAddr>,
}

/// What came of asking.
#[derive(Debug, Default)]
pub struct Sought {
    /// Whoever answered, in order of the first answer.
    pub answered: Vec<Answered>,
    /// The interfaces that were asked over.
    pub asked: BTreeSet<String>,
}

/// Ask on every interface, or on those that `links` names, for receivers that wait. With `code` only an answer of that
/// one ends it early; others are gathered all the same.
pub async fn seek(links: &[LinkSpec], code: Option<InstanceCode>) -> io::Result<Sought> {
    let nonce = fresh_nonce()?;
    let query = encode_announce(&Announce::Query { nonce });
    let mut asking = Asking { query, nonce, sockets: HashMap::new(), ears: JoinSet::new() };
    let (tell, mut answers) = mpsc::channel(64);
    let mut asked = BTreeSet::new();
    let mut found = Gathered::default();
    let mut locals = Vec::new();
    let mut cables: HashSet<String> = HashSet::new();
    let began = Instant::now();
    let mut times = limits::ASK_AT.into_iter();
    let mut next = began;
    loop {
        let until = match found.first(code) {
            None => began + limits::ASK_FOR,
            Some(first) if code.is_some() => first + limits::ANSWERS_AFTER_FIRST,
            Some(first) => (began + limits::ANSWERS_IN).max(first + limits::ANSWERS_AFTER_FIRST),
        };
        tokio::select! {
            // a flood of answers must not keep the rest from its turn
            biased;
            () = sleep_until(until) => break,
            () = sleep_until(next) => {
                let interfaces = interfaces::list().unwrap_or_default();
                locals = discover::addresses(&interfaces);
                cables = interfaces.into_iter().filter(|i| i.is_cable()).map(|i| i.name).collect();
                asked.extend(asking.ask(&asked_over(&locals, links), &tell));
                next = times.next().map_or(next + limits::ASK_AGAIN, |at| began + at);
            }
            Some((local, from, answer)) = answers.recv() => {
                if is_attached(&locals, from, |_| true) {
                    let remoteness = remoteness(cables.contains(&local.interface), from.ip());
                    found.add(remoteness, from, answer, Instant::now());
                }
            }
        }
    }
    Ok(Sought { answered: found.receivers.into_iter().map(Heard::answered).collect(), asked })
}

/// The sockets that a sender asks with, one for each of its addresses.
struct Asking {
    query: [u8; DATAGRAM_LEN],
    nonce: [u8; 16],
    sockets: HashMap<(u32, IpAddr), Arc<UdpSocket>>,
    ears: JoinSet<()>,
}

type Answer = (Local, SocketAddr, Announce);

impl Asking {
    /// Ask once from each of these addresses; the interfaces over which the question went out.
    fn ask(&mut self, locals: &[&Local], tell: &mpsc::Sender<Answer>) -> Vec<String> {
        let mut asked = Vec::new();
        for local in locals {
            let key = (local.index, local.ip);
            if !self.sockets.contains_key(&key) && self.sockets.len() < limits::ASKING_MAX {
                // an IPv6 address that is still being checked for duplicates can be had a little later
                let Ok(socket) = asking_socket(local).map(Arc::new) else { continue };
                self.ears.spawn(listen(socket.clone(), (*local).clone(), self.nonce, tell.clone()));
                self.sockets.insert(key, socket);
            }
            let group: SocketAddr = match local.ip {
                IpAddr::V4(_) => SocketAddr::new(GROUP_V4.into(), limits::PORT),
                IpAddr::V6(_) => SocketAddrV6::new(GROUP_V6, limits::PORT, 0, local.index).into(),
            };
            if self.sockets.get(&key).is_some_and(|socket| socket.try_send_to(&self.query, group).is_ok()) {
                asked.push(local.interface.clone());
            }
        }
        asked
    }
}

/// A socket that sends to the groups from this address, over its interface.
fn asking_socket(local: &Local) -> io::Result<UdpSocket> {
    let addr: SocketAddr = match local.ip {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), 0),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, local.index).into(),
    };
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    match local.ip {
        IpAddr::V4(ip) => {
            socket.set_multicast_if_v4(&ip)?;
            socket.set_multicast_ttl_v4(1)?;
        }
        IpAddr::V6(_) => {
            socket.set_multicast_if_v6(local.index)?;
            socket.set_multicast_hops_v6(1)?;
        }
    }
    socket.bind(&addr.into())?;
    UdpSocket::from_std(socket.into())
}

/// Pass on the answers that are to our question.
async fn listen(socket: Arc<UdpSocket>, local: Local, nonce: [u8; 16], tell: mpsc::Sender<Answer>) {
    let mut bytes = [0; DATAGRAM_LEN + 1];
    loop {
        let Ok((len, from)) = socket.recv_from(&mut bytes).await else {
            sleep(AFTER_ERROR).await;
            continue;
        };
        let answer = match decode_announce(&bytes[..len]) {
            Ok(answer @ Announce::Answer { nonce: theirs, .. }) if theirs == nonce => answer,
            _ => continue,
        };
        if tell.send((local.clone(), from, answer)).await.is_err() {
            return;
        }
    }
}

/// The addresses to ask from: of each interface all of IPv4, and of IPv6 the link-local one where there is one.
fn asked_over<'a>(locals: &'a [Local], links: &[LinkSpec]) -> Vec<&'a Local> {
    let has_link_local: HashSet<u32> = locals.iter().filter(|l| is_link_local(l.ip)).map(|l| l.index).collect();
    let left_out = LinkSpec::left_out(links);
    let named: HashSet<u32> = links
        .iter()
        .flat_map(|link| {
            let names = move |l: &&Local| match link {
                LinkSpec::Interface(name) => l.interface == *name,
                LinkSpec::Address(ip) => {
                    discover::canonical(*ip) == l.ip || discover::same_network(l.ip, *ip, l.prefix)
                }
                LinkSpec::Pair { interface, .. } => l.interface == *interface || l.index.to_string() == *interface,
                LinkSpec::Not(_) => false,
            };
            locals.iter().filter(names).map(|l| l.index)
        })
        .collect();
    locals
        .iter()
        // an address of the receiver that a router leads to says nothing about interfaces
        .filter(|l| named.is_empty() || named.contains(&l.index))
        .filter(|l| !left_out.contains(&l.interface))
        .filter(|l| l.ip.is_ipv4() || is_link_local(l.ip) || !has_link_local.contains(&l.index))
        .collect()
}

/// Whoever answered so far.
#[derive(Default)]
struct Gathered {
    receivers: Vec<Heard>,
}

struct Heard {
    instance: InstanceId,
    host: Vec<u8>,
    first: Instant,
    /// With how far from what people would choose each is.
    addrs: Vec<(u8, SocketAddr)>,
}

impl Gathered {
    /// When the first answered, of that code if there is one.
    fn first(&self, code: Option<InstanceCode>) -> Option<Instant> {
        let wanted = self.receivers.iter().filter(|r| code.is_none_or(|code| r.instance.code() == code));
        wanted.map(|r| r.first).min()
    }

    fn add(&mut self, remoteness: u8, from: SocketAddr, answer: Announce, now: Instant) {
        let Announce::Answer { port, instance, host, .. } = answer else { return };
        let at = match self.receivers.iter().position(|r| r.instance == instance) {
            Some(at) => at,
            None if self.receivers.len() >= limits::FOUND_MAX => return,
            None => {
                self.receivers.push(Heard { instance, host, first: now, addrs: Vec::new() });
                self.receivers.len() - 1
            }
        };
        let mut addr = from;
        addr.set_port(port);
        let known = &mut self.receivers[at].addrs;
        if known.len() < limits::FOUND_ADDRESSES_MAX && known.iter().all(|(_, other)| *other != addr) {
            known.push((remoteness, addr));
        }
    }
}

impl Heard {
    fn answered(mut self) -> Answered {
        self.addrs.sort_by_key(|(remoteness, _)| *remoteness);
        Answered {
            instance: self.instance,
            host: self.host,
            addrs: self.addrs.into_iter().map(|(_, addr)| addr).collect(),
        }
    }
}

/// Addresses that people can type before link-local ones, cables before other interfaces, loopback last.
fn remoteness(is_cable: bool, ip: IpAddr) -> u8 {
    let is_link_local = match ip {
        IpAddr::V4(ip) => Ipv4Addr::is_link_local(&ip),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    u8::from(ip.is_loopback()) << 2 | u8::from(!is_cable) << 1 | u8::from(is_link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(interface: &str, index: u32, ip: &str, prefix: u8) -> Local {
        Local { interface: interface.into(), index, ip: ip.parse().unwrap(), prefix, running: true }
    }

    fn locals() -> [Local; 5] {
        [
            local("lo", 1, "127.0.0.1", 8),
            local("e1", 2, "10.0.1.1", 24),
            local("e1", 2, "fd00:1::1", 64),
            local("e1", 2, "fe80::1", 64),
            local("e2", 3, "fe80::2", 64),
        ]
    }

    #[test]
    fn only_who_is_on_a_network_of_ours_is_answered() {
        let near = |from: &str, only: Option<&str>| {
            let instance = InstanceId([0; 16]);
            let only = only.map(|ip| ip.parse().unwrap());
            let waiting = Waiting { instance, port: 1, only, interface: None };
            is_attached(&locals(), from.parse().unwrap(), |local| waiting.is_at(local))
        };
        for (from, expected) in [
            ("10.0.1.9:1", true),
            ("10.0.2.9:1", false),
            ("8.8.8.8:1", false),
            ("127.0.0.1:1", true),
            ("[fd00:1::9]:1", true),
            ("[fd00:2::9]:1", false),
            ("[fe80::9%2]:1", true),
            ("[fe80::9%3]:1", true),
            ("[fe80::9%4]:1", false),
            ("[fe80::9]:1", false),
        ] {
            assert_eq!(near(from, None), expected, "{from}");
        }
        assert!(near("10.0.1.9:1", Some("10.0.1.1")));
        assert!(!near("127.0.0.1:1", Some("10.0.1.1")));
        let everything = [local("t", 1, "10.0.0.1", 0)];
        assert!(!is_attached(&everything, "8.8.8.8:1".parse().unwrap(), |_| true), "a default route is no network");
    }

    #[test]
    fn every_interface_is_asked_once_for_each_family_or_only_those_named() {
        let locals = locals();
        let asked =
            |links: &[LinkSpec]| asked_over(&locals, links).iter().map(|l| l.ip.to_string()).collect::<Vec<_>>();
        assert_eq!(asked(&[]), ["127.0.0.1", "10.0.1.1", "fe80::1", "fe80::2"]);
        assert_eq!(asked(&[LinkSpec::Interface("e2".into())]), ["fe80::2"]);
        assert_eq!(asked(&[LinkSpec::Address("10.0.1.1".parse().unwrap())]), ["10.0.1.1", "fe80::1"]);
        assert_eq!(asked(&[LinkSpec::Address("10.0.1.2".parse().unwrap())]), ["10.0.1.1", "fe80::1"], "the receiver's");
        assert_eq!(asked(&[LinkSpec::Address("8.8.8.8".parse().unwrap())]).len(), 4, "somewhere behind a router");
    }

    #[test]
    fn answers_are_limited_in_the_long_run() {
        let start = Instant::now();
        let mut allowance = Allowance::full(start);
        let given = |allowance: &mut Allowance, ms: u64| {
            (0..1000).filter(|_| allowance.take(start + Duration::from_millis(ms))).count() as u32
        };
        assert_eq!(given(&mut allowance, 0), limits::ANSWERS_BURST);
        assert_eq!(given(&mut allowance, 500), limits::ANSWERS_PER_SECOND / 2);
        assert_eq!(given(&mut allowance, 1500), limits::ANSWERS_PER_SECOND);
        assert_eq!(given(&mut allowance, 3_600_000), limits::ANSWERS_BURST);
    }

    #[test]
    fn answers_of_one_instance_are_one_receiver_with_its_best_address_first() {
        let answer = |id: u8, port| Announce::Answer {
            nonce: [0; 16],
            port,
            instance: InstanceId([id; 16]),
            host: b"h".to_vec(),
        };
        let now = Instant::now();
        let mut gathered = Gathered::default();
        let at = |from: &str| -> SocketAddr { from.parse().unwrap() };
        for (is_cable, from) in [
            (true, "[fe80::9%3]:7411"),
            (false, "127.0.0.1:7411"),
            (false, "10.0.7.9:7411"),
            (true, "10.0.1.9:7411"),
            (true, "10.0.1.9:7411"),
        ] {
            gathered.add(remoteness(is_cable, at(from).ip()), at(from), answer(1, 99), now);
        }
        gathered.add(0, "10.0.1.8:7411".parse().unwrap(), answer(2, 7411), now + Duration::from_secs(1));
        assert_eq!(gathered.first(Some(InstanceId([2; 16]).code())), Some(now + Duration::from_secs(1)));
        assert_eq!(gathered.first(Some(InstanceId([3; 16]).code())), None);
        assert_eq!(gathered.first(None), Some(now));
        let answered: Vec<Answered> = gathered.receivers.into_iter().map(Heard::answered).collect();
        let shown = |at: usize| answered[at].addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>();
        assert_eq!(shown(0), ["10.0.1.9:99", "[fe80::9%3]:99", "10.0.7.9:99", "127.0.0.1:99"]);
        assert_eq!(shown(1), ["10.0.1.8:7411"]);

        let mut flooded = Gathered::default();
        for id in 0..=255 {
            flooded.add(0, "10.0.1.8:1".parse().unwrap(), answer(id, 1), now);
        }
        assert_eq!(flooded.receivers.len(), limits::FOUND_MAX);
    }
}
