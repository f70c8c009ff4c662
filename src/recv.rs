//! The receiving conductor: listens, builds the stages, owns the session, waits, reports. Mirrors [`crate::send`].
//!
//! 1. Look at the destination before listening, so that a destination that cannot be used costs nothing, and one that
//!    others can write to is not filled by root without its leave.
//! 2. Listen, and answer senders that look for a receiver; take the first Hello whose offer fits the destination
//!    (Welcome), and every Join of its session. Until the sender has said a frame of the session, it is none: if it
//!    leaves before, the next one is waited for.
//! 3. Confine this thread to the destination, before it starts any that writes. All of this runs in a thread of its
//!    own: a confinement lasts as long as its thread, and the caller's goes on to other things. Start the stages:
//!    `workers` threads open and verify chunks in any order; the flow restores the order; whoever completes a gap hands
//!    the chunks in order to the sink, which has threads of its own.
//! 4. When everything that Finish counts has been delivered: compare digests, let the sink finish and sync, and read
//!    back from the disk what is there now, if that is asked for.
//! 5. Say so on every link (Commit, or Abort on any failure), wait for Bye, and report.
//!
//! Steps 2, 3 and 4 have rooms: `door` and `welcome`, `stages`, `conductor`.

mod conductor;
mod door;
mod policy;
mod read_back;
mod stages;
mod welcome;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use self::conductor::Conductor;
use self::door::{Door, Porter, advertised, announced, announcer, answer_the_door, cannot_listen, reachable_at};
use self::policy::{Policy, Strangers, is_worth_a_line};
use self::stages::{Stages, worker_count};
use self::welcome::Begun;
use crate::child::Leash;
use crate::error::Error;
use crate::ids::{InstanceId, LinkId};
use crate::limits;
use crate::link::cables::Cables;
use crate::link::greet::Agreement;
use crate::link::listen::Pending;
use crate::link::watch::{Interrupts, Watch};
use crate::link::{describe_io, dial, listen, socket, tls};
use crate::manifest::{Draft, Pen};
use crate::options::{Destination, RecvOptions};
use crate::report::{Event, ManifestReport, Report};
use crate::sink::{self, Prepared, Sink};
use crate::stats::{Phase, Stats};
use crate::wire::{FIRST_NONCES, Offer};

