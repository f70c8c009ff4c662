//! The rules of the house that a compiler does not hold: who may import whom, which crates are named where, where
//! unsafe code, printing and clocks live, how long a file may be, and what lies at the top level.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The ground floor: imported by all, imports only itself.
const GROUND: [&str; 13] = [
    "child", "device", "error", "ids", "key", "limits", "options", "pipe", "queue", "report", "stats", "storage", "sys",
];

/// Every other room with the rooms it may import beside the ground floor.
const IMPORTS: [(&str, &[&str]); 13] = [
    ("wire", &[]),
    ("archive", &[]),
    ("manifest", &[]),
    ("chunk", &["wire"]),
    ("flow", &["wire"]),
    ("source", &["archive", "chunk", "manifest", "wire"]),
    ("sink", &["archive", "chunk", "manifest", "wire"]),
    ("link", &["chunk", "flow", "wire"]),
    ("send", &["archive", "chunk", "flow", "link", "manifest", "source", "wire"]),
    ("read_back", &["manifest"]),
    ("recv", &["archive", "chunk", "flow", "link", "manifest", "read_back", "sink", "wire"]),
    ("verify", &["manifest", "read_back", "source"]),
    ("cli", &["recv", "send", "verify"]),
];

/// Crates that are named only in some rooms.
const CRATES: [(&str, &[&str]); 10] = [
    ("tar", &["archive"]),
    ("landlock", &["sink"]),
    ("ring", &["wire", "link"]),
    ("rustls", &["link"]),
    ("tokio", &["link", "send", "recv"]),
    ("socket2", &["link", "send", "recv"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("serde", &["cli"]),
    ("serde_json", &["cli"]),
];

/// The longest a source file may be, lines.
const LINES_MAX: usize = 900;

/// What may lie at the top level beside hidden files.
const TOP: [&str; 7] = ["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "scripts", "src", "tests"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file that git knows or would add; without git, every file outside `target`.
fn tracked() -> Vec<PathBuf> {
    let git = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    if let Ok(done) = git
        && done.status.success()
    {
        let names = done.stdout.split(|b| *b == 0).filter(|n| !n.is_empty());
        let paths = names.map(|n| PathBuf::from(String::from_utf8_lossy(n).into_owned()));
        return paths.filter(|p| root().join(p).exists()).collect();
    }
    let mut found = Vec::new();
    let mut left = vec![root().to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("a readable directory") {
            let path = entry.expect("a readable directory").path();
            let relative = path.strip_prefix(root()).expect("it lies inside").to_path_buf();
            if relative == Path::new("target") || relative == Path::new(".git") {
                continue;
            }
            if path.is_dir() { left.push(path) } else { found.push(relative) }
        }
    }
    found
}

/// One file of the library with what the rules are about.
struct Source {
    path: PathBuf,
    /// The top-level module it belongs to.
    room: String,
    /// The whole text.
    text: String,
    /// Its code without comments, literals and test modules.
    code: String,
}

fn sources() -> Vec<Source> {
    let mut all: Vec<Source> = tracked()
        .into_iter()
        .filter(|p| p.starts_with("src") && p.extension().is_some_and(|e| e == "rs"))
        .map(|path| {
            let text = fs::read_to_string(root().join(&path)).expect("a source file is text");
            let second = path.components().nth(1).expect("it lies in src").as_os_str().to_string_lossy().into_owned();
            let room = second.trim_end_matches(".rs").to_owned();
            Source { code: product_code(&text), room, text, path }
        })
        .collect();
    // A module that only tests compile has a file of its own.
    let only_tests: BTreeSet<PathBuf> = all.iter().flat_map(test_modules).collect();
    all.retain(|s| !only_tests.iter().any(|t| s.path.starts_with(t) || s.path == t.with_extension("rs")));
    assert!(all.len() > 15, "the rules were asked of {} files only", all.len());
    all
}

/// The paths, without `.rs`, of modules declared right after `#[cfg(test)]`.
fn test_modules(source: &Source) -> Vec<PathBuf> {
    let stem = source.path.file_stem().expect("a file has a name");
    let parent = source.path.parent().expect("it lies in src");
    let base = if stem == "mod" || stem == "lib" { parent.to_path_buf() } else { parent.join(stem) };
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let pairs = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    pairs.filter_map(|pair| Some(base.join(pair[1].split("mod ").nth(1)?.strip_suffix(';')?))).collect()
}

/// Code with comments and the insides of literals blanked, up to the file's test module.
fn product_code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    let bytes = &text.as_bytes()[..end];
    let mut out = Vec::with_capacity(end);
    let mut i = 0;
    while i < bytes.len() {
        let rest = &bytes[i..];
        if rest.starts_with(b"//") {
            i += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            i += text[i..end].find("*/").map_or(rest.len(), |n| n + 2);
        } else if rest[0] == b'"' {
            let mut n = 1;
            while n < rest.len() && rest[n] != b'"' {
                n += if rest[n] == b'\\' { 2 } else { 1 };
            }
            out.extend_from_slice(b"\"\"");
            i += n + 1;
        } else if rest.starts_with(b"'\"'") || rest.starts_with(b"'\\'") {
            i += rest[1..].iter().skip(1).position(|b| *b == b'\'').map_or(1, |n| n + 3);
        } else {
            out.push(rest[0]);
            i += 1;
        }
    }
    String::from_utf8(out).expect("text cut at ASCII stays text")
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Where `word` stands in `code` as a whole word.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = code[..*at].bytes().last();
        let after = code[at + word.len()..].bytes().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The modules that `crate::…` paths and groups in `code` name.
fn named_modules(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for at in words(code, "crate") {
        let Some(rest) = code[at + 5..].strip_prefix("::") else { continue };
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
            continue;
        };
        let mut depth = 0;
        let mut name = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    found.insert(std::mem::take(&mut name).trim().to_owned());
                }
                c if depth == 0 => name.push(c),
                _ => {}
            }
        }
        found.insert(name.trim().to_owned());
    }
    found
        .into_iter()
        .map(|n| n.split("::").next().unwrap_or_default().trim().to_owned())
        .filter(|n| !n.is_empty())
        .collect()
}

