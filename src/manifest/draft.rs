//! The file that a manifest is written to. Beside its final name under a temporary one, until all of it is there; on
//! any failure the temporary one is removed and what had the name stays.
//!
//! Lines are appended as they come, so memory does not grow with the number of files. A hard link's line waits for the
//! digest of its target, which may lie a million lines back: the digests wanted are picked up in one more pass over
//! what was written, and only if there are hard links. That takes about a hundred bytes for each file that has several
//! names. The same pass drops the lines of names that something else has taken since, as in an archive that has a name
//! more than once.
//!
//! What goes wrong while writing must not end a transfer: it is kept, nothing more is written, and the end tells.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::line::{Drafted, Key, Line, Lines, parse_line, settle};
use crate::error::{Error, escape};
use crate::ids::Digest;
use crate::report::ManifestReport;

/// Text gathered before it is written.
const BUFFER_LEN: usize = 256 << 10;

/// The file's place and temporary name. Dropping it removes the temporary file.
pub struct Draft {
    dir: OwnedFd,
    name: Vec<u8>,
    /// `None` once it has its final name.
    temp: Option<String>,
    /// As given.
    path: PathBuf,
}

/// What writes the file.
pub struct Pen {
    file: File,
    lines: Lines,
    error: Option<io::Error>,
}

impl Draft {
    /// Begin the manifest `path`. It must not lie in any of `kept_out`, the trees and files of the transfer itself.
    pub fn create(path: &Path, kept_out: &[PathBuf]) -> Result<(Draft, Pen), Error> {
        let shown = escape(path.as_os_str().as_bytes());
        let unusable = |e: io::Error| Error::Usage(format!("cannot write the manifest '{shown}': {e}"));
        let place = place_of(path).map_err(unusable)?;
        if let Some(outer) = kept_out.iter().find(|kept| place_of(kept).is_ok_and(|kept| place.starts_with(kept))) {
            let outer = escape(outer.as_os_str().as_bytes());
            return Err(Error::Usage(format!(
                "the manifest '{shown}' would lie in '{outer}', which is what is moved: name a place outside of it"
            )));
        }
        if std::fs::metadata(&place).is_ok_and(|there| !there.is_file()) {
            return Err(Error::Usage(format!("cannot write the manifest '{shown}': it is there, and is no file")));
        }
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(unusable(io::ErrorKind::NotFound.into()));
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(CWD, parent, flags, Mode::empty()).map_err(|e| unusable(e.into()))?;
        let (file, temp) = create_in(&dir).map_err(|e| unusable(e.into()))?;
        let draft = Draft { dir, name: name.as_bytes().to_vec(), temp: Some(temp), path: path.to_owned() };
        Ok((draft, Pen { file, lines: Lines::default(), error: None }))
    }

    /// The directory it is written in.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Everything is written: make it durable under its name. Replaces what had that name.
    pub fn finish(mut self, mut pen: Pen) -> ManifestReport {
        let is_final = pen.lines.links == 0 && pen.lines.gone == 0;
        pen.flush();
        let mut files = pen.lines.files;
        let completed = match pen.error.take() {
            Some(error) => Err(error),
            None => self.complete(pen.file, is_final).map(|dropped| files -= dropped),
        };
        ManifestReport {
            path: std::mem::take(&mut self.path),
            files,
            foreign: pen.lines.foreign,
            failed: completed.err().map(|e| e.to_string()),
        }
    }

    /// Returns how many lines were dropped.
    fn complete(&mut self, file: File, is_final: bool) -> io::Result<u64> {
        let mut dropped = 0;
        let mut settled = None;
        if !is_final {
            let (into, temp) = create_in(&self.dir)?;
            let first = self.temp.replace(temp);
            if let Some(first) = first {
                rustix::fs::unlinkat(&self.dir, first, AtFlags::empty())?;
            }
            dropped = settle_lines(&file, &into)?;
            settled = Some(into);
        }
        rustix::fs::fdatasync(settled.as_ref().unwrap_or(&file))?;
        if let Some(temp) = &self.temp {
            rustix::fs::renameat(&self.dir, temp, &self.dir, self.name.as_slice())?;
            self.temp = None;
        }
        rustix::fs::fsync(&self.dir)?;
        Ok(dropped)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            // If it cannot be removed it stays; its name says what it is.
            let _ = rustix::fs::unlinkat(&self.dir, temp, AtFlags::empty());
        }
    }
}

