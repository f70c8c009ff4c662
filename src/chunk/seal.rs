//! Make a chunk ready for the wire, and undo it. One [`Sealer`] or [`Opener`] belongs to one worker thread.

use std::time::Duration;

use super::codecs::{CodecError, Compress, Decompress, Method};
use super::{Buf, Chunk, ChunkHead, ChunkKind, Sealed, chunk_digest};
use crate::ids::Seq;
use crate::stats::timed;
use crate::wire::ChunkKeys;

/// The most chunks of a kind that are let pass between two tries while they do not shrink.
const PASS_MAX: u32 = 15;

/// Seals chunks: digest, compress, encrypt.
pub struct Sealer {
    method: Option<Method>,
    /// `None` where chunks are not encrypted.
    keys: Option<ChunkKeys>,
    /// Made when first needed.
    compress: Option<Compress>,
    /// How mixed and data chunks have fared.
    luck: [Luck; 2],
    /// Time spent so, since somebody asked.
    compressed_for: Duration,
}

/// Whether to try once more what has not shrunk.
#[derive(Default)]
struct Luck {
    /// Tries in a row that failed.
    failed: u32,
    /// Chunks to let pass before the next.
    pass: u32,
}

impl Sealer {
    /// With zstd at that level, or without. zstd clamps levels that it does not have.
    pub fn new(level: Option<i32>) -> Sealer {
        let method = level.map(Method::Zstd);
        Sealer { method, keys: None, compress: None, luck: Default::default(), compressed_for: Duration::ZERO }
    }

    /// The same, encrypting with these keys if there are any.
    pub fn keyed(self, keys: Option<ChunkKeys>) -> Sealer {
        Sealer { keys, ..self }
    }

    /// How long it has compressed since the last call.
    pub fn take_compressed_for(&mut self) -> Duration {
        std::mem::take(&mut self.compressed_for)
    }

    /// Compress the chunks that follow in another way, or not.
    pub fn set_method(&mut self, method: Option<Method>) {
        self.method = method;
    }

    /// Whether a chunk of that kind may shrink, going by those before it. Where they did not, only one in a few is
    /// worth the samples; the first slice of a large file always is. Counts the chunk as let pass if it is not.
    pub fn may_shrink(&mut self, kind: ChunkKind) -> bool {
        let luck = &mut self.luck[luck_of(kind)];
        if luck.pass == 0 || matches!(kind, ChunkKind::Data { offset: 0, .. }) {
            return true;
        }
        luck.pass -= 1;
        false
    }

    /// Seal the first `len` bytes of `buf`. Order matters: the digest is of the content, whatever the payload becomes,
    /// and is taken first, while the content is still in the cache of the worker that laid it out.
    pub fn seal(&mut self, seq: Seq, kind: ChunkKind, len: usize, mut buf: Buf) -> Sealed {
        let digest = chunk_digest(kind, &buf[..len]);
        let compressed = self.method.and_then(|method| {
            let compress = self.compress.get_or_insert_with(Compress::new);
            let (compressed, time) = timed(|| compress.apply(method, len, &mut buf));
            self.compressed_for += time;
            self.luck[luck_of(kind)].learn(compressed.is_some());
            compressed
        });
        let payload_len = compressed.map_or(len, |(_, payload_len)| payload_len);
        let mut head = ChunkHead {
            seq,
            kind,
            content_len: len as u32,
            payload_len: payload_len as u32,
            codec: compressed.map(|(codec, _)| codec),
            digest,
            seal: Default::default(),
        };
        if let Some(keys) = &mut self.keys {
            keys.seal(&mut head, &mut buf[..payload_len]);
        }
        Sealed { head, digest, buf: buf.share() }
    }
}

fn luck_of(kind: ChunkKind) -> usize {
    usize::from(matches!(kind, ChunkKind::Data { .. }))
}

impl Luck {
    fn learn(&mut self, shrank: bool) {
        self.failed = if shrank { 0 } else { (self.failed + 1).min(31) };
        self.pass = ((1 << self.failed) - 1).min(PASS_MAX);
    }
}

