//! The header that every frame begins with. Decoding it allocates nothing.

use super::codec::bounded;
use super::keys::SEAL_LEN;
use super::{Control, FrameKey, HEADER_LEN, WireError, control};
use crate::ids::{Digest, Seq};
use crate::limits::{CHUNK_LEN, CONTROL_MAX};

const TAG_LEN: usize = 16;

/// What a seal covers of a header.
const BOUND_LEN: usize = HEADER_LEN - TAG_LEN - SEAL_LEN;

const FLAG_STREAM: u8 = 1;
const FLAG_DATA: u8 = 1 << 1;
const FLAG_SOLE: u8 = 1 << 2;
const FLAG_ZSTD: u8 = 1 << 3;
const FLAG_BZIP2: u8 = 1 << 4;

/// A file's last byte lies below this in every system that blast runs on.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// What a chunk's content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkKind {
    /// Whole small entries, headers and padding; its digest is plain BLAKE3.
    Mixed,
    /// An aligned slice of one large file or raw stream, at least one byte. Its digest is the chaining value of the
    /// subtree at `offset`, or the root if it is the file's only slice. All slices but the last are full chunks.
    Data {
        /// Bytes before it in the file or stream; a multiple of the chunk length.
        offset: u64,
        /// Whether it is the only slice.
        sole: bool,
    },
}

/// What a compressed payload is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// One zstd frame that names the content's length.
    Zstd,
    /// One bzip2 stream.
    Bzip2,
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
    /// Bytes of payload: the content, or the content compressed to fewer bytes.
    pub payload_len: u32,
    /// What the payload is, if it is not the content itself.
    pub codec: Option<Codec>,
    /// BLAKE3 of the content, as `kind` says; masked where the chunk is sealed.
    pub digest: Digest,
    /// The cipher's tag; zeros where the chunk is not sealed.
    pub seal: [u8; SEAL_LEN],
}

/// The header of a frame that is not a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlHeader {
    pub(super) kind: u8,
    pub(super) payload_len: u32,
    pub(super) digest: Digest,
    pub(super) seal: [u8; SEAL_LEN],
    /// Which frame of its connection and direction it is.
    pub(super) number: u64,
}

/// A frame's header, checked: its tag fits and its lengths are within their constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// A chunk's payload follows.
    Chunk(ChunkHead),
    /// Another payload follows; [`super::decode_control`] reads it.
    Control(ControlHeader),
}

impl ControlHeader {
    /// Bytes of payload that follow, at most [`CONTROL_MAX`].
    pub fn payload_len(&self) -> usize {
        self.payload_len as usize
    }
}

/// The header of a chunk frame; its payload follows on the wire. The same until [`FrameKey::sent`] says that it has
/// gone.
pub fn encode_chunk_header(head: &ChunkHead, key: &FrameKey) -> [u8; HEADER_LEN] {
    check_chunk(head).expect("we make only chunks that a peer accepts");
    HeaderFields::of_chunk(head).to_bytes(key)
}

/// Append a control frame's header and payload, which must be the next to go that way. Lists longer than the frame
/// holds lose their end: see [`Control::Notes`] and [`Control::Links`].
pub fn encode_control(frame: &Control, key: &mut FrameKey, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + HEADER_LEN, 0);
    control::encode_payload(frame, out);
    let payload = &mut out[start + HEADER_LEN..];
    assert!(payload.len() <= CONTROL_MAX, "a control frame's payload fits its bound by construction");
    let mut header = ControlHeader {
        kind: control::kind(frame),
        payload_len: payload.len() as u32,
        digest: Digest(if key.seals() { [0; 32] } else { blake3::hash(payload).into() }),
        seal: [0; SEAL_LEN],
        number: key.number(),
    };
    header.seal = key.seal_control(&header, payload);
    out[start..start + HEADER_LEN].copy_from_slice(&HeaderFields::of_control(&header).to_bytes(key));
    key.sent();
}

/// Check a header and take it apart: first its tag, then everything else against constants. Allocates nothing.
pub fn decode_header(bytes: &[u8; HEADER_LEN], key: &mut FrameKey) -> Result<Header, WireError> {
    let (at, number) = HeaderFields::from_bytes(bytes, key)?;
    if !key.seals() && at.seal != [0; SEAL_LEN] {
        return Err(WireError::Reserved("frame header"));
    }
    if at.flags & FLAG_STREAM != 0 {
        return Err(WireError::ListingStream);
    }
    if at.flags & !(FLAG_DATA | FLAG_SOLE | FLAG_ZSTD | FLAG_BZIP2) != 0 {
        return Err(WireError::Reserved("frame header"));
    }
    if at.kind == control::KIND_CHUNK {
        let head = ChunkHead {
            seq: Seq(at.seq),
            kind: match (at.flags & FLAG_DATA != 0, at.flags & FLAG_SOLE != 0) {
                (true, sole) => ChunkKind::Data { offset: at.offset, sole },
                (false, false) if at.offset == 0 => ChunkKind::Mixed,
                (false, _) => return Err(malformed_chunk("it is mixed and a slice")),
            },
            content_len: at.content_len,
            payload_len: at.payload_len,
            codec: match (at.flags & FLAG_ZSTD != 0, at.flags & FLAG_BZIP2 != 0) {
                (false, false) => None,
                (true, false) => Some(Codec::Zstd),
                (false, true) => Some(Codec::Bzip2),
                (true, true) => return Err(malformed_chunk("it is compressed in two ways")),
            },
            digest: at.digest,
            seal: at.seal,
        };
        check_chunk(&head)?;
        return Ok(Header::Chunk(head));
    }
    if !control::KINDS.contains(&at.kind) {
        return Err(WireError::Kind { what: "frame", kind: at.kind });
    }
    if at.flags != 0 || at.seq != 0 || at.offset != 0 || at.content_len != 0 {
        return Err(WireError::Reserved("control frame's header"));
    }
    bounded("control frame's payload", at.payload_len.into(), CONTROL_MAX)?;
    Ok(Header::Control(ControlHeader {
        kind: at.kind,
        payload_len: at.payload_len,
        digest: at.digest,
        seal: at.seal,
        number,
    }))
}

