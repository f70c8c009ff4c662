//! What all links of a sending session share: its decisions, what is to be said at its end, and which connections are
//! up. Mirrors [`super::recv_session`].

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::cables::Cables;
use super::throttle::Limits;
use super::{Bells, Clock, Ended, LinkEvent};
use crate::chunk::Sealed;
use crate::error::ExitCode;
use crate::flow::SendFlow;
use crate::ids::{LinkId, SessionId};
use crate::options::SocketOptions;
use crate::report::{Note, Notes};
use crate::stats::{LinkStats, Stats};
use crate::wire::{Finish, SessionKeys};

/// What the conductor wants every link to say before it ends.
#[derive(Default, Debug)]
pub struct LastWords {
    /// The sender's totals, once the source has ended.
    pub finish: Option<Finish>,
    /// The notes that Finish counts.
    pub notes: Vec<Note>,
    /// Notes the receiver has.
    pub notes_acked: u64,
    /// The link that carries the notes, so that they are not sent on every link.
    pub(super) notes_link: Option<LinkId>,
    /// Commit has arrived.
    pub bye: bool,
    /// A link has said so; what others are still sending is of no use.
    pub(super) bye_said: bool,
    /// The session has failed.
    pub abort: Option<(ExitCode, String)>,
}

impl LastWords {
    /// Finish, with the notes it counts.
    pub fn set_finish(&mut self, finish: Finish, notes: Notes) {
        self.notes = notes.named;
        self.finish = Some(finish);
    }
}

/// What all links of a sending session share.
pub struct SendSession {
    /// The session.
    pub session: SessionId,
    /// Its time.
    pub clock: Clock,
    /// Its decisions.
    pub flow: Mutex<SendFlow<Sealed>>,
    /// Links take turns strictly: a chunk that has gone makes it the next link's turn.
    pub strict: bool,
    /// How fast links may be.
    pub limits: Limits,
    /// For connections that are dialled.
    pub sockets: SocketOptions,
    /// Of its connections and chunks.
    pub keys: Arc<SessionKeys>,
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
    /// Links that must go for good, by name, and why.
    pub expelled: watch::Sender<Vec<(String, String)>>,
    /// Lengths of the chunks that are sealed in order and not yet acknowledged, and the number of the first.
    pub lens: Mutex<(u64, VecDeque<u32>)>,
    /// What is up: for losses that an acknowledgement on another link brings to light, and to be measured.
    pub by_link: Mutex<Vec<Connection>>,
}

/// A connection that is up.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its id.
    pub link: LinkId,
    /// Its link's name and counters.
    pub stats: Arc<LinkStats>,
    /// Its socket, to ask the kernel about.
    pub stream: Arc<TcpStream>,
}

impl SendSession {
    /// The flow, for one decision.
    pub fn flow(&self) -> MutexGuard<'_, SendFlow<Sealed>> {
        self.flow.lock().expect("no thread panics while it holds the flow")
    }

    /// The last words.
    pub fn last_words(&self) -> MutexGuard<'_, LastWords> {
        self.last_words.lock().expect("no thread panics while it holds this lock")
    }

    /// End it without sending what is left.
    pub fn end_early(&self) {
        self.tell(LinkEvent::Enough);
    }

    /// Let every connection of that link end, and none be dialled again.
    pub fn expel(&self, link: &str, why: String) {
        self.expelled.send_modify(|expelled| expelled.push((link.to_owned(), why)));
    }

    /// Until that link has to go.
    pub(super) async fn until_expelled(&self, link: &str) -> Ended {
        let mut news = self.expelled.subscribe();
        let why = news.wait_for(|expelled| expelled.iter().any(|(name, _)| name == link)).await;
        match why.ok().and_then(|all| all.iter().find(|(name, _)| name == link).map(|(_, why)| why.clone())) {
            Some(why) => Ended::for_good(why),
            None => std::future::pending().await,
        }
    }

    /// Whether no link need be dialled again.
    pub fn is_over(&self) -> bool {
        let words = self.last_words();
        words.bye || words.abort.is_some()
    }

    /// Count what the flow has seen acknowledged.
    pub(super) fn acked(&self) {
        let acked = self.flow().acked();
        let mut lens = self.lens.lock().expect("no thread panics while it holds this lock");
        while lens.0 < acked
            && let Some(len) = lens.1.pop_front()
        {
            self.stats.stream_done.fetch_add(u64::from(len), Relaxed);
            lens.0 += 1;
        }
    }

    /// Tell the conductor.
    pub fn tell(&self, event: LinkEvent) {
        // the conductor outlives the links; once it is gone nobody wants to know
        let _ = self.events.send(event);
    }
}
