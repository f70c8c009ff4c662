//! Files with holes arrive with their bytes and with their holes, in no more time and on no more disk than their data
//! takes; and zeros that are there stay there.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, SeekFrom, seek};

use crate::ends::{recv, scratch, send, transfer};
use crate::trees::{assert_same, random_bytes};

/// Bytes and where they are in a file.
type Data<'a> = (u64, &'a [u8]);

/// A file of that length which is data in these places only.
fn sparse(path: &Path, len: u64, data: &[Data<'_>]) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    data.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
}

/// A scratch directory whose file system keeps holes.
fn holey() -> Option<tempfile::TempDir> {
    let dir = scratch();
    sparse(&dir.path().join("probe"), 1 << 20, &[(1 << 19, b"x")]);
    let keeps = fs::metadata(dir.path().join("probe")).unwrap().blocks() * 512 < 1 << 19;
    fs::remove_file(dir.path().join("probe")).unwrap();
    if !keeps {
        eprintln!("SKIPPED: a test of holes: the file system for temporary files keeps none");
    }
    keeps.then_some(dir)
}

/// Where a file has data, as its file system says.
fn data(file: &File, len: u64) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < len
        && let Ok(data) = seek(file, SeekFrom::Data(at))
    {
        at = seek(file, SeekFrom::Hole(data)).unwrap();
        found.push((data, at));
    }
    found
}

/// That two files have the same bytes; holes are not read.
#[track_caller]
fn assert_bytes(is: &Path, should: &Path) {
    let (is_file, should_file) = (File::open(is).unwrap(), File::open(should).unwrap());
    let len = should_file.metadata().unwrap().len();
    assert_eq!(is_file.metadata().unwrap().len(), len, "length of {is:?}");
    let mut bufs = [vec![0; 1 << 20], vec![0; 1 << 20]];
    for (mut at, end) in [data(&is_file, len), data(&should_file, len)].concat() {
        while at < end {
            let n = (end - at).min(1 << 20) as usize;
            is_file.read_exact_at(&mut bufs[0][..n], at).unwrap();
            should_file.read_exact_at(&mut bufs[1][..n], at).unwrap();
            assert!(bufs[0][..n] == bufs[1][..n], "bytes of {is:?} between {at} and {}", at + n as u64);
            at += n as u64;
        }
    }
}

fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// That every file of `is` is that of `should`, in bytes and in what it takes of the disk.
#[track_caller]
fn assert_copied(is: &Path, should: &Path) {
    let (mut ours, mut theirs, mut files) = (0, 0, 0);
    for entry in fs::read_dir(should).unwrap() {
        let (name, path) = entry.map(|e| (e.file_name(), e.path())).unwrap();
        assert_bytes(&is.join(&name), &path);
        let (is, should) = (allocated(&is.join(&name)), allocated(&path));
        // what a file system takes to find the data is its own affair
        assert!(is <= should + should / 100 + (64 << 10), "{name:?} takes {is} bytes of the disk instead of {should}");
        (ours, theirs, files) = (ours + is, theirs + should, files + 1);
    }
    assert!(ours <= theirs + theirs / 100, "all of it takes {ours} bytes of the disk instead of {theirs}");
    assert_eq!(fs::read_dir(is).unwrap().count(), files, "nothing else is there");
}