/// Whether a chunk's header makes sense. The rules for slices are those of BLAKE3's tree: what passes can be hashed at
/// its offset.
fn check_chunk(head: &ChunkHead) -> Result<(), WireError> {
    bounded("chunk's content", head.content_len.into(), CHUNK_LEN)?;
    bounded("chunk's payload", head.payload_len.into(), CHUNK_LEN)?;
    if head.codec.is_some() && (head.payload_len == 0 || head.payload_len >= head.content_len) {
        return Err(malformed_chunk("compressing it did not make it smaller"));
    }
    if head.codec.is_none() && head.payload_len != head.content_len {
        return Err(malformed_chunk("its payload is not as long as its content"));
    }
    if let ChunkKind::Data { offset, sole } = head.kind {
        let is_full = head.content_len as usize == CHUNK_LEN;
        if head.content_len == 0 {
            return Err(malformed_chunk("an empty slice"));
        }
        if !offset.is_multiple_of(CHUNK_LEN as u64) || offset > OFFSET_MAX - CHUNK_LEN as u64 {
            return Err(malformed_chunk("a slice at an impossible offset"));
        }
        if sole && offset != 0 {
            return Err(malformed_chunk("the only slice, but not at the start"));
        }
        if !sole && offset == 0 && !is_full {
            return Err(malformed_chunk("a short slice with more after it"));
        }
    }
    Ok(())
}

fn malformed_chunk(why: &'static str) -> WireError {
    WireError::Malformed { message: "chunk header", why }
}

/// The fields that every header has, in the order of the wire after the tag.
pub(super) struct HeaderFields {
    kind: u8,
    flags: u8,
    payload_len: u32,
    seq: u64,
    offset: u64,
    content_len: u32,
    digest: Digest,
    seal: [u8; SEAL_LEN],
}

impl HeaderFields {
    pub(super) fn of_chunk(head: &ChunkHead) -> HeaderFields {
        let (flags, offset) = match head.kind {
            ChunkKind::Mixed => (0, 0),
            ChunkKind::Data { offset, sole } => (FLAG_DATA | if sole { FLAG_SOLE } else { 0 }, offset),
        };
        let codec = match head.codec {
            None => 0,
            Some(Codec::Zstd) => FLAG_ZSTD,
            Some(Codec::Bzip2) => FLAG_BZIP2,
        };
        HeaderFields {
            kind: control::KIND_CHUNK,
            flags: flags | codec,
            payload_len: head.payload_len,
            seq: head.seq.0,
            offset,
            content_len: head.content_len,
            digest: head.digest,
            seal: head.seal,
        }
    }

    pub(super) fn of_control(header: &ControlHeader) -> HeaderFields {
        HeaderFields {
            kind: header.kind,
            flags: 0,
            payload_len: header.payload_len,
            seq: 0,
            offset: 0,
            content_len: 0,
            digest: header.digest,
            seal: header.seal,
        }
    }

    /// What the seal covers beside the payload: everything but the tag, which belongs to a connection, and the seal.
    pub(super) fn bound(&self) -> [u8; BOUND_LEN] {
        *self.untagged().first_chunk().expect("a header's middle")
    }

    /// Everything behind the tag.
    fn untagged(&self) -> [u8; HEADER_LEN - TAG_LEN] {
        let mut bytes = [0; HEADER_LEN - TAG_LEN];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.content_len.to_le_bytes());
        bytes[32..64].copy_from_slice(&self.digest.0);
        bytes[64..].copy_from_slice(&self.seal);
        bytes
    }

    fn to_bytes(&self, key: &FrameKey) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[TAG_LEN..].copy_from_slice(&self.untagged());
        let tag = key.tag(&bytes[TAG_LEN..]);
        bytes[..TAG_LEN].copy_from_slice(&tag);
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_LEN], key: &mut FrameKey) -> Result<(HeaderFields, u64), WireError> {
        fn part<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
            bytes[at..at + N].try_into().expect("N bytes")
        }
        let number = key.came(&part(bytes, 0), &bytes[TAG_LEN..]).ok_or(WireError::Tag("frame header"))?;
        if part(bytes, 18) != [0; 2] || part(bytes, 44) != [0; 4] {
            return Err(WireError::Reserved("frame header"));
        }
        let fields = HeaderFields {
            kind: bytes[16],
            flags: bytes[17],
            payload_len: u32::from_le_bytes(part(bytes, 20)),
            seq: u64::from_le_bytes(part(bytes, 24)),
            offset: u64::from_le_bytes(part(bytes, 32)),
            content_len: u32::from_le_bytes(part(bytes, 40)),
            digest: Digest(part(bytes, 48)),
            seal: part(bytes, 80),
        };
        Ok((fields, number))
    }
}