impl Pen {
    /// What is written is for this process only: in a file without a name beside what is received, if it can be had
    /// there, or else where temporary files go.
    pub fn unnamed(beside: Option<BorrowedFd<'_>>) -> Result<Pen, Error> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let beside = beside.and_then(|dir| rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR).ok());
        let file = match beside {
            Some(fd) => File::from(fd),
            None => unnamed_in(&std::env::temp_dir()).map_err(|source| Error::Destination {
                what: "cannot make a temporary file for the digests of what is received".into(),
                source,
            })?,
        };
        Ok(Pen { file, lines: Lines::default(), error: None })
    }

    /// Visit the lines of all files that were added, but not of their further names.
    ///
    /// # Errors
    /// Some could not be written, or cannot be read.
    pub fn each_file(&mut self, mut visit: impl FnMut(Line)) -> io::Result<()> {
        self.flush();
        if let Some(error) = &self.error {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let mut gone = if self.lines.gone > 0 { Gone::of(&self.file)? } else { Gone::default() };
        // Files that have lost the name of their line, and may have another.
        let mut nameless: HashMap<Key, Digest> = HashMap::new();
        each_line(&self.file, |text, line| {
            match line {
                Drafted::File { digest, key } if gone.will_be(&key) => drop(nameless.insert(key, digest)),
                Drafted::File { key, .. } => {
                    nameless.remove(&key);
                    visit(read(text)?);
                }
                Drafted::Link { target, key, escaped, text } if !gone.will_be(&key) => {
                    if let Some(digest) = nameless.remove(&target) {
                        let mut line = Vec::new();
                        settle(&mut line, &digest, escaped, text);
                        visit(read(&line)?);
                    }
                }
                Drafted::Link { .. } => {}
                Drafted::Gone { key } => gone.is_now(&key),
            }
            Ok(())
        })
    }

    /// Add lines.
    pub fn append(&mut self, lines: &Lines) {
        let Lines { text, files, foreign, links, gone } = lines;
        self.lines.files += files;
        self.lines.foreign += foreign;
        self.lines.links += links;
        self.lines.gone += gone;
        self.lines.text.extend_from_slice(text);
        if self.lines.text.len() >= BUFFER_LEN {
            self.flush();
        }
    }

    /// Add one line.
    pub fn file(&mut self, digest: Digest, path: &[u8]) {
        self.lines.file(digest, path);
        if self.lines.text.len() >= BUFFER_LEN {
            self.flush();
        }
    }

    /// Add the line of a stream, which has no name.
    pub fn stream(&mut self, digest: Digest) {
        self.lines.files += 1;
        self.lines.text.extend_from_slice(format!("{digest}  -\n").as_bytes());
    }

    fn flush(&mut self) {
        if self.error.is_none() {
            self.error = self.file.write_all(&self.lines.text).err();
        }
        self.lines.text.clear();
    }
}

/// Where a path leads: its directory without links and dots, and the last name. A link to a file is followed.
fn place_of(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Ok(real) => return Ok(real),
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        Err(e) if path.is_symlink() => return Err(e),
        Err(_) => {}
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::NotFound)?;
    Ok(parent.canonicalize()?.join(name))
}

