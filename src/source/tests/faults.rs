//! Sources that change or fail while they are read: told truly, and everything else exact.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::sync::atomic::AtomicBool;

use super::*;

fn append(dir: &Path, name: &str, bytes: &[u8]) {
    std::fs::OpenOptions::new().append(true).open(dir.join(name)).unwrap().write_all(bytes).unwrap();
}

fn mkfifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
}

/// A source whose plan has come to its first chunk and waits; the walk has seen the whole of its one directory.
fn hold_plan(path: &Path) -> (Running, Planned, Arc<NoteSink>, Arc<Stats>) {
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let tree = open_tree(&[path.to_path_buf()]).unwrap();
    let running = start(tree, Layout::Archive, Pool::new(1, CHUNK_LEN), stats.clone(), notes.clone(), WORKERS);
    let first = running.planned.recv().unwrap();
    (running, first, notes, stats)
}

fn go_on((running, first, notes, stats): (Running, Planned, Arc<NoteSink>, Arc<Stats>)) -> Sent {
    let mut scratch = FillScratch::default();
    let mut filled = vec![content(first.fill(&mut scratch))];
    filled.extend(running.planned.iter().map(|p| content(p.fill(&mut scratch))));
    let end = running.join().unwrap();
    put_together(filled, end, notes, stats)
}

#[test]
fn a_file_that_vanished_is_left_out_and_named() {
    let src = tree();
    for name in ["a", "b", "c"] {
        write(src.path(), name, name.as_bytes());
    }
    let held = hold(src.path());
    std::fs::remove_file(src.path().join("b")).unwrap();
    let sent = held.fill();
    assert_eq!(sent.paths(), ["", "a", "c"]);
    assert_eq!(sent.file("c").unwrap(), b"c");
    assert_eq!(sent.noted(), [(NoteKind::Vanished, "b".into())]);
}

#[test]
fn a_large_file_that_vanished_before_it_was_opened_is_left_out_and_named() {
    let src = tree();
    for name in ["a", "b", "c"] {
        write(src.path(), name, &noise(9, 2 * CHUNK_LEN + 1));
    }
    let held = hold_plan(src.path());
    std::fs::remove_file(src.path().join("b")).unwrap();
    let sent = go_on(held);
    assert_eq!(sent.paths(), ["", "a", "c"]);
    assert_eq!(sent.noted(), [(NoteKind::Vanished, "b".into())]);
}

#[test]
fn a_large_file_that_was_opened_is_sent_whole_though_its_name_is_gone() {
    let src = tree();
    write(src.path(), "large", &noise(1, 2 * CHUNK_LEN));
    let held = hold(src.path());
    std::fs::remove_file(src.path().join("large")).unwrap();
    let sent = held.fill();
    assert_eq!(sent.file("large").unwrap(), noise(1, 2 * CHUNK_LEN));
    assert_eq!(sent.noted(), []);
}

#[test]
fn a_directory_that_vanished_is_one_note_and_not_one_for_each_name() {
    let src = tree();
    mkdir(src.path(), "d/e");
    for i in 0..500 {
        write(src.path(), &format!("d/f{i}"), b"x");
        write(src.path(), &format!("d/e/f{i}"), b"x");
    }
    write(src.path(), "z", b"z");
    let held = hold(src.path());
    std::fs::remove_dir_all(src.path().join("d")).unwrap();
    let sent = held.fill();
    assert_eq!(sent.paths(), ["", "d", "d/e", "z"]);
    assert_eq!(sent.noted(), [(NoteKind::Vanished, "d".into())]);
}

