//! How a sender finds a receiver that waits: a query to a multicast group, and its answers. One datagram each.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::codec::{Fields, bounded};
use super::{MAGIC, PUBLISHED_KEY, WireError};
use crate::ids::InstanceId;
use crate::limits::HOST_NAME_MAX;

/// Bytes of every datagram. A query is as long as its answer, so that nobody gets more out of a receiver than was put
/// into it.
pub const DATAGRAM_LEN: usize = 128;

/// The version of these datagrams. It is not [`super::VERSION`]: ends of different versions find each other, and their
/// handshake says what the matter is.
pub const ANNOUNCE_VERSION: u16 = 1;

/// The IPv4 group, from the block for local use.
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 74, 11);

/// The IPv6 group, link-local: no router passes it on.
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0x626c, 0x7411);

const TAG_LEN: usize = 16;

// beside the kinds of handshake messages, which begin alike
const KIND_QUERY: u8 = 0x51;
const KIND_ANSWER: u8 = 0x52;

const _: () = assert!(16 + 16 + 16 + HOST_NAME_MAX + TAG_LEN == DATAGRAM_LEN);

/// Datagrams that are sent before there is a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announce {
    /// Who waits for a sender?
    Query {
        /// Fresh random bytes.
        nonce: [u8; 16],
    },
    /// The receiver that sends this.
    Answer {
        /// The query's nonce, repeated.
        nonce: [u8; 16],
        /// Where it listens, at the address that the datagram comes from; never 0.
        port: u16,
        /// Which process this is.
        instance: InstanceId,
        /// The host's name, at most [`HOST_NAME_MAX`] bytes. Escape before printing.
        host: Vec<u8>,
    },
}

/// A datagram. A host's name that is too long is cut.
pub fn encode_announce(message: &Announce) -> [u8; DATAGRAM_LEN] {
    let mut out = Vec::with_capacity(DATAGRAM_LEN);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&ANNOUNCE_VERSION.to_le_bytes());
    match message {
        Announce::Query { nonce } => {
            out.extend_from_slice(&[KIND_QUERY, 0, 0, 0, 0, 0]);
            out.extend_from_slice(nonce);
        }
        Announce::Answer { nonce, port, instance, host } => {
            assert!(*port != 0, "a receiver listens on a port");
            let host = &host[..host.len().min(HOST_NAME_MAX)];
            out.extend_from_slice(&[KIND_ANSWER, host.len() as u8]);
            out.extend_from_slice(&port.to_le_bytes());
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(nonce);
            out.extend_from_slice(&instance.0);
            out.extend_from_slice(host);
        }
    }
    out.resize(DATAGRAM_LEN - TAG_LEN, 0);
    let tag = PUBLISHED_KEY.tag(&out);
    out.extend_from_slice(&tag);
    out.try_into().expect("as many bytes as a datagram has")
}

/// A datagram from anybody.
pub fn decode_announce(bytes: &[u8]) -> Result<Announce, WireError> {
    let mut fields = Fields::of("announcement", bytes);
    let first: [u8; 8] = fields.array()?;
    if first != MAGIC {
        return Err(WireError::NotBlast { first });
    }
    if fields.u16()? != ANNOUNCE_VERSION {
        return Err(fields.malformed("another version"));
    }
    let bytes: &[u8; DATAGRAM_LEN] = bytes.try_into().map_err(|_| fields.malformed("not as long as all are"))?;
    let (signed, tag) = bytes.split_last_chunk().expect("a datagram is longer than its tag");
    if !PUBLISHED_KEY.fits(tag, signed) {
        return Err(WireError::Tag("announcement"));
    }
    let kind = fields.u8()?;
    let host_len = bounded("host's name", fields.u8()?.into(), HOST_NAME_MAX)?;
    let port = fields.u16()?;
    fields.zeros::<2>()?;
    let nonce = fields.array()?;
    let instance = fields.array()?;
    let padded = fields.array::<HOST_NAME_MAX>()?;
    let (host, padding) = padded.split_at(host_len);
    if padding.iter().any(|b| *b != 0) {
        return Err(WireError::Reserved("announcement"));
    }
    match kind {
        KIND_QUERY if port == 0 && host_len == 0 && instance == [0; 16] => Ok(Announce::Query { nonce }),
        KIND_QUERY => Err(WireError::Reserved("announcement")),
        KIND_ANSWER if port == 0 => Err(fields.malformed("a port that cannot be dialled")),
        KIND_ANSWER => Ok(Announce::Answer { nonce, port, instance: InstanceId(instance), host: host.to_vec() }),
        kind => Err(WireError::Kind { what: "announcement", kind }),
    }
}