/// A new file under a name that nobody else uses.
fn create_in(dir: &OwnedFd) -> Result<(File, String), Errno> {
    let name = format!(".blast-manifest-{:016x}", RandomState::new().hash_one(std::process::id()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name.as_str(), flags, Mode::from_raw_mode(0o666))?;
    Ok((fd.into(), name))
}

/// A file without a name in a directory of any file system.
fn unnamed_in(dir: &Path) -> io::Result<File> {
    let dir = rustix::fs::openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let (file, name) = create_in(&dir)?;
    rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
    Ok(file)
}

fn read(line: &[u8]) -> io::Result<Line> {
    parse_line(line).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Paths that are taken back further on, and how often.
#[derive(Default)]
struct Gone(HashMap<Key, u64>);

impl Gone {
    fn of(draft: &File) -> io::Result<Gone> {
        let mut gone = Gone::default();
        each_line(draft, |_, line| {
            gone.note(&line);
            Ok(())
        })?;
        Ok(gone)
    }

    fn note(&mut self, line: &Drafted<'_>) {
        if let Drafted::Gone { key } = line {
            *self.0.entry(*key).or_default() += 1;
        }
    }

    /// Whether what is said here of a path is taken back.
    fn will_be(&self, key: &Key) -> bool {
        self.0.get(key).is_some_and(|left| *left > 0)
    }

    /// It was taken back here.
    fn is_now(&mut self, key: &Key) {
        if let Some(left) = self.0.get_mut(key) {
            *left -= 1;
        }
    }
}

/// Copy a draft, giving each hard link its target's digest and leaving out what is taken back. Targets come before
/// their links. Returns how many lines were dropped: links whose target has no line, since it is no regular file, and
/// those taken back.
fn settle_lines(draft: &File, into: &File) -> io::Result<u64> {
    let mut wanted: HashMap<Key, Option<Digest>> = HashMap::new();
    let mut gone = Gone::default();
    each_line(draft, |_, line| {
        gone.note(&line);
        if let Drafted::Link { target, .. } = line {
            wanted.insert(target, None);
        }
        Ok(())
    })?;
    let mut out = Vec::with_capacity(BUFFER_LEN + 4096);
    let mut dropped = 0;
    each_line(draft, |text, line| {
        let known = match &line {
            Drafted::File { digest, key } => Some((*digest, *key)),
            Drafted::Link { target, key, .. } => wanted.get(target).copied().flatten().map(|digest| (digest, *key)),
            Drafted::Gone { key } => {
                gone.is_now(key);
                return Ok(());
            }
        };
        let Some((digest, key)) = known else {
            dropped += 1;
            return Ok(());
        };
        if let Some(found) = wanted.get_mut(&key) {
            *found = Some(digest);
        }
        match line {
            _ if gone.will_be(&key) => dropped += 1,
            Drafted::Link { escaped, text, .. } => settle(&mut out, &digest, escaped, text),
            _ => out.extend_from_slice(text),
        }
        if out.len() >= BUFFER_LEN {
            let mut into = into;
            into.write_all(&out)?;
            out.clear();
        }
        Ok(())
    })?;
    let mut into = into;
    into.write_all(&out)?;
    Ok(dropped)
}

fn each_line(draft: &File, mut visit: impl FnMut(&[u8], Drafted<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut file = draft;
    file.rewind()?;
    let mut reader = BufReader::with_capacity(BUFFER_LEN, file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let Some(first) = reader.fill_buf()?.first().copied() else { return Ok(()) };
        line.resize(Drafted::opaque_len(first), 0);
        reader.read_exact(&mut line)?;
        reader.read_until(b'\n', &mut line)?;
        let drafted = Drafted::read(&line).ok_or(io::ErrorKind::InvalidData)?;
        visit(&line, drafted)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn it_gets_its_name_when_it_is_whole_and_leaves_nothing_when_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest");
        fs::write(&path, "before").unwrap();
        let (draft, mut pen) = Draft::create(&path, &[]).unwrap();
        pen.file(Digest([1; 32]), b"a");
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        drop(draft);
        assert_eq!(names(dir.path()), ["manifest"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        drop(pen);

        let (draft, mut pen) = Draft::create(&path, &[]).unwrap();
        pen.file(Digest([1; 32]), b"a");
        pen.stream(Digest([2; 32]));
        let report = draft.finish(pen);
        assert_eq!((report.files, report.foreign, report.failed), (2, 0, None));
        assert_eq!(names(dir.path()), ["manifest"]);
        let expected = format!("{}  a\n{}  -\n", "01".repeat(32), "02".repeat(32));
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn links_get_their_targets_digest_in_their_own_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest");
        let (draft, mut pen) = Draft::create(&path, &[]).unwrap();
        let mut expected = String::new();
        // Keys hold every byte sooner or later, newlines too.
        for i in 0..3000u32 {
            let digest = Digest(blake3::hash(&i.to_le_bytes()).into());
            let (file, link) = (format!("f\n{i}"), format!("l\\{i}"));
            pen.file(digest, file.as_bytes());
            let mut lines = Lines::default();
            lines.link(link.as_bytes(), file.as_bytes());
            lines.link(b"to a symbolic link", b"nothing with a line");
            pen.append(&lines);
            expected += &format!("\\{digest}  f\\n{i}\n\\{digest}  l\\\\{i}\n");
        }
        let report = draft.finish(pen);
        assert_eq!((report.files, report.failed), (6000, None));
        assert_eq!(names(dir.path()), ["manifest"]);
        assert!(fs::read_to_string(&path).unwrap() == expected);
    }

    #[test]
    fn what_is_taken_back_has_no_line_and_a_link_keeps_the_digest_its_target_had() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest");
        let digest = |n: u8| Digest([n; 32]);
        let write = |pen: &mut Pen| {
            let mut lines = Lines::default();
            lines.file(digest(1), b"a");
            lines.link(b"link", b"a");
            lines.link(b"link of a link", b"link");
            lines.gone(b"a");
            lines.file(digest(2), b"a");
            lines.link(b"late link", b"a");
            lines.file(digest(3), b"gone for good");
            lines.gone(b"gone for good");
            lines.gone(b"never there");
            lines.file(digest(4), b"b");
            for n in 5..8 {
                lines.gone(b"b");
                lines.file(digest(n), b"b");
            }
            pen.append(&lines);
        };
        let (draft, mut pen) = Draft::create(&path, &[]).unwrap();
        write(&mut pen);
        let report = draft.finish(pen);
        let right = [("link", 1), ("link of a link", 1), ("a", 2), ("late link", 2), ("b", 7)];
        let right = right.map(|(name, n)| format!("{}  {name}\n", digest(n)));
        assert_eq!(fs::read_to_string(&path).unwrap(), right.concat());
        assert_eq!((report.files, report.failed), (5, None));

        // What is read back is every file once.
        let mut pen = Pen::unnamed(None).unwrap();
        write(&mut pen);
        let mut found = Vec::new();
        pen.each_file(|line| found.push((line.path, line.digest))).unwrap();
        assert_eq!(found, [(b"link".to_vec(), digest(1)), (b"a".to_vec(), digest(2)), (b"b".to_vec(), digest(7))]);
    }

    #[test]
    fn files_without_a_manifest_are_remembered_in_a_file_without_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let beside = File::open(dir.path()).unwrap();
        for beside in [Some(beside.as_fd()), None] {
            let mut pen = Pen::unnamed(beside).unwrap();
            let mut expected = Vec::new();
            for i in 0..9000u32 {
                let path = format!("f\n{i}").into_bytes();
                let digest = Digest(blake3::hash(&path).into());
                pen.file(digest, &path);
                let mut lines = Lines::default();
                lines.link(b"once more", &path);
                pen.append(&lines);
                expected.push(Line { digest, path });
            }
            let mut found = Vec::new();
            pen.each_file(|line| found.push(line)).unwrap();
            assert!(found == expected);
            assert_eq!(names(dir.path()), Vec::<String>::new());
            // What comes later comes after that.
            pen.file(Digest([7; 32]), b"last");
            found.clear();
            pen.each_file(|line| found.push(line)).unwrap();
            assert_eq!(found.last().map(|line| &line.path[..]), Some(&b"last"[..]));
            pen.file = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            pen.file(Digest([7; 32]), b"too much");
            assert!(pen.each_file(|_| {}).is_err(), "what cannot be written is told");
        }
    }

    #[test]
    fn a_place_in_what_is_moved_or_no_place_at_all_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink(tree.join("sub"), dir.path().join("link")).unwrap();
        let kept_out = [tree.clone(), dir.path().join("file"), dir.path().join("new")];
        let dangling = dir.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        for inside in ["tree/m", "tree/sub/m", "tree/sub/../m", "link/m", "file", "new", "tree"] {
            let error = Draft::create(&dir.path().join(inside), &kept_out).err().unwrap();
            assert!(error.to_string().contains("which is what is moved"), "{inside}: {error}");
        }
        for nowhere in ["missing/m", "file/m", "link", "dangling", "", "/dev/null"] {
            let error = Draft::create(&dir.path().join(nowhere), &[]).err().unwrap();
            assert_eq!(error.exit_code(), crate::ExitCode::Usage, "{nowhere}: {error}");
        }
        assert!(Draft::create(&dir.path().join("tree2"), &kept_out).is_ok());
    }

    #[test]
    fn a_disk_that_is_full_is_told_at_the_end() {
        let (draft, mut pen) = {
            let dir = tempfile::tempdir().unwrap();
            Draft::create(&dir.path().join("m"), &[]).unwrap()
        };
        pen.file = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        for i in 0..10_000 {
            pen.file(Digest([1; 32]), format!("file {i}").as_bytes());
        }
        let report = draft.finish(pen);
        assert!(report.failed.is_some_and(|why| why.contains("No space left")));
    }
}
