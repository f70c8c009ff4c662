//! Which links there are, and what each can carry: the stages and links of a real transfer, with a source of worthless
//! bytes and a receiver that throws them away. All links are measured together, as a transfer would use them, and then
//! each alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::links::Links;
use super::reach::{Agreed, agree, agree_over};
use super::{Source, deliver};
use crate::error::Error;
use crate::ids::SessionId;
use crate::limits;
use crate::link::discover::{Candidate, NoLink};
use crate::link::interfaces;
pub use crate::link::interfaces::{Interface, Kind};
use crate::link::send_session::SendSession;
use crate::link::watch::Interrupts;
use crate::link::{describe_io, dial};
use crate::options::{Compress, LinkSpec, LinksOptions, SendOptions};
use crate::stats::Stats;
use crate::sys::{self, TcpState};
use crate::wire::Offer;

/// What there is.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Every interface, and what becomes of it.
    pub interfaces: Vec<(Interface, Use)>,
    /// Links that are not named after an interface of ours.
    pub others: Vec<(String, Carries)>,
    /// All links together, if there was a receiver: bytes a second.
    pub together: Option<f64>,
}

/// What becomes of an interface.
#[derive(Clone, Debug, PartialEq)]
pub enum Use {
    /// It could be a link; without a receiver there is no more to say.
    Possible,
    /// It is no link, and why.
    No(String),
    /// It is a link.
    Link(Carries),
}

/// What a link carries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carries {
    /// Alone, or why not.
    pub alone: Option<Result<Measured, String>>,
    /// Beside the others, bytes a second.
    pub together: f64,
}

/// One link's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Bytes a second that arrived.
    pub rate: f64,
    /// The round trip under load, and the shortest seen.
    pub rtt: Duration,
    /// See `rtt`.
    pub min_rtt: Duration,
    /// Packets that were sent again.
    pub resent: u64,
    /// The largest packet that the way is said to carry, bytes.
    pub mtu: u32,
}

/// Look at the interfaces, and with a receiver measure the links to it. `tell` hears which link is being measured.
///
/// # Errors
/// The receiver cannot be reached or does not want to; the interfaces cannot be listed. A single link that fails is no
/// error.
pub fn run(options: &LinksOptions, tell: &dyn Fn(&str)) -> Result<Survey, Error> {
    let interfaces =
        interfaces::list().map_err(|e| Error::Bug(format!("cannot list interfaces: {}", describe_io(&e))))?;
    if !options.measure {
        let left_out = LinkSpec::left_out(&options.send.links);
        let of = |i: Interface| {
            let objection = i.objection().map(|o| o.to_string());
            let named = left_out.contains(&i.name).then(|| NoLink::LeftOut.to_string());
            let what = named.or(objection).map_or(Use::Possible, Use::No);
            (i, what)
        };
        return Ok(Survey { interfaces: interfaces.into_iter().map(of).collect(), ..Survey::default() });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Bug(format!("cannot start the network runtime: {e}")))?;
    let outcome = LocalSet::new().block_on(&runtime, survey(options, interfaces, tell));
    runtime.shutdown_background();
    outcome
}

async fn survey(options: &LinksOptions, interfaces: Vec<Interface>, tell: &dyn Fn(&str)) -> Result<Survey, Error> {
    let mut interrupts =
        Interrupts::listen().map_err(|e| Error::Bug(format!("cannot listen for signals: {}", describe_io(&e))))?;
    let send = SendOptions { compress: Compress::Off, ..options.send.clone() };
    tell("all links together");
    let session = fresh_session()?;
    let agreed = tokio::select! {
        agreed = agree(&send, session, Offer::Measure) => agreed?,
        signal = interrupts.next() => return Err(Error::Interrupted(format!("{signal} before the receiver was reached"))),
    };
    let links = Links::find(&send, interfaces, &agreed);
    let together = measure(&send, session, agreed, options.time, &mut interrupts).await?;
    let total = together.values().map(|m| m.rate).sum();
    let mut carries: BTreeMap<String, Carries> = BTreeMap::new();
    for link in links.candidates() {
        tell(&link.name);
        let session = fresh_session()?;
        let agreed = tokio::select! {
            agreed = agree_over(link, &send, session, Offer::Measure) => agreed,
            signal = interrupts.next() => return Err(Error::Interrupted(format!("{signal} while measuring"))),
        };
        let alone = match agreed {
            Ok(agreed) => {
                let measured = measure(&send, session, agreed, options.time, &mut interrupts).await?;
                measured.get(&link.name).copied().ok_or_else(|| "nothing arrived".to_owned())
            }
            Err(Error::Network(why)) => Err(why),
            Err(error) => return Err(error),
        };
        let together = together.get(&link.name).map_or(0.0, |m| m.rate);
        carries.insert(link.name.clone(), Carries { alone: Some(alone), together });
    }
    let mut used = |found: Result<Candidate, NoLink>| match found {
        Ok(link) => Use::Link(carries.remove(&link.name).unwrap_or_default()),
        Err(why) => Use::No(why.to_string()),
    };
    let interfaces = links.interfaces.into_iter().map(|(interface, found)| (interface, used(found))).collect();
    Ok(Survey { interfaces, others: carries.into_iter().collect(), together: Some(total) })
}

