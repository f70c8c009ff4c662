//! Frames off a connection.
//!
//! A read asks for the rest of a payload and the next header at once, so that a chunk that is already here costs one
//! system call, and lands where it is worked on. A short read means that the socket is empty; readiness is cleared in
//! the same call, which saves asking again only to hear "would block".

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::time::Duration;

use rustix::io::readv;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::Ended;
use crate::limits;
use crate::wire::{self, Control, HEADER_LEN, Header, TagKey, WireError};

/// When a link last brought and last sent a byte.
pub struct Pulse {
    heard: Cell<Instant>,
    spoke: Cell<Instant>,
}

impl Pulse {
    /// A link that has just come up.
    pub fn start() -> Pulse {
        let now = Instant::now();
        Pulse { heard: Cell::new(now), spoke: Cell::new(now) }
    }

    /// Bytes were sent, just now.
    pub fn speak(&self) -> Instant {
        let now = Instant::now();
        self.spoke.set(now);
        now
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
    /// Its bytes make no sense: damaged, or a peer that breaks the protocol. The link ends, not the session.
    Wire(WireError),
}

impl From<WireError> for ReadError {
    fn from(e: WireError) -> ReadError {
        ReadError::Wire(e)
    }
}

impl From<io::Error> for ReadError {
    fn from(e: io::Error) -> ReadError {
        ReadError::Ended(Ended::from_io(&e))
    }
}

/// Reads frames whose payloads go to buffers of the caller's.
pub struct FrameReader<'a> {
    stream: &'a TcpStream,
    pulse: &'a Pulse,
    key: &'a TagKey,
    header: [u8; HEADER_LEN],
    have: usize,
    /// How long it waited for bytes since somebody asked.
    waited: Duration,
}

impl<'a> FrameReader<'a> {
    /// A reader at the start of a frame.
    pub fn new(stream: &'a TcpStream, pulse: &'a Pulse, key: &'a TagKey) -> FrameReader<'a> {
        FrameReader { stream, pulse, key, header: [0; HEADER_LEN], have: 0, waited: Duration::ZERO }
    }

    /// How long it waited for bytes since the last call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// The next frame's header. Its payload must be read before the next call.
    pub async fn header(&mut self) -> Result<Header, ReadError> {
        while self.have < HEADER_LEN {
            let rest = &mut self.header[self.have..];
            self.have += read_some(self.stream, self.pulse, &mut [], rest, &mut self.waited).await?;
        }
        self.have = 0;
        Ok(wire::decode_header(&self.header, self.key)?)
    }

    /// Fill `payload` from the connection.
    pub async fn payload(&mut self, payload: &mut [u8]) -> Result<(), ReadError> {
        let mut filled = 0;
        while filled < payload.len() {
            let rest = &mut payload[filled..];
            let n = read_some(self.stream, self.pulse, rest, &mut self.header, &mut self.waited).await?;
            let of_payload = n.min(payload.len() - filled);
            filled += of_payload;
            self.have = n - of_payload;
        }
        Ok(())
    }

    /// The control frame that `header` announced.
    pub async fn control(&mut self, header: &wire::ControlHeader, scratch: &mut Vec<u8>) -> Result<Control, ReadError> {
        scratch.resize(header.payload_len(), 0);
        self.payload(scratch).await?;
        Ok(wire::decode_control(header, scratch)?)
    }
}

/// At least one byte into `first`, then `second`; the time that it took until there was one is added to `waited`.
async fn read_some(
    stream: &TcpStream,
    pulse: &Pulse,
    first: &mut [u8],
    second: &mut [u8],
    waited: &mut Duration,
) -> Result<usize, ReadError> {
    let wanted = first.len() + second.len();
    loop {
        let since = Instant::now();
        stream.readable().await?;
        *waited += since.elapsed();
        let mut got = None;
        let outcome = stream.try_io(Interest::READABLE, || {
            let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
            let n = readv(stream, if parts[0].is_empty() { &mut parts[1..] } else { &mut parts[..] })?;
            got = Some(n);
            if n == 0 || n == wanted { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        match (got, outcome) {
            (Some(0), _) => return Err(ReadError::Ended(Ended::by_peer("closed by the peer"))),
            (Some(n), _) => {
                pulse.heard.set(Instant::now());
                return Ok(n);
            }
            (None, Err(e)) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            (None, Err(e)) => return Err(e.into()),
            (None, Ok(())) => {}
        }
    }
}

/// Read and forget until the peer closes; the caller bounds the time.
pub async fn drain(stream: &TcpStream, pulse: &Pulse) {
    let (mut waste, mut waited) = (vec![0; 64 << 10], Duration::ZERO);
    while read_some(stream, pulse, &mut waste, &mut [], &mut waited).await.is_ok() {}
}
