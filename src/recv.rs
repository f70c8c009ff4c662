//! The receiving conductor: listens, builds the stages, owns the session, waits, reports. Mirrors [`crate::send`].
//!
//! 1. Look at the destination before listening, so that a destination that cannot be used costs nothing.
//! 2. Listen; take the first Hello whose offer fits the destination (Welcome), and every Join of its session.
//! 3. Start the stages: `workers` threads open and verify chunks in any order; the flow restores the order; whoever
//!    completes a gap hands the chunks in order to the sink, which has threads of its own.
//! 4. When everything that Finish counts has been delivered: compare digests, let the sink finish and sync.
//! 5. Say so on every link (Commit, or Abort on any failure), wait for Bye, and report.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use crate::chunk::{Chunk, Opener, Pool, Release, TransferDigest};
use crate::error::{Error, ExitCode, escape_words};
use crate::flow::{RecvFlow, Verdict};
use crate::ids::{LinkId, SessionId};
use crate::limits;
use crate::link::cables::{self, Cables};
use crate::link::discover;
use crate::link::handshake::{self, HandshakeError};
use crate::link::listen::{self, Pending, PendingPlace};
use crate::link::recv_link::{self, Arrived, RecvSession};
use crate::link::watch::{self, Interrupts, Watch};
use crate::link::{Alarm, Clock, Ended, LinkEvent, describe_io, socket};
use crate::manifest::Draft;
use crate::options::{Destination, RecvOptions};
use crate::report::{Event, ManifestReport, Note, Notes, Report};
use crate::sink::{self, Prepared, Sink, SinkEnd};
use crate::stats::{Lap, Phase, Stage, Stats, Stopwatch};
use crate::wire::{self, Address, Commit, Control, Finish, Handshake, Layout, Offer, WireError};

/// Receive what a sender brings. Returns once everything is durable and verified, or with the reason why not; `stats`
/// can be watched meanwhile.
///
/// # Errors
/// Every variant of [`Error`]; both ends end with the same exit code wherever they can still tell each other.
pub fn run(options: RecvOptions, stats: Arc<Stats>) -> Result<Report, Error> {
    let mut prepared = Prepared::new(&options.destination)?;
    let manifest = Manifest::begin(&options)?;
    if let Some(manifest) = &manifest {
        prepared = prepared.recorded(manifest.recorder.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Bug(format!("cannot start the network runtime: {e}")))?;
    let outcome = LocalSet::new().block_on(&runtime, converse(options, stats, prepared, manifest));
    runtime.shutdown_background();
    outcome
}

/// The manifest that was asked for.
struct Manifest {
    draft: Draft,
    recorder: Arc<sink::Recorder>,
}

impl Manifest {
    fn begin(options: &RecvOptions) -> Result<Option<Manifest>, Error> {
        let Some(path) = &options.manifest else { return Ok(None) };
        let (draft, pen) = match &options.destination {
            Destination::Path(destination) => Draft::create(path, std::slice::from_ref(destination)),
            Destination::Stdout => Draft::create(path, &[]),
        }?;
        Ok(Some(Manifest { draft, recorder: sink::Recorder::new(pen) }))
    }

    fn finish(self) -> Option<ManifestReport> {
        self.recorder.take().map(|pen| self.draft.finish(pen))
    }
}

/// A connection that has said its first message.
struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    message: Handshake,
    _place: PendingPlace,
}

