//! The manifest of what is sent. A small file's digest is taken while it is laid out, when its bytes are in the cache;
//! a large file's comes from its chunks, whose digests are taken anyway. What is written is what was sent: if a file
//! changed while it was read, the line is that of its copy.

use crate::chunk::{ChunkKind, FileDigest, Subtree, TreeDigest};
use crate::ids::Digest;
use crate::manifest::{Lines, Pen};

/// What one chunk adds to the manifest.
#[derive(Default)]
pub struct ChunkLines {
    pub(super) lines: Lines,
    /// The path and size of the large file whose header ends the chunk.
    pub(super) large: Option<(Vec<u8>, u64)>,
    /// What the chunk is of the sparse file whose header came before.
    pub(super) subtrees: Vec<Subtree>,
}

/// Writes the manifest, chunk by chunk in the order of their numbers.
pub struct Recorder {
    pen: Pen,
    large: Option<Large>,
}

struct Large {
    path: Vec<u8>,
    size: u64,
    /// Of its slices …
    digest: FileDigest,
    /// … or of its parts between and with the holes.
    tree: TreeDigest,
}

impl Recorder {
    /// Nothing was sent yet.
    pub fn new(pen: Pen) -> Recorder {
        Recorder { pen, large: None }
    }

    /// Add the next chunk: its kind, length and digest, and what filling it has found.
    pub fn push(&mut self, kind: ChunkKind, len: usize, digest: Digest, lines: Option<&ChunkLines>) {
        if let (Some(ChunkLines { subtrees, .. }), Some(large)) = (lines, &mut self.large)
            && !subtrees.is_empty()
        {
            subtrees.iter().for_each(|subtree| large.tree.push(*subtree));
        } else if let Some(ChunkLines { lines, large, .. }) = lines {
            self.pen.append(lines);
            self.large = large.as_ref().map(|(path, size)| {
                let (path, size) = (path.clone(), *size);
                Large { path, size, digest: FileDigest::new(), tree: TreeDigest::default() }
            });
        }
        if let Some(large) = &mut self.large
            && kind != ChunkKind::Mixed
        {
            large.digest.push(kind, len, digest).expect("a file's slices follow its header in order");
        }
        if let Some(done) = self.large.take_if(|large| large.tree.len() == large.size) {
            let digest = done.tree.finish().expect("a file with a hole and data is longer than a leaf");
            self.pen.file(digest, &done.path);
        } else if let Some(done) = self.large.take_if(|large| large.digest.len() == large.size) {
            let digest = done.digest.finish().expect("a file's only slice is marked as such");
            self.pen.file(digest, &done.path);
        }
    }

    /// All was added. A raw stream has one line: its name, if it has one, and its digest.
    pub fn finish(mut self, stream: Option<(Option<&[u8]>, Digest)>) -> Pen {
        match stream {
            Some((Some(name), digest)) => self.pen.file(digest, name),
            Some((None, digest)) => self.pen.stream(digest),
            None => {}
        }
        self.pen
    }
}
