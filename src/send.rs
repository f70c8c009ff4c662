//! The sending conductor: builds the stages, owns the session, waits, reports. Mirrors [`crate::recv`].
//!
//! 1. Look at every source before anything else, so that a typing error costs nothing.
//! 2. Reach the receiver and agree on what is sent (Hello, Welcome).
//! 3. Start the stages: the source's own threads plan chunks in order; `workers` threads fill and seal them in any
//!    order and hand them to the flow; links on this thread's runtime take them from there.
//! 4. Dial the further links and keep each up.
//! 5. Wait for the first of: Commit, a failure on either side, a signal, all links lost.
//! 6. Say so on every link (Bye or Abort), give the peer [`limits::DRAIN`] to close, and report.
//!
//! Steps 2 to 5 have a room each: `reach`, `stages` (with `compress`), `fleet` (with `knee`), `conductor`.

mod compress;
mod conductor;
mod fleet;
mod knee;
mod links;
pub mod measure;
mod reach;
mod stages;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::SystemTime;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use self::conductor::Conductor;
use self::fleet::Fleet;
use self::reach::{Agreed, agree};
use self::stages::{Stages, Totals};
use crate::child::Leash;
use crate::error::{Error, ExitCode};
use crate::flow::SendFlow;
use crate::ids::{LinkId, SessionId};
use crate::limits;
use crate::link::cables::Cables;
use crate::link::proof::Proof;
use crate::link::send_session::SendSession;
use crate::link::throttle::Limits;
use crate::link::watch::{Interrupts, Watch};
use crate::link::{Clock, describe_io, dial, socket};
use crate::manifest::{Draft, Pen};
use crate::options::{Schedule, SendOptions, Sources, Window};
use crate::report::{Event, LinkReport, ManifestReport, Protection, Rehearsal, Report, Tell};
use crate::source::{self, NoteSink, Selection, SourceEnd};
use crate::stats::{Phase, Stage, Stats, memory_available};
use crate::wire::{self, Commit, Control, FIRST_NONCES, Offer, SessionKeys};

