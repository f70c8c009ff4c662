//! What lands where: every offer to every kind of destination, and every destination that is refused, before anything
//! is created or changed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink as make_symlink};
use std::path::Path;

use blast::options::Destination;
use blast::sink::Prepared;
use blast::wire::{Layout, Offer};
use blast::{Error, ExitCode};

use crate::sink_feed::*;

fn prepare(path: impl AsRef<Path>) -> Result<Prepared, Error> {
    Prepared::new(&Destination::Path(path.as_ref().to_path_buf()))
}

fn refusal(path: impl AsRef<Path>) -> Error {
    match prepare(&path) {
        Err(error) => error,
        Ok(_) => panic!("{:?} is not refused", path.as_ref()),
    }
}

fn one_file(size: u64) -> Offer {
    Offer::File { name: b"name".to_vec(), size }
}

#[test]
fn every_offer_has_its_layout_for_every_destination() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("file"), "").unwrap();
    let tree = Offer::Tree { sources: 1 };
    let several = Offer::Tree { sources: 3 };
    let (archive, raw) = (Some(Layout::Archive), Some(Layout::Raw));
    let table = [
        ("directory", [archive, archive, archive, raw]),
        ("file", [archive, archive, raw, raw]),
        ("missing", [archive, archive, raw, raw]),
        ("missing/", [archive, archive, archive, raw]),
    ];
    for (name, expected) in table {
        let prepared = prepare(at(name)).unwrap();
        for (offer, expected) in [&tree, &several, &one_file(5), &Offer::Stream].into_iter().zip(expected) {
            assert_eq!(prepared.layout(offer).ok(), expected, "{offer:?} to {name}");
        }
    }
    assert!(!at("missing").exists(), "looking creates nothing");
}

#[test]
fn a_tree_to_a_missing_path_makes_a_directory_and_to_a_file_an_archive() {
    let dir = scratch();
    let entries = [directory(""), file("f", 3000)];
    unpack(&mut Feed::all(&entries), &dir.path().join("new")).whole();
    assert_exact(&dir.path().join("new"), &entries);

    fs::write(dir.path().join("archive.tar"), "").unwrap();
    let end = unpack(&mut Feed::all(&entries), &dir.path().join("archive.tar")).whole();
    assert_eq!((end.entries, end.content_bytes, end.stream_digest), (2, 3000, None));
    let listing = std::process::Command::new("tar").arg("tf").arg(dir.path().join("archive.tar")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listing.stdout), "./\nf\n");
}

#[test]
fn one_file_lands_as_bytes_in_a_file_and_as_an_entry_in_a_directory() {
    let dir = scratch();
    for len in [0, 5, 3 * blast::limits::CHUNK_LEN + 1] {
        let content = bytes(len, 9);
        let mut feed = Feed::new();
        feed.slices(&content);
        let path = dir.path().join(format!("raw-{len}"));
        let end = deliver_with(&feed, &path, &one_file(len as u64), |f| f.content_bytes = len as u64).whole();
        assert!(fs::read(&path).unwrap() == content);
        assert_eq!(end.stream_digest.unwrap().to_string(), blake3::hash(&content).to_string());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o666 & !umask());
    }
    let entries = [file("name", 77)];
    let mut feed = Feed::all(&entries);
    feed.end();
    deliver(&feed, &dir.path().join("into/"), &one_file(77)).whole();
    assert_exact(&dir.path().join("into"), &entries);
}

fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|l| l.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(mask.trim(), 8).unwrap()
}

#[test]
fn an_empty_file_is_filled_under_its_own_name_and_mode_also_through_a_link() {
    let dir = scratch();
    let path = dir.path().join("real");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    make_symlink("real", dir.path().join("link")).unwrap();
    let mut feed = Feed::new();
    feed.slices(b"content");
    deliver(&feed, &dir.path().join("link"), &Offer::Stream).whole();
    assert_eq!(fs::read(&path).unwrap(), b"content");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o604);
    assert!(dir.path().join("link").is_symlink());
}

#[test]
fn a_file_that_was_filled_meanwhile_is_not_replaced() {
    let dir = scratch();
    for existed in [true, false] {
        let path = dir.path().join(format!("file-{existed}"));
        if existed {
            fs::write(&path, "").unwrap();
        }
        let sink = prepare(&path).unwrap().open(&Offer::Stream, Default::default(), 1, |_| {}).unwrap();
        let mut feed = Feed::new();
        feed.slices(b"from afar");
        feed.send_to(&sink, 1);
        fs::write(&path, "somebody's").unwrap();
        let error = sink.finish(feed.finish()).unwrap_err();
        assert_eq!(error.exit_code(), ExitCode::Destination, "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
        let names = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, if existed { 1 } else { 2 }, "nothing stays behind");
    }
}

#[test]
fn a_destination_that_holds_anything_is_refused_and_said_what() {
    let dir = scratch();
    type Make<'a> = &'a dyn Fn(&Path);
    let kinds: [(&str, Make<'_>); 4] = [
        ("a-file", &|p| fs::write(p, "").unwrap()),
        ("a-link", &|p| make_symlink("nowhere", p).unwrap()),
        ("deep", &|p| {
            fs::create_dir_all(p.join("er")).unwrap();
            fs::write(p.join("er/one"), "x").unwrap();
        }),
        ("new\nline", &|p| fs::write(p, "x").unwrap()),
    ];
    for (name, make) in kinds {
        let dest = dir.path().join("dest");
        fs::create_dir(&dest).unwrap();
        make(&dest.join(name));
        let before = look(&dest);
        let error = refusal(&dest);
        assert_eq!(error.exit_code(), ExitCode::Refused);
        let text = error.to_string();
        let shown = if name == "deep" { "'deep/er/one'" } else { &format!("'{}'", name.replace('\n', "\\n")) };
        assert!(text.contains("is not empty") && text.contains(shown) && text.contains("name an empty"), "{text}");
        assert_eq!(look(&dest), before, "looking changes nothing");
        fs::remove_dir_all(&dest).unwrap();
    }
    let full = dir.path().join("full");
    fs::write(&full, "12345").unwrap();
    let text = refusal(&full).to_string();
    assert!(text.contains("holds 5 bytes"), "{text}");
}

#[test]
fn empty_directories_mount_points_and_lost_and_found_may_be_there() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    fs::write(dir.path().join("lost+found/found"), "x").unwrap();
    prepare(dir.path()).unwrap();
    let Some(mounted) = Mounted::tmpfs(&dir.path().join("a/b"), "size=1m") else {
        return;
    };
    fs::write(mounted.0.join("something"), "x").unwrap();
    prepare(dir.path()).unwrap();
}

#[test]
fn destinations_that_are_something_else_are_refused_in_words() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    make_symlink("nowhere", at("dangling")).unwrap();
    fs::write(at("file"), "").unwrap();
    let cases = vec![
        (at("fifo"), ExitCode::Refused, "is a FIFO"),
        (at("socket"), ExitCode::Refused, "is a socket"),
        ("/dev/null".into(), ExitCode::Refused, "is a character device"),
        (at("dangling"), ExitCode::Refused, "is a symbolic link to nothing"),
        (at("missing/name"), ExitCode::Usage, "its directory"),
        (at("file/name"), ExitCode::Usage, "cannot use"),
        ("".into(), ExitCode::Usage, ""),
    ];
    for (path, code, text) in cases {
        let error = refusal(&path);
        assert_eq!(error.exit_code(), code, "{path:?}: {error}");
        assert!(error.to_string().contains(text), "{path:?}: {error}");
    }
}
