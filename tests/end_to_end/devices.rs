//! Block devices as SRC and as DEST: their whole content, whatever its length; never one that somebody uses, never past
//! its end, never behind what came; and no success before the device has synced.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::OFlags;

use crate::ends::{BLAST, Outcome, Run, address, recv, scratch, send};
use crate::loops::Loop;
use crate::trees::{random_bytes, small, write};

const MIB: usize = 1 << 20;

/// No multiple of a page or a chunk: five chunks and one sector.
const ODD: usize = 5 * MIB + 512;

#[track_caller]
fn refused(ends: [&Outcome; 2], words: &[&str]) {
    for end in ends {
        end.expect(3).claims_nothing();
        for word in words {
            end.tells(word);
        }
    }
}

#[test]
fn a_device_is_sent_whole_to_the_last_odd_sector_by_whatever_name() {
    let dir = scratch();
    for len in [512, MIB, ODD] {
        let content = random_bytes(len as u64, len);
        let Some(device) = Loop::of(&dir.path().join("disk"), &content) else { return };
        let hex = blake3::hash(&content).to_hex();
        let by_id = dir.path().join("by-id");
        let _ = fs::remove_file(&by_id);
        symlink(&device.path, &by_id).unwrap();
        for (source, dest) in [(&device.path, "a"), (&by_id, "b")] {
            let dest = dir.path().join(format!("{len}{dest}"));
            let receiver = recv(&dest).start();
            let sender = send(source, receiver.port()).outcome();
            sender.expect(0).tells(&hex);
            receiver.wait().expect(0).tells(&hex);
            assert!(fs::read(&dest).unwrap() == content, "{len}");
        }
        let receiver = recv("-").start();
        send(&device.path, receiver.port()).outcome().expect(0);
        assert!(receiver.wait().expect(0).out == content);
    }
}

#[test]
fn a_part_of_a_disk_is_a_device_of_its_own_size() {
    let dir = scratch();
    let content = random_bytes(3, ODD);
    let disk = dir.path().join("disk");
    fs::write(&disk, &content).unwrap();
    let (begin, len) = (3 * 512, 2 * MIB + 7 * 512);
    let options = ["--offset", &begin.to_string(), "--sizelimit", &len.to_string()];
    let Some(part) = Loop::over(&disk, &options) else { return };
    let receiver = recv(dir.path().join("part")).start();
    send(&part.path, receiver.port()).outcome().expect(0);
    receiver.wait().expect(0);
    assert!(fs::read(dir.path().join("part")).unwrap() == content[begin..begin + len]);
}

#[test]
fn progress_and_report_have_a_devices_true_size() {
    let dir = scratch();
    let Some(device) = Loop::of(&dir.path().join("disk"), &random_bytes(4, ODD)) else { return };
    let receiver = recv("-").start_apart();
    let sender = send(&device.path, receiver.port()).args(&["--window", "1M", "--bwlimit", "256K"]).start();
    sender.says("of 5.24 MB");
    // its end is not waited for
    drop((sender, receiver));
    let receiver = recv(dir.path().join("json")).args(&["--json"]).start();
    let sender = send(&device.path, receiver.port()).args(&["--json"]).outcome();
    for end in [sender, receiver.wait()] {
        let report: serde_json::Value = serde_json::from_slice(&end.out).expect("one JSON object");
        assert_eq!((&report["content_bytes"], &report["device"]), (&ODD.into(), &serde_json::Value::Null));
    }
}

#[test]
fn a_device_into_a_directory_is_refused_with_what_to_name() {
    let dir = scratch();
    let Some(device) = Loop::of(&dir.path().join("disk"), &[7; 512]) else { return };
    fs::create_dir(dir.path().join("there")).unwrap();
    for dest in ["there", "new/"] {
        let receiver = recv(dir.path().join(dest)).start();
        let sender = send(&device.path, receiver.port()).outcome();
        let name = device.path.file_name().unwrap().to_str().unwrap();
        refused([&sender, &receiver.wait()], &["is a directory", &format!("/{name}'")]);
    }
    assert!(!dir.path().join("new").exists());
    assert_eq!(fs::read_dir(dir.path().join("there")).unwrap().count(), 0);
    let several = Run::of("send", Command::new(BLAST), &["send"]).last(dir.path()).last(&device.path);
    several.last(address(1)).outcome().expect(3).tells("a block device is sent alone");
}

