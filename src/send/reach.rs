//! Reaching the receiver and agreeing with it: the first connection, Hello and Welcome.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::error::{Error, ExitCode, escape, escape_words};
use crate::ids::SessionId;
use crate::limits;
use crate::link::discover::{self, Candidate};
use crate::link::handshake::{self, HandshakeError};
use crate::link::socket::Route;
use crate::link::{announce, describe_io, dial};
use crate::options::{Find, LinkSpec, SendOptions};
use crate::report::Found;
use crate::wire::{self, Address, Handshake, Layout, Offer, WireError};

/// The first connection, after Welcome.
pub(super) struct Agreed {
    pub(super) stream: TcpStream,
    /// The link's name and where to dial it again.
    pub(super) candidate: Candidate,
    pub(super) peer: SocketAddr,
    /// The peer was reached by another way than `--link` allows; the connection must carry no chunks.
    pub(super) control_only: bool,
    pub(super) layout: Layout,
    pub(super) window_chunks: u32,
    pub(super) addresses: Vec<Address>,
}

/// Reach the receiver and agree with it.
pub(super) async fn agree(options: &SendOptions, session: SessionId, offer: Offer) -> Result<Agreed, Error> {
    let key = wire::PUBLISHED_KEY;
    interfaces_exist(&options.links)?;
    let (target, found) = match &options.find {
        None => (format!("{}:{}", escape(options.host.as_bytes()), options.port), None),
        Some(find) => {
            let found = choose(options, find).await?;
            (format!("{} ({})", escape(&found.host), found.addrs[0]), Some(found.addrs))
        }
    };
    let deadline = Instant::now() + limits::REFUSED_RETRY;
    let (mut stream, route, control_only) = loop {
        match reach(options, found.as_deref()).await {
            Ok(reached) => break reached,
            Err(unreached) if unreached.refused > 0 && Instant::now() < deadline => {
                sleep(limits::REDIAL_MIN * 2).await;
            }
            Err(unreached) => {
                let tried: Vec<String> = unreached.tried.iter().map(|(addr, why)| format!("{addr}: {why}")).collect();
                return Err(Error::Network(format!("cannot reach {target}: {}", tried.join("; "))));
            }
        }
    };
    let lost = |e: HandshakeError| match e {
        HandshakeError::Wire(e @ WireError::Version { .. }) => Error::Refused(format!("{target}: {e}")),
        e => Error::Network(format!("no agreement with {target}: {e}")),
    };
    handshake::say(&mut stream, &Handshake::Hello { session, offer }, &key).await.map_err(lost)?;
    let answer = handshake::hear(&mut stream, &key).await.map_err(lost)?;
    match answer {
        Handshake::Welcome { session: theirs, layout, window_chunks, addresses } if theirs == session => {
            let peer = stream.peer_addr().map_err(|e| lost(e.into()))?;
            let local = stream.local_addr().map_err(|e| lost(e.into()))?;
            Ok(Agreed {
                candidate: first_candidate(local, peer, route),
                stream,
                peer,
                control_only,
                layout,
                window_chunks,
                addresses,
            })
        }
        Handshake::Refuse { code, reason } => {
            let reason = escape_words(&reason);
            Err(match code {
                ExitCode::Refused => Error::Refused(format!("by {target}: {reason}")),
                code => Error::Peer { code, reason },
            })
        }
        _ => Err(Error::Network(format!("no agreement with {target}: its answer to Hello was not Welcome"))),
    }
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
    let locals = discover::locals().unwrap_or_default();
    for link in links {
        let LinkSpec::Interface(name) = link else { continue };
        if !locals.iter().any(|l| l.interface == *name) {
            let mut known: Vec<&str> = locals.iter().map(|l| l.interface.as_str()).collect();
            known.sort_unstable();
            known.dedup();
            let (name, known) = (escape(name.as_bytes()), known.join(", "));
            return Err(Error::Usage(format!(
                "--link {name}: no such interface here has an address (there are {known})"
            )));
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
    if options.links.is_empty() {
        let routes = hosts.into_iter().map(Route::to).collect();
        let (stream, route) = dial::first_of(routes).await?;
        return Ok((stream, route, false));
    }
    let locals = discover::locals().unwrap_or_default();
    let routes = dial::routes_by_hand(&options.links, &locals, &hosts, port);
    match dial::first_of(routes).await {
        Ok((stream, route)) => Ok((stream, route, false)),
        Err(by_hand) => match dial::first_of(hosts.into_iter().map(Route::to).collect()).await {
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
