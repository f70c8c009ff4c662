//! Feeds a sink what a sender would send, chunk by chunk: entries written by hand, or bytes that no sender writes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use blast::Error;
use blast::archive::{self, Entry, EntryKind, Timestamp, header_len, write_header};
use blast::chunk::{Chunk, ChunkKind, Pool, chunk_digest};
use blast::ids::{Digest, Seq};
use blast::limits::CHUNK_LEN;
use blast::options::{Allow, Destination};
use blast::sink::{Prepared, Sink, SinkEnd};
use blast::stats::Stats;
use blast::wire::{Finish, Offer};

/// An entry with attributes that no default gives.
pub fn entry(path: &str, kind: EntryKind) -> Entry {
    let mode = if kind.is_directory() { 0o755 } else { 0o640 };
    let mtime = Timestamp { secs: 981_173_106, nanos: 789_012_345 };
    Entry { path: path.as_bytes().to_vec(), kind, mode, uid: uid(), gid: gid(), mtime, extras: None }
}

pub fn directory(path: &str) -> Entry {
    entry(path, EntryKind::Directory)
}

pub fn file(path: &str, size: usize) -> Entry {
    entry(path, EntryKind::File { size: size as u64 })
}

pub fn symlink(path: &str, target: &str) -> Entry {
    entry(path, EntryKind::Symlink { target: target.as_bytes().to_vec() })
}

pub fn hardlink(path: &str, target: &str) -> Entry {
    entry(path, EntryKind::Hardlink { target: target.as_bytes().to_vec() })
}

pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub fn gid() -> u32 {
    rustix::process::getegid().as_raw()
}

pub fn is_root() -> bool {
    uid() == 0
}

/// A directory for a test, in memory where that is possible: a sync waits for all that others have written to the disk.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a place for temporary files")
}

/// Bytes that differ from place to place.
pub fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 251) as u8 ^ (i % 251) as u8 ^ seed).collect()
}

/// The chunks of one transfer.
#[derive(Default)]
pub struct Feed {
    chunks: Vec<(ChunkKind, Vec<u8>)>,
    mixed: Vec<u8>,
    entries: u64,
    content_bytes: u64,
}

impl Feed {
    pub fn new() -> Feed {
        Feed::default()
    }

    /// One entry and its content, laid out as a sender does.
    pub fn entry(&mut self, entry: &Entry, content: &[u8]) -> &mut Feed {
        let len = header_len(entry);
        let mut header = vec![0; len];
        write_header(entry, &mut header);
        self.entries += 1;
        self.content_bytes += content.len() as u64;
        let large = len + content.len() + 512 > CHUNK_LEN;
        if self.mixed.len() + len + if large { 0 } else { content.len() + 512 } > CHUNK_LEN {
            self.cut();
        }
        self.mixed.extend_from_slice(&header);
        if large {
            self.cut();
            self.slices(content);
        } else {
            self.mixed.extend_from_slice(content);
        }
        let padded = self.mixed.len() + archive::padding(content.len() as u64);
        self.mixed.resize(padded, 0);
        self
    }

    pub fn all(entries: &[Entry]) -> Feed {
        let mut feed = Feed::new();
        for entry in entries {
            feed.entry(entry, &bytes(entry.kind.content_len() as usize, entry.path.len() as u8));
        }
        feed
    }

    /// Slices of a large file or raw stream.
    pub fn slices(&mut self, content: &[u8]) -> &mut Feed {
        let sole = content.len() <= CHUNK_LEN;
        for (i, slice) in content.chunks(CHUNK_LEN).enumerate() {
            self.chunks.push((ChunkKind::Data { offset: (i * CHUNK_LEN) as u64, sole }, slice.to_vec()));
        }
        self
    }

