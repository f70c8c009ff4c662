//! Targets to be fuzzed: functions over bytes that must not panic, whatever the bytes are. The tests replay a small
//! corpus and mutations of it; `cargo +nightly fuzz run --fuzz-dir tests/fuzz TARGET` goes on from there.

mod archive;
mod flow;
mod foreign;
mod sealed;
mod wire;

pub use archive::{archives, entries, read};
pub use flow::{receive_flow, send_flow};
pub use foreign::{foreign_archives, sparse_maps};
pub use sealed::sealed_frames;
pub use wire::{announcements, frames, handshakes, payloads};

/// Bytes that decide, one after the other; zeros once there are no more.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }

    /// Mostly near `about`, and sometimes anything.
    fn near(&mut self, about: u64) -> u64 {
        match self.u8() {
            255 => self.u64(),
            step => about.wrapping_add(u64::from(step)).wrapping_sub(8),
        }
    }
}
