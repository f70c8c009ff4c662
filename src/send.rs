//! The sending conductor: builds the stages, owns the session, waits, reports. Mirrors [`crate::recv`].
//!
//! 1. Look at every source before anything else, so that a typing error costs nothing.
//! 2. Reach the receiver and agree on what is sent (Hello, Welcome).
//! 3. Start the stages: the source's own threads plan chunks in order; `workers` threads fill and seal them in any
//!    order and hand them to the flow; links on this thread's runtime take them from there.
//! 4. Dial the further links and keep each up.
//! 5. Wait for the first of: Commit, a failure on either side, a signal, all links lost.
//! 6. Say so on every link (Bye or Abort), give the peer [`limits::DRAIN`] to close, and report.

mod compress;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use self::compress::Compression;
use crate::chunk::{FileDigest, Ordered, Pool, TransferDigest};
use crate::error::{Error, ExitCode, escape, escape_words};
use crate::flow::SendFlow;
use crate::ids::{Digest, LinkId, SessionId};
use crate::limits;
use crate::link::cables::{self, Cables};
use crate::link::dial::{self, LinkIds};
use crate::link::discover::{self, Candidate};
use crate::link::handshake::{self, HandshakeError};
use crate::link::send_link::{self, SendSession};
use crate::link::socket::Route;
use crate::link::watch::{self, Interrupts, Watch};
use crate::link::{Alarm, Clock, Ended, LinkEvent, describe_io};
use crate::manifest::{Draft, Pen};
use crate::options::{LinkSpec, Schedule, SendOptions, Sources};
use crate::report::{Event, ManifestReport, Report};
use crate::source::{self, ChunkLines, FillScratch, Filled, NoteSink, Planned, Recorder, SourceEnd};
use crate::stats::{Lap, LinkStats, Phase, Stage, Stats};
use crate::wire::{self, Address, Commit, Control, Handshake, Layout, Offer, WireError};

/// Send what `options` say. Returns once everything is durable and verified on the receiver, or with the reason why
/// not; `stats` can be watched meanwhile.
///
/// # Errors
/// Every variant of [`Error`]; both ends end with the same exit code wherever they can still tell each other.
pub fn run(options: SendOptions, stats: Arc<Stats>) -> Result<Report, Error> {
    let mut source = Source::open(&options.sources)?;
    let manifest = match &options.manifest {
        Some(path) => Some(Draft::create(path, options.sources.paths())?),
        None => None,
    };
    if manifest.is_some() {
        source = source.recorded();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Bug(format!("cannot start the network runtime: {e}")))?;
    let outcome = LocalSet::new().block_on(&runtime, converse(options, stats, source, manifest));
    runtime.shutdown_background();
    outcome
}

/// What is sent, looked at and not yet begun.
enum Source {
    Stdin,
    Tree(source::Tree),
}

impl Source {
    fn open(sources: &Sources) -> Result<Source, Error> {
        match sources {
            Sources::Stdin => Ok(Source::Stdin),
            Sources::Paths(paths) => Ok(Source::Tree(source::open_tree(paths)?)),
        }
    }

    fn recorded(self) -> Source {
        match self {
            Source::Stdin => Source::Stdin,
            Source::Tree(tree) => Source::Tree(tree.recorded()),
        }
    }

    fn offer(&self) -> Offer {
        match self {
            Source::Stdin => Offer::Stream,
            Source::Tree(tree) => tree.offer(),
        }
    }
}

/// The first connection, after Welcome.
struct Agreed {
    stream: TcpStream,
    /// The link's name and where to dial it again.
    candidate: Candidate,
    peer: SocketAddr,
    /// The peer was reached by another way than `--link` allows; the connection must carry no chunks.
    control_only: bool,
    layout: Layout,
    window_chunks: u32,
    addresses: Vec<Address>,
}

