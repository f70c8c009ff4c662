//! The raw pipe: `send -` into `recv -`, byte for byte, with the stream's own BLAKE3 on both ends.

use std::fs;
use std::io::{self, Read};
use std::process::Stdio;

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
    let mut producer = std::process::Command::new("head");
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
