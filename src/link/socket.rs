//! Options every connection gets, and connecting bound to an interface.
//!
//! Buffer sizes are never set: that would switch the kernel's autotuning off.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::options::SocketOptions;
use crate::{limits, sys};

/// Where a connection shall leave and arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The local interface to bind to.
    pub device: Option<String>,
    /// The local address to bind to.
    pub local: Option<IpAddr>,
    /// The receiver's address.
    pub remote: SocketAddr,
}

impl Route {
    /// Wherever the system's routes lead.
    pub fn to(remote: SocketAddr) -> Route {
        Route { device: None, local: None, remote }
    }
}

impl Route {
    /// The receiver's address, scoped to the interface as it is numbered now: one that was away may have come back with
    /// another index.
    fn remote_now(&self, socket: &TcpSocket) -> SocketAddr {
        match (self.remote, &self.device) {
            (SocketAddr::V6(v6), Some(device)) if v6.ip().is_unicast_link_local() => {
                let index = rustix::net::netdevice::name_to_index(socket, device).unwrap_or(v6.scope_id());
                SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), index).into()
            }
            (remote, _) => remote,
        }
    }

    /// Whether a connection between these addresses is one along this route.
    pub fn joins(&self, local: IpAddr, remote: IpAddr) -> bool {
        let same = |a: IpAddr, b: IpAddr| a.to_canonical() == b.to_canonical();
        same(self.remote.ip(), remote) && self.local.is_none_or(|ip| same(ip, local))
    }
}

/// Connect along `route` within [`limits::CONNECT_TIMEOUT`]. `mss` bounds the segments of both directions.
pub async fn connect(route: &Route, options: &SocketOptions, mss: Option<u32>) -> io::Result<TcpStream> {
    let socket = if route.remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    let remote = route.remote_now(&socket);
    // now, so that its first packet is marked as well
    tune(SockRef::from(&socket), !remote.is_ipv4(), options)?;
    if let Some(mss) = mss {
        SockRef::from(&socket).set_tcp_mss(mss)?;
    }
    if let Some(device) = &route.device {
        // Without privilege this works since Linux 5.7; where it does not, the address alone must do.
        match socket.bind_device(Some(device.as_bytes())) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            other => other?,
        }
    }
    if let Some(local) = route.local {
        let local = match (local, remote) {
            (IpAddr::V6(ip), SocketAddr::V6(remote)) if ip.is_unicast_link_local() => {
                std::net::SocketAddrV6::new(ip, 0, 0, remote.scope_id()).into()
            }
            _ => SocketAddr::new(local, 0),
        };
        socket.bind(local)?;
    }
    let stream = timeout(limits::CONNECT_TIMEOUT, socket.connect(remote))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    prepare(&stream)?;
    Ok(stream)
}

/// Let closing throw away what waits to be sent, and tell the peer at once (RST).
pub fn discard(stream: &TcpStream) {
    // where it fails, closing takes longer
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// The index of the interface by which an accepted connection's first segment came, where the kernel says (it keeps it,
/// for want of a better place, as the interface of outgoing multicast; IPv4 sockets of their own tell only if they are
/// bound to one).
pub fn came_in_by(stream: &TcpStream) -> Option<u32> {
    let socket = SockRef::from(stream);
    let bound = || {
        let name = String::from_utf8(socket.device().ok()??).ok()?;
        rustix::net::netdevice::name_to_index(stream, &name).ok()
    };
    socket.multicast_if_v6().ok().filter(|index| *index != 0).or_else(bound)
}

/// Send by that interface alone, where the system lets us.
pub fn stay_on(stream: &TcpStream, interface: &str) {
    // without it the routes decide, as they do for every other program
    let _ = SockRef::from(stream).bind_device(Some(interface.as_bytes()));
}

/// Set what the user asks for, before the socket connects or listens. What a listener is told, its connections have.
pub(super) fn tune(socket: SockRef<'_>, is_v6: bool, options: &SocketOptions) -> io::Result<()> {
    if let Some(name) = &options.congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if let Some(dscp) = options.dscp {
        // the lower two bits are ECN's
        let byte = u32::from(dscp) << 2;
        // on a socket of IPv6 too: its peer may be one of IPv4
        socket.set_tos_v4(byte)?;
        if is_v6 {
            socket.set_tclass_v6(byte)?;
        }
    }
    Ok(())
}

/// Find out whether the kernel does what is asked for; why not and what to try, in words.
pub fn check(options: &SocketOptions) -> Result<(), String> {
    let Some(name) = &options.congestion else { return Ok(()) };
    let socket = [Domain::IPV4, Domain::IPV6]
        .into_iter()
        .find_map(|domain| Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).ok());
    // without any socket the failure to connect or listen says more
    let Some(socket) = socket else { return Ok(()) };
    let Err(e) = socket.set_tcp_congestion(name.as_bytes()) else { return Ok(()) };
    let listed = |list: &str| {
        let names = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control"));
        names.map_or_else(|_| "?".to_owned(), |names| names.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (available, allowed) = (listed("available"), listed("allowed"));
    Err(match e.raw_os_error() {
        Some(libc::ENOENT) => format!(
            "--congestion {name}: this kernel does not have it (available: {available}); 'modprobe tcp_{name}' as root \
             loads it where it is a module"
        ),
        Some(libc::EPERM) => format!(
            "--congestion {name}: not allowed for this user (allowed: {allowed}; available: {available}); as root, \
             'sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{allowed} {name}\"' allows it"
        ),
        _ => format!("--congestion {name}: {} (available: {available})", super::describe_io(&e)),
    })
}

/// Set what both ends of every connection need.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(limits::SEND_PORTION_MIN as u32)?;
    socket.set_tcp_user_timeout(Some(limits::IDLE_TIMEOUT))?;
    Ok(())
}

/// Let at most about so many bytes wait unsent in the socket (`TCP_NOTSENT_LOWAT`); it has room again once half of them
/// have gone.
pub(super) fn let_wait(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    SockRef::from(stream).set_tcp_notsent_lowat(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// Call the socket readable once so many bytes have come (`SO_RCVLOWAT`), or the peer has closed.
pub(super) fn wake_for(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    sys::set_receive_low_water(stream, bytes)
}