    /// Any bytes in the mixed chunk.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Feed {
        self.mixed.extend_from_slice(bytes);
        self
    }

    /// Entries and bytes of content that were fed as bytes.
    pub fn count(&mut self, entries: u64, content_bytes: u64) -> &mut Feed {
        self.entries += entries;
        self.content_bytes += content_bytes;
        self
    }

    /// Any chunk.
    pub fn chunk(&mut self, kind: ChunkKind, content: &[u8]) -> &mut Feed {
        self.cut();
        self.chunks.push((kind, content.to_vec()));
        self
    }

    pub fn cut(&mut self) {
        if !self.mixed.is_empty() {
            self.chunks.push((ChunkKind::Mixed, std::mem::take(&mut self.mixed)));
        }
    }

    /// The archive's end.
    pub fn end(&mut self) -> &mut Feed {
        if self.mixed.len() + archive::END.len() > CHUNK_LEN {
            self.cut();
        }
        self.mixed.extend_from_slice(&archive::END);
        self.cut();
        self
    }

    /// The last chunk, to be spoiled.
    pub fn last_chunk(&mut self) -> &mut Vec<u8> {
        &mut self.chunks.last_mut().expect("a chunk was cut").1
    }

    pub fn finish(&self) -> Finish {
        Finish {
            chunks: self.chunks.len() as u64,
            entries: self.entries,
            bytes: self.chunks.iter().map(|(_, content)| content.len() as u64).sum(),
            content_bytes: self.content_bytes,
            notes: 0,
            unnamed: (0, 0),
            digest: Digest([0; 32]),
        }
    }

    /// Hand everything over, from a pool of `buffers` chunks.
    pub fn send_to(&self, sink: &Sink, buffers: usize) {
        let pool = Pool::new(buffers, CHUNK_LEN);
        for (seq, (kind, content)) in self.chunks.iter().enumerate() {
            let mut buf = pool.take().expect("the pool stays open");
            buf[..content.len()].copy_from_slice(content);
            let (kind, len, digest) = (*kind, content.len(), chunk_digest(*kind, content));
            let chunk = Chunk { seq: Seq(seq as u64), kind, len, digest, buf, release: None };
            if sink.feed().put(chunk).is_err() {
                return;
            }
        }
    }
}

/// What came of a feed: the result, and what `on_error` was told.
pub struct Outcome {
    pub end: Result<SinkEnd, Error>,
    pub told: Vec<String>,
}

impl Outcome {
    pub fn whole(self) -> SinkEnd {
        assert_eq!(self.told, Vec::<String>::new());
        let end = self.end.expect("the sink finishes");
        assert_eq!(end.notes.named, []);
        end
    }

    /// Paths of the notes, in order of the paths.
    pub fn noted(self) -> Vec<String> {
        assert_eq!(self.told, Vec::<String>::new());
        let end = self.end.expect("the sink finishes");
        let mut paths: Vec<_> = end.notes.named.iter().map(|n| String::from_utf8_lossy(&n.path).into_owned()).collect();
        paths.sort();
        paths
    }

    /// The error, told once and returned as well.
    pub fn error(self) -> Error {
        let error = self.end.expect_err("the sink fails");
        assert_eq!(self.told, [error.to_string()]);
        error
    }
}

/// Unpack a feed, ended here, into a destination.
pub fn unpack(feed: &mut Feed, dest: &Path) -> Outcome {
    feed.end();
    deliver(feed, dest, &Offer::Tree { sources: 1 })
}

/// Deliver a feed as it is.
pub fn deliver(feed: &Feed, dest: &Path, offer: &Offer) -> Outcome {
    deliver_with(feed, dest, offer, |_| {})
}

/// Deliver a feed, with other last words.
pub fn deliver_with(feed: &Feed, dest: &Path, offer: &Offer, change: impl FnOnce(&mut Finish)) -> Outcome {
    let prepared = Prepared::new(&Destination::Path(dest.to_path_buf())).expect("a destination that can be used");
    let prepared = prepared.allowing(Allow::default(), true);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let on_error = move |error: Error| tell.lock().unwrap().push(error.to_string());
    let sink = prepared.open(offer, Arc::new(Stats::default()), 3, on_error).expect("the sink opens");
    feed.send_to(&sink, 16);
    let mut finish = feed.finish();
    change(&mut finish);
    let end = sink.finish(finish);
    let told = told.lock().unwrap().clone();
    Outcome { end, told }
}

