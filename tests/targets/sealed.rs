//! Frames of an encrypted session: bytes of a peer that has the keys, and honest frames that were changed on their way.

use std::cell::RefCell;
use std::sync::Arc;

use blast::chunk::{Opener, Pool, Sealer};
use blast::ids::{LinkId, Seq};
use blast::limits::CHUNK_LEN;
use blast::wire::*;

use super::Bytes;

/// A byte for the cipher, one for the kind of an honest frame and one for its length; the others are the hostile frame,
/// and the damage to the honest one.
pub fn sealed_frames(input: &[u8]) {
    let mut bytes = Bytes(input);
    let cipher = if bytes.u8().is_multiple_of(2) { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 };
    let (kind, len) = (bytes.u8(), usize::from(bytes.u8()));
    let hostile = with_its_tag(bytes.0, cipher);
    let _ = opened(&hostile, cipher);
    let honest = honest(kind, len, cipher);
    assert!(opened(&honest, cipher), "an honest frame");
    let mut damaged = honest.clone();
    damaged.iter_mut().zip(bytes.0).for_each(|(byte, damage)| *byte ^= damage);
    assert_eq!(opened(&damaged, cipher), damaged == honest, "a changed frame");
}

fn keys(cipher: Cipher) -> SessionKeys {
    SessionKeys::new([5; 32], Some(cipher))
}

fn frame_key(cipher: Cipher) -> FrameKey {
    keys(cipher).dialer(LinkId(0), FIRST_NONCES).out
}

/// The frame that a peer with the keys makes of these bytes: what it says is not sealed as it should be.
fn with_its_tag(bytes: &[u8], cipher: Cipher) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    if frame.len() >= HEADER_LEN {
        let len = (frame.len() - HEADER_LEN) as u32;
        frame[20..24].copy_from_slice(&len.to_le_bytes());
        let tag = frame_key(cipher).tag(&frame[16..HEADER_LEN]);
        frame[..16].copy_from_slice(&tag);
    }
    frame
}

fn pool() -> Arc<Pool> {
    thread_local! {
        static POOL: Arc<Pool> = Pool::new(2, CHUNK_LEN);
    }
    POOL.with(Arc::clone)
}

fn honest(kind: u8, len: usize, cipher: Cipher) -> Vec<u8> {
    let mut frame = Vec::new();
    if kind.is_multiple_of(2) {
        let mut control = Control::Abort { code: blast::ExitCode::Refused, reason: "x".repeat(len) };
        if len == 0 {
            control = Control::Ping(kind.into());
        }
        encode_control(&control, &mut frame_key(cipher), &mut frame);
        return frame;
    }
    let mut buf = pool().try_take().expect("each input gives its buffers back");
    buf[..len].fill(kind);
    let level = (kind % 4 == 1).then_some(1);
    let mut sealer = Sealer::new(level).keyed(keys(cipher).chunks());
    let chunk = sealer.seal(Seq(0), ChunkKind::Mixed, len, buf);
    frame.extend_from_slice(&encode_chunk_header(&chunk.head, &frame_key(cipher)));
    frame.extend_from_slice(chunk.payload());
    frame
}

/// Whether it is understood.
fn opened(frame: &[u8], cipher: Cipher) -> bool {
    thread_local! {
        static OPENERS: RefCell<[Opener; 2]> = RefCell::new([Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305]
            .map(|cipher| Opener::new().keyed(keys(cipher).chunks())));
    }
    let Some((header, payload)) = frame.split_first_chunk() else { return false };
    let mut key = frame_key(cipher);
    match decode_header(header, &mut key) {
        Ok(Header::Chunk(head)) if head.payload_len as usize == payload.len() => {
            let mut buf = pool().try_take().expect("each input gives its buffers back");
            buf[..payload.len()].copy_from_slice(payload);
            OPENERS.with_borrow_mut(|openers| {
                openers[usize::from(cipher == Cipher::ChaCha20Poly1305)].open(&head, buf).is_ok()
            })
        }
        Ok(Header::Control(head)) => decode_control(&head, &mut payload.to_vec(), &key).is_ok(),
        _ => false,
    }
}
