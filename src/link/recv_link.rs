//! The receiver's end of one link: chunks in, acknowledgements out. Mirrors [`super::send_link`].
//!
//! Each link reads into one buffer of its own. A whole payload goes to a verifying thread together with its buffer, and
//! the link takes another from the pool; there always is one, since the pool has one for each chunk of the window and
//! one for each link, and a copy that is not needed gives its buffer back at once.
//!
//! What goes next, in this order: Abort; Commit; Pong; an acknowledgement, if the state differs from the one this link
//! sent last; a Ping if nothing else was said for a while.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::read::{FrameReader, Pulse, ReadError};
use super::recv_session::{Arrived, RecvSession};
use super::{Bell, Ended, LinkEvent, read, write};
use crate::chunk::Buf;
use crate::error::ExitCode;
use crate::ids::LinkId;
use crate::limits;
use crate::stats::{Lap, LinkStats};
use crate::wire::{self, Control, FrameKey, FrameKeys, Header};

/// A link that carried no chunk lately repeats a changed state after this long, so that the loss of the link that
/// should have carried it does not stall the sender.
const REPEAT: Duration = Duration::from_millis(50);

/// While the sender has much to go on with, an acknowledgement can wait for the next chunk that comes: then it costs no
/// wake-up of its own. The link sends no more than one in this time …
const ACK_EVERY: Duration = Duration::from_millis(5);

/// … and looks by itself after this long, if no chunk comes.
const ACK_IDLE: Duration = Duration::from_millis(20);

/// Tells a connection to end.
#[derive(Default, Debug)]
pub struct Go {
    notify: Notify,
    why: Mutex<Option<Ended>>,
}

impl Go {
    /// End, for this reason.
    pub fn tell(&self, why: Ended) {
        *self.why.lock().expect("no thread panics while it holds this lock") = Some(why);
        self.notify.notify_one();
    }

    async fn told(&self) -> Ended {
        self.notify.notified().await;
        let why = self.why.lock().expect("no thread panics while it holds this lock").take();
        why.unwrap_or_else(|| Ended::lost("told to end"))
    }
}

/// Work one connection, whose frames `keys` authenticate, until it ends.
/// `go` ends it early.
pub async fn run(
    session: &Arc<RecvSession>,
    link: LinkId,
    stats: Arc<LinkStats>,
    stream: TcpStream,
    keys: FrameKeys,
    go: Arc<Go>,
) -> Ended {
    let bell = session.bells.add(link);
    if let Err(violation) = session.flow().link_up(link) {
        session.bells.remove(link);
        let ended = Ended::lost(violation.to_string());
        session.tell(LinkEvent::Stillborn { link, stats, ended: ended.clone() });
        return ended;
    }
    let pulse = Pulse::start();
    let (pong, failed, heard_first) = (Cell::new(None), Cell::new(None), Notify::new());
    let (is_up, proven) = (Cell::new(false), Cell::new(false));
    let end = RecvLink {
        session,
        link,
        stats: &stats,
        stream: &stream,
        bell: &bell,
        pulse: &pulse,
        pong: &pong,
        heard_first: &heard_first,
        is_up: &is_up,
        proven: &proven,
    };
    let ended = tokio::select! {
        biased;
        ended = end.read(keys.into) => ended,
        ended = end.write(keys.out, &failed) => ended,
        ended = pulse.until_silent() => ended,
        ended = session.cables.until_pulled(&stream) => ended,
        ended = go.told() => ended,
    };
    let ended = failed.take().filter(|failed: &Ended| !failed.by_peer).unwrap_or(ended);
    let ended = ended.after(pulse.quiet(), proven.get());
    session.bells.remove(link);
    session.flow().link_down(link);
    session.bells.ring_all();
    if is_up.get() {
        stats.disconnected(ended.is_left());
        session.tell(LinkEvent::Down { link, stats, ended: ended.clone() });
    } else {
        session.tell(LinkEvent::Stillborn { link, stats, ended: ended.clone() });
    }
    ended
}