/// Why a chunk could not be opened. The chunk is dropped and sent again.
#[derive(thiserror::Error, Debug)]
pub enum OpenError {
    /// The payload or its header is not what was sealed.
    #[error("the chunk was changed on its way, or sealed with another key")]
    Seal,
    /// The content is not what its digest says.
    #[error("the content does not match its digest")]
    Digest,
    /// The payload is not the content compressed.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Opens chunks: decrypt, decompress, verify.
pub struct Opener {
    /// `None` where chunks are not encrypted.
    keys: Option<ChunkKeys>,
    decompress: Decompress,
    /// Time spent so, since somebody asked.
    decompressed_for: Duration,
}

impl Opener {
    /// Ready for chunks with and without compression.
    pub fn new() -> Opener {
        Opener { keys: None, decompress: Decompress::new(), decompressed_for: Duration::ZERO }
    }

    /// The same, decrypting with these keys if there are any.
    pub fn keyed(self, keys: Option<ChunkKeys>) -> Opener {
        Opener { keys, ..self }
    }

    /// How long it has decompressed since the last call.
    pub fn take_decompressed_for(&mut self) -> Duration {
        std::mem::take(&mut self.decompressed_for)
    }

    /// Open the payload at the start of `buf`. On failure the buffer comes back, its bytes worthless. Writes no more
    /// than the announced length, whatever the payload holds.
    pub fn open(&mut self, head: &ChunkHead, mut buf: Buf) -> Result<Chunk, (OpenError, Buf)> {
        let digest = match &mut self.keys {
            Some(keys) => keys.open(head, &mut buf[..head.payload_len as usize]),
            None => Some(head.digest),
        };
        let Some(digest) = digest else { return Err((OpenError::Seal, buf)) };
        let len = head.content_len as usize;
        if let Some(codec) = head.codec {
            let (done, time) = timed(|| self.decompress.apply(codec, head.payload_len as usize, len, &mut buf));
            self.decompressed_for += time;
            if let Err(error) = done {
                return Err((error.into(), buf));
            }
        }
        if chunk_digest(head.kind, &buf[..len]) != digest {
            return Err((OpenError::Digest, buf));
        }
        Ok(Chunk { seq: head.seq, kind: head.kind, len, digest, buf, release: None })
    }
}

impl Default for Opener {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::codecs::SAMPLE_LEN;
    use super::*;
    use crate::chunk::Codec;
    use crate::chunk::Pool;
    use crate::ids::Digest;
    use crate::limits::CHUNK_LEN;
    use crate::wire::{Cipher, SessionKeys};
    use std::sync::Arc;

