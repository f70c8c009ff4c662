//! Hello and Welcome, Join and Joined. Both ends know at every byte how much they may still read, and one absolute
//! deadline covers the whole exchange.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::ExitCode;
use crate::ids::SessionId;
use crate::limits;
use crate::wire::{self, Handshake, TagKey, WireError};

/// Why a handshake did not succeed.
#[derive(thiserror::Error, Debug)]
pub enum HandshakeError {
    /// The connection failed.
    #[error("{}", super::describe_io(.0))]
    Io(#[from] io::Error),
    /// The peer's bytes are not a handshake of this version.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// TLS does not go on.
    #[error("no TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A TLS record that must not be here.
    #[error("a TLS record that should not be: {0}")]
    Record(&'static str),
    /// TLS for another purpose.
    #[error("it speaks TLS, but not to blast")]
    Foreign,
    /// Not the message that belongs here.
    #[error("what it said was not {0}")]
    Not(&'static str),
    /// We do not talk to that one, and why.
    #[error("{0}")]
    Distrust(String),
    /// The other side does not talk to us.
    #[error("{}", crate::error::escape_words(reason))]
    Refused {
        /// What we should exit with.
        code: ExitCode,
        /// Its words; escape before printing.
        reason: String,
    },
    /// The deadline passed.
    #[error("no answer to the handshake within {} s", limits::HANDSHAKE_TIMEOUT.as_secs())]
    Deadline,
}

/// Send one message; `joins` keys it if it is Join or Joined.
pub async fn say(stream: &mut TcpStream, message: &Handshake, joins: &TagKey) -> Result<(), HandshakeError> {
    let mut bytes = Vec::new();
    wire::encode_handshake(message, joins, &mut bytes);
    within(limits::HANDSHAKE_TIMEOUT, async { Ok(stream.write_all(&bytes).await?) }).await
}

/// Receive one message, reading not one byte past it. `joins` has the key for Join and Joined of that session.
pub async fn hear(
    stream: &mut TcpStream,
    joins: impl FnOnce(SessionId) -> Option<TagKey>,
) -> Result<Handshake, HandshakeError> {
    within(limits::HANDSHAKE_TIMEOUT, hear_rest(stream, &[], joins)).await
}

/// The same for a message of which the first bytes have come, a prefix at most. The deadline is the caller's.
pub async fn hear_rest(
    stream: &mut TcpStream,
    begun: &[u8],
    joins: impl FnOnce(SessionId) -> Option<TagKey>,
) -> Result<Handshake, HandshakeError> {
    let mut prefix = [0; wire::PREFIX_LEN];
    let mut came = begun.len();
    prefix[..came].copy_from_slice(begun);
    while came < prefix.len() {
        match stream.read(&mut prefix[came..]).await? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            more => came += more,
        }
        // who says something else is not waited for
        wire::may_be_handshake(&prefix[..came])?;
    }
    let decoded = wire::decode_handshake_prefix(&prefix)?;
    let mut rest = vec![0; decoded.rest_len()];
    stream.read_exact(&mut rest).await?;
    Ok(wire::decode_handshake(&decoded, &rest, joins)?)
}

/// The whole of an exchange, or [`HandshakeError::Deadline`].
pub async fn within<T>(
    limit: Duration,
    exchange: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, HandshakeError> {
    timeout(limit, exchange).await.unwrap_or(Err(HandshakeError::Deadline))
}