/// Send what `options` say. Returns once everything is durable and verified on the receiver, or with the reason why
/// not; `stats` can be watched meanwhile.
///
/// # Errors
/// Every variant of [`Error`]; both ends end with the same exit code wherever they can still tell each other.
pub fn run(options: SendOptions, stats: Arc<Stats>) -> Result<Report, Error> {
    socket::check(&options.sockets).map_err(Error::Usage)?;
    let mut source = Source::open(&options)?;
    let manifest = match &options.manifest {
        Some(path) => Some(Draft::create(path, options.sources.paths())?),
        None => None,
    };
    if manifest.is_some() {
        source = source.recorded();
    }
    if let Source::Tree(tree) = &source
        && let Some(warning) = tree.warning()
    {
        (options.observer)(Event::Warning(warning.to_owned()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Bug(format!("cannot start the network runtime: {e}")))?;
    let outcome = LocalSet::new().block_on(&runtime, converse(options, stats, source, manifest));
    runtime.shutdown_background();
    outcome
}

/// Find out what would be sent, without a receiver and without reading any file; `tell` hears of every entry.
///
/// # Errors
/// Those of [`run`] before it looks for a receiver.
pub fn rehearse(options: &SendOptions, stats: &Arc<Stats>, tell: Tell) -> Result<Rehearsal, Error> {
    let source = Source::open(options)?;
    stats.begin();
    stats.enter(Phase::Moving);
    let notes = Arc::new(NoteSink::telling(tell));
    let end = match source {
        Source::Tree(tree) => source::rehearse(*tree, stats, &notes)?,
        Source::Stdin | Source::Run(_) | Source::Measure(_) => None,
    };
    stats.enter(Phase::Done);
    let SourceEnd { entries, content_bytes, stream_bytes, .. } = end.unwrap_or_default();
    let (notes, omitted) = (notes.notes(), notes.omitted());
    Ok(Rehearsal { entries, content_bytes, stream_bytes, is_stream: end.is_none(), notes, omitted })
}

/// What is sent, looked at and not yet begun.
enum Source {
    /// Worthless bytes until there are enough.
    Measure(Arc<AtomicBool>),
    Stdin,
    /// What a command writes, which is started when somebody wants it.
    Run(OsString),
    Tree(Box<source::Tree>),
}

impl Source {
    fn open(options: &SendOptions) -> Result<Source, Error> {
        match &options.sources {
            Sources::Stdin | Sources::Run(_) if !options.select.is_everything() => Err(Error::Usage(
                "standard input is one stream, as is what a command writes: what of it is sent cannot be chosen by names, file systems or caches"
                    .into(),
            )),
            Sources::Stdin => Ok(Source::Stdin),
            Sources::Run(command) => Ok(Source::Run(command.clone())),
            Sources::Paths(paths) => {
                let tree = source::open_tree(paths)?.keeping(options.keep).with_holes(options.sparse.then(holes));
                Ok(Source::Tree(Box::new(tree.selected(Selection::open(&options.select)?)?)))
            }
        }
    }

    fn recorded(self) -> Source {
        match self {
            Source::Tree(tree) => Source::Tree(Box::new(tree.recorded())),
            other => other,
        }
    }

    fn offer(&self) -> Offer {
        match self {
            Source::Measure(_) => Offer::Measure,
            Source::Stdin | Source::Run(_) => Offer::Stream,
            Source::Tree(tree) => tree.offer(),
        }
    }
}

/// How holes are found: what has changed shortly before now, or changes from now on, is looked at more closely.
fn holes() -> source::Holes {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let settled = now.saturating_sub(limits::SETTLED).as_secs();
    source::Holes::new(i64::try_from(settled).unwrap_or(i64::MAX))
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
    (options.observer)(Event::Connected { peer: agreed.peer, protection: agreed.agreement.protection });
    deliver(&options, stats, source, draft.zip(pen), session, agreed, &mut interrupts, |_| {}).await
}

/// Everything from Welcome on. `begun` is told of the session.
#[expect(clippy::too_many_arguments, reason = "what a session is made of; two callers")]
async fn deliver(
    options: &SendOptions,
    stats: Arc<Stats>,
    source: Source,
    manifest: Option<(Draft, Pen)>,
    session: SessionId,
    agreed: Agreed,
    interrupts: &mut Interrupts,
    begun: impl FnOnce(&Arc<SendSession>),
) -> Result<Report, Error> {
    let (draft, pen) = manifest.unzip();
    let protection = agreed.agreement.protection;
    let began = Instant::now();
    stats.begin();
    stats.enter(Phase::Moving);
    let (events, mut inbox) = mpsc::unbounded_channel();
    let session = Arc::new(SendSession {
        session,
        clock: Clock::start(),
        flow: Mutex::new(SendFlow::new(session, options.schedule)),
        strict: options.schedule == Schedule::RoundRobin,
        limits: Limits::new(&options.bwlimit),
        sockets: options.sockets.clone(),
        keys: agreed.agreement.keys.clone(),
        cables: Cables::watched(),
        bells: Default::default(),
        last_words: Default::default(),
        events,
        stats: stats.clone(),
        expelled: Default::default(),
        lens: Mutex::new((0, VecDeque::new())),
        by_link: Default::default(),
    });
    let window = Window::chosen(options.window_chunks, memory_available()).start.min(agreed.window_chunks) as usize;
    let workers = thread::available_parallelism().map_or(2, |n| n.get()).max(2);
    // one more for each worker: sealing swaps the content's buffer for a scratch buffer
    let stages = match Stages::start(source, pen, &agreed, options, session.clone(), window, workers) {
        Ok(stages) => stages,
        Err(error) => {
            abandon(agreed.stream, &session.keys, &error).await;
            return Err(error);
        }
    };
    // However this ends other than well, a command that makes the stream ends before it.
    let leash = Leash::on(stages.command.clone());
    let mut conductor = Conductor {
        options,
        session: &session,
        watch: Watch::new(options.timeout, Instant::now()),
        fleet: Fleet::launch(&session, options, agreed),
        proof: Proof::default(),
    };
    begun(&session);
    let outcome = conductor.wait(&mut inbox, stages.totals, interrupts).await;
    let outcome = match outcome {
        Ok((commit, totals)) => {
            session.last_words().bye = true;
            stats.enter(Phase::Done);
            Ok((commit, totals))
        }
        Err(error) => {
            leash.pull();
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
    leash.let_off();
    // only now: there is no manifest of what did not arrive
    let manifest = draft.zip(totals.manifest.take()).map(|(draft, pen)| draft.finish(pen));
    let links = conductor.watch.report(&stats, began + elapsed);
    let command = stages.command.and_then(|child| child.look());
    Ok(Report { command, ..report(commit, totals, manifest, protection, &session, links, elapsed) })
}

/// End a session that never began to work, so that the receiver does not wait for it.
async fn abandon(mut stream: TcpStream, keys: &SessionKeys, error: &Error) {
    let abort = Control::Abort { code: error.exit_code(), reason: error.reason() };
    let mut bytes = Vec::new();
    let mut keys = keys.dialer(LinkId(0), FIRST_NONCES);
    wire::encode_control(&abort, &mut keys.out, &mut bytes);
    // If it cannot be told, the connection's end will have to do.
    let told = async {
        stream.write_all(&bytes).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    let _ = timeout(limits::DRAIN, told).await;
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
    // A stream that was unpacked has other counts there; its BLAKE3 is the same, or we are not here.
    if totals.stream_digest.is_some() && commit.stream_digest.is_some() {
        return Ok(());
    }
    let lost = commit.totals.0 > 0;
    for (what, theirs, ours) in [
        ("entries", commit.entries, totals.end.entries),
        ("content bytes", commit.content_bytes, totals.end.content_bytes),
    ] {
        if theirs > ours || theirs < ours && !lost {
            return Err(Error::Verification(format!("the receiver has {theirs} {what}, {ours} were sent")));
        }
    }
    Ok(())
}

fn report(
    commit: Commit,
    totals: Totals,
    manifest: Option<ManifestReport>,
    protection: Protection,
    session: &SendSession,
    links: Vec<LinkReport>,
    elapsed: std::time::Duration,
) -> Report {
    let (source_notes, omitted) = (totals.notes.notes(), totals.notes.omitted());
    let sink_notes = crate::report::Notes::counted(commit.notes, commit.totals.0, commit.totals.1);
    Report {
        code: commit
            .code
            .max(source_notes.exit_code())
            .max(sink_notes.exit_code())
            .max(manifest.as_ref().map_or(ExitCode::Whole, ManifestReport::exit_code)),
        manifest,
        omitted,
        protection,
        entries: commit.entries,
        content_bytes: commit.content_bytes,
        stream_bytes: totals.end.stream_bytes,
        payload_bytes: session.stats.payload_bytes.load(Relaxed),
        elapsed,
        transfer_digest: totals.transfer_digest,
        stream_digest: totals.stream_digest,
        links,
        source_notes,
        sink_notes,
        sender_stages: session.stats.stages(Stage::Send),
        receiver_stages: commit.stages,
        empty_stdin: totals.is_stream && totals.end.stream_bytes == 0,
        device_size: None,
        read_back: None,
        command: None,
    }
}
