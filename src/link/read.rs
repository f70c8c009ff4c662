//! Frames off a connection.
//!
//! A read asks for the rest of a payload and the beginning of what follows at once: the next header, and all of a small
//! frame. So a chunk that is already here costs one system call, and lands where it is worked on. A short read means
//! that the socket is empty; readiness is cleared in the same call, which saves asking again only to hear "would
//! block".
//!
//! On a fast link the socket is told to wake us for a portion, not for every segment (`SO_RCVLOWAT`). Since what comes
//! may be less than that and need an answer, nobody waits for a portion longer than [`limits::PORTION_PATIENCE`].

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::time::Duration;

use rustix::io::readv;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::pace::Pace;
use super::{Ended, socket};
use crate::limits;
use crate::wire::{self, Control, FrameKey, HEADER_LEN, Header, WireError};

/// When a link last brought and last sent a byte.
pub struct Pulse {
    began: Instant,
    heard: Cell<Instant>,
    spoke: Cell<Instant>,
}

impl Pulse {
    /// A link that has just come up.
    pub fn start() -> Pulse {
        let now = Instant::now();
        Pulse { began: now, heard: Cell::new(now), spoke: Cell::new(now) }
    }

    /// Bytes were sent, just now.
    pub fn speak(&self) -> Instant {
        let now = Instant::now();
        self.spoke.set(now);
        now
    }

    /// How long it has brought nothing.
    pub fn quiet(&self) -> Duration {
        self.heard.get().elapsed()
    }

    /// Whether the other end was still heard once it had nothing but signs of life to send.
    pub fn has_lived(&self) -> bool {
        self.heard.get() >= self.began + limits::HEARTBEAT
    }

    /// When a ping is due unless something else is sent before.
    pub fn next_heartbeat(&self) -> Instant {
        self.spoke.get() + limits::HEARTBEAT
    }

    /// Ends once the link has been silent for [`limits::IDLE_TIMEOUT`].
    pub async fn until_silent(&self) -> Ended {
        loop {
            let deadline = self.heard.get() + limits::IDLE_TIMEOUT;
            sleep_until(deadline).await;
            if self.heard.get() + limits::IDLE_TIMEOUT <= Instant::now() {
                return Ended::silent(limits::IDLE_TIMEOUT);
            }
        }
    }
}

/// Why no further frame can be read.
#[derive(Debug)]
pub enum ReadError {
    /// The connection is gone.
    Ended(Ended),
    /// Its bytes are damaged. The link ends, not the session.
    Damaged(WireError),
    /// Its bytes came as they were sent and break the protocol.
    Violation(WireError),
}

impl From<WireError> for ReadError {
    fn from(e: WireError) -> ReadError {
        if e.may_be_damage() { ReadError::Damaged(e) } else { ReadError::Violation(e) }
    }
}

impl From<io::Error> for ReadError {
    fn from(e: io::Error) -> ReadError {
        ReadError::Ended(Ended::from_io(&e))
    }
}

/// Bytes that are read beyond a payload: an acknowledgement of a few links, with its header.
const AHEAD_LEN: usize = 512;

/// After so much of it in a row the session's other tasks have a turn, even if there is more to read: a peer that never
/// stops talking must not keep its link, the conductor or the timers from theirs. In units: a frame is one, and so is
/// each KiB of a control frame and each 64 KiB of a chunk.
const TURN: usize = 64;

/// Who waited this long for bytes was asleep, and has been woken for as many as it asked for.
const WOKEN: Duration = Duration::from_micros(100);

/// Reads frames whose payloads go to buffers of the caller's.
pub struct FrameReader<'a> {
    inlet: Inlet<'a>,
    key: FrameKey,
    /// What was read and is not used yet is at `start..end`.
    ahead: [u8; AHEAD_LEN],
    start: usize,
    end: usize,
    /// How much of its turn it has used.
    turn: usize,
}