fn fresh_session() -> Result<SessionId, Error> {
    Ok(SessionId(dial::fresh_nonce().map_err(|e| Error::Bug(format!("no random bytes: {e}")))?))
}

/// Run a session for a while; what each of its links carried.
async fn measure(
    options: &SendOptions,
    session: SessionId,
    agreed: Agreed,
    time: Duration,
    interrupts: &mut Interrupts,
) -> Result<BTreeMap<String, Measured>, Error> {
    let enough = Arc::new(AtomicBool::new(false));
    let measured = Arc::new(Mutex::new(BTreeMap::new()));
    let stats = Arc::new(Stats::default());
    let begun = {
        let (enough, measured) = (enough.clone(), measured.clone());
        move |session: &Arc<SendSession>| {
            let session = session.clone();
            tokio::task::spawn_local(async move {
                let found = watch(&session, time).await;
                *measured.lock().expect("no thread panics while it holds this lock") = found;
                // what is still on its way is of no interest, and could take long
                enough.store(true, Relaxed);
                session.end_early();
            });
        }
    };
    let outcome =
        deliver(options, stats, Source::Measure(enough.clone()), None, session, agreed, interrupts, begun).await;
    match outcome {
        // ended by ourselves
        Err(_) if enough.load(Relaxed) => {}
        Err(error) => return Err(error),
        Ok(_) => return Err(Error::Bug("a measurement came to an end of its own".into())),
    }
    Ok(std::mem::take(&mut *measured.lock().expect("no thread panics while it holds this lock")))
}

/// Let the links come up to speed, and see what they carry from then on.
async fn watch(session: &SendSession, time: Duration) -> BTreeMap<String, Measured> {
    let deadline = Instant::now() + limits::CONNECT_TIMEOUT;
    while !session.stats.links().iter().any(|l| l.wire_bytes.load(Relaxed) > 0) && Instant::now() < deadline {
        sleep(limits::SETTLE).await;
    }
    sleep(limits::MEASURE_WARM_UP).await;
    let (before, began) = (look(session), Instant::now());
    sleep(time).await;
    let (after, took) = (look(session), began.elapsed().as_secs_f64());
    let mut found: BTreeMap<String, Measured> = BTreeMap::new();
    for (id, (name, now)) in after {
        let Some(bytes) = now.acked else { continue };
        // a connection that came up meanwhile had nothing before
        let (before, resent_before) =
            before.get(&id).map_or((0, 0), |(_, then)| (then.acked.unwrap_or(0), then.resent));
        let rate = bytes.saturating_sub(before) as f64 / took;
        let resent = u64::from(now.resent - resent_before.min(now.resent));
        let (rtt, min_rtt) = (now.rtt, now.min_rtt.unwrap_or(now.rtt));
        found
            .entry(name)
            .and_modify(|link| {
                link.rate += rate;
                link.resent += resent;
                link.min_rtt = link.min_rtt.min(min_rtt);
            })
            .or_insert(Measured { rate, rtt, min_rtt, resent, mtu: now.pmtu });
    }
    found
}

/// Every connection by id, with its link's name and what TCP says of it.
fn look(session: &SendSession) -> BTreeMap<u32, (String, TcpState)> {
    let connections = session.by_link.lock().expect("no thread panics while it holds this lock");
    let state = |c: &crate::link::send_session::Connection| {
        Some((c.link.0, (c.stats.name.clone(), sys::tcp_state(&c.stream).ok()?)))
    };
    connections.iter().filter_map(state).collect()
}
