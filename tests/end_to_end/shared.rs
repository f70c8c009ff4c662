//! A destination that others can write to: told, and refused to root until it is allowed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::ends::{BLAST, Outcome, Run, is_root, recv, scratch, send};
use crate::trees::{assert_same, set_mode, set_owner, small};

#[test]
fn root_does_not_receive_where_everybody_can_write_unless_allowed() {
    if !is_root("a destination that everybody can write to") {
        return;
    }
    let dir = scratch();
    let (source, shared) = (dir.path().join("s"), dir.path().join("shared"));
    small(&source, 1);
    fs::create_dir_all(shared.join("inner")).unwrap();
    set_mode(&shared, 0o777);
    set_owner(&shared, 1234, 4321);
    for dest in ["new", "inner", "inner/new", "file.tar"] {
        let refused = recv(shared.join(dest)).outcome();
        refused.expect(3).claims_nothing().tells(&format!("'{}' (mode 0777, owner 1234:4321)", shared.display()));
        refused.tells("everybody can write to").tells("chmod o-w").tells("--allow shared");
        assert!(dest == "inner" || !shared.join(dest).exists());
    }
    set_mode(shared.join("inner"), 0o757);
    recv(shared.join("inner")).outcome().expect(3).tells("/shared/inner' (mode 0757");
    set_mode(shared.join("inner"), 0o755);

    let receiver = transferred(&source, &shared.join("new"), &["--allow", "shared"]);
    receiver.tells("warning: everybody can write to");
    // A group is told of, and a sticky bit makes all of it fine.
    set_mode(&shared, 0o775);
    transferred(&source, &shared.join("group"), &[]).tells("warning: its group can write to");
    for mode in [0o1777, 0o1775, 0o755] {
        set_mode(&shared, mode);
        let receiver = transferred(&source, &shared.join(format!("{mode:o}")), &[]);
        assert!(!receiver.err.contains("can write to"), "{receiver:?}");
    }
}

fn transferred(source: &std::path::Path, dest: &std::path::Path, args: &[&str]) -> Outcome {
    let receiver = recv(dest).args(args).start();
    send(source, receiver.port()).outcome().expect(0);
    let receiver = receiver.wait();
    receiver.expect(0);
    assert_same(dest, source);
    receiver
}

#[test]
fn who_is_not_root_is_told_that_everybody_can_write_there_and_goes_on() {
    let dir = scratch();
    let (source, shared, program) = (dir.path().join("s"), dir.path().join("shared"), dir.path().join("blast"));
    small(&source, 2);
    fs::create_dir(&shared).unwrap();
    // The program may lie where only root may go.
    fs::copy(BLAST, &program).unwrap();
    set_mode(dir.path(), 0o755);
    for (mode, told) in [(0o777, true), (0o770, false)] {
        let mut command = Command::new(&program);
        set_mode(&shared, mode);
        if rustix::process::geteuid().is_root() {
            set_owner(&shared, 65_534, 65_534);
            command.uid(65_534).gid(65_534);
        }
        command.current_dir("/");
        let dest = shared.join(format!("{mode:o}"));
        let receiver = Run::of("recv", command, &["recv", "--port", "0"]).last(&dest).start();
        send(&source, receiver.port()).outcome().expect(0);
        let receiver = receiver.wait();
        receiver.expect(0);
        assert_eq!(receiver.err.contains("warning: everybody can write to"), told, "{receiver:?}");
        assert_eq!(fs::read_dir(&dest).unwrap().count(), fs::read_dir(&source).unwrap().count());
    }
}
