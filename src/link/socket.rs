//! Options every connection gets, and connecting bound to an interface.
//!
//! Buffer sizes are never set: that would switch the kernel's autotuning off.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

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
    /// Whether a connection between these addresses is one along this route.
    pub fn joins(&self, local: IpAddr, remote: IpAddr) -> bool {
        let same = |a: IpAddr, b: IpAddr| a.to_canonical() == b.to_canonical();
        same(self.remote.ip(), remote) && self.local.is_none_or(|ip| same(ip, local))
    }
}

/// Connect along `route` within [`limits::CONNECT_TIMEOUT`].
pub async fn connect(route: &Route) -> io::Result<TcpStream> {
    let socket = if route.remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(device) = &route.device {
        // Without privilege this works since Linux 5.7; where it does not, the address alone must do.
        match socket.bind_device(Some(device.as_bytes())) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            other => other?,
        }
    }
    if let Some(local) = route.local {
        let local = match (local, route.remote) {
            (IpAddr::V6(ip), SocketAddr::V6(remote)) if ip.is_unicast_link_local() => {
                std::net::SocketAddrV6::new(ip, 0, 0, remote.scope_id()).into()
            }
            _ => SocketAddr::new(local, 0),
        };
        socket.bind(local)?;
    }
    let stream = timeout(limits::CONNECT_TIMEOUT, socket.connect(route.remote))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    prepare(&stream)?;
    Ok(stream)
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
