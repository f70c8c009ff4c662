//! What is said on a connection before frames begin.

use super::address::{self, Address};
use super::codec::{self, Fields, bounded};
use super::{Cipher, MAGIC, PUBLISHED_KEY, TagKey, VERSION, WireError};
use crate::error::ExitCode;
use crate::ids::{LinkId, SessionId};
use crate::limits::{HANDSHAKE_MAX, NAME_LEN_MAX, REASON_MAX, WINDOW_MAX};

/// Bytes of a handshake message before its body.
pub const PREFIX_LEN: usize = 16;

const MAC_LEN: usize = 16;

const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_JOIN: u8 = 3;
const KIND_JOINED: u8 = 4;
const KIND_REFUSE: u8 = 5;

const OFFER_TREE: u8 = 1;
const OFFER_FILE: u8 = 2;
const OFFER_STREAM: u8 = 3;
const OFFER_MEASURE: u8 = 4;
const OFFER_DEVICE: u8 = 5;

const LAYOUT_ARCHIVE: u8 = 1;
const LAYOUT_RAW: u8 = 2;

const FLAG_KEYED: u8 = 1;
const FLAG_OWNER_NAMES: u8 = 1 << 1;
const FLAG_PLAIN: u8 = 1 << 1;
const FLAG_AES: u8 = 1 << 2;

const CIPHER_NONE: u8 = 0;
const CIPHER_AES: u8 = 1;
const CIPHER_CHACHA: u8 = 2;

const _: () = assert!(16 + 8 + 32 + address::ADDRESSES_MAX * address::ADDRESS_LEN + 2 <= HANDSHAKE_MAX);
const _: () = assert!(HANDSHAKE_MAX <= u16::MAX as usize);

/// What the sender has to offer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Offer {
    /// Directories, or several sources.
    Tree {
        /// How many sources were named; at least 1.
        sources: u32,
    },
    /// One regular file.
    File {
        /// Its last name: one component, never `.` or `..`.
        name: Vec<u8>,
        /// Its size when it was looked at.
        size: u64,
    },
    /// The content of one block device.
    Device {
        /// Its last name: one component, never `.` or `..`.
        name: Vec<u8>,
        /// Its size when it was opened.
        size: u64,
    },
    /// Standard input.
    Stream,
    /// Slices of a stream that are worth nothing, to see how fast they come: the receiver writes none of them, and goes
    /// on waiting for another offer afterwards. The session ends when the sender says Abort.
    Measure,
}

/// How the stream is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One tar archive.
    Archive,
    /// The file's or stream's bytes.
    Raw,
}

/// What a dialer brings to the first connection beside its offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Behind the commitment that it made before, see [`super::trust::commitment`].
    pub nonce: [u8; 32],
    /// That it has a key; nothing if it has none.
    pub proof: Option<[u8; 32]>,
    /// It wants no encryption.
    pub plain: bool,
    /// Its CPU has instructions for AES.
    pub aes: bool,
}

/// Handshake messages, before frames begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// The first connection's opening.
    Hello {
        /// The session that begins.
        session: SessionId,
        /// What it proves and wants.
        terms: Terms,
        /// What will be sent.
        offer: Offer,
    },
    /// The listener agrees.
    Welcome {
        /// The session, repeated.
        session: SessionId,
        /// What the receiver wants to be sent.
        layout: Layout,
        /// Whether the names of owners and groups shall be in the archive.
        owner_names: bool,
        /// What chunks and control frames are sealed with, if they are.
        cipher: Option<Cipher>,
        /// That it has the key, which the dialer has proved to have; nothing if there is none.
        proof: Option<[u8; 32]>,
        /// Chunks the receiver holds at most; 1 to [`WINDOW_MAX`].
        window_chunks: u32,
        /// Where it can be reached; at most [`super::ADDRESSES_MAX`].
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
        /// The listener's own: fresh random bytes.
        own: [u8; 16],
    },
    /// The listener does not agree.
    Refuse {
        /// The exit code for the dialer.
        code: ExitCode,
        /// Why, in words; cut to [`REASON_MAX`] bytes. Escape before printing.
        reason: String,
    },
}

