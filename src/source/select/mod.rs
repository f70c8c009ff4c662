//! Which of a tree's entries are sent: patterns, one file system only, no caches, names from a list.
//!
//! It is asked while a directory is listed, before anything in it is looked at, so what is left out costs no system
//! call and an excluded directory is not even opened. Where nothing was asked for, nothing is done for any entry.

mod list;
mod pattern;
mod rules;

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

use self::list::List;
pub(super) use self::list::Wanted;
use self::rules::{Rule, Rules};
use crate::error::{Error, escape};
use crate::options::{FilesFrom, RuleOption, Select};

/// What a directory that holds it with this beginning says of itself: all else in it can be made again.
pub(super) const CACHE_TAG: &std::ffi::CStr = c"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8; 43] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// What of the sources is sent.
pub struct Selection {
    rules: Rules,
    list: Option<List>,
    /// What of the only source the list wants.
    pub(super) root: Wanted,
    pub(super) one_file_system: bool,
    pub(super) exclude_caches: bool,
}

impl Selection {
    /// Everything.
    pub fn everything() -> Selection {
        Selection { rules: Rules::none(), list: None, root: Wanted::ALL, one_file_system: false, exclude_caches: false }
    }

    /// Read what was asked for, with its files. `-` is standard input, which only one of them can be.
    pub fn open(select: &Select) -> Result<Selection, Error> {
        let mut stdin_taken = false;
        let mut text_of = |path: &Path| read_file(path, &mut stdin_taken);
        let (rules, places) = gather(&select.rules, &mut text_of)?;
        let rules = Rules::new(rules).map_err(|(at, why)| {
            let (place, text) = &places[at];
            Error::Usage(format!("{place}'{}': {why}", escape(text)))
        })?;
        let (list, root) = match &select.files_from {
            None => (None, Wanted::ALL),
            Some(FilesFrom { file, nul }) => {
                let text = text_of(file)?;
                let (list, root) = List::parse(&text, if *nul { 0 } else { b'\n' }).map_err(|name| {
                    let why = if name.contains(&0) {
                        "holds a NUL: names that end in one need -0"
                    } else {
                        "has a component '..': names are below SRC"
                    };
                    Error::Usage(format!("{}: '{}' {why}", shown(file), escape(&name)))
                })?;
                (Some(list), root)
            }
        };
        let (one_file_system, exclude_caches) = (select.one_file_system, select.exclude_caches);
        Ok(Selection { rules, list, root, one_file_system, exclude_caches })
    }

    /// Whether entries have to be asked about one by one.
    pub(super) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The rule that leaves an entry out, if one does; as [`Rules::excluding`].
    pub(super) fn excluding(&self, path: &[u8], name_at: usize, is_dir: impl FnMut() -> bool) -> Option<usize> {
        self.rules.excluding(path, name_at, is_dir)
    }

    /// The text of a rule.
    pub(super) fn rule_text(&self, number: usize) -> &[u8] {
        &self.rules.rule(number).text
    }

    /// The names in a directory that the list wants, and what of each.
    pub(super) fn named_in<'a>(&'a self, dir: &Wanted) -> impl Iterator<Item = (&'a [u8], Wanted)> {
        self.list.iter().flat_map(|list| list.children(dir))
    }

    /// What the list names below something, as paths from there.
    pub(super) fn paths_below(&self, wanted: &Wanted) -> Vec<Vec<u8>> {
        self.list.iter().flat_map(|list| list.paths_below(wanted)).collect()
    }
}

/// Whether a directory is tagged as a cache; it was seen to hold a name like the tag's.
pub(super) fn is_cache(dir: impl AsFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(tag) = rustix::fs::openat(dir, CACHE_TAG, flags, Mode::empty()) else { return false };
    let is_file = rustix::fs::fstat(&tag).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
    let mut start = [0; CACHE_SIGNATURE.len()];
    is_file && std::fs::File::from(tag).read_exact(&mut start).is_ok() && start == *CACHE_SIGNATURE
}

/// A rule's place for an error's text, and its own.
type Place = (String, Vec<u8>);

fn gather(
    asked: &[RuleOption],
    text_of: &mut impl FnMut(&Path) -> Result<Vec<u8>, Error>,
) -> Result<(Vec<Rule>, Vec<Place>), Error> {
    let (mut rules, mut places) = (Vec::new(), Vec::new());
    for option in asked {
        match option {
            RuleOption::Exclude(text) => {
                rules.push(Rule { include: false, text: text.clone() });
                places.push(("--exclude ".to_owned(), text.clone()));
            }
            RuleOption::Include(text) => {
                rules.push(Rule { include: true, text: text.clone() });
                places.push(("--include ".to_owned(), text.clone()));
            }
            RuleOption::ExcludeFrom(path) => {
                let text = text_of(path)?;
                for (at, line) in text.split(|b| *b == b'\n').enumerate() {
                    let place = format!("{} line {}: ", shown(path), at + 1);
                    let line = line.strip_suffix(b"\r").unwrap_or(line);
                    let (include, text) = match line {
                        [] | [b'#' | b';', ..] => continue,
                        [b'!', ..] => {
                            return Err(Error::Usage(format!(
                                "{place}'{}': the first line that matches decides here; what is to be sent goes before \
                                 as '+ PATTERN' (a ! that is meant itself is \\!)",
                                escape(line)
                            )));
                        }
                        [b'+', b' ', text @ ..] => (true, text),
                        [b'-', b' ', text @ ..] => (false, text),
                        text => (false, text),
                    };
                    rules.push(Rule { include, text: text.to_vec() });
                    places.push((place, line.to_vec()));
                }
            }
        }
    }
    Ok((rules, places))
}

fn read_file(path: &Path, stdin_taken: &mut bool) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    let read = if path.as_os_str().as_bytes() == b"-" {
        if std::mem::replace(stdin_taken, true) {
            return Err(Error::Usage("standard input (-) can only be one of the files".into()));
        }
        std::io::stdin().read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_end(&mut text))
    };
    read.map_err(|source| Error::Source { path: path.to_owned(), source })?;
    Ok(text)
}

fn shown(path: &Path) -> String {
    match path.as_os_str().as_bytes() {
        b"-" => "standard input".to_owned(),
        path => escape(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &str) -> Result<Selection, Error> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list");
        std::fs::write(&file, lines).unwrap();
        Selection::open(&Select { rules: vec![RuleOption::ExcludeFrom(file)], ..Select::default() })
    }

    #[test]
    fn a_file_of_patterns_has_comments_and_both_signs() {
        let rules = of("# a\n; b\n\n+ *.keep\r\n- *.o\r\n*.tmp\n\\#x").unwrap();
        let left_out = |name: &str| rules.excluding(name.as_bytes(), 0, || false).map(|rule| rules.rule_text(rule));
        assert_eq!(left_out("a.o"), Some(&b"*.o"[..]));
        assert_eq!(left_out("a.tmp"), Some(&b"*.tmp"[..]));
        assert_eq!(left_out("#x"), Some(&b"\\#x"[..]));
        assert_eq!(left_out("a.o.keep"), None);
    }

    #[test]
    fn what_cannot_be_meant_is_named_with_its_line() {
        for (lines, says) in [("a\n[x\n", "line 2: '[x': a [ has no ]"), ("!a", "line 1: '!a': the first line")] {
            let said = of(lines).err().unwrap().to_string();
            assert!(said.contains(says), "{said}");
        }
        let gone = Select { rules: vec![RuleOption::ExcludeFrom("/no/such/file".into())], ..Select::default() };
        assert!(matches!(Selection::open(&gone), Err(Error::Source { .. })));
    }
}
