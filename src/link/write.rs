//! Frames onto a connection, header and payload in one call, [`limits::WRITE_LEN`] at a time.

use std::io::{self, IoSlice};
use std::time::Duration;

use rustix::io::writev;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::read::Pulse;
use super::throttle::Throttle;
use crate::limits;

/// Offer the first bytes of a frame. `None` if the socket has no room: nothing was taken, and the frame may go
/// elsewhere. Otherwise the frame is this link's, and `rest` must follow. No more than `most` bytes are offered.
pub fn begin(stream: &TcpStream, header: &[u8], payload: &[u8], most: usize) -> io::Result<Option<usize>> {
    write_some(stream, header, payload, 0, most)
}

/// Write what remains of a frame of which `sent` bytes are gone. Returns how long the socket had no room, or there was
/// no leave.
pub(super) async fn rest(
    stream: &TcpStream,
    pulse: &Pulse,
    throttle: Option<&Throttle>,
    header: &[u8],
    payload: &[u8],
    mut sent: usize,
) -> io::Result<Duration> {
    let mut since = pulse.speak();
    let mut waited = Duration::ZERO;
    while sent < header.len() + payload.len() {
        stream.writable().await?;
        // after there is room: a time on the schedule is for who can use it
        let most = match throttle {
            Some(throttle) => throttle.leave().await,
            None => usize::MAX,
        };
        waited += since.elapsed();
        since = match write_some(stream, header, payload, sent, most)? {
            Some(n) => {
                sent += n;
                if let Some(throttle) = throttle {
                    throttle.used(n);
                }
                pulse.speak()
            }
            None => Instant::now(),
        };
    }
    Ok(waited)
}

/// Write whole frames that are already bytes.
pub async fn all(stream: &TcpStream, pulse: &Pulse, bytes: &[u8]) -> io::Result<()> {
    rest(stream, pulse, None, bytes, &[], 0).await.map(drop)
}

fn write_some(
    stream: &TcpStream,
    header: &[u8],
    payload: &[u8],
    sent: usize,
    most: usize,
) -> io::Result<Option<usize>> {
    let head = &header[sent.min(header.len())..];
    let head = &head[..head.len().min(most)];
    let body = &payload[sent.saturating_sub(header.len())..];
    let body = &body[..body.len().min(limits::WRITE_LEN).min(most - head.len())];
    let wanted = head.len() + body.len();
    let mut put = None;
    let outcome = stream.try_io(Interest::WRITABLE, || {
        let n = if head.is_empty() {
            writev(stream, &[IoSlice::new(body)])?
        } else {
            writev(stream, &[IoSlice::new(head), IoSlice::new(body)])?
        };
        put = Some(n);
        // a short write means that the socket is full: clear readiness without asking again
        if n == wanted { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    });
    match (put, outcome) {
        (Some(n), _) => Ok(Some(n)),
        (None, Err(e)) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        (None, Err(e)) => Err(e),
        (None, Ok(())) => Ok(None),
    }
}