/// The first bytes of a handshake message, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakePrefix {
    bytes: [u8; PREFIX_LEN],
    kind: u8,
    body_len: u16,
}

impl HandshakePrefix {
    /// Bytes that follow: the body, at most [`HANDSHAKE_MAX`], and the MAC.
    pub fn rest_len(&self) -> usize {
        usize::from(self.body_len) + MAC_LEN
    }
}

/// Append a handshake message. `joins` keys the MACs of Join and Joined ([`super::SessionKeys::joins`]), the published
/// key all others.
pub fn encode_handshake(message: &Handshake, joins: &TagKey, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[kind(message), 0, 0, 0, 0, 0]);
    put_body(message, out);
    let body_len = out.len() - start - PREFIX_LEN;
    assert!(body_len <= HANDSHAKE_MAX, "a handshake message fits its bound by construction");
    out[start + 12..start + 14].copy_from_slice(&(body_len as u16).to_le_bytes());
    let is_join = matches!(message, Handshake::Join { .. } | Handshake::Joined { .. });
    let key = if is_join { joins } else { &PUBLISHED_KEY };
    let mac = key.tag(&out[start..]);
    out.extend_from_slice(&mac);
}

/// Whether what has come, if it is less than a prefix, can become one of any version.
pub fn may_be_handshake(came: &[u8]) -> Result<(), WireError> {
    let len = came.len().min(MAGIC.len());
    if came[..len] == MAGIC[..len] {
        return Ok(());
    }
    let mut first = [0; MAGIC.len()];
    first[..len].copy_from_slice(&came[..len]);
    Err(WireError::NotBlast { first })
}

/// The first bytes of a handshake message. Another version's are refused, unless they begin a Refuse, which every
/// version understands. Allocates nothing.
pub fn decode_handshake_prefix(bytes: &[u8; PREFIX_LEN]) -> Result<HandshakePrefix, WireError> {
    let mut fields = Fields::of("handshake", bytes);
    let first: [u8; 8] = fields.array()?;
    if first != MAGIC {
        return Err(WireError::NotBlast { first });
    }
    let version = fields.u16()?;
    let kind = fields.u8()?;
    if version != VERSION && kind != KIND_REFUSE {
        return Err(WireError::Version { theirs: version });
    }
    let reserved = fields.u8()?;
    let body_len = bounded("handshake message", fields.u16()?.into(), HANDSHAKE_MAX)? as u16;
    if version == VERSION && (reserved != 0 || fields.u16()? != 0) {
        return Err(WireError::Reserved("handshake message"));
    }
    if !(KIND_HELLO..=KIND_REFUSE).contains(&kind) {
        return Err(WireError::Kind { what: "handshake message", kind });
    }
    Ok(HandshakePrefix { bytes: *bytes, kind, body_len })
}

/// The rest of a handshake message: [`HandshakePrefix::rest_len`] bytes. Checks the MAC first: that of Join and Joined
/// with the key that `joins` has for their session.
pub fn decode_handshake(
    prefix: &HandshakePrefix,
    rest: &[u8],
    joins: impl FnOnce(SessionId) -> Option<TagKey>,
) -> Result<Handshake, WireError> {
    let mut fields = Fields::of("handshake message", rest);
    let body = fields.bytes(prefix.body_len.into())?;
    let mac = fields.array::<MAC_LEN>()?;
    fields.end()?;
    let key = match prefix.kind {
        KIND_JOIN | KIND_JOINED => {
            let session = SessionId(Fields::of("Join", body).array()?);
            joins(session).ok_or(WireError::NoSession)?
        }
        _ => PUBLISHED_KEY,
    };
    if !key.fits_parts(&mac, &[&prefix.bytes, body]) {
        return Err(WireError::Tag("handshake message"));
    }
    match prefix.kind {
        KIND_HELLO => hello(body),
        KIND_WELCOME => welcome(body),
        KIND_JOIN => {
            let mut fields = Fields::of("Join", body);
            let (session, link, nonce) = join(&mut fields)?;
            fields.end()?;
            Ok(Handshake::Join { session, link, nonce })
        }
        KIND_JOINED => {
            let mut fields = Fields::of("Joined", body);
            let (session, link, nonce) = join(&mut fields)?;
            let own = fields.array()?;
            fields.end()?;
            Ok(Handshake::Joined { session, link, nonce, own })
        }
        _ => {
            let mut fields = Fields::of("Refuse", body);
            let code = ExitCode::from_wire(fields.u8()?);
            let reason = fields.remainder("reason", HANDSHAKE_MAX)?;
            Ok(Handshake::Refuse { code, reason: codec::reason(&reason[..codec::cut(reason, REASON_MAX)]) })
        }
    }
}

