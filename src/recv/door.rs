//! Where senders knock: the address they are given, the first message of each connection, and how one is turned away.

use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::error::{Error, ExitCode};
use crate::ids::InstanceId;
use crate::link::announce::{Announcer, Waiting};
use crate::link::cables::Cables;
use crate::link::handshake::{self, HandshakeError};
use crate::link::listen::{self, Pending, PendingPlace};
use crate::link::{describe_io, discover, socket};
use crate::options::RecvOptions;
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
    let place = match options.listen {
        Some(ip) => SocketAddr::new(ip, options.port).to_string(),
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
    if let Some(ip) = options.listen
        && !ip.is_unspecified()
    {
        return vec![SocketAddr::new(ip, port)];
    }
    let mut locals = discover::locals().unwrap_or_default();
    locals.sort_by_key(|l| (!l.running, l.ip.is_ipv6()));
    let mut addrs: Vec<SocketAddr> = discover::advertise(&locals, port)
        .into_iter()
        .map(|a| a.addr)
        .filter(|a| !matches!(a, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local()))
        .collect();
    if addrs.is_empty() {
        addrs = locals.iter().filter(|l| l.ip.is_loopback()).map(|l| SocketAddr::new(l.ip, port)).collect();
    }
    if addrs.is_empty() {
        // None can be found out, and the port is still this one.
        addrs.push(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
    }
    addrs
}

pub(super) fn advertised(port: u16) -> Vec<Address> {
    discover::advertise(&discover::locals().unwrap_or_default(), port)
}

/// What a link is called here: our interface, or the peer's address where that is all we know.
pub(super) fn link_name(stream: &TcpStream, peer: SocketAddr) -> String {
    let locals = discover::locals().unwrap_or_default();
    let local = stream.local_addr().ok().and_then(|a| discover::interface_of(&locals, a.ip()));
    local.map_or_else(|| peer_name(peer), |l| l.interface.clone())
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
    let opened = Announcer::open(Waiting { instance, port, only: options.listen }, cables.clone());
    opened.map_err(|why| (options.observer)(Event::NotAnnounced { why })).ok()
}

/// Answer for as long as this is awaited.
pub(super) async fn announced(announcer: Option<Announcer>) -> Infallible {
    match announcer {
        Some(announcer) => announcer.answer().await,
        None => std::future::pending().await,
    }
}

/// Accept connections and hear each one's first message, a bounded number at a time.
pub(super) async fn answer_the_door(
    listener: TcpListener,
    callers: UnboundedSender<Caller>,
    observer: crate::options::Observer,
) {
    let pending = Pending::default();
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

pub(super) async fn first_hello(callers: &mut UnboundedReceiver<Caller>) -> (Caller, Offer) {
    loop {
        let caller = callers.recv().await.expect("the door is answered for as long as we live");
        match &caller.message {
            Handshake::Hello { offer, .. } => {
                let offer = offer.clone();
                return (caller, offer);
            }
            _ => turn_away(caller, ExitCode::Network, "no such session: the receiver was started anew"),
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
