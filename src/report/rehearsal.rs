//! A rehearsal: what a transfer would send, found out without a receiver. Data only.

use std::sync::Arc;

use super::{Note, Notes, Omitted, OmittedKind};
use crate::error::ExitCode;

/// What comes of a rehearsal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rehearsal {
    /// Entries that would go; a single file is one, though it may land as its bytes only.
    pub entries: u64,
    /// Bytes of their content.
    pub content_bytes: u64,
    /// Bytes of the archive.
    pub stream_bytes: u64,
    /// It is a stream, whose length only its end will tell; nothing of it was read.
    pub is_stream: bool,
    /// What would happen to single entries.
    pub notes: Notes,
    /// What is left out on request.
    pub omitted: Omitted,
}

impl Rehearsal {
    /// The exit code that the transfer would have if nothing changes and the receiver can take everything.
    pub fn exit_code(&self) -> ExitCode {
        self.notes.exit_code()
    }
}

/// One thing that a rehearsal finds, in the order in which it would go; what is left out comes when it is met, which is
/// earlier. Paths are raw bytes; escape before printing.
#[derive(Clone, Copy, Debug)]
pub enum Rehearsed<'a> {
    /// An entry that would go.
    Goes {
        /// Its path in the transfer; empty is the root.
        path: &'a [u8],
        /// Whether it is a directory.
        directory: bool,
    },
    /// Something is left out on request.
    Omitted {
        /// Why.
        kind: OmittedKind,
        /// Its path in the transfer.
        path: &'a [u8],
        /// The pattern that says so, if one does.
        rule: &'a [u8],
    },
    /// Something else about an entry.
    Noted(&'a Note),
}

/// Called for everything that a rehearsal finds, from several threads.
pub type Tell = Arc<dyn Fn(Rehearsed<'_>) + Send + Sync>;