/// A whole message that is neither Join nor Joined.
pub fn decode_message(bytes: &[u8]) -> Result<Handshake, WireError> {
    let fields = Fields::of("handshake message", bytes);
    let (prefix, rest) = bytes.split_first_chunk().ok_or_else(|| fields.malformed("it ends early"))?;
    let prefix = decode_handshake_prefix(prefix)?;
    if rest.len() != prefix.rest_len() {
        return Err(fields.malformed("it has another length than it says"));
    }
    decode_handshake(&prefix, rest, |_| None)
}

fn kind(message: &Handshake) -> u8 {
    match message {
        Handshake::Hello { .. } => KIND_HELLO,
        Handshake::Welcome { .. } => KIND_WELCOME,
        Handshake::Join { .. } => KIND_JOIN,
        Handshake::Joined { .. } => KIND_JOINED,
        Handshake::Refuse { .. } => KIND_REFUSE,
    }
}

fn put_body(message: &Handshake, out: &mut Vec<u8>) {
    match message {
        Handshake::Hello { session, terms, offer } => {
            out.extend_from_slice(&session.0);
            out.extend_from_slice(&terms.nonce);
            let flag = |is: bool, flag: u8| if is { flag } else { 0 };
            let keyed = flag(terms.proof.is_some(), FLAG_KEYED);
            out.push(keyed | flag(terms.plain, FLAG_PLAIN) | flag(terms.aes, FLAG_AES));
            out.extend_from_slice(&terms.proof.unwrap_or_default());
            match offer {
                Offer::Tree { sources } => {
                    out.push(OFFER_TREE);
                    out.extend_from_slice(&sources.to_le_bytes());
                }
                Offer::File { name, size } => put_named(OFFER_FILE, name, *size, out),
                Offer::Device { name, size } => put_named(OFFER_DEVICE, name, *size, out),
                Offer::Stream => out.push(OFFER_STREAM),
                Offer::Measure => out.push(OFFER_MEASURE),
            }
        }
        Handshake::Welcome { session, layout, owner_names, cipher, proof, window_chunks, addresses } => {
            out.extend_from_slice(&session.0);
            let layout = match layout {
                Layout::Archive => LAYOUT_ARCHIVE,
                Layout::Raw => LAYOUT_RAW,
            };
            let cipher = match cipher {
                None => CIPHER_NONE,
                Some(Cipher::Aes256Gcm) => CIPHER_AES,
                Some(Cipher::ChaCha20Poly1305) => CIPHER_CHACHA,
            };
            let keyed = if proof.is_some() { FLAG_KEYED } else { 0 };
            let flags = keyed | if *owner_names { FLAG_OWNER_NAMES } else { 0 };
            out.extend_from_slice(&[layout, cipher, flags, 0]);
            out.extend_from_slice(&window_chunks.to_le_bytes());
            out.extend_from_slice(&proof.unwrap_or_default());
            address::put_addresses(addresses, out);
        }
        Handshake::Join { session, link, nonce } => put_join(session, *link, nonce, out),
        Handshake::Joined { session, link, nonce, own } => {
            put_join(session, *link, nonce, out);
            out.extend_from_slice(own);
        }
        Handshake::Refuse { code, reason } => {
            out.push(*code as u8);
            codec::put_reason(reason, out);
        }
    }
}

