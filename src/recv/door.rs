//! Where senders knock: the address they are given, the first message of each connection, and how one is turned away.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::policy::{Policy, Strangers};
use crate::error::{Error, ExitCode, escape};
use crate::ids::{InstanceId, LinkId, SessionId};
use crate::limits;
use crate::link::announce::{Announcer, Waiting};
use crate::link::cables::Cables;
use crate::link::greet::{self, Guest};
use crate::link::handshake::{self, HandshakeError};
use crate::link::listen::{self, Pending, PendingPlace};
use crate::link::{describe_io, discover, interfaces, socket, tls};
use crate::options::{Bind, RecvOptions};
use crate::report::Event;
use crate::wire::{self, Address, Handshake, Offer, SessionKeys, TagKey, WireError};

/// A connection that has said its first message.
pub(super) struct Caller {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) wish: Wish,
    pub(super) place: PendingPlace,
}

/// What a caller wants.
pub(super) enum Wish {
    /// Begin a session; it may.
    Begin(Box<Guest>),
    /// Join one.
    Join { session: SessionId, link: LinkId, nonce: [u8; 16] },
}

/// What whoever hears a first message needs to know.
pub(super) struct Porter {
    pub(super) policy: Policy,
    pub(super) strangers: Strangers,
    /// Somebody has been agreed with and is served to the end: nobody else is.
    pub(super) busy: Cell<bool>,
    /// Whose links may join: the session that is under way, if there is one.
    pub(super) session: RefCell<Option<Served>>,
}

type Served = (SessionId, Arc<SessionKeys>);

impl Porter {
    fn joins(&self, session: SessionId) -> Option<TagKey> {
        let current = self.session.borrow();
        current.as_ref().filter(|(current, _)| *current == session).map(|(_, keys)| keys.joins())
    }
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
    /// The interface that has the address which was dialled, if that is another by which it could have come.
    pub(super) instead_of: Option<String>,
}

/// Where a connection comes in. One from a network of that interface's is tied to it, so that what we say leaves by the
/// same cable.
pub(super) fn place(stream: &TcpStream, peer: SocketAddr) -> Place {
    let interfaces = interfaces::list_without_speed().unwrap_or_default();
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
    let instead_of =
        by_address.filter(|other| other.index != own.index && other.is_cable()).map(|other| other.name.clone());
    // Where the kernel does not tell, it is not known which cable that would be; nor, where ARP answers for another
    // interface's address, that it will stay the same.
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

/// Accept connections and hear each one's first message, a bounded number at a time. What nobody of ours has sent costs
/// a few system calls: neither a thread nor a file.
pub(super) async fn answer_the_door(
    listener: TcpListener,
    pending: Pending,
    callers: UnboundedSender<Caller>,
    porter: Rc<Porter>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let peer = discover::plain(peer);
                match pending.enter(peer.ip()) {
                    Some(place) => {
                        let (callers, porter) = (callers.clone(), porter.clone());
                        tokio::task::spawn_local(hear_first(stream, peer, place, callers, porter));
                    }
                    None => turn_stranger_away(&stream, peer, "too many wait for an answer", &porter),
                }
            }
            // a connection that died in the queue
            Err(e) if is_of_one_connection(&e) => {}
            // out of descriptors or memory is no reason to stop listening
            Err(_) => {
                pending.displace_one();
                tokio::time::sleep(limits::ACCEPT_PAUSE).await;
            }
        }
        // Links have their turn, and what has already come of this one is read before others can displace it.
        tokio::task::yield_now().await;
    }
}

/// Whether accepting failed for a reason of that connection's, see accept(2).
fn is_of_one_connection(e: &std::io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::ECONNRESET
                | libc::EPERM
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENONET
        )
    )
}

async fn hear_first(
    mut stream: TcpStream,
    peer: SocketAddr,
    mut place: PendingPlace,
    callers: UnboundedSender<Caller>,
    porter: Rc<Porter>,
) {
    let begun = place.begun();
    let wish = first_wish(&mut stream, peer, begun, &porter);
    let heard = tokio::select! {
        biased;
        heard = handshake::within(limits::HANDSHAKE_TIMEOUT, wish) => heard,
        () = place.displaced() => {
            return turn_stranger_away(&stream, peer, "it said nothing while others came", &porter);
        }
    };
    match heard {
        Ok(wish) => {
            place.heard();
            let _ = socket::prepare(&stream);
            let _ = callers.send(Caller { stream, peer, wish, place });
        }
        // they have been told
        Err(HandshakeError::Distrust(why)) => porter.strangers.refused(peer, &why),
        Err(HandshakeError::Wire(e @ WireError::Version { .. })) => porter.strangers.turned_away(peer, &e.to_string()),
        // a link of a session that has ended is no stranger's
        Err(HandshakeError::Wire(WireError::NoSession)) => {}
        Err(error) => turn_stranger_away(&stream, peer, &error.to_string(), &porter),
    }
}

