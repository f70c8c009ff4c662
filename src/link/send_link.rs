//! The sender's end of one link: chunks out, acknowledgements in.
//!
//! What goes next, in this order: Abort; Bye; Pong; Notes and Finish; a chunk, if the flow has one for this link and
//! the socket has room; a Ping if nothing else was said for a while. A chunk belongs to the link once the socket took
//! its first byte.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep_until, timeout};

use super::cables::Cables;
use super::pace::Pace;
use super::read::{FrameReader, Pulse, ReadError};
use super::{Bell, Bells, Clock, Ended, LinkEvent, read, socket, write};
use crate::chunk::Sealed;
use crate::error::ExitCode;
use crate::flow::{Lack, Poll, SendFlow, Why};
use crate::ids::{LinkId, SessionId};
use crate::limits;
use crate::report::{Note, Notes};
use crate::stats::{Lap, LinkStats, Stats};
use crate::sys;
use crate::wire::{self, Control, Finish, Header, TagKey};

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
    notes_link: Option<LinkId>,
    /// Commit has arrived.
    pub bye: bool,
    /// A link has said so; what others are still sending is of no use.
    bye_said: bool,
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
    /// Keys the tags.
    pub key: TagKey,
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
    /// Lengths of the chunks that are sealed in order and not yet acknowledged, and the number of the first.
    pub lens: Mutex<(u64, VecDeque<u32>)>,
    /// Names and counters by link, for losses that an acknowledgement on another link brings to light.
    pub by_link: Mutex<Vec<(LinkId, Arc<LinkStats>)>>,
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

    /// Whether no link need be dialled again.
    pub fn is_over(&self) -> bool {
        let words = self.last_words();
        words.bye || words.abort.is_some()
    }

    /// Count what the flow has seen acknowledged.
    fn acked(&self) {
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

/// Work one connection until it ends. `control_only` links carry no chunks. `fault` ends it early, if it ever does.
pub async fn run(
    session: &Arc<SendSession>,
    link: LinkId,
    stats: Arc<LinkStats>,
    stream: &TcpStream,
    control_only: bool,
    fault: impl Future<Output = Ended>,
) -> Ended {
    let bell = session.bells.add(link);
    session.by_link.lock().expect("no thread panics while it holds this lock").push((link, stats.clone()));
    if !control_only {
        session.flow().link_up(link);
    }
    stats.up.fetch_add(1, Relaxed);
    session.tell(LinkEvent::Up { link, stats: stats.clone() });
    let pulse = Pulse::start();
    let (pong, failed, proven) = (Cell::new(None), Cell::new(None), Cell::new(false));
    let end =
        SendLink { session, link, stats: &stats, stream, bell: &bell, pulse: &pulse, pong: &pong, proven: &proven };
    let ended = tokio::select! {
        biased;
        ended = end.read() => ended,
        ended = end.write(control_only, &failed) => ended,
        ended = pulse.until_silent() => ended,
        ended = session.cables.until_pulled(stream) => ended,
        ended = fault => ended,
    };
    let ended = failed.take().filter(|failed: &Ended| !failed.by_peer).unwrap_or(ended);
    let ended = ended.after(pulse.quiet(), proven.get());
    session.bells.remove(link);
    session.by_link.lock().expect("no thread panics while it holds this lock").retain(|(id, _)| *id != link);
    if !control_only {
        session.flow().link_down(link);
    }
    {
        let mut words = session.last_words();
        if words.notes_link == Some(link) {
            words.notes_link = None;
        }
    }
    stats.up.fetch_sub(1, Relaxed);
    session.bells.ring_all();
    session.tell(LinkEvent::Down { link, stats, ended: ended.clone() });
    ended
}

struct SendLink<'a> {
    session: &'a SendSession,
    link: LinkId,
    stats: &'a Arc<LinkStats>,
    stream: &'a TcpStream,
    bell: &'a Bell,
    pulse: &'a Pulse,
    pong: &'a Cell<Option<u64>>,
    /// It has been of use.
    proven: &'a Cell<bool>,
}

enum Owed {
    Nothing,
    Frames,
    FramesThenEnd,
}

