//! The sender's end of one link: chunks out, acknowledgements in.
//!
//! What goes next, in this order: Abort; Bye; Pong; Notes and Finish; a chunk, if the flow has one for this link and
//! the socket has room; a Ping if nothing else was said for a while. A chunk belongs to the link once the socket took
//! its first byte.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::pace::Pace;
use super::read::{FrameReader, Pulse, ReadError};
use super::send_session::{Connection, SendSession};
use super::throttle::Throttle;
use super::{Bell, Ended, LinkEvent, read, socket, write};
use crate::error::ExitCode;
use crate::flow::{Lack, Poll, Violation, Why};
use crate::ids::LinkId;
use crate::limits;
use crate::stats::{Lap, LinkStats};
use crate::sys;
use crate::wire::{self, Control, FrameKey, FrameKeys, Header};

/// Asks one of a link's connections to go: it takes no further chunk, and closes once the receiver has settled all that
/// it carried, so that nothing need be sent again. Once Finish is known it stays to the end instead.
#[derive(Clone, Default, Debug)]
pub struct Leave(Rc<Cell<bool>>);

impl Leave {
    /// Go. Ring the connection's bell afterwards.
    pub fn ask(&self) {
        self.0.set(true);
    }

    /// Whether it was asked to.
    pub fn asked(&self) -> bool {
        self.0.get()
    }
}

/// A connection that was asked to leave looks this often whether all is settled.
const LEAVE_LOOK: Duration = Duration::from_millis(20);

/// Work one connection, whose frames `keys` authenticate, until it ends, or is asked to leave. `control_only` links
/// carry no chunks. `fault` ends it early, if it ever does.
#[expect(clippy::too_many_arguments, reason = "what a connection is made of; two callers")]
pub async fn run(
    session: &Arc<SendSession>,
    link: LinkId,
    stats: Arc<LinkStats>,
    stream: &Arc<TcpStream>,
    keys: FrameKeys,
    control_only: bool,
    leave: &Leave,
    fault: impl Future<Output = Ended>,
) -> Ended {
    let bell = session.bells.add(link);
    let connection = Connection { link, stats: stats.clone(), stream: stream.clone() };
    session.by_link.lock().expect("no thread panics while it holds this lock").push(connection);
    if !control_only {
        session.flow().link_up(link);
    }
    stats.connected();
    session.tell(LinkEvent::Up { link, stats: stats.clone() });
    let pulse = Pulse::start();
    let (pong, failed, proven, left) = (Cell::new(None), Cell::new(None), Cell::new(false), Cell::new(false));
    let throttle = session.limits.throttle(&stats.name);
    let FrameKeys { out, into } = keys;
    let end = SendLink {
        session,
        link,
        stats: &stats,
        stream,
        out: RefCell::new(out),
        bell: &bell,
        pulse: &pulse,
        pong: &pong,
        proven: &proven,
        throttle: throttle.as_ref(),
        leave,
        left: &left,
    };
    let ended = tokio::select! {
        biased;
        ended = end.read(into) => ended,
        ended = end.write(control_only, &failed) => ended,
        ended = pulse.until_silent() => ended,
        ended = session.cables.until_pulled(stream) => ended,
        ended = session.until_expelled(&stats.name) => ended,
        ended = fault => ended,
    };
    let ended = failed.take().filter(|failed: &Ended| !failed.by_peer).unwrap_or(ended);
    let ended = if left.get() { Ended::left() } else { ended };
    let ended = ended.after(pulse.quiet(), proven.get());
    session.bells.remove(link);
    session.by_link.lock().expect("no thread panics while it holds this lock").retain(|c| c.link != link);
    if !control_only {
        session.flow().link_down(link);
    }
    {
        let mut words = session.last_words();
        if words.notes_link == Some(link) {
            words.notes_link = None;
        }
    }
    stats.disconnected(left.get());
    session.bells.ring_all();
    session.tell(LinkEvent::Down { link, stats, ended: ended.clone() });
    ended
}

struct SendLink<'a> {
    session: &'a SendSession,
    link: LinkId,
    stats: &'a Arc<LinkStats>,
    stream: &'a TcpStream,
    /// For what we send; frames are made in the order in which they go.
    out: RefCell<FrameKey>,
    bell: &'a Bell,
    pulse: &'a Pulse,
    pong: &'a Cell<Option<u64>>,
    /// It has been of use.
    proven: &'a Cell<bool>,
    throttle: Option<&'a Throttle>,
    leave: &'a Leave,
    /// It said goodbye because it was asked to leave.
    left: &'a Cell<bool>,
}

