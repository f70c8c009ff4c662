//! Where the key is: the file named on the command line, or by `BLAST_KEY_FILE`, or the usual one. Only the last may
//! be missing; a key that is wanted and cannot be used is never done without.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, escape};
use crate::key::{Key, KeyError};

/// In the home directory.
const USUAL: &str = ".config/blast/key";

/// In place of a file: no key, although there may be one.
const NONE: &str = "none";

/// What `--key-file` says.
#[derive(PartialEq, Eq, Debug)]
pub struct KeyFile(pub Option<PathBuf>);

impl KeyFile {
    /// The key, if there is one.
    pub fn load(&self) -> Result<Option<Arc<Key>>, Error> {
        self.load_with(|name| std::env::var_os(name))
    }

    fn load_with(&self, environment: impl Fn(&str) -> Option<OsString>) -> Result<Option<Arc<Key>>, Error> {
        let named = match (&self.0, environment("BLAST_KEY_FILE")) {
            (Some(typed), _) => Some((typed.clone(), "--key-file")),
            (None, Some(set)) => Some((set.into(), "BLAST_KEY_FILE")),
            (None, None) => None,
        };
        match named {
            Some((path, _)) if path == Path::new(NONE) => Ok(None),
            Some((path, place)) if path.as_os_str().is_empty() => Err(Error::Usage(format!("{place} is empty"))),
            Some((path, _)) => Key::load(&path).map(|key| Some(Arc::new(key))).map_err(|e| unusable(&path, &e)),
            None => {
                match environment("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(USUAL)) {
                    Some(usual) => match Key::load(&usual) {
                        Ok(key) => Ok(Some(Arc::new(key))),
                        Err(e) if e.is_missing() => Ok(None),
                        Err(e) => Err(unusable(&usual, &e)),
                    },
                    None => Ok(None),
                }
            }
        }
    }
}

fn unusable(path: &Path, e: &KeyError) -> Error {
    let text = format!("key file {}: {e}", shown(path));
    if e.is_unsafe() { Error::Refused(text) } else { Error::Usage(text) }
}

fn shown(path: &Path) -> String {
    escape(path.as_os_str().as_bytes())
}

/// Make a key; what to do with it.
pub fn generate(path: Option<PathBuf>) -> Result<String, Error> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let is_usual = path.is_none();
    let path = path.or_else(|| home.map(|home| Path::new(&home).join(USUAL)));
    let path = path.ok_or_else(|| Error::Usage("HOME is not set: say where the key should go".to_owned()))?;
    match Key::create(&path) {
        Ok(()) => Ok(advice(&path, is_usual)),
        Err(KeyError::Io(e)) if e.kind() == std::io::ErrorKind::AlreadyExists => Err(Error::Refused(format!(
            "{} is there already, and no key is ever replaced: copy it to the other machine, or name another file",
            shown(&path)
        ))),
        Err(KeyError::Io(source)) => {
            Err(Error::Destination { what: format!("cannot make key file {}", shown(&path)), source })
        }
        Err(e) => Err(unusable(&path, &e)),
    }
}

fn advice(path: &Path, is_usual: bool) -> String {
    let path = shown(path);
    let here = if is_usual { "by itself".to_owned() } else { format!("with --key-file {path}") };
    format!(
        "a new key is in {path}; the other machine needs the same file:
    ssh HOST mkdir -p -m 700 .config/blast
    scp -p {path} HOST:.config/blast/key
There it is used by itself, here {here}. Whoever can read it can take your place: show it to nobody.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_command_line_comes_before_the_environment_and_that_before_the_usual_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["typed", "set", USUAL] {
            Key::create(&at(name)).unwrap();
        }
        let found = |typed: Option<&str>, set: Option<&str>, home: Option<&str>| {
            let typed = KeyFile(typed.map(|name| if name == NONE { name.into() } else { at(name) }));
            let environment = |name: &str| match name {
                "HOME" => home.map(|home| at(home).into_os_string()),
                _ => set.map(|name| if name == NONE { name.into() } else { at(name).into_os_string() }),
            };
            typed.load_with(environment).map(|key| key.map(|key| *key.bytes()))
        };
        let key = |name: &str| Some(*Key::load(&at(name)).unwrap().bytes());
        let home = Some("");
        assert_eq!(found(Some("typed"), Some("set"), home).unwrap(), key("typed"));
        assert_eq!(found(None, Some("set"), home).unwrap(), key("set"));
        assert_eq!(found(None, None, home).unwrap(), key(USUAL));
        assert_eq!(found(None, None, None).unwrap(), None);
        assert_eq!(found(None, None, Some("nobody")).unwrap(), None, "only this may be missing");
        assert_eq!(found(Some(NONE), Some("set"), home).unwrap(), None);
        assert_eq!(found(None, Some(NONE), home).unwrap(), None);
        for (typed, set) in [(Some("missing"), None), (None, Some("missing"))] {
            let e = found(typed, set, home).unwrap_err();
            assert_eq!(e.exit_code() as u8, 2, "{e}");
            assert!(e.to_string().contains("missing: No such file"), "{e}");
        }
        let e = KeyFile(None).load_with(|name| (name != "HOME").then(OsString::new)).unwrap_err();
        assert_eq!(e.to_string(), "BLAST_KEY_FILE is empty");
        fs::write(at(USUAL), "garbage").unwrap();
        assert!(found(None, None, home).unwrap_err().to_string().contains("no key made by"));
    }
}
