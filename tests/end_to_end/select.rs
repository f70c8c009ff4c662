//! What of a tree is sent can be chosen: by patterns, by a list of names, one file system only, without caches; and a
//! dry run says beforehand what that comes to, with the exit code that the transfer will have.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::end_to_end::changing::as_nobody;
use crate::ends::{BLAST, Outcome, Run, address, recv, scratch, send, transfer};
use crate::sink_feed::Mounted;
use crate::trees::{assert_same, list, set_mode, small, write};

/// Paths of all that is there, the root left out.
fn names(root: &Path) -> Vec<String> {
    list(root).into_keys().filter(|path| !path.is_empty()).map(|path| String::from_utf8(path).unwrap()).collect()
}

fn dry(source: &Path, args: &[&str]) -> Outcome {
    Run::of("send", Command::new(BLAST), &["send", "-n"]).args(args).last(source).outcome()
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(outcome.report()).unwrap_or_else(|e| panic!("{e}: {outcome:?}"))
}

#[test]
fn patterns_choose_in_the_order_in_which_they_are_typed() {
    let dir = scratch();
    let source = dir.path().join("s");
    for name in ["a.c", "a.o", "d/b.c", "d/b.h", "tmp/c.c", "d/tmp/x.c"] {
        write(source.join(name), name);
    }
    let patterns = dir.path().join("patterns");
    write(&patterns, "# objects\n*.o\n+ /tmp/\ntmp/\n");
    let from = patterns.to_str().unwrap();
    let cases: [(&[&str], &[&str], u64); 4] = [
        (&["--exclude", "*.o"], &["a.c", "d", "d/b.c", "d/b.h", "d/tmp", "d/tmp/x.c", "tmp", "tmp/c.c"], 1),
        (
            &["--include", "*/", "--include=*.c", "--exclude", "*"],
            &["a.c", "d", "d/b.c", "d/tmp", "d/tmp/x.c", "tmp", "tmp/c.c"],
            2,
        ),
        (&["--exclude", "*.c", "--include", "a.c"], &["a.o", "d", "d/b.h", "d/tmp", "tmp"], 4),
        (&["--include", "a.o", "--exclude-from", from], &["a.c", "a.o", "d", "d/b.c", "d/b.h", "tmp", "tmp/c.c"], 1),
    ];
    for (i, (args, right, count)) in cases.into_iter().enumerate() {
        let dest = dir.path().join(format!("d{i}"));
        let (sender, _) = transfer(&source, &dest, args);
        assert_eq!(names(&dest), right, "{args:?}");
        let said =
            if count == 1 { "excluded: 1 name (".to_owned() } else { format!("excluded: {count} names (first ") };
        sender.tells(&said);
    }
}

#[test]
fn a_list_on_standard_input_names_what_is_sent() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 1);
    write(source.join("new\nline/f"), b"odd");
    let list = b"new\nline/f\0many/3\0link\0sizes/1\0";
    let receiver = recv(dir.path().join("d")).start();
    let sender = send(&source, receiver.port()).args(&["--files-from", "-", "-0"]).stdin(Stdio::piped());
    let mut sender = sender.start();
    sender.take_stdin().write_all(list).unwrap();
    sender.wait().expect(0);
    receiver.wait().expect(0);
    let arrived = names(&dir.path().join("d"));
    let many = || fs::read_dir(source.join("many/3")).unwrap().map(|e| e.unwrap().file_name());
    let mut right: Vec<String> = many().map(|name| format!("many/3/{}", name.to_str().unwrap())).collect();
    right.extend(["link", "many", "many/3", "new\nline", "new\nline/f", "sizes", "sizes/1"].map(str::to_owned));
    right.sort();
    assert_eq!(arrived, right);
}