fn assert_none(wrong: Vec<String>, rule: &str) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

#[test]
fn imports_go_one_way() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| !["lib", "main"].contains(&s.room.as_str())) {
        let ground = GROUND.contains(&source.room.as_str());
        let allowed = IMPORTS.iter().find(|(room, _)| *room == source.room).map(|(_, allowed)| *allowed);
        if !ground && allowed.is_none() {
            wrong.push(format!("{}: no room of the house", source.path.display()));
        }
        for module in named_modules(&source.code) {
            // At the crate's root lie only the names that the public edge repeats.
            let edge = module.starts_with(char::is_uppercase);
            let below = GROUND.contains(&module.as_str()) || allowed.is_some_and(|a| a.contains(&module.as_str()));
            if !edge && module != source.room && !below {
                wrong.push(format!("{} imports {module}", source.path.display()));
            }
        }
    }
    assert_none(wrong, "imports go one way");
}

#[test]
fn crates_are_named_only_in_their_rooms() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (name, rooms) in CRATES.iter().filter(|(_, rooms)| !rooms.contains(&source.room.as_str())) {
            let named = words(&source.code, name).any(|at| {
                let before = source.code[..at].trim_end();
                let used = source.code[at + name.len()..].starts_with("::") && !before.ends_with("::");
                used || before.ends_with("use") || before.ends_with("extern crate")
            });
            if named {
                wrong.push(format!("{} names {name}, which belongs to {rooms:?}", source.path.display()));
            }
        }
    }
    assert_none(wrong, "crates are named only in their rooms");
}

