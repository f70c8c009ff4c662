//! Our interfaces and addresses, and which of them share a network with the receiver's.
//!
//! A *pair* is one of our interfaces and one of the receiver's; it carries one link. Pairs are found by network: an
//! address of ours whose prefix holds an address of the receiver's. Where the same network is on several interfaces, and
//! where an interface has no pair, IPv6 link-local addresses are tried, since neighbour discovery stays on its wire;
//! which of the receiver's is at the other end of the wire only connecting can tell.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

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
    /// Whether the kernel has seen a carrier. It learns of one up to a second late, so this is no reason not to try.
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

/// All our addresses, loopback included.
pub fn locals() -> io::Result<Vec<Local>> {
    let interfaces = if_addrs::get_if_addrs()?;
    Ok(interfaces
        .into_iter()
        .map(|i| Local {
            running: i.is_oper_up(),
            prefix: match &i.addr {
                if_addrs::IfAddr::V4(v4) => v4.prefixlen,
                if_addrs::IfAddr::V6(v6) => v6.prefixlen,
            },
            ip: i.ip(),
            index: i.index.unwrap_or(0),
            interface: i.name,
        })
        .collect())
}

/// What the receiver tells of itself: every address worth dialling from another machine.
pub fn advertise(locals: &[Local], port: u16) -> Vec<Address> {
    locals
        .iter()
        .filter(|l| !l.ip.is_loopback() && is_cable(&l.interface))
        .map(|l| Address {
            interface: l.interface.clone(),
            addr: SocketAddr::new(l.ip, port),
            prefix: l.prefix,
            speed_mbit: speed(&l.interface),
        })
        .collect()
}

/// Whether an interface may be a cable, by the names that container and tunnel software gives its own.
fn is_cable(name: &str) -> bool {
    const NOT_CABLES: [&str; 15] = [
        "docker",
        "br-",
        "virbr",
        "veth",
        "cni",
        "flannel",
        "cali",
        "tun",
        "tap",
        "wg",
        "tailscale",
        "zt",
        "lxc",
        "lxd",
        "podman",
    ];
    name != "lo" && !NOT_CABLES.iter().any(|prefix| name.starts_with(prefix))
}

