//! The raw pipe: `send -` into `recv -`, byte for byte, with the stream's own BLAKE3 on both ends.

use std::fs::{self, File};
use std::io::{self, Read};
use std::process::{Command, Stdio};

use crate::ends::{End, recv, scratch, send};
use crate::trees::{digest, random_bytes, text_bytes};

/// Send `content` as a stream, with these options of the sender.
fn pipe(content: &[u8], args: &[&str]) {
    let receiver = recv("-").start();
    let mut sender = send("-", receiver.port()).args(args).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    let hex = blake3::hash(content).to_hex();
    io::Write::write_all(&mut input, content).unwrap();
    drop(input);
    let (sender, receiver) = (sender.wait(), receiver.wait());
    sender.expect(0).tells(&hex);
    receiver.expect(0).tells(&hex);
    assert!(receiver.out == content, "{} bytes of {} arrived {args:?}", receiver.out.len(), content.len());
}

const MIB: usize = 1 << 20;

#[test]
fn streams_of_every_length_around_a_chunk_arrive_and_both_ends_print_their_blake3() {
    for len in [0, 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 3] {
        pipe(&random_bytes(len as u64, len), &[]);
    }
}

#[test]
fn a_closed_standard_output_is_refused_and_one_that_is_thrown_away_is_not() {
    let receive = |to: &str| {
        let line = format!("exec \"$0\" recv --port 0 --timeout 1s - {to}");
        let mut child =
            Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_blast")]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = io::BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        io::BufRead::read_line(&mut said, &mut first).unwrap();
        let _ = child.kill();
        (first, child.wait().unwrap().code())
    };
    let (said, _) = receive(">&-");
    assert!(said.contains("standard output is closed"), "{said}");
    let (said, _) = receive(">/dev/null");
    assert!(said.contains("listening"), "{said}");
}

#[test]
fn streams_arrive_whatever_the_options() {
    let random = random_bytes(7, 12 * MIB + 1);
    let text = text_bytes(12 * MIB + 1);
    for args in [
        &["--streams", "4"][..],
        &["--compress", "3"],
        &["--compress", "3", "--streams", "3", "--schedule", "rr"],
        &["--window", "1M"],
        &["--window", "4M", "--streams", "4"],
    ] {
        pipe(&random, args);
        pipe(&text, args);
    }
}

#[test]
fn compression_shrinks_what_shrinks_and_says_so() {
    let dir = scratch();
    let content = text_bytes(8 * MIB);
    fs::write(dir.path().join("text"), &content).unwrap();
    let receiver = recv(dir.path().join("copy")).start();
    let sender = send(dir.path().join("text"), receiver.port()).args(&["--compress", "3"]).outcome();
    receiver.wait().expect(0);
    sender.expect(0);
    assert!(fs::read(dir.path().join("copy")).unwrap() == content);
    let row = sender.report().lines().find(|l| l.trim_start().starts_with("lo ")).expect("a row for the link");
    assert!(row.contains(" MB") && !row.contains("8.") || row.contains(" kB"), "fewer bytes than were sent: {row}");
}

/// The first `len` bytes of a device of zeros or of a pipe, as a stream of its own.
fn drain(mut receiver: End) -> ([u8; 32], u64, End) {
    let mut output = receiver.take_stdout();
    let mut counted = Counted { inner: &mut output, len: 0 };
    let digest = digest(&mut counted);
    let len = counted.len;
    (digest, len, receiver)
}

struct Counted<'a, R> {
    inner: &'a mut R,
    len: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.len += n as u64;
        Ok(n)
    }
}

#[test]
fn a_stream_beyond_two_gibibytes_is_counted_whole() {
    let len: u64 = (1 << 31) + 1;
    let receiver = recv("-").start_apart();
    let mut producer = Command::new("head");
    producer.args(["-c", &len.to_string(), "/dev/zero"]).stdout(Stdio::piped());
    let mut producer = producer.spawn().unwrap();
    let sender = send("-", receiver.port()).stdin(producer.stdout.take().unwrap()).start();
    let (arrived, count, receiver) = drain(receiver);
    let sender = sender.wait();
    let receiver = receiver.wait();
    assert!(producer.wait().unwrap().success());
    assert_eq!(count, len);
    let hex = blake3::Hash::from_bytes(arrived).to_hex();
    sender.expect(0).tells(&hex).tells("2,147,483,649 bytes");
    receiver.expect(0).tells(&hex).tells("2,147,483,649 bytes");
}

/// Whether the long runs are asked for; says so if not.
fn is_long(what: &str) -> bool {
    let long = std::env::var_os("BLAST_LARGE").is_some();
    if !long {
        eprintln!("SKIPPED: {what}: BLAST_LARGE=1 asks for it");
    }
    long
}

#[test]
fn files_beyond_four_and_eight_gibibytes_keep_their_size_and_leave_what_follows_intact() {
    if !is_long("files of 21 GB, all holes") {
        return;
    }
    let dir = scratch();
    let source = dir.path().join("s");
    fs::create_dir(&source).unwrap();
    let sizes = [(1u64 << 32) - 1, 1 << 32, (1 << 33) - 1, 1 << 33];
    for size in sizes {
        File::create(source.join(size.to_string())).unwrap().set_len(size).unwrap();
        fs::write(source.join(format!("{size}.after")), b"E").unwrap();
    }
    let mut receiver = recv("-").start_apart();
    let output = receiver.take_stdout();
    let sender = send(&source, receiver.port()).start();
    let listed = Command::new("tar").args(["-tvf", "-"]).stdin(output).output().expect("tar");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for size in sizes {
        for (name, size) in [(size.to_string(), size), (format!("{size}.after"), 1)] {
            let line = listed.lines().find(|l| l.ends_with(&format!(" {name}"))).expect("it is listed");
            assert_eq!(line.split_whitespace().nth(2), Some(&*size.to_string()), "{line}");
        }
    }
    sender.wait().expect(0);
    receiver.wait().expect(0);
}

#[test]
fn one_file_beyond_eight_gibibytes_arrives_as_its_bytes() {
    if !is_long("a file of 8.6 GB, all holes") {
        return;
    }
    let dir = scratch();
    let len = (1u64 << 33) + 1;
    File::create(dir.path().join("f")).unwrap().set_len(len).unwrap();
    let receiver = recv("-").start_apart();
    let sender = send(dir.path().join("f"), receiver.port()).start();
    let (arrived, count, receiver) = drain(receiver);
    assert_eq!(count, len);
    let hex = blake3::Hash::from_bytes(arrived).to_hex();
    sender.wait().expect(0).tells(&hex).tells("8,589,934,593 bytes");
    receiver.wait().expect(0).tells(&hex);
}
