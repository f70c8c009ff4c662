//! What is chosen is sent, exactly; what is not is neither opened nor looked at.

use std::ffi::OsStr;

use super::*;
use crate::options::{FilesFrom, RuleOption, Select};
use crate::report::{Omitted, OmittedKind};

/// Send what `select` wants of a tree; also what it left out.
fn send_selected(path: &Path, select: &Select) -> (Sent, Omitted) {
    let tree = open_tree(&[path.to_path_buf()]).unwrap().selected(Selection::open(select).unwrap()).unwrap();
    let (running, notes, stats) = begin(tree, Layout::Archive);
    (drain(running, notes.clone(), stats), notes.omitted())
}

/// Rules as typed one after the other, `+` before what is included.
fn rules(words: &[&[u8]]) -> Select {
    let rule = |word: &&[u8]| match word.strip_prefix(b"+") {
        Some(text) => RuleOption::Include(text.to_vec()),
        None => RuleOption::Exclude(word.to_vec()),
    };
    Select { rules: words.iter().map(rule).collect(), ..Select::default() }
}

fn exclude(words: &[&str]) -> Select {
    rules(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

/// A list of names in a file that stays as long as the process.
fn named(names: &[u8], nul: bool) -> Select {
    let (_, file) = tempfile::NamedTempFile::with_prefix("names").unwrap().keep().unwrap();
    std::fs::write(&file, names).unwrap();
    Select { files_from: Some(FilesFrom { file, nul }), ..Select::default() }
}

fn selected(path: &Path, select: &Select) -> (Vec<String>, Sent) {
    let (sent, _) = send_selected(path, select);
    if let Some(FilesFrom { file, .. }) = &select.files_from {
        std::fs::remove_file(file).unwrap();
    }
    (sent.paths(), sent)
}

#[test]
fn what_patterns_leave_out_is_not_looked_at() {
    let src = tree();
    for name in ["a.o", "keep.c", "d/a.o", "d/b.c", "cache/1", "cache/deep/2", "d/cache/3", "tmp", "d/tmp/4"] {
        mkdir(src.path(), Path::new(name).parent().unwrap().to_str().unwrap());
        write(src.path(), name, name.as_bytes());
    }
    let (sent, omitted) = send_selected(src.path(), &exclude(&["*.o", "cache/", "/tmp"]));
    assert_eq!(sent.paths(), ["", "d", "d/b.c", "d/tmp", "d/tmp/4", "keep.c"]);
    assert_eq!(sent.noted(), []);
    assert_eq!(sent.stats.entries_found.load(Relaxed), 6, "what is left out was never looked at");
    let excluded = omitted.of(OmittedKind::Excluded);
    assert_eq!((excluded.count, &excluded.first[..]), (5, &b"a.o"[..]));
    let (sent, _) = send_selected(src.path(), &exclude(&["+*/", "+*.c", "*"]));
    assert_eq!(sent.paths(), ["", "cache", "cache/deep", "d", "d/b.c", "d/cache", "d/tmp", "keep.c"]);
}

#[test]
fn names_that_are_not_text_are_left_out_by_their_bytes() {
    let src = tree();
    for name in [&b"caf\xe9"[..], "caf\u{e9}".as_bytes(), b"\xff\n", b"z"] {
        std::fs::write(src.path().join(OsStr::from_bytes(name)), name).unwrap();
    }
    let (sent, omitted) = send_selected(src.path(), &rules(&[b"caf\xe9", b"\xff?"]));
    assert_eq!(sent.paths(), ["", "caf\u{e9}", "z"]);
    assert_eq!(omitted.of(OmittedKind::Excluded).count, 2);
}

#[test]
fn an_excluded_directory_that_nobody_could_read_is_no_loss() {
    let src = tree();
    mkdir(src.path(), "closed");
    write(src.path(), "f", b"f");
    // Gone between its listing and its turn would be a loss as well, were it looked for.
    let select = exclude(&["closed"]);
    let dirs = Arc::new(dirs::Dirs::new());
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let Named::Roots(roots) = open_tree(&[src.path().to_path_buf()]).unwrap().named else { unreachable!() };
    let mut walk =
        Walk::new(roots, Arc::new(Selection::open(&select).unwrap()), dirs, asker(), stats, notes.clone(), 0);
    assert_eq!(walk.step().unwrap().path, b"");
    std::fs::remove_dir(src.path().join("closed")).unwrap();
    assert_eq!(walk.step().unwrap().path, b"f");
    assert!(walk.step().is_none());
    assert!(notes.is_empty());
}

#[test]
fn a_link_whose_first_name_is_excluded_carries_the_content_under_the_next() {
    let src = tree();
    let large = noise(1, 2 * CHUNK_LEN + 1);
    write(src.path(), "a skip", b"shared");
    write(src.path(), "b skip", &large);
    for (first, names) in [("a skip", ["c", "z skip", "z"]), ("b skip", ["d", "y skip", "y"])] {
        for name in names {
            std::fs::hard_link(src.path().join(first), src.path().join(name)).unwrap();
        }
    }
    let (sent, _) = send_selected(src.path(), &exclude(&["* skip"]));
    assert_eq!(sent.paths(), ["", "c", "d", "y", "z"]);
    assert_eq!(sent.file("c").unwrap(), b"shared");
    assert!(sent.file("d").unwrap() == large);
    assert_eq!(sent.entry("z").kind, EntryKind::Hardlink { target: b"c".to_vec() });
    assert_eq!(sent.entry("y").kind, EntryKind::Hardlink { target: b"d".to_vec() });
    assert_eq!(sent.noted(), []);
    untar(&sent.stream());
}

#[test]
fn several_sources_obey_patterns_by_their_own_names() {
    let src = tree();
    for name in ["a", "b.log", "c/b.log", "c/d"] {
        mkdir(src.path(), Path::new(name).parent().unwrap().to_str().unwrap());
        write(src.path(), name, b"x");
    }
    let paths = ["a", "b.log", "c"].map(|name| src.path().join(name));
    let selection = |words: &[&str]| Selection::open(&exclude(words)).unwrap();
    for (words, right) in [(&["*.log"][..], &["a", "c", "c/d"][..]), (&["/c/d", "/b.log"], &["a", "c", "c/b.log"])] {
        let tree = open_tree(&paths).unwrap().selected(selection(words)).unwrap();
        let (running, notes, stats) = begin(tree, Layout::Archive);
        assert_eq!(drain(running, notes, stats).paths(), right);
    }
}

#[test]
fn of_a_tagged_cache_only_the_tag_is_sent() {
    const SIGNATURE: &str = "Signature: 8a477f597d28d172789f06886806bc55";
    let src = tree();
    for (dir, tag) in [("cache", SIGNATURE), ("longer", &format!("{SIGNATURE}\n# made by")), ("wrong", "Signature: 8a")]
    {
        mkdir(src.path(), &format!("{dir}/below"));
        write(src.path(), &format!("{dir}/CACHEDIR.TAG"), tag.as_bytes());
        write(src.path(), &format!("{dir}/0"), b"0");
        write(src.path(), &format!("{dir}/below/f"), b"f");
    }
    mkdir(src.path(), "link");
    std::os::unix::fs::symlink("../cache/CACHEDIR.TAG", src.path().join("link/CACHEDIR.TAG")).unwrap();
    write(src.path(), "link/f", b"f");
    let (sent, omitted) = send_selected(src.path(), &Select { exclude_caches: true, ..Select::default() });
    let right = [
        "",
        "cache",
        "cache/CACHEDIR.TAG",
        "link",
        "link/CACHEDIR.TAG",
        "link/f",
        "longer",
        "longer/CACHEDIR.TAG",
        "wrong",
        "wrong/0",
        "wrong/CACHEDIR.TAG",
        "wrong/below",
        "wrong/below/f",
    ];
    assert_eq!(sent.paths(), right);
    let caches = omitted.of(OmittedKind::Cache);
    assert_eq!((caches.count, &caches.first[..]), (2, &b"cache"[..]));
    let mut tar = Command::new("tar");
    tar.args(["--exclude-caches", "--sort=name", "--format=posix", "-cf", "-", "-C"]).arg(src.path()).arg(".");
    let theirs = tar.stderr(Stdio::null()).output().unwrap();
    assert_eq!(manifest(untar(&theirs.stdout).path()), manifest(untar(&sent.stream()).path()), "as GNU tar has it");
}

#[test]
fn a_list_sends_what_it_names_with_the_directories_above_and_directories_whole() {
    let src = tree();
    for name in ["a/b/c", "a/b/other", "a/x", "whole/d/f", "whole/g", "not/f", "top", "a-b"] {
        mkdir(src.path(), Path::new(name).parent().unwrap().to_str().unwrap());
        write(src.path(), name, name.as_bytes());
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(src.path().join("a"), std::fs::Permissions::from_mode(0o751)).unwrap();
    let (paths, sent) = selected(src.path(), &named(b"top\n./whole/\na/b/c\n/a-b\n", false));
    assert_eq!(paths, ["", "a", "a/b", "a/b/c", "a-b", "top", "whole", "whole/d", "whole/d/f", "whole/g"]);
    assert_eq!(sent.noted(), []);
    assert_eq!(sent.entry("a").mode, 0o751, "with its own attributes");
    assert_eq!(sent.stats.entries_found.load(Relaxed), paths.len() as u64, "nothing else was looked at");
    let select = Select { rules: exclude(&["/whole/d", "c"]).rules, ..named(b"whole\0a/b/c\0a/x\0", true) };
    assert_eq!(selected(src.path(), &select).0, ["", "a", "a/b", "a/x", "whole", "whole/g"], "patterns count as well");
    assert_eq!(selected(src.path(), &named(b"", false)).0, [""]);
    let everything = send_tree(src.path()).paths();
    assert_eq!(selected(src.path(), &named(b"a/x\n.\n", false)).0, everything);
}

#[test]
fn what_a_list_names_and_is_not_there_is_named() {
    let src = tree();
    mkdir(src.path(), "d/e");
    for name in ["d/f", "f", "new\nline"] {
        write(src.path(), name, b"x");
    }
    std::os::unix::fs::symlink("d", src.path().join("link")).unwrap();
    let missing = |path: &str| (NoteKind::Unreadable, path.to_owned());
    let names = b"nope\nd/nope\nno/such/dir\nno/such\nd\nf/below\nf\nlink/f\n";
    let (paths, sent) = selected(src.path(), &named(names, false));
    assert_eq!(paths, ["", "d", "d/e", "d/f", "f"]);
    let right = ["d/nope", "f/below", "link/f", "no/such", "no/such/dir", "nope"];
    assert_eq!(sent.noted(), right.map(missing));
    let detail = |path: &[u8]| sent.notes.iter().find(|note| note.path == path).unwrap().detail.clone();
    assert_eq!(detail(b"nope"), "it is named by --files-from and is not there");
    assert_eq!(detail(b"link/f"), "it is named by --files-from, and link is no directory");
    let (paths, sent) = selected(src.path(), &named(b"new\nline\0f", true));
    assert_eq!((paths, sent.noted()), (vec![String::new(), "f".into(), "new\nline".into()], vec![]));
}

#[test]
fn a_list_needs_one_directory_and_names_inside_of_it() {
    let src = tree();
    write(src.path(), "f", b"f");
    let selection = |names| {
        let select = named(names, false);
        let opened = Selection::open(&select);
        std::fs::remove_file(select.files_from.unwrap().file).unwrap();
        opened
    };
    for paths in [vec![src.path().join("f")], vec![src.path().to_path_buf(), "/etc".into()]] {
        let refused = open_tree(&paths).unwrap().selected(selection(b"f").unwrap()).err().unwrap();
        assert!(matches!(refused, Error::Usage(_)), "{refused}");
    }
    for names in [&b"f\n../f\n"[..], b"a\0b"] {
        let refused = selection(names).err().unwrap();
        assert!(matches!(refused, Error::Usage(_)), "{refused}");
    }
}
