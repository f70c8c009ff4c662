//! What a sender left out because it was asked to. It takes nothing from a transfer being whole: counted, with the
//! first of each kind by name.

/// Why something was not sent that could have been.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OmittedKind {
    /// A pattern matches it. A directory counts once, with all that is in it.
    Excluded,
    /// Another file system is mounted there; the directory went, nothing in it.
    OtherFileSystem,
    /// The content of a directory that is tagged as a cache; the directory and its tag went.
    Cache,
}

impl OmittedKind {
    /// Every kind.
    pub const ALL: [OmittedKind; 3] = [OmittedKind::Excluded, OmittedKind::OtherFileSystem, OmittedKind::Cache];
}

/// How often one kind happened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OmittedCount {
    /// How often.
    pub count: u64,
    /// The first one's path in the transfer, raw bytes; escape before printing.
    pub first: Vec<u8>,
}

/// All that was left out on request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Omitted {
    counts: [OmittedCount; OmittedKind::ALL.len()],
}

impl Omitted {
    /// One more.
    pub fn add(&mut self, kind: OmittedKind, path: &[u8]) {
        let of_kind = &mut self.counts[kind as usize];
        if of_kind.count == 0 {
            of_kind.first = path.to_vec();
        }
        of_kind.count += 1;
    }

    /// How often one kind happened.
    pub fn of(&self, kind: OmittedKind) -> &OmittedCount {
        &self.counts[kind as usize]
    }
}