#[test]
fn unsafe_code_is_only_in_sys() {
    let all = sources();
    let unsafe_outside = all.iter().filter(|s| s.room != "sys" && words(&s.text, "unsafe_code").next().is_some());
    let mut wrong: Vec<String> = unsafe_outside.map(|s| format!("{} allows it", s.path.display())).collect();
    for source in all.iter().filter(|s| s.room != "sys" && words(&s.code, "unsafe").next().is_some()) {
        wrong.push(source.path.display().to_string());
    }
    assert_none(wrong, "unsafe code is only in sys");
}

#[test]
fn only_cli_prints() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|s| s.room != "cli") {
        for word in ["print", "println", "eprint", "eprintln", "dbg"] {
            if words(&source.code, word).any(|at| source.code[at + word.len()..].starts_with('!')) {
                wrong.push(format!("{} uses {word}!", source.path.display()));
            }
        }
        if source.room != "sink" && words(&source.code, "stdout").any(|at| source.code[at + 6..].starts_with("()")) {
            wrong.push(format!("{} takes standard output", source.path.display()));
        }
    }
    assert_none(wrong, "only cli prints");
}

#[test]
fn clocks_are_read_only_where_the_world_is() {
    let rooms = ["link", "send", "recv", "cli", "stats"];
    let reads =
        |code: &str| ["Instant::now", "SystemTime::now"].iter().any(|clock| words(code, clock).next().is_some());
    let wrong = sources().into_iter().filter(|s| !rooms.contains(&s.room.as_str()) && reads(&s.code));
    assert_none(
        wrong.map(|s| s.path.display().to_string()).collect(),
        "clocks are read only in link, send, recv, cli, stats",
    );
}

#[test]
fn every_file_fits_in_one_head() {
    let mut wrong = Vec::new();
    for path in tracked().iter().filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        let lines = fs::read_to_string(root().join(path)).expect("a source file is text").lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert_none(wrong, "a file has at most 900 lines");
}

#[test]
fn nothing_is_left_open() {
    // In pieces, so that this file passes its own rule.
    let marks = [("to", "do!("), ("unimple", "mented!("), ("FIX", "ME"), ("#[ign", "ore"), ("allow(dead", "_code")];
    let mut wrong = Vec::new();
    for path in tracked().iter().filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        let text = fs::read_to_string(root().join(path)).expect("a source file is text");
        for (a, b) in marks {
            if text.contains(&format!("{a}{b}")) {
                wrong.push(format!("{}: {a}{b}", path.display()));
            }
        }
        // Both channel crates have types of these names.
        for kind in ["struct", "enum", "trait", "type"] {
            for name in ["Sender", "Receiver"] {
                if words(&product_code(&text), &format!("{kind} {name}")).next().is_some() {
                    wrong.push(format!("{}: {kind} {name}", path.display()));
                }
            }
        }
    }
    assert_none(wrong, "nothing is left open");
}

