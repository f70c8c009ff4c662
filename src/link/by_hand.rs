//! The links that `--link` names: where to dial them, before and after the receiver's addresses are known.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::discover::{self, Candidate, Local};
use super::interfaces::is_link_local;
use super::socket::Route;
use crate::options::LinkSpec;
use crate::wire::Address;

/// The routes that `--link` allows the first connection, best first.
pub fn first_routes(specs: &[LinkSpec], locals: &[Local], hosts: &[SocketAddr], port: u16) -> Vec<Route> {
    let over = |local: &Local| {
        hosts
            .iter()
            .filter(|h| h.is_ipv4() == local.ip.is_ipv4())
            .map(|h| discover::route(local, *h))
            .collect::<Vec<_>>()
    };
    specs
        .iter()
        .flat_map(|spec| match meant(spec, locals, hosts) {
            Meant::Nothing => Vec::new(),
            Meant::Locals(locals) => {
                let mut routes: Vec<(bool, Route)> =
                    locals.iter().flat_map(|l| over(l).into_iter().map(|r| (is_near(l, r.remote.ip()), r))).collect();
                // an address in the host's own network first
                routes.sort_by_key(|(is_near, _)| !is_near);
                routes.into_iter().map(|(_, route)| route).collect()
            }
            Meant::Route(route) => vec![route(port)],
        })
        .collect()
}

/// The links that are named, now that the receiver's addresses are known.
pub fn candidates(specs: &[LinkSpec], locals: &[Local], remotes: &[Address], host: SocketAddr) -> Vec<Candidate> {
    let best = |local: &Local| {
        let mut near: Vec<SocketAddr> = remotes.iter().map(|r| r.addr).filter(|a| is_near(local, a.ip())).collect();
        // which of the receiver's link-local addresses is at the other end of this cable only connecting can tell
        near.sort_by_key(|a| a.ip() != host.ip());
        near.truncate(if is_link_local(local.ip) { near.len() } else { 1 });
        let is_routed = near.is_empty();
        if is_routed && host.is_ipv4() == local.ip.is_ipv4() {
            near.push(host);
        }
        near.into_iter().map(|remote| (is_routed, discover::route(local, remote))).collect::<Vec<_>>()
    };
    let all = |spec: &LinkSpec| {
        let routes = match meant(spec, locals, &[host]) {
            Meant::Nothing => return None,
            Meant::Locals(locals) => {
                let mut routes: Vec<(bool, Route)> = locals.into_iter().flat_map(best).collect();
                routes.sort_by_key(|(routed, _)| *routed);
                routes.into_iter().map(|(_, route)| route).collect()
            }
            Meant::Route(route) => vec![route(host.port())],
        };
        Some(Candidate { name: spec.name(), routes })
    };
    specs.iter().filter_map(all).filter(|c| !c.routes.is_empty()).collect()
}

/// The interface of that name or index.
pub fn interface<'a>(locals: &'a [Local], name: &str) -> Option<&'a Local> {
    locals.iter().find(|l| l.interface == name).or_else(|| {
        let index: u32 = name.parse().ok()?;
        locals.iter().find(|l| l.index == index)
    })
}

/// What a `--link` stands for on this machine.
enum Meant<'a> {
    /// Not a link but what is left out.
    Nothing,
    /// From one of these addresses to whatever address of the receiver's they reach.
    Locals(Vec<&'a Local>),
    /// To that port at one address of the receiver's.
    Route(Box<dyn Fn(u16) -> Route + 'a>),
}

fn meant<'a>(spec: &'a LinkSpec, locals: &'a [Local], hosts: &[SocketAddr]) -> Meant<'a> {
    match spec {
        LinkSpec::Not(_) => Meant::Nothing,
        LinkSpec::Interface(name) => Meant::Locals(locals.iter().filter(|l| l.interface == *name).collect()),
        LinkSpec::Address(ip) => match discover::interface_of(locals, *ip) {
            Some(local) if !is_shared_loopback(*ip, hosts) => Meant::Locals(vec![local]),
            _ => Meant::Route(Box::new(|port| Route::to(SocketAddr::new(*ip, port)))),
        },
        LinkSpec::Pair { interface: name, remote } => {
            let Some(own) = interface(locals, name) else { return Meant::Locals(Vec::new()) };
            if locals.iter().any(|l| l.index == own.index && l.ip == *remote) {
                return Meant::Locals(locals.iter().filter(|l| l.index == own.index && l.ip == *remote).collect());
            }
            Meant::Route(Box::new(|port| Route {
                device: Some(own.interface.clone()),
                // the kernel chooses the address that belongs to the route
                local: None,
                remote: match *remote {
                    IpAddr::V6(ip) if is_link_local(*remote) => SocketAddrV6::new(ip, port, 0, own.index).into(),
                    ip => SocketAddr::new(ip, port),
                },
            }))
        }
    }
}

fn is_near(local: &Local, remote: IpAddr) -> bool {
    discover::same_network(local.ip, remote, local.prefix)
}

/// On loopback one address is ours and the receiver's at once; then it is meant as the receiver's.
fn is_shared_loopback(ip: IpAddr, hosts: &[SocketAddr]) -> bool {
    ip.is_loopback() && hosts.iter().all(|h| h.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(interface: &str, index: u32, ip: &str, prefix: u8) -> Local {
        Local { interface: interface.into(), index, ip: ip.parse().unwrap(), prefix, running: true }
    }

    fn pair(interface: &str, remote: &str) -> LinkSpec {
        LinkSpec::Pair { interface: interface.into(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn a_pair_goes_from_that_interface_to_that_address_whatever_the_networks() {
        let locals = [local("e1", 7, "10.0.1.1", 24), local("e1", 7, "fe80::1", 64), local("e2", 8, "10.0.2.1", 24)];
        let host = "10.0.1.2:7411".parse().unwrap();
        for (spec, remote) in [
            (pair("e2", "192.168.9.9"), "192.168.9.9:7411"),
            (pair("8", "192.168.9.9"), "192.168.9.9:7411"),
            (pair("e1", "fe80::9"), "[fe80::9%7]:7411"),
        ] {
            let found = candidates(std::slice::from_ref(&spec), &locals, &[], host);
            assert_eq!(found.len(), 1, "{spec:?}");
            let [route] = &found[0].routes[..] else { panic!("{found:?}") };
            assert_eq!(route.remote, remote.parse().unwrap(), "{spec:?}");
            assert_eq!(route.device.as_deref(), Some(if remote.contains("fe80") { "e1" } else { "e2" }));
            assert_eq!(first_routes(std::slice::from_ref(&spec), &locals, &[host], 7411), found[0].routes);
        }
        // an address of our own stands for the interface
        let own = candidates(&[pair("e1", "fe80::1")], &locals, &[], "[fe80::2%7]:7411".parse().unwrap());
        assert_eq!(own[0].routes[0].local, Some("fe80::1".parse().unwrap()));
        assert!(candidates(&[LinkSpec::Not("e1".into()), pair("e9", "10.0.0.1")], &locals, &[], host).is_empty());
    }
}
