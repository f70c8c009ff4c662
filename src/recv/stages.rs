//! The receiver's stages between the links and the sink: open and verify in any order, deliver in the chunks' order.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::chunk::{Opener, Pool, Release, TransferDigest};
use crate::error::Error;
use crate::flow::{RecvFlow, Verdict};
use crate::ids::SessionId;
use crate::limits;
use crate::link::cables::Cables;
use crate::link::recv_session::{Arrived, RecvSession};
use crate::link::{Alarm, Clock, LinkEvent, describe_io};
use crate::options::Window;
use crate::queue;
use crate::sink::{Feed, Sink};
use crate::stats::{Lap, Stage, Stats, Stopwatch};
use crate::wire::SessionKeys;

pub(super) fn worker_count() -> usize {
    thread::available_parallelism().map_or(2, |n| n.get()).max(2)
}

/// The stages' threads and what they share.
pub(super) struct Stages {
    pub(super) session: Arc<RecvSession>,
    pub(super) transfer: Arc<Mutex<TransferDigest>>,
}

impl Stages {
    pub(super) fn start(
        session: SessionId,
        keys: Arc<SessionKeys>,
        window: Window,
        sink: &Sink,
        stats: Arc<Stats>,
        events: UnboundedSender<LinkEvent>,
        cables: Arc<Cables>,
    ) -> Result<Stages, Error> {
        let buffers = window.max as usize + limits::LINKS_MAX;
        let pool = Pool::new(buffers, limits::CHUNK_LEN);
        let pool_bell = Arc::new(Notify::new());
        let bell = pool_bell.clone();
        pool.on_return(move || bell.notify_one());
        let (arrived, arrivals) = queue::bounded(buffers);
        let session = Arc::new(RecvSession {
            session,
            clock: Clock::start(),
            flow: Mutex::new(RecvFlow::new(session, window)),
            notes: Mutex::new(Vec::new()),
            keys,
            pool,
            pool_bell,
            arrived,
            cables,
            bells: Default::default(),
            last_words: Default::default(),
            events,
            stats,
        });
        let transfer = Arc::new(Mutex::new(TransferDigest::new()));
        // a mutex of its own keeps deliveries in order without holding up the links
        let out = Arc::new(Mutex::new(sink.feed().clone()));
        let release = release_hook(&session, window.start);
        for i in 0..worker_count() {
            let (arrivals, out) = (arrivals.clone(), out.clone());
            let opener = Opener::new().keyed(session.keys.chunks());
            let [verify, decompress] = [Stage::Verify, Stage::Decompress].map(|stage| session.stats.watch(stage));
            let (session, transfer, release) = (Arc::downgrade(&session), transfer.clone(), release.clone());
            thread::Builder::new()
                .name(format!("open-{i}"))
                .spawn(move || {
                    let mut worker = Worker { opener, lap: Lap::start(), verify, decompress };
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
pub(super) fn release_hook(session: &Arc<RecvSession>, window: u32) -> Arc<dyn Fn() + Send + Sync> {
    let session = Arc::downgrade(session);
    let freed = AtomicU64::new(0);
    let worth_telling = u64::from(window / 8).max(1);
    Arc::new(move || {
        let Some(session) = session.upgrade() else { return };
        let is_worth_it = (freed.fetch_add(1, Relaxed) + 1).is_multiple_of(worth_telling);
        {
            let mut flow = session.flow();
            flow.released(session.session, 1);
            if is_worth_it {
                flow.hurry();
            }
        }
        if is_worth_it {
            session.bells.ring_next();
        }
    })
}

/// What each opening thread has for itself.
pub(super) struct Worker {
    pub(super) opener: Opener,
    pub(super) lap: Lap,
    pub(super) verify: Arc<Stopwatch>,
    pub(super) decompress: Arc<Stopwatch>,
}

pub(super) fn open_and_deliver(
    arrived: Arrived,
    worker: &mut Worker,
    session: &RecvSession,
    transfer: &Mutex<TransferDigest>,
    release: &Arc<dyn Fn() + Send + Sync>,
    out: &Mutex<Feed>,
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
            // first, so that a link that has to go for it can still say so
            session.bells.ring(link);
            session.tell(LinkEvent::Corrupt { stats, count });
            if strikes.in_a_row >= limits::CORRUPT_IN_A_ROW_MAX {
                session.tell(LinkEvent::Hopeless { link });
            }
        }
    }
    deliver(session, transfer, release, out);
    session.bells.ring_if_waiting(link);
}

/// Hand every chunk whose turn has come to the sink.
pub(super) fn deliver(
    session: &RecvSession,
    transfer: &Mutex<TransferDigest>,
    release: &Arc<dyn Fn() + Send + Sync>,
    out: &Mutex<Feed>,
) {
    let out = out.lock().expect("a panicking worker ends the session");
    loop {
        let next = session.flow().poll_deliver();
        let Some((_, mut chunk)) = next else { break };
        transfer.lock().expect("a panicking worker ends the session").push(chunk.len, chunk.digest);
        chunk.release = Some(Release::new(release.clone()));
        // gone only when the sink has failed, and then the conductor knows
        let _ = out.put(chunk);
    }
    let complete = session.flow().complete();
    drop(out);
    if complete {
        session.tell(LinkEvent::Complete);
    }
}
