//! Where senders knock: the address they are given, the first message of each connection, and how one is turned away.

use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::error::{Error, ExitCode, escape};
use crate::ids::InstanceId;
use crate::link::announce::{Announcer, Waiting};
use crate::link::cables::Cables;
use crate::link::handshake::{self, HandshakeError};
use crate::link::listen::{self, Pending, PendingPlace};
use crate::link::{describe_io, discover, interfaces, socket};
use crate::options::{Bind, RecvOptions};
use crate::report::Event;
use crate::wire::{self, Address, Handshake, Offer, WireError};

/// A connection that has said its first message.
pub(super) struct Caller {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) message: Handshake,
    pub(super) _place: PendingPlace,
}

pub(super) fn cannot_listen(options: &RecvOptions, error: &std::io::Error) -> Error {
    let place = match &options.bind {
        Some(Bind::Address(ip, None)) => SocketAddr::new(*ip, options.port).to_string(),
        Some(Bind::Address(ip, Some(zone))) => format!("[{ip}%{}]:{}", escape(zone.as_bytes()), options.port),
        Some(Bind::Interface(name)) => format!("port {} of {}", options.port, escape(name.as_bytes())),
        None => format!("port {}", options.port),
    };
    let holder = match error.kind() {
        std::io::ErrorKind::AddrInUse => listen::holder(options.port).map(|h| format!(" (held by {h})")),
        _ => None,
    };
    Error::Network(format!("cannot listen on {place}: {}{}", describe_io(error), holder.unwrap_or_default()))
}

