//! The listening socket: both families on one port, and who may be waiting in its handshake.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;

use super::discover;
use super::interfaces::{self, Interface};
use super::socket;
use crate::limits;
use crate::options::{Bind, SocketOptions};

/// Listen where `bind` says, or on every address of both families at `port`. One live listener a port: the address is
/// reused only from connections that have ended, never shared with another process.
pub fn listen(bind: Option<&Bind>, port: u16, options: &SocketOptions) -> io::Result<TcpListener> {
    let device = match bind {
        Some(Bind::Address(ip, zone)) => return open(address(*ip, zone.as_deref(), port)?, None, options),
        Some(Bind::Interface(name)) => Some(name.as_str()),
        None => None,
    };
    match open(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), device, options) {
        // no IPv6 on this machine
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            open(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), device, options)
        }
        other => other,
    }
}

/// An address with the port, and with the zone's index where it has one.
///
/// # Errors
/// The zone is no interface of ours.
pub fn address(ip: IpAddr, zone: Option<&str>, port: u16) -> io::Result<SocketAddr> {
    let (IpAddr::V6(v6), Some(zone)) = (ip, zone) else { return Ok(SocketAddr::new(ip, port)) };
    let interfaces = interfaces::list()?;
    let index = interfaces.iter().find(|i| i.name == zone).map(|i| i.index).or_else(|| zone.parse().ok());
    let missing = || io::Error::new(io::ErrorKind::NotFound, "there is no such interface");
    Ok(SocketAddrV6::new(v6, port, 0, index.ok_or_else(missing)?).into())
}

/// More listeners at the port of `listener`, which is at every address: one for each interface whose IPv4 network is on
/// another one too, where there is no IPv6 to tell their cables apart. The routes would answer all of that network by one
/// interface, and who called by another would not hear it; a listener of the interface's own answers by it.
pub fn beside(listener: &TcpListener, options: &SocketOptions) -> Vec<TcpListener> {
    let Ok(port) = listener.local_addr().map(|a| a.port()) else { return Vec::new() };
    let interfaces = interfaces::list().unwrap_or_default();
    let locals = discover::addresses(&interfaces);
    let is_ambiguous = |i: &&Interface| {
        let own = || locals.iter().filter(|l| l.index == i.index);
        i.objection().is_none()
            && !own().any(|l| interfaces::is_link_local(l.ip))
            && own().any(|l| discover::is_on_several(&locals, l))
    };
    let mut names = interfaces.iter().filter(is_ambiguous).map(|i| i.name.as_str()).peekable();
    // Only now may the port be shared, and only with ourselves: whoever else wants it asks for all of it and fails.
    if names.peek().is_none() || SockRef::from(listener).set_reuse_port(true).is_err() {
        return Vec::new();
    }
    names
        .filter_map(|name| open_sharing(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), name, options).ok())
        .collect()
}

fn open_sharing(addr: SocketAddr, device: &str, options: &SocketOptions) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.bind_device(Some(device.as_bytes()))?;
    socket::tune(SockRef::from(&socket), false, options)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&addr.into())?;
    socket.listen(128)?;
    TcpListener::from_std(socket.into())
}

fn open(addr: SocketAddr, device: Option<&str>, options: &SocketOptions) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        // whatever net.ipv6.bindv6only says
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    socket::tune(SockRef::from(&socket), addr.is_ipv6(), options)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(128)?;
    TcpListener::from_std(socket.into())
}

/// Who holds `port`, as "process 1234 (name)", where this user may see it.
pub fn holder(port: u16) -> Option<String> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .flat_map(|table| {
            table
                .lines()
                .skip(1)
                .filter_map(|line| {
                    let fields: Vec<&str> = line.split_whitespace().collect();
                    let local_port = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
                    let listening = *fields.get(3)? == "0A";
                    (local_port == port && listening).then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
                })
                .collect::<Vec<_>>()
        })
        .collect();
    let processes = std::fs::read_dir("/proc").ok()?;
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let Ok(fds) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for fd in fds.flatten() {
            let Ok(target) = std::fs::read_link(fd.path()) else { continue };
            if inodes.iter().any(|inode| target.as_os_str() == inode.as_str()) {
                let name = std::fs::read(process.path().join("comm")).unwrap_or_default();
                return Some(format!("process {pid} ({})", crate::error::escape(name.trim_ascii_end())));
            }
        }
    }
    None
}

/// Counts connections that have not finished their handshake, in all and by address.
#[derive(Clone, Default)]
pub struct Pending {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place among the pending; given up when dropped.
pub struct PendingPlace {
    pending: Pending,
    ip: IpAddr,
}

impl Pending {
    /// A place for a connection from `ip`, if there is one.
    pub fn enter(&self, ip: IpAddr) -> Option<PendingPlace> {
        let mut counts = self.counts.lock().expect("no thread panics while it holds this lock");
        if counts.values().sum::<usize>() >= limits::PENDING_MAX {
            return None;
        }
        let count = counts.entry(ip).or_insert(0);
        if *count >= limits::PENDING_PER_ADDRESS_MAX {
            return None;
        }
        *count += 1;
        Some(PendingPlace { pending: self.clone(), ip })
    }
}

impl Drop for PendingPlace {
    fn drop(&mut self) {
        let mut counts = self.pending.counts.lock().expect("no thread panics while it holds this lock");
        if let Some(count) = counts.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_second_listener_on_the_port_is_refused_and_the_holder_is_named() {
        let runtime = runtime();
        let _guard = runtime.enter();
        let first = listen(None, 0, &SocketOptions::default()).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = listen(None, port, &SocketOptions::default()).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        assert!(holder(port).unwrap().contains(&format!("process {}", std::process::id())));
    }

    #[test]
    fn both_families_reach_the_default_listener() {
        let runtime = runtime();
        let _guard = runtime.enter();
        let listener = listen(None, 0, &SocketOptions::default()).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            std::net::TcpStream::connect(("::1", port)).unwrap();
        }
    }

    #[test]
    fn pending_places_are_bounded_by_address_and_come_back() {
        let pending = Pending::default();
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut places: Vec<_> = (0..limits::PENDING_PER_ADDRESS_MAX).map(|_| pending.enter(ip).unwrap()).collect();
        assert!(pending.enter(ip).is_none());
        places.pop();
        assert!(pending.enter(ip).is_some());
        drop(places);
        assert!(pending.counts.lock().unwrap().is_empty());
    }
}
