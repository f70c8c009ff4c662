//! What goes wrong at the destination: a full disk, a file that is too large, no privileges, an abort in the middle, a
//! panic. The sink says so at once, leaves no half file under its final name, and gives every buffer back.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use blast::archive::EntryKind;
use blast::chunk::{Chunk, ChunkKind, Pool, Release, chunk_digest};
use blast::ids::Seq;
use blast::limits::CHUNK_LEN;
use blast::options::Destination;
use blast::report::NoteKind;
use blast::sink::Prepared;
use blast::wire::Offer;
use blast::{Error, ExitCode};

use crate::sink_feed::*;
use crate::sink_tree::assert_no_temp_names;

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(30);

const TREE: Offer = Offer::Tree { sources: 1 };

#[test]
fn a_full_disk_fails_at_once_with_path_and_space_and_leaves_no_part_of_a_file() {
    let dir = scratch();
    let Some(mounted) = Mounted::tmpfs(dir.path(), "size=5m,nr_inodes=100") else {
        return;
    };
    let entries = [directory(""), file("first", 1000), file("large", 12 * CHUNK_LEN), file("last", 5)];
    let error = unpack(&mut Feed::all(&entries), &mounted.0).error();
    assert_eq!(error.exit_code(), ExitCode::Destination);
    let text = error.to_string();
    assert!(text.contains("'large'") && text.contains("of 5 MiB") && text.contains("No space left"), "{text}");
    assert_no_temp_names(&mounted.0);
    assert!(mounted.0.join("first").exists(), "whole files stay");
    assert!(!mounted.0.join("large").exists());
}

#[test]
fn a_disk_without_inodes_says_so() {
    let dir = scratch();
    let Some(mounted) = Mounted::tmpfs(dir.path(), "size=5m,nr_inodes=40") else {
        return;
    };
    let entries: Vec<_> = (100..400).map(|i| file(&format!("f{i}"), 10)).collect();
    let error = unpack(&mut Feed::all(&entries), &mounted.0).error().to_string();
    assert!(error.contains("0 of 40 inodes"), "{error}");
}

#[test]
fn a_small_file_that_does_not_fit_does_not_stay() {
    let dir = scratch();
    let Some(mounted) = Mounted::tmpfs(dir.path(), "size=1m") else {
        return;
    };
    let entries: Vec<_> = (0..4).map(|i| file(&format!("f{i}"), 400_000)).collect();
    let error = unpack(&mut Feed::all(&entries), &mounted.0).error();
    assert_eq!(error.exit_code(), ExitCode::Destination);
    for (path, seen) in look(&mounted.0) {
        assert!(path.is_empty() || seen.content.len() == 400_000, "{} is cut", path.escape_ascii());
    }
}

#[test]
fn a_raw_file_on_a_full_disk_leaves_nothing_and_says_how_far_it_came() {
    let dir = scratch();
    let Some(mounted) = Mounted::tmpfs(dir.path(), "size=3m") else {
        return;
    };
    let mut feed = Feed::new();
    feed.slices(&bytes(5 * CHUNK_LEN, 1));
    let error = deliver(&feed, &mounted.0.join("raw"), &Offer::Stream).error().to_string();
    assert!(error.contains("after 3145728 bytes") || error.contains("after 2097152 bytes"), "{error}");
    assert_eq!(fs::read_dir(&mounted.0).unwrap().count(), 0);
}

