//! Whose things become on another machine: the numbers' unless asked for, whatever names say there; names or a map on
//! request. Each side has a passwd and group file of its own, which its mount namespace shows in place of the real
//! ones.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ends::{BLAST, Outcome, Run, address, is_root, recv, scratch, send};
use crate::trees::{list, set_owner, write};

/// A machine as far as its users and groups go.
struct Machine {
    passwd: PathBuf,
    group: PathBuf,
}

impl Machine {
    /// With these users and groups, `NAME:NUMBER`, beside root.
    fn new(dir: &Path, users: &[&str], groups: &[&str]) -> Machine {
        let (passwd, group) = (dir.join("passwd"), dir.join("group"));
        let mut text = "root:x:0:0::/:/bin/sh\n".to_owned();
        for user in users {
            let (name, id) = user.split_once(':').unwrap();
            text += &format!("{name}:x:{id}:0::/:/bin/sh\n");
        }
        write(&passwd, text);
        let groups: String = groups.iter().map(|group| group.replace(':', ":x:") + ":\n").collect();
        write(&group, format!("root:x:0:\n{groups}"));
        Machine { passwd, group }
    }

    /// A command line that runs the program there.
    fn run(&self, side: &'static str, args: &[&str]) -> Run {
        let script = "mount --bind \"$1\" /etc/passwd && mount --bind \"$2\" /etc/group && shift 2 && exec \"$@\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]).arg(&self.passwd).arg(&self.group);
        Run::of(side, unshare, &[BLAST, side]).args(args)
    }
}

/// Two machines on which the same names have other numbers, and a source on the first; nothing, said loudly, where that
/// is not allowed.
fn two_machines(dir: &Path) -> Option<(Machine, Machine, PathBuf)> {
    if !is_root("machines with other users") {
        return None;
    }
    let ours = Machine::new(&dir.join("ours"), &["blastx:6001", "only-here:6002"], &["blastg:6101", "only-here:6102"]);
    let theirs = Machine::new(&dir.join("theirs"), &["blastx:7001", "other:6003"], &["blastg:7101"]);
    let script = "mount --bind /dev/null /etc/passwd";
    let may = Command::new("unshare").args(["-m", "--propagation", "private", "sh", "-c", script]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: machines with other users: this needs a mount namespace");
        return None;
    }
    let source = dir.join("s");
    fs::create_dir_all(source.join("d")).unwrap();
    for name in ["x", "d/x", "only-here", "nameless", "root", "large"] {
        write(source.join(name), vec![b'x'; if name == "large" { 2 << 20 } else { 10 }]);
    }
    symlink("x", source.join("l")).unwrap();
    fs::hard_link(source.join("x"), source.join("z")).unwrap();
    for name in ["x", "d", "d/x", "l", "large"] {
        set_owner(source.join(name), 6001, 6101);
    }
    set_owner(source.join("only-here"), 6002, 6102);
    set_owner(source.join("nameless"), 6003, 6103);
    for name in ["root", "."] {
        set_owner(source.join(name), 0, 0);
    }
    Some((ours, theirs, source))
}

/// Move the source to `dest` there, and return both ends.
fn moved(machines: &(Machine, Machine, PathBuf), dest: &Path, args: &[&str]) -> (Outcome, Outcome) {
    let (ours, theirs, source) = machines;
    let receiver = theirs.run("recv", &["--port", "0"]).args(args).last(dest).start();
    let sender = ours.run("send", &[]).last(source).last(address(receiver.port())).outcome();
    (sender, receiver.wait())
}

#[track_caller]
fn assert_owners(dest: &Path, right: &[(&str, u32, u32)]) {
    for (name, uid, gid) in right {
        let meta = fs::symlink_metadata(dest.join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (*uid, *gid), "{name}");
    }
}

#[test]
fn owners_are_numbers_whatever_their_names_mean_on_the_receiver() {
    let dir = scratch();
    let Some(machines) = two_machines(dir.path()) else { return };
    let dest = dir.path().join("d");
    let (sender, receiver) = moved(&machines, &dest, &[]);
    sender.expect(0);
    receiver.expect(0);
    let owners = |root: &Path| list(root).into_iter().map(|(path, item)| (path, item.owner)).collect::<Vec<_>>();
    assert_eq!(owners(&dest), owners(&machines.2));
    assert_owners(&dest, &[("x", 6001, 6101), ("nameless", 6003, 6103)]);
    // Nor can another tar take them by their names.
    let archive = dir.path().join("archive");
    write(&archive, b"");
    moved(&machines, &archive, &[]).0.expect(0);
    let bytes = fs::read(&archive).unwrap();
    assert!(bytes.len() > 2 << 20 && !bytes.windows(6).any(|w| w == b"blastx"));
}

