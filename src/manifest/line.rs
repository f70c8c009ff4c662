//! One line to bytes and back. No I/O.

use crate::ids::Digest;

/// One line as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// The file's BLAKE3.
    pub digest: Digest,
    /// Its path, relative, without `.` components.
    pub path: Vec<u8>,
}

/// What is wrong with a line.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// It has another form.
    #[error("it is not '<64 hexadecimal digits>  <path>', as b3sum writes it")]
    Form,
    /// A backslash in an escaped path is followed by something that no escape begins with.
    #[error("its path has a backslash escape that is not known")]
    Escape,
    /// It holds what b3sum puts in place of bytes that it cannot write.
    #[error(
        "its path holds U+FFFD, which b3sum writes in place of bytes that are not UTF-8: it names no file for sure"
    )]
    Lossy,
    /// Absolute, or with `..`.
    #[error("its path leads out of the directory")]
    Outside,
    /// Nothing is left of it.
    #[error("its path is empty")]
    Empty,
}

/// Bytes of the key under which a hard link asks for its target.
const KEY_LEN: usize = 16;

/// A path's identity among all paths of a transfer.
pub(super) type Key = [u8; KEY_LEN];

/// What a line of a [`super::Draft`] begins with that waits for the digest of another.
const WAITS: u8 = b'=';

/// What one begins with that takes back what was said of a path before it.
const GONE: u8 = b'-';

/// The replacement character in UTF-8.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Lines in the making, as text.
#[derive(Default, Debug)]
pub struct Lines {
    pub(super) text: Vec<u8>,
    /// Lines in it.
    pub(super) files: u64,
    /// Those that `b3sum` cannot check.
    pub(super) foreign: u64,
    /// Those that wait for another's digest.
    pub(super) links: u64,
    /// Paths that were taken back; these are no lines of the manifest.
    pub(super) gone: u64,
}

impl Lines {
    /// A file and its digest.
    pub fn file(&mut self, digest: Digest, path: &[u8]) {
        let name = Name::of(path);
        self.count(&name);
        write_line(&mut self.text, &digest, name.escaped, &name.text);
    }

    /// One more name of a file that has a line before this one. If it turns out to have none, this name gets none.
    pub fn link(&mut self, path: &[u8], target: &[u8]) {
        let name = Name::of(path);
        self.count(&name);
        self.links += 1;
        self.text.push(WAITS);
        self.text.extend_from_slice(&key(&Name::of(target).text));
        self.text.push(if name.escaped { b'\\' } else { b' ' });
        self.text.extend_from_slice(&name.text);
        self.text.push(b'\n');
    }

    /// Something else has this name from now on: what lines before this one say of it is true no more.
    pub fn gone(&mut self, path: &[u8]) {
        self.gone += 1;
        self.text.push(GONE);
        self.text.extend_from_slice(&key(&Name::of(path).text));
        self.text.push(b'\n');
    }

    fn count(&mut self, name: &Name) {
        self.files += 1;
        self.foreign += u64::from(name.foreign);
    }
}

/// A path as it is written.
struct Name {
    text: Vec<u8>,
    escaped: bool,
    /// With an escape that only we read.
    foreign: bool,
}