#[test]
fn a_directory_that_vanished_before_it_was_listed_is_left_out_and_named_once() {
    let src = tree();
    for dir in ["a", "b", "c"] {
        mkdir(src.path(), dir);
        write(src.path(), &format!("{dir}/f"), b"x");
    }
    let dirs = Arc::new(dirs::Dirs::new());
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let Named::Roots(roots) = open_tree(&[src.path().to_path_buf()]).unwrap().named else { unreachable!() };
    let mut walk = Walk::new(roots, Arc::new(Selection::everything()), dirs, asker(), stats, notes.clone(), 0);
    assert_eq!(walk.step().unwrap().path, b"");
    assert_eq!(walk.step().unwrap().path, b"a");
    std::fs::remove_dir_all(src.path().join("b")).unwrap();
    let mut rest = Vec::new();
    while let Some(step) = walk.step() {
        rest.push(step.path.to_vec());
    }
    assert_eq!(rest, [&b"a/f"[..], b"c", b"c/f"]);
    let noted = notes.notes().named;
    assert_eq!(noted.len(), 1);
    assert_eq!((noted[0].kind, &noted[0].path[..]), (NoteKind::Vanished, &b"b"[..]));
}

#[test]
fn a_small_file_that_changed_before_it_was_read_is_sent_as_it_is_then() {
    let src = tree();
    write(src.path(), "grew", b"1");
    write(src.path(), "shrank", &noise(1, 5000));
    write(src.path(), "z", b"z");
    let held = hold(src.path());
    append(src.path(), "grew", &noise(2, 3000));
    write(src.path(), "shrank", b"less");
    let sent = held.fill();
    assert_eq!(sent.file("grew").unwrap(), [&b"1"[..], &noise(2, 3000)].concat());
    assert_eq!(sent.file("shrank").unwrap(), b"less");
    assert_eq!(sent.file("z").unwrap(), b"z");
    assert_eq!(sent.noted(), []);
    assert_eq!(manifest(untar(&sent.stream()).path()), manifest(src.path()));
}

#[test]
fn a_small_file_that_outgrew_its_chunk_is_cut_to_what_was_announced() {
    let src = tree();
    write(src.path(), "a", &noise(1, 400_000));
    write(src.path(), "b", &noise(2, 600_000));
    write(src.path(), "c", b"c");
    let held = hold(src.path());
    append(src.path(), "a", &noise(3, 400_000));
    let sent = held.fill();
    assert_eq!(sent.file("a").unwrap(), noise(1, 400_000));
    assert_eq!(sent.file("b").unwrap(), noise(2, 600_000));
    assert_eq!(sent.file("c").unwrap(), b"c");
    assert_eq!(sent.noted(), [(NoteKind::Changed, "a".into())]);
}

#[test]
fn growth_is_seen_where_the_chunk_has_no_byte_to_spare() {
    let src = tree();
    write(src.path(), "f", b"");
    let header = send_tree(src.path()).stream().len() - crate::archive::END.len();
    // With its directory's header it now fills one chunk to the last byte.
    let content = noise(1, CHUNK_LEN - header);
    write(src.path(), "f", &content);
    let held = hold(src.path());
    append(src.path(), "f", b"x");
    let sent = held.fill();
    assert_eq!(sent.file("f").unwrap(), content);
    assert_eq!(sent.noted(), [(NoteKind::Changed, "f".into())]);
}

#[test]
fn a_large_file_that_grew_is_cut_to_what_was_announced() {
    let src = tree();
    let content = noise(1, 3 * CHUNK_LEN + 5);
    write(src.path(), "log", &content);
    write(src.path(), "z", b"z");
    let held = hold(src.path());
    append(src.path(), "log", b"one line more");
    let sent = held.fill();
    assert_eq!(sent.file("log").unwrap(), content);
    assert_eq!(sent.file("z").unwrap(), b"z");
    assert_eq!(sent.noted(), [(NoteKind::Changed, "log".into())]);
}

#[test]
fn a_large_file_that_shrank_ends_in_zeros_and_is_noted_once() {
    let src = tree();
    let content = noise(1, 3 * CHUNK_LEN + 5);
    write(src.path(), "f", &content);
    write(src.path(), "z", b"z");
    let held = hold(src.path());
    std::fs::OpenOptions::new().write(true).open(src.path().join("f")).unwrap().set_len(1000).unwrap();
    let sent = held.fill();
    let got = sent.file("f").unwrap();
    assert_eq!(got.len(), content.len());
    assert_eq!(got[..1000], content[..1000]);
    assert!(got[1000..].iter().all(|b| *b == 0));
    assert_eq!(sent.file("z").unwrap(), b"z");
    assert_eq!(sent.noted(), [(NoteKind::Shrank, "f".into())]);
    assert!(sent.notes[0].detail.contains(&format!("1000 of {}", content.len())), "{}", sent.notes[0].detail);
}

