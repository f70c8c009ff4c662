//! `recv --sparse`: zeros are not written where they need not be, and what arrives is the same.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::ends::{BLAST, Run, recv, scratch, send};
use crate::loops::Loop;
use crate::trees::{random_bytes, small};

const MIB: usize = 1 << 20;

/// Bytes that a file takes.
fn taken(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// Zeros with a little at odd places between them: 9 MiB and some, of which 1 MiB and two blocks are no zeros.
fn mostly_zeros(end: &[u8]) -> Vec<u8> {
    let mut content = vec![0; 9 * MIB + 4095];
    content[3 * MIB + 5..4 * MIB + 5].copy_from_slice(&random_bytes(1, MIB));
    content[6 * MIB - 1] = 1;
    content.extend_from_slice(end);
    content
}

#[test]
fn zeros_become_holes_of_a_file_and_its_size_and_bytes_are_exact() {
    let dir = scratch();
    for (name, content, most) in [
        ("ends in zeros", mostly_zeros(&[0]), MIB + 5 * 4096),
        ("ends in a byte", mostly_zeros(&[7]), MIB + 6 * 4096),
        ("zeros", vec![0; 16 * MIB + 1], 0),
        ("short zeros", vec![0; 3], 0),
        ("nothing", vec![], 0),
    ] {
        let source = dir.path().join(name);
        fs::write(&source, &content).unwrap();
        let hex = blake3::hash(&content).to_hex();
        for stream in [false, true] {
            let dest = dir.path().join(format!("{name} {stream}"));
            let receiver = recv(&dest).args(&["--sparse"]).start();
            let sender = match stream {
                true => send("-", receiver.port()).stdin(File::open(&source).unwrap()),
                false => send(&source, receiver.port()),
            };
            sender.outcome().expect(0).tells(&hex);
            receiver.wait().expect(0).tells(&hex);
            assert!(fs::read(&dest).unwrap() == content, "{name}");
            assert!(taken(&dest) <= most as u64, "{name} takes {} bytes", taken(&dest));
        }
    }
    let plain = dir.path().join("plain");
    let receiver = recv(&plain).start();
    send(dir.path().join("zeros"), receiver.port()).outcome().expect(0);
    receiver.wait().expect(0);
    assert!(taken(&plain) >= 16 * MIB as u64, "zeros are written unless asked otherwise");
}

#[test]
fn a_device_zeroes_itself_or_is_written_to_if_it_cannot() {
    let dir = scratch();
    let content = mostly_zeros(&[0; 1]);
    let source = dir.path().join("source");
    fs::write(&source, &content).unwrap();
    let traced = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).status().is_ok_and(|s| s.success());
    for can in [true, false] {
        if !can && !traced {
            eprintln!("SKIPPED: a device that cannot zero itself: this needs strace, and leave to use it");
            return;
        }
        let old = random_bytes(2, content.len().next_multiple_of(512) + 512);
        let Some(device) = Loop::of(&dir.path().join("disk"), &old) else { return };
        let receiver = match can {
            true => recv(&device.path).args(&["--sparse"]).start(),
            false => {
                let mut strace = Command::new("strace");
                strace.args(["-f", "-o", "/dev/null", "-e", "inject=fallocate:error=EOPNOTSUPP"]);
                Run::of("recv", strace, &[BLAST, "recv", "--sparse", "--port", "0"]).last(&device.path).start()
            }
        };
        send(&source, receiver.port()).outcome().expect(0);
        receiver.wait().expect(0);
        let is = device.content();
        assert!(is[..content.len()] == content, "nothing of what was there shines through");
        assert!(is[content.len()..] == old[content.len()..]);
        if can {
            assert!(taken(&device.file) <= 3 * MIB as u64, "{} bytes are taken", taken(&device.file));
        }
    }
}

#[test]
fn zeros_behind_the_end_of_a_device_are_not_taken_for_written() {
    let dir = scratch();
    let Some(device) = Loop::of(&dir.path().join("disk"), &vec![1; 2 * MIB + 512]) else { return };
    let receiver = recv(&device.path).args(&["--sparse"]).start();
    let sender = send("-", receiver.port()).stdin(File::open("/dev/zero").unwrap()).start();
    for end in [sender.wait(), receiver.wait()] {
        end.expect(5).claims_nothing().tells("is full: it has 2097664 bytes");
    }
}

#[test]
fn a_tree_is_not_asked_for_holes_that_it_did_not_have() {
    let dir = scratch();
    small(&dir.path().join("tree"), 3);
    let receiver = recv(dir.path().join("dest")).args(&["--sparse"]).start();
    let sender = send(dir.path().join("tree"), receiver.port()).outcome();
    for end in [&sender, &receiver.wait()] {
        end.expect(3).claims_nothing().tells("--sparse is for one file or a block device");
    }
    assert!(!dir.path().join("dest").exists());
}
