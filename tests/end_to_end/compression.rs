//! Compression as it is by default: what crosses a slow link is less than what is sent, what does not shrink is not
//! blown up, and the reports tell the two apart.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::ends::{BLAST, Outcome, Run, recv, scratch};
use crate::relay::{Relay, Way};
use crate::trees::{assert_same, random_bytes, write};

const LINK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Text of random words, which zstd shrinks to less than a half.
fn words(len: usize) -> Vec<u8> {
    let random = random_bytes(1, len);
    let mut bytes = Vec::with_capacity(len + 16);
    for pair in random.chunks_exact(2) {
        let word = u32::from(pair[0]) * 4 + u32::from(pair[1] % 4);
        bytes.extend_from_slice(format!("{:x} ", word * word * 97).as_bytes());
        if bytes.len() >= len {
            break;
        }
    }
    bytes.truncate(len);
    bytes
}

/// Send files of this content over one link that carries so many bytes a second; the sender's outcome, and the bytes
/// that crossed the link.
fn over_a_slow_link(content: &[u8], bytes_per_second: u64) -> (Outcome, u64) {
    let dir = scratch();
    let (source, dest) = (dir.path().join("s"), dir.path().join("d"));
    let (large, rest) = content.split_at(content.len() / 2);
    write(source.join("large"), large);
    for (i, part) in rest.chunks(100_000).enumerate() {
        write(source.join(format!("small/{i}")), part);
    }
    let crossed = Arc::new(AtomicU64::new(0));
    let counter = crossed.clone();
    let receiver = recv(&dest).start();
    let relay = Relay::start(&[LINK], receiver.port(), move |passing, bytes| {
        if passing.way == Way::Forth {
            counter.fetch_add(bytes.len() as u64, SeqCst);
            thread::sleep(Duration::from_micros(bytes.len() as u64 * 1_000_000 / bytes_per_second));
        }
        true
    });
    let sender = Run::of("send", Command::new(BLAST), &["send", "--link", "127.0.0.2"])
        .last(&source)
        .last(format!("{LINK}:{}", relay.port))
        .outcome();
    let receiver = receiver.wait();
    sender.expect(0);
    receiver.expect(0);
    assert_same(&dest, &source);
    let line = |end: &Outcome| end.report().lines().find(|l| l.starts_with("compressed to ")).map(str::to_owned);
    assert_eq!(line(&sender), line(&receiver), "both ends say what became of it");
    (sender, crossed.load(SeqCst))
}

#[test]
fn text_crosses_a_slow_link_compressed() {
    let len = 32 << 20;
    let (sender, crossed) = over_a_slow_link(&words(len), 12_000_000);
    assert!(crossed < len as u64 * 6 / 10, "{crossed} of {len} bytes: {sender:?}");
    assert!(sender.report().contains("\ncompressed to "), "{sender:?}");
}

#[test]
fn what_does_not_shrink_crosses_a_slow_link_as_it_is() {
    let len = 12 << 20;
    let (sender, crossed) = over_a_slow_link(&random_bytes(2, len), 12_000_000);
    assert!(crossed < len as u64 * 102 / 100, "{crossed} of {len} bytes: {sender:?}");
    assert!(!sender.report().contains("\ncompressed to "), "{sender:?}");
}