impl SendLink<'_> {
    async fn write(&self, control_only: bool, failed: &Cell<Option<Ended>>) -> Ended {
        match self.write_frames(control_only).await {
            Ok(ended) => ended,
            Err(e) => {
                // what the peer said before it closed may still wait to be read; the reading side ends the link
                failed.set(Some(Ended::from_io(&e)));
                std::future::pending().await
            }
        }
    }

    async fn write_frames(&self, control_only: bool) -> std::io::Result<Ended> {
        let mut bytes = Vec::with_capacity(4 << 10);
        let mut finish_said = false;
        wire::encode_control(&Control::Ping(0), &self.session.key, &mut bytes);
        write::all(self.stream, self.pulse, &bytes).await?;
        let (mut lap, times) = (Lap::start(), &self.stats.times);
        let mut pace = Pace::new(limits::SEND_PORTION_TIME, limits::SEND_PORTION_MIN, limits::SEND_PORTION_MAX);
        loop {
            bytes.clear();
            match self.owed(&mut finish_said, &mut bytes) {
                Owed::Nothing => {}
                Owed::Frames => {
                    write::all(self.stream, self.pulse, &bytes).await?;
                    continue;
                }
                Owed::FramesThenEnd => {
                    write::all(self.stream, self.pulse, &bytes).await?;
                    let first = {
                        let mut words = self.session.last_words();
                        words.bye && !std::mem::replace(&mut words.bye_said, true)
                    };
                    if first {
                        self.session.bells.ring_all();
                    }
                    let _ = rustix::net::shutdown(self.stream, rustix::net::Shutdown::Write);
                    let _ = timeout(limits::DRAIN, read::drain(self.stream, self.pulse)).await;
                    return Ok(Ended::over());
                }
            }
            self.bell.will_wait();
            let poll = if control_only {
                Poll::Idle
            } else {
                self.session.flow().poll_send(self.link, self.session.clock.now())
            };
            let heartbeat = self.pulse.next_heartbeat();
            match poll {
                Poll::Send(take) => {
                    self.bell.wont_wait();
                    let header = wire::encode_chunk_header(&take.payload.head, &self.session.key);
                    let payload = take.payload.payload();
                    match write::begin(self.stream, &header, payload)? {
                        Some(sent) => {
                            self.session.flow().sent(self.link, take.seq, self.session.clock.now());
                            if self.session.strict {
                                self.session.bells.ring_all();
                            }
                            let waited = tokio::select! {
                                biased;
                                done = write::rest(self.stream, self.pulse, &header, payload, sent) => done?,
                                () = self.is_useless() => return Ok(Ended::lost("the session is over without it")),
                            };
                            lap.split(&times.busy, waited, &times.network);
                            self.count(&take.why, header.len() + payload.len());
                            if let Some(portion) = pace.moved(header.len() + payload.len(), Instant::now()) {
                                socket::let_wait(self.stream, portion)?;
                            }
                            // links take turns even where sockets never fill
                            tokio::task::yield_now().await;
                            lap.book(&times.network);
                        }
                        None => {
                            tokio::select! {
                                ready = self.stream.writable() => ready?,
                                () = self.bell.rung() => {}
                            }
                            lap.book(&times.network);
                        }
                    }
                }
                Poll::Until(at) => {
                    let lack = self.session.flow().lacks();
                    tokio::select! {
                        () = self.bell.rung() => {}
                        () = sleep_until(self.session.clock.instant(at).min(heartbeat)) => self.beat(heartbeat).await?,
                    }
                    self.book_lack(&mut lap, lack);
                }
                Poll::Idle => {
                    let lack = self.session.flow().lacks();
                    tokio::select! {
                        () = self.bell.rung() => {}
                        () = sleep_until(heartbeat) => self.beat(heartbeat).await?,
                    }
                    self.book_lack(&mut lap, lack);
                }
            }
        }
    }

    /// The time since the last chunk was spent without one. Once all are sent there is nothing to be without.
    fn book_lack(&self, lap: &mut Lap, lack: Lack) {
        match lack {
            Lack::Nothing => lap.skip(),
            Lack::Chunk => lap.book(&self.stats.times.idle),
            Lack::Credit => lap.book(&self.stats.times.held),
        }
    }

    /// Once nothing that this link still sends can matter.
    async fn is_useless(&self) {
        loop {
            self.bell.rung().await;
            if self.session.last_words().bye_said {
                return;
            }
        }
    }

    /// A ping, if it is time for one.
    async fn beat(&self, due: Instant) -> std::io::Result<()> {
        if Instant::now() < due {
            return Ok(());
        }
        let mut bytes = Vec::new();
        wire::encode_control(&Control::Ping(1), &self.session.key, &mut bytes);
        write::all(self.stream, self.pulse, &bytes).await
    }

    fn count(&self, why: &Why, wire_len: usize) {
        self.stats.wire_bytes.fetch_add(wire_len as u64, Relaxed);
        self.stats.chunks.fetch_add(1, Relaxed);
        match why {
            Why::Fresh => {}
            Why::Resend => drop(self.stats.resends.fetch_add(1, Relaxed)),
            Why::Hedge => drop(self.stats.hedges.fetch_add(1, Relaxed)),
        }
    }

    /// Control frames to send before anything else.
    fn owed(&self, finish_said: &mut bool, bytes: &mut Vec<u8>) -> Owed {
        let key = &self.session.key;
        let mut words = self.session.last_words();
        if let Some((code, reason)) = &words.abort {
            wire::encode_control(&Control::Abort { code: *code, reason: reason.clone() }, key, bytes);
            return Owed::FramesThenEnd;
        }
        if words.bye {
            wire::encode_control(&Control::Bye, key, bytes);
            return Owed::FramesThenEnd;
        }
        if let Some(n) = self.pong.take() {
            wire::encode_control(&Control::Pong(n), key, bytes);
        }
        if let Some(finish) = words.finish
            && !*finish_said
        {
            if *words.notes_link.get_or_insert(self.link) == self.link {
                let mut first = words.notes_acked as usize;
                while first < words.notes.len() {
                    let fitting = wire::notes_that_fit(&words.notes[first..]);
                    let notes = words.notes[first..first + fitting].to_vec();
                    wire::encode_control(&Control::Notes { first: first as u64, notes }, key, bytes);
                    first += fitting;
                }
            }
            wire::encode_control(&Control::Finish(finish), key, bytes);
            *finish_said = true;
        }
        if bytes.is_empty() { Owed::Nothing } else { Owed::Frames }
    }

    async fn read(&self) -> Ended {
        let mut reader = FrameReader::new(self.stream, self.pulse, &self.session.key);
        let mut scratch = Vec::new();
        loop {
            let control = async {
                match reader.header().await? {
                    Header::Control(header) => Ok(Some(reader.control(&header, &mut scratch).await?)),
                    Header::Chunk(_) => Ok(None),
                }
            };
            match control.await {
                Ok(Some(control)) => {
                    // a slow link is of use before a whole chunk has arrived
                    let moves = || sys::tcp_state(self.stream).is_ok_and(|tcp| tcp.retransmits == 0);
                    if !self.proven.get() && self.pulse.has_lived() && moves() {
                        self.prove();
                    }
                    if let Some(ended) = self.handle(control) {
                        return ended;
                    }
                }
                Ok(None) => {
                    self.violation("it sent a chunk to the sender".into());
                    return Ended::lost("the peer broke the protocol");
                }
                Err(ReadError::Ended(ended)) => return ended,
                Err(ReadError::Wire(e)) => return Ended::damaged(e.to_string()),
            }
        }
    }

    fn handle(&self, control: Control) -> Option<Ended> {
        match control {
            Control::Ack(ack) => self.handle_ack(&ack),
            Control::Ping(n) => {
                self.pong.set(Some(n));
                self.bell.ring();
            }
            Control::Pong(_) => {}
            Control::Abort { .. } => {
                self.session.tell(LinkEvent::Control(control));
                return Some(Ended::by_peer("the other side stopped"));
            }
            Control::Bye => return Some(Ended::by_peer("the other side said goodbye")),
            Control::Commit(_) | Control::Links(_) => self.session.tell(LinkEvent::Control(control)),
            Control::Notes { .. } | Control::Finish(_) => {
                self.violation("it sent a sender's frame to the sender".into());
            }
        }
        None
    }

    fn prove(&self) {
        self.proven.set(true);
        self.session.tell(LinkEvent::Proven { stats: self.stats.clone() });
    }

    fn handle_ack(&self, ack: &wire::Ack) {
        if !self.proven.get() && ack.links.iter().any(|(link, settled)| *link == self.link && *settled > 0) {
            self.prove();
        }
        {
            let mut words = self.session.last_words();
            words.notes_acked = words.notes_acked.max(ack.notes.min(words.notes.len() as u64));
        }
        let outcome = self.session.flow().handle_ack(ack, self.session.clock.now());
        match outcome {
            Ok(acked) => {
                for (_, link) in &acked.lost {
                    self.lost_on(*link);
                }
                self.session.acked();
                if acked.credit_rose || !acked.lost.is_empty() {
                    self.session.bells.ring_all();
                }
            }
            Err(violation) => self.violation(violation.to_string()),
        }
    }

    fn lost_on(&self, link: LinkId) {
        let stats = self
            .session
            .by_link
            .lock()
            .expect("no thread panics while it holds this lock")
            .iter()
            .find(|(id, _)| *id == link)
            .map(|(_, stats)| stats.clone());
        if let Some(stats) = stats {
            let count = stats.corrupt.fetch_add(1, Relaxed) + 1;
            self.session.tell(LinkEvent::Corrupt { stats, count });
        }
    }

    fn violation(&self, what: String) {
        self.session.tell(LinkEvent::Violation { what, code: ExitCode::Verification });
    }
}
