//! Reaching the receiver and agreeing with it: the first connection, Hello and Welcome.

use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::error::{Error, ExitCode, escape, escape_words};
use crate::ids::SessionId;
use crate::limits;
use crate::link::discover::{self, Candidate};
use crate::link::greet::{self, Agreement, Dialer};
use crate::link::handshake::HandshakeError;
use crate::link::socket::Route;
use crate::link::{announce, by_hand, describe_io, dial};
use crate::options::{Bwlimit, Find, LinkSpec, SendOptions};
use crate::report::Found;
use crate::wire::{Address, Layout, Offer, WireError};

/// The first connection, after Welcome.
pub(super) struct Agreed {
    pub(super) stream: TcpStream,
    /// The link's name and where to dial it again.
    pub(super) candidate: Candidate,
    pub(super) peer: SocketAddr,
    /// The peer was reached by another way than `--link` allows; the connection must carry no chunks.
    pub(super) control_only: bool,
    /// There shall be no other link.
    pub(super) alone: bool,
    pub(super) layout: Layout,
    pub(super) owner_names: bool,
    pub(super) window_chunks: u32,
    pub(super) addresses: Vec<Address>,
    /// Who the receiver is, and the session's keys.
    pub(super) agreement: Agreement,
}

impl Agreed {
    /// Our address and the receiver's of the first connection.
    pub(super) fn ends(&self) -> (IpAddr, IpAddr) {
        let theirs = self.peer.ip();
        (self.stream.local_addr().map_or(theirs, |a| a.ip()), theirs)
    }
}

/// Reach the receiver and agree with it.
pub(super) async fn agree(options: &SendOptions, session: SessionId, offer: Offer) -> Result<Agreed, Error> {
    interfaces_exist(&options.links)?;
    limits_are_for_links(&options.bwlimit, &options.links)?;
    let (target, found) = match &options.find {
        None => (format!("{}:{}", escape(options.host.as_bytes()), options.port), None),
        Some(find) => {
            let found = choose(options, find).await?;
            (format!("{} ({})", escape(&found.host), found.addrs[0]), Some(found.addrs))
        }
    };
    let dialer = dialer()?;
    let deadline = Instant::now() + limits::REFUSED_RETRY;
    let mut pause = limits::REFUSED_PAUSE_MIN;
    let (stream, route, control_only) = loop {
        match reach(options, found.as_deref()).await {
            Ok(reached) => break reached,
            Err(unreached) if unreached.refused > 0 && Instant::now() < deadline => {
                sleep(pause).await;
                pause = (pause * 2).min(limits::REFUSED_PAUSE_MAX);
            }
            Err(unreached) => {
                return Err(Error::Network(format!("cannot reach {target}: {}", unreached.reasons())));
            }
        }
    };
    let candidate = |stream: &TcpStream| Ok(first_candidate(stream.local_addr()?, stream.peer_addr()?, route));
    greet(dialer, stream, options, session, offer, &target, control_only, candidate).await
}

/// Agree with the receiver over this link, and no other.
pub(super) async fn agree_over(
    link: &Candidate,
    options: &SendOptions,
    session: SessionId,
    offer: Offer,
) -> Result<Agreed, Error> {
    let dialer = dialer()?;
    let reached = dial::first_of(link.routes.clone(), &options.sockets).await;
    let (stream, route) = reached.map_err(|unreached| Error::Network(unreached.reasons()))?;
    // the one that answered: there is no time for the others
    let candidate = |_: &TcpStream| Ok(Candidate { name: link.name.clone(), routes: vec![route] });
    let target = format!("{}:{}", escape(options.host.as_bytes()), options.port);
    let agreed = greet(dialer, stream, options, session, offer, &target, false, candidate).await?;
    Ok(Agreed { alone: true, ..agreed })
}

fn dialer() -> Result<Dialer, Error> {
    Dialer::new().map_err(|e| Error::Bug(format!("cannot begin TLS: {e}")))
}

/// Hello and Welcome.
#[expect(clippy::too_many_arguments, reason = "what both callers have found out")]
async fn greet(
    dialer: Dialer,
    mut stream: TcpStream,
    options: &SendOptions,
    session: SessionId,
    offer: Offer,
    target: &str,
    control_only: bool,
    candidate: impl FnOnce(&TcpStream) -> std::io::Result<Candidate>,
) -> Result<Agreed, Error> {
    let refused = |e: HandshakeError| match e {
        HandshakeError::Refused { code: ExitCode::Refused, reason } => {
            Error::Refused(format!("by {target}: {}", escape_words(&reason)))
        }
        HandshakeError::Refused { code, reason } => Error::Peer { code, reason: escape_words(&reason) },
        e @ (HandshakeError::Distrust(_) | HandshakeError::Wire(WireError::Version { .. })) => {
            Error::Refused(format!("{target}: {e}"))
        }
        e => Error::Network(format!("no agreement with {target}: {e}")),
    };
    let (welcomed, agreement) =
        greet::dial(dialer, &mut stream, &options.trust, session, offer).await.map_err(refused)?;
    let peer = stream.peer_addr().map_err(|e| refused(e.into()))?;
    Ok(Agreed {
        candidate: candidate(&stream).map_err(|e| refused(e.into()))?,
        stream,
        peer,
        control_only,
        alone: false,
        layout: welcomed.layout,
        owner_names: welcomed.owner_names,
        window_chunks: welcomed.window_chunks,
        addresses: welcomed.addresses,
        agreement,
    })
}