impl<'a> FrameReader<'a> {
    /// A reader at the start of a frame.
    pub fn new(stream: &'a TcpStream, pulse: &'a Pulse, key: FrameKey) -> FrameReader<'a> {
        FrameReader { inlet: Inlet::new(stream, pulse), key, ahead: [0; AHEAD_LEN], start: 0, end: 0, turn: 0 }
    }

    /// The end is near: nothing waits for a portion any more.
    pub fn hurry(&mut self) -> io::Result<()> {
        let portion = self.inlet.pace.hurry();
        self.inlet.wake_for(portion)
    }

    /// How long it waited for bytes since the last call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.inlet.waited)
    }

    /// The next frame's header. Its payload must be read before the next call.
    pub async fn header(&mut self) -> Result<Header, ReadError> {
        self.turn += 1;
        if self.turn >= TURN {
            self.turn = 0;
            tokio::task::yield_now().await;
        }
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        while self.end < HEADER_LEN {
            self.end += self.inlet.read_some(&mut [], &mut self.ahead[self.end..]).await?;
        }
        self.start = HEADER_LEN;
        let header = self.ahead.first_chunk().expect("it holds more than a header");
        let header = wire::decode_header(header, &mut self.key)?;
        self.turn += match &header {
            Header::Control(control) => control.payload_len() >> 10,
            Header::Chunk(head) => head.payload_len as usize >> 16,
        };
        Ok(header)
    }

    /// Fill `payload` from the connection.
    pub async fn payload(&mut self, payload: &mut [u8]) -> Result<(), ReadError> {
        let mut filled = payload.len().min(self.end - self.start);
        payload[..filled].copy_from_slice(&self.ahead[self.start..][..filled]);
        self.start += filled;
        while filled < payload.len() {
            let n = self.inlet.read_some(&mut payload[filled..], &mut self.ahead).await?;
            let of_payload = n.min(payload.len() - filled);
            filled += of_payload;
            (self.start, self.end) = (0, n - of_payload);
        }
        Ok(())
    }

    /// The control frame that `header` announced.
    pub async fn control(&mut self, header: &wire::ControlHeader, scratch: &mut Vec<u8>) -> Result<Control, ReadError> {
        scratch.resize(header.payload_len(), 0);
        self.payload(scratch).await?;
        Ok(wire::decode_control(header, scratch, &self.key)?)
    }
}

/// A connection's bytes, as they come.
struct Inlet<'a> {
    stream: &'a TcpStream,
    pulse: &'a Pulse,
    pace: Pace,
    /// How long it waited for bytes since somebody asked.
    waited: Duration,
}

impl<'a> Inlet<'a> {
    fn new(stream: &'a TcpStream, pulse: &'a Pulse) -> Inlet<'a> {
        let pace = Pace::new(limits::RECV_PORTION_TIME, limits::RECV_PORTION_MIN, limits::RECV_PORTION_MAX);
        Inlet { stream, pulse, pace, waited: Duration::ZERO }
    }

    /// At least one byte into `first`, then `second`.
    async fn read_some(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, ReadError> {
        let wanted = first.len() + second.len();
        loop {
            let since = Instant::now();
            self.readable().await?;
            let woken = since.elapsed() >= WOKEN;
            let mut got = None;
            let outcome = self.stream.try_io(Interest::READABLE, || {
                let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
                let n = readv(self.stream, if parts[0].is_empty() { &mut parts[1..] } else { &mut parts[..] })?;
                got = Some(n);
                // of a portion that was waited for so little is left that it can wait for the next
                let portion = self.pace.portion();
                let is_portion = woken && portion > limits::RECV_PORTION_MIN && n > portion / 2;
                let more = n == 0 || n == wanted && !is_portion;
                if more { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
            });
            let now = Instant::now();
            self.waited += now - since;
            match (got, outcome) {
                (Some(0), _) => return Err(ReadError::Ended(Ended::by_peer("closed by the peer"))),
                (Some(n), _) => {
                    self.pulse.heard.set(now);
                    if let Some(portion) = self.pace.moved(n, now) {
                        self.wake_for(portion)?;
                    }
                    return Ok(n);
                }
                (None, Err(e)) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                (None, Err(e)) => return Err(e.into()),
                (None, Ok(())) => {}
            }
        }
    }

    /// Until there is a portion to read, or anything once that takes too long.
    async fn readable(&mut self) -> io::Result<()> {
        if self.pace.portion() > limits::RECV_PORTION_MIN {
            if let Ok(ready) = timeout(limits::PORTION_PATIENCE, self.stream.readable()).await {
                return ready;
            }
            let portion = self.pace.fell_behind(Instant::now());
            self.wake_for(portion)?;
        }
        self.stream.readable().await
    }

    fn wake_for(&self, portion: usize) -> io::Result<()> {
        // the least is no portion at all: small frames are answered at once
        socket::wake_for(self.stream, if portion <= limits::RECV_PORTION_MIN { 1 } else { portion })
    }
}

/// Read and forget until the peer closes; the caller bounds the time.
pub async fn drain(stream: &TcpStream, pulse: &Pulse) {
    let (mut waste, mut inlet) = (vec![0; 64 << 10], Inlet::new(stream, pulse));
    if socket::wake_for(stream, 1).is_ok() {
        while inlet.read_some(&mut waste, &mut []).await.is_ok() {}
    }
}
