//! The manifest, on both ends: what it says of every kind of file, that `b3sum` agrees, and that there is none of what
//! did not arrive.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use blast::manifest::parse_line;
use rustix::process::Signal;

use crate::ends::{BLAST, Outcome, Run, recv, scratch, send};
use crate::foreign_feed::{has, run_in};
use crate::trees::{Set, random_bytes, small, write};

/// Send `source` into `dest` with a manifest on each side, in `out`; both must end with `code`.
fn moved(source: &Path, dest: &Path, out: &Path, code: i32) -> (Outcome, Outcome) {
    let (theirs, ours) = (out.join("received"), out.join("sent"));
    let receiver = recv(dest).args(&["--manifest", theirs.to_str().unwrap()]).start();
    let sender = send(source, receiver.port()).args(&["--manifest", ours.to_str().unwrap()]).outcome();
    let receiver = receiver.wait();
    assert_eq!((sender.code, receiver.code), (Some(code), Some(code)), "{sender:?}\n{receiver:?}");
    (sender, receiver)
}

/// Every regular file below `root` with its digest, taken by the crate that b3sum is made of.
fn hashed(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
                found.insert(name, blast::ids::Digest(blake3::hash(&fs::read(&path).unwrap()).into()).to_string());
            }
        }
    }
    found
}

fn read(manifest: &Path) -> Vec<(Vec<u8>, String)> {
    let text = fs::read_to_string(manifest).expect("a manifest is text");
    let lines = text.lines().map(|line| parse_line(line.as_bytes()).unwrap_or_else(|e| panic!("{line:?}: {e}")));
    lines.map(|line| (line.path, line.digest.to_string())).collect()
}

/// Where `b3sum` is, run it in `dir`; its exit code and what it said.
fn b3sum(dir: &Path, args: &[&OsStr]) -> Option<(Option<i32>, String)> {
    match Command::new("b3sum").current_dir(dir).args(args).output() {
        Ok(done) => Some((done.status.code(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into())),
        Err(_) => {
            eprintln!("SKIPPED: this needs b3sum");
            None
        }
    }
}

#[test]
fn both_ends_write_the_digest_of_every_file_in_the_transfers_order() {
    let dir = scratch();
    let (tree, dest, out) = (dir.path().join("tree"), dir.path().join("dest"), dir.path().join("out"));
    small(&tree, 3);
    let set = Set(&tree);
    set.file("-", "a file that is called like a stream");
    set.file(" lead and trail ", "x");
    set.file("caf\u{e9}", "x");
    set.file("new\nline", "x");
    set.file("back\\slash", "x");
    set.file("large", random_bytes(5, (5 << 20) + 77));
    set.dir("z");
    set.hard_link("large", "z/of large");
    set.hard_link("z/of large", "z/once more\\");
    set.symlink("nowhere", "dangling");
    set.hard_link("dangling", "dangling too");
    set.fifo("fifo");
    fs::create_dir(&out).unwrap();

    let (sender, receiver) = moved(&tree, &dest, &out, 0);
    let expected = hashed(&tree);
    assert_eq!(read(&out.join("sent")).into_iter().collect::<BTreeMap<_, _>>(), expected);
    assert_eq!(read(&out.join("sent")).len(), expected.len(), "one line each");
    assert_eq!(fs::read(out.join("sent")).unwrap(), fs::read(out.join("received")).unwrap(), "in the same order");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2, "nothing temporary is left");
    for side in [sender, receiver] {
        side.tells(&format!("{} files", expected.len()));
    }
    let manifest = out.join("received");
    let check = [OsStr::new("--check"), OsStr::new("--quiet"), manifest.as_os_str()];
    if let Some(done) = b3sum(&dest, &check) {
        assert_eq!(done, (Some(0), String::new()));
        write(dest.join("many/0/0"), "other");
        let done = b3sum(&dest, &check).unwrap();
        assert_eq!(done.1.lines().next(), Some("many/0/0: FAILED"), "{done:?}");
    }
}