#[test]
fn the_top_level_is_what_it_should_be() {
    let top: BTreeSet<String> = tracked()
        .iter()
        .filter_map(|p| p.components().next())
        .map(|c| c.as_os_str().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(top, TOP.map(str::to_owned).into());
}

#[test]
fn nothing_names_one_machine_or_how_the_work_was_done() {
    // In pieces, so that this file passes its own rule.
    let words = [
        ("/wo", "rk/"),
        ("shar", "ed/lab"),
        ("DESI", "GN.md"),
        ("STY", "LE.md"),
        ("CAS", "ES.md"),
        ("fau", "lts.md"),
        ("/home", "/user"),
        (".py", "env"),
        ("crates.io-", "mirror"),
        ("lang", "uage model"),
        ("Clau", "de"),
        ("Anth", "ropic"),
    ];
    let mut wrong = Vec::new();
    for path in tracked() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (a, b) in words {
            let word = format!("{a}{b}");
            if text.contains(&word) || path.to_string_lossy().contains(&word) {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
        // Numbers of a list that is not in the repository: a letter and three digits.
        let case =
            |word: &str| word.len() == 4 && word.starts_with('B') && word[1..].bytes().all(|b| b.is_ascii_digit());
        if let Some(word) = text.split(|c: char| !c.is_alphanumeric()).find(|w| case(w)) {
            wrong.push(format!("{}: {word}", path.display()));
        }
    }
    assert_none(wrong, "the repository stands alone");
}

#[test]
fn the_rules_see_what_they_are_about() {
    assert_eq!(named_modules("use crate::{wire::{Ack, Finish}, chunk, flow::SendFlow};").len(), 3);
    assert_eq!(named_modules("let x = crate::link::dial(); use crate::Error;").len(), 2);
    assert_eq!(words("tokio::spawn; my_tokio::x; tokio2", "tokio").count(), 1);
    let code = product_code(
        "let a = \"crate::x\"; // crate::y\nlet q = '\"'; crate::z();\n#[cfg(test)]\nmod tests { crate::w() }",
    );
    assert_eq!(named_modules(&code).into_iter().collect::<Vec<_>>(), ["z"]);
}

/// Licences that this program may be built on. Of a choice one is enough, of several together all must be here.
const LICENCES: [&str; 10] = [
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "MIT-0",
    "bzip2-1.0.6",
];

/// Older versions of crates that may be there beside the newer: only macros use the first, while building; ring has the
/// second, and what builds C the newer; the third is for Windows, where this is not built.
const OLDER: [(&str, &str); 3] = [("syn", "2."), ("getrandom", "0.2."), ("windows-sys", "0.52.")];

#[test]
fn crates_come_from_one_registry_once_each_and_under_licences_that_allow_it() {
    let cargo = |args: &[&str]| {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let asked = Command::new(cargo).args(args).arg("--locked").current_dir(root()).output().expect("cargo runs");
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8(asked.stdout).expect("cargo writes text")
    };
    let metadata = cargo(&["metadata", "--format-version", "1"]);
    let known: serde_json::Value = serde_json::from_str(&metadata).expect("cargo writes JSON");
    // A lock file names crates as well that a crate could use and that are built for nobody.
    let tree = cargo(&["tree", "--target", "all", "--edges", "all", "--prefix", "none", "--format", "{p}"]);
    let built: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once(" v"))
        .map(|(n, v)| (n, v.split(' ').next().unwrap_or(v)))
        .collect();
    let packages = known["packages"].as_array().expect("a list of packages");
    assert!(built.len() > 20, "the rule was asked of {} crates only", built.len());
    let (mut wrong, mut names, mut sources) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let version = package["version"].as_str().expect("a version");
        if !built.contains(&(name, version)) {
            continue;
        }
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_allowed(licence) {
            wrong.push(format!("{name}: licence {licence}"));
        }
        match package["source"].as_str() {
            None if name == env!("CARGO_PKG_NAME") => {}
            Some(source) if source.starts_with("registry+") => drop(sources.insert(source)),
            source => wrong.push(format!("{name}: from {source:?}")),
        }
        let may_be_beside = OLDER.iter().any(|(older, begins)| name == *older && version.starts_with(begins));
        if !may_be_beside && !names.insert(name) {
            wrong.push(format!("{name}: in two versions"));
        }
    }
    assert_none(wrong, "crates come from the registry, once each, under licences that allow it");
    assert_eq!(sources.len(), 1, "{sources:?}");
}

fn is_allowed(licence: &str) -> bool {
    let plain = licence.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| part.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn a_choice_of_licences_needs_one_and_several_together_need_all() {
    assert!(is_allowed("MIT OR GPL-3.0") && is_allowed("MIT/Apache-2.0") && is_allowed("(MIT OR X) AND Unicode-3.0"));
    assert!(!is_allowed("MIT AND GPL-3.0") && !is_allowed("GPL-3.0 OR LGPL-2.1") && !is_allowed("none"));
}
