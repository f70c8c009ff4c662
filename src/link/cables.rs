//! Our interfaces as they are now: which are there, and which have something at the other end of their cable.
//!
//! The kernel says over rtnetlink that something has changed; what has changed is asked for anew, since messages can be
//! lost when there are many, and state cannot. A link whose cable is pulled ends at once instead of after
//! [`limits::IDLE_TIMEOUT`], and is dialled again the moment the cable is back, where TCP alone would wait for its next
//! retransmission.

use std::io;
use std::sync::Arc;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Ended;
use super::discover::{self, Local};
use crate::limits;

/// What of rtnetlink is of interest: interfaces and addresses.
const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// All our addresses, kept current.
pub struct Cables {
    locals: watch::Sender<Vec<Local>>,
}

/// Hears of changes from when it was made.
pub type Changes = watch::Receiver<Vec<Local>>;

impl Cables {
    /// Look, and keep looking for as long as the runtime lives.
    pub fn watched() -> Arc<Cables> {
        let cables = Arc::new(Cables { locals: watch::Sender::new(discover::locals().unwrap_or_default()) });
        tokio::task::spawn_local(keep_current(cables.clone()));
        cables
    }

    /// The addresses now, and what will be said of changes.
    pub fn changes(&self) -> Changes {
        self.locals.subscribe()
    }

    /// Until the interface that `stream` leaves by has lost its carrier or is gone, or no longer has the address. One
    /// that never showed a carrier is believed to work all the same.
    pub async fn until_pulled(&self, stream: &TcpStream) -> Ended {
        let mut changes = self.changes();
        let ours = stream.local_addr().ok().and_then(|addr| {
            let locals = changes.borrow();
            discover::interface_of(&locals, addr.ip()).map(|l| (l.interface.clone(), l.ip))
        });
        let Some((interface, ip)) = ours else { return std::future::pending().await };
        let mut was_running = false;
        loop {
            let locals = changes.borrow_and_update().clone();
            match state(&locals, &interface) {
                State::Running if discover::interface_of(&locals, ip).is_none() => {
                    return Ended::lost("its address is gone");
                }
                State::Running => was_running = true,
                State::Idle if was_running => return Ended::lost("no carrier"),
                State::Gone => return Ended::lost("the interface is gone"),
                State::Idle => {}
            }
            changed(&mut changes).await;
        }
    }

    /// Whether `interface` has no carrier.
    pub fn is_pulled(&self, interface: Option<&str>) -> bool {
        interface.is_some_and(|name| state(&self.locals.borrow(), name) != State::Running)
    }

    /// Until `interface` has a carrier that it had not before.
    pub async fn until_plugged(&self, interface: Option<&str>) {
        let Some(interface) = interface else { return std::future::pending().await };
        let mut changes = self.changes();
        let mut was_running = true;
        loop {
            let is_running = state(&changes.borrow_and_update(), interface) == State::Running;
            if is_running && !was_running {
                return;
            }
            was_running = is_running;
            changed(&mut changes).await;
        }
    }
}

/// Until the next change.
pub async fn changed(changes: &mut Changes) {
    if changes.changed().await.is_err() {
        // whoever kept them current has gone; nothing is going to change
        std::future::pending().await
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    Idle,
    Gone,
}

fn state(locals: &[Local], interface: &str) -> State {
    let mut own = locals.iter().filter(|l| l.interface == interface).peekable();
    if own.peek().is_none() {
        return State::Gone;
    }
    if own.any(|l| l.running) { State::Running } else { State::Idle }
}

async fn keep_current(cables: Arc<Cables>) {
    let news = listen().ok();
    loop {
        match &news {
            // without news look now and then, and with them too: a change need not touch what they are about
            Some(news) => drop(timeout(limits::LOOK_AGAIN, heard(news)).await),
            None => sleep(limits::LOOK_AGAIN).await,
        }
        let Ok(now) = discover::locals() else { continue };
        cables.locals.send_if_modified(|known| {
            let is_new = *known != now;
            *known = now;
            is_new
        });
        // a change comes in several messages
        sleep(limits::SETTLE).await;
    }
}

fn listen() -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS.cast_unsigned()))?;
    // tokio has no type for netlink; datagrams are received alike from any socket that has them
    UdpSocket::from_std(std::net::UdpSocket::from(socket))
}

/// Until there is something to hear; it is forgotten.
async fn heard(news: &UdpSocket) -> io::Result<()> {
    let mut waste = [0u8; 8 << 10];
    // ENOBUFS, since there was more than the socket holds, is news too
    let first = news.recv(&mut waste).await;
    while news.try_recv(&mut waste).is_ok() {}
    first.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    fn local(interface: &str, running: bool) -> Local {
        Local { interface: interface.into(), index: 1, ip: "10.0.0.1".parse().unwrap(), prefix: 24, running }
    }

    #[test]
    fn an_interface_runs_if_one_of_its_addresses_says_so() {
        let locals = [local("a", false), local("b", false), local("b", true)];
        assert_eq!(state(&locals, "a"), State::Idle);
        assert_eq!(state(&locals, "b"), State::Running);
        assert_eq!(state(&locals, "c"), State::Gone);
    }

    #[test]
    fn a_cable_that_comes_back_is_heard_of_and_one_that_was_never_away_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let cables = Cables { locals: watch::Sender::new(vec![local("a", true)]) };
            let plugged = cables.until_plugged(Some("a"));
            tokio::pin!(plugged);
            assert!(std::future::poll_fn(|cx| Poll::Ready(plugged.as_mut().poll(cx).is_pending())).await);
            cables.locals.send_replace(vec![local("a", false)]);
            assert!(cables.is_pulled(Some("a")) && !cables.is_pulled(None));
            assert!(std::future::poll_fn(|cx| Poll::Ready(plugged.as_mut().poll(cx).is_pending())).await);
            cables.locals.send_replace(vec![local("a", true)]);
            plugged.await;
        });
    }
}