async fn converse(
    options: RecvOptions,
    stats: Arc<Stats>,
    prepared: Prepared,
    manifest: Option<Manifest>,
) -> Result<Report, Error> {
    let mut interrupts =
        Interrupts::listen().map_err(|e| Error::Bug(format!("cannot listen for signals: {}", describe_io(&e))))?;
    let listener = listen::listen(options.listen, options.port).map_err(|e| cannot_listen(&options, &e))?;
    let port = listener.local_addr().map_or(options.port, |a| a.port());
    (options.observer)(Event::Listening { addrs: reachable_at(&options, port) });

    let (call, mut callers) = mpsc::unbounded_channel();
    tokio::task::spawn_local(answer_the_door(listener, call, options.observer.clone()));
    let (first, offer) = tokio::select! {
        first = first_hello(&mut callers) => first,
        signal = interrupts.next() => return Err(Error::Interrupted(format!("{signal} while waiting for a sender"))),
    };
    let Caller { mut stream, peer, message, .. } = first;
    let Handshake::Hello { session, .. } = message else { unreachable!("first_hello returns a Hello") };

    let began = Instant::now();
    let (fail, mut failure) = mpsc::unbounded_channel();
    let opened = prepared.layout(&offer).and_then(|layout| {
        let on_error = move |error| drop(fail.send(error));
        Ok((layout, prepared.open(&offer, stats.clone(), worker_count(), Box::new(on_error))?))
    });
    let (layout, sink) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            refuse(&mut stream, &error).await;
            return Err(error);
        }
    };
    let window = options.window_chunks.clamp(1, limits::WINDOW_MAX);
    let (events, mut inbox) = mpsc::unbounded_channel();
    let stages = match Stages::start(session, window, &sink, stats.clone(), events) {
        Ok(stages) => stages,
        Err(error) => {
            refuse(&mut stream, &error).await;
            abort(sink).await;
            return Err(error);
        }
    };
    let welcome = Handshake::Welcome { session, layout, window_chunks: window, addresses: advertised(port) };
    if let Err(e) = handshake::say(&mut stream, &welcome, &wire::PUBLISHED_KEY).await {
        abort(sink).await;
        return Err(Error::Network(format!("the sender at {} left during the handshake: {e}", peer_name(peer))));
    }
    (options.observer)(Event::Connected { peer });
    stats.begin();
    stats.enter(Phase::Moving);

    let mut conductor = Conductor {
        options: &options,
        session: stages.session.clone(),
        port,
        advertised: advertised(port),
        watch: Watch::new(options.timeout, Instant::now()),
        joined: HashSet::new(),
        damaged: HashMap::new(),
        peers: Vec::new(),
        finish: None,
    };
    conductor.start_link(LinkId(0), stream, peer, None);
    let outcome = conductor.receive(&mut inbox, &mut callers, &mut failure, &mut interrupts).await;
    let mut left = None;
    let outcome = match outcome {
        Ok(finish) => {
            conductor
                .commit(sink, finish, layout, &stages, &mut inbox, &mut callers, &mut failure, &mut interrupts)
                .await
        }
        Err(error) => {
            left = Some(sink);
            Err(error)
        }
    };
    match outcome {
        Ok((finish, end)) => {
            let elapsed = began.elapsed();
            stats.enter(Phase::Done);
            conductor.until_bye(&mut inbox, &mut callers).await;
            let manifest = manifest.and_then(Manifest::finish);
            Ok(conductor.report(finish, end, manifest, elapsed))
        }
        Err(error) => {
            // A sender that has gone, as the last word of all links was, is not waited for again.
            if !matches!(error, Error::Peer { .. } | Error::Network(_)) {
                conductor.session.last_words().abort = Some((error.exit_code(), error.reason()));
                conductor.session.bells.ring_all();
                let _ = timeout(limits::DRAIN, conductor.until_told(&mut inbox, &mut callers, &error)).await;
            }
            if let Some(sink) = left {
                abort(sink).await;
            }
            Err(error)
        }
    }
}

/// Stop the sink, so that its temporary names are gone before this process is; a write that does not come back, to a
/// dead disk, is not waited for.
async fn abort(sink: Sink) {
    let (tell, aborted) = oneshot::channel();
    thread::spawn(move || {
        sink.abort();
        let _ = tell.send(());
    });
    let _ = timeout(limits::DRAIN, aborted).await;
}

fn worker_count() -> usize {
    thread::available_parallelism().map_or(2, |n| n.get()).max(2)
}