/// The addresses a sender can be given, best first.
pub(super) fn reachable_at(options: &RecvOptions, port: u16) -> Vec<SocketAddr> {
    if let Some(Bind::Address(ip, zone)) = &options.bind
        && !ip.is_unspecified()
    {
        return vec![listen::address(*ip, zone.as_deref(), port).unwrap_or(SocketAddr::new(*ip, port))];
    }
    let mut interfaces = interfaces::list().unwrap_or_default();
    interfaces.sort_by_key(|i| !i.carrier);
    let locals = discover::addresses(&interfaces);
    let mut addrs: Vec<SocketAddr> = bound(options, &interfaces, port).into_iter().map(|a| a.addr).collect();
    // a link-local address means something else on every machine: only where there is no other
    let global: Vec<SocketAddr> = addrs.iter().copied().filter(|a| !interfaces::is_link_local(a.ip())).collect();
    if !global.is_empty() {
        addrs = global;
    }
    addrs.sort_by_key(|a| a.is_ipv6());
    if addrs.is_empty() {
        addrs = locals.iter().filter(|l| l.ip.is_loopback()).map(|l| SocketAddr::new(l.ip, port)).collect();
    }
    if addrs.is_empty() {
        // None can be found out, and the port is still this one.
        addrs.push(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
    }
    addrs
}

/// What the sender may dial beside the address it was given.
pub(super) fn advertised(options: &RecvOptions, port: u16) -> Vec<Address> {
    bound(options, &interfaces::list().unwrap_or_default(), port)
}

/// The addresses that we listen at.
fn bound(options: &RecvOptions, interfaces: &[interfaces::Interface], port: u16) -> Vec<Address> {
    let all = discover::advertise(interfaces, port);
    match &options.bind {
        None => all,
        Some(Bind::Address(ip, _)) if ip.is_unspecified() => {
            all.into_iter().filter(|a| ip.is_ipv6() || a.addr.is_ipv4()).collect()
        }
        Some(Bind::Address(ip, _)) => all.into_iter().filter(|a| a.addr.ip() == *ip).collect(),
        Some(Bind::Interface(name)) => all.into_iter().filter(|a| a.interface == *name).collect(),
    }
}

/// Where a link comes in.
pub(super) struct Place {
    /// What the link is called here: the interface, or the peer's address where that is all we know.
    pub(super) name: String,
    /// The interface that has the address which was dialled, if that is another.
    pub(super) instead_of: Option<String>,
}

/// Where a connection comes in. One from a network of that interface's is tied to it, so that what we say leaves by the
/// same cable.
pub(super) fn place(stream: &TcpStream, peer: SocketAddr) -> Place {
    let interfaces = interfaces::list().unwrap_or_default();
    let locals = discover::addresses(&interfaces);
    let by_index = socket::came_in_by(stream).and_then(|index| interfaces.iter().find(|i| i.index == index));
    let by_address = stream.local_addr().ok().and_then(|a| {
        let index = match a {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => v6.scope_id(),
            _ => discover::interface_of(&locals, a.ip())?.index,
        };
        interfaces.iter().find(|i| i.index == index)
    });
    let Some(own) = by_index.or(by_address) else { return Place { name: peer_name(peer), instead_of: None } };
    let ip = discover::canonical(peer.ip());
    // where the kernel does not tell, it is not known which cable that would be
    let instead_of = by_address.filter(|other| other.index != own.index).map(|other| other.name.clone());
    // nor, where ARP answers for another interface's address, that it will stay the same
    if by_index.is_some()
        && instead_of.is_none()
        && own.is_cable()
        && own.addresses.iter().any(|(ours, prefix)| discover::same_network(*ours, ip, *prefix))
    {
        socket::stay_on(stream, &own.name);
    }
    Place { name: own.name.clone(), instead_of }
}

pub(super) fn peer_name(peer: SocketAddr) -> String {
    discover::canonical(peer.ip()).to_string()
}

/// What answers senders that look for a receiver, if they may find this one and there is a network to ask on.
pub(super) fn announcer(
    options: &RecvOptions,
    instance: InstanceId,
    port: u16,
    cables: &Arc<Cables>,
) -> Option<Announcer> {
    if options.hidden {
        return None;
    }
    let (only, interface) = match &options.bind {
        None => (None, None),
        Some(Bind::Address(ip, _)) => (Some(*ip), None),
        Some(Bind::Interface(name)) => (None, Some(name.clone())),
    };
    let opened = Announcer::open(Waiting { instance, port, only, interface }, cables.clone());
    opened.map_err(|why| (options.observer)(Event::NotAnnounced { why })).ok()
}

/// Answer for as long as this is awaited.
pub(super) async fn announced(announcer: Option<&mut Announcer>) -> Infallible {
    match announcer {
        Some(announcer) => announcer.answer().await,
        None => std::future::pending().await,
    }
}

/// Accept connections and hear each one's first message, a bounded number at a time.
pub(super) async fn answer_the_door(
    listener: TcpListener,
    pending: Pending,
    callers: UnboundedSender<Caller>,
    observer: crate::options::Observer,
) {
    let strangers = Arc::new(AtomicU64::new(0));
    loop {
        let (mut stream, peer) = match listener.accept().await {
            Ok((stream, peer)) => (stream, discover::plain(peer)),
            Err(_) => {
                // out of descriptors or a connection that died in the queue: neither is a reason to stop listening
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = pending.enter(peer.ip()) else { continue };
        let (callers, observer, strangers) = (callers.clone(), observer.clone(), strangers.clone());
        tokio::task::spawn_local(async move {
            let key = wire::PUBLISHED_KEY;
            match handshake::hear(&mut stream, &key).await {
                Ok(message) => {
                    let _ = socket::prepare(&stream);
                    let _ = callers.send(Caller { stream, peer, message, _place: place });
                }
                Err(error) => {
                    if let HandshakeError::Wire(e @ WireError::Version { .. }) = &error {
                        let refusal = Handshake::Refuse { code: ExitCode::Refused, reason: e.to_string() };
                        let _ = handshake::say(&mut stream, &refusal, &key).await;
                    }
                    // one line each for the first few; a scan of the port must not fill a log
                    if strangers.fetch_add(1, Relaxed) < 5 {
                        observer(Event::Warning(format!("turned away {}: {error}", peer_name(peer))));
                    }
                }
            }
        });
    }
}

/// Where callers come from.
pub(super) struct Door {
    pub(super) port: u16,
    pub(super) callers: UnboundedReceiver<Caller>,
    /// One for whom another session ended.
    pub(super) waiting: Option<Caller>,
    /// Our interfaces.
    pub(super) cables: Arc<Cables>,
}

impl Door {
    /// The next caller.
    pub(super) async fn next(&mut self) -> Caller {
        self.callers.recv().await.expect("the door is answered for as long as we live")
    }

    /// The next caller who wants to begin a session.
    pub(super) async fn first_hello(&mut self) -> (Caller, Offer) {
        loop {
            let caller = match self.waiting.take() {
                Some(caller) => caller,
                None => self.next().await,
            };
            match &caller.message {
                Handshake::Hello { offer, .. } => {
                    let offer = offer.clone();
                    return (caller, offer);
                }
                _ => turn_away(caller, ExitCode::Network, "no such session: the receiver was started anew"),
            }
        }
    }
}

pub(super) async fn refuse(stream: &mut TcpStream, error: &Error) {
    let refusal = Handshake::Refuse { code: error.exit_code(), reason: error.reason() };
    let _ = handshake::say(stream, &refusal, &wire::PUBLISHED_KEY).await;
}

pub(super) fn turn_away(mut caller: Caller, code: ExitCode, reason: &str) {
    let reason = reason.to_owned();
    tokio::task::spawn_local(async move {
        let refusal = Handshake::Refuse { code, reason };
        let _ = handshake::say(&mut caller.stream, &refusal, &wire::PUBLISHED_KEY).await;
    });
}
