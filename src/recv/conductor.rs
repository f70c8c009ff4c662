//! The receiver's one decider: takes every event, one at a time, and says when the session is over and how.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::abort;
use super::door::{BUSY, Caller, Door, NO_SESSION, Place, Wish, advertised, place, turn_away};
use super::read_back;
use super::stages::Stages;
use crate::error::{Error, ExitCode, escape_words};
use crate::ids::{LinkId, SessionId};
use crate::limits;
use crate::link::cables;
use crate::link::recv_link::{self, Go};
use crate::link::recv_session::RecvSession;
use crate::link::watch::{self, Interrupts, Watch};
use crate::link::{Ended, LinkEvent, describe_io, dial, discover, handshake};
use crate::options::RecvOptions;
use crate::report::{Event, ManifestReport, Notes, Omitted, Protection, Report};
use crate::sink::{Recorder, Sink, SinkEnd};
use crate::stats::{Phase, Stage};
use crate::wire::{Address, Commit, Control, Finish, FrameKeys, Handshake, Layout};

pub(super) struct Conductor<'a> {
    pub(super) options: &'a RecvOptions,
    pub(super) session: Arc<RecvSession>,
    pub(super) port: u16,
    /// Where the sender knows that we can be reached.
    pub(super) advertised: Vec<Address>,
    pub(super) watch: Watch,
    /// Ids that have joined.
    pub(super) joined: Joined,
    /// How many connections in a row of each peer address ended damaged.
    pub(super) damaged: HashMap<IpAddr, u32>,
    /// What is known of each connection.
    pub(super) peers: Vec<Peer>,
    pub(super) finish: Option<Finish>,
    pub(super) protection: Protection,
    /// Nothing is kept, and anybody else who comes is more important.
    pub(super) measuring: bool,
    /// Who knows what the files should be that are read back in the end.
    pub(super) read_back: Option<Arc<Recorder>>,
}

/// Ids that have joined, so that a repeated Join is refused. Only the highest are remembered, since a peer may join for
/// ever; whatever is lower counts as joined.
#[derive(Default)]
pub(super) struct Joined {
    latest: BTreeSet<LinkId>,
    /// Lower ones are not fresh.
    from: u32,
}

impl Joined {
    fn is_fresh(&self, link: LinkId) -> bool {
        link.0 >= self.from && !self.latest.contains(&link)
    }

    pub(super) fn insert(&mut self, link: LinkId) {
        self.latest.insert(link);
        if self.latest.len() > limits::JOINED_MAX
            && let Some(lowest) = self.latest.pop_first()
        {
            self.from = lowest.0.saturating_add(1);
        }
    }
}

/// One connection, as the conductor sees it.
pub(super) struct Peer {
    pub(super) link: LinkId,
    pub(super) ip: IpAddr,
    /// Ours by which it comes in.
    pub(super) interface: String,
    /// Ours that has the address which was dialled, if that is another.
    pub(super) instead_of: Option<String>,
    /// Good chunks that had come over the same interface before.
    pub(super) chunks_before: u64,
    /// Ends it.
    pub(super) go: Arc<Go>,
    /// It was told to go.
    pub(super) leaving: bool,
}

