//! Behaviour of a whole source: real trees in, chunks out, put together again and read by our own parser and by GNU
//! tar.

mod faults;
mod fidelity;
mod record;
mod select;
mod streams;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::archive::{Entry, EntryKind, Parser, padding};
use crate::chunk::ChunkKind;
use crate::report::{Note, NoteKind};

/// All that a source gave.
struct Sent {
    chunks: Vec<(ChunkKind, Vec<u8>)>,
    notes: Vec<Note>,
    end: SourceEnd,
    stats: Arc<Stats>,
}

/// A source whose chunks are planned but not filled until told.
struct Held {
    running: Running,
    planned: Vec<Planned>,
    notes: Arc<NoteSink>,
    stats: Arc<Stats>,
}

const WORKERS: usize = 3;

fn begin(tree: Tree, layout: Layout) -> (Running, Arc<NoteSink>, Arc<Stats>) {
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let pool = Pool::new(64, CHUNK_LEN);
    (start(tree, layout, pool, stats.clone(), notes.clone(), WORKERS), notes, stats)
}

/// Take all chunks of a running source with several workers.
fn drain(running: Running, notes: Arc<NoteSink>, stats: Arc<Stats>) -> Sent {
    let filled: Vec<_> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let planned = running.planned.clone();
                s.spawn(move || {
                    let mut scratch = FillScratch::default();
                    planned.iter().map(|p| content(p.fill(&mut scratch))).collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    let end = running.join().unwrap();
    put_together(filled, end, notes, stats)
}

fn content(filled: Filled) -> (Seq, ChunkKind, Vec<u8>) {
    (filled.seq, filled.kind, filled.buf[..filled.len].to_vec())
}

fn put_together(
    filled: Vec<(Seq, ChunkKind, Vec<u8>)>,
    end: SourceEnd,
    notes: Arc<NoteSink>,
    stats: Arc<Stats>,
) -> Sent {
    let by_seq: BTreeMap<_, _> = filled.into_iter().map(|(seq, kind, bytes)| (seq.0, (kind, bytes))).collect();
    assert_eq!(by_seq.len() as u64, end.chunks);
    assert!(by_seq.keys().copied().eq(0..end.chunks), "numbers without holes");
    let notes = notes.notes().named;
    Sent { chunks: by_seq.into_values().collect(), notes, end, stats }
}

fn send(paths: &[&Path], layout: Layout) -> Sent {
    let paths: Vec<PathBuf> = paths.iter().map(|p| p.to_path_buf()).collect();
    let (running, notes, stats) = begin(open_tree(&paths).unwrap(), layout);
    drain(running, notes, stats)
}

fn send_tree(path: &Path) -> Sent {
    send(&[path], Layout::Archive)
}

/// Plan a whole small tree before anything is filled, so that a test can change the tree in between.
fn hold(path: &Path) -> Held {
    let (running, notes, stats) = begin(open_tree(&[path.to_path_buf()]).unwrap(), Layout::Archive);
    let planned = running.planned.iter().collect();
    Held { running, planned, notes, stats }
}

impl Held {
    fn fill(self) -> Sent {
        let mut scratch = FillScratch::default();
        let filled = self.planned.into_iter().map(|p| content(p.fill(&mut scratch))).collect();
        let end = self.running.join().unwrap();
        put_together(filled, end, self.notes, self.stats)
    }
}

impl Sent {
    fn stream(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(|(_, bytes)| bytes).copied().collect()
    }

    /// The archive's entries as a receiver of chunks sees them; checks the layout and the totals on the way.
    fn entries(&self) -> Vec<(Entry, Vec<u8>)> {
        let mut parser = Parser::new();
        let mut entries: Vec<(Entry, Vec<u8>)> = Vec::new();
        // Bytes of the last file that are still to come in data chunks.
        let (mut missing, mut lead) = (0u64, 0);
        for (kind, chunk) in &self.chunks {
            match kind {
                ChunkKind::Data { offset, sole } => {
                    let (entry, content) = entries.last_mut().unwrap();
                    let size = entry.kind.content_len();
                    assert_eq!(*offset, content.len() as u64);
                    assert_eq!(*sole, size <= CHUNK_LEN as u64);
                    assert_eq!(chunk.len() as u64, missing.min(CHUNK_LEN as u64));
                    content.extend_from_slice(chunk);
                    missing -= chunk.len() as u64;
                    lead = padding(size);
                }
                // Map or data of a sparse file.
                ChunkKind::Mixed if missing > 0 => {
                    let (entry, content) = entries.last_mut().unwrap();
                    assert!(matches!(entry.kind, EntryKind::Sparse { .. }));
                    content.extend_from_slice(chunk);
                    missing -= chunk.len() as u64;
                    lead = padding(entry.kind.content_len());
                }
                ChunkKind::Mixed => {
                    assert!(chunk[..lead].iter().all(|b| *b == 0));
                    let mut at = std::mem::take(&mut lead);
                    while let Some(parsed) = parser.next(&chunk[at..]).unwrap() {
                        at += parsed.header_len;
                        let size = parsed.entry.kind.content_len();
                        let mut content = Vec::new();
                        if size > 0 && at == chunk.len() {
                            missing = size;
                        } else {
                            content.extend_from_slice(&chunk[at..at + size as usize]);
                            at += size as usize + padding(size);
                        }
                        entries.push((parsed.entry, content));
                    }
                }
            }
        }
        assert!(parser.ended());
        assert_eq!(self.end.entries, entries.len() as u64);
        assert_eq!(
            self.end.content_bytes,
            entries.iter().map(|(entry, content)| data_len(entry, content)).sum::<u64>()
        );
        assert_eq!(self.end.stream_bytes, self.stream().len() as u64);
        assert_eq!(self.stats.entries_done.load(Relaxed), self.end.entries);
        assert_eq!(self.stats.content_done.load(Relaxed), self.end.content_bytes);
        assert!(self.stats.found_all.load(Relaxed));
        entries
    }

    fn paths(&self) -> Vec<String> {
        self.entries().into_iter().map(|(entry, _)| String::from_utf8(entry.path).unwrap()).collect()
    }

    /// Content of the file at `path`, if it was sent.
    fn file(&self, path: &str) -> Option<Vec<u8>> {
        let mut entries = self.entries().into_iter();
        entries.find(|(e, _)| e.path == path.as_bytes() && matches!(e.kind, EntryKind::File { .. })).map(|(_, c)| c)
    }

    fn entry(&self, path: &str) -> Entry {
        self.entries().into_iter().find(|(entry, _)| entry.path == path.as_bytes()).unwrap().0
    }

    /// Kind and path of every note, sorted.
    fn noted(&self) -> Vec<(NoteKind, String)> {
        let text = |note: &Note| crate::error::escape(&note.path);
        let mut noted: Vec<_> = self.notes.iter().map(|note| (note.kind, text(note))).collect();
        noted.sort();
        noted
    }
}

/// Asks for everything.
fn asker() -> Arc<Asker> {
    Arc::new(Asker::new(Keep::default()))
}

/// Bytes of content; those of a sparse file's map are none.
fn data_len(entry: &Entry, content: &[u8]) -> u64 {
    let EntryKind::Sparse { .. } = entry.kind else { return content.len() as u64 };
    let mut reader = crate::archive::MapReader::new();
    content.len() as u64 - reader.push(content).unwrap() as u64
}

/// In memory where that is possible: thousands of files and levels are made and removed.
fn tree() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn write(dir: &Path, name: &str, content: &[u8]) {
    std::fs::write(dir.join(name), content).unwrap();
}

fn mkdir(dir: &Path, name: &str) {
    std::fs::create_dir_all(dir.join(name)).unwrap();
}

/// Bytes that look like nothing and differ from seed to seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    })
    .take(len)
    .collect()
}

/// Extract an archive with GNU tar.
fn untar(stream: &[u8]) -> TempDir {
    let out = tree();
    let mut archive = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut archive, stream).unwrap();
    let done = Command::new("tar")
        .args(["--numeric-owner", "--warning=no-timestamp", "-xpf"])
        .args([archive.path(), Path::new("-C"), out.path()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success(), "tar: {}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.stderr, b"", "tar: {}", String::from_utf8_lossy(&done.stderr));
    out
}

/// Every entry below `root`: type, mode, owner, size, time, link target, and the first path of its inode.
fn manifest(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut inodes = BTreeMap::new();
    let mut lines = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_path_buf();
        let first = inodes.entry(meta.ino()).or_insert_with(|| name.clone()).clone();
        let content = if meta.is_file() { *blake3::hash(&std::fs::read(&path).unwrap()).as_bytes() } else { [0; 32] };
        let size = if meta.is_file() { meta.size() } else { 0 };
        let target = std::fs::read_link(&path).unwrap_or_default();
        lines.push(format!(
            "{name:?} {:o} {}:{} {size} {}.{:09} {target:?} {first:?} {:02x?}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            &content[..8],
        ));
        if meta.is_dir() {
            let mut names: Vec<_> = std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort_by(|a, b| b.as_bytes().cmp(a.as_bytes()));
            todo.extend(names.into_iter().map(|name| path.join(name)));
        }
    }
    lines
}