#[test]
fn what_a_list_names_and_is_not_there_is_named_on_both_ends() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("a"), b"a");
    let names = dir.path().join("names");
    write(&names, "a\ngone/for/good\n");
    let receiver = recv(dir.path().join("d")).start();
    let sender = send(&source, receiver.port()).args(&["--files-from", names.to_str().unwrap()]).outcome();
    for end in [&sender, &receiver.wait()] {
        end.expect(1)
            .claims_nothing()
            .tells("PARTIAL: 1 thing")
            .tells("unreadable, left out: gone/for/good: it is named");
    }
    assert_eq!(fs::read(dir.path().join("d/a")).unwrap(), b"a");
}

#[test]
fn other_file_systems_are_entered_unless_told_otherwise_and_pseudo_ones_never() {
    let dir = scratch();
    let source = dir.path().join("s");
    write(source.join("f"), b"f");
    for name in ["mnt", "proc"] {
        fs::create_dir_all(source.join(name)).unwrap();
    }
    let Some(mounted) = Mounted::tmpfs(&source.join("mnt"), "size=1m,mode=751") else { return };
    write(mounted.0.join("inside/f"), b"on another file system");
    let Some(_proc) = Mounted::of("proc", &source.join("proc"), "ro") else { return };
    let (sender, receiver) = transfer(&source, dir.path().join("all"), &[]);
    assert_eq!(names(&dir.path().join("all")), ["f", "mnt", "mnt/inside", "mnt/inside/f", "proc"]);
    for end in [&sender, &receiver] {
        end.tells("not entered: proc (proc)");
    }
    let (sender, _) = transfer(&source, dir.path().join("one"), &["-x"]);
    assert_eq!(names(&dir.path().join("one")), ["f", "mnt", "proc"]);
    sender.tells("not entered: 1 other file system (mnt)").tells("not entered: proc (proc)");
    let found = dry(&source, &["-x", "-v"]);
    found.expect(0).tells("+ mnt/\n").tells("- mnt/: what is in it: another file system\n");
    found.tells("- proc: pseudo file system, not entered: proc\n");
    assert_eq!(
        json(dry(&source, &["--one-file-system", "--json"]).expect(0))["omitted"]["other_file_systems"]["path"],
        "mnt"
    );
    // Named itself, it is what is meant.
    let (_, _) = transfer(source.join("mnt"), dir.path().join("named"), &["-x"]);
    assert_eq!(names(&dir.path().join("named")), ["inside", "inside/f"]);
}

#[test]
fn a_dry_run_reaches_nobody_and_says_what_the_transfer_then_does() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 2);
    drop(std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap());
    write(source.join("skip/me"), b"not sent");
    fs::hard_link(source.join("skip/me"), source.join("zz")).unwrap();
    let args = ["--exclude", "skip", "--exclude", "many/[1-3]"];
    // Nobody listens on the port, and a machine of that name there is none.
    for host in [None, Some("127.0.0.1:1"), Some("no-such-host.invalid")] {
        let run = Run::of("send", Command::new(BLAST), &["send", "--dry-run"]).args(&args).last(&source);
        let found = if let Some(host) = host { run.last(host) } else { run }.outcome();
        found.expect(0).tells("excluded: 4 names (first skip)\n").tells("skipped: 1 socket\n");
        found.tells("nothing was sent: this was a dry run\n");
    }
    let found = json(dry(&source, &[&args[..], &["--json"]].concat()).expect(0));
    let receiver = recv(dir.path().join("d")).start();
    let sent = json(send(&source, receiver.port()).args(&args).args(&["--json"]).outcome().expect(0));
    receiver.wait().expect(0);
    for field in ["code", "whole", "entries", "content_bytes", "stream_bytes", "omitted"] {
        assert_eq!(found[field], sent[field], "{field}");
    }
    assert_eq!(found["notes"], sent["notes"]["sender"]);
    assert_eq!((&found["dry_run"], &found["stream"]), (&true.into(), &false.into()));
    let by_name = dry(&source, &[&args[..], &["-v"]].concat());
    let mut goes: Vec<&str> = by_name.report().lines().filter_map(|line| line.strip_prefix("+ ")).collect();
    assert_eq!(goes.remove(0), "./");
    let goes: Vec<&str> = goes.iter().map(|name| name.trim_end_matches('/')).collect();
    let mut arrived = names(&dir.path().join("d"));
    arrived.sort_by(|a, b| a.split('/').cmp(b.split('/')));
    assert_eq!(goes, arrived, "in the order in which it goes");
    by_name.tells("- skip: excluded by 'skip'\n").tells("- socket: socket, skipped\n");
}

