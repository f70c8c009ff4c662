//! What makes a chunk's content smaller, and undoes it: zstd, whose levels trade time for bytes over two orders of
//! magnitude, and bzip2, which sorts a chunk's content and shrinks text by a third more than any level of zstd that is
//! faster. A [`Compress`] or [`Decompress`] belongs to one worker thread and keeps its contexts and one scratch buffer,
//! so that no chunk allocates; only bzip2 has contexts that cannot be kept, which is nothing beside its work.

use std::io;

use bzip2::Status;
use zstd::bulk::{Compressor, Decompressor};

use super::Buf;
use crate::storage::Storage;
use crate::wire::Codec;

/// Samples that are compressed to learn whether the whole is worth it: this many, spread evenly, since a mixed chunk
/// may begin with a file that does not shrink …
const SAMPLES: usize = 4;

/// … of this many bytes, so that together they are a sixteenth of a full chunk.
pub(super) const SAMPLE_LEN: usize = 16 << 10;

/// The level of the samples at most: fast, but unlike the negative levels it also sees text without repetitions.
const SAMPLE_LEVEL: i32 = 1;

/// Compressed content is used if it is smaller by this part of itself (3 %): less is not worth the receiver's time.
const GAIN_MIN: usize = 32;

/// bzip2's blocks, in units of 100,000 bytes: two of them hold a chunk. With 9 text shrinks by one part in fifty more,
/// for a quarter more memory.
const BZIP2_BLOCK: u32 = 7;

/// Memory of one bzip2 context that compresses: 400,000 bytes and 8 for each byte of a block.
pub(super) const BZIP2_MEMORY: usize = 400_000 + 8 * 100_000 * BZIP2_BLOCK as usize;

/// What every bzip2 stream begins with.
const BZIP2_MAGIC: &[u8] = b"BZh";

/// How a chunk is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// zstd at this level; it clamps levels that it does not have.
    Zstd(i32),
    /// bzip2.
    Bzip2,
}

/// The compressing side of one worker.
pub(super) struct Compress {
    samples: Compressor<'static>,
    whole: Compressor<'static>,
    /// As long as the pool's buffers once there was a chunk to compress.
    scratch: Storage,
}

impl Compress {
    pub(super) fn new() -> Compress {
        let compressor = || Compressor::new(SAMPLE_LEVEL).expect("a zstd context is a small allocation");
        Compress { samples: compressor(), whole: compressor(), scratch: Storage::none() }
    }

    /// Replace the first `len` bytes of `buf` by what they compress to, if that is worthwhile; says what it is and how
    /// long.
    pub(super) fn apply(&mut self, method: Method, len: usize, buf: &mut Buf) -> Option<(Codec, usize)> {
        if self.scratch.len() != buf.len() {
            self.scratch = Storage::new(buf.len());
        }
        let level = if let Method::Zstd(level) = method { level } else { SAMPLE_LEVEL };
        if len > 2 * SAMPLES * SAMPLE_LEN && !self.samples_shrink(level, &buf[..len]) {
            return None;
        }
        let (content, room) = (&buf[..len], &mut self.scratch[..worthwhile(len)]);
        let (codec, payload_len) = match method {
            Method::Zstd(level) => {
                self.whole.set_compression_level(level).expect("zstd clamps levels");
                (Codec::Zstd, self.whole.compress_to_buffer(content, room).ok()?)
            }
            Method::Bzip2 => (Codec::Bzip2, bzip2_compress(content, room)?),
        };
        buf.swap_storage(&mut self.scratch);
        Some((codec, payload_len))
    }

    fn samples_shrink(&mut self, level: i32, content: &[u8]) -> bool {
        self.samples.set_compression_level(level.min(SAMPLE_LEVEL)).expect("zstd clamps levels");
        let stride = (content.len() - SAMPLE_LEN) / (SAMPLES - 1);
        // one piece costs a quarter of four: zstd skips ever faster through what does not shrink
        let (samples, room) = self.scratch.split_at_mut(SAMPLES * SAMPLE_LEN);
        for (i, sample) in samples.chunks_exact_mut(SAMPLE_LEN).enumerate() {
            sample.copy_from_slice(&content[i * stride..][..SAMPLE_LEN]);
        }
        self.samples.compress_to_buffer(samples, &mut room[..worthwhile(SAMPLES * SAMPLE_LEN)]).is_ok()
    }
}

