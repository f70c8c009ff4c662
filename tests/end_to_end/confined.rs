//! The receiver is confined to the destination by the time that anything arrives, and what it does there needs no more.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::ends::{End, recv, scratch, send};
use crate::hosts::until;
use crate::trees::{assert_same, random_bytes, small};

/// The names of a process's threads that were confined, and of those that were not. To confine itself a thread gives up
/// gaining privileges, and that is the one trace that can be seen from outside.
fn threads(end: &End) -> [BTreeSet<String>; 2] {
    let mut found = [BTreeSet::new(), BTreeSet::new()];
    for task in fs::read_dir(format!("/proc/{}/task", end.id())).unwrap() {
        let task = task.unwrap().path();
        let (Ok(name), Ok(status)) = (fs::read_to_string(task.join("comm")), fs::read_to_string(task.join("status")))
        else {
            continue;
        };
        let confined = status.lines().any(|line| line == "NoNewPrivs:\t1");
        found[usize::from(!confined)].insert(name.trim_end().to_owned());
    }
    found
}

#[test]
fn every_thread_that_touches_what_arrives_is_confined() {
    let dir = scratch();
    let manifest = dir.path().join("manifest").to_str().unwrap().to_owned();
    let file = dir.path().join("f").into_os_string();
    for dest in [file, "-".into()] {
        let args = ["-v", "--manifest", &manifest];
        let receiver = recv(&dest).args(&args).start();
        let mut sender = send("-", receiver.port()).stdin(Stdio::piped()).start();
        let mut input = sender.take_stdin();
        input.write_all(&random_bytes(1, 5 << 20)).unwrap();
        receiver.says("connected");
        if receiver.said().contains("not confined to the destination") {
            eprintln!("SKIPPED: threads that are confined: {}", receiver.said());
            return;
        }
        // a thread has its name a little after it starts
        let names = ["recv", "sink", "open-0", "open-1"];
        until("all threads have started", || {
            let [confined, free] = threads(&receiver);
            names.iter().all(|name| confined.contains(*name) || free.contains(*name))
        });
        let [confined, free] = threads(&receiver);
        for name in names {
            assert!(confined.contains(name), "{name}: {confined:?}, and not {free:?}");
        }
        // The thread that began it all is not, as its process may have other things to do.
        assert!(free.contains("blast"), "{free:?}");
        drop(input);
        sender.wait().expect(0);
        receiver.wait().expect(0).tells("manifest");
        assert!(fs::read_to_string(&manifest).unwrap().len() > 64);
    }
}

/// Into a directory that is there and one that is not, with a manifest elsewhere that hard links make settle at the end
/// and that replaces another.
#[test]
fn confined_it_still_makes_the_tree_and_the_manifest_beside_it() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 3);
    fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
    fs::create_dir_all(dir.path().join("there/many/0")).unwrap();
    let manifest = dir.path().join("elsewhere/m");
    fs::write(&manifest, "before").unwrap();
    for dest in ["there", "new"] {
        let dest = dir.path().join(dest);
        let receiver = recv(&dest).args(&["--manifest", manifest.to_str().unwrap()]).start();
        send(&source, receiver.port()).outcome().expect(0);
        receiver.wait().expect(0);
        assert_same(&dest, &source);
        assert!(fs::read_to_string(&manifest).unwrap().contains("many/hard\n"));
        assert_eq!(fs::read_dir(dir.path().join("elsewhere")).unwrap().count(), 1);
    }
}

/// What was made for a transfer of which nothing came goes again, although it lies outside.
#[test]
fn confined_it_still_removes_the_directory_that_it_made_for_nothing() {
    let dir = scratch();
    let source = dir.path().join("s");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), random_bytes(4, 64 << 20)).unwrap();
    let dest = dir.path().join("d");
    let receiver = recv(&dest).start();
    let sender = send(&source, receiver.port()).args(&["--bwlimit", "100K"]).start();
    receiver.says("connected");
    receiver.signal(rustix::process::Signal::TERM);
    receiver.wait().expect(7).claims_nothing();
    sender.wait().claims_nothing();
    assert!(!dest.exists(), "it was made by us and nothing came into it");
}