async fn converse(
    options: SendOptions,
    stats: Arc<Stats>,
    source: Source,
    manifest: Option<(Draft, Pen)>,
) -> Result<Report, Error> {
    let (draft, pen) = manifest.unzip();
    let mut interrupts =
        Interrupts::listen().map_err(|e| Error::Bug(format!("cannot listen for signals: {}", describe_io(&e))))?;
    let session = SessionId(dial::fresh_nonce().map_err(|e| Error::Bug(format!("no random bytes: {e}")))?);
    let agreed = tokio::select! {
        agreed = agree(&options, session, source.offer()) => agreed?,
        signal = interrupts.next() => return Err(Error::Interrupted(format!("{signal} before the receiver was reached"))),
    };
    let began = Instant::now();
    (options.observer)(Event::Connected { peer: agreed.peer });
    stats.begin();
    stats.enter(Phase::Moving);

    let (events, mut inbox) = mpsc::unbounded_channel();
    let session = Arc::new(SendSession {
        session,
        clock: Clock::start(),
        flow: Mutex::new(SendFlow::new(session, options.schedule)),
        strict: options.schedule == Schedule::RoundRobin,
        key: wire::PUBLISHED_KEY,
        cables: Cables::watched(),
        bells: Default::default(),
        last_words: Default::default(),
        events,
        stats: stats.clone(),
        lens: Mutex::new((0, VecDeque::new())),
        by_link: Default::default(),
    });
    let window = options.window_chunks.min(agreed.window_chunks) as usize;
    let workers = thread::available_parallelism().map_or(2, |n| n.get()).max(2);
    // one more for each worker: sealing swaps the content's buffer for a scratch buffer
    let stages = match Stages::start(source, pen, &agreed, &options, session.clone(), window, workers) {
        Ok(stages) => stages,
        Err(error) => {
            abandon(agreed.stream, &error).await;
            return Err(error);
        }
    };
    let mut conductor = Conductor {
        options: &options,
        session: &session,
        watch: Watch::new(options.timeout, Instant::now()),
        fleet: Fleet::launch(&session, &options, agreed),
    };
    let outcome = conductor.wait(&mut inbox, stages.totals, &mut interrupts).await;
    let outcome = match outcome {
        Ok((commit, totals)) => {
            session.last_words().bye = true;
            stats.enter(Phase::Done);
            Ok((commit, totals))
        }
        Err(error) => {
            if !matches!(error, Error::Peer { .. }) {
                let reason = error.reason();
                session.last_words().abort = Some((error.exit_code(), reason));
            }
            Err(error)
        }
    };
    stages.pool.close();
    session.bells.ring_all();
    let elapsed = began.elapsed();
    if session.is_over() {
        let _ = timeout(limits::DRAIN, conductor.until_told(&mut inbox)).await;
    }
    let (commit, mut totals) = outcome?;
    // only now: there is no manifest of what did not arrive
    let manifest = draft.zip(totals.manifest.take()).map(|(draft, pen)| draft.finish(pen));
    Ok(report(commit, totals, manifest, &session, elapsed))
}

