//! The listening socket: both families on one port, and who may be waiting in its handshake.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;

use super::socket;
use crate::limits;
use crate::options::SocketOptions;

/// Listen on `addr`, or on every address of both families at `port`. One live listener a port: the address is reused
/// only from connections that have ended, never shared with another process.
pub fn listen(addr: Option<IpAddr>, port: u16, options: &SocketOptions) -> io::Result<TcpListener> {
    match addr {
        Some(ip) => bind(SocketAddr::new(ip, port), options),
        None => match bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), options) {
            // no IPv6 on this machine
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
                bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), options)
            }
            other => other,
        },
    }
}

fn bind(addr: SocketAddr, options: &SocketOptions) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        // whatever net.ipv6.bindv6only says
        socket.set_only_v6(!addr.ip().is_unspecified())?;
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