/// Every shape that has been somebody's trouble.
fn shapes(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let at = |name: &str| dir.join(name);
    let noise = random_bytes(9, 3 << 20);
    sparse(&at("all hole"), 64 << 20, &[]);
    sparse(&at("all hole, odd"), (64 << 20) + 77, &[]);
    sparse(&at("leading, and one byte"), (64 << 20) - 1, &[((64 << 20) - 2, b"D")]);
    sparse(&at("trailing, and one byte"), 1 << 30, &[(0, b"D")]);
    sparse(&at("12 bytes after a megabyte"), (1 << 20) + 12, &[(1 << 20, b"12 through\n.")]);
    sparse(&at("beyond 8 GiB"), 12 << 30, &[(0, &noise[..5000]), (9 << 30, &noise), ((12 << 30) - 9, b"the end.\n")]);
    sparse(&at("larger than a chunk with its data"), 100 << 20, &[(777, &noise), (50 << 20, &noise[..1_500_001])]);
    sparse(&at("small"), 700_001, &[(300_000, &noise[..5000]), (700_000, b"x")]);
    sparse(&at("one page that is missing"), 900_000, &[(0, &noise[..8192]), (12_288, &noise[..887_712])]);
    sparse(&at("smallest"), 8192, &[(4096, b"x")]);
    sparse(&at(&"n".repeat(255)), 3 << 20, &[(1 << 20, &noise[..9000])]);
    for (name, count, step, len) in [("60 fragments", 60, 65536, 1), ("10,000 fragments", 10_000, 12_288, 4096)] {
        let file = File::create(at(name)).unwrap();
        (0..count).for_each(|i| file.write_all_at(&noise[i as usize..][..len], i * step).unwrap());
        file.set_len(count * step + 777).unwrap();
    }
    // What looks like holes and is none.
    sparse(&at("zeros"), 5 << 20, &[(0, &vec![0; 5 << 20])]);
    let allocated = File::create(at("allocated")).unwrap();
    if rustix::fs::fallocate(&allocated, FallocateFlags::empty(), 0, 6 << 20).is_err() {
        allocated.write_all_at(&vec![0; 6 << 20], 0).unwrap();
    }
    fs::hard_link(at("small"), at("small again")).unwrap();
    fs::hard_link(at("all hole"), at("all hole again")).unwrap();
    fs::hard_link(at("beyond 8 GiB"), at("beyond 8 GiB again")).unwrap();
}

#[test]
fn every_shape_arrives_with_its_bytes_and_its_holes() {
    let Some(dir) = holey() else { return };
    let (tree, dest) = (dir.path().join("tree"), dir.path().join("dest"));
    shapes(&tree);
    let (sender, _) = transfer(&tree, &dest, &["--json"]);
    assert_copied(&dest, &tree);
    for name in ["zeros", "allocated"] {
        assert_eq!(allocated(&dest.join(name)), allocated(&tree.join(name)), "{name} stays allocated");
    }
    for name in ["small", "all hole", "beyond 8 GiB"] {
        let inode = |name: &str| fs::metadata(dest.join(name)).unwrap().ino();
        assert_eq!(inode(name), inode(&format!("{name} again")));
    }
    let report: serde_json::Value = serde_json::from_str(sender.report()).unwrap();
    let data: u64 = [3 << 20, 5 << 20, 6 << 20, 10_000 * 4096, 3 << 20, 1_500_001].iter().sum();
    let told = report["content_bytes"].as_u64().unwrap();
    assert!(told < data + (3 << 20), "holes are no content: {told}");
}

#[test]
fn a_tebibyte_of_nothing_takes_no_time_and_no_room() {
    let Some(dir) = holey() else { return };
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    sparse(&tree.join("disk"), 1 << 40, &[]);
    // As part of a tree, and alone.
    for (source, dest) in [(tree.clone(), "a"), (tree.join("disk"), "b/")] {
        let dest = dir.path().join(dest);
        let started = Instant::now();
        let (sender, _) = transfer(&source, dest.to_str().unwrap(), &["--json"]);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let report: serde_json::Value = serde_json::from_str(sender.report()).unwrap();
        let wire: u64 = report["links"].as_array().unwrap().iter().map(|l| l["wire_bytes"].as_u64().unwrap()).sum();
        assert!(wire < 1 << 20, "{wire} bytes were sent");
        let meta = fs::metadata(dest.join("disk")).unwrap();
        assert_eq!(meta.len(), 1 << 40);
        assert!(meta.blocks() * 512 <= 64 << 10);
    }
}

