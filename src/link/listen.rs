//! The listening socket: both families on one port, and who may be waiting in its handshake.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, Mutex};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::discover;
use super::interfaces::{self, Interface};
use super::socket;
use crate::options::{Bind, SocketOptions};
use crate::{limits, sys};

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
/// another one too, where there is no IPv6 to tell their cables apart. The routes would answer all of that network by
/// one interface, and who called by another would not hear it; a listener of the interface's own answers by it.
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
    socket.listen(limits::BACKLOG)?;
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
    socket.listen(limits::BACKLOG)?;
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

/// Connections whose first message has not been heard or not been decided about, a bounded number in all and by
/// address. Where there is no place the oldest that has said nothing yet gives up its own, then the oldest that has
/// begun to: who means us speaks at once, so that nobody who keeps places by silence, or opens one connection after the
/// other, keeps it out.
#[derive(Clone)]
pub struct Pending {
    queue: Arc<Mutex<Queue>>,
    most: usize,
}

struct Queue {
    next: u64,
    /// The oldest first.
    entries: VecDeque<Entry>,
}

struct Entry {
    number: u64,
    ip: IpAddr,
    /// It has begun to speak as one of ours would.
    begun: bool,
    /// Dropped, it tells the connection to go; none once its first message has been heard.
    stays: Option<oneshot::Sender<Infallible>>,
}

impl Queue {
    /// The one that gives up its place.
    fn oldest(&self, may: impl Fn(&Entry) -> bool) -> Option<usize> {
        let of = |begun| self.entries.iter().position(|e| e.stays.is_some() && e.begun == begun && may(e));
        of(false).or_else(|| of(true))
    }
}

/// A place among the pending; given up when dropped.
pub struct PendingPlace {
    pending: Pending,
    number: u64,
    displaced: oneshot::Receiver<Infallible>,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending::within(sys::open_files_limit())
    }
}

impl Pending {
    /// For a process that may have so many descriptors: seven in eight are left to links and files.
    fn within(descriptors: usize) -> Pending {
        let most = (descriptors / 8).clamp(limits::PENDING_PER_ADDRESS_MAX, limits::PENDING_MAX);
        Pending { queue: Arc::new(Mutex::new(Queue { next: 0, entries: VecDeque::new() })), most }
    }

    /// A place for a connection from `ip`, another's if need be; none if everybody has been heard and waits for an
    /// answer.
    pub fn enter(&self, ip: IpAddr) -> Option<PendingPlace> {
        let mut queue = self.queue.lock().expect("no thread panics while it holds this lock");
        let beside = queue.entries.iter().filter(|e| e.ip == ip).count();
        let is_full = queue.entries.len() >= self.most;
        if beside >= limits::PENDING_PER_ADDRESS_MAX || is_full {
            let own_only = beside >= limits::PENDING_PER_ADDRESS_MAX;
            let oldest = queue.oldest(|e| !own_only || e.ip == ip)?;
            queue.entries.remove(oldest);
        }
        let (stays, displaced) = oneshot::channel();
        let number = queue.next;
        queue.next += 1;
        queue.entries.push_back(Entry { number, ip, begun: false, stays: Some(stays) });
        Some(PendingPlace { pending: self.clone(), number, displaced })
    }

    /// Let the oldest that has said nothing go.
    pub fn displace_one(&self) {
        let mut queue = self.queue.lock().expect("no thread panics while it holds this lock");
        if let Some(oldest) = queue.oldest(|_| true) {
            queue.entries.remove(oldest);
        }
    }
}

impl PendingPlace {
    /// Once another has this place.
    pub async fn displaced(&mut self) {
        let _ = (&mut self.displaced).await;
    }

    /// What to call once it has begun to speak as one of ours: others give up their places before it.
    pub fn begun(&self) -> impl FnOnce() + use<> {
        let (pending, number) = (self.pending.clone(), self.number);
        move || {
            let mut queue = pending.queue.lock().expect("no thread panics while it holds this lock");
            if let Some(entry) = queue.entries.iter_mut().find(|e| e.number == number) {
                entry.begun = true;
            }
        }
    }

    /// The first message has been heard: the place is kept until it has been decided about.
    pub fn heard(&mut self) {
        let mut queue = self.pending.queue.lock().expect("no thread panics while it holds this lock");
        if let Some(entry) = queue.entries.iter_mut().find(|e| e.number == self.number) {
            entry.stays = None;
        }
    }
}

impl Drop for PendingPlace {
    fn drop(&mut self) {
        let mut queue = self.pending.queue.lock().expect("no thread panics while it holds this lock");
        queue.entries.retain(|e| e.number != self.number);
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

    fn ip(last: usize) -> IpAddr {
        Ipv4Addr::from(u32::try_from(last).unwrap()).into()
    }

    impl PendingPlace {
        fn is_displaced(&mut self) -> bool {
            self.displaced.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        }
    }

    #[test]
    fn the_oldest_of_the_same_address_that_is_silent_gives_up_its_place() {
        let pending = Pending::default();
        let mut other = pending.enter(ip(2)).unwrap();
        let mut places: Vec<_> = (0..limits::PENDING_PER_ADDRESS_MAX).map(|_| pending.enter(ip(1)).unwrap()).collect();
        places[0].heard();
        let newest = pending.enter(ip(1)).unwrap();
        let displaced: Vec<bool> = places.iter_mut().skip(1).map(PendingPlace::is_displaced).collect();
        assert!(displaced[0] && displaced[1..].iter().all(|gone| !gone), "{displaced:?}");
        assert!(!other.is_displaced(), "another address has places of its own");
        places.iter_mut().for_each(PendingPlace::heard);
        drop(newest);
        let last = pending.enter(ip(1)).unwrap();
        drop(last);
        let mut more = pending.enter(ip(1)).unwrap();
        more.heard();
        assert!(pending.enter(ip(1)).is_none(), "who has been heard is not displaced");
        drop((other, places, more));
        assert!(pending.queue.lock().unwrap().entries.is_empty());
    }

    #[test]
    fn who_has_begun_to_speak_is_displaced_only_by_more_who_have() {
        let pending = Pending::default();
        let mut speaking = pending.enter(ip(1)).unwrap();
        speaking.begun()();
        let silent: Vec<_> = (0..20).map(|_| pending.enter(ip(1)).unwrap()).collect();
        assert!(!speaking.is_displaced());
        drop(silent);
        let more: Vec<_> = (0..limits::PENDING_PER_ADDRESS_MAX).map(|_| pending.enter(ip(1)).unwrap()).collect();
        assert!(!speaking.is_displaced(), "one of the silent went");
        more.iter().for_each(|place| place.begun()());
        let _newest = pending.enter(ip(1)).unwrap();
        assert!(speaking.is_displaced(), "the oldest went");
    }

    #[test]
    fn places_are_bounded_in_all_and_leave_most_descriptors_to_others() {
        for (descriptors, most) in [(usize::MAX, 64), (1024, 64), (256, 32), (40, 8)] {
            let pending = Pending::within(descriptors);
            let mut places: Vec<_> = (0..3 * most).map(|n| pending.enter(ip(n)).unwrap()).collect();
            assert_eq!(pending.queue.lock().unwrap().entries.len(), most);
            let gone = places.iter_mut().map(PendingPlace::is_displaced).position(|gone| !gone);
            assert_eq!(gone, Some(2 * most), "the oldest went");
            places.iter_mut().skip(2 * most).for_each(PendingPlace::heard);
            assert!(pending.enter(ip(1000)).is_none());
        }
    }
}