#[test]
fn by_name_whoever_has_the_name_here_gets_it_and_what_nobody_has_keeps_its_number() {
    let dir = scratch();
    let Some(machines) = two_machines(dir.path()) else { return };
    let dest = dir.path().join("d");
    let (sender, receiver) = moved(&machines, &dest, &["--by-name", "-v"]);
    sender.expect(0);
    receiver.expect(0);
    let by_name = ["x", "d", "d/x", "l", "z", "large"].map(|name| (name, 7001, 7101));
    assert_owners(&dest, &by_name);
    assert_owners(&dest, &[("only-here", 6002, 6102), ("nameless", 6003, 6103), ("root", 0, 0), (".", 0, 0)]);
    for end in [&sender, &receiver] {
        end.tells("names of owners that nobody has here: 2 (the numbers stay; first only-here)");
    }
    assert_eq!(fs::metadata(dest.join("x")).unwrap().ino(), fs::metadata(dest.join("z")).unwrap().ino());
}

#[test]
fn a_map_says_who_is_who_before_names_and_numbers_do() {
    let dir = scratch();
    let Some(machines) = two_machines(dir.path()) else { return };
    let dest = dir.path().join("d");
    let args = ["--owner-map", "only-here:blastx,6000-6001:5", "--owner-map", "6003:other", "--group-map", "*:99"];
    let (sender, receiver) = moved(&machines, &dest, &args);
    sender.expect(0);
    receiver.expect(0);
    assert_owners(&dest, &[("x", 5, 99), ("d", 5, 99), ("l", 5, 99), ("z", 5, 99), ("large", 5, 99)]);
    assert_owners(&dest, &[("only-here", 7001, 99), ("nameless", 6003, 99), ("root", 0, 99)]);
    let dest = dir.path().join("e");
    let (_, receiver) = moved(&machines, &dest, &["--by-name", "--owner-map=blastx:42"]);
    receiver.expect(0);
    assert_owners(&dest, &[("x", 42, 7101), ("only-here", 6002, 6102)]);
    let refused = machines.1.run("recv", &["--port", "0", "--owner-map", "1:no-such-user"]).last(dir.path().join("f"));
    let refused = refused.outcome();
    refused.expect(2).tells("there is no user 'no-such-user' on this machine");
}

#[test]
fn an_archive_has_the_names_if_the_receiver_asks_for_them() {
    let dir = scratch();
    let Some(machines) = two_machines(dir.path()) else { return };
    let archive = dir.path().join("archive");
    write(&archive, b"");
    moved(&machines, &archive, &["--by-name"]).1.expect(0);
    let listed = Command::new("tar").arg("-tvf").arg(&archive).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = |name: &str| listed.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{listed}"));
    assert!(line(" x").contains(" blastx/blastg "), "{listed}");
    assert!(line(" nameless").contains(" 6003/6103 "), "{listed}");
    assert!(line(" ./").contains(" root/root "), "{listed}");
}

#[test]
fn a_map_is_refused_where_nothing_is_unpacked() {
    let dir = scratch();
    let file = dir.path().join("archive.tar");
    write(&file, b"");
    for map in ["--owner-map=1000:0", "--group-map=*:0"] {
        for dest in [Path::new("-"), &file] {
            let refused = recv(dest).args(&[map]).outcome();
            refused.expect(2).claims_nothing().tells("--owner-map and --group-map are for what is unpacked");
        }
    }
    let named = recv(&file).args(&["--owner-map=1000:0"]).outcome();
    named.expect(2).tells("archive.tar: name a directory");
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    // what does not exist becomes what is sent
    let source = dir.path().join("source");
    write(&source, b"one file");
    let new = dir.path().join("new");
    let receiver = recv(&new).args(&["--owner-map=1000:0"]).start();
    let sender = send(&source, receiver.port()).outcome();
    for end in [sender, receiver.wait()] {
        end.expect(3).claims_nothing().tells("/new: name a directory");
    }
    assert!(!new.exists());
}
