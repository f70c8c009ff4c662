//! The key that both machines have: 256 random bits in a file of one line.
//!
//! ```text
//! blast-key-1:HHHH…HHHH:CCCCCCCC
//! ```
//!
//! 64 hexadecimal digits, and 8 of a check that finds a line which was cut or mistyped. Its bytes live in a page of
//! their own that no core file has, are shown by nothing, and are wiped when they are done with; once there is a key
//! this process writes no core file.

use std::fmt::{self, Write as _};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

use crate::sys::SecretPage;

const PREFIX: &str = "blast-key-1:";
const CHECK: &str = "blast check of a key, version 1";
const KEY_DIGITS: usize = 64;
const CHECK_DIGITS: usize = 8;
const LINE_LEN: usize = PREFIX.len() + KEY_DIGITS + 1 + CHECK_DIGITS;

/// The key.
pub struct Key(SecretPage);

/// Why a file gives no key. Nothing of its content is in here.
#[derive(thiserror::Error, Debug)]
pub enum KeyError {
    /// The file cannot be opened, read or made.
    #[error("{}", plain(.0))]
    Io(#[from] io::Error),
    /// A directory, device or pipe.
    #[error("it is no regular file")]
    NotRegular,
    /// Whoever owns the file can change the key.
    #[error("it belongs to user {0}, and must be yours or root's: chown it")]
    Owner(u32),
    /// Others have a right to the file.
    #[error("others may use it (mode {0:03o}), and only its owner may: chmod 600")]
    Mode(u32),
    /// Not what `blast keygen` writes.
    #[error("it is no key made by 'blast keygen'")]
    NoKey,
    /// The beginning of one.
    #[error("it is cut short: copy it again")]
    Cut,
    /// One that does not fit its check.
    #[error("its check does not fit: copy it again")]
    Check,
    /// Made by a later version.
    #[error("it is a key of another version of blast")]
    Version,
}

impl KeyError {
    /// Whether the file holds a key that others could know or choose.
    pub fn is_unsafe(&self) -> bool {
        matches!(self, KeyError::Owner(_) | KeyError::Mode(_))
    }

    /// Whether there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, KeyError::Io(e) if e.kind() == io::ErrorKind::NotFound)
    }
}

/// The system's words without the number.
fn plain(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// A new one from the system's random source.
    pub fn generate() -> io::Result<Key> {
        Key::filled(|bytes| {
            let n = getrandom(&mut *bytes, GetRandomFlags::empty())?;
            // the kernel gives requests of up to 256 bytes whole
            assert_eq!(n, bytes.len());
            Ok(())
        })
    }

    /// The one in that file, which only we or root may change and only its owner may read.
    pub fn load(path: &Path) -> Result<Key, KeyError> {
        // a pipe does not hold us up, and turns out to be none
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(KeyError::NotRegular);
        }
        if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(KeyError::Owner(meta.uid()));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(KeyError::Mode(meta.mode() & 0o777));
        }
        let mut text = Zeroizing::new([0; LINE_LEN + 2]);
        let len = read_up_to(&mut file, &mut text[..])?;
        Key::parse(&text[..len])
    }

    /// Make a key and a file for it, and the last directory above it if it is not there. What is there stays.
    pub fn create(path: &Path) -> Result<(), KeyError> {
        let key = Key::generate()?;
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let written = file.write_all(&key.line()).and_then(|()| file.sync_all());
        // half a key is of no use, and would be in the way
        written.inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(())
    }

    /// The 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        self.0.bytes()
    }

    fn filled(fill: impl FnOnce(&mut [u8; 32]) -> io::Result<()>) -> io::Result<Key> {
        let Rlimit { maximum, .. } = getrlimit(Resource::Core);
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum })?;
        let mut page = SecretPage::new()?;
        fill(page.bytes_mut())?;
        Ok(Key(page))
    }

    /// The file's text.
    fn line(&self) -> Zeroizing<Vec<u8>> {
        let mut line = Zeroizing::new(String::with_capacity(LINE_LEN + 1));
        line.push_str(PREFIX);
        self.bytes().iter().for_each(|b| write!(line, "{b:02x}").expect("text takes text"));
        line.push(':');
        check(self.bytes()).iter().for_each(|b| write!(line, "{b:02x}").expect("text takes text"));
        line.push('\n');
        Zeroizing::new(line.as_bytes().to_vec())
    }

    /// Exactly one line as [`Key::create`] writes it; the line's end may be missing.
    fn parse(text: &[u8]) -> Result<Key, KeyError> {
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(rest) = line.strip_prefix(PREFIX.as_bytes()) else {
            return Err(match line {
                _ if line.starts_with(b"blast-key-") && line.len() > PREFIX.len() => KeyError::Version,
                [_, ..] if PREFIX.as_bytes().starts_with(line) => KeyError::Cut,
                _ => KeyError::NoKey,
            });
        };
        if !rest.iter().all(|b| b.is_ascii_hexdigit() || *b == b':') || rest.len() > LINE_LEN - PREFIX.len() {
            return Err(KeyError::NoKey);
        }
        if rest.len() < LINE_LEN - PREFIX.len() {
            return Err(KeyError::Cut);
        }
        let (digits, said) = (&rest[..KEY_DIGITS], &rest[KEY_DIGITS + 1..]);
        if rest[KEY_DIGITS] != b':' || digits.contains(&b':') || said.contains(&b':') {
            return Err(KeyError::NoKey);
        }
        let key = Key::filled(|bytes| {
            decode(digits, bytes);
            Ok(())
        })?;
        let mut checked = [0; CHECK_DIGITS / 2];
        decode(said, &mut checked);
        if checked != check(key.bytes()) { Err(KeyError::Check) } else { Ok(key) }
    }
}

