//! What lands where: every kind of source into every kind of destination, and what is refused before a byte moves.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::ends::{BLAST, Outcome, Run, address, recv, scratch, send};
use crate::trees::{Set, assert_listed, assert_same, list, random_bytes, small, write};

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Src {
    Directory,
    Several,
    File,
    Stdin,
}

const SOURCES: [Src; 4] = [Src::Directory, Src::Several, Src::File, Src::Stdin];

/// One of each source, in one directory.
struct Sources {
    dir: tempfile::TempDir,
    stream: Vec<u8>,
}

impl Sources {
    fn new() -> Sources {
        let dir = scratch();
        small(&dir.path().join("tree"), 7);
        write(dir.path().join("other/inside"), b"of the other");
        write(dir.path().join("file"), random_bytes(8, (2 << 20) + 9));
        Sources { dir, stream: random_bytes(9, (1 << 20) + 3) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Send it to a receiver into `dest`; both outcomes.
    fn send(&self, src: Src, dest: impl AsRef<std::ffi::OsStr>) -> (Outcome, Outcome) {
        let receiver = recv(dest).start();
        let port = receiver.port();
        let sender = match src {
            Src::Directory => send(self.path("tree"), port),
            Src::Several => several(&[self.path("tree"), self.path("file"), self.path("other")], port),
            Src::File => send(self.path("file"), port),
            Src::Stdin => {
                let path = self.path("stream");
                fs::write(&path, &self.stream).unwrap();
                let stdin = fs::File::open(&path).unwrap();
                fs::remove_file(&path).unwrap();
                send("-", port).stdin(stdin)
            }
        };
        (sender.outcome(), receiver.wait())
    }

    /// The tree that several sources make.
    fn gathered(&self) -> crate::trees::Listing {
        let mut all = list(self.dir.path());
        all.remove(&b""[..]);
        all
    }
}

fn several(paths: &[PathBuf], port: u16) -> Run {
    let run = Run::of("send", Command::new(BLAST), &["send"]);
    paths.iter().fold(run, |run, path| run.last(path)).last(address(port))
}

#[track_caller]
fn whole(ends: &(Outcome, Outcome)) {
    assert_eq!((ends.0.code, ends.1.code), (Some(0), Some(0)), "{:?}\n{:?}", ends.0, ends.1);
}

#[track_caller]
fn refused(ends: &(Outcome, Outcome), words: &str) {
    for end in [&ends.0, &ends.1] {
        end.expect(3).claims_nothing().tells("refused").tells(words);
    }
}

#[test]
fn into_a_directory_go_contents_and_named_entries() {
    let sources = Sources::new();
    let dir = scratch();
    for src in SOURCES {
        for ending in ["", "/"] {
            let dest = dir.path().join(format!("{src:?}{}{ending}", ending.len()));
            fs::create_dir(&dest).unwrap();
            let ends = sources.send(src, &dest);
            match src {
                Src::Directory => {
                    whole(&ends);
                    assert_same(&dest, sources.path("tree"));
                }
                Src::Several => {
                    whole(&ends);
                    let mut is = list(&dest);
                    is.remove(&b""[..]);
                    assert_listed(&is, &sources.gathered());
                }
                Src::File => {
                    whole(&ends);
                    assert_eq!(list(&dest)[&b"file"[..]], list(sources.dir.path())[&b"file"[..]]);
                    assert_eq!(fs::read_dir(&dest).unwrap().count(), 1);
                }
                Src::Stdin => {
                    refused(&ends, "not a tar archive");
                    assert_eq!(fs::read_dir(&dest).unwrap().count(), 0);
                }
            }
        }
    }
}

#[test]
fn what_does_not_exist_becomes_what_the_sender_announces_and_a_slash_asks_for_a_directory() {
    let sources = Sources::new();
    let dir = scratch();
    for src in SOURCES {
        let dest = dir.path().join(format!("{src:?}"));
        whole(&sources.send(src, &dest));
        match src {
            Src::Directory => assert_same(&dest, sources.path("tree")),
            Src::Several => {
                let mut is = list(&dest);
                is.remove(&b""[..]);
                assert_listed(&is, &sources.gathered());
            }
            Src::File => assert!(fs::read(&dest).unwrap() == fs::read(sources.path("file")).unwrap()),
            Src::Stdin => assert!(fs::read(&dest).unwrap() == sources.stream),
        }
        let dest = dir.path().join(format!("{src:?} slash"));
        let ends = sources.send(src, format!("{}/", dest.display()));
        match src {
            Src::Stdin => refused(&ends, "not a tar archive"),
            _ => whole(&ends),
        }
        match src {
            Src::Directory => assert_same(&dest, sources.path("tree")),
            Src::Several => assert!(dest.join("tree/sizes/1").is_file() && dest.join("other/inside").is_file()),
            Src::File => assert!(dest.join("file").is_file()),
            Src::Stdin => assert!(!dest.exists(), "a refusal creates nothing"),
        }
    }
}

#[test]
fn into_a_file_or_standard_output_go_an_archive_or_the_bytes() {
    let sources = Sources::new();
    let dir = scratch();
    for src in SOURCES {
        let dest = dir.path().join(format!("{src:?}"));
        fs::write(&dest, b"").unwrap();
        whole(&sources.send(src, &dest));
        let ends = sources.send(src, "-");
        whole(&ends);
        let (in_file, in_pipe) = (fs::read(&dest).unwrap(), ends.1.out);
        match src {
            Src::File => assert!(in_file == fs::read(sources.path("file")).unwrap()),
            Src::Stdin => assert!(in_file == sources.stream),
            _ => {
                let out = dir.path().join(format!("{src:?} extracted"));
                extract(&dest, &out);
                let mut is = list(&out);
                if src == Src::Directory {
                    assert_listed(&is, &list(sources.path("tree")));
                } else {
                    is.remove(&b""[..]);
                    assert_listed(&is, &sources.gathered());
                }
            }
        }
        assert!(in_file == in_pipe, "{src:?}: the same bytes in a file and in a pipe");
    }
}

fn extract(archive: &Path, dest: &Path) {
    fs::create_dir(dest).unwrap();
    let done = Command::new("tar").arg("-xpf").arg(archive).arg("-C").arg(dest).output().expect("tar");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_device_that_is_no_block_device_is_refused_plainly_on_either_side() {
    let dir = scratch();
    let receiver = recv("/dev/null").outcome();
    receiver.expect(3).claims_nothing().tells("character device").tells("recv -");
    let receiver = recv(dir.path().join("d")).start();
    let sender = send("/dev/zero", receiver.port()).outcome();
    sender.expect(3).claims_nothing().tells("character device").tells("blast send - <");
    assert!(!receiver.said().contains("connected"), "the sender asks nobody for what it cannot send");
}

#[test]
fn other_things_that_are_no_destination_are_refused_plainly() {
    let dir = scratch();
    let set = Set(dir.path());
    let fifo = set.fifo("fifo");
    let dangling = set.symlink("nowhere", "dangling");
    let full = set.file("full", b"something");
    for (dest, words) in [
        (fifo, "a FIFO"),
        (dangling, "a symbolic link to nothing"),
        (full.clone(), "holds 9 bytes"),
        (PathBuf::from("/dev/null"), "a character device"),
    ] {
        recv(&dest).outcome().expect(3).claims_nothing().tells("refused").tells(words);
    }
    assert_eq!(fs::read(full).unwrap(), b"something");
}

#[test]
fn a_destination_that_holds_anything_is_refused_before_it_listens() {
    let dir = scratch();
    let dest = dir.path().join("d");
    write(dest.join("sub/precious\n"), b"old");
    let receiver = recv(&dest).outcome();
    receiver.expect(3).claims_nothing().tells("is not empty").tells("sub/precious\\n");
    assert!(!receiver.err.contains("listening"), "{receiver:?}");
    assert_eq!(fs::read(dest.join("sub/precious\n")).unwrap(), b"old");
}

#[test]
fn empty_directories_and_lost_and_found_are_nothing() {
    let sources = Sources::new();
    let dir = scratch();
    let dest = dir.path().join("d");
    for inside in ["empty/below", "sizes", "lost+found"] {
        fs::create_dir_all(dest.join(inside)).unwrap();
    }
    fs::write(dest.join("lost+found/#123"), b"found").unwrap();
    whole(&sources.send(Src::Directory, &dest));
    assert_eq!(fs::read(dest.join("lost+found/#123")).unwrap(), b"found");
    fs::remove_dir_all(dest.join("lost+found")).unwrap();
    crate::trees::set_mtime(&dest, 1, 1);
    crate::trees::set_mtime(sources.path("tree"), 1, 1);
    assert_same(&dest, sources.path("tree"));
}

#[test]
fn a_destination_whose_parent_is_missing_is_a_mistake() {
    let dir = scratch();
    let receiver = recv(dir.path().join("no/such")).outcome();
    receiver.expect(2).claims_nothing().tells("its directory");
    assert!(!dir.path().join("no").exists());
}

#[test]
fn a_source_that_does_not_exist_is_an_error_before_any_transfer() {
    let sources = Sources::new();
    let dir = scratch();
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    for paths in [vec![sources.path("nope")], vec![sources.path("tree"), sources.path("nope")]] {
        several(&paths, port).outcome().expect(2).claims_nothing().tells("nope").tells("No such file");
    }
    // A name twice would be one entry twice.
    let twice = several(&[sources.path("tree/sizes"), sources.path("other/../tree/sizes")], port).outcome();
    twice.expect(2).claims_nothing().tells("would both be sent as sizes");
    assert!(!receiver.said().contains("connected"), "{}", receiver.said());
    assert!(!dir.path().join("d").exists());
    send(sources.path("tree"), port).outcome().expect(0);
    receiver.wait().expect(0);
}

#[test]
fn only_the_last_operand_is_an_address_and_every_other_name_is_a_path() {
    let dir = scratch();
    let odd = ["x:9", "-rf", "--help", "10.0.0.1", "a@b:/c", "sp ace ", "back\\slash", "dot.", "~", "*", "[::1]:7"];
    for name in odd {
        let name = name.replace('/', "_");
        fs::create_dir(dir.path().join(&name)).unwrap();
        fs::write(dir.path().join(&name).join("-v"), &name).unwrap();
    }
    let names: Vec<String> = odd.iter().map(|n| n.replace('/', "_")).collect();
    let send_here = |args: &[&str], port: u16| {
        let mut command = Command::new(BLAST);
        command.current_dir(dir.path()).stdin(Stdio::null());
        Run::of("send", command, args).last(address(port)).outcome()
    };
    // One at a time after --, as contents; into a destination of an odd name, too.
    for name in &names {
        let dest = scratch();
        let mut command = Command::new(BLAST);
        command.current_dir(dest.path());
        let receiver = Run::of("recv", command, &["recv", "--port", "0", "--", name]).start();
        send_here(&["send", "--", name], receiver.port()).expect(0);
        receiver.wait().expect(0);
        assert_eq!(&fs::read_to_string(dest.path().join(name).join("-v")).unwrap(), name);
    }
    // All of them together, and those that begin with no dash without --.
    let dest = scratch();
    let receiver = recv(dest.path()).start();
    let mut args = vec!["send", "--"];
    args.extend(names.iter().map(String::as_str));
    send_here(&args, receiver.port()).expect(0);
    receiver.wait().expect(0);
    for name in &names {
        assert_eq!(&fs::read_to_string(dest.path().join(name).join("-v")).unwrap(), name);
    }
    for name in names.iter().filter(|n| !n.starts_with('-')) {
        let dest = scratch();
        let receiver = recv(dest.path()).start();
        send_here(&["send", name], receiver.port()).expect(0);
        receiver.wait().expect(0);
        assert_eq!(dest.path().join("-v").metadata().unwrap().size(), name.len() as u64);
    }
}
