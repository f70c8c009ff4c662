//! What all links of a receiving session share: its decisions, what is to be said at its end, and where chunks go.
//! Mirrors [`super::send_session`].

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::cables::Cables;
use super::{Bells, Clock, LinkEvent};
use crate::chunk::{Buf, Chunk, Pool};
use crate::error::ExitCode;
use crate::flow::RecvFlow;
use crate::ids::{LinkId, SessionId};
use crate::limits;
use crate::queue::Putter;
use crate::report::Note;
use crate::stats::{LinkStats, Stats};
use crate::wire::{self, ChunkHead, Commit, SessionKeys};

/// The sender has much to go on with if its window has this many chunks, and there is no end in sight.
const ACK_WINDOW_MIN: u32 = 64;

/// A chunk frame as it came, on its way to a verifying thread.
pub struct Arrived {
    /// The link that brought it.
    pub link: LinkId,
    /// Its place among the link's chunk frames.
    pub index: u64,
    /// What its header says.
    pub head: ChunkHead,
    /// Its payload.
    pub buf: Buf,
    /// The link's counters.
    pub stats: Arc<LinkStats>,
}

/// What the conductor wants every link to say before it ends.
#[derive(Default, Debug)]
pub struct LastWords {
    /// Where we can be reached, once that has changed since Welcome, and how often it has.
    pub addresses: (Vec<wire::Address>, u64),
    /// Everything is durable.
    pub commit: Option<Commit>,
    /// The session has failed.
    pub abort: Option<(ExitCode, String)>,
}

/// What all links of a receiving session share.
pub struct RecvSession {
    /// The session.
    pub session: SessionId,
    /// Its time.
    pub clock: Clock,
    /// Its decisions.
    pub flow: Mutex<RecvFlow<Chunk>>,
    /// Notes of the sender that have arrived, contiguous from 0.
    pub notes: Mutex<Vec<Note>>,
    /// Of its connections and chunks.
    pub keys: Arc<SessionKeys>,
    /// Buffers.
    pub pool: Arc<Pool>,
    /// Rung when a buffer comes back.
    pub pool_bell: Arc<Notify>,
    /// Into the verifying threads; as long as the pool.
    pub arrived: Putter<Arrived>,
    /// Our interfaces.
    pub cables: Arc<Cables>,
    /// The links' bells.
    pub bells: Bells,
    /// What is to be said at the end.
    pub last_words: Mutex<LastWords>,
    /// Where links report.
    pub events: UnboundedSender<LinkEvent>,
    /// Counters.
    pub stats: Arc<Stats>,
}

impl RecvSession {
    /// The flow, for one decision.
    pub fn flow(&self) -> MutexGuard<'_, RecvFlow<Chunk>> {
        self.flow.lock().expect("no thread panics while it holds the flow")
    }

    /// The last words.
    pub fn last_words(&self) -> MutexGuard<'_, LastWords> {
        self.last_words.lock().expect("no thread panics while it holds this lock")
    }

    /// Keep the sender's notes from number `first` on, as far as they are new. They go straight to where they are kept,
    /// bounded: a mailbox would grow while its owner does something else. Says how the sender broke the protocol.
    pub(super) fn take_notes(&self, first: u64, notes: Vec<Note>) -> Result<(), String> {
        let mut have = self.notes.lock().expect("no thread panics while it holds this lock");
        // with a gap before them they are of no use; the sender says them again
        let Some(known) = (have.len() as u64).checked_sub(first) else { return Ok(()) };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        if notes.len() <= known {
            return Ok(());
        }
        let mut len: usize = have.iter().map(Note::text_len).sum();
        for note in notes.into_iter().skip(known) {
            len += note.text_len();
            if have.len() == limits::NOTES_MAX || len > limits::NOTES_LEN_MAX {
                return Err("it sent more notes than a side keeps".into());
            }
            have.push(note);
        }
        drop(have);
        self.bells.ring_all();
        // they may be the last that Finish counts
        self.tell(LinkEvent::Complete);
        Ok(())
    }

    /// Where links and threads report.
    pub fn tell(&self, event: LinkEvent) {
        // the conductor outlives the links; once it is gone nobody wants to know
        let _ = self.events.send(event);
    }

    /// The whole state, as the next acknowledgement says it, and its version.
    pub(super) fn state(&self) -> (wire::Ack, u64) {
        let notes = self.notes.lock().expect("no thread panics while it holds this lock").len() as u64;
        let flow = self.flow();
        let mut ack = flow.ack();
        ack.notes = notes;
        // notes arrive once, at the end: they count as a change of the state like any other
        (ack, flow.version().wrapping_add(notes))
    }

    /// The state's version, and whether a link that last acknowledged version `acked` can wait with the next.
    pub(super) fn version(&self, acked: Option<u64>) -> (u64, bool) {
        let notes = self.notes.lock().expect("no thread panics while it holds this lock").len() as u64;
        let mut flow = self.flow();
        flow.look(self.clock.now());
        let knows = acked.is_some_and(|acked| acked >= flow.urgent().wrapping_add(notes));
        let can_wait = knows && flow.window() >= ACK_WINDOW_MIN && !flow.is_ending();
        (flow.version().wrapping_add(notes), can_wait)
    }
}