    fn text(len: usize) -> Vec<u8> {
        (0u32..).flat_map(|i| format!("line {i} of a file\n").into_bytes()).take(len).collect()
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    fn filled(pool: &Arc<Pool>, content: &[u8]) -> Buf {
        let mut buf = pool.take().unwrap();
        buf[..content.len()].copy_from_slice(content);
        buf
    }

    /// What arrives when `sealed` is sent, in another buffer with other bytes behind it.
    fn arrived(pool: &Arc<Pool>, sealed: &Sealed) -> Buf {
        let mut buf = pool.take().unwrap();
        buf.fill(0xee);
        buf[..sealed.payload().len()].copy_from_slice(sealed.payload());
        buf
    }

    #[test]
    fn what_is_sealed_opens_to_the_same_content() {
        let pool = Pool::new(2, CHUNK_LEN);
        let kinds = [
            ChunkKind::Mixed,
            ChunkKind::Data { offset: 0, sole: true },
            ChunkKind::Data { offset: 5 << 20, sole: false },
        ];
        for compress in [None, Some(-1), Some(1), Some(3), Some(19)] {
            let (mut sealer, mut opener) = (Sealer::new(compress), Opener::new());
            for kind in kinds {
                for content in [text(1), text(4096), text(CHUNK_LEN), noise(4096), noise(CHUNK_LEN)] {
                    let sealed = sealer.seal(Seq(7), kind, content.len(), filled(&pool, &content));
                    assert_eq!(sealed.head.digest, chunk_digest(kind, &content));
                    assert!(
                        sealed.head.codec.is_none()
                            || compress.is_some() && sealed.head.payload_len < sealed.head.content_len
                    );
                    let chunk = opener.open(&sealed.head, arrived(&pool, &sealed)).unwrap();
                    assert!(chunk.content() == content, "{compress:?} {kind:?}, {} bytes", content.len());
                }
            }
        }
        assert_eq!(pool.taken(), 0, "scratch is not taken from the pool");
    }

    #[test]
    fn an_empty_mixed_chunk_seals_and_opens() {
        let pool = Pool::new(2, CHUNK_LEN);
        let sealed = Sealer::new(Some(1)).seal(Seq(0), ChunkKind::Mixed, 0, pool.take().unwrap());
        assert!(sealed.head.codec.is_none());
        assert!(Opener::new().open(&sealed.head, arrived(&pool, &sealed)).unwrap().content().is_empty());
    }

    #[test]
    fn text_is_compressed_and_noise_is_sent_as_it_is() {
        let pool = Pool::new(1, CHUNK_LEN);
        let mut sealer = Sealer::new(Some(3));
        let text = sealer.seal(Seq(0), ChunkKind::Mixed, CHUNK_LEN, filled(&pool, &text(CHUNK_LEN)));
        assert!(text.head.codec.is_some() && text.payload().len() < CHUNK_LEN / 3);
        drop(text);
        let content = noise(CHUNK_LEN);
        let noise = sealer.seal(Seq(0), ChunkKind::Mixed, CHUNK_LEN, filled(&pool, &content));
        assert!(noise.head.codec.is_none() && noise.payload() == content);
    }

    #[test]
    fn content_whose_samples_promise_too_much_is_sent_as_it_is() {
        let pool = Pool::new(1, CHUNK_LEN);
        let mut sealer = Sealer::new(Some(1));
        let content = [text(SAMPLE_LEN), noise(CHUNK_LEN - SAMPLE_LEN)].concat();
        for _ in 0..3 {
            let sealed = sealer.seal(Seq(0), ChunkKind::Mixed, CHUNK_LEN, filled(&pool, &content));
            assert!(sealed.head.codec.is_none() && sealed.payload() == content);
        }
        let sealed = sealer.seal(Seq(0), ChunkKind::Mixed, CHUNK_LEN, filled(&pool, &text(CHUNK_LEN)));
        assert!(sealed.head.codec.is_some(), "a sealer that gave up on one chunk compresses the next");
    }

    #[test]
    fn text_behind_or_around_a_file_that_does_not_shrink_is_compressed() {
        let pool = Pool::new(1, CHUNK_LEN);
        let mut sealer = Sealer::new(Some(1));
        let half = CHUNK_LEN / 2;
        for parts in [[noise(half), text(half)], [text(half), noise(half)]] {
            let sealed = sealer.seal(Seq(0), ChunkKind::Mixed, CHUNK_LEN, filled(&pool, &parts.concat()));
            assert!(sealed.head.codec.is_some() && sealed.payload().len() < CHUNK_LEN * 2 / 3);
        }
    }

    #[test]
    fn a_kind_that_does_not_shrink_is_tried_ever_more_rarely_until_it_does() {
        let pool = Pool::new(1, CHUNK_LEN);
        let mut sealer = Sealer::new(Some(1));
        let slice = |k: u64| ChunkKind::Data { offset: k << 20, sole: false };
        let mut tried = Vec::new();
        for k in 1..60 {
            if sealer.may_shrink(slice(k)) {
                tried.push(k);
                sealer.seal(Seq(0), slice(k), CHUNK_LEN, filled(&pool, &noise(CHUNK_LEN)));
            }
        }
        assert_eq!(tried, [1, 3, 7, 15, 31, 47]);
        assert!(sealer.may_shrink(ChunkKind::Mixed), "the other kind has its own luck");
        assert!(sealer.may_shrink(slice(0)), "a new file is tried at once");
        sealer.seal(Seq(0), slice(0), CHUNK_LEN, filled(&pool, &text(CHUNK_LEN)));
        assert!((1..60).all(|k| sealer.may_shrink(slice(k))));
    }

    #[test]
    fn the_method_can_change_from_chunk_to_chunk() {
        let pool = Pool::new(2, CHUNK_LEN);
        let mut sealer = Sealer::new(None);
        let mut lens = Vec::new();
        let zstd = |level| Some(Method::Zstd(level));
        let mut opener = Opener::new();
        for method in [None, zstd(1), zstd(9), None, zstd(1), Some(Method::Bzip2)] {
            sealer.set_method(method);
            let sealed = sealer.seal(Seq(0), ChunkKind::Mixed, CHUNK_LEN, filled(&pool, &text(CHUNK_LEN)));
            lens.push(sealed.payload().len());
            let codec = method.map(|m| if m == Method::Bzip2 { Codec::Bzip2 } else { Codec::Zstd });
            assert_eq!(sealed.head.codec, codec);
            assert!(opener.open(&sealed.head, arrived(&pool, &sealed)).unwrap().content() == text(CHUNK_LEN));
        }
        assert_eq!((lens[0], lens[1]), (CHUNK_LEN, lens[4]));
        assert!(lens[3] == CHUNK_LEN && lens[2] != lens[1] && lens[1].max(lens[2]) < CHUNK_LEN / 3, "{lens:?}");
    }

    #[test]
    fn one_changed_bit_is_found_and_the_opener_goes_on() {
        let pool = Pool::new(2, CHUNK_LEN);
        for compress in [None, Some(1)] {
            let (mut sealer, mut opener) = (Sealer::new(compress), Opener::new());
            let sealed = sealer.seal(Seq(0), ChunkKind::Mixed, 300_000, filled(&pool, &text(300_000)));
            let last = sealed.payload().len() - 1;
            for at in [0, 5, last / 2, last] {
                let mut buf = arrived(&pool, &sealed);
                buf[at] ^= 0x10;
                let (_, returned) = opener.open(&sealed.head, buf).expect_err("a bit was changed");
                drop(returned);
                assert!(opener.open(&sealed.head, arrived(&pool, &sealed)).is_ok());
            }
        }
    }

    fn keys(cipher: Cipher) -> SessionKeys {
        SessionKeys::new([7; 32], Some(cipher))
    }

    #[test]
    fn an_encrypted_chunk_comes_back_and_its_header_does_not_tell_what_it_holds() {
        let pool = Pool::new(2, CHUNK_LEN);
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let keys = keys(cipher);
            let mut sealer = Sealer::new(Some(3)).keyed(keys.chunks());
            let mut opener = Opener::new().keyed(keys.chunks());
            // in two key phases, and back: chunks are sealed in any order
            for (seq, content) in [(5, text(300_000)), (1 << 16, noise(CHUNK_LEN)), (6, text(300_000)), (7, Vec::new())]
            {
                let sealed = sealer.seal(Seq(seq), ChunkKind::Mixed, content.len(), filled(&pool, &content));
                assert_eq!(sealed.digest.0, *blake3::hash(&content).as_bytes());
                assert_ne!(sealed.head.digest, sealed.digest, "the digest is hidden");
                assert!(content.is_empty() || !content.starts_with(&sealed.payload()[..64]), "and so is the content");
                let chunk = opener.open(&sealed.head, arrived(&pool, &sealed)).unwrap();
                assert!(chunk.content() == content && chunk.digest == sealed.digest);
            }
        }
    }