#[test]
fn a_large_file_written_to_in_place_is_noted() {
    let src = tree();
    write(src.path(), "db", &noise(1, 2 * CHUNK_LEN));
    let held = hold(src.path());
    let db = std::fs::OpenOptions::new().write(true).open(src.path().join("db")).unwrap();
    db.write_all_at(b"page", 4096).unwrap();
    db.set_modified(std::time::UNIX_EPOCH).unwrap();
    let sent = held.fill();
    assert_eq!(sent.file("db").unwrap().len(), 2 * CHUNK_LEN);
    assert_eq!(sent.noted(), [(NoteKind::Changed, "db".into())]);
}

#[test]
fn a_log_that_grows_all_the_time_shifts_nothing() {
    let src = tree();
    write(src.path(), "a", b"a");
    write(src.path(), "log", &noise(1, 20 * CHUNK_LEN));
    write(src.path(), "small log", b"");
    write(src.path(), "zz", b"z");
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Relaxed) {
                append(src.path(), "log", &[b'l'; 1000]);
                append(src.path(), "small log", &[b's'; 10]);
            }
        });
        let sent = std::panic::catch_unwind(|| {
            let held = hold(src.path());
            let planned = std::fs::metadata(src.path().join("log")).unwrap().len();
            while std::fs::metadata(src.path().join("log")).unwrap().len() == planned {}
            held.fill()
        });
        stop.store(true, Relaxed);
        sent.unwrap()
    });
    assert_eq!(sent.paths(), ["", "a", "log", "small log", "zz"]);
    assert_eq!(sent.file("log").unwrap()[..20 * CHUNK_LEN], noise(1, 20 * CHUNK_LEN));
    assert!(sent.file("small log").unwrap().iter().all(|b| *b == b's'));
    assert_eq!(sent.file("zz").unwrap(), b"z");
    assert!(sent.noted().contains(&(NoteKind::Changed, "log".into())), "{:?}", sent.notes);
    untar(&sent.stream());
}

#[test]
fn what_became_a_fifo_or_a_link_is_not_waited_for_nor_followed() {
    let src = tree();
    let outside = tree();
    write(outside.path(), "secret", b"not ours");
    let small = ["a directory", "a fifo", "a link"];
    let large = ["c directory", "c fifo", "c link"];
    small.iter().for_each(|name| write(src.path(), name, b"file"));
    large.iter().for_each(|name| write(src.path(), name, &noise(1, CHUNK_LEN)));
    // The plan comes as far as opening this one.
    write(src.path(), "b", &noise(2, CHUNK_LEN));
    let held = hold_plan(src.path());
    for name in small.iter().chain(&large) {
        let path = src.path().join(name);
        std::fs::remove_file(&path).unwrap();
        match &name[2..] {
            "directory" => mkdir(src.path(), name),
            "fifo" => mkfifo(&path),
            _ => std::os::unix::fs::symlink(outside.path().join("secret"), path).unwrap(),
        }
    }
    let sent = go_on(held);
    assert_eq!(sent.paths(), ["", "b"]);
    use NoteKind::{Changed, Vanished};
    let right = [
        (Vanished, "a link"),
        (Vanished, "c link"),
        (Changed, "a directory"),
        (Changed, "a fifo"),
        (Changed, "c directory"),
        (Changed, "c fifo"),
    ];
    assert_eq!(sent.noted(), right.map(|(kind, path)| (kind, path.to_owned())));
}