struct RecvLink<'a> {
    session: &'a RecvSession,
    link: LinkId,
    stats: &'a Arc<LinkStats>,
    stream: &'a TcpStream,
    bell: &'a Bell,
    pulse: &'a Pulse,
    pong: &'a Cell<Option<u64>>,
    heard_first: &'a Notify,
    /// A frame has come. Before that the connection may be one that was given up long ago, while we slept.
    is_up: &'a Cell<bool>,
    /// It has been of use.
    proven: &'a Cell<bool>,
}

impl RecvLink<'_> {
    async fn write(&self, key: FrameKey, failed: &Cell<Option<Ended>>) -> Ended {
        match self.write_frames(key).await {
            Ok(never) => match never {},
            Err(e) => {
                // what the peer said before it closed may still wait to be read; the reading side ends the link
                failed.set(Some(Ended::from_io(&e)));
                std::future::pending().await
            }
        }
    }

    async fn write_frames(&self, mut key: FrameKey) -> std::io::Result<std::convert::Infallible> {
        self.heard_first.notified().await;
        let key = &mut key;
        let mut bytes = Vec::with_capacity(4 << 10);
        let mut acked_version = None;
        let mut acked_at: Option<Instant> = None;
        let mut commit_said = false;
        let mut addresses_said = 0;
        loop {
            bytes.clear();
            let abort = {
                let words = self.session.last_words();
                if words.addresses.1 != addresses_said {
                    addresses_said = words.addresses.1;
                    wire::encode_control(&Control::Links(words.addresses.0.clone()), key, &mut bytes);
                }
                if let Some(commit) = &words.commit
                    && !commit_said
                {
                    wire::encode_control(&Control::Commit(commit.clone()), key, &mut bytes);
                    commit_said = true;
                }
                words.abort.clone()
            };
            if let Some((code, reason)) = abort {
                wire::encode_control(&Control::Abort { code, reason }, key, &mut bytes);
                write::all(self.stream, self.pulse, &bytes).await?;
                let _ = rustix::net::shutdown(self.stream, rustix::net::Shutdown::Write);
                // the reading side goes on until the peer closes: unread bytes would turn our close into a reset,
                // and the reset would overtake the reason
                std::future::pending::<()>().await;
            }
            if let Some(n) = self.pong.take() {
                wire::encode_control(&Control::Pong(n), key, &mut bytes);
            }
            let now = Instant::now();
            let (mut version, can_wait) = self.session.version(acked_version);
            if !can_wait {
                // before looking: what changes later rings
                self.bell.will_wait();
                version = self.session.version(acked_version).0;
            }
            let just_acked = acked_at.is_some_and(|at| now < at + ACK_EVERY);
            if acked_version != Some(version) && !(can_wait && just_acked) {
                let (ack, version) = self.session.state();
                wire::encode_control(&Control::Ack(ack), key, &mut bytes);
                (acked_version, acked_at) = (Some(version), Some(now));
            }
            if bytes.is_empty() && self.pulse.next_heartbeat() <= now {
                wire::encode_control(&Control::Ping(1), key, &mut bytes);
            }
            if !bytes.is_empty() {
                write::all(self.stream, self.pulse, &bytes).await?;
            }
            let wake = now + if can_wait { ACK_IDLE } else { REPEAT };
            tokio::select! {
                () = self.bell.rung() => {}
                () = sleep_until(wake.min(self.pulse.next_heartbeat())) => {}
            }
        }
    }

    async fn read(&self, key: FrameKey) -> Ended {
        match self.read_frames(key).await {
            Ok(ended) => ended,
            Err(ReadError::Ended(ended)) => ended,
            Err(ReadError::Damaged(e)) => {
                self.stats.corrupt.fetch_add(1, Relaxed);
                Ended::damaged(e.to_string())
            }
            Err(ReadError::Violation(e)) => {
                self.violation(e.to_string());
                self.broken().await
            }
        }
    }

    async fn read_frames(&self, key: FrameKey) -> Result<Ended, ReadError> {
        let mut reader = FrameReader::new(self.stream, self.pulse, key);
        let mut scratch = Vec::new();
        let mut spare = None;
        let (mut lap, times) = (Lap::start(), &self.stats.times);
        let mut finish_heard = false;
        loop {
            let header = reader.header().await?;
            if !self.is_up.replace(true) {
                self.heard_first.notify_one();
                self.stats.connected();
                self.session.tell(LinkEvent::Up { link: self.link, stats: self.stats.clone() });
            }
            self.prove(self.pulse.has_lived());
            reader.take_waited();
            match header {
                Header::Control(header) => {
                    // once the sender has said its last word, no chunk need be on its way
                    if finish_heard {
                        lap.skip()
                    } else {
                        lap.book(&times.idle)
                    }
                    let control = reader.control(&header, &mut scratch).await?;
                    if matches!(control, Control::Finish(_)) && !finish_heard {
                        finish_heard = true;
                        reader.hurry()?;
                    }
                    if matches!(control, Control::Bye) && !finish_heard {
                        // not the session's end, only this connection's
                        self.until_closed().await;
                        return Ok(Ended::left());
                    }
                    if let Some(ended) = self.handle(control).await {
                        return Ok(ended);
                    }
                }
                Header::Chunk(head) => {
                    lap.book(&times.idle);
                    let begun = self.session.flow().begin(self.link, head.seq);
                    let arrival = match begun {
                        Ok(arrival) => arrival,
                        Err(violation) => {
                            self.violation(violation.to_string());
                            return Ok(self.broken().await);
                        }
                    };
                    let mut buf = match spare.take() {
                        Some(buf) => buf,
                        None => self.buffer().await,
                    };
                    lap.book(&times.held);
                    reader.payload(&mut buf[..head.payload_len as usize]).await?;
                    lap.split(&times.busy, reader.take_waited(), &times.network);
                    self.prove(true);
                    self.stats.wire_bytes.fetch_add(wire::HEADER_LEN as u64 + u64::from(head.payload_len), Relaxed);
                    if arrival.fresh {
                        let arrived =
                            Arrived { link: self.link, index: arrival.index, head, buf, stats: self.stats.clone() };
                        // as long as the pool, so never full
                        self.session.arrived.put(arrived);
                        // the writing side may owe an acknowledgement of those before
                        self.bell.ring();
                    } else {
                        spare = Some(buf);
                        self.session.flow().settled(self.link, arrival.index);
                        self.bell.ring();
                    }
                }
            }
        }
    }

    fn prove(&self, of_use: bool) {
        if of_use && !self.proven.replace(true) {
            self.session.tell(LinkEvent::Proven { stats: self.stats.clone() });
        }
    }

    async fn buffer(&self) -> Buf {
        loop {
            if let Some(buf) = self.session.pool.try_take() {
                return buf;
            }
            self.session.pool_bell.notified().await;
        }
    }

    async fn handle(&self, control: Control) -> Option<Ended> {
        match control {
            Control::Ping(n) => {
                self.pong.set(Some(n));
                self.bell.ring();
            }
            Control::Pong(_) => {}
            Control::Notes { first, notes } => {
                if let Err(what) = self.session.take_notes(first, notes) {
                    self.violation(what);
                    return Some(self.broken().await);
                }
            }
            Control::Finish(_) => self.session.tell(LinkEvent::Control(control)),
            Control::Abort { .. } => {
                self.session.tell(LinkEvent::Control(control));
                return Some(Ended::by_peer("the other side stopped"));
            }
            Control::Bye => {
                self.session.tell(LinkEvent::Control(Control::Bye));
                self.until_closed().await;
                return Some(Ended::over());
            }
            Control::Ack(_) | Control::Commit(_) | Control::Links(_) => {
                self.violation("it sent a receiver's frame to the receiver".into());
                return Some(self.broken().await);
            }
        }
        None
    }

    async fn until_closed(&self) {
        let _ = rustix::net::shutdown(self.stream, rustix::net::Shutdown::Write);
        let _ = timeout(limits::DRAIN, read::drain(self.stream, self.pulse)).await;
    }

    /// After a violation nothing that comes counts. The connection stays for a moment, so that the writing side can say
    /// why the session ends.
    async fn broken(&self) -> Ended {
        // also if this was its first frame
        self.heard_first.notify_one();
        let closed = timeout(limits::DRAIN, read::drain(self.stream, self.pulse)).await.is_ok();
        let reason = "the peer broke the protocol";
        if closed { Ended::by_peer(reason) } else { Ended::lost(reason) }
    }

    fn violation(&self, what: String) {
        self.session.tell(LinkEvent::Violation { what, code: ExitCode::Verification });
    }
}
