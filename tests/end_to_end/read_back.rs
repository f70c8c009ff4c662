//! `recv --verify`: what is on the disk is compared with what was sent before either end speaks of success.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::ends::{PATIENCE, recv, scratch, send};
use crate::trees::{Set, assert_same, random_bytes, small};

/// Wait until a file is there under its final name, whole.
fn arrived(path: &Path, len: u64) {
    let deadline = Instant::now() + PATIENCE;
    while fs::metadata(path).map_or(0, |meta| meta.len()) < len {
        assert!(Instant::now() < deadline, "{path:?} does not come");
        thread::yield_now();
    }
}

#[test]
fn what_was_written_is_read_back_and_the_report_says_how_much() {
    let dir = scratch();
    let (tree, dest) = (dir.path().join("tree"), dir.path().join("dest"));
    small(&tree, 5);
    let set = Set(&tree);
    set.file("large", random_bytes(5, (3 << 20) + 77));
    set.file(b"new\nline \xff", "odd");
    set.hard_link("large", "large again");
    set.symlink("large", "one more link");
    set.fifo("one more fifo");
    File::create(tree.join("sparse")).unwrap().set_len(20 << 20).unwrap();
    let receiver = recv(&dest).args(&["--verify", "--json"]).start();
    send(&tree, receiver.port()).outcome().expect(0);
    let receiver = receiver.wait();
    receiver.expect(0);
    assert_same(&dest, &tree);
    let report: serde_json::Value = serde_json::from_str(receiver.report()).unwrap();
    let (mut files, mut bytes, mut inodes) = (0, 0, HashSet::new());
    let mut left = vec![tree.clone()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                left.push(entry.path());
            } else if meta.is_file() && inodes.insert(meta.ino()) {
                (files, bytes) = (files + 1, bytes + meta.len());
            }
        }
    }
    assert_eq!(report["read_back"], serde_json::json!({ "files": files, "bytes": bytes }));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left anywhere");
}

#[test]
fn a_file_that_is_not_on_the_disk_as_it_was_sent_fails_both_ends_by_name() {
    let dir = scratch();
    // The last file takes seconds to come, so that there is time to spoil the ones before.
    for (n, manifest) in [None, Some("manifest")].into_iter().enumerate() {
        let (tree, dest) = (dir.path().join(format!("tree{n}")), dir.path().join(format!("dest{n}")));
        let set = Set(&tree);
        set.file("a\n1", random_bytes(1, 50_000));
        set.file("a2", random_bytes(2, (1 << 20) + 5));
        set.file("b", "untouched");
        set.file("z", random_bytes(3, 4 << 20));
        let manifest = manifest.map(|name| dir.path().join(name).into_os_string().into_string().unwrap());
        let receiver = recv(&dest).args(&["--verify"]);
        let receiver = match &manifest {
            Some(path) => receiver.args(&["--manifest", path]),
            None => receiver,
        };
        let receiver = receiver.start();
        let sender = send(&tree, receiver.port()).args(&["--bwlimit", "1M", "--compress", "off"]).start();
        for (name, len) in [("a\n1", 50_000), ("a2", (1 << 20) + 5)] {
            arrived(&dest.join(name), len);
            let file = fs::OpenOptions::new().read(true).write(true).open(dest.join(name)).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 4321).unwrap();
            file.write_all_at(&[!byte[0]], 4321).unwrap();
        }
        let text = "not what was sent: 2 files: 'a\\n1', 'a2'";
        for outcome in [sender.wait(), receiver.wait()] {
            outcome.expect(6).tells(text).claims_nothing();
        }
        if let Some(path) = manifest {
            assert!(!Path::new(&path).exists(), "no manifest of a transfer that failed");
        }
    }
}

#[test]
fn raw_files_and_archives_are_read_back_too() {
    let dir = scratch();
    let (tree, file) = (dir.path().join("tree"), dir.path().join("file"));
    small(&tree, 6);
    fs::write(&file, random_bytes(7, (2 << 20) + 9)).unwrap();
    fs::write(dir.path().join("archive"), "").unwrap();
    for (source, dest) in [(&file, "copy"), (&tree, "archive")] {
        let dest = dir.path().join(dest);
        let receiver = recv(&dest).args(&["--verify"]).start();
        send(source, receiver.port()).outcome().expect(0);
        receiver.wait().expect(0).tells("1 file, ").tells(" read back from the disk");
    }
    assert_eq!(fs::read(dir.path().join("copy")).unwrap(), fs::read(&file).unwrap());
}

#[test]
fn what_cannot_be_read_again_is_refused_before_anything() {
    recv("-").args(&["--verify"]).outcome().expect(2).tells("cannot be read back by --verify");
}