#[test]
fn a_directory_that_became_a_link_is_not_entered() {
    let src = tree();
    let outside = tree();
    write(outside.path(), "secret", b"not ours");
    mkdir(src.path(), "a");
    mkdir(src.path(), "b");
    let dirs = Arc::new(dirs::Dirs::new());
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let Named::Roots(roots) = open_tree(&[src.path().to_path_buf()]).unwrap().named else { unreachable!() };
    let mut walk = Walk::new(roots, Arc::new(Selection::everything()), dirs, asker(), stats, notes.clone(), 0);
    while walk.step().unwrap().path != b"a" {}
    std::fs::remove_dir(src.path().join("b")).unwrap();
    std::os::unix::fs::symlink(outside.path(), src.path().join("b")).unwrap();
    assert!(walk.step().is_none());
    assert_eq!(notes.notes().named[0].path, b"b");
}

#[test]
fn a_file_that_another_took_the_name_of_is_that_other_one_if_it_fits_and_is_named() {
    let src = tree();
    write(src.path(), "log", b"old");
    write(src.path(), "wide", &noise(1, 300_000));
    write(src.path(), "wide2", &noise(1, 600_000));
    let held = hold(src.path());
    write(src.path(), "new", b"new and longer");
    std::fs::rename(src.path().join("new"), src.path().join("log")).unwrap();
    write(src.path(), "new", &noise(2, 900_000));
    std::fs::rename(src.path().join("new"), src.path().join("wide")).unwrap();
    let sent = held.fill();
    assert_eq!(sent.file("log").unwrap(), b"new and longer");
    assert_eq!(sent.file("wide"), None, "a part of it would be neither the old file nor the new one");
    assert_eq!(sent.file("wide2").unwrap(), noise(1, 600_000));
    assert_eq!(sent.noted(), [(NoteKind::Changed, "log".into()), (NoteKind::Changed, "wide".into())]);
}

#[test]
fn a_link_whose_first_name_vanished_carries_the_content_itself() {
    let src = tree();
    write(src.path(), "a first", b"shared");
    std::fs::hard_link(src.path().join("a first"), src.path().join("b second")).unwrap();
    std::fs::hard_link(src.path().join("a first"), src.path().join("z last")).unwrap();
    write(src.path(), "m between", &noise(1, 3 * CHUNK_LEN));
    let held = hold_plan(src.path());
    std::fs::remove_file(src.path().join("a first")).unwrap();
    let sent = go_on(held);
    assert_eq!(sent.paths(), ["", "b second", "m between", "z last"]);
    assert_eq!(sent.file("b second").unwrap(), b"shared", "in the same chunk the worker decides");
    assert_eq!(sent.file("z last").unwrap(), b"shared", "in a later chunk the plan decides");
    assert_eq!(sent.noted(), [(NoteKind::Vanished, "a first".into())]);
    untar(&sent.stream());
}

#[test]
fn hard_links_survive_a_first_name_that_vanished_before_it_was_planned() {
    let src = tree();
    write(src.path(), "b", &noise(2, CHUNK_LEN + 1));
    for name in ["c", "d"] {
        std::fs::hard_link(src.path().join("b"), src.path().join(name)).unwrap();
    }
    write(src.path(), "a", &noise(1, CHUNK_LEN));
    let held = hold_plan(src.path());
    std::fs::remove_file(src.path().join("b")).unwrap();
    let sent = go_on(held);
    assert_eq!(sent.file("c").unwrap(), noise(2, CHUNK_LEN + 1));
    assert_eq!(sent.entry("d").kind, EntryKind::Hardlink { target: b"c".to_vec() });
    assert_eq!(sent.noted(), [(NoteKind::Vanished, "b".into())]);
}

/// Reads a file without content that has content all the same, as some FUSE and kernel file systems have them.
#[test]
fn a_file_that_announces_no_size_is_read_to_its_end() {
    let sent = send(&[Path::new("/proc/filesystems"), Path::new("/proc/version")], Layout::Archive);
    assert_eq!(sent.file("version").unwrap(), std::fs::read("/proc/version").unwrap());
    assert_eq!(sent.noted(), []);
}

