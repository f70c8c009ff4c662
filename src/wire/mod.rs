//! Frames and handshake messages, to bytes and back. No sockets.

use std::net::{IpAddr, SocketAddr};

use crate::error::ExitCode;
use crate::ids::{Digest, LinkId, Seq, SessionId};
use crate::report::Note;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 80;

/// The protocol's version; both sides must have the same.
pub const VERSION: u16 = 1;

/// Keys the 16-byte tag of headers and handshake messages. Published: this version does not authenticate.
#[derive(Clone)]
pub struct TagKey(pub [u8; 32]);

/// What a chunk's content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkKind {
    /// Whole small entries, headers and padding; its digest is plain BLAKE3.
    Mixed,
    /// An aligned slice of one large file or raw stream. Its digest is the chaining value of the subtree at `offset`,
    /// or the root if it is the file's only slice.
    Data {
        /// Bytes before it in the file or stream; a multiple of the chunk length.
        offset: u64,
        /// Whether it is the only slice.
        sole: bool,
    },
}

/// What a chunk frame's header says of its chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHead {
    /// Its place in the stream.
    pub seq: Seq,
    /// What its content is.
    pub kind: ChunkKind,
    /// Bytes of content, at most [`crate::limits::CHUNK_LEN`].
    pub content_len: u32,
    /// Bytes of payload: the content, or the content compressed.
    pub payload_len: u32,
    /// Whether the payload is one zstd frame.
    pub zstd: bool,
    /// BLAKE3 of the content, as `kind` says.
    pub digest: Digest,
}

/// The receiver's whole state, absolute. Losing or repeating one is harmless.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ack {
    /// Every chunk below it is verified and held or further on.
    pub next: u64,
    /// Bit i of word j: chunk `next + 64 j + i` is verified and held. Bit 0 is always 0.
    pub bitmap: [u64; (crate::limits::WINDOW_MAX / 64) as usize],
    /// Chunks below it may be sent.
    pub credit_limit: u64,
    /// Chunks below it survive a power loss.
    pub durable: u64,
    /// Notes below it have arrived.
    pub notes: u64,
    /// For each live link, how many of its chunk frames, counted in order, are settled: verified, duplicate or dropped.
    pub links: Vec<(LinkId, u64)>,
}

/// The sender's last word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finish {
    /// Chunks in all.
    pub chunks: u64,
    /// Entries in all.
    pub entries: u64,
    /// Stream bytes in all.
    pub bytes: u64,
    /// Content bytes in all.
    pub content_bytes: u64,
    /// Notes in all.
    pub notes: u64,
    /// Losses and harmless notes that are beyond the named ones.
    pub unnamed: (u64, u64),
    /// Digest of the transfer.
    pub digest: Digest,
}

/// The receiver's last word: everything is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// `Whole` or `Partial`.
    pub code: ExitCode,
    /// Entries on disk.
    pub entries: u64,
    /// Content bytes on disk.
    pub content_bytes: u64,
    /// Digest of the transfer, as the receiver computed it.
    pub digest: Digest,
    /// A raw stream's own BLAKE3.
    pub stream_digest: Option<Digest>,
    /// Losses and harmless notes of the receiver, all of them.
    pub totals: (u64, u64),
    /// The first of them, as many as one frame holds.
    pub notes: Vec<Note>,
}

/// One of the receiver's addresses, as it describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The interface's name there, at most 15 bytes.
    pub interface: String,
    /// The address with the port to dial.
    pub addr: SocketAddr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// The interface's speed, Mbit/s; 0 if unknown.
    pub speed_mbit: u32,
}

/// Frames other than chunks. All are idempotent and may travel on any link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// The receiver's whole state.
    Ack(Ack),
    /// Notes `first`, `first + 1` … of the sender.
    Notes {
        /// The index of the first.
        first: u64,
        /// The notes.
        notes: Vec<Note>,
    },
    /// A sign of life that asks for one.
    Ping(u64),
    /// The answer, with the ping's number.
    Pong(u64),
    /// Addresses to try.
    Links(Vec<Address>),
    /// The sender's last word.
    Finish(Finish),
    /// The receiver's last word.
    Commit(Commit),
    /// Commit has arrived; nothing follows.
    Bye,
    /// The session is over and failed.
    Abort {
        /// The exit code for both ends.
        code: ExitCode,
        /// Why, in words.
        reason: String,
    },
}

/// What the sender has to offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Offer {
    /// Directories, or several sources.
    Tree {
        /// How many sources were named.
        sources: u32,
    },
    /// One regular file.
    File {
        /// Its last name.
        name: Vec<u8>,
        /// Its size when it was looked at.
        size: u64,
    },
    /// Standard input.
    Stream,
}

/// How the stream is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One tar archive.
    Archive,
    /// The file's or stream's bytes.
    Raw,
}

/// Handshake messages, before frames begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// The first connection's opening.
    Hello {
        /// The session that begins.
        session: SessionId,
        /// What will be sent.
        offer: Offer,
    },
    /// The listener agrees.
    Welcome {
        /// The session, repeated.
        session: SessionId,
        /// What the receiver wants to be sent.
        layout: Layout,
        /// Chunks the receiver holds at most.
        window_chunks: u32,
        /// Where it can be reached.
        addresses: Vec<Address>,
    },
    /// A further connection of a session.
    Join {
        /// The session.
        session: SessionId,
        /// The new connection's id, chosen by the dialer.
        link: LinkId,
        /// Fresh random bytes.
        nonce: [u8; 16],
    },
    /// The listener agrees.
    Joined {
        /// The session, repeated.
        session: SessionId,
        /// The link, repeated.
        link: LinkId,
        /// The dialer's nonce, repeated.
        nonce: [u8; 16],
    },
    /// The listener does not agree.
    Refuse {
        /// The exit code for the dialer.
        code: ExitCode,
        /// Why, in words.
        reason: String,
    },
}

/// The wildcard of the right family is never sent as an [`Address`].
pub fn is_sendable(ip: IpAddr) -> bool {
    !ip.is_unspecified()
}
