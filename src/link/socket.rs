//! Options every connection gets, and connecting bound to an interface.
//!
//! Buffer sizes are never set: that would switch the kernel's autotuning off.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::discover;
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
    fn remote_now(&self) -> SocketAddr {
        match (self.remote, &self.device) {
            (SocketAddr::V6(v6), Some(device)) if v6.ip().is_unicast_link_local() => {
                let index = discover::index_of(device).unwrap_or(v6.scope_id());
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
pub async fn connect(route: &Route, mss: Option<u32>) -> io::Result<TcpStream> {
    let remote = route.remote_now();
    let socket = if remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
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
pub(super) fn discard(stream: &TcpStream) {
    // where it fails, closing takes longer
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
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