/// The first message: Join in plain, or Hello in TLS. Whoever is one of ours and not welcome has been told why.
async fn first_wish(
    stream: &mut TcpStream,
    peer: SocketAddr,
    begun: impl FnOnce(),
    porter: &Porter,
) -> Result<Wish, HandshakeError> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] == tls::FIRST_BYTE {
        let knock = match tls::hear(stream).await {
            Err(HandshakeError::Wire(e @ WireError::Version { .. })) => return Err(other_version(stream, e).await),
            knock => knock?,
        };
        begun();
        // before anything is computed for it
        if porter.busy.get() {
            return Err(plainly(stream, BUSY.to_owned()).await);
        }
        if let Err(why) = porter.policy.admits(peer.ip()) {
            return Err(plainly(stream, why).await);
        }
        return Ok(Wish::Begin(Box::new(greet::hear(stream, knock, &porter.policy.trust).await?)));
    }
    match handshake::hear_rest(stream, &[], |session| porter.joins(session)).await {
        Ok(Handshake::Join { session, link, nonce }) => Ok(Wish::Join { session, link, nonce }),
        Ok(Handshake::Hello { .. }) => {
            Err(plainly(stream, "the sender does not encrypt its greeting".to_owned()).await)
        }
        Ok(_) => Err(HandshakeError::Not("a first message")),
        Err(HandshakeError::Wire(e @ WireError::Version { .. })) => Err(other_version(stream, e).await),
        Err(HandshakeError::Wire(WireError::NoSession)) => {
            say_plainly(stream, ExitCode::Network, NO_SESSION).await;
            Err(WireError::NoSession.into())
        }
        Err(error) => Err(error),
    }
}

/// Refuse outside of TLS, in words that every version understands.
async fn plainly(stream: &mut TcpStream, reason: String) -> HandshakeError {
    say_plainly(stream, ExitCode::Refused, &reason).await;
    HandshakeError::Distrust(reason)
}

async fn other_version(stream: &mut TcpStream, error: WireError) -> HandshakeError {
    say_plainly(stream, ExitCode::Refused, &error.to_string()).await;
    error.into()
}

async fn say_plainly(stream: &mut TcpStream, code: ExitCode, reason: &str) {
    let refusal = Handshake::Refuse { code, reason: reason.to_owned() };
    let _ = handshake::say(stream, &refusal, &wire::PUBLISHED_KEY).await;
}

/// Close so that nothing is left of the connection, not even in the kernel.
fn turn_stranger_away(stream: &TcpStream, peer: SocketAddr, why: &str, porter: &Porter) {
    socket::discard(stream);
    porter.strangers.turned_away(peer, why);
}

/// Where callers come from.
pub(super) struct Door {
    pub(super) port: u16,
    pub(super) callers: UnboundedReceiver<Caller>,
    /// One for whom another session ended.
    pub(super) waiting: Option<Caller>,
    pub(super) porter: Rc<Porter>,
    /// Our interfaces.
    pub(super) cables: Arc<Cables>,
}

impl Door {
    /// From now on links may join this session, or none.
    pub(super) fn serve(&self, session: Option<Served>) {
        *self.porter.session.borrow_mut() = session;
    }

    /// The next caller.
    pub(super) async fn next(&mut self) -> Caller {
        self.callers.recv().await.expect("the door is answered for as long as we live")
    }

    /// The next caller who wants to begin a session. Of several, one who has something to send comes before those who
    /// measure, who may be any number; of these it is the last.
    pub(super) async fn first_hello(&mut self) -> (Caller, Offer) {
        let mut chosen: Option<(Caller, Offer)> = None;
        loop {
            let next = match (self.waiting.take(), &chosen) {
                (Some(caller), _) => Ok(caller),
                (None, None) => Ok(self.next().await),
                (None, Some(_)) => self.callers.try_recv(),
            };
            let Ok(caller) = next else { return chosen.expect("only then is nobody waited for") };
            match (&caller.wish, &chosen) {
                (Wish::Begin(guest), None | Some((_, Offer::Measure))) => {
                    let offer = guest.offer.clone();
                    if let Some((displaced, _)) = chosen.replace((caller, offer)) {
                        turn_away(displaced, ExitCode::Refused, "another sender came");
                    }
                }
                (Wish::Begin(_), Some(_)) => turn_away(caller, ExitCode::Refused, BUSY),
                _ => turn_away(caller, ExitCode::Network, NO_SESSION),
            }
        }
    }
}

/// What a link is told whose session is not under way here.
pub(super) const NO_SESSION: &str = "no such session: the receiver was started anew";

/// What everybody else is told while a sender is served.
pub(super) const BUSY: &str = "the receiver is busy with another sender";

pub(super) fn turn_away(caller: Caller, code: ExitCode, reason: &str) {
    let reason = reason.to_owned();
    tokio::task::spawn_local(async move {
        let Caller { mut stream, wish, place, .. } = caller;
        match wish {
            Wish::Begin(guest) => drop(guest.refuse(&mut stream, code, &reason).await),
            Wish::Join { .. } => {
                let refusal = Handshake::Refuse { code, reason };
                let _ = handshake::say(&mut stream, &refusal, &wire::PUBLISHED_KEY).await;
            }
        }
        drop(place);
    });
}