impl Name {
    fn of(path: &[u8]) -> Name {
        let path = if path == b"-" { b"./-" } else { path };
        let mut name = Name { text: Vec::with_capacity(path.len()), escaped: false, foreign: false };
        for part in path.utf8_chunks() {
            for c in part.valid().chars() {
                match c {
                    '\\' => name.escape(b"\\\\"),
                    '\n' => name.escape(b"\\n"),
                    '\r' => name.escape(b"\\r"),
                    char::REPLACEMENT_CHARACTER => name.escape_bytes(REPLACEMENT),
                    c => name.text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            name.escape_bytes(part.invalid());
        }
        name
    }

    fn escape(&mut self, text: &[u8]) {
        self.escaped = true;
        self.text.extend_from_slice(text);
    }

    fn escape_bytes(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.foreign = true;
            self.escape(format!("\\x{b:02x}").as_bytes());
        }
    }
}

fn key(text: &[u8]) -> Key {
    let hash = blake3::hash(text);
    hash.as_bytes()[..KEY_LEN].try_into().expect("a hash is longer than a key")
}

fn write_line(out: &mut Vec<u8>, digest: &Digest, escaped: bool, text: &[u8]) {
    if escaped {
        out.push(b'\\');
    }
    out.extend_from_slice(blake3::Hash::from_bytes(digest.0).to_hex().as_bytes());
    out.extend_from_slice(b"  ");
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// One line of a draft, as written by [`Lines`].
pub(super) enum Drafted<'a> {
    /// A line as it stays; the key of its path.
    File { digest: Digest, key: Key },
    /// A line that waits for the digest of its target; the key of its own path.
    Link { target: Key, key: Key, escaped: bool, text: &'a [u8] },
    /// No line: those before it with this key are to be dropped.
    Gone { key: Key },
}

impl<'a> Drafted<'a> {
    /// Read back a line, its newline included. A key may hold any byte, so where a line ends is known only by reading
    /// it.
    pub fn read(line: &'a [u8]) -> Option<Drafted<'a>> {
        let line = line.strip_suffix(b"\n")?;
        match line.split_first()? {
            (&WAITS, rest) => {
                let (target, rest) = rest.split_first_chunk::<KEY_LEN>()?;
                let (flag, text) = rest.split_first()?;
                Some(Drafted::Link { target: *target, key: key(text), escaped: *flag == b'\\', text })
            }
            (&GONE, rest) => Some(Drafted::Gone { key: rest.try_into().ok()? }),
            _ => {
                let (digest, text) = split(line.strip_prefix(b"\\").unwrap_or(line))?;
                Some(Drafted::File { digest, key: key(text) })
            }
        }
    }

    /// Bytes at the start of a line that may hold newlines which do not end it.
    pub fn opaque_len(first: u8) -> usize {
        if [WAITS, GONE].contains(&first) { 1 + KEY_LEN } else { 0 }
    }
}

/// The line that a hard link gets, now that its target's digest is known.
pub(super) fn settle(out: &mut Vec<u8>, digest: &Digest, escaped: bool, text: &[u8]) {
    write_line(out, digest, escaped, text);
}

/// `<64 hexadecimal digits>  <path>`, or what `b3sum --tag` writes.
fn split(line: &[u8]) -> Option<(Digest, &[u8])> {
    if let Some(rest) = line.strip_prefix(b"BLAKE3 (") {
        let at = rest.len().checked_sub(64)?;
        let (before, hex) = rest.split_at(at);
        return Some((digest(hex)?, before.strip_suffix(b") = ")?));
    }
    let (hex, rest) = line.split_at_checked(64)?;
    Some((digest(hex)?, rest.strip_prefix(b"  ")?))
}

fn digest(hex: &[u8]) -> Option<Digest> {
    let lower = hex.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let hash = lower.then(|| blake3::Hash::from_hex(hex).ok()).flatten()?;
    Some(Digest(hash.into()))
}

/// Read one line, with or without its newline.
pub fn parse_line(line: &[u8]) -> Result<Line, Malformed> {
    let end = line.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |at| at + 1);
    let line = &line[..end];
    let (escaped, rest) = match line.strip_prefix(b"\\") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (digest, text) = split(rest).ok_or(Malformed::Form)?;
    if text.windows(REPLACEMENT.len()).any(|part| part == REPLACEMENT) {
        return Err(Malformed::Lossy);
    }
    let path = if escaped { unescape(text)? } else { text.to_vec() };
    Ok(Line { digest, path: inside(&path)? })
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|b| *b == b'\\') {
        path.extend_from_slice(&rest[..at]);
        let (len, byte) = match rest[at + 1..] {
            [b'\\', ..] => (1, b'\\'),
            [b'n', ..] => (1, b'\n'),
            [b'r', ..] => (1, b'\r'),
            [b'x', high, low, ..] => (3, half(high)? << 4 | half(low)?),
            _ => return Err(Malformed::Escape),
        };
        path.push(byte);
        rest = &rest[at + 1 + len..];
    }
    path.extend_from_slice(rest);
    Ok(path)
}

fn half(digit: u8) -> Result<u8, Malformed> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(Malformed::Escape),
    }
}