#[test]
fn what_comes_lies_at_the_beginning_of_a_device_and_the_rest_stays_as_it_was() {
    let dir = scratch();
    let old = random_bytes(5, ODD);
    for (name, len) in [("one", 1), ("odd", 2 * MIB + 4097), ("whole", ODD)] {
        let Some(device) = Loop::of(&dir.path().join("disk"), &old) else { return };
        let new = random_bytes(len as u64, len);
        let source = dir.path().join(name);
        fs::write(&source, &new).unwrap();
        let receiver = recv(&device.path).start();
        send(&source, receiver.port()).outcome().expect(0);
        let receiver = receiver.wait();
        receiver.expect(0).tells("5,243,392 bytes");
        match len {
            ODD => receiver.tells("written to its end"),
            1 => receiver.tells("its last 5.24 MB (5,243,391 bytes) are as they were"),
            _ => receiver.tells("are as they were"),
        };
        let is = device.content();
        assert!(is[..len] == new && is[len..] == old[len..], "{name}");
        assert_eq!(fs::metadata(&device.file).unwrap().len(), ODD as u64);
    }
}

#[test]
fn a_stream_and_another_device_lie_on_a_device_byte_for_byte() {
    let dir = scratch();
    let content = random_bytes(6, ODD);
    let Some(from) = Loop::of(&dir.path().join("from"), &content) else { return };
    let Some(to) = Loop::of(&dir.path().join("to"), &vec![0xaa; ODD + 512]) else { return };
    let link = dir.path().join("by-id");
    symlink(&to.path, &link).unwrap();
    let receiver = recv(&link).args(&["--json"]).start();
    send(&from.path, receiver.port()).outcome().expect(0);
    let report: serde_json::Value = serde_json::from_slice(&receiver.wait().expect(0).out).expect("one JSON object");
    assert_eq!(report["device"], serde_json::json!({"size": ODD + 512, "left": 512}));
    assert!(to.content()[..ODD] == content && to.content()[ODD..] == [0xaa; 512]);

    to.write(0, &[1; 4096]);
    let receiver = recv(&to.path).start();
    let sender = send("-", receiver.port()).stdin(File::open(&from.path).unwrap()).outcome();
    sender.expect(0);
    receiver.wait().expect(0);
    assert!(to.content()[..ODD] == content);
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_byte() {
    let dir = scratch();
    let old = random_bytes(7, MIB);
    let Some(device) = Loop::of(&dir.path().join("disk"), &old) else { return };
    let source = dir.path().join("large");
    write(&source, random_bytes(8, MIB + 1));
    small(&dir.path().join("tree"), 1);
    let Some(larger) = Loop::of(&dir.path().join("larger"), &random_bytes(9, MIB + 512)) else { return };
    for (source, words) in [
        (&source, ["too small", "1048577 bytes, the device 1048576"]),
        (&larger.path, ["too small", "1049088 bytes, the device 1048576"]),
        (&dir.path().join("tree"), ["is a block device", "name a directory"]),
    ] {
        let receiver = recv(&device.path).start();
        let sender = send(source, receiver.port()).outcome();
        refused([&sender, &receiver.wait()], &words);
    }
    assert!(device.content() == old);
}

#[test]
fn a_stream_that_is_longer_than_the_device_ends_both_with_its_name_and_size() {
    let dir = scratch();
    let Some(device) = Loop::of(&dir.path().join("disk"), &vec![0; MIB + 512]) else { return };
    let receiver = recv(&device.path).start();
    let zeros = File::open("/dev/zero").unwrap();
    let sender = send("-", receiver.port()).stdin(zeros).start().wait();
    let name = device.path.display().to_string();
    for end in [&sender, &receiver.wait()] {
        end.expect(5).claims_nothing().tells(&name).tells("is full: it has 1049088 bytes");
    }
}

/// A file system on a device of ours, mounted.
struct MountedLoop<'a>(&'a Path);

impl Drop for MountedLoop<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_device_that_is_mounted_or_held_is_refused_untouched_and_the_mount_point_named() {
    let dir = scratch();
    let Some(device) = Loop::of(&dir.path().join("disk"), &vec![0; 2 * MIB]) else { return };
    let held = File::options().write(true).custom_flags(OFlags::EXCL.bits() as i32).open(&device.path).unwrap();
    recv(&device.path).outcome().expect(3).claims_nothing().tells("in use by another program");
    drop(held);

    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.path).output();
    let at = dir.path().join("a mount");
    fs::create_dir(&at).unwrap();
    let mounted = made.is_ok_and(|out| out.status.success())
        && Command::new("mount").arg(&device.path).arg(&at).status().is_ok_and(|s| s.success());
    if !mounted {
        eprintln!("SKIPPED: a mounted device: this needs mkfs.ext4, and leave to mount");
        return;
    }
    let mounted = MountedLoop(&at);
    fs::write(at.join("file"), "kept").unwrap();
    let words = format!("is mounted at '{}'", at.display());
    recv(&device.path).outcome().expect(3).claims_nothing().tells(&words);
    assert_eq!(fs::read(at.join("file")).unwrap(), b"kept");

    // To read one that is mounted is allowed, and the risk is told.
    let receiver = recv(dir.path().join("copy")).start();
    let sender = send(&device.path, receiver.port()).outcome();
    sender.expect(0).tells("warning").tells(&words);
    receiver.wait().expect(0);
    assert_eq!(fs::metadata(dir.path().join("copy")).unwrap().len(), 2 * MIB as u64);
    drop(mounted);
}