#[test]
fn a_file_sent_alone_keeps_its_holes_whatever_its_size() {
    let Some(dir) = holey() else { return };
    let shapes: [(&str, u64, &[Data<'_>]); 4] = [
        ("tiny", 8192, &[(4096, b"x")]),
        ("small", 1 << 20, &[(4096, b"x")]),
        ("middle", 20 << 20, &[(4096, b"x"), (10 << 20, b"y")]),
        ("long", 40 << 20, &[(4096, &[b'x'; 2 << 20])]),
    ];
    for (name, len, data) in shapes {
        let (file, dest) = (dir.path().join(name), dir.path().join(format!("{name}.d/")));
        sparse(&file, len, data);
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        let receiver = recv(&dest).args(&["--manifest", theirs.to_str().unwrap()]).start();
        send(&file, receiver.port()).args(&["--manifest", ours.to_str().unwrap()]).outcome().expect(0);
        receiver.wait().expect(0);
        assert_bytes(&dest.join(name), &file);
        assert!(allocated(&dest.join(name)) <= allocated(&file), "{name}");
        let line = format!("{}  {name}\n", blake3::hash(&fs::read(&file).unwrap()));
        assert_eq!(fs::read_to_string(&ours).unwrap(), line);
        assert_eq!(fs::read_to_string(&theirs).unwrap(), line);
    }
}

#[test]
fn the_manifests_of_both_ends_have_the_digest_of_holes_and_data() {
    let Some(dir) = holey() else { return };
    let (tree, dest) = (dir.path().join("tree"), dir.path().join("dest"));
    shapes(&tree);
    // too long to be hashed by this test
    for name in ["beyond 8 GiB", "beyond 8 GiB again", "trailing, and one byte"] {
        fs::remove_file(tree.join(name)).unwrap();
    }
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let receiver = recv(&dest).args(&["--manifest", theirs.to_str().unwrap()]).start();
    send(&tree, receiver.port()).args(&["--manifest", ours.to_str().unwrap()]).outcome().expect(0);
    receiver.wait().expect(0);
    assert_copied(&dest, &tree);
    assert_eq!(fs::read_to_string(&ours).unwrap(), fs::read_to_string(&theirs).unwrap());
    let manifest = fs::read_to_string(&ours).unwrap();
    for entry in fs::read_dir(&tree).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let line = format!("{}  {name}\n", blake3::hash(&fs::read(&path).unwrap()));
        assert!(manifest.contains(&line), "{line:?} is missing in\n{manifest}");
    }
}

#[test]
fn without_looking_for_holes_all_is_read_and_written() {
    let Some(dir) = holey() else { return };
    let (tree, dest) = (dir.path().join("tree"), dir.path().join("dest"));
    fs::create_dir(&tree).unwrap();
    sparse(&tree.join("large"), 9 << 20, &[(5 << 20, b"x")]);
    sparse(&tree.join("small"), 300_000, &[(5000, b"x")]);
    transfer(&tree, &dest, &["--no-sparse"]);
    assert_same(&dest, &tree);
    for name in ["large", "small"] {
        let len = fs::metadata(tree.join(name)).unwrap().len();
        assert!(allocated(&dest.join(name)) >= len, "{name} has no holes any more");
    }
}

#[test]
fn tar_reads_holes_from_the_archive() {
    let Some(dir) = holey() else { return };
    let (tree, archive) = (dir.path().join("tree"), dir.path().join("archive.tar"));
    shapes(&tree);
    let to_pipe = recv("-").start();
    send(&tree, to_pipe.port()).outcome().expect(0);
    let piped = to_pipe.wait();
    // What is there and is a file takes a tree as its archive.
    fs::write(&archive, "").unwrap();
    fs::create_dir(dir.path().join("x")).unwrap();
    let to_file = recv(&archive).start();
    send(&tree, to_file.port()).outcome().expect(0);
    to_file.wait().expect(0);
    assert!(piped.expect(0).out == fs::read(&archive).unwrap(), "both are the same archive");
    for program in ["tar", "bsdtar"] {
        let dest = dir.path().join("x").join(program);
        fs::create_dir(&dest).unwrap();
        let mut command = Command::new(program);
        command.args(["-xpf"]).arg(&archive).arg("-C").arg(&dest).env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        match command.output() {
            Ok(done) => assert!(done.status.success() && done.stderr.is_empty(), "{program}: {done:?}"),
            Err(_) => {
                eprintln!("SKIPPED: there is no {program} here; scripts/test installs it");
                continue;
            }
        }
        assert_copied(&dest, &tree);
    }
}
