//! A name to a first connection, and one place to dial after the other, again after a loss.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::discover::Candidate;
use super::handshake::{self, HandshakeError};
use super::send_link::{self, Leave};
use super::send_session::SendSession;
use super::socket::{self, Route};
use super::{Ended, LinkEvent, Opened, describe_io, mtu};
use crate::error::ExitCode;
use crate::ids::LinkId;
use crate::limits;
use crate::options::SocketOptions;
use crate::wire::{Control, Handshake};

/// Why no first connection could be made: each address that was tried, with its reason.
#[derive(Debug)]
pub struct Unreached {
    /// In words, one address after the other.
    pub tried: Vec<(String, String)>,
    /// How many of them refused, so that a listener may still come up.
    pub refused: usize,
}

impl Unreached {
    /// Every place with its reason.
    pub fn reasons(&self) -> String {
        let tried: Vec<String> = self.tried.iter().map(|(addr, why)| format!("{addr}: {why}")).collect();
        tried.join("; ")
    }

    /// What it means for a link that was to lead along these ways. A link has a name, so a single way needs none.
    fn ended(self) -> Ended {
        let reason = match &self.tried[..] {
            [(_, why)] => why.clone(),
            tried => tried.iter().map(|(addr, why)| format!("{addr}: {why}")).collect::<Vec<_>>().join(", "),
        };
        if self.refused == self.tried.len() { Ended::by_peer(reason) } else { Ended::lost(reason) }
    }
}

/// Connect to the first of `routes` that answers. They are started [`limits::CONNECT_STAGGER`] apart, the next at once
/// when one fails.
pub async fn first_of(routes: Vec<Route>, options: &SocketOptions) -> Result<(TcpStream, Route), Unreached> {
    first_with(routes, options, None).await
}

/// The same with segments of at most `mss` bytes.
async fn first_with(
    routes: Vec<Route>,
    options: &SocketOptions,
    mss: Option<u32>,
) -> Result<(TcpStream, Route), Unreached> {
    let mut attempts = JoinSet::new();
    let mut waiting = routes.into_iter();
    let mut failed = Unreached { tried: Vec::new(), refused: 0 };
    loop {
        let next = waiting.next();
        let more = next.is_some();
        if let Some(route) = next {
            let options = options.clone();
            attempts.spawn(async move { (socket::connect(&route, &options, mss).await, route) });
        } else if attempts.is_empty() {
            return Err(failed);
        }
        let stagger = Instant::now() + limits::CONNECT_STAGGER;
        tokio::select! {
            Some(done) = attempts.join_next() => match done {
                Ok((Ok(stream), route)) => return Ok((stream, route)),
                Ok((Err(e), route)) => {
                    failed.refused += usize::from(e.kind() == std::io::ErrorKind::ConnectionRefused);
                    failed.tried.push((tried_name(&route), describe_io(&e)));
                }
                Err(e) => failed.tried.push(("?".into(), e.to_string())),
            },
            () = sleep_until(stagger), if more => {}
        }
    }
}

fn tried_name(route: &Route) -> String {
    match &route.device {
        Some(device) => format!("{} over {device}", route.remote),
        None => route.remote.to_string(),
    }
}