#[test]
fn a_file_beyond_the_size_limit_is_left_out_and_the_rest_arrives() {
    if !in_child("a_file_beyond_the_size_limit_is_left_out_and_the_rest_arrives", |_| {}) {
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(2 << 20), maximum: Some(2 << 20) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let dir = scratch();
    let mut entries = vec![directory(""), file("large", 5 * CHUNK_LEN), file("rest", 2000)];
    let noted = unpack(&mut Feed::all(&entries), dir.path()).noted();
    assert_eq!(noted, ["large"]);
    entries.remove(1);
    assert_exact(dir.path(), &entries);
    assert_no_temp_names(dir.path());
}

#[test]
fn an_unprivileged_receiver_owns_everything_says_so_once_and_lends_nobody_its_rights() {
    let name = "an_unprivileged_receiver_owns_everything_says_so_once_and_lends_nobody_its_rights";
    if is_root() {
        // Nobody may do what the last part of the test is about to root.
        in_child(name, |command| {
            command.uid(65534).gid(65534);
        });
        return;
    }
    let dir = scratch();
    let mut entries = vec![directory("")];
    let mut own = file("mine", 10);
    own.mode = 0o6755;
    entries.push(own);
    for i in 0..1000 {
        let mut foreign = match i % 4 {
            0 => directory(&format!("n{i}")),
            1 => symlink(&format!("n{i}"), "x"),
            2 => entry(&format!("n{i}"), EntryKind::Fifo),
            _ => file(&format!("n{i}"), 30),
        };
        (foreign.uid, foreign.gid) = (1234, 1234);
        foreign.mode = if foreign.kind.is_directory() { 0o2775 } else { 0o6755 };
        entries.push(foreign);
    }
    let mut foreign_user = file("own-group", 1);
    (foreign_user.uid, foreign_user.mode) = (1234, 0o6755);
    entries.push(foreign_user);
    let outcome = unpack(&mut Feed::all(&entries), dir.path());
    assert!(outcome.told.is_empty());
    let notes = outcome.end.unwrap().notes;
    assert_eq!(notes.losses, 0, "{:?}", notes.named);
    assert_eq!((notes.harmless, notes.named.len(), notes.named[0].kind), (1001, 1, NoteKind::Owner));
    for entry in &mut entries[2..] {
        (entry.uid, entry.mode) = (uid(), if entry.kind.is_directory() { 0o2775 } else { 0o755 });
        if entry.path == b"own-group" {
            entry.mode = 0o2755;
        }
        entry.gid = gid();
    }
    assert_exact(dir.path(), &entries);

    // A place that is not ours to write.
    let error = Prepared::new(&Destination::Path("/proc/blast-test".into())).err().expect("refused");
    assert_eq!(error.exit_code(), ExitCode::Destination, "{error}");
}

#[test]
fn with_few_descriptors_a_wide_and_a_deep_tree_still_arrive() {
    if !in_child("with_few_descriptors_a_wide_and_a_deep_tree_still_arrive", |_| {}) {
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(180), maximum: Some(180) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let dir = scratch();
    let mut entries = vec![directory("")];
    let mut deep = String::from("deep");
    for _ in 0..400 {
        entries.extend([directory(&deep), file(&format!("{deep}/a"), 7)]);
        deep.push_str("/e");
    }
    for i in 0..2000 {
        let wide = format!("wide{i}");
        let target = if i % 7 == 0 { "deep/e/e/a" } else { &format!("{wide}/a") };
        entries.extend([directory(&wide), file(&format!("{wide}/a"), 7), hardlink(&format!("{wide}/b"), target)]);
    }
    let end = unpack(&mut Feed::all(&entries), dir.path()).whole();
    assert_eq!(end.entries, entries.len() as u64);
    assert_exact(dir.path(), &entries);
}

/// Run this test once more in a process of its own. True in that process; false in this one, once the other is done.
fn in_child(name: &str, prepare: impl FnOnce(&mut Command)) -> bool {
    const MARK: &str = "BLAST_TEST_CHILD";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    // By this path the binary can be run by others than who may reach the place where it was built.
    let mut command = Command::new("/proc/self/exe");
    command.args([&format!("sink_faults::{name}"), "--exact", "--nocapture"]).env(MARK, "1").current_dir("/");
    prepare(&mut command);
    let output = command.output().expect("the test binary runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "in the other process:\n{text}");
    false
}

#[test]
fn an_abort_in_the_middle_leaves_whole_files_and_no_temporary_names() {
    for dropped in [false, true] {
        let dir = scratch();
        let dest = dir.path().join("dest");
        let sink = Prepared::new(&Destination::Path(dest.clone())).unwrap();
        let sink = sink.open(&TREE, Default::default(), 2, |error| panic!("told: {error}")).unwrap();
        let mut feed = Feed::new();
        feed.entry(&directory(""), b"").entry(&directory("d"), b"").entry(&file("d/whole", 5), b"12345");
        let large = file("d/large", 4 * CHUNK_LEN);
        let mut header = vec![0; blast::archive::header_len(&large)];
        blast::archive::write_header(&large, &mut header);
        feed.raw(&header).chunk(ChunkKind::Data { offset: 0, sole: false }, &[3; CHUNK_LEN]);
        // With one buffer, the second chunk can be filled only when the first is written.
        feed.send_to(&sink, 1);
        if dropped {
            drop(sink)
        } else {
            sink.abort()
        }
        assert_no_temp_names(&dest.join("d"));
        assert!(!dest.join("d/large").exists());
        assert_eq!(fs::read(dest.join("d/whole")).unwrap(), b"12345");
    }
}

#[test]
fn an_abort_before_anything_came_leaves_nothing() {
    let dir = scratch();
    let sink = Prepared::new(&Destination::Path(dir.path().join("dest"))).unwrap();
    sink.open(&TREE, Default::default(), 2, |_| {}).unwrap().abort();
    let sink = Prepared::new(&Destination::Path(dir.path().join("raw"))).unwrap();
    sink.open(&Offer::Stream, Default::default(), 2, |_| {}).unwrap().abort();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_panic_in_a_writer_is_a_bug_told_at_once() {
    let dir = scratch();
    let (tell, told) = mpsc::channel::<Error>();
    let sink = Prepared::new(&Destination::Path(dir.path().to_path_buf())).unwrap();
    let sink = sink.open(&TREE, Default::default(), 2, move |error| tell.send(error).unwrap()).unwrap();
    let entry = file("x", 5);
    let mut content = vec![0; blast::archive::header_len(&entry)];
    blast::archive::write_header(&entry, &mut content);
    content.resize(content.len() + 512, 0);
    let mut buf = Pool::new(1, CHUNK_LEN).take().unwrap();
    buf[..content.len()].copy_from_slice(&content);
    let kind = ChunkKind::Mixed;
    let release = Some(Release::new(Arc::new(|| panic!("planted"))));
    let digest = chunk_digest(kind, &content);
    sink.feed().put(Chunk { seq: Seq(0), kind, len: content.len(), digest, buf, release }).unwrap();
    let error = told.recv_timeout(SOON).expect("the panic is told");
    assert_eq!(error.exit_code(), ExitCode::Bug);
    assert!(error.to_string().contains("planted"), "{error}");
    sink.abort();
}

#[test]
fn a_clone_of_the_senders_end_does_not_hold_up_the_finish() {
    let dir = scratch();
    let mut feed = Feed::all(&[directory(""), file("x", 5)]);
    feed.end();
    let sink = Prepared::new(&Destination::Path(dir.path().to_path_buf())).unwrap();
    let sink = sink.open(&TREE, Default::default(), 2, |_| {}).unwrap();
    let _clone = sink.feed().clone();
    feed.send_to(&sink, 2);
    assert_eq!(sink.finish(feed.finish()).unwrap().entries, 2);
}
