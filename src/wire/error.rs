//! Why bytes from a peer were not understood.

use super::VERSION;
use crate::error::escape;

/// Why bytes from a peer were not understood. None of these can be mended on the connection that brought them.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// The connection's first bytes are not ours.
    #[error("the other side does not speak blast (its first bytes are '{}')", escape(came(first)))]
    NotBlast {
        /// What stands where the magic should; zeros after what has come.
        first: [u8; 8],
    },
    /// The other side is another blast.
    #[error("the other side speaks version {theirs} of blast's protocol, this side version {VERSION}")]
    Version {
        /// The peer's version.
        theirs: u16,
    },
    /// A header's tag or a handshake message's MAC does not fit its bytes.
    #[error("a {0} was changed on its way, or made with another key")]
    Tag(&'static str),
    /// A Join or its answer names a session that is not under way here.
    #[error("no such session")]
    NoSession,
    /// A control frame's payload does not fit its seal, or the digest in its header.
    #[error("a control frame's payload was changed on its way")]
    PayloadDigest,
    /// A number that stands for no kind of message.
    #[error("unknown kind of {what}: {kind}")]
    Kind {
        /// What it should be a kind of.
        what: &'static str,
        /// The number.
        kind: u8,
    },
    /// The bit reserved for a listing that the receiver streams back.
    #[error("a frame of the listing stream, which this version does not have")]
    ListingStream,
    /// Bits that must be zero are not.
    #[error("reserved bits are set in a {0}")]
    Reserved(&'static str),
    /// A length or count beyond the constant that bounds it.
    #[error("{what} of {len}, more than {max}")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// What the peer claims.
        len: u64,
        /// The most that is accepted.
        max: u64,
    },
    /// The tag fits, but the message makes no sense.
    #[error("malformed {message}: {why}")]
    Malformed {
        /// The kind of message.
        message: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Without the zeros that stand for what has not come.
fn came(first: &[u8; 8]) -> &[u8] {
    let len = first.iter().rposition(|b| *b != 0).map_or(1, |last| last + 1);
    &first[..len]
}

impl WireError {
    /// Whether damage on the way can be the reason. Tags and digests are checked before anything else, so whatever is
    /// wrong behind them was sent so.
    pub fn may_be_damage(&self) -> bool {
        matches!(self, WireError::Tag(_) | WireError::PayloadDigest)
    }
}