/// All addresses of `host`, in the system's order.
pub async fn resolve(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for addr in tokio::net::lookup_host((host, port)).await? {
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    Ok(addrs)
}

/// Hands out link ids; 0 is the first connection's.
#[derive(Default)]
pub struct LinkIds {
    last: AtomicU32,
}

impl LinkIds {
    /// The next id.
    pub fn next(&self) -> LinkId {
        LinkId(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Keep one connection of `candidate` up for as long as the session lives: work `first` if it is given, and dial again,
/// with backoff, whenever the link is down. Returns only when the link is given up for good, or the connection was
/// asked to leave.
pub async fn keep_up(
    session: Arc<SendSession>,
    ids: Arc<LinkIds>,
    turns: Arc<Semaphore>,
    candidate: Candidate,
    first: Option<Opened>,
    leave: Leave,
) {
    let stats = session.stats.link(&candidate.name);
    let mut pause = limits::REDIAL_MIN;
    let mut connection = first;
    let interface = candidate.routes.first().and_then(|r| r.device.as_deref());
    let mut damaged = 0;
    let mut dial = Dial::default();
    loop {
        if let Some(Opened { link, stream, keys }) = connection.take() {
            let began = Instant::now();
            let stream = Arc::new(stream);
            let small = Some(mtu::smaller(dial.mss));
            let further = Cell::new(None);
            let hole = async {
                let connect = async || {
                    let connected = first_with(same_way(&stream, &candidate.routes), &session.sockets, small).await;
                    connected.ok().map(|(stream, _)| stream)
                };
                let (ended, stream) = mtu::until_black_hole(&stream, connect).await;
                further.set(Some(stream));
                ended
            };
            let mut ended = send_link::run(&session, link, stats.clone(), &stream, keys, false, &leave, hole).await;
            dial.connected = further.take();
            if dial.connected.is_some() {
                dial.mss = small;
                socket::discard(&stream);
            } else if ended.is_silence() {
                dial.silent = Some(stream);
            }
            damaged = if ended.damaged { damaged + 1 } else { 0 };
            if damaged >= limits::CORRUPT_IN_A_ROW_MAX {
                ended = Ended::damaged_for_good("it damaged too many frames in a row");
                session.tell(LinkEvent::Unreachable { stats: stats.clone(), ended: ended.clone() });
            }
            if ended.for_good || session.is_over() || leave.asked() {
                return;
            }
            // whoever takes the place of another comes no sooner than the peer knows that the other is gone
            if began.elapsed() >= limits::LIVED && dial.connected.is_none() {
                pause = limits::REDIAL_MIN;
            } else {
                pause = rest(&session, pause, interface).await;
            }
        }
        if session.is_over() || leave.asked() {
            return;
        }
        if session.cables.is_pulled(interface) {
            // the next cable may lead elsewhere
            dial.mss = None;
        }
        let joined = tokio::select! {
            joined = join(&session, ids.next(), &turns, &candidate.routes, &mut dial) => joined,
            // what was sent while there was no cable will not be answered
            () = session.cables.until_plugged(interface) => continue,
        };
        match joined {
            Ok(joined) => connection = Some(joined),
            Err(ended) => {
                let for_good = ended.for_good;
                let is_pulled = session.cables.is_pulled(interface) && !for_good;
                let ended = if is_pulled { Ended::lost("no carrier") } else { ended };
                session.tell(LinkEvent::Unreachable { stats: stats.clone(), ended });
                if for_good {
                    return;
                }
                pause = rest(&session, pause, interface).await;
            }
        }
    }
}

/// Wait before dialling again, but no longer than until the cable is back; returns how long to wait the next time.
async fn rest(session: &SendSession, pause: Duration, interface: Option<&str>) -> Duration {
    tokio::select! {
        () = sleep(pause) => (pause * 2).min(limits::REDIAL_MAX),
        () = session.cables.until_plugged(interface) => limits::REDIAL_MIN,
    }
}

/// What a link knows when it dials again.
#[derive(Default)]
struct Dial {
    /// The largest segment, where larger ones do not get through.
    mss: Option<u32>,
    /// A connection that came about already.
    connected: Option<TcpStream>,
    /// The one before, which was given up for its silence. It stays open until the peer can be reached again: if only
    /// what the peer sends is lost, closing could tell it that we have left (older kernels send a FIN whatever is
    /// unacknowledged), and it would not wait for us.
    silent: Option<Arc<TcpStream>>,
}

/// Those of `routes` that `stream` may have taken.
fn same_way(stream: &TcpStream, routes: &[Route]) -> Vec<Route> {
    let (Ok(local), Ok(remote)) = (stream.local_addr(), stream.peer_addr()) else { return Vec::new() };
    routes.iter().filter(|r| r.joins(local.ip(), remote.ip())).cloned().collect()
}

async fn join(
    session: &SendSession,
    link: LinkId,
    turns: &Semaphore,
    routes: &[Route],
    dial: &mut Dial,
) -> Result<Opened, Ended> {
    let _turn = turns.acquire().await;
    let mut stream = match dial.connected.take() {
        Some(stream) => stream,
        None => first_with(routes.to_vec(), &session.sockets, dial.mss).await.map_err(Unreached::ended)?.0,
    };
    if let Some(silent) = dial.silent.take() {
        socket::discard(&silent);
    }
    let nonce = fresh_nonce().map_err(|e| Ended::lost(e.to_string()))?;
    let message = Handshake::Join { session: session.session, link, nonce };
    let exchange = async {
        let joins = session.keys.joins();
        handshake::say(&mut stream, &message, &joins).await?;
        handshake::hear(&mut stream, |of| (of == session.session).then_some(joins)).await
    };
    match exchange.await {
        Ok(Handshake::Joined { session: theirs, link: their_link, nonce: their_nonce, own })
            if theirs == session.session && their_link == link && their_nonce == nonce =>
        {
            Ok(Opened { link, stream, keys: session.keys.dialer(link, [nonce, own]) })
        }
        Ok(Handshake::Refuse { code, reason }) => {
            let text = crate::error::escape_words(&reason);
            Err(match code {
                // about this link
                ExitCode::Network => Ended::for_good(text),
                ExitCode::Partial => Ended::damaged_for_good(text),
                // about the session
                code => {
                    session.tell(LinkEvent::Control(Control::Abort { code, reason }));
                    Ended::for_good(text)
                }
            })
        }
        Ok(_) => Err(Ended::lost("the answer to Join was not Joined")),
        Err(HandshakeError::Io(e)) => Err(Ended::from_io(&e)),
        Err(e) => Err(Ended::lost(e.to_string())),
    }
}

/// 16 bytes from the system's random source.
pub fn fresh_nonce() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let n = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // the kernel gives requests of up to 256 bytes whole
    assert_eq!(n, bytes.len());
    Ok(bytes)
}