impl Conductor<'_> {
    /// Work a connection; `answer` is said first.
    pub(super) fn start_link(
        &mut self,
        link: LinkId,
        mut stream: TcpStream,
        keys: FrameKeys,
        peer: SocketAddr,
        place: Place,
        answer: Option<Handshake>,
    ) {
        let session = self.session.clone();
        let Place { name, instead_of } = place;
        let stats = session.stats.link(&name);
        self.joined.insert(link);
        let go = Arc::<Go>::default();
        let ip = discover::canonical(peer.ip());
        let chunks_before = stats.chunks.load(Relaxed);
        self.peers.push(Peer { link, ip, interface: name, instead_of, chunks_before, go: go.clone(), leaving: false });
        tokio::task::spawn_local(async move {
            if let Some(answer) = answer
                && let Err(e) = handshake::say(&mut stream, &answer, &session.keys.joins()).await
            {
                return session.tell(LinkEvent::Stillborn { link, stats, ended: Ended::by_peer(e.to_string()) });
            }
            recv_link::run(&session, link, stats, stream, keys, go).await;
        });
    }

    /// Keep count of damage by peer: a link that brings nothing else is turned away when it is dialled again.
    fn judge(&mut self, link: LinkId, ended: Ended, chunks: u64) -> Ended {
        let Some(at) = self.peers.iter().position(|p| p.link == link) else { return ended };
        let Peer { ip, chunks_before, .. } = self.peers.swap_remove(at);
        if self.damaged.len() >= limits::JOINED_MAX {
            // a peer may have any number of addresses
            self.damaged.clear();
        }
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
    pub(super) async fn receive(
        &mut self,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        door: &mut Door,
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
                caller = door.next() => {
                    if self.measuring && matches!(caller.wish, Wish::Begin(_)) {
                        door.waiting = Some(caller);
                        return Err(Error::Interrupted("another sender came".into()));
                    }
                    self.admit(caller);
                }
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
        let now = advertised(self.options, self.port);
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
    pub(super) async fn commit(
        &mut self,
        mut sink: Sink,
        finish: Finish,
        layout: Layout,
        stages: &Stages,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        door: &mut Door,
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
        let stop = sink.stopper();
        let (read_back, stats) = (sink.take_readable().zip(self.read_back.take()), self.session.stats.clone());
        let check = move |end| match read_back {
            Some((readable, recorder)) => read_back::run(&readable, &recorder, end, &stats),
            None => Ok(end),
        };
        thread::Builder::new()
            .name("sink-end".into())
            .spawn(move || drop(tell.send(sink.finish(finish).and_then(check))))
            .map_err(|e| Error::Bug(format!("cannot start a thread: {}", describe_io(&e))))?;
        let waited = loop {
            tokio::select! {
                end = &mut ended => {
                    break Ok(end.unwrap_or_else(|_| Err(Error::Bug("the sink's last thread panicked".into()))));
                }
                Some(event) = inbox.recv() => if let Err(error) = self.handle(event) { break Err(error) },
                caller = door.next() => self.admit(caller),
                Some(error) = failure.recv() => break Err(error),
                signal = interrupts.next() => {
                    break Err(Error::Interrupted(format!("{signal} while syncing; {}", self.progress())));
                }
            }
        };
        let end: SinkEnd = match waited {
            Ok(end) => end?,
            Err(error) => {
                // Something may still be under a temporary name; that goes before this process does.
                stop();
                let _ = timeout(limits::DRAIN, ended).await;
                return Err(error);
            }
        };
        let expected = (finish.entries, finish.content_bytes);
        if layout == Layout::Archive && end.notes.losses == 0 && end.entries != 0 && end.entries != expected.0 {
            return Err(Error::Verification(format!("{} entries arrived, {} were sent", end.entries, expected.0)));
        }
        let partial = finish.unnamed.0 > 0 || self.source_notes().losses > 0 || end.notes.losses > 0;
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

    /// After Commit: until the sender has confirmed it and one link has ended in goodbyes, or the sender is gone.
    /// Durable is durable, whatever the sender knows.
    pub(super) async fn until_bye(&mut self, inbox: &mut UnboundedReceiver<LinkEvent>, door: &mut Door) {
        let mut patience = Instant::now() + limits::PEER_GONE;
        let mut confirmed = false;
        while !confirmed || self.watch.connections() > 0 {
            tokio::select! {
                Some(event) = inbox.recv() => match event {
                    LinkEvent::Control(Control::Bye) if !confirmed => {
                        confirmed = true;
                        patience = Instant::now() + limits::DRAIN;
                    }
                    LinkEvent::Down { ended, .. } if confirmed && ended.is_over() => break,
                    event => drop(self.count(event)),
                },
                caller = door.next() => self.admit(caller),
                () = tokio::time::sleep_until(patience) => break,
            }
        }
        if !confirmed {
            let text = "everything is durable here, but the sender left before it confirmed that it knows".into();
            (self.options.observer)(Event::Warning(text));
        }
    }

    /// After a failure: until the sender has heard of it, on a link that is up or by dialling one that is not.
    pub(super) async fn until_told(
        &mut self,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        door: &mut Door,
        error: &Error,
    ) {
        let mut told = false;
        while !told || self.watch.connections() > 0 {
            tokio::select! {
                Some(event) = inbox.recv() => {
                    // a link that the sender closed has brought it our word, or it is gone
                    told |= matches!(&event, LinkEvent::Down { ended, .. } | LinkEvent::Stillborn { ended, .. } if ended.by_peer);
                    drop(self.count(event));
                }
                caller = door.next() => {
                    let is_ours = matches!(&caller.wish, Wish::Join { session, .. } if *session == self.session.session);
                    turn_away(caller, error.exit_code(), &error.reason());
                    if is_ours {
                        // the answer is small; a moment for it, then this process may end
                        told = true;
                        tokio::time::sleep(limits::REDIAL_MIN).await;
                    }
                }
            }
        }
    }

    /// Whether a link of that id could be one of this session.
    fn may_join(&self, session: SessionId, link: LinkId) -> bool {
        session == self.session.session && self.joined.is_fresh(link) && self.peers.len() < limits::LINKS_MAX
    }

    /// Of two of the sender's cables into one of ours (ARP answers for every address on every interface) the one goes
    /// that does not belong here: the new one, if it is that, and why; otherwise whoever is here already.
    fn is_misplaced(&self, place: &Place, ip: IpAddr) -> Option<String> {
        let here = &place.name;
        let why = |other: &str| format!("it arrives by {here}, not by {other}, and {here} has a link");
        let mut others = self.peers.iter().filter(|p| p.interface == *here && p.ip != ip);
        if let Some(other) = &place.instead_of {
            return others.next().map(|_| why(other));
        }
        for peer in others {
            let Some(other) = &peer.instead_of else { continue };
            let (go, why) = (peer.go.clone(), Ended::lost(why(other)));
            // the sender may be about to close it by itself
            tokio::task::spawn_local(async move {
                tokio::time::sleep(limits::MISPLACED).await;
                go.tell(why);
            });
        }
        None
    }

    /// Decide about a caller once the session runs.
    pub(super) fn admit(&mut self, caller: Caller) {
        match caller.wish {
            Wish::Join { session, link, nonce } if session == self.session.session => {
                let ip = discover::canonical(caller.peer.ip());
                let strikes = self.damaged.get(&ip).copied().unwrap_or(0);
                if strikes >= limits::CORRUPT_IN_A_ROW_MAX {
                    // the session goes on without this link
                    return turn_away(caller, ExitCode::Partial, "this link damaged too much in a row");
                }
                if !self.may_join(session, link) {
                    return turn_away(caller, ExitCode::Network, "this link has joined before, or there are too many");
                }
                let place = place(&caller.stream, caller.peer);
                if let Some(reason) = self.is_misplaced(&place, ip) {
                    return turn_away(caller, ExitCode::Network, &reason);
                }
                let Ok(own) = dial::fresh_nonce() else {
                    return turn_away(caller, ExitCode::Network, "the receiver has no random bytes");
                };
                let joined = Handshake::Joined { session, link, nonce, own };
                let keys = self.session.keys.listener(link, [nonce, own]);
                self.start_link(link, caller.stream, keys, caller.peer, place, Some(joined));
            }
            Wish::Join { .. } => turn_away(caller, ExitCode::Network, NO_SESSION),
            Wish::Begin(_) => turn_away(caller, ExitCode::Refused, BUSY),
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
                let counted = self.session.flow().finish(finish.chunks);
                // from now on acknowledgements cannot wait
                self.session.bells.ring_all();
                counted.map_err(|v| Error::Verification(format!("the sender broke the protocol: {v}")))
            }
            Some(LinkEvent::Hopeless { link }) => {
                if self.peers.iter().all(|p| p.link == link || p.leaving) {
                    let text = "the only link that is left damages every chunk";
                    return Err(Error::Verification(format!("{text}; {}", self.progress())));
                }
                if let Some(peer) = self.peers.iter_mut().find(|p| p.link == link) {
                    peer.leaving = true;
                    peer.go.tell(Ended::damaged_for_good("it damaged too many chunks in a row"));
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
                let after = self.watch.up(&stats.name, Instant::now());
                tell(Event::LinkUp { name: stats.name.clone(), after });
            }
            LinkEvent::Proven { stats } => self.watch.proven(&stats.name),
            LinkEvent::Down { stats, ended, link } if ended.is_left() => {
                let ended = self.judge(link, ended, stats.chunks.load(Relaxed));
                self.watch.left(&stats.name, &ended, Instant::now());
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
            LinkEvent::Stillborn { link, stats, ended } => {
                let ended = self.judge(link, ended, stats.chunks.load(Relaxed));
                self.watch.unreachable(&stats.name, &ended, Instant::now());
            }
            LinkEvent::Corrupt { stats, count } => tell(Event::Corrupt { link: stats.name.clone(), count }),
            other => return Some(other),
        }
        None
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

    pub(super) fn report(
        &self,
        finish: Finish,
        end: SinkEnd,
        manifest: Option<ManifestReport>,
        began: Instant,
        elapsed: Duration,
    ) -> Report {
        let mut source_notes = self.source_notes();
        source_notes.losses = source_notes.losses.saturating_add(finish.unnamed.0);
        source_notes.harmless = source_notes.harmless.saturating_add(finish.unnamed.1);
        Report {
            omitted: Omitted::default(),
            protection: self.protection,
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
            links: self.watch.report(&self.session.stats, began + elapsed),
            source_notes,
            sink_notes: end.notes,
            sender_stages: Vec::new(),
            receiver_stages: self.session.stats.stages(Stage::Receive),
            empty_stdin: false,
            device_size: end.device_size,
            read_back: end.read_back,
            command: end.command,
        }
    }
}