#[test]
fn names_that_b3sum_cannot_read_are_written_so_that_we_can() {
    let dir = scratch();
    let (tree, dest, out) = (dir.path().join("tree"), dir.path().join("dest"), dir.path().join("out"));
    let set = Set(&tree);
    set.file("a", "a");
    set.file(b"no text \xff\xfe", "b");
    set.file("replaced \u{fffd}", "c");
    set.file("z", "d");
    fs::create_dir(&out).unwrap();
    let (sender, receiver) = moved(&tree, &dest, &out, 0);
    assert_eq!(read(&out.join("received")).into_iter().collect::<BTreeMap<_, _>>(), hashed(&tree));
    for side in [sender, receiver] {
        side.tells("4 files; 2 names are not UTF-8");
    }
    if let Some((code, said)) = b3sum(&dest, &[OsStr::new("--check"), out.join("sent").as_os_str()]) {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("a: OK") && said.contains("z: OK"), "it goes on after the lines it cannot read: {said}");
    }
}

#[test]
fn a_single_file_and_a_stream_have_one_line() {
    let dir = scratch();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    for (name, len) in [("empty", 0), ("small", 9), ("chunk", 1 << 20), ("large", (3 << 20) + 1)] {
        let content = random_bytes(len as u64, len);
        let digest = blake3::hash(&content).to_string();
        let file = dir.path().join(name);
        write(&file, &content);
        // Into a directory it is an entry, into a file its bytes.
        for dest in [format!("{name}.into/"), format!("{name}.copy")] {
            moved(&file, &dir.path().join(&dest), &out, 0);
            let expected = |name: &str| [(name.as_bytes().to_vec(), digest.clone())];
            assert_eq!(read(&out.join("sent")), expected(name), "{dest}");
            let theirs = if dest.ends_with('/') { name } else { &dest };
            assert_eq!(read(&out.join("received")), expected(theirs), "{dest}");
        }
        let receiver = recv("-").args(&["--manifest", out.join("received").to_str().unwrap()]).start();
        let stdin = fs::File::open(&file).unwrap();
        let sender = send("-", receiver.port()).args(&["--manifest", out.join("sent").to_str().unwrap()]).stdin(stdin);
        sender.outcome().expect(0);
        assert!(receiver.wait().expect(0).out == content);
        for side in ["sent", "received"] {
            assert_eq!(fs::read_to_string(out.join(side)).unwrap(), format!("{digest}  -\n"), "{name}");
        }
    }
}

#[test]
fn an_archive_that_is_kept_has_one_line_where_it_is_and_its_files_where_they_come_from() {
    let dir = scratch();
    let (tree, dest, out) = (dir.path().join("tree"), dir.path().join("tree.tar"), dir.path().join("out"));
    small(&tree, 4);
    write(&dest, "");
    fs::create_dir(&out).unwrap();
    moved(&tree, &dest, &out, 0);
    assert_eq!(read(&out.join("sent")).into_iter().collect::<BTreeMap<_, _>>(), hashed(&tree));
    let digest = blake3::hash(&fs::read(&dest).unwrap()).to_string();
    assert_eq!(read(&out.join("received")), [(b"tree.tar".to_vec(), digest)]);
}

#[test]
fn of_a_name_that_an_archive_has_more_than_once_the_last_is_what_counts() {
    let dir = scratch();
    if !has("tar", "GNU tar") {
        return;
    }
    let set = Set(dir.path());
    let names = ["small", "large", "becomes-link", "becomes-dir"];
    names.iter().for_each(|name| drop(set.file(format!("s/{name}"), random_bytes(1, 2 << 20))));
    set.hard_link("s/small", "s/keeps");
    run_in(dir.path(), "tar", &["-cf", "all.tar", "-C", "s", "small", "large", "becomes-link", "becomes-dir", "keeps"]);
    names.iter().for_each(|name| fs::remove_file(set.path("s").join(name)).unwrap());
    set.file("s/small", "the last");
    set.file("s/large", random_bytes(2, (3 << 20) + 1));
    set.symlink("nowhere", "s/becomes-link");
    set.file("s/becomes-dir/file", "in it");
    for _ in 0..2 {
        run_in(dir.path(), "tar", &["-rf", "all.tar", "-C", "s", "small", "large", "becomes-link", "becomes-dir"]);
    }
    let (manifest, dest) = (dir.path().join("received"), dir.path().join("d"));
    let receiver = recv(dir.path().join("d/")).args(&["--verify", "--manifest", manifest.to_str().unwrap()]).start();
    let archive = fs::File::open(dir.path().join("all.tar")).unwrap();
    let sender = send("-", receiver.port()).stdin(archive).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(0);
    }
    let listed = read(&manifest);
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert_eq!(listed.into_iter().collect::<BTreeMap<_, _>>(), hashed(&dest));
    assert_eq!(verify(&dest, &manifest, &["-v"]).0, Some(0));
    if let Some((code, said)) = b3sum(&dest, &["--check".as_ref(), manifest.as_ref()]) {
        assert_eq!(code, Some(0), "{said}");
    }
}