/// What a limit says to a chunk.
enum Turn {
    /// So many bytes of it.
    Now(usize),
    /// From then on.
    At(Instant),
    /// It is better not sent at all; there is another look then.
    Not(Instant),
}

/// What a control frame asks of the reading side.
enum Next {
    /// The next frame.
    Frame,
    /// The connection is over.
    End(Ended),
    /// The peer broke the protocol, in these words.
    Broken(String),
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
        self.encode(&Control::Ping(0), &mut bytes);
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
                    self.until_closed().await;
                    return Ok(Ended::over());
                }
            }
            let leaving = self.leave.asked();
            if leaving && self.may_leave() {
                self.encode(&Control::Bye, &mut bytes);
                self.left.set(true);
                write::all(self.stream, self.pulse, &bytes).await?;
                self.until_closed().await;
                return Ok(Ended::left());
            }
            self.bell.will_wait();
            let poll = if control_only || leaving {
                Poll::Idle
            } else {
                self.session.flow().poll_send(self.link, self.session.clock.now())
            };
            let heartbeat = self.pulse.next_heartbeat();
            let mut most = usize::MAX;
            let poll = match (poll, self.throttle) {
                (Poll::Send(take), Some(throttle)) => match self.turn(throttle, take.why) {
                    Turn::Now(bytes) => {
                        most = bytes;
                        Poll::Send(take)
                    }
                    Turn::At(at) => {
                        let since = Instant::now();
                        tokio::select! {
                            () = self.bell.rung() => {}
                            () = sleep_until(at.min(heartbeat)) => self.beat(heartbeat).await?,
                        }
                        throttle.has_waited(since.elapsed());
                        lap.book(&times.network);
                        continue;
                    }
                    Turn::Not(at) => Poll::Until(self.session.clock.since(at)),
                },
                (poll, _) => poll,
            };
            match poll {
                Poll::Send(take) => {
                    self.bell.wont_wait();
                    let header = wire::encode_chunk_header(&take.payload.head, &self.out.borrow());
                    let payload = take.payload.payload();
                    match write::begin(self.stream, &header, payload, most)? {
                        Some(sent) => {
                            self.out.borrow_mut().sent();
                            self.throttle.inspect(|throttle| throttle.used(sent));
                            self.session.flow().sent(self.link, take.seq, self.session.clock.now());
                            if self.session.strict {
                                self.session.bells.ring_all();
                            }
                            let waited = tokio::select! {
                                biased;
                                done = write::rest(self.stream, self.pulse, self.throttle, &header, payload, sent) => done?,
                                () = self.is_useless() => return Ok(Ended::lost("the session is over without it")),
                            };
                            lap.split(&times.busy, waited, &times.network);
                            self.throttle.inspect(|throttle| times.limited.add(throttle.take_waited()));
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
                    let wake = if leaving { heartbeat.min(Instant::now() + LEAVE_LOOK) } else { heartbeat };
                    tokio::select! {
                        () = self.bell.rung() => {}
                        () = sleep_until(wake) => self.beat(heartbeat).await?,
                    }
                    self.book_lack(&mut lap, lack);
                }
            }
        }
    }

    /// Whether a chunk may begin now.
    fn turn(&self, throttle: &Throttle, why: Why) -> Turn {
        let now = Instant::now();
        if why == Why::Hedge
            && let Err(at) = throttle.ask_to_hedge(now)
        {
            return Turn::Not(at);
        }
        throttle.ask(now).map_or_else(Turn::At, Turn::Now)
    }

    /// Whether a connection that was asked to leave has nothing to stay for. Without Finish before it, Bye is this
    /// connection's only; with Finish about, it would be taken for the session's end.
    fn may_leave(&self) -> bool {
        self.session.last_words().finish.is_none() && self.session.flow().in_flight(self.link) == 0
    }

    async fn until_closed(&self) {
        let _ = rustix::net::shutdown(self.stream, rustix::net::Shutdown::Write);
        let _ = timeout(limits::DRAIN, read::drain(self.stream, self.pulse)).await;
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
            let words = self.session.last_words();
            if words.bye_said {
                return;
            }
            if words.abort.is_some() {
                self.throttle.inspect(|throttle| throttle.lift());
            }
        }
    }

    /// A ping, if it is time for one.
    async fn beat(&self, due: Instant) -> std::io::Result<()> {
        if Instant::now() < due {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.encode(&Control::Ping(1), &mut bytes);
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

    /// Append a control frame, which goes next.
    fn encode(&self, frame: &Control, bytes: &mut Vec<u8>) {
        wire::encode_control(frame, &mut self.out.borrow_mut(), bytes);
    }

    /// Control frames to send before anything else.
    fn owed(&self, finish_said: &mut bool, bytes: &mut Vec<u8>) -> Owed {
        let mut words = self.session.last_words();
        if let Some((code, reason)) = &words.abort {
            self.encode(&Control::Abort { code: *code, reason: reason.clone() }, bytes);
            return Owed::FramesThenEnd;
        }
        if words.bye {
            // Bye alone would end this connection only
            if let Some(finish) = words.finish
                && !*finish_said
            {
                self.encode(&Control::Finish(finish), bytes);
            }
            self.encode(&Control::Bye, bytes);
            return Owed::FramesThenEnd;
        }
        if let Some(n) = self.pong.take() {
            self.encode(&Control::Pong(n), bytes);
        }
        if let Some(finish) = words.finish
            && !*finish_said
        {
            if *words.notes_link.get_or_insert(self.link) == self.link {
                let mut first = words.notes_acked as usize;
                while first < words.notes.len() {
                    let fitting = wire::notes_that_fit(&words.notes[first..]);
                    let notes = words.notes[first..first + fitting].to_vec();
                    self.encode(&Control::Notes { first: first as u64, notes }, bytes);
                    first += fitting;
                }
            }
            self.encode(&Control::Finish(finish), bytes);
            *finish_said = true;
        }
        if bytes.is_empty() { Owed::Nothing } else { Owed::Frames }
    }

    async fn read(&self, key: FrameKey) -> Ended {
        let mut reader = FrameReader::new(self.stream, self.pulse, key);
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
                    match self.handle(control) {
                        Next::Frame => {}
                        Next::End(ended) => return ended,
                        Next::Broken(what) => {
                            self.violation(what);
                            return self.broken().await;
                        }
                    }
                }
                Ok(None) => {
                    self.violation("it sent a chunk to the sender".into());
                    return self.broken().await;
                }
                Err(ReadError::Ended(ended)) => return ended,
                Err(ReadError::Damaged(e)) => return Ended::damaged(e.to_string()),
                Err(ReadError::Violation(e)) => {
                    self.violation(e.to_string());
                    return self.broken().await;
                }
            }
        }
    }

    fn handle(&self, control: Control) -> Next {
        match control {
            Control::Ack(ack) => {
                if let Err(violation) = self.handle_ack(&ack) {
                    return Next::Broken(violation.to_string());
                }
            }
            Control::Ping(n) => {
                self.pong.set(Some(n));
                self.bell.ring();
            }
            Control::Pong(_) => {}
            Control::Abort { .. } => {
                self.session.tell(LinkEvent::Control(control));
                return Next::End(Ended::by_peer("the other side stopped"));
            }
            Control::Commit(_) | Control::Links(_) => self.session.tell(LinkEvent::Control(control)),
            Control::Notes { .. } | Control::Finish(_) | Control::Bye => {
                return Next::Broken("it sent a sender's frame to the sender".into());
            }
        }
        Next::Frame
    }

    fn prove(&self) {
        self.proven.set(true);
        self.session.tell(LinkEvent::Proven { stats: self.stats.clone() });
    }

    fn handle_ack(&self, ack: &wire::Ack) -> Result<(), Violation> {
        if !self.proven.get() && ack.links.iter().any(|(link, settled)| *link == self.link && *settled > 0) {
            self.prove();
        }
        {
            let mut words = self.session.last_words();
            words.notes_acked = words.notes_acked.max(ack.notes.min(words.notes.len() as u64));
        }
        let acked = self.session.flow().handle_ack(ack, self.session.clock.now())?;
        for (_, link) in &acked.lost {
            self.lost_on(*link);
        }
        self.session.acked();
        if acked.credit_rose || !acked.lost.is_empty() {
            self.session.bells.ring_all();
        }
        Ok(())
    }

    fn lost_on(&self, link: LinkId) {
        let stats = self
            .session
            .by_link
            .lock()
            .expect("no thread panics while it holds this lock")
            .iter()
            .find(|c| c.link == link)
            .map(|c| c.stats.clone());
        if let Some(stats) = stats {
            let count = stats.corrupt.fetch_add(1, Relaxed) + 1;
            self.session.tell(LinkEvent::Corrupt { stats, count });
        }
    }

    /// After a violation nothing that comes counts. The connection stays for a moment, so that the writing side can say
    /// why the session ends.
    async fn broken(&self) -> Ended {
        let closed = timeout(limits::DRAIN, read::drain(self.stream, self.pulse)).await.is_ok();
        let reason = "the peer broke the protocol";
        if closed { Ended::by_peer(reason) } else { Ended::lost(reason) }
    }

    fn violation(&self, what: String) {
        self.session.tell(LinkEvent::Violation { what, code: ExitCode::Verification });
    }
}