#[test]
fn a_dry_run_ends_with_the_code_that_the_transfer_would_have() {
    let dir = scratch();
    let source = dir.path().join("s");
    for name in ["a", "secret", "closed/inside", "large"] {
        write(source.join(name), vec![b'x'; if name == "large" { 3 << 20 } else { 1 }]);
    }
    let run = |args: &[&str]| {
        let nobody = as_nobody(dir.path());
        for name in ["secret", "closed", "large"] {
            set_mode(source.join(name), 0);
        }
        let outcome = Run::of("send", nobody, &["send", "-n"]).args(args).last(&source).outcome();
        set_mode(source.join("closed"), 0o700);
        outcome
    };
    let found = run(&["-v"]);
    found.expect(1).tells("would send 3 entries, 1 byte\n").tells("it would be PARTIAL: 3 things left out");
    found
        .tells("- secret: unreadable, left out: Permission denied")
        .tells("- closed: unreadable, left out: it cannot be");
    assert_eq!(json(run(&["--json"]).expect(1))["notes"]["losses"], 3);
    run(&["--exclude", "secret", "--exclude", "/closed/", "--exclude=large"]).expect(0);
    let missing = dir.path().join("missing");
    dry(&missing, &[]).expect(2).tells("cannot read");
    let stream = Run::of("send", Command::new(BLAST), &["send", "-n", "-"]).outcome();
    stream.expect(0).tells("would send a stream");
}

#[test]
fn what_cannot_be_chosen_is_refused_before_anybody_is_reached() {
    let dir = scratch();
    let (source, file) = (dir.path().join("s"), dir.path().join("f"));
    write(source.join("a"), b"a");
    write(&file, "../a\n");
    let file = file.to_str().unwrap();
    let cases: [(&[&Path], &[&str], &str); 7] = [
        (&[&source], &["--exclude", "[x"], "--exclude '[x': a [ has no ]"),
        (&[&source], &["--exclude", "./a"], "begin with /"),
        (&[&source], &["--exclude-from", "/no/such/file"], "cannot read /no/such/file"),
        (&[&source], &["--files-from", file], "'../a' has a component '..'"),
        (&[&source, Path::new("/etc")], &["--files-from", "/dev/null"], "SRC must be one"),
        (&[Path::new("-")], &["--exclude", "a"], "standard input is one stream"),
        (&[&source], &["--files-from", "-", "--exclude-from", "-"], "standard input (-) can only be one of the files"),
    ];
    for (sources, args, says) in cases {
        let run = Run::of("send", Command::new(BLAST), &["send"]).args(args);
        let run = sources.iter().fold(run, |run, source| run.last(source));
        run.last(address(1)).outcome().expect(2).tells(says);
    }
}

#[test]
fn a_file_that_is_named_alone_is_sent_whatever_patterns_say() {
    let dir = scratch();
    write(dir.path().join("a.o"), b"bytes");
    transfer(dir.path().join("a.o"), dir.path().join("copy"), &["--exclude", "*.o"]);
    assert_eq!(fs::read(dir.path().join("copy")).unwrap(), b"bytes");
}

#[test]
fn without_a_choice_everything_is_sent() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 3);
    transfer(&source, dir.path().join("d"), &[]);
    assert_same(dir.path().join("d"), &source);
}