#[test]
fn sectors_that_cannot_be_read_are_zeros_and_listed_on_both_ends() {
    let dir = scratch();
    let mut content = random_bytes(10, ODD);
    let Some(device) = Loop::of(&dir.path().join("disk"), &content) else { return };
    // The device keeps its size, and has nothing to read behind what is left of its file.
    let left = 3 * MIB + 8192;
    File::options().write(true).open(&device.file).and_then(|f| f.set_len(left as u64)).unwrap();
    content[left..].fill(0);
    let receiver = recv(dir.path().join("copy")).start();
    let sender = send(&device.path, receiver.port()).outcome();
    for end in [&sender, &receiver.wait()] {
        end.expect(1).tells("PARTIAL").tells("read errors").tells(&format!("{left}-{}", ODD - 1));
        assert!(!end.report().contains("whole:"));
    }
    assert!(fs::read(dir.path().join("copy")).unwrap() == content);
}

/// Send a device of 24 MiB to a consumer that reads 4 MiB, then change its size, then let it go on.
fn changed_meanwhile(to: u64) -> Option<(Vec<u8>, Vec<u8>, Outcome, Outcome)> {
    let dir = scratch();
    let content = random_bytes(11, 24 * MIB);
    let device = Loop::of(&dir.path().join("disk"), &content)?;
    let mut receiver = recv("-").args(&["--window", "2M"]).start_apart();
    let sender = send(&device.path, receiver.port()).args(&["--window", "2M", "--compress", "off"]).start();
    let mut out = receiver.take_stdout();
    let mut came = vec![0; 4 * MIB];
    out.read_exact(&mut came).unwrap();
    device.resize(to);
    out.read_to_end(&mut came).unwrap();
    Some((content, came, sender.wait(), receiver.wait()))
}

#[test]
fn a_device_that_becomes_shorter_while_it_is_read_is_filled_up_with_zeros_and_told() {
    let Some((mut content, came, sender, receiver)) = changed_meanwhile(20 * MIB as u64) else { return };
    content[20 * MIB..].fill(0);
    for end in [&sender, &receiver] {
        end.expect(1).tells("it became shorter while it was read: 20971520 of 25165824 bytes");
    }
    assert!(came == content);
}

#[test]
fn a_device_that_goes_away_while_it_is_read_ends_both() {
    let Some((_, came, sender, receiver)) = changed_meanwhile(0) else { return };
    for end in [&sender, &receiver] {
        end.expect(2).claims_nothing().tells("cannot read /dev/loop").tells("No such device");
    }
    assert!(came.len() < 24 * MIB);
}

#[test]
fn there_is_no_success_before_the_device_has_synced() {
    let dir = scratch();
    if !Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).status().is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: a device that cannot sync: this needs strace, and leave to use it");
        return;
    }
    let Some(device) = Loop::of(&dir.path().join("disk"), &vec![0; 2 * MIB]) else { return };
    let source = dir.path().join("s");
    fs::write(&source, random_bytes(12, MIB + 1)).unwrap();
    for fails in [false, true] {
        let trace = dir.path().join("trace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", "trace=openat,fsync,write,pwrite64", "-o"]).arg(&trace);
        if fails {
            strace.args(["-e", "inject=fsync:error=EIO"]);
        }
        let receiver = Run::of("recv", strace, &[BLAST, "recv", "--port", "0"]).last(&device.path).start();
        let sender = send(&source, receiver.port()).outcome();
        let receiver = receiver.wait();
        let calls = fs::read_to_string(&trace).unwrap();
        let opened =
            calls.lines().find(|l| l.contains(device.path.to_str().unwrap()) && l.contains("O_WRONLY")).unwrap();
        assert!(opened.contains("O_EXCL") && !opened.contains("O_CREAT") && !opened.contains("O_TRUNC"), "{opened}");
        if fails {
            for end in [&sender, &receiver] {
                end.expect(5).claims_nothing().tells("cannot sync").tells("Input/output error");
            }
        } else {
            let at = |what: &str| calls.find(what).unwrap_or_else(|| panic!("no {what}: {calls}"));
            assert!(at("fsync(") < at("\"received "), "{calls}");
            assert!(at("fsync(") > calls.rfind("pwrite64(").unwrap(), "{calls}");
            sender.expect(0);
            receiver.expect(0);
        }
    }
}

#[test]
fn a_device_without_content_is_refused_on_either_side() {
    let dir = scratch();
    // Fewer bytes than a sector are no device.
    fs::write(dir.path().join("disk"), [1; 100]).unwrap();
    let Some(device) = Loop::over(&dir.path().join("disk"), &[]) else { return };
    recv(&device.path).outcome().expect(3).tells("it has 0 bytes");
    let sender = send(&device.path, 1).stdin(Stdio::null()).outcome();
    sender.expect(2).tells("it has 0 bytes");
}