/// As much as there is, and as fits.
fn read_up_to(file: &mut File, into: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < into.len() {
        match file.read(&mut into[len..])? {
            0 => break,
            n => len += n,
        }
    }
    Ok(len)
}

fn check(key: &[u8; 32]) -> [u8; CHECK_DIGITS / 2] {
    *blake3::derive_key(CHECK, key).first_chunk().expect("32 bytes have 4")
}

/// Two hexadecimal digits for each byte.
fn decode(digits: &[u8], bytes: &mut [u8]) {
    let value = |digit: u8| char::from(digit).to_digit(16).expect("looked at before") as u8;
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0]) << 4 | value(pair[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn said(path: &Path) -> String {
        Key::load(path).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_created_is_loaded_private_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/key");
        Key::create(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&dir.path().join("a/b"))), (0o600, 0o700));
        let text = fs::read(&path).unwrap();
        assert!(text.starts_with(b"blast-key-1:") && text.len() == LINE_LEN + 1);
        let key = Key::load(&path).unwrap();
        assert_eq!(*key.line(), text);
        assert_eq!(format!("{key:?}"), "Key");
        assert!(matches!(Key::create(&path), Err(KeyError::Io(e)) if e.kind() == io::ErrorKind::AlreadyExists));
        assert_eq!(fs::read(&path).unwrap(), text);
        let other = dir.path().join("other");
        Key::create(&other).unwrap();
        assert_ne!(fs::read(&other).unwrap(), text);
        assert_eq!(getrlimit(Resource::Core).current, Some(0), "no core file has it");
    }

    #[test]
    fn every_wrong_file_is_named_for_what_is_wrong_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        Key::create(&path).unwrap();
        let text = fs::read(&path).unwrap();
        let with = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            match Key::load(&path) {
                Ok(_) => "a key".to_owned(),
                Err(e) => e.to_string(),
            }
        };
        for len in 1..LINE_LEN {
            assert_eq!(with(&text[..len]), KeyError::Cut.to_string(), "{len}");
        }
        assert_eq!(with(&text[..LINE_LEN]), "a key", "an editor may drop the line's end");
        assert_eq!(with(&[&text[..LINE_LEN], b"\r\n"].concat()), "a key", "or write another");
        assert_eq!(with(&text.to_ascii_uppercase()), KeyError::NoKey.to_string());
        for more in [&b" "[..], b"\n", b"0", b"\0"] {
            assert_eq!(with(&[&text[..], more].concat()), KeyError::NoKey.to_string(), "{more:?}");
        }
        for (at, byte) in text[..LINE_LEN].iter().enumerate() {
            let mut changed = text.clone();
            changed[at] = if *byte == b'0' { b'1' } else { b'0' };
            let said = with(&changed);
            assert!(said != "a key" && !said.contains("cut"), "{at}: {said}");
        }
        for nothing in [&b""[..], b"\n", b"ssh-ed25519 AAAA", &[0xff; 100], &[b'0'; 1000]] {
            assert_eq!(with(nothing), KeyError::NoKey.to_string());
        }
        assert_eq!(with(b"blast-key-2:00"), KeyError::Version.to_string());
        fs::write(&path, &text).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o601, 0o777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(said(&path), format!("others may use it (mode {mode:03o}), and only its owner may: chmod 600"));
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        Key::load(&dir.path().join("link")).unwrap();
        assert_eq!(said(dir.path()), KeyError::NotRegular.to_string());
        assert!(Key::load(&dir.path().join("none")).unwrap_err().is_missing());
        rustix::fs::mkfifoat(rustix::fs::CWD, dir.path().join("pipe"), 0o600.into()).unwrap();
        assert_eq!(said(&dir.path().join("pipe")), KeyError::NotRegular.to_string());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert_eq!(said(&path), "it belongs to user 12345, and must be yours or root's: chown it");
            assert!(Key::load(&path).unwrap_err().is_unsafe());
        } else {
            eprintln!("SKIPPED: a key file of somebody else: this needs root");
        }
    }
}
