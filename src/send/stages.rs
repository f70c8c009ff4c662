//! The sender's stages between the source and the links: fill and seal in any order, digests folded in the chunks'
//! order.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::sync::oneshot;

use super::Source;
use super::compress::Compression;
use super::reach::Agreed;
use crate::child::{Child, Leash};
use crate::chunk::{FileDigest, Ordered, Pool, TransferDigest};
use crate::error::Error;
use crate::ids::Digest;
use crate::limits;
use crate::link::send_session::SendSession;
use crate::link::{Alarm, describe_io};
use crate::manifest::Pen;
use crate::options::SendOptions;
use crate::queue;
use crate::source::{self, ChunkLines, FillScratch, Filled, NoteSink, Planned, Recorder, SourceEnd};
use crate::stats::{Lap, Stage};
use crate::wire::{self, Layout, Offer};

/// The stages' threads.
pub(super) struct Stages {
    pub(super) pool: Arc<Pool>,
    /// What the source came to, once every chunk is sealed.
    pub(super) totals: oneshot::Receiver<Result<Totals, Error>>,
    /// The command that makes the stream.
    pub(super) command: Option<Arc<Child>>,
}

/// What the source came to.
pub(super) struct Totals {
    pub(super) end: SourceEnd,
    pub(super) notes: Arc<NoteSink>,
    pub(super) transfer_digest: Digest,
    pub(super) stream_digest: Option<Digest>,
    /// From standard input or a command, which may bring nothing by mistake.
    pub(super) is_stream: bool,
    /// The manifest, written but for its end.
    pub(super) manifest: Option<Pen>,
}

/// Digests of chunks sealed in any order, folded in theirs.
pub(super) struct Folded {
    pub(super) order: Ordered<(wire::ChunkKind, u32, Digest, Option<Box<ChunkLines>>)>,
    pub(super) transfer: TransferDigest,
    pub(super) stream: Option<FileDigest>,
    pub(super) recorder: Option<Recorder>,
}

impl Stages {
    pub(super) fn start(
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
        let is_stream = matches!(source, Source::Stdin | Source::Run(_));
        let mut command = None;
        let name = match source.offer() {
            Offer::File { name, .. } | Offer::Device { name, .. } => Some(name),
            Offer::Stream | Offer::Measure | Offer::Tree { .. } => None,
        };
        let running = match source {
            Source::Stdin => source::start_stdin(pool.clone(), stats.clone(), notes.clone()),
            Source::Run(line) => {
                let started = Child::producer(&line).map_err(|source| Error::Source { path: "sh".into(), source })?;
                command = Some(started.0.clone());
                source::start_command(started, pool.clone(), stats.clone(), notes.clone())
            }
            Source::Measure(enough) => source::start_filler(pool.clone(), stats.clone(), notes.clone(), enough),
            Source::Tree(tree) => source::start(
                tree.naming_owners(agreed.owner_names),
                agreed.layout,
                pool.clone(),
                stats.clone(),
                notes.clone(),
                workers,
            ),
        };
        // Should a thread not start.
        let leash = Leash::on(command.clone());
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
                    Ok(Totals { end, notes, transfer_digest, stream_digest, is_stream, manifest })
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
        leash.let_off();
        Ok(Stages { pool, totals, command })
    }
}

pub(super) fn fill_and_seal(
    planned: crossbeam_channel::Receiver<Planned>,
    compression: &Compression,
    session: &SendSession,
    folded: &Mutex<Folded>,
) {
    let _alarm = Alarm::new(&session.events);
    let mut scratch = FillScratch::default();
    let mut sealer = compression.sealer(session);
    let [fill, hash, compress] = [Stage::Fill, Stage::Hash, Stage::Compress].map(|stage| session.stats.watch(stage));
    let mut lap = Lap::start();
    for planned in queue::each(planned) {
        lap.book(&fill.wait_in);
        let filled = planned.fill(&mut scratch);
        lap.book(&fill.busy);
        let Filled { seq, kind, len, buf, lines } = filled;
        let (sealed, compressed_for) = compression.seal(session, &mut sealer, seq, kind, len, buf);
        lap.split(&hash.busy, compressed_for, &compress.busy);
        let (head, digest) = (sealed.head, sealed.digest);
        session.stats.payload_bytes.fetch_add(head.payload_len.into(), Relaxed);
        {
            let mut folded = folded.lock().expect("a panicking worker ends the session");
            let Folded { order, transfer, stream, recorder } = &mut *folded;
            let mut lens = session.lens.lock().expect("no thread panics while it holds this lock");
            let chunk = (head.kind, head.content_len, digest, lines);
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
        session.flow().sealed(session.session, head.seq, sealed);
        session.bells.ring_one();
        lap.book(&hash.wait_out);
    }
}