/// Find the receivers that wait, and let the one that is meant be chosen.
async fn choose(options: &SendOptions, find: &Find) -> Result<Found, Error> {
    let sought = announce::seek(&options.links, find.code).await;
    let sought = sought.map_err(|e| Error::Network(format!("cannot look for a receiver: {}", describe_io(&e))))?;
    let asked = sought.asked.iter().map(|name| escape(name.as_bytes())).collect::<Vec<_>>().join(", ");
    let found: Vec<Found> =
        sought.answered.into_iter().map(|a| Found { host: a.host, addrs: a.addrs, code: a.instance.code() }).collect();
    let (mut meant, others): (Vec<Found>, Vec<Found>) =
        found.into_iter().partition(|found| find.code.is_none_or(|code| found.code == code));
    if meant.is_empty() {
        return Err(Error::NotFound(match (&others[..], &asked[..], find.code) {
            (_, "", _) => "cannot look for a receiver: no interface here takes multicast".to_owned(),
            ([], asked, _) => format!("no receiver answered (asked over {asked})"),
            (others, asked, code) => format!(
                "no receiver has the code {}; others answered: {} (asked over {asked})",
                code.map(|code| code.to_string()).unwrap_or_default(),
                others.iter().map(|o| format!("{} {}", escape(&o.host), o.code)).collect::<Vec<_>>().join(", ")
            ),
        }));
    }
    // a person may take their time, and a signal must still be heard
    let choose = find.choose.clone();
    let chosen = spawn_blocking(move || choose(&meant).map(|at| meant.swap_remove(at))).await;
    chosen.map_err(|e| Error::Bug(format!("nobody could choose a receiver: {e}")))?
}

/// An interface that `--link` names and that is not there, or has no address, is a typing error.
pub(super) fn interfaces_exist(links: &[LinkSpec]) -> Result<(), Error> {
    links.iter().try_for_each(|link| match link {
        LinkSpec::Interface(name) | LinkSpec::Not(name) | LinkSpec::Pair { interface: name, .. } => {
            interface_exists("--link", name)
        }
        LinkSpec::Address(_) => Ok(()),
    })
}

fn interface_exists(option: &str, name: &str) -> Result<(), Error> {
    let locals = discover::locals().unwrap_or_default();
    if by_hand::interface(&locals, name).is_some() {
        return Ok(());
    }
    let mut known: Vec<&str> = locals.iter().map(|l| l.interface.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let (name, known) = (escape(name.as_bytes()), known.join(", "));
    Err(Error::Usage(format!("{option} {name}: no such interface here has an address (there are {known})")))
}

/// A limit for what is no link's name would never limit anything.
fn limits_are_for_links(bwlimit: &Bwlimit, links: &[LinkSpec]) -> Result<(), Error> {
    for (link, _) in &bwlimit.links {
        match link {
            link if links.contains(link) => {}
            LinkSpec::Interface(name) if !LinkSpec::by_hand(links) => interface_exists("--bwlimit", name)?,
            link => {
                let name = escape(link.name().as_bytes());
                let known = if !LinkSpec::by_hand(links) {
                    "links have their interfaces' names unless --link names an address".to_owned()
                } else {
                    let names: Vec<String> = links.iter().map(|l| escape(l.name().as_bytes())).collect();
                    format!("--link names {}", names.join(", "))
                };
                return Err(Error::Usage(format!("--bwlimit {name}: no link has this name ({known})")));
            }
        }
    }
    Ok(())
}

/// A first connection along the ways that `--link` allows, or, if none of them leads to the address given, along
/// another that is used for control only.
async fn reach(
    options: &SendOptions,
    found: Option<&[SocketAddr]>,
) -> Result<(TcpStream, Route, bool), dial::Unreached> {
    let hosts = match found {
        Some(found) => found.to_vec(),
        None => match dial::resolve(&options.host, options.port).await {
            Ok(hosts) => hosts,
            Err(e) => {
                let tried = vec![(escape(options.host.as_bytes()), describe_io(&e))];
                return Err(dial::Unreached { tried, refused: 0 });
            }
        },
    };
    let port = hosts.first().map_or(options.port, SocketAddr::port);
    let locals = discover::locals().unwrap_or_default();
    if !LinkSpec::by_hand(&options.links) {
        let routes = hosts.into_iter().map(Route::to).collect();
        let (stream, route) = dial::first_of(routes, &options.sockets).await?;
        let ours = stream.local_addr().ok().and_then(|addr| discover::interface_of(&locals, addr.ip()));
        let is_left_out = ours.is_some_and(|own| LinkSpec::left_out(&options.links).contains(&own.interface));
        return Ok((stream, route, is_left_out));
    }
    let routes = by_hand::first_routes(&options.links, &locals, &hosts, port);
    match dial::first_of(routes, &options.sockets).await {
        Ok((stream, route)) => Ok((stream, route, false)),
        Err(by_hand) => match dial::first_of(hosts.into_iter().map(Route::to).collect(), &options.sockets).await {
            Ok((stream, route)) => Ok((stream, route, true)),
            Err(mut unreached) => {
                unreached.tried.splice(0..0, by_hand.tried);
                Err(unreached)
            }
        },
    }
}

/// What the first connection is called, and how to dial it again: over the interface that it took.
pub(super) fn first_candidate(local: SocketAddr, peer: SocketAddr, route: Route) -> Candidate {
    let locals = discover::locals().unwrap_or_default();
    match discover::interface_of(&locals, local.ip()) {
        Some(own) if !own.ip.is_loopback() => {
            let again = Route { device: Some(own.interface.clone()), local: Some(own.ip), remote: route.remote };
            Candidate { name: own.interface.clone(), routes: vec![again] }
        }
        Some(own) => Candidate { name: own.interface.clone(), routes: vec![route] },
        None => Candidate { name: discover::canonical(peer.ip()).to_string(), routes: vec![route] },
    }
}
