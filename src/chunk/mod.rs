//! Chunks and the buffers they live in.
pub use crate::wire::{ChunkHead, ChunkKind};