    #[test]
    fn what_of_an_encrypted_chunk_was_changed_moved_or_sealed_by_another_is_found() {
        let pool = Pool::new(2, CHUNK_LEN);
        let ours = keys(Cipher::Aes256Gcm);
        let mut opener = Opener::new().keyed(ours.chunks());
        let content = noise(1000);
        let sealed =
            Sealer::new(None).keyed(ours.chunks()).seal(Seq(3), ChunkKind::Mixed, 1000, filled(&pool, &content));
        let mut refused = |what: &str, head: ChunkHead| {
            let (error, _) = opener.open(&head, arrived(&pool, &sealed)).expect_err(what);
            assert!(matches!(error, OpenError::Seal), "{what}: {error}");
        };
        let head = sealed.head;
        refused("another number", ChunkHead { seq: Seq(4), ..head });
        refused("another key phase's number", ChunkHead { seq: Seq(3 + (1 << 16)), ..head });
        refused("another kind", ChunkHead { kind: ChunkKind::Data { offset: 0, sole: true }, ..head });
        refused("another length", ChunkHead { payload_len: 999, content_len: 999, ..head });
        refused("compressed", ChunkHead { codec: Some(Codec::Zstd), content_len: 2000, ..head });
        refused("another digest", ChunkHead { digest: Digest([0; 32]), ..head });
        refused("another seal", ChunkHead { seal: [0; 16], ..head });
        for other in [SessionKeys::new([8; 32], ours.cipher()), keys(Cipher::ChaCha20Poly1305)] {
            let mut opener = Opener::new().keyed(other.chunks());
            assert!(matches!(opener.open(&head, arrived(&pool, &sealed)), Err((OpenError::Seal, _))));
        }
        assert!(opener.open(&head, arrived(&pool, &sealed)).is_ok());
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "chunk 3 is sealed twice"))]
    fn no_number_is_sealed_twice_in_a_session() {
        let pool = Pool::new(2, CHUNK_LEN);
        let keys = keys(Cipher::Aes256Gcm);
        for _ in 0..2 {
            Sealer::new(None).keyed(keys.chunks()).seal(Seq(3), ChunkKind::Mixed, 9, filled(&pool, b"different"));
        }
    }

    #[test]
    fn a_frame_that_is_not_exactly_the_announced_one_is_refused() {
        let pool = Pool::new(2, CHUNK_LEN);
        let content = text(100_000);
        let sealed = Sealer::new(Some(3)).seal(Seq(0), ChunkKind::Mixed, content.len(), filled(&pool, &content));
        let frame = sealed.payload();
        let mut unsized_frame = Vec::new();
        let mut stream = zstd::stream::Encoder::new(&mut unsized_frame, 1).unwrap();
        std::io::Write::write_all(&mut stream, &content).unwrap();
        stream.finish().unwrap();
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        let skippable = [&0x184d_2a50_u32.to_le_bytes()[..], &4u32.to_le_bytes(), &[0; 4]].concat();
        let hostile = [
            ("a shorter frame than announced", zstd::bulk::compress(&content[1..], 3).unwrap()),
            ("two frames", [frame, frame].concat()),
            ("bytes after it", [frame, &[0]].concat()),
            ("a frame cut short", frame[..frame.len() - 1].to_vec()),
            ("a frame that does not say how long its content is", unsized_frame),
            ("a frame of 64 MiB", bomb),
            ("a skippable frame", skippable),
            ("nothing", Vec::new()),
        ];
        let mut opener = Opener::new();
        for (what, payload) in hostile {
            let head = ChunkHead { payload_len: payload.len() as u32, ..sealed.head };
            let (error, _) = opener.open(&head, filled(&pool, &payload)).expect_err(what);
            assert!(matches!(error, OpenError::Codec(CodecError::Length(_))), "{what}: {error}");
        }
        assert!(opener.decompress.scratch.is_empty(), "all of them were refused before anything was allocated");
        assert!(opener.open(&sealed.head, arrived(&pool, &sealed)).unwrap().content() == content);
    }

    #[test]
    fn a_chunks_buffer_is_free_when_its_release_runs() {
        let pool = Pool::new(2, 64);
        let sealed = Sealer::new(None).seal(Seq(3), ChunkKind::Mixed, 64, pool.take().unwrap());
        let mut chunk = Opener::new().open(&sealed.head, arrived(&pool, &sealed)).unwrap();
        drop(sealed);
        let (tell, told) = std::sync::mpsc::channel();
        let hook_pool = pool.clone();
        chunk.release = Some(crate::chunk::Release::new(Arc::new(move || tell.send(hook_pool.taken()).unwrap())));
        drop(chunk);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [0], "once, with no buffer taken");
    }
}