/// End a session that never began to work, so that the receiver does not wait for it.
async fn abandon(mut stream: TcpStream, error: &Error) {
    let abort = Control::Abort { code: error.exit_code(), reason: error.reason() };
    let mut bytes = Vec::new();
    wire::encode_control(&abort, &wire::PUBLISHED_KEY, &mut bytes);
    // If it cannot be told, the connection's end will have to do.
    let told = async {
        stream.write_all(&bytes).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    let _ = timeout(limits::DRAIN, told).await;
}

/// Reach the receiver and agree with it.
async fn agree(options: &SendOptions, session: SessionId, offer: Offer) -> Result<Agreed, Error> {
    let key = wire::PUBLISHED_KEY;
    interfaces_exist(&options.links)?;
    let target = format!("{}:{}", escape(options.host.as_bytes()), options.port);
    let deadline = Instant::now() + limits::REFUSED_RETRY;
    let (mut stream, route, control_only) = loop {
        match reach(options).await {
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

/// An interface that `--link` names and that is not there, or has no address, is a typing error.
fn interfaces_exist(links: &[LinkSpec]) -> Result<(), Error> {
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
async fn reach(options: &SendOptions) -> Result<(TcpStream, Route, bool), dial::Unreached> {
    let hosts = match dial::resolve(&options.host, options.port).await {
        Ok(hosts) => hosts,
        Err(e) => {
            let tried = vec![(escape(options.host.as_bytes()), describe_io(&e))];
            return Err(dial::Unreached { tried, refused: 0 });
        }
    };
    if options.links.is_empty() {
        let routes = hosts.into_iter().map(Route::to).collect();
        let (stream, route) = dial::first_of(routes).await?;
        return Ok((stream, route, false));
    }
    let locals = discover::locals().unwrap_or_default();
    let routes = dial::routes_by_hand(&options.links, &locals, &hosts, options.port);
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
fn first_candidate(local: SocketAddr, peer: SocketAddr, route: Route) -> Candidate {
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

/// All links of the session, those that are up and those that are dialled again and again.
struct Fleet {
    session: Arc<SendSession>,
    ids: Arc<LinkIds>,
    /// Connections on each link.
    streams: u16,
    /// What is kept up, as pairs of our address and the receiver's.
    kept: Vec<(IpAddr, IpAddr)>,
    /// A first connection that is none of the links by hand, so that it carries no chunks.
    control: Option<LinkId>,
    /// Links by hand are all there will be.
    by_hand: bool,
    /// Where the receiver can be reached, as it says itself.
    addresses: Vec<Address>,
}

impl Fleet {
    /// Start every link: the first connection, the pairs it revealed or `--link` named, each as often as `--streams`
    /// says.
    fn launch(session: &Arc<SendSession>, options: &SendOptions, agreed: Agreed) -> Fleet {
        let mut fleet = Fleet {
            session: session.clone(),
            ids: Arc::new(LinkIds::default()),
            streams: options.streams.unwrap_or(1).max(1),
            kept: Vec::new(),
            by_hand: !options.links.is_empty(),
            addresses: agreed.addresses,
            control: None,
        };
        let ours = agreed.stream.local_addr().map_or(agreed.peer.ip(), |a| a.ip());
        let theirs = agreed.peer.ip();
        let mut connection = Some((LinkId(0), agreed.stream));
        if fleet.by_hand {
            let locals = discover::locals().unwrap_or_default();
            let host = agreed.candidate.routes[0].remote;
            for candidate in dial::candidates_by_hand(&options.links, &locals, &fleet.addresses, host) {
                let is_first = !agreed.control_only && candidate.routes.iter().any(|r| r.joins(ours, theirs));
                let first = if is_first { connection.take() } else { None };
                fleet.keep(candidate, first);
            }
        } else {
            fleet.kept.push((ours, theirs));
            fleet.keep(agreed.candidate.clone(), connection.take());
            fleet.grow();
        }
        if let Some((link, stream)) = connection {
            let session = session.clone();
            // it carries nothing worth a line in a report
            let stats = Arc::new(LinkStats { name: agreed.candidate.name, ..LinkStats::default() });
            fleet.control = Some(link);
            tokio::task::spawn_local(async move { send_link::run(&session, link, stats, stream, true).await });
        }
        fleet
    }

    /// Add a link for every pair of interfaces that has none.
    fn grow(&mut self) {
        if self.by_hand {
            return;
        }
        let locals = discover::locals().unwrap_or_default();
        for candidate in discover::pair(&locals, &self.addresses, &self.kept) {
            let pairs = candidate.routes.iter().filter_map(|r| Some((r.local?, r.remote.ip())));
            self.kept.extend(pairs);
            self.keep(candidate, None);
        }
    }

    fn keep(&mut self, candidate: Candidate, mut first: Option<(LinkId, TcpStream)>) {
        for _ in 0..self.streams {
            let (session, ids) = (self.session.clone(), self.ids.clone());
            tokio::task::spawn_local(dial::keep_up(session, ids, candidate.clone(), first.take()));
        }
    }
}

/// The stages' threads.
struct Stages {
    pool: Arc<Pool>,
    /// What the source came to, once every chunk is sealed.
    totals: oneshot::Receiver<Result<Totals, Error>>,
}

/// What the source came to.
struct Totals {
    end: SourceEnd,
    notes: Arc<NoteSink>,
    transfer_digest: Digest,
    stream_digest: Option<Digest>,
    is_stdin: bool,
    /// The manifest, written but for its end.
    manifest: Option<Pen>,
}

/// Digests of chunks sealed in any order, folded in theirs.
struct Folded {
    order: Ordered<(wire::ChunkKind, u32, Digest, Option<Box<ChunkLines>>)>,
    transfer: TransferDigest,
    stream: Option<FileDigest>,
    recorder: Option<Recorder>,
}

impl Stages {
    fn start(
        source: Source,
        manifest: Option<Pen>,
        agreed: &Agreed,
        options: &SendOptions,
        session: Arc<SendSession>,
        window: usize,
        workers: usize,
    ) -> Result<Stages, Error> {
        let pool = Pool::new(window, limits::CHUNK_LEN);
        let notes = Arc::new(NoteSink::default());
        let stats = session.stats.clone();
        let is_stdin = matches!(source, Source::Stdin);
        let name = match source.offer() {
            Offer::File { name, .. } => Some(name),
            Offer::Stream | Offer::Tree { .. } => None,
        };
        let running = match source {
            Source::Stdin => source::start_stdin(pool.clone(), stats.clone(), notes.clone()),
            Source::Tree(tree) => {
                source::start(tree, agreed.layout, pool.clone(), stats.clone(), notes.clone(), workers)
            }
        };
        let folded = Arc::new(Mutex::new(Folded {
            order: Ordered::new(),
            transfer: TransferDigest::new(),
            stream: (agreed.layout == Layout::Raw).then(FileDigest::new),
            recorder: manifest.map(Recorder::new),
        }));
        let compression = Arc::new(Compression::new(options.compress, workers, window));
        let threads: Vec<_> = (0..workers)
            .map(|i| {
                let (planned, session, folded) = (running.planned.clone(), session.clone(), folded.clone());
                let compression = compression.clone();
                thread::Builder::new()
                    .name(format!("fill-{i}"))
                    .spawn(move || fill_and_seal(planned, &compression, &session, &folded))
            })
            .collect::<Result<_, _>>()
            .map_err(|e| Error::Bug(format!("cannot start a thread: {}", describe_io(&e))))?;
        let (tell, totals) = oneshot::channel();
        let supervise = move || {
            let source = running.join();
            let workers_ended = threads.into_iter().all(|t| t.join().is_ok());
            let outcome = match source {
                Ok(end) if workers_ended => {
                    session.flow().ended(end.chunks);
                    session.bells.ring_all();
                    let mut folded = folded.lock().expect("its users have ended");
                    let stream_digest = folded.stream.take().and_then(FileDigest::finish);
                    let transfer_digest = folded.transfer.finish();
                    let stream = stream_digest.map(|digest| (name.as_deref(), digest));
                    let manifest = folded.recorder.take().map(|recorder| recorder.finish(stream));
                    Ok(Totals { end, notes, transfer_digest, stream_digest, is_stdin, manifest })
                }
                Ok(_) => Err(Error::Bug("a thread of the sender panicked".into())),
                Err(error) => Err(error),
            };
            let _ = tell.send(outcome);
        };
        thread::Builder::new()
            .name("source-end".into())
            .spawn(supervise)
            .map_err(|e| Error::Bug(format!("cannot start a thread: {}", describe_io(&e))))?;
        Ok(Stages { pool, totals })
    }
}

fn fill_and_seal(
    planned: crossbeam_channel::Receiver<Planned>,
    compression: &Compression,
    session: &SendSession,
    folded: &Mutex<Folded>,
) {
    let _alarm = Alarm::new(&session.events);
    let mut scratch = FillScratch::default();
    let mut sealer = compression.sealer();
    let [fill, hash, compress] = [Stage::Fill, Stage::Hash, Stage::Compress].map(|stage| session.stats.watch(stage));
    let mut lap = Lap::start();
    for planned in planned {
        lap.book(&fill.wait_in);
        let filled = planned.fill(&mut scratch);
        lap.book(&fill.busy);
        let Filled { seq, kind, len, buf, lines } = filled;
        let (sealed, compressed_for) = compression.seal(session, &mut sealer, seq, kind, len, buf);
        lap.split(&hash.busy, compressed_for, &compress.busy);
        let head = sealed.head;
        session.stats.payload_bytes.fetch_add(head.payload_len.into(), Relaxed);
        {
            let mut folded = folded.lock().expect("a panicking worker ends the session");
            let Folded { order, transfer, stream, recorder } = &mut *folded;
            let mut lens = session.lens.lock().expect("no thread panics while it holds this lock");
            let chunk = (head.kind, head.content_len, head.digest, lines);
            order.push(head.seq.0, chunk, |(kind, len, digest, lines)| {
                transfer.push(len as usize, digest);
                if let Some(stream) = stream {
                    stream.push(kind, len as usize, digest).expect("a raw stream is consecutive slices");
                }
                if let Some(recorder) = recorder {
                    recorder.push(kind, len as usize, digest, lines.as_deref());
                }
                lens.1.push_back(len);
            });
        }
        session.flow().sealed(session.session, head.seq, Arc::new(sealed));
        session.bells.ring_one();
        lap.book(&hash.wait_out);
    }
}

struct Conductor<'a> {
    options: &'a SendOptions,
    session: &'a SendSession,
    watch: Watch,
    fleet: Fleet,
}

impl Conductor<'_> {
    async fn wait(
        &mut self,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        mut totals: oneshot::Receiver<Result<Totals, Error>>,
        interrupts: &mut Interrupts,
    ) -> Result<(Commit, Totals), Error> {
        let mut known: Option<Totals> = None;
        let mut changes = self.session.cables.changes();
        loop {
            let deadline = self.watch.deadline();
            tokio::select! {
                Some(event) = inbox.recv() => {
                    if let Some(commit) = self.handle(event)? {
                        return match known {
                            Some(totals) => check(&commit, &totals).map(|()| (commit, totals)),
                            None => Err(Error::Verification("the receiver committed before the source had ended".into())),
                        };
                    }
                }
                totals = &mut totals, if known.is_none() => {
                    let totals = totals.unwrap_or_else(|_| Err(Error::Bug("the source ended without a word".into())))?;
                    self.finish(&totals);
                    known = Some(totals);
                }
                signal = interrupts.next() => {
                    return Err(Error::Interrupted(format!("{signal}; incomplete, {}", self.progress())));
                }
                () = cables::changed(&mut changes) => self.fleet.grow(),
                () = watch::at(deadline) => return Err(self.lost()),
            }
        }
    }

    fn handle(&mut self, event: LinkEvent) -> Result<Option<Commit>, Error> {
        let tell = &self.options.observer;
        match event {
            LinkEvent::Up { link, .. } if self.fleet.control == Some(link) => {}
            LinkEvent::Down { link, .. } if self.fleet.control == Some(link) => self.fleet.control = None,
            LinkEvent::Up { stats, .. } => {
                let again = self.watch.up(&stats.name);
                tell(Event::LinkUp { name: stats.name.clone(), again });
            }
            LinkEvent::Down { stats, ended, .. } => {
                self.watch.down(&stats.name, &ended, Instant::now());
                stats.outages.fetch_add(1, Relaxed);
                *stats.last_error.lock().expect("no thread panics while it holds this lock") =
                    Some(ended.reason.clone());
                let remaining = self.watch.remaining();
                tell(Event::LinkDown { name: stats.name.clone(), reason: ended.reason, remaining });
            }
            LinkEvent::Unreachable { stats, ended } => {
                if self.watch.unreachable(&stats.name, &ended, Instant::now()) {
                    *stats.last_error.lock().expect("no thread panics while it holds this lock") =
                        Some(ended.reason.clone());
                    let remaining = self.watch.remaining();
                    tell(Event::LinkDown { name: stats.name.clone(), reason: ended.reason, remaining });
                }
            }
            LinkEvent::Control(Control::Commit(commit)) => return Ok(Some(commit)),
            LinkEvent::Control(Control::Abort { code, reason }) => {
                return Err(Error::Peer { code, reason: escape_words(&reason) });
            }
            LinkEvent::Control(Control::Links(addresses)) => {
                self.fleet.addresses = addresses;
                self.fleet.grow();
            }
            LinkEvent::Panicked => return Err(Error::Bug("a thread of the sender panicked".into())),
            LinkEvent::Control(_) | LinkEvent::Complete | LinkEvent::Hopeless { .. } => {}
            LinkEvent::Violation { what, .. } => {
                return Err(Error::Verification(format!("the receiver broke the protocol: {what}")));
            }
            LinkEvent::Corrupt { stats, count } => tell(Event::Corrupt { link: stats.name.clone(), count }),
        }
        Ok(None)
    }

    fn finish(&self, totals: &Totals) {
        let notes = totals.notes.notes();
        let named_losses = notes.named.iter().filter(|n| n.kind.is_loss()).count() as u64;
        let named_harmless = notes.named.len() as u64 - named_losses;
        let finish = wire::Finish {
            chunks: totals.end.chunks,
            entries: totals.end.entries,
            bytes: totals.end.stream_bytes,
            content_bytes: totals.end.content_bytes,
            notes: notes.named.len() as u64,
            unnamed: (notes.losses - named_losses, notes.harmless.saturating_sub(named_harmless)),
            digest: totals.transfer_digest,
        };
        self.session.last_words().set_finish(finish, notes);
        self.session.bells.ring_all();
    }

    fn lost(&self) -> Error {
        let reasons = self.watch.reasons();
        let unknown = if self.session.flow().all_sent() {
            "; everything was sent, but the receiver did not confirm it: outcome unknown, run again"
        } else {
            ""
        };
        let progress = self.progress();
        if self.watch.all_damaged() {
            return Error::Verification(format!("every link was given up ({reasons}); {progress}{unknown}"));
        }
        Error::Network(format!("all links are lost ({reasons}); incomplete, {progress}{unknown}"))
    }

    fn progress(&self) -> String {
        let stats = &self.session.stats;
        format!("{} bytes acknowledged", stats.stream_done.load(Relaxed))
    }

    /// Until the receiver has certainly heard the last word: one link has ended in goodbyes, or none is left.
    async fn until_told(&mut self, inbox: &mut UnboundedReceiver<LinkEvent>) {
        // the first connection is up although its link has not said so yet
        while self.watch.is_untried() || self.watch.connections() > 0 || self.fleet.control.is_some() {
            let Some(event) = inbox.recv().await else { return };
            match event {
                LinkEvent::Down { ended, .. } if ended == Ended::over() => return,
                LinkEvent::Down { link, .. } if self.fleet.control == Some(link) => self.fleet.control = None,
                LinkEvent::Up { stats, .. } => drop(self.watch.up(&stats.name)),
                LinkEvent::Down { stats, ended, .. } => self.watch.down(&stats.name, &ended, Instant::now()),
                _ => {}
            }
        }
    }
}

/// What the receiver says it has must be what was sent.
fn check(commit: &Commit, totals: &Totals) -> Result<(), Error> {
    if commit.digest != totals.transfer_digest {
        return Err(Error::Verification(format!(
            "the receiver has digest {}, {} was sent",
            commit.digest, totals.transfer_digest
        )));
    }
    if totals.stream_digest.is_some() && commit.stream_digest.is_some() && commit.stream_digest != totals.stream_digest
    {
        return Err(Error::Verification("the receiver's stream has another BLAKE3 than the one that was sent".into()));
    }
    Ok(())
}

fn report(
    commit: Commit,
    totals: Totals,
    manifest: Option<ManifestReport>,
    session: &SendSession,
    elapsed: std::time::Duration,
) -> Report {
    let source_notes = totals.notes.notes();
    let sink_notes = crate::report::Notes { named: commit.notes, losses: commit.totals.0, harmless: commit.totals.1 };
    Report {
        code: commit
            .code
            .max(source_notes.exit_code())
            .max(sink_notes.exit_code())
            .max(manifest.as_ref().map_or(ExitCode::Whole, ManifestReport::exit_code)),
        manifest,
        entries: commit.entries,
        content_bytes: commit.content_bytes,
        stream_bytes: totals.end.stream_bytes,
        payload_bytes: session.stats.payload_bytes.load(Relaxed),
        elapsed,
        transfer_digest: totals.transfer_digest,
        stream_digest: totals.stream_digest,
        links: session.stats.links().iter().map(|l| l.report()).collect(),
        source_notes,
        sink_notes,
        sender_stages: session.stats.stages(Stage::Send),
        receiver_stages: commit.stages,
        empty_stdin: totals.is_stdin && totals.end.stream_bytes == 0,
    }
}
