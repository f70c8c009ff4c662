//! What a peer's bytes go through first: frames, handshake messages, announcements, payloads. Each is taken twice: as
//! it is, and with tags and digests put right, so that what lies behind them is reached too.

use std::cell::RefCell;

use blast::chunk::{Opener, Pool};
use blast::ids::{Digest, LinkId, Seq};
use blast::limits::{CHUNK_LEN, CONTROL_MAX};
use blast::report::Note;
use blast::stats::StageTimes;
use blast::wire::*;

/// What a decoded control frame may hold: notes weigh more in memory than on the wire, and a byte that is not UTF-8
/// becomes three.
const DECODED_MAX: usize = 6 * CONTROL_MAX;

/// A frame.
pub fn frames(input: &[u8]) {
    frame(input);
    frame(&mended_frame(input));
}

/// What a connection begins with: Hello, Join and their answers.
pub fn handshakes(input: &[u8]) {
    let mended = mended_handshake(input);
    for input in [input, &mended] {
        handshake(input);
        message(input);
    }
}

/// A datagram of those who look for a receiver.
pub fn announcements(input: &[u8]) {
    announce(input);
    announce(&mended_announce(input));
}

/// A header and what follows it.
fn frame(input: &[u8]) {
    let Some((header, payload)) = input.split_first_chunk() else { return };
    match decode_header(header, &mut key()) {
        Ok(Header::Chunk(head)) => {
            assert!(head.content_len as usize <= CHUNK_LEN && head.payload_len as usize <= CHUNK_LEN);
            assert_eq!(encode_chunk_header(&head, &key()), *header, "a header has one encoding");
            if head.codec.is_none() {
                let content = vec![0; head.content_len as usize];
                blast::chunk::chunk_digest(head.kind, &content);
            }
        }
        Ok(Header::Control(header)) => {
            assert!(header.payload_len() <= CONTROL_MAX);
            if let Ok(frame) = decode_control(&header, &mut payload.to_vec(), &key()) {
                assert!(held(&frame) <= DECODED_MAX, "{} bytes", held(&frame));
                let mut again = Vec::new();
                encode_control(&frame, &mut key(), &mut again);
                if !format!("{frame:?}").contains(char::REPLACEMENT_CHARACTER)
                    && !matches!(frame, Control::Abort { .. })
                {
                    assert_eq!(again, input, "a frame has one encoding");
                }
            }
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Bytes of memory behind a control frame.
fn held(frame: &Control) -> usize {
    fn notes_held(notes: &Vec<Note>) -> usize {
        let each = |n: &Note| n.path.capacity() + n.detail.capacity();
        notes.capacity() * size_of::<Note>() + notes.iter().map(each).sum::<usize>()
    }
    match frame {
        Control::Ack(ack) => ack.links.capacity() * size_of_val(&ack.links[..1.min(ack.links.len())]),
        Control::Notes { notes, .. } => notes_held(notes),
        Control::Commit(commit) => notes_held(&commit.notes) + commit.stages.capacity() * size_of::<StageTimes>(),
        Control::Links(addresses) => {
            addresses.capacity() * size_of::<Address>()
                + addresses.iter().map(|a| a.interface.capacity()).sum::<usize>()
        }
        Control::Abort { reason, .. } => reason.capacity(),
        Control::Ping(_) | Control::Pong(_) | Control::Finish(_) | Control::Bye => 0,
    }
}

/// A handshake message, whole or not.
fn handshake(input: &[u8]) {
    let Some((prefix, rest)) = input.split_first_chunk() else { return };
    match decode_handshake_prefix(prefix) {
        Ok(prefix) => {
            if let Ok(message) = decode_handshake(&prefix, rest, |_| Some(keys().joins())) {
                let mut again = Vec::new();
                encode_handshake(&message, &keys().joins(), &mut again);
                if !matches!(message, Handshake::Refuse { .. }) {
                    assert_eq!(again, input, "a message has one encoding");
                }
            }
        }
        Err(error) => drop(error.to_string()),
    }
}

/// A message that came inside of TLS, where neither Join nor its answer has a place.
fn message(input: &[u8]) {
    if let Ok(message) = decode_message(input) {
        assert!(!matches!(message, Handshake::Join { .. } | Handshake::Joined { .. }));
        let mut again = Vec::new();
        encode_handshake(&message, &PUBLISHED_KEY, &mut again);
        if !matches!(message, Handshake::Refuse { .. }) {
            assert_eq!(again, input, "a message has one encoding");
        }
    }
}

/// A datagram.
fn announce(input: &[u8]) {
    match decode_announce(input) {
        Ok(message) => assert_eq!(encode_announce(&message), *input, "a datagram has one encoding"),
        Err(error) => drop(error.to_string()),
    }
}

/// Four bytes of content length, then a compressed payload.
pub fn payloads(input: &[u8]) {
    thread_local! {
        static OPENER: RefCell<Opener> = RefCell::new(Opener::new());
        static POOL: std::sync::Arc<Pool> = Pool::new(1, CHUNK_LEN);
    }
    let Some((content_len, payload)) = input.split_first_chunk() else { return };
    let content_len = u32::from_le_bytes(*content_len) % (CHUNK_LEN as u32 + 1);
    let head = ChunkHead {
        seq: Seq(0),
        kind: ChunkKind::Mixed,
        content_len,
        payload_len: payload.len() as u32,
        codec: Some(if payload.starts_with(b"BZh") { Codec::Bzip2 } else { Codec::Zstd }),
        digest: Digest([0; 32]),
        seal: [0; 16],
    };
    let mut buf = POOL.with(Pool::try_take).expect("each input gives its buffer back");
    buf[..payload.len()].copy_from_slice(payload);
    let opened = OPENER.with_borrow_mut(|opener| opener.open(&head, buf));
    assert!(opened.is_err(), "no content has a digest of zeros");
}

fn keys() -> SessionKeys {
    SessionKeys::new([5; 32], None)
}

/// Of the first frame.
fn key() -> FrameKey {
    keys().dialer(LinkId(0), FIRST_NONCES).out
}

fn tag(key: &TagKey, bytes: &[u8]) -> [u8; 16] {
    *blake3::keyed_hash(&key.0, bytes).as_bytes().first_chunk().expect("16 of 32")
}

/// The same frame with its payload's length and digest and its tag put right. Chunk headers keep length and digest.
fn mended_frame(input: &[u8]) -> Vec<u8> {
    let mut frame = input.to_vec();
    if frame.len() >= HEADER_LEN {
        if frame[16] != 1 {
            let payload_len = frame.len() - HEADER_LEN;
            let digest = blake3::hash(&frame[HEADER_LEN..]);
            frame[20..24].copy_from_slice(&(payload_len as u32).to_le_bytes());
            frame[48..80].copy_from_slice(digest.as_bytes());
        }
        let tag = key().tag(&frame[16..HEADER_LEN]);
        frame[..16].copy_from_slice(&tag);
    }
    frame
}

/// The same message with its length and MAC put right.
fn mended_handshake(input: &[u8]) -> Vec<u8> {
    let mut message = input.to_vec();
    if message.len() >= PREFIX_LEN + 16 {
        let end = message.len() - 16;
        message[12..14].copy_from_slice(&((end - PREFIX_LEN) as u16).to_le_bytes());
        let is_join = matches!(message[10], 3 | 4);
        let mac = tag(&if is_join { keys().joins() } else { PUBLISHED_KEY }, &message[..end]);
        message[end..].copy_from_slice(&mac);
    }
    message
}

/// The same datagram with its tag put right.
fn mended_announce(input: &[u8]) -> Vec<u8> {
    let mut datagram = input.to_vec();
    if let Some((signed, last)) = datagram.split_last_chunk_mut::<16>() {
        *last = tag(&PUBLISHED_KEY, signed);
    }
    datagram
}