/// Receive what a sender brings. Returns once everything is durable and verified, or with the reason why not; `stats`
/// can be watched meanwhile.
///
/// # Errors
/// Every variant of [`Error`]; both ends end with the same exit code wherever they can still tell each other.
pub fn run(options: RecvOptions, stats: Arc<Stats>) -> Result<Report, Error> {
    socket::check(&options.sockets).map_err(Error::Usage)?;
    thread::scope(|scope| {
        let body = || apart(options, stats);
        let thread = thread::Builder::new().name("recv".into()).spawn_scoped(scope, body);
        let thread = thread.map_err(|e| Error::Bug(format!("cannot start a thread: {}", describe_io(&e))))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn apart(options: RecvOptions, stats: Arc<Stats>) -> Result<Report, Error> {
    let prepared = Prepared::new(&options.destination)?.keeping(options.keep).sparse(options.sparse);
    let mut prepared = prepared.mapping(&options.owners)?;
    look_at_sharing(&options, &prepared)?;
    if options.verify {
        prepared = prepared.read_back()?;
    }
    let manifest = Manifest::begin(&options, &prepared)?;
    if let Some(manifest) = &manifest {
        prepared = prepared.recorded(manifest.recorder.clone());
    }
    let observer = options.observer.clone();
    let tell = move |confined: Result<(), String>| {
        if let Err(why) = confined {
            observer(Event::Unconfined { why });
        }
    };
    prepared = prepared.confined(manifest.iter().filter_map(Manifest::directory).collect(), tell);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Bug(format!("cannot start the network runtime: {e}")))?;
    let outcome = LocalSet::new().block_on(&runtime, converse(options, stats, prepared, manifest));
    runtime.shutdown_background();
    outcome
}

/// Others who can write to the destination: told, and refused to root where it is everybody.
fn look_at_sharing(options: &RecvOptions, prepared: &Prepared) -> Result<(), Error> {
    let is_root = rustix::process::geteuid().is_root();
    for sharing in prepared.sharing() {
        if is_root && sharing.with_everybody() && !options.allow.shared {
            return Err(Error::Refused(format!(
                "{sharing}, and so decide what becomes of what root receives there: take that right away \
                 (chmod o-w), name another destination, or allow it with --allow shared"
            )));
        }
        // A user's own group is how many systems set up everybody's home; only root has others to fear there.
        if is_root || sharing.with_everybody() {
            (options.observer)(Event::Warning(sharing.to_string()));
        }
    }
    Ok(())
}

/// The digests of what is received: for the manifest that was asked for, or to be compared with what is read back.
struct Manifest {
    draft: Option<Draft>,
    recorder: Arc<sink::Recorder>,
}

impl Manifest {
    fn begin(options: &RecvOptions, prepared: &Prepared) -> Result<Option<Manifest>, Error> {
        let path = match &options.manifest {
            Some(path) => path,
            None if options.verify => {
                let recorder = sink::Recorder::new(Pen::unnamed(prepared.beside())?);
                return Ok(Some(Manifest { draft: None, recorder }));
            }
            None => return Ok(None),
        };
        let (draft, pen) = match &options.destination {
            Destination::Path(destination) => Draft::create(path, std::slice::from_ref(destination)),
            Destination::Stdout | Destination::Run(_) => Draft::create(path, &[]),
        }?;
        Ok(Some(Manifest { draft: Some(draft), recorder: sink::Recorder::new(pen) }))
    }

    /// Where it is written, as a descriptor of its own.
    fn directory(&self) -> Option<OwnedFd> {
        self.draft.as_ref()?.directory().try_clone_to_owned().ok()
    }

    fn finish(self) -> Option<ManifestReport> {
        Some(self.draft?.finish(self.recorder.take()?))
    }
}

async fn converse(
    options: RecvOptions,
    stats: Arc<Stats>,
    prepared: Prepared,
    manifest: Option<Manifest>,
) -> Result<Report, Error> {
    let mut interrupts =
        Interrupts::listen().map_err(|e| Error::Bug(format!("cannot listen for signals: {}", describe_io(&e))))?;
    let listener = listen::listen(options.bind.as_ref(), options.port, &options.sockets)
        .map_err(|e| cannot_listen(&options, &e))?;
    let port = listener.local_addr().map_or(options.port, |a| a.port());
    tls::prepare().map_err(|e| Error::Bug(format!("cannot prepare TLS: {e}")))?;
    let cables = Cables::watched();
    let instance =
        InstanceId(dial::fresh_nonce().map_err(|e| Error::Bug(format!("no random bytes: {}", describe_io(&e))))?);
    let mut announcer = announcer(&options, instance, port, &cables);
    let code = announcer.as_ref().map(|_| instance.code());
    (options.observer)(Event::Listening { addrs: reachable_at(&options, port), code });

    let (call, callers) = mpsc::unbounded_channel();
    if options.trust.key.is_none() {
        (options.observer)(Event::Keyless { from: options.from.clone() });
    }
    let pending = Pending::default();
    let strangers = Strangers::seen_by(&options.observer);
    let porter =
        Rc::new(Porter { policy: Policy::of(&options), strangers, busy: Cell::default(), session: RefCell::default() });
    let beside = if options.bind.is_none() { listen::beside(&listener, &options.sockets) } else { Vec::new() };
    for listener in std::iter::once(listener).chain(beside) {
        tokio::task::spawn_local(answer_the_door(listener, pending.clone(), call.clone(), porter.clone()));
    }
    let mut door = Door { port, callers, waiting: None, porter, cables };
    let mut transfer = Some(Transfer { prepared, manifest });
    let mut measured = 0;
    loop {
        let (first, offer) = tokio::select! {
            first = door.first_hello() => first,
            signal = interrupts.next() => return Err(Error::Interrupted(format!("{signal} while waiting for a sender"))),
            // only while nobody is served
            never = announced(announcer.as_mut()) => match never {},
        };
        let peer = first.peer;
        let measures = offer == Offer::Measure;
        let prepared = transfer.as_ref().filter(|_| !measures).map(|t| &t.prepared);
        let Some(begun) = welcome::begin(&options, prepared, first, &mut door, &mut interrupts).await? else {
            continue;
        };
        if !measures {
            return serve(&options, stats, transfer.take(), begun, &mut door, &mut interrupts).await;
        }
        measured += 1;
        if is_worth_a_line(measured) {
            (options.observer)(Event::Measured { peer });
        }
        let quiet = RecvOptions { observer: Arc::new(|_| {}), ..options.clone() };
        match serve(&quiet, Arc::default(), None, begun, &mut door, &mut interrupts).await {
            Err(error @ Error::Interrupted(_)) if door.waiting.is_none() => return Err(error),
            Err(error @ Error::Bug(_)) => return Err(error),
            // however it ended, nothing was received and the next one is waited for
            _ => door.serve(None),
        }
    }
}

/// What is received.
struct Transfer {
    prepared: Prepared,
    manifest: Option<Manifest>,
}

/// One session, from its first connection on. Without anything to receive it lets the sender see how fast its links
/// are.
async fn serve(
    options: &RecvOptions,
    stats: Arc<Stats>,
    transfer: Option<Transfer>,
    begun: Begun,
    door: &mut Door,
    interrupts: &mut Interrupts,
) -> Result<Report, Error> {
    let Begun { session, offer, layout, window, trusted, agreement, peer, stream, early } = begun;
    let Agreement { keys, protection } = agreement;
    let began = Instant::now();
    let (fail, mut failure) = mpsc::unbounded_channel();
    let on_error = Box::new(move |error| drop(fail.send(error)));
    let measuring = transfer.is_none();
    door.porter.busy.set(!measuring);
    (options.observer)(Event::Connected { peer, protection });
    let (sink, manifest) = match transfer {
        Some(Transfer { prepared, manifest }) => {
            if let Some(lack) = prepared.shortage(&offer) {
                (options.observer)(Event::Warning(lack));
            }
            let prepared = prepared.allowing(options.allow, trusted);
            (prepared.open(&offer, stats.clone(), worker_count(), on_error), manifest)
        }
        None => (sink::discard(stats.clone(), on_error), None),
    };
    let sink = match sink {
        Ok(sink) => sink,
        Err(error) => {
            welcome::take_back(stream, early, &keys, &error).await;
            return Err(error);
        }
    };
    // However this ends other than well, a command that takes what comes ends before it.
    let leash = Leash::on(sink.command());
    let port = door.port;
    let (events, mut inbox) = mpsc::unbounded_channel();
    let stages = match Stages::start(session, keys.clone(), window, &sink, stats.clone(), events, door.cables.clone()) {
        Ok(stages) => stages,
        Err(error) => {
            welcome::take_back(stream, early, &keys, &error).await;
            abort(sink).await;
            return Err(error);
        }
    };
    stats.begin();
    stats.enter(Phase::Moving);

    let mut conductor = Conductor {
        options,
        session: stages.session.clone(),
        port,
        advertised: advertised(options, port),
        watch: Watch::new(options.timeout, Instant::now()),
        joined: Default::default(),
        damaged: HashMap::new(),
        peers: Vec::new(),
        finish: None,
        protection,
        measuring,
        read_back: manifest.as_ref().filter(|_| options.verify).map(|manifest| manifest.recorder.clone()),
    };
    if let Some(stream) = stream {
        let place = door::place(&stream, peer);
        conductor.start_link(LinkId(0), stream, keys.listener(LinkId(0), FIRST_NONCES), peer, place, None);
    }
    conductor.joined.insert(LinkId(0));
    early.into_iter().for_each(|caller| conductor.admit(caller));
    let outcome = conductor.receive(&mut inbox, door, &mut failure, interrupts).await;
    let mut left = None;
    let outcome = match outcome {
        Ok(finish) => conductor.commit(sink, finish, layout, &stages, &mut inbox, door, &mut failure, interrupts).await,
        Err(error) => {
            left = Some(sink);
            Err(error)
        }
    };
    match outcome {
        Ok((finish, end)) => {
            let elapsed = began.elapsed();
            leash.let_off();
            stats.enter(Phase::Done);
            conductor.until_bye(&mut inbox, door).await;
            let manifest = manifest.and_then(Manifest::finish);
            Ok(conductor.report(finish, end, manifest, began, elapsed))
        }
        Err(error) => {
            leash.pull();
            // A sender that has gone, as the last word of all links was, is not waited for again.
            if !matches!(error, Error::Peer { .. } | Error::Network(_)) {
                conductor.session.last_words().abort = Some((error.exit_code(), error.reason()));
                conductor.session.bells.ring_all();
                if !measuring {
                    let _ = timeout(limits::DRAIN, conductor.until_told(&mut inbox, door, &error)).await;
                }
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