/// The stream's length, if it fits `room`.
fn bzip2_compress(content: &[u8], room: &mut [u8]) -> Option<usize> {
    let mut stream = bzip2::Compress::new(bzip2::Compression::new(BZIP2_BLOCK), 0);
    match stream.compress(content, room, bzip2::Action::Finish) {
        Ok(Status::StreamEnd) => usize::try_from(stream.total_out()).ok(),
        _ => None,
    }
}

/// The room that a worthwhile result needs at most. What does not fit there zstd finds out early.
fn worthwhile(len: usize) -> usize {
    len - len / GAIN_MIN - 1.min(len)
}

/// Why a payload is not what its header announces.
#[derive(thiserror::Error, Debug)]
pub enum CodecError {
    /// It is not one frame or stream of the content's length.
    #[error("the payload is not one {0} of the announced length")]
    Length(&'static str),
    /// zstd found it broken.
    #[error("cannot decompress the payload: {0}")]
    Zstd(#[from] io::Error),
    /// bzip2 found it broken.
    #[error("cannot decompress the payload: {0}")]
    Bzip2(#[from] bzip2::Error),
}

/// The decompressing side of one worker.
pub(super) struct Decompress {
    /// Made when first needed, and again after an error: a context is not used once it has failed.
    zstd: Option<Decompressor<'static>>,
    pub(super) scratch: Storage,
}

impl Decompress {
    pub(super) fn new() -> Decompress {
        Decompress { zstd: None, scratch: Storage::none() }
    }

    /// Replace the first `payload_len` bytes of `buf` by their content of exactly `len` bytes. Allocates nothing before
    /// the payload's own words fit that, and writes no more.
    pub(super) fn apply(
        &mut self,
        codec: Codec,
        payload_len: usize,
        len: usize,
        buf: &mut Buf,
    ) -> Result<(), CodecError> {
        let payload = &buf[..payload_len];
        match codec {
            Codec::Zstd => {
                let frame_len = zstd::zstd_safe::find_frame_compressed_size(payload);
                let claimed = zstd::zstd_safe::get_frame_content_size(payload);
                if frame_len != Ok(payload.len()) || !matches!(claimed, Ok(Some(claimed)) if claimed == len as u64) {
                    return Err(CodecError::Length("zstd frame"));
                }
            }
            Codec::Bzip2 if !payload.starts_with(BZIP2_MAGIC) => return Err(CodecError::Length("bzip2 stream")),
            Codec::Bzip2 => {}
        }
        if self.scratch.len() != buf.len() {
            self.scratch = Storage::new(buf.len());
        }
        let room = &mut self.scratch[..len];
        match codec {
            Codec::Zstd => {
                let mut zstd = match self.zstd.take() {
                    Some(zstd) => zstd,
                    None => Decompressor::new()?,
                };
                let written = zstd.decompress_to_buffer(payload, room)?;
                self.zstd = Some(zstd);
                if written != len {
                    return Err(CodecError::Length("zstd frame"));
                }
            }
            Codec::Bzip2 => bzip2_decompress(payload, room)?,
        }
        buf.swap_storage(&mut self.scratch);
        Ok(())
    }
}

fn bzip2_decompress(payload: &[u8], room: &mut [u8]) -> Result<(), CodecError> {
    let mut stream = bzip2::Decompress::new(false);
    let mut status = stream.decompress(payload, room)?;
    if status == Status::Ok && stream.total_out() == room.len() as u64 {
        // all of it is there, and perhaps the end was not looked at
        status = stream.decompress(&payload[stream.total_in() as usize..], &mut [])?;
    }
    let is_whole = (stream.total_in(), stream.total_out()) == (payload.len() as u64, room.len() as u64);
    if status == Status::StreamEnd && is_whole { Ok(()) } else { Err(CodecError::Length("bzip2 stream")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Pool;
    use crate::limits::CHUNK_LEN;

    /// Text of random words.
    fn text(len: usize) -> Vec<u8> {
        let mut random = blake3::Hasher::new().finalize_xof();
        let mut word = [0; 2];
        let mut next = || {
            random.fill(&mut word);
            format!("{:x} ", u32::from(u16::from_le_bytes(word) % 3000).pow(2) * 97).into_bytes()
        };
        std::iter::repeat_with(&mut next).flatten().take(len).collect()
    }

    fn filled(content: &[u8]) -> Buf {
        let mut buf = Pool::new(1, CHUNK_LEN).take().unwrap();
        buf[..content.len()].copy_from_slice(content);
        buf
    }

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut buf = filled(content);
        let (codec, len) = Compress::new().apply(Method::Bzip2, content.len(), &mut buf).expect("it shrinks");
        assert_eq!(codec, Codec::Bzip2);
        buf[..len].to_vec()
    }

    #[test]
    fn bzip2_gives_back_what_it_was_given_and_shrinks_text_by_more_than_zstd() {
        let mut decompress = Decompress::new();
        for len in [1000, 4096, 700_000, 700_001, CHUNK_LEN - 1, CHUNK_LEN] {
            for content in [text(len), vec![7; len]] {
                let payload = packed(&content);
                let mut buf = filled(&payload);
                decompress.apply(Codec::Bzip2, payload.len(), len, &mut buf).unwrap();
                assert!(buf[..len] == content, "{len} bytes");
            }
        }
        let content = text(CHUNK_LEN);
        let mut buf = filled(&content);
        let (_, zstd) = Compress::new().apply(Method::Zstd(6), CHUNK_LEN, &mut buf).unwrap();
        assert!(packed(&content).len() * 5 / 4 < zstd);
    }

    #[test]
    fn what_bzip2_does_not_shrink_stays_as_it_is() {
        let mut content = vec![0; CHUNK_LEN];
        blake3::Hasher::new().finalize_xof().fill(&mut content);
        // samples do not tell of so little
        for len in [0, 1, 100_000, CHUNK_LEN] {
            let mut buf = filled(&content);
            assert_eq!(Compress::new().apply(Method::Bzip2, len, &mut buf), None);
            assert!(buf[..len] == content[..len], "{len} bytes");
        }
    }

    #[test]
    fn a_bzip2_stream_that_is_not_exactly_the_announced_one_is_refused() {
        let content = text(100_000);
        let stream = packed(&content);
        let bomb = packed(&vec![0; CHUNK_LEN]);
        assert!(bomb.len() < 100, "{} bytes", bomb.len());
        let hostile = [
            ("a shorter content", packed(&content[1..])),
            ("a longer content", packed(&text(100_001))),
            ("a bomb", bomb),
            ("two streams", [&stream[..], &stream].concat()),
            ("a byte after it", [&stream[..], &[0]].concat()),
            ("cut short by one byte", stream[..stream.len() - 1].to_vec()),
            ("cut short in the middle", stream[..stream.len() / 2].to_vec()),
            ("a head and nothing behind it", b"BZh9".to_vec()),
            ("half a head", b"BZ".to_vec()),
            ("no block size", b"BZh0".iter().chain(&stream[4..]).copied().collect()),
            ("no bzip2", vec![0x42; 1000]),
            ("nothing", Vec::new()),
            ("a changed block", stream.iter().enumerate().map(|(i, b)| b ^ u8::from(i == 5000)).collect()),
        ];
        let mut decompress = Decompress::new();
        for (what, payload) in hostile {
            let mut buf = filled(&payload);
            let done = decompress.apply(Codec::Bzip2, payload.len(), content.len(), &mut buf);
            assert!(matches!(done, Err(CodecError::Length(_) | CodecError::Bzip2(_))), "{what}: {done:?}");
        }
        let mut buf = filled(&stream);
        decompress.apply(Codec::Bzip2, stream.len(), content.len(), &mut buf).unwrap();
        assert!(buf[..content.len()] == content, "the next one is none the worse for it");
    }
}