/// File servers hold leases; opening such a file without waiting fails.
#[test]
fn a_file_under_a_lease_is_waited_for() {
    let src = tree();
    write(src.path(), "leased", b"leased");
    write(src.path(), "leased large", &noise(1, CHUNK_LEN));
    // The signal that asks for the lease ends the holder, and with it the lease.
    let script = "import fcntl, os, sys, time\n\
        fds = [os.open(p, os.O_RDWR) for p in sys.argv[1:]]\n\
        [fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK) for fd in fds]\n\
        print('held', flush=True)\n\
        time.sleep(60)\n";
    let holders: Vec<_> = ["leased", "leased large"]
        .into_iter()
        .filter_map(|name| {
            let mut holder = Command::new("python3")
                .args(["-c", script])
                .arg(src.path().join(name))
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .ok()?;
            let mut said = [0; 4];
            let held = std::io::Read::read_exact(holder.stdout.as_mut()?, &mut said).is_ok();
            held.then_some(holder)
        })
        .collect();
    if holders.len() < 2 {
        eprintln!("SKIPPED: no lease can be had here");
    }
    let sent = send_tree(src.path());
    for mut holder in holders {
        let ended = holder.wait().unwrap();
        assert!(!ended.success(), "the lease was asked for");
    }
    assert_eq!(sent.noted(), []);
    assert_eq!(sent.file("leased").unwrap(), b"leased");
    assert_eq!(sent.file("leased large").unwrap(), noise(1, CHUNK_LEN));
}

/// Root reads everything, so a root test runs itself again as nobody.
#[test]
fn what_may_not_be_read_is_left_out_and_named() {
    let dir = match std::env::var_os("BLAST_UNREADABLE_TREE") {
        Some(dir) => PathBuf::from(dir),
        None if rustix::process::geteuid().is_root() => {
            let src = tree();
            mode(src.path(), 0o777);
            let as_nobody = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--nocapture", "source::tests::faults::what_may_not_be_read_is_left_out_and_named"])
                .env("BLAST_UNREADABLE_TREE", src.path())
                .current_dir("/")
                .uid(65534)
                .gid(65534)
                .output();
            match as_nobody {
                Err(err) => eprintln!("SKIPPED: nobody may not run the test binary: {err}"),
                Ok(done) => {
                    let said = String::from_utf8_lossy(&done.stdout);
                    assert!(done.status.success() && said.contains("1 passed"), "{said}");
                }
            }
            return;
        }
        None => {
            let src = tree();
            return unreadable_tree(src.path());
        }
    };
    unreadable_tree(&dir);
}

fn mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn unreadable_tree(src: &Path) {
    write(src, "a", b"a");
    write(src, "closed", b"c");
    write(src, "closed large", &noise(1, CHUNK_LEN));
    mkdir(src, "closed dir");
    write(src, "closed dir/f", b"f");
    mkdir(src, "no entry");
    write(src, "no entry/f", b"f");
    write(src, "z", b"z");
    mode(&src.join("closed"), 0);
    mode(&src.join("closed large"), 0);
    mode(&src.join("closed dir"), 0);
    mode(&src.join("no entry"), 0o444);
    let sent = send_tree(src);
    assert_eq!(sent.paths(), ["", "a", "closed dir", "no entry", "z"]);
    let unreadable = |path: &str| (NoteKind::Unreadable, path.to_owned());
    let right = ["closed", "closed dir", "closed large", "no entry/f"].map(unreadable);
    assert_eq!(sent.noted(), right);
    let refused = open_tree(&[src.join("closed")]).err().unwrap();
    assert!(refused.to_string().contains("Permission denied"), "{refused}");
    mode(&src.join("closed dir"), 0o755);
    mode(&src.join("no entry"), 0o755);
}

#[test]
fn a_session_that_is_given_up_ends_the_source() {
    let src = tree();
    for i in 0..40 {
        write(src.path(), &format!("f{i}"), &noise(i, CHUNK_LEN));
    }
    let pool = Pool::new(2, CHUNK_LEN);
    let tree = open_tree(&[src.path().to_path_buf()]).unwrap();
    let running = start(tree, Layout::Archive, pool.clone(), Arc::default(), Arc::default(), WORKERS);
    let held = running.planned.recv().unwrap();
    pool.close();
    drop(held);
    let err = running.join().unwrap_err();
    assert!(matches!(err, Error::Interrupted(_)), "{err}");
}