#[test]
fn there_is_no_manifest_of_what_did_not_arrive() {
    let dir = scratch();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    write(out.join("received"), "of an earlier transfer");
    let args = |name: &str| ["--manifest".to_owned(), out.join(name).to_str().unwrap().to_owned()];
    let with = |run: Run, name: &str| run.args(&args(name).each_ref().map(String::as_str));
    let receiver = with(recv(dir.path().join("dest")), "received").start();
    let mut sender = with(send("-", receiver.port()), "sent").stdin(Stdio::piped()).start();
    let mut stdin = sender.take_stdin();
    stdin.write_all(&[7; 5 << 20]).unwrap();
    receiver.says("connected");
    receiver.signal(Signal::TERM);
    receiver.wait().expect(7);
    drop(stdin);
    sender.wait().expect(7);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "no manifest, nothing temporary");
    assert_eq!(fs::read_to_string(out.join("received")).unwrap(), "of an earlier transfer");
}

#[test]
fn a_manifest_inside_what_is_moved_is_refused_before_anything_begins() {
    let dir = scratch();
    let (tree, dest) = (dir.path().join("tree"), dir.path().join("dest"));
    write(tree.join("a"), "a");
    fs::create_dir(&dest).unwrap();
    let inside = |path: &Path| path.join("m").to_str().unwrap().to_owned();
    let refused = send(&tree, 9).args(&["--manifest", &inside(&tree)]).outcome();
    refused.expect(2).tells("which is what is moved");
    let refused = recv(&dest).args(&["--manifest", &inside(&dest)]).outcome();
    refused.expect(2).tells("which is what is moved");
    let refused =
        recv(dir.path().join("new")).args(&["--manifest", dir.path().join("new").to_str().unwrap()]).outcome();
    refused.expect(2).tells("which is what is moved");
    assert_eq!(fs::read_dir(&tree).unwrap().count() + fs::read_dir(&dest).unwrap().count(), 1, "nothing is left");
}

/// `blast verify`, and what it printed: the lines of its result.
fn verify(dir: &Path, manifest: &Path, args: &[&str]) -> (Option<i32>, Vec<String>, String) {
    let run = Run::of("verify", Command::new(BLAST), &["verify", "--manifest", manifest.to_str().unwrap()]);
    let done = run.args(args).last(dir).outcome();
    let mut lines: Vec<String> = done.report().lines().map(str::to_owned).collect();
    // Differences come in any order, the summary last.
    let summary = if done.code == Some(2) || args.contains(&"-q") { 0 } else { 1 };
    let differences = lines.len() - summary.min(lines.len());
    lines[..differences].sort();
    (done.code, lines, done.err)
}