fn cannot_listen(options: &RecvOptions, error: &std::io::Error) -> Error {
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
fn reachable_at(options: &RecvOptions, port: u16) -> Vec<SocketAddr> {
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

fn advertised(port: u16) -> Vec<Address> {
    discover::advertise(&discover::locals().unwrap_or_default(), port)
}

/// What a link is called here: our interface, or the peer's address where that is all we know.
fn link_name(stream: &TcpStream, peer: SocketAddr) -> String {
    let locals = discover::locals().unwrap_or_default();
    let local = stream.local_addr().ok().and_then(|a| discover::interface_of(&locals, a.ip()));
    local.map_or_else(|| peer_name(peer), |l| l.interface.clone())
}

fn peer_name(peer: SocketAddr) -> String {
    discover::canonical(peer.ip()).to_string()
}

/// Accept connections and hear each one's first message, a bounded number at a time.
async fn answer_the_door(listener: TcpListener, callers: UnboundedSender<Caller>, observer: crate::options::Observer) {
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

async fn first_hello(callers: &mut UnboundedReceiver<Caller>) -> (Caller, Offer) {
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

async fn refuse(stream: &mut TcpStream, error: &Error) {
    let refusal = Handshake::Refuse { code: error.exit_code(), reason: error.reason() };
    let _ = handshake::say(stream, &refusal, &wire::PUBLISHED_KEY).await;
}

fn turn_away(mut caller: Caller, code: ExitCode, reason: &str) {
    let reason = reason.to_owned();
    tokio::task::spawn_local(async move {
        let refusal = Handshake::Refuse { code, reason };
        let _ = handshake::say(&mut caller.stream, &refusal, &wire::PUBLISHED_KEY).await;
    });
}

/// The stages' threads and what they share.
struct Stages {
    session: Arc<RecvSession>,
    transfer: Arc<Mutex<TransferDigest>>,
}

impl Stages {
    fn start(
        session: SessionId,
        window: u32,
        sink: &Sink,
        stats: Arc<Stats>,
        events: UnboundedSender<LinkEvent>,
    ) -> Result<Stages, Error> {
        let buffers = window as usize + limits::LINKS_MAX;
        let pool = Pool::new(buffers, limits::CHUNK_LEN);
        let pool_bell = Arc::new(Notify::new());
        let bell = pool_bell.clone();
        pool.on_return(move || bell.notify_one());
        let (arrived, arrivals) = crossbeam_channel::bounded(buffers);
        let session = Arc::new(RecvSession {
            session,
            clock: Clock::start(),
            flow: Mutex::new(RecvFlow::new(session, window)),
            notes: Mutex::new(Vec::new()),
            key: wire::PUBLISHED_KEY,
            pool,
            pool_bell,
            arrived,
            cables: Cables::watched(),
            bells: Default::default(),
            last_words: Default::default(),
            events,
            stats,
        });
        let transfer = Arc::new(Mutex::new(TransferDigest::new()));
        // a mutex of its own keeps deliveries in order without holding up the links
        let out = Arc::new(Mutex::new(sink.chunks().clone()));
        let release = release_hook(&session, window);
        for i in 0..worker_count() {
            let (arrivals, out) = (arrivals.clone(), out.clone());
            let [verify, decompress] = [Stage::Verify, Stage::Decompress].map(|stage| session.stats.watch(stage));
            let (session, transfer, release) = (Arc::downgrade(&session), transfer.clone(), release.clone());
            thread::Builder::new()
                .name(format!("open-{i}"))
                .spawn(move || {
                    let mut worker = Worker { opener: Opener::new(), lap: Lap::start(), verify, decompress };
                    for arrived in arrivals {
                        worker.lap.book(&worker.verify.wait_in);
                        let Some(session) = session.upgrade() else { return };
                        let _alarm = Alarm::new(&session.events);
                        open_and_deliver(arrived, &mut worker, &session, &transfer, &release, &out);
                        worker.lap.book(&worker.verify.wait_out);
                    }
                })
                .map_err(|e| Error::Bug(format!("cannot start a thread: {}", describe_io(&e))))?;
        }
        Ok(Stages { session, transfer })
    }
}

/// Turns a buffer that is free again into credit. The sender hears of it when it is worth a frame: an eighth of the
/// window at once, less with the next acknowledgement.
fn release_hook(session: &Arc<RecvSession>, window: u32) -> Arc<dyn Fn() + Send + Sync> {
    let session = Arc::downgrade(session);
    let freed = AtomicU64::new(0);
    let worth_telling = u64::from(window / 8).max(1);
    Arc::new(move || {
        let Some(session) = session.upgrade() else { return };
        session.flow().released(session.session, 1);
        if (freed.fetch_add(1, Relaxed) + 1).is_multiple_of(worth_telling) {
            session.bells.ring_one();
        }
    })
}

/// What each opening thread has for itself.
struct Worker {
    opener: Opener,
    lap: Lap,
    verify: Arc<Stopwatch>,
    decompress: Arc<Stopwatch>,
}

fn open_and_deliver(
    arrived: Arrived,
    worker: &mut Worker,
    session: &RecvSession,
    transfer: &Mutex<TransferDigest>,
    release: &Arc<dyn Fn() + Send + Sync>,
    out: &Mutex<crossbeam_channel::Sender<Chunk>>,
) {
    let Arrived { link, index, head, buf, stats } = arrived;
    let opened = worker.opener.open(&head, buf);
    worker.lap.split(&worker.verify.busy, worker.opener.take_decompressed_for(), &worker.decompress.busy);
    match opened {
        Ok(chunk) => {
            stats.chunks.fetch_add(1, Relaxed);
            let verdict = session.flow().verified(session.session, link, index, head.seq, chunk);
            match verdict {
                Verdict::Held => drop(session.stats.payload_bytes.fetch_add(head.payload_len.into(), Relaxed)),
                // a copy that is not needed gives its buffer back outside the flow's lock
                Verdict::Duplicate(chunk) | Verdict::Stale(chunk) => drop(chunk),
            }
        }
        Err((_, buf)) => {
            drop(buf);
            let count = stats.corrupt.fetch_add(1, Relaxed) + 1;
            let strikes = session.flow().dropped(session.session, link, index);
            session.tell(LinkEvent::Corrupt { stats, count });
            if strikes.in_a_row >= limits::CORRUPT_IN_A_ROW_MAX {
                session.tell(LinkEvent::Hopeless { link });
            }
        }
    }
    deliver(session, transfer, release, out);
    session.bells.ring(link);
}

/// Hand every chunk whose turn has come to the sink.
fn deliver(
    session: &RecvSession,
    transfer: &Mutex<TransferDigest>,
    release: &Arc<dyn Fn() + Send + Sync>,
    out: &Mutex<crossbeam_channel::Sender<Chunk>>,
) {
    let out = out.lock().expect("a panicking worker ends the session");
    loop {
        let next = session.flow().poll_deliver();
        let Some((_, mut chunk)) = next else { break };
        transfer.lock().expect("a panicking worker ends the session").push(chunk.len, chunk.digest);
        chunk.release = Some(Release::new(release.clone()));
        // gone only when the sink has failed, and then the conductor knows
        let _ = out.send(chunk);
    }
    let complete = session.flow().complete();
    drop(out);
    if complete {
        session.tell(LinkEvent::Complete);
    }
}

struct Conductor<'a> {
    options: &'a RecvOptions,
    session: Arc<RecvSession>,
    port: u16,
    /// Where the sender knows that we can be reached.
    advertised: Vec<Address>,
    watch: Watch,
    /// Ids that have joined, so that a repeated Join is refused.
    joined: HashSet<LinkId>,
    /// How many connections in a row of each peer address ended damaged.
    damaged: HashMap<IpAddr, u32>,
    /// What is known of each connection.
    peers: Vec<Peer>,
    finish: Option<Finish>,
}

/// One connection, as the conductor sees it.
struct Peer {
    link: LinkId,
    ip: IpAddr,
    /// Good chunks that had come over the same interface before.
    chunks_before: u64,
    /// Ends it.
    go: Arc<Notify>,
    /// It was told to go.
    leaving: bool,
}

impl Conductor<'_> {
    /// Work a connection; `answer` is said first.
    fn start_link(&mut self, link: LinkId, mut stream: TcpStream, peer: SocketAddr, answer: Option<Handshake>) {
        let session = self.session.clone();
        let stats = session.stats.link(&link_name(&stream, peer));
        self.joined.insert(link);
        let go = Arc::new(Notify::new());
        let ip = discover::canonical(peer.ip());
        let chunks_before = stats.chunks.load(Relaxed);
        self.peers.push(Peer { link, ip, chunks_before, go: go.clone(), leaving: false });
        tokio::task::spawn_local(async move {
            if let Some(answer) = answer
                && handshake::say(&mut stream, &answer, &session.key).await.is_err()
            {
                return;
            }
            recv_link::run(&session, link, stats, stream, go).await;
        });
    }

    /// Keep count of damage by peer: a link that brings nothing else is turned away when it is dialled again.
    fn judge(&mut self, link: LinkId, ended: Ended, chunks: u64) -> Ended {
        let Some(at) = self.peers.iter().position(|p| p.link == link) else { return ended };
        let Peer { ip, chunks_before, .. } = self.peers.swap_remove(at);
        let strikes = self.damaged.entry(ip).or_insert(0);
        if chunks - chunks_before >= limits::GOOD_CHUNKS || !(ended.damaged || ended.for_good) {
            *strikes = 0;
        }
        if ended.for_good {
            *strikes = limits::CORRUPT_IN_A_ROW_MAX;
        } else if ended.damaged {
            *strikes += 1;
        }
        let for_good = *strikes >= limits::CORRUPT_IN_A_ROW_MAX;
        Ended { for_good, ..ended }
    }

    /// Everything until the last chunk has been delivered.
    async fn receive(
        &mut self,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        callers: &mut UnboundedReceiver<Caller>,
        failure: &mut UnboundedReceiver<Error>,
        interrupts: &mut Interrupts,
    ) -> Result<Finish, Error> {
        let mut changes = self.session.cables.changes();
        loop {
            let deadline = self.watch.deadline();
            tokio::select! {
                Some(event) = inbox.recv() => {
                    self.handle(event)?;
                    if let Some(finish) = self.finished()? {
                        return Ok(finish);
                    }
                }
                Some(caller) = callers.recv() => self.admit(caller),
                Some(error) = failure.recv() => return Err(error),
                signal = interrupts.next() => {
                    return Err(Error::Interrupted(format!("{signal}; incomplete, {}", self.progress())));
                }
                () = cables::changed(&mut changes) => self.advertise_again(),
                () = watch::at(deadline) => return Err(self.lost()),
            }
        }
    }

    /// Tell the sender of interfaces that have come or gone.
    fn advertise_again(&mut self) {
        let now = advertised(self.port);
        if now != self.advertised {
            self.advertised = now.clone();
            let mut words = self.session.last_words();
            words.addresses = (now, words.addresses.1 + 1);
            drop(words);
            self.session.bells.ring_all();
        }
    }

    /// Sync, then tell every link.
    #[expect(clippy::too_many_arguments, reason = "one mailbox for each kind of news")]
    async fn commit(
        &mut self,
        sink: Sink,
        finish: Finish,
        layout: Layout,
        stages: &Stages,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        callers: &mut UnboundedReceiver<Caller>,
        failure: &mut UnboundedReceiver<Error>,
        interrupts: &mut Interrupts,
    ) -> Result<(Finish, SinkEnd), Error> {
        let digest = stages.transfer.lock().expect("a panicking worker ends the session").finish();
        if digest != finish.digest {
            abort(sink).await;
            return Err(Error::Verification(format!("digest {digest} arrived, the sender says {}", finish.digest)));
        }
        self.session.stats.enter(Phase::Syncing);
        let (tell, mut ended) = oneshot::channel();
        thread::Builder::new()
            .name("sink-end".into())
            .spawn(move || drop(tell.send(sink.finish(finish))))
            .map_err(|e| Error::Bug(format!("cannot start a thread: {}", describe_io(&e))))?;
        let end: SinkEnd = loop {
            tokio::select! {
                end = &mut ended => {
                    break end.unwrap_or_else(|_| Err(Error::Bug("the sink's last thread panicked".into())))?;
                }
                Some(event) = inbox.recv() => self.handle(event)?,
                Some(caller) = callers.recv() => self.admit(caller),
                Some(error) = failure.recv() => return Err(error),
                signal = interrupts.next() => {
                    return Err(Error::Interrupted(format!("{signal} while syncing; {}", self.progress())));
                }
            }
        };
        let expected = (finish.entries, finish.content_bytes);
        if layout == Layout::Archive && end.notes.losses == 0 && end.entries != 0 && end.entries != expected.0 {
            return Err(Error::Verification(format!("{} entries arrived, {} were sent", end.entries, expected.0)));
        }
        let sender_losses = finish.unnamed.0 + self.source_notes().losses;
        let partial = sender_losses + end.notes.losses > 0;
        let commit = Commit {
            code: if partial { ExitCode::Partial } else { ExitCode::Whole },
            entries: if end.entries == 0 { finish.entries } else { end.entries },
            content_bytes: end.content_bytes,
            digest,
            stream_digest: end.stream_digest,
            totals: (end.notes.losses, end.notes.harmless),
            stages: self.session.stats.stages(Stage::Receive),
            notes: end.notes.named.clone(),
        };
        self.session.last_words().commit = Some(commit);
        self.session.bells.ring_all();
        Ok((finish, end))
    }

    /// After Commit: until the sender has confirmed it and one link has ended in goodbyes, or the sender is gone. Durable
    /// is durable, whatever the sender knows.
    async fn until_bye(&mut self, inbox: &mut UnboundedReceiver<LinkEvent>, callers: &mut UnboundedReceiver<Caller>) {
        let mut patience = Instant::now() + limits::PEER_GONE;
        let mut confirmed = false;
        while !confirmed || self.watch.connections() > 0 {
            tokio::select! {
                Some(event) = inbox.recv() => match event {
                    LinkEvent::Control(Control::Bye) if !confirmed => {
                        confirmed = true;
                        patience = Instant::now() + limits::DRAIN;
                    }
                    LinkEvent::Down { ended, .. } if confirmed && ended == Ended::over() => break,
                    event => drop(self.count(event)),
                },
                Some(caller) = callers.recv() => self.admit(caller),
                () = tokio::time::sleep_until(patience) => break,
            }
        }
        if !confirmed {
            let text = "everything is durable here, but the sender left before it confirmed that it knows".into();
            (self.options.observer)(Event::Warning(text));
        }
    }

    /// After a failure: until the sender has heard of it, on a link that is up or by dialling one that is not.
    async fn until_told(
        &mut self,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        callers: &mut UnboundedReceiver<Caller>,
        error: &Error,
    ) {
        let mut told = self.watch.connections() > 0;
        while !told || self.watch.connections() > 0 {
            tokio::select! {
                Some(event) = inbox.recv() => {
                    drop(self.count(event));
                    told |= self.watch.connections() > 0;
                }
                Some(caller) = callers.recv() => match caller.message {
                    // A refusal would be about this one link; on a link that is up the first word is Abort.
                    Handshake::Join { session, link, nonce } if self.may_join(session, link) => {
                        let joined = Handshake::Joined { session, link, nonce };
                        self.start_link(link, caller.stream, caller.peer, Some(joined));
                    }
                    _ => turn_away(caller, error.exit_code(), &error.reason()),
                },
            }
        }
    }

    /// Whether a link of that id could be one of this session.
    fn may_join(&self, session: SessionId, link: LinkId) -> bool {
        session == self.session.session && !self.joined.contains(&link) && self.watch.connections() < limits::LINKS_MAX
    }

    /// Decide about a caller once the session runs.
    fn admit(&mut self, caller: Caller) {
        match caller.message {
            Handshake::Join { session, link, nonce } if session == self.session.session => {
                let ip = discover::canonical(caller.peer.ip());
                let strikes = self.damaged.get(&ip).copied().unwrap_or(0);
                if strikes >= limits::CORRUPT_IN_A_ROW_MAX {
                    return turn_away(caller, ExitCode::Verification, "this link damaged too much in a row");
                }
                if !self.may_join(session, link) {
                    return turn_away(caller, ExitCode::Network, "this link has joined before, or there are too many");
                }
                let joined = Handshake::Joined { session, link, nonce };
                self.start_link(link, caller.stream, caller.peer, Some(joined));
            }
            Handshake::Join { .. } => {
                turn_away(caller, ExitCode::Network, "no such session: the receiver was started anew");
            }
            _ => turn_away(caller, ExitCode::Refused, "the receiver is busy with another sender"),
        }
    }

    fn handle(&mut self, event: LinkEvent) -> Result<(), Error> {
        match self.count(event) {
            Some(LinkEvent::Control(Control::Abort { code, reason })) => {
                Err(Error::Peer { code, reason: escape_words(&reason) })
            }
            Some(LinkEvent::Control(Control::Finish(finish))) => {
                if self.finish.is_some_and(|known| known != finish) {
                    return Err(Error::Verification("the sender contradicts its own Finish".into()));
                }
                self.finish = Some(finish);
                self.session
                    .flow()
                    .finish(finish.chunks)
                    .map_err(|v| Error::Verification(format!("the sender broke the protocol: {v}")))
            }
            Some(LinkEvent::Control(Control::Notes { first, notes })) => {
                self.take_notes(first, notes);
                Ok(())
            }
            Some(LinkEvent::Hopeless { link }) => {
                if self.peers.iter().all(|p| p.link == link || p.leaving) {
                    let text = "the only link that is left damages every chunk";
                    return Err(Error::Verification(format!("{text}; {}", self.progress())));
                }
                if let Some(peer) = self.peers.iter_mut().find(|p| p.link == link) {
                    peer.leaving = true;
                    peer.go.notify_one();
                }
                Ok(())
            }
            Some(LinkEvent::Panicked) => Err(Error::Bug("a thread of the receiver panicked".into())),
            Some(LinkEvent::Violation { what, .. }) => {
                Err(Error::Verification(format!("the sender broke the protocol: {what}")))
            }
            _ => Ok(()),
        }
    }

    /// Keep count of links and damage; what else there is to decide comes back.
    fn count(&mut self, event: LinkEvent) -> Option<LinkEvent> {
        let tell = self.options.observer.clone();
        match event {
            LinkEvent::Up { stats, .. } => {
                let again = self.watch.up(&stats.name);
                tell(Event::LinkUp { name: stats.name.clone(), again });
            }
            LinkEvent::Down { stats, ended, link } => {
                let ended = self.judge(link, ended, stats.chunks.load(Relaxed));
                self.watch.down(&stats.name, &ended, Instant::now());
                if self.session.stats.phase() != Phase::Done && self.session.last_words().abort.is_none() {
                    stats.outages.fetch_add(1, Relaxed);
                    *stats.last_error.lock().expect("no thread panics while it holds this lock") =
                        Some(ended.reason.clone());
                    let remaining = self.watch.remaining();
                    tell(Event::LinkDown { name: stats.name.clone(), reason: ended.reason, remaining });
                }
            }
            LinkEvent::Corrupt { stats, count } => tell(Event::Corrupt { link: stats.name.clone(), count }),
            other => return Some(other),
        }
        None
    }

    fn take_notes(&self, first: u64, notes: Vec<Note>) {
        let mut have = self.session.notes.lock().expect("no thread panics while it holds this lock");
        let Some(skip) = (have.len() as u64).checked_sub(first) else { return };
        let room = limits::NOTES_MAX - have.len().min(limits::NOTES_MAX);
        have.extend(notes.into_iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)).take(room));
        drop(have);
        self.session.bells.ring_all();
    }

    /// Finish, once everything it counts is here.
    fn finished(&self) -> Result<Option<Finish>, Error> {
        let Some(finish) = self.finish else { return Ok(None) };
        if finish.notes > limits::NOTES_MAX as u64 {
            return Err(Error::Verification(format!("the sender announces {} notes", finish.notes)));
        }
        let notes = self.session.notes.lock().expect("no thread panics while it holds this lock").len() as u64;
        Ok((self.session.flow().complete() && notes >= finish.notes).then_some(finish))
    }

    fn source_notes(&self) -> Notes {
        let mut notes = Notes::default();
        for note in self.session.notes.lock().expect("no thread panics while it holds this lock").iter() {
            notes.push(note.clone());
        }
        notes
    }

    fn lost(&self) -> Error {
        let reasons = self.watch.reasons();
        if self.watch.all_damaged() {
            return Error::Verification(format!("every link was given up ({reasons}); {}", self.progress()));
        }
        Error::Network(format!("all links to the sender are lost ({reasons}); incomplete, {}", self.progress()))
    }

    fn progress(&self) -> String {
        format!("{} bytes delivered, nothing committed", self.session.stats.stream_done.load(Relaxed))
    }

    fn report(&self, finish: Finish, end: SinkEnd, manifest: Option<ManifestReport>, elapsed: Duration) -> Report {
        let mut source_notes = self.source_notes();
        source_notes.losses += finish.unnamed.0;
        source_notes.harmless += finish.unnamed.1;
        Report {
            code: source_notes
                .exit_code()
                .max(end.notes.exit_code())
                .max(manifest.as_ref().map_or(ExitCode::Whole, ManifestReport::exit_code)),
            manifest,
            entries: if end.entries == 0 { finish.entries } else { end.entries },
            content_bytes: end.content_bytes,
            stream_bytes: finish.bytes,
            payload_bytes: self.session.stats.payload_bytes.load(Relaxed),
            elapsed,
            transfer_digest: finish.digest,
            stream_digest: end.stream_digest,
            links: self.session.stats.links().iter().map(|l| l.report()).collect(),
            source_notes,
            sink_notes: end.notes,
            sender_stages: Vec::new(),
            receiver_stages: self.session.stats.stages(Stage::Receive),
            empty_stdin: false,
        }
    }
}