/// Everything that can be seen of one object, access time aside.
#[derive(PartialEq, Eq, Debug, Clone)]
pub struct Seen {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: (i64, i64),
    pub content: Vec<u8>,
    pub inode: u64,
}

/// A whole tree, by path below `root`; the root itself is "".
pub fn look(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut seen = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().expect("it is there");
        let content = if meta.is_symlink() {
            path.read_link().unwrap().as_os_str().as_bytes().to_vec()
        } else if meta.is_file() {
            std::fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        if meta.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        let below = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let (mode, uid, gid) = (meta.mode(), meta.uid(), meta.gid());
        let mtime = (meta.mtime(), meta.mtime_nsec());
        seen.insert(below, Seen { mode, uid, gid, mtime, content, inode: meta.ino() });
    }
    seen
}

/// That a tree is exactly these entries, with the content that [`Feed::all`] gives them.
pub fn assert_exact(root: &Path, entries: &[Entry]) {
    let seen = look(root);
    let expected: Vec<_> = entries.iter().map(|e| e.path.clone()).collect();
    let mut found: Vec<_> = seen.keys().cloned().collect();
    if !expected.contains(&Vec::new()) {
        found.retain(|path| !path.is_empty());
    }
    let mut sorted = expected.clone();
    sorted.sort();
    assert_eq!(found, sorted, "the tree's paths");
    for entry in entries {
        let got = &seen[&entry.path];
        let shown = OsStr::from_bytes(&entry.path);
        let content = match &entry.kind {
            EntryKind::File { size } => bytes(*size as usize, entry.path.len() as u8),
            EntryKind::Symlink { target } => target.clone(),
            EntryKind::Hardlink { target } => {
                assert_eq!(got.inode, seen[target].inode, "{shown:?} is another name of its target");
                continue;
            }
            EntryKind::Directory | EntryKind::Fifo | EntryKind::Sparse { .. } | EntryKind::Device { .. } => Vec::new(),
        };
        assert!(got.content == content, "content of {shown:?}");
        assert_eq!(got.mtime, (entry.mtime.secs, entry.mtime.nanos.into()), "time of {shown:?}");
        assert_eq!((got.uid, got.gid), (entry.uid, entry.gid), "owner of {shown:?}");
        let kind = match &entry.kind {
            EntryKind::Symlink { .. } => {
                assert_eq!(got.mode & 0o170000, 0o120000, "{shown:?} is a symbolic link");
                continue;
            }
            EntryKind::Directory => 0o040000,
            EntryKind::Fifo => 0o010000,
            EntryKind::Device { block: false, .. } => 0o020000,
            EntryKind::Device { block: true, .. } => 0o060000,
            _ => 0o100000,
        };
        assert_eq!(format!("{:o}", got.mode), format!("{:o}", kind | entry.mode), "mode of {shown:?}");
    }
}

/// A small file system of its own; gone on drop.
pub struct Mounted(pub std::path::PathBuf);

impl Mounted {
    /// `None`, said loudly, where mounting is not allowed.
    pub fn tmpfs(at: &Path, options: &str) -> Option<Mounted> {
        Mounted::of("tmpfs", at, options)
    }

    /// The same of any file system that needs no device.
    pub fn of(kind: &str, at: &Path, options: &str) -> Option<Mounted> {
        Mounted::by(&["-t", kind, "-o", options, kind], at)
    }

    /// The same of what is on a device.
    pub fn device(device: &Path, at: &Path, options: &str) -> Option<Mounted> {
        Mounted::by(&["-o", options, device.to_str()?], at)
    }

    fn by(args: &[&str], at: &Path) -> Option<Mounted> {
        let mount = std::process::Command::new("mount").args(args).arg(at).output();
        if mount.is_ok_and(|output| output.status.success()) {
            return Some(Mounted(at.to_path_buf()));
        }
        eprintln!("SKIPPED: mounting a file system needs root");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