/// The path without what changes nothing, if it stays below where it begins.
fn inside(path: &[u8]) -> Result<Vec<u8>, Malformed> {
    if path.is_empty() || path.contains(&0) {
        return Err(Malformed::Empty);
    }
    if path[0] == b'/' {
        return Err(Malformed::Outside);
    }
    let mut out = Vec::with_capacity(path.len());
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if name == b".." {
            return Err(Malformed::Outside);
        }
        if !out.is_empty() {
            out.push(b'/');
        }
        out.extend_from_slice(name);
    }
    if out.is_empty() { Err(Malformed::Empty) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: Digest = Digest([0xa1; 32]);

    fn line_of(path: &[u8]) -> Lines {
        let mut lines = Lines::default();
        lines.file(DIGEST, path);
        lines
    }

    fn text_of(path: &[u8]) -> String {
        let text = String::from_utf8(line_of(path).text).expect("a manifest is text");
        text.replace(&DIGEST.to_string(), "D")
    }

    #[test]
    fn lines_are_those_of_b3sum() {
        for (path, text) in [
            (&b"plain"[..], "D  plain\n"),
            (b"dir/ two  spaces ", "D  dir/ two  spaces \n"),
            ("caf\u{e9}/\u{65e5}".as_bytes(), "D  caf\u{e9}/\u{65e5}\n"),
            (b"new\nline", "\\D  new\\nline\n"),
            (b"back\\slash", "\\D  back\\\\slash\n"),
            (b"Icon\r", "\\D  Icon\\r\n"),
            (b"-", "D  ./-\n"),
            (b"a/-", "D  a/-\n"),
        ] {
            assert_eq!(text_of(path), text);
            assert_eq!(line_of(path).foreign, 0, "{text}");
        }
    }

    #[test]
    fn what_b3sum_cannot_write_is_escaped_and_counted() {
        assert_eq!(text_of(b"a\xffb"), "\\D  a\\xffb\n");
        assert_eq!(text_of("a\u{fffd}".as_bytes()), "\\D  a\\xef\\xbf\\xbd\n");
        assert_eq!((line_of(b"a\xff\xfe").foreign, line_of(b"a\xff\xfe").files), (1, 1));
    }

    #[test]
    fn what_b3sum_writes_is_read() {
        let d = DIGEST.to_string();
        for (line, path) in [
            (format!("{d}  a"), "a"),
            (format!("{d}  a\r\n"), "a"),
            (format!("{d}  ./a/./b//c\n"), "a/b/c"),
            (format!("{d}   lead\n"), " lead"),
            (format!("{d}  not\\escaped\n"), "not\\escaped"),
            (format!("\\{d}  a\\nb\\\\\\r\n"), "a\nb\\\r"),
            (format!("BLAKE3 (a) = b) = {d}\n"), "a) = b"),
            (format!("\\BLAKE3 (two  \\n) = {d}\n"), "two  \n"),
        ] {
            assert_eq!(parse_line(line.as_bytes()), Ok(Line { digest: DIGEST, path: path.into() }), "{line}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_reason() {
        let d = DIGEST.to_string();
        for (line, why) in [
            (String::new(), Malformed::Form),
            ("\n".into(), Malformed::Form),
            ("# comment\n".into(), Malformed::Form),
            (format!("{d} *binary\n"), Malformed::Form),
            (format!("{}  a\n", &d[1..]), Malformed::Form),
            (format!("{}  a\n", d.to_uppercase()), Malformed::Form),
            (format!("SHA256 (a) = {d}\n"), Malformed::Form),
            (format!("{d}  \n"), Malformed::Empty),
            (format!("{d}  ./.\n"), Malformed::Empty),
            (format!("{d}  /etc/passwd\n"), Malformed::Outside),
            (format!("{d}  a/../../b\n"), Malformed::Outside),
            (format!("{d}  a\u{fffd}\n"), Malformed::Lossy),
            (format!("\\{d}  a\\t\n"), Malformed::Escape),
            (format!("\\{d}  a\\\n"), Malformed::Escape),
            (format!("\\{d}  a\\xF0\n"), Malformed::Escape),
            (format!("\\{d}  a\\xf\n"), Malformed::Escape),
        ] {
            assert_eq!(parse_line(line.as_bytes()), Err(why), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn every_path_survives(names in proptest::collection::vec(proptest::collection::vec(1u8.., 1..9), 1..4), seed: [u8; 32]) {
            let clean = |name: &Vec<u8>| !name.contains(&b'/') && name != b"." && name != b"..";
            prop_assume!(names.iter().all(clean));
            let path = names.join(&b'/');
            let mut lines = Lines::default();
            lines.file(Digest(seed), &path);
            let text = std::str::from_utf8(&lines.text).expect("a manifest is text");
            prop_assert_eq!(text.lines().count(), 1);
            prop_assert!(!text.trim_end_matches('\n').contains(['\n', '\r', char::REPLACEMENT_CHARACTER]));
            prop_assert_eq!(parse_line(text.as_bytes()), Ok(Line { digest: Digest(seed), path }));
        }

        #[test]
        fn no_bytes_panic(line: Vec<u8>) {
            let _ = parse_line(&line);
            let _ = Drafted::read(&line);
        }
    }
}