fn speed(interface: &str) -> u32 {
    std::fs::read_to_string(format!("/sys/class/net/{interface}/speed"))
        .ok()
        .and_then(|text| text.trim().parse::<i64>().ok())
        .and_then(|speed| u32::try_from(speed).ok())
        .unwrap_or(0)
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

/// The links that can be had beside those that exist, each of which joins one of our addresses with one of the
/// receiver's.
pub fn pair(locals: &[Local], remotes: &[Address], existing: &[(IpAddr, IpAddr)]) -> Vec<Candidate> {
    let remotes: Vec<Address> = remotes
        .iter()
        .map(|r| Address { addr: SocketAddr::new(canonical(r.addr.ip()), r.addr.port()), ..r.clone() })
        .collect();
    let ours: HashSet<IpAddr> = locals.iter().map(|l| canonical(l.ip)).collect();
    let mut used_local: HashSet<&str> = HashSet::new();
    let mut used_remote: HashSet<&str> = HashSet::new();
    for (local, remote) in existing {
        let (local, remote) = (canonical(*local), canonical(*remote));
        if remote.is_loopback() || ours.contains(&remote) {
            // both ends on one machine: there is nothing else to join
            return Vec::new();
        }
        used_local.extend(interface_of(locals, local).map(|l| l.interface.as_str()));
        used_remote.extend(remotes.iter().filter(|r| r.addr.ip() == remote).map(|r| r.interface.as_str()));
    }
    let usable = |l: &&Local| is_cable(&l.interface) && !l.ip.is_loopback();
    let mut candidates = Vec::new();

    for local in locals.iter().filter(usable).filter(|l| !is_link_local(l.ip)) {
        if used_local.contains(local.interface.as_str()) || is_on_several(locals, local) {
            continue;
        }
        let remote = remotes.iter().find(|r| {
            !used_remote.contains(r.interface.as_str())
                && !is_link_local(r.addr.ip())
                && r.prefix == local.prefix
                && same_network(local.ip, r.addr.ip(), local.prefix)
        });
        if let Some(remote) = remote {
            used_local.insert(&local.interface);
            used_remote.insert(&remote.interface);
            candidates.push(candidate(local, [remote.addr]));
        }
    }
    for local in locals.iter().filter(usable).filter(|l| is_link_local(l.ip)) {
        if used_local.contains(local.interface.as_str()) {
            continue;
        }
        let others = remotes
            .iter()
            .filter(|r| is_link_local(r.addr.ip()) && !used_remote.contains(r.interface.as_str()))
            .map(|r| r.addr);
        let found = candidate(local, others);
        if !found.routes.is_empty() {
            used_local.insert(&local.interface);
            candidates.push(found);
        }
    }
    candidates
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

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn is_on_several(locals: &[Local], local: &Local) -> bool {
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

    fn local(interface: &str, ip: &str, prefix: u8) -> Local {
        let index = u32::from(*interface.as_bytes().last().unwrap());
        Local { interface: interface.into(), index, ip: ip.parse().unwrap(), prefix, running: true }
    }

    fn remote(interface: &str, ip: &str, prefix: u8) -> Address {
        Address { interface: interface.into(), addr: SocketAddr::new(ip.parse().unwrap(), 7411), prefix, speed_mbit: 0 }
    }

    fn pairs(candidates: &[Candidate]) -> Vec<(String, String)> {
        candidates.iter().map(|c| (c.name.clone(), c.routes[0].remote.ip().to_string())).collect()
    }

    const FIRST: (&str, &str) = ("10.0.1.1", "10.0.1.2");

    fn first() -> [(IpAddr, IpAddr); 1] {
        [(FIRST.0.parse().unwrap(), FIRST.1.parse().unwrap())]
    }

    #[test]
    fn each_shared_network_gives_one_link_and_the_first_is_not_repeated() {
        let locals = [
            local("lo", "127.0.0.1", 8),
            local("e1", "10.0.1.1", 24),
            local("e1", "fd00:1::1", 64),
            local("e2", "10.0.2.1", 24),
            local("e2", "fd00:2::1", 64),
            local("e3", "10.0.3.1", 24),
        ];
        let remotes = [
            remote("x1", "10.0.1.2", 24),
            remote("x1", "fd00:1::2", 64),
            remote("x2", "10.0.2.2", 24),
            remote("x2", "fd00:2::2", 64),
            remote("x9", "192.168.0.1", 24),
        ];
        assert_eq!(pairs(&pair(&locals, &remotes, &first())), [("e2".to_string(), "10.0.2.2".to_string())]);
    }

    #[test]
    fn cables_without_addresses_are_paired_by_link_local_scoped_to_our_interface() {
        let locals = [local("e1", "10.0.1.1", 24), local("e1", "fe80::1", 64), local("e2", "fe80::2", 64)];
        let remotes = [remote("x1", "10.0.1.2", 24), remote("x1", "fe80::a", 64), remote("x2", "fe80::b", 64)];
        let found = pair(&locals, &remotes, &first());
        assert_eq!(pairs(&found), [("e2".to_string(), "fe80::b".to_string())]);
        let SocketAddr::V6(remote) = found[0].routes[0].remote else { panic!("an IPv6 address") };
        assert_eq!(remote.scope_id(), u32::from(b'2'));
    }

    #[test]
    fn one_network_on_two_interfaces_is_paired_by_link_local() {
        let locals = [
            local("e1", "10.0.1.1", 24),
            local("e2", "10.0.2.1", 24),
            local("e3", "10.0.2.3", 24),
            local("e2", "fe80::2", 64),
            local("e3", "fe80::3", 64),
        ];
        let remotes = [
            remote("x1", "10.0.1.2", 24),
            remote("x2", "10.0.2.2", 24),
            remote("x3", "10.0.2.4", 24),
            remote("x2", "fe80::b", 64),
            remote("x3", "fe80::c", 64),
        ];
        let found = pair(&locals, &remotes, &first());
        assert_eq!(found.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["e2", "e3"]);
        assert!(found.iter().all(|c| c.routes.len() == 2 && c.routes.iter().all(|r| r.remote.is_ipv6())));
    }

    #[test]
    fn container_bridges_and_tunnels_are_left_alone() {
        let locals = [local("e1", "10.0.1.1", 24), local("docker0", "172.17.0.1", 16), local("wg0", "10.9.0.1", 24)];
        let remotes =
            [remote("x1", "10.0.1.2", 24), remote("docker0", "172.17.0.9", 16), remote("wg0", "10.9.0.2", 24)];
        assert!(pair(&locals, &remotes, &first()).is_empty());
        assert_eq!(advertise(&locals, 7411).len(), 1);
    }

    #[test]
    fn nothing_is_joined_on_one_machine() {
        let locals = [local("e1", "10.0.1.1", 24), local("e2", "10.0.2.1", 24)];
        let remotes = [remote("e1", "10.0.1.1", 24), remote("e2", "10.0.2.1", 24)];
        let same = ("10.0.1.1".parse().unwrap(), "10.0.1.1".parse().unwrap());
        assert!(pair(&locals, &remotes, &[same]).is_empty());
    }
}