#[test]
fn verify_names_every_difference_and_nothing_else() {
    let dir = scratch();
    let (tree, dest, out) = (dir.path().join("tree"), dir.path().join("dest"), dir.path().join("out"));
    small(&tree, 3);
    let set = Set(&tree);
    set.file(b"no text \xff", "x");
    set.file("-", "x");
    set.file("new\nline\\", "x");
    for name in ["d/gone", "d/shorter", "d/flipped", "d/linked", "d/a directory", "d/a fifo", "moved/file"] {
        set.file(name, random_bytes(1, 100_000));
    }
    let large = set.file("d/large", random_bytes(2, (9 << 20) + 1));
    set.hard_link("d/large", "d/large too");
    fs::create_dir(&out).unwrap();
    moved(&tree, &dest, &out, 0);
    let manifest = out.join("sent");
    let files = hashed(&tree).len();
    for (root, name) in [(&tree, "received"), (&dest, "sent")] {
        let (code, lines, err) = verify(root, &out.join(name), &["-v"]);
        assert_eq!(code, Some(0), "{lines:?} {err}");
        assert!(lines[0].starts_with(&format!("compared {files} files, ")), "{lines:?}");
        assert_eq!(lines[1..], ["same: every file is what the manifest says"]);
    }
    assert_eq!(verify(&dest, &manifest, &["-q"]), (Some(0), vec![], String::new()));

    let set = Set(&dest);
    let at = |name: &str| dest.join(name);
    fs::remove_file(at("d/gone")).unwrap();
    fs::File::options().write(true).open(at("d/shorter")).unwrap().set_len(99_999).unwrap();
    let mut content = fs::read(at("d/flipped")).unwrap();
    content[77] ^= 1;
    write(at("d/flipped"), content);
    for name in ["d/linked", "d/a directory", "d/a fifo"] {
        fs::remove_file(at(name)).unwrap();
    }
    write(out.join("elsewhere"), random_bytes(1, 100_000));
    set.symlink(out.join("elsewhere").as_os_str().as_bytes(), "d/linked");
    set.dir("d/a directory");
    set.fifo("d/a fifo");
    fs::rename(at("moved"), out.join("moved")).unwrap();
    set.symlink(out.join("moved").as_os_str().as_bytes(), "moved");
    let mut content = fs::read(&large).unwrap();
    content[8 << 20] ^= 1;
    write(at("d/large"), content);
    fs::remove_file(at("new\nline\\")).unwrap();
    write(at("d/extra\n"), "x");
    let expected = [
        "different: d/flipped",
        "different: d/large",
        "different: d/large too",
        "different: d/shorter",
        "missing: d/gone",
        "missing: moved/file: what should be a directory on its way is none",
        "missing: new\\nline\\\\",
        "no regular file: d/a directory: a directory",
        "no regular file: d/a fifo: a device, FIFO or socket",
        "no regular file: d/linked: a symbolic link",
    ];
    let verdict = "DIFFERENT: 4 different, 3 missing, 3 no regular file; the rest is what the manifest says";
    let (code, lines, err) = verify(&dest, &manifest, &[]);
    assert_eq!(code, Some(6), "{err}");
    let (verdict_is, rest) = lines.split_last().unwrap();
    assert_eq!(verdict_is, verdict);
    let compared = rest.iter().filter(|line| line.starts_with("compared ")).count();
    assert_eq!(rest.iter().filter(|line| !line.starts_with("compared ")).collect::<Vec<_>>(), expected.each_ref());
    assert_eq!(compared, 1);
    let (code, lines, err) = verify(&dest, &manifest, &["-q"]);
    assert_eq!((code, &lines[..]), (Some(6), &expected.map(str::to_owned)[..]));
    assert!(err.contains(verdict), "{err}");
    let (_, lines, _) = verify(&dest, &manifest, &["-v"]);
    assert!(lines.contains(&"not in the manifest: d/extra\\n".to_owned()), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("not in the manifest: ")).count(), 2, "{lines:?}");
}

#[test]
fn verify_reads_what_b3sum_writes() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    let set = Set(&tree);
    for name in ["a", "-", "b/ c ", "new\nline", "back\\slash", "d) = e"] {
        set.file(name, name);
    }
    let names = ["./a", "./-", "b/ c ", "new\nline", "back\\slash", "d) = e"].map(OsStr::new);
    let Some((Some(0), lines)) = b3sum(&tree, &names) else { return };
    let manifest = dir.path().join("m");
    write(&manifest, lines);
    let (code, lines, err) = verify(&tree, &manifest, &["-v"]);
    assert_eq!((code, lines.len()), (Some(0), 2), "{lines:?} {err}");
}

#[test]
fn a_manifest_that_cannot_be_meant_is_told_by_line_before_anything_is_read() {
    let dir = scratch();
    let (tree, manifest) = (dir.path().join("tree"), dir.path().join("m"));
    write(tree.join("a"), "a");
    let good = format!("{}  a\n", blake3::hash(b"a"));
    let said = |text: String| {
        write(&manifest, text);
        let (code, lines, err) = verify(&tree, &manifest, &[]);
        assert_eq!((code, lines.len()), (Some(2), 0), "{lines:?} {err}");
        err
    };
    assert!(
        said(format!("{good}{good}# comment\n")).contains("/m: line 3: it is not '<64 hexadecimal digits>  <path>'")
    );
    assert!(said(good.replace("  a", "  ../a")).contains("line 1: its path leads out of the directory"));
    assert!(said("x".repeat(3 << 20)).contains("line 1: "), "a line without an end");
    for (root, manifest) in [(&tree, dir.path().join("none")), (&dir.path().join("none"), manifest.clone())] {
        let (code, _, err) = verify(root, &manifest, &[]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("none: No such file or directory"), "{err}");
    }
    write(&manifest, "");
    assert_eq!(verify(&tree, &manifest, &[]).0, Some(0), "nothing is what it should be");
}
