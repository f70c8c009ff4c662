//! Compares a tree with a manifest: every file that the manifest names is read again, from the disk, and hashed.
//!
//! 1. *check* (sequential): all lines of the manifest, so that a malformed one is told before anything is read.
//! 2. *measure* (one thread, beside the rest): the sizes of all files, for the progress display only.
//! 3. *compare* (parallel): the files, as [`crate::read_back`] does it.
//! 4. *what is more* (sequential, if asked for): files of the tree that no line names.
//!
//! It writes nothing.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use rustix::fs::{CWD, Mode, OFlags};

use crate::error::{Error, escape};
use crate::limits::{CHUNK_LEN, PATH_LEN_MAX};
use crate::manifest::{Line, Malformed, parse_line};
use crate::options::VerifyOptions;
use crate::read_back::{Place, Tell, compare};
use crate::report::{Difference, DifferenceKind, Verified};
use crate::source;
use crate::stats::{Phase, Stats};

/// The longest line, bytes: every byte of the longest path escaped.
const LINE_LEN_MAX: u64 = 128 + 4 * PATH_LEN_MAX as u64;

/// Read every file that the manifest names. Differences are told, counted, and no error.
///
/// # Errors
/// A manifest that cannot be read or has a malformed line, and a directory that cannot be opened.
pub fn run(options: &VerifyOptions, stats: &Stats, tell: Tell<'_>) -> Result<Verified, Error> {
    let manifest = Manifest::open(options)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, &options.dir, flags, Mode::empty())
        .map_err(|errno| Error::Source { path: options.dir.clone(), source: errno.into() })?;
    stats.enter(Phase::Moving);
    let mut named = options.extra.then(HashSet::new);
    let mut lines = 0;
    manifest.each(|line| {
        lines += 1;
        if let Some(named) = &mut named {
            named.insert(key(&line.path));
        }
        true
    })?;
    stats.entries_found.store(lines, Relaxed);

    let enough = AtomicBool::new(false);
    let mut verified = thread::scope(|scope| {
        let measure = || {
            let mut place = Place::new(&root);
            // Fails if the manifest changes under us, which the other reader tells.
            let _ = manifest.each(|line| {
                if let Ok(stat) = place.stat(&line.path) {
                    stats.bytes_found.fetch_add(u64::try_from(stat.st_size).unwrap_or(0), Relaxed);
                }
                !enough.load(Relaxed)
            });
            stats.found_all.store(true, Relaxed);
        };
        // Without a thread to spare there is no estimate.
        let _ = thread::Builder::new().name("measure".into()).spawn_scoped(scope, measure);
        let progress = |files, bytes| {
            stats.entries_done.fetch_add(files, Relaxed);
            stats.content_done.fetch_add(bytes, Relaxed);
            stats.stream_done.fetch_add(bytes, Relaxed);
        };
        let each = |visit: &mut dyn FnMut(Line)| {
            manifest.each(|line| {
                visit(line);
                true
            })
        };
        let verified = compare(&root, each, &progress, tell);
        enough.store(true, Relaxed);
        verified
    })?;
    if verified.files != lines {
        return Err(manifest.error("it changed while it was read"));
    }
    if let Some(named) = named {
        what_is_more(options, &named, &mut verified, tell)?;
    }
    stats.enter(Phase::Done);
    Ok(verified)
}

/// The manifest, open. Read several times, and each time the same file.
struct Manifest<'a> {
    file: File,
    options: &'a VerifyOptions,
}

impl Manifest<'_> {
    fn open(options: &VerifyOptions) -> Result<Manifest<'_>, Error> {
        let unreadable = |source| Error::Source { path: options.manifest.clone(), source };
        let file = File::open(&options.manifest).map_err(unreadable)?;
        let manifest = Manifest { file, options };
        match manifest.file.metadata().map_err(unreadable)?.is_file() {
            true => Ok(manifest),
            false => Err(manifest.error("it is no regular file, and has to be read twice")),
        }
    }

    /// Visit the lines in order, until one is answered with false.
    fn each(&self, mut visit: impl FnMut(Line) -> bool) -> Result<(), Error> {
        let mut reader = BufReader::with_capacity(CHUNK_LEN / 4, Positioned { file: &self.file, offset: 0 });
        let mut text = Vec::new();
        for number in 1u64.. {
            text.clear();
            let len = reader.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut text);
            match len.map_err(|source| Error::Source { path: self.options.manifest.clone(), source })? {
                0 => break,
                len if len as u64 == LINE_LEN_MAX => return Err(self.malformed(number, Malformed::Form)),
                _ => {}
            }
            if !visit(parse_line(&text).map_err(|why| self.malformed(number, why))?) {
                break;
            }
        }
        Ok(())
    }

    fn malformed(&self, number: u64, why: Malformed) -> Error {
        self.error(&format!("line {number}: {why}"))
    }

    fn error(&self, what: &str) -> Error {
        Error::Usage(format!("{}: {what}", escape(self.options.manifest.as_os_str().as_bytes())))
    }
}

/// A reader with a place of its own in a file that others read too.
struct Positioned<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for Positioned<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buf, self.offset)?;
        self.offset += n as u64;
        Ok(n)
    }
}

/// A path's identity among all of a manifest.
fn key(path: &[u8]) -> [u8; 16] {
    let hash = blake3::hash(path);
    hash.as_bytes()[..16].try_into().expect("a hash is longer")
}

/// Tell the files of the tree that no line names.
fn what_is_more(
    options: &VerifyOptions,
    named: &HashSet<[u8; 16]>,
    verified: &mut Verified,
    tell: Tell<'_>,
) -> Result<(), Error> {
    let mut more = |kind: DifferenceKind, path: &[u8], detail: String| {
        verified.counts[kind as usize] += 1;
        tell(Difference { kind, path: path.to_vec(), detail });
    };
    let notes = source::each_file(&options.dir, |path| {
        if !named.contains(&key(path)) {
            more(DifferenceKind::Extra, path, String::new());
        }
    })?;
    for note in notes.named.into_iter().filter(|note| note.kind.is_loss()) {
        more(DifferenceKind::Unreadable, &note.path, note.detail);
    }
    Ok(())
}
