//! Frames and handshake messages, to bytes and back. No sockets.

mod address;
mod codec;
mod control;
mod error;
mod handshake;
mod header;
mod note;

pub use address::{ADDRESSES_MAX, Address, is_sendable};
pub use control::{Ack, Commit, Control, Finish, decode_control};
pub use error::WireError;
pub use handshake::{
    Handshake, HandshakePrefix, Layout, Offer, PREFIX_LEN, decode_handshake, decode_handshake_prefix, encode_handshake,
};
pub use header::{ChunkHead, ChunkKind, ControlHeader, Header, decode_header, encode_chunk_header, encode_control};
pub use note::notes_that_fit;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 80;

/// The protocol's version; both sides must have the same.
pub const VERSION: u16 = 1;

/// Keys the 16-byte tag of headers and handshake messages.
#[derive(Clone)]
pub struct TagKey(pub [u8; 32]);

/// The key of this version, known to everybody: a tag under it catches accidents and strangers' traffic, not attackers.
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
