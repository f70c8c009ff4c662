//! Frames and handshake messages, to bytes and back. No sockets, no clock, no decisions. What follows is the
//! specification of the wire format, version [`VERSION`]; `tests/wire_golden.rs` has every message written out in
//! bytes.
//!
//! # Conventions
//!
//! A *session* is one sender and one receiver process and the TCP connections between them, its *links*. Numbers are
//! little-endian and of fixed width. Reserved bytes and bits, unused fields and padding are zero, and a message in
//! which they are not is refused. A message has exactly one encoding and no bytes left over. Every length and count
//! is checked against a constant of [`crate::limits`] before as much is read or allocated. Names and paths are bytes;
//! reasons and details are UTF-8 for people, and whoever prints them escapes them first.
//!
//! A *tag* is the first 16 bytes of keyed BLAKE3. Under [`PUBLISHED_KEY`], known to everybody, it finds accidents and
//! strangers' traffic, and stops no attacker.
//!
//! # The first connection
//!
//! It begins with TLS 1.3 (RFC 8446) and nothing to negotiate: X25519, `TLS_CHACHA20_POLY1305_SHA256`, Ed25519
//! with a raw public key (RFC 7250) that the listener throws away with its process, no tickets, no resumption, no early
//! data, no certificate of the dialer's. Whose the public key is, nobody asks. ALPN names two protocols, `blast/` with
//! the version in decimals and the dialer's *commitment* of 32 bytes; the listener takes the first. Record headers say
//! version 3.1 in the dialer's first message and 3.3 in all others, and all records of one side's handshake together
//! have at most [`TLS_HANDSHAKE_MAX`](crate::limits::TLS_HANDSHAKE_MAX) bytes.
//!
//! After the handshake Hello and Welcome (or Refuse) follow as one record each, and any other record ends the
//! connection; the byte after Welcome is the first of a frame, and so is the byte after Hello. Before its own first
//! record the listener may answer with a plain Refuse: to another version, to whoever is not admitted, while it is
//! busy.
//!
//! The *exporter* is 32 bytes, label `EXPORTER-blast`, empty context. Of it come:
//!
//! | value | BLAKE3 | of |
//! |---|---|---|
//! | commitment | `derive_key`, `blast commitment of a dialer, version 1` | the nonce in Hello |
//! | proof of the key | keyed with the key | `blast proof of a key, version 1`, 1 for the dialer's or 2 for the listener's, exporter |
//! | code that people compare | `derive_key`, `blast code of a session, version 1` | exporter, nonce: its first 40 bits, five at a time from the lowest, in Crockford's base 32 |
//! | secret of the session | `derive_key`, `blast secret of a session, version 1` | exporter, 1 and the key or 33 zeros, length 8 of Hello, Hello, length 8 of Welcome, Welcome |
//!
//! The dialer shows its nonce only after the listener's last word of TLS, so that nobody between the two can choose
//! what makes the codes on both sides the same: 40 bits are as good as they look. The listener refuses a dialer that
//! does not prove the key, or proves one where it has none, or wants to encrypt where it does not or the other way
//! round; the dialer checks the same in Welcome and says nothing more if it does not hold. The dialer speaks first
//! after Welcome, since only its first frame, or a Join, tells the listener that Welcome arrived as it was: without one
//! there was no session.
//!
//! # Keys
//!
//! Both ends have a secret of 32 bytes that belongs to this session. Every key is BLAKE3 `derive_key` of the secret and
//! what the key is bound to, under a context of its own:
//!
//! | context | bound to | keys |
//! |---|---|---|
//! | `blast 1 joins` | | MACs of Join and Joined |
//! | `blast 1 frames of one connection and direction` | link 4, dialer's nonce 16, listener's nonce 16, 1 for the dialer's frames or 2 for the listener's | tags of frame headers |
//! | `blast 1 control frames of one connection and direction` | the same | seals of control frames |
//! | `blast 1 chunks of one key phase` | key phase 8: sequence number >> 16 | seals of chunks |
//! | `blast 1 digests of sealed chunks` | | masks of digests |
//!
//! The first connection's nonces are zeros. A *seal* is the 16-byte tag of AES-256-GCM or ChaCha20-Poly1305
//! ([`Cipher`]) with the header's bytes 16 to 80 as associated data; its nonce is 4 zeros and a number of 8 bytes: a
//! chunk's sequence number, or how many frames have gone before in that direction of that connection. No number is
//! sealed twice in a session and no count repeats, so no key meets a nonce twice. Where a session is not encrypted,
//! seals are zeros.
//!
//! # A session, in order
//!
//! ```text
//! sender (dials)                              receiver (listens)
//! Hello ─────────────────────────────────────►            first connection: link 0
//!       ◄───────────────────────────── Welcome, or Refuse and the end
//!       ◄───────────────────────────── Ack                its first frame: how much may be sent
//! Chunk … ───────────────────────────────────►            any link, any order
//!       ◄───────────────────────────── Ack …              any link
//! Join ──────────────────────────────────────►            each further connection
//!       ◄───────────────────────────── Joined, or Refuse; then Ack
//! Notes, Finish ─────────────────────────────►            once the source has ended
//!       ◄───────────────────────────── Commit             on every link, once all is durable
//! Bye ───────────────────────────────────────►            on every link; then both close
//! ```
//!
//! - A connection begins with one handshake message each way and carries frames after that.
//! - The sender sends chunks whose number is below `credit_limit` of the latest Ack, on whichever link it likes, and
//!   keeps each until an Ack covers it. It may send a chunk again at any time, on any link, as the same bytes.
//! - Acks say all there is to say, so the latest is enough. Of two Acks the one with the higher `next`, credit limit,
//!   durable mark, notes or settled count is the later one; none of these ever falls (a link that is gone leaves the
//!   list).
//! - A chunk frame whose header is good but whose payload is not is dropped; its link goes on. The sender finds it: it
//!   was sent on a link, it is among the frames which that link has settled, and it is neither below `next` nor in the
//!   bitmap.
//! - A header whose tag does not fit means that the place where frames begin is lost: the connection is closed, and
//!   what was sent on it and not acknowledged is sent again elsewhere. The same goes for a control frame that does not
//!   fit its digest.
//! - Whatever else is wrong in a frame was sent so, since its tag and digest fit: it ends the session.
//! - All control frames are absolute or numbered, so a repeated one is harmless. The sender repeats Notes until
//!   `Ack.notes` covers them, and Finish on each link that comes up, until Commit. The receiver repeats Commit on each
//!   link that comes up, until Bye.
//! - Bye after Finish on the same connection ends the session. Without Finish before it, it ends this connection only:
//!   all chunks sent on it are settled, the sender wants one connection less, and the others go on.
//! - Either side may send Ping on a link at any time, and answers a Ping with Pong on the same link. Any byte is a sign
//!   of life.
//! - **The end.** Only Commit means success: the receiver has verified and synced everything. Abort, from either side,
//!   ends a session that failed and carries the exit code for both ends. End of file or a reset is never an end, only
//!   the loss of one link. Before it closes, a side reads until the peer closes or [`crate::limits::DRAIN`] has passed,
//!   since closing with unread bytes destroys what was sent last.
//!
//! # Handshake messages
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic: `blast`, CR, LF, NUL |
//! | 8 | 2 | version |
//! | 10 | 1 | kind |
//! | 11 | 1 | reserved |
//! | 12 | 2 | length of the body, at most [`HANDSHAKE_MAX`](crate::limits::HANDSHAKE_MAX) |
//! | 14 | 2 | reserved |
//! | 16 | | body |
//! | | 16 | MAC: the tag of everything before it, of Join and Joined under the session's key for joins, of others under the published key |
//!
//! Other versions keep magic, version, kind and length where they are, and keep Refuse as it is, its MAC always under
//! the published key: a listener answers the first message of another version, in plain or of TLS, with a Refuse that
//! the dialer can read. Hello and Welcome travel inside TLS and no other way.
//!
//! | kind | from | body |
//! |---|---|---|
//! | 1 Hello | dialer | session 16, nonce 32, flags 1 (bit 0: it has a key, bit 1: it wants no encryption, bit 2: its CPU has AES), proof of the key 32 (or zeros), offer 1; then for offer 1 (tree): number of sources 4; 2 (file) and 5 (block device): size 8, last name (rest); 3 (standard input) and 4 (measure: to be thrown away): nothing |
//! | 2 Welcome | listener | session 16, layout 1 (1 archive, 2 raw), cipher 1 (0 none, 1 AES-256-GCM if both CPUs have AES, 2 ChaCha20-Poly1305), flags 1 (bit 0: it has a key, bit 1: it wants the names of owners in the archive), reserved 1, window in chunks 4, proof of the key 32 (or zeros), addresses |
//! | 3 Join | dialer | session 16, link 4, nonce 16 |
//! | 4 Joined | listener | session 16, link 4, nonce 16, all repeated from Join; a nonce 16 of its own |
//! | 5 Refuse | listener | exit code 1, reason (rest) |
//!
//! The dialer numbers links; 0 is the first connection, and a connection that is dialled again gets a new number.
//!
//! # Frames
//!
//! A header of [`HEADER_LEN`] bytes, then the payload.
//!
//! | at | bytes | field | in control frames |
//! |---|---|---|---|
//! | 0 | 16 | tag, under the key of this connection and direction, of how many frames have gone before there 8, and the header's bytes from 16 on | |
//! | 16 | 1 | kind | |
//! | 17 | 1 | flags: bit 0 STREAM (reserved for a listing that the receiver streams back; refused in this version), bit 1 DATA, bit 2 SOLE, bit 3 ZSTD, bit 4 BZIP2 | 0 |
//! | 18 | 2 | reserved | |
//! | 20 | 4 | length of the payload, at most [`CHUNK_LEN`](crate::limits::CHUNK_LEN) | at most [`CONTROL_MAX`](crate::limits::CONTROL_MAX) |
//! | 24 | 8 | sequence number | 0 |
//! | 32 | 8 | offset of a slice | 0 |
//! | 40 | 4 | length of the content, at most [`CHUNK_LEN`](crate::limits::CHUNK_LEN) | 0 |
//! | 44 | 4 | reserved | |
//! | 48 | 32 | digest of the content; where the chunk is sealed, xor keyed BLAKE3 of the sequence number 8 | BLAKE3 of the payload; where it is sealed, zeros |
//! | 80 | 16 | seal of the payload, or zeros | the same |
//!
//! **Chunk** (kind 1). Without DATA the chunk is mixed: whole small entries, headers and padding, or what follows the
//! header of a sparse file ([`crate::archive`]); offset 0, digest plain BLAKE3; it may be empty. With DATA it is a
//! slice of one large file or raw stream at that offset, a multiple of `CHUNK_LEN`: a full chunk unless it is the last,
//! never empty. Its digest is the chaining value of its BLAKE3 subtree, or plain BLAKE3 with SOLE, for a file's only
//! slice (offset 0). With ZSTD the payload is one zstd frame, shorter than the content, which names the content's
//! length; with BZIP2, never beside it, one bzip2 stream, shorter than the content; otherwise it is the content.
//!
//! Payloads of control frames:
//!
//! | kind | from | payload |
//! |---|---|---|
//! | 2 Ack | receiver | next 8, credit limit 8, durable mark 8, notes 8, bitmap 16 × 8, number of links 2, and for each: link 4, settled frames 8 |
//! | 3 Notes | sender | number of the first 8, notes |
//! | 4 Ping | both | number 8 |
//! | 5 Pong | both | number 8 of the Ping |
//! | 6 Links | receiver | addresses |
//! | 7 Finish | sender | chunks 8, entries 8, stream bytes 8, content bytes 8, notes 8, unnamed losses 8, unnamed harmless notes 8, digest of the transfer 32 |
//! | 8 Commit | receiver | exit code 1 (0 or 1), whether the stream has a digest 1, entries 8, content bytes 8, losses 8, harmless notes 8, digest of the transfer 32, digest of the stream 32 (or zeros), stages, notes |
//! | 9 Bye | sender | nothing |
//! | 10 Abort | both | exit code 1, reason (rest, at most [`REASON_MAX`](crate::limits::REASON_MAX)) |
//!
//! *Bitmap*: bit i of word j stands for chunk `next + 64 j + i`. *Addresses*: their number 2 (at most
//! [`ADDRESSES_MAX`]), and for each: interface 16 (at most 15 bytes, then zeros), address 16 (an IPv4 address is the
//! first 4, then zeros), port 2, family 1 (4 or 6), prefix length 1, speed in Mbit/s 4. *Notes*: their number 2 (at
//! most [`NOTES_PER_FRAME_MAX`](crate::limits::NOTES_PER_FRAME_MAX)), and for each: kind 1
//! ([`crate::report::NoteKind`]), reserved 1, length of the path 2, length of the detail 2, path, detail. A path longer
//! than [`NOTE_PATH_MAX`](crate::limits::NOTE_PATH_MAX) and a detail longer than `REASON_MAX` end in `…`. *Stages*:
//! their number 2, and for each, in ascending order: stage 1 ([`crate::stats::Stage`]), reserved 1, threads 2, and in
//! nanoseconds the time at work 8, waiting for input 8, waiting for output 8, each summed over the threads, and that of
//! the busiest thread at work 8.
//!
//! # Before a session: finding a receiver
//!
//! A sender that was given no address asks, from a UDP port of its own and on every interface, the groups [`GROUP_V4`]
//! (TTL 1) and [`GROUP_V6`] at UDP port [`PORT`](crate::limits::PORT); a receiver that waits for a sender has joined
//! both on every interface and answers to where a query came from. It answers only to addresses of its own networks and
//! to link-local ones, and not without bound. Every datagram is [`DATAGRAM_LEN`] bytes, a query too, so that a receiver
//! amplifies nothing:
//!
//! | at | bytes | field | in a query |
//! |---|---|---|---|
//! | 0 | 8 | magic, as of handshake messages | |
//! | 8 | 2 | [`ANNOUNCE_VERSION`]; another version's are ignored | |
//! | 10 | 1 | kind: 0x51 Query, 0x52 Answer | |
//! | 11 | 1 | length of the host's name, at most [`HOST_NAME_MAX`](crate::limits::HOST_NAME_MAX) | 0 |
//! | 12 | 2 | the receiver's TCP port | 0 |
//! | 14 | 2 | reserved | |
//! | 16 | 16 | nonce, chosen by the sender, repeated in the answer | |
//! | 32 | 16 | instance: random bytes of the receiver process | 0 |
//! | 48 | 64 | the host's name, then zeros | 0 |
//! | 112 | 16 | tag of everything before it | |
//!
//! Answers with one instance are of one receiver, whichever addresses they come from. What people compare is the
//! instance's code ([`InstanceCode`](crate::ids::InstanceCode)): the first 30 bits of BLAKE3 `derive_key` of the
//! instance under the context `blast code of a waiting receiver, version 1`, five at a time from the lowest, in
//! Crockford's base 32. The tag's key is the published one, and a code can be repeated by whoever hears it: this finds
//! mistakes, not attackers.