fn put_named(kind: u8, name: &[u8], size: u64, out: &mut Vec<u8>) {
    assert!(is_last_name(name), "a last name is one component");
    out.push(kind);
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(name);
}

fn hello(body: &[u8]) -> Result<Handshake, WireError> {
    let mut fields = Fields::of("Hello", body);
    let session = SessionId(fields.array()?);
    let nonce = fields.array()?;
    let flags = fields.u8()?;
    if flags & !(FLAG_KEYED | FLAG_PLAIN | FLAG_AES) != 0 {
        return Err(WireError::Reserved("Hello"));
    }
    let proof = proof(&mut fields, flags & FLAG_KEYED != 0)?;
    let terms = Terms { nonce, proof, plain: flags & FLAG_PLAIN != 0, aes: flags & FLAG_AES != 0 };
    let offer = match fields.u8()? {
        OFFER_TREE => Offer::Tree { sources: fields.u32()? },
        kind @ (OFFER_FILE | OFFER_DEVICE) => {
            let size = fields.u64()?;
            let name = fields.remainder("file's name", NAME_LEN_MAX)?;
            if !is_last_name(name) {
                return Err(fields.malformed("a file's name that is none"));
            }
            let name = name.to_vec();
            if kind == OFFER_FILE { Offer::File { name, size } } else { Offer::Device { name, size } }
        }
        OFFER_STREAM => Offer::Stream,
        OFFER_MEASURE => Offer::Measure,
        kind => return Err(WireError::Kind { what: "offer", kind }),
    };
    fields.end()?;
    Ok(Handshake::Hello { session, terms, offer })
}

fn welcome(body: &[u8]) -> Result<Handshake, WireError> {
    let mut fields = Fields::of("Welcome", body);
    let session = SessionId(fields.array()?);
    let layout = match fields.u8()? {
        LAYOUT_ARCHIVE => Layout::Archive,
        LAYOUT_RAW => Layout::Raw,
        kind => return Err(WireError::Kind { what: "layout", kind }),
    };
    let cipher = match fields.u8()? {
        CIPHER_NONE => None,
        CIPHER_AES => Some(Cipher::Aes256Gcm),
        CIPHER_CHACHA => Some(Cipher::ChaCha20Poly1305),
        kind => return Err(WireError::Kind { what: "cipher", kind }),
    };
    let flags = fields.u8()?;
    if flags & !(FLAG_KEYED | FLAG_OWNER_NAMES) != 0 {
        return Err(WireError::Reserved("Welcome"));
    }
    let owner_names = flags & FLAG_OWNER_NAMES != 0;
    fields.zeros::<1>()?;
    let window_chunks = fields.u32()?;
    if !(1..=WINDOW_MAX).contains(&window_chunks) {
        return Err(fields.malformed("an impossible window"));
    }
    let proof = proof(&mut fields, flags & FLAG_KEYED != 0)?;
    let addresses = address::addresses(&mut fields)?;
    fields.end()?;
    Ok(Handshake::Welcome { session, layout, owner_names, cipher, proof, window_chunks, addresses })
}

/// A proof, or zeros where there is none.
fn proof(fields: &mut Fields, is_there: bool) -> Result<Option<[u8; 32]>, WireError> {
    if is_there { Ok(Some(fields.array()?)) } else { fields.zeros::<32>().map(|()| None) }
}

fn put_join(session: &SessionId, link: LinkId, nonce: &[u8; 16], out: &mut Vec<u8>) {
    out.extend_from_slice(&session.0);
    out.extend_from_slice(&link.0.to_le_bytes());
    out.extend_from_slice(nonce);
}

fn join(fields: &mut Fields) -> Result<(SessionId, LinkId, [u8; 16]), WireError> {
    Ok((SessionId(fields.array()?), LinkId(fields.u32()?), fields.array()?))
}

fn is_last_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && name.len() <= NAME_LEN_MAX && !name.iter().any(|b| matches!(b, b'/' | 0))
}