mod address;
mod announce;
mod codec;
mod control;
mod error;
mod handshake;
mod header;
mod keys;
mod note;
#[cfg(test)]
mod tests;
pub mod trust;

pub use address::{ADDRESSES_MAX, Address, is_sendable};
pub use announce::{ANNOUNCE_VERSION, Announce, DATAGRAM_LEN, GROUP_V4, GROUP_V6, decode_announce, encode_announce};
pub use control::{Ack, Commit, Control, Finish, decode_control};
pub use error::WireError;
pub use handshake::{
    Handshake, HandshakePrefix, Layout, Offer, PREFIX_LEN, Terms, decode_handshake, decode_handshake_prefix,
    decode_message, encode_handshake, may_be_handshake,
};
pub use header::{
    ChunkHead, ChunkKind, Codec, ControlHeader, Header, decode_header, encode_chunk_header, encode_control,
};
pub use keys::{ChunkKeys, Cipher, FIRST_NONCES, FrameKey, FrameKeys, SessionKeys, key_phase};
pub use note::notes_that_fit;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 96;

/// The protocol's version; both sides must have the same.
pub const VERSION: u16 = 2;

/// The first bytes of everything that begins: a connection, either way, and a datagram.
const MAGIC: [u8; 8] = *b"blast\r\n\0";

/// Keys the 16-byte tag of headers and handshake messages.
#[derive(Clone)]
pub struct TagKey(pub [u8; 32]);

/// Known to everybody: a tag under it catches accidents and strangers' traffic, not attackers.
pub const PUBLISHED_KEY: TagKey = TagKey(*b"blast 1: published, not a secret");

impl TagKey {
    /// The first 16 bytes of keyed BLAKE3.
    fn tag(&self, bytes: &[u8]) -> [u8; 16] {
        first_half(blake3::keyed_hash(&self.0, bytes))
    }

    fn fits(&self, tag: &[u8; 16], bytes: &[u8]) -> bool {
        same(tag, &self.tag(bytes))
    }

    fn fits_parts(&self, tag: &[u8; 16], parts: &[&[u8]]) -> bool {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        parts.iter().for_each(|part| {
            hasher.update(part);
        });
        same(tag, &first_half(hasher.finalize()))
    }
}

fn first_half(hash: blake3::Hash) -> [u8; 16] {
    *hash.as_bytes().first_chunk().expect("32 bytes have 16")
}

/// As one number, so that the time it takes says nothing about where two tags differ.
fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    u128::from_le_bytes(*a) == u128::from_le_bytes(*b)
}
