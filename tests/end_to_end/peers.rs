//! Whoever else may be at the other end: nobody, a stranger, another version, a second sender, the receiver of a moment
//! ago. Each is told apart at once and in words, and a receiver that was disturbed goes on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use blast::wire::{HEADER_LEN, PREFIX_LEN, PUBLISHED_KEY, VERSION};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

use crate::ends::{Outcome, recv, recv_on, scratch, send};
use crate::first;
use crate::trees::{assert_same, random_bytes, small, write};

/// What must be seen at once; far below any timeout of the program, well above what a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(1);

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Everything the other side says before it closes.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // a reset is a close as well
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn strangers_are_turned_away_at_once_and_the_receiver_goes_on() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 1);
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    for words in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &first::foreign_client(&[b"h2", b"http/1.1"]),
        &first::foreign_client(&[]),
        &[&b"\x16\x03\x01\x00\x40"[..], &[0; 64]].concat(),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        &random_bytes(1, 10_000),
        &[0; 16],
        &[&b"blast\r\n\0"[..], &VERSION.to_le_bytes(), b" and no more sense than that"].concat(),
    ] {
        let began = Instant::now();
        let mut stranger = connect(port);
        // it may be closed while we still speak
        let _ = stranger.write_all(words);
        assert!(until_closed(&mut stranger).is_empty(), "a stranger gets no answer");
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
    receiver.says("turned away 127.0.0.1");
    assert!(!dir.path().join("d").exists(), "nothing was created for them");
    send(&source, port).outcome().expect(0);
    receiver.wait().expect(0);
    assert_same(dir.path().join("d"), &source);
}

#[test]
fn a_scan_of_the_port_does_not_fill_the_log_nor_stop_the_receiver() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"x");
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    for _ in 0..200 {
        let mut stranger = connect(port);
        let _ = stranger.write_all(b"\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n");
        until_closed(&mut stranger);
    }
    send(dir.path().join("s"), port).outcome().expect(0);
    let receiver = receiver.wait();
    receiver.expect(0);
    let lines = receiver.err.lines().filter(|l| l.contains("turned away"));
    assert_eq!(lines.count(), 5 + 2, "{receiver:?}");
    receiver.tells("turned away 100 connections that were not blast's, the last from 127.0.0.1");
}

/// The beginning of a handshake message as another version has it, and as much of a body as it likes.
fn of_version(version: u16, kind: u8) -> Vec<u8> {
    let mut bytes = b"blast\r\n\0".to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[kind, 0, 100, 0, 0, 0]);
    bytes.extend_from_slice(&[7; 116]);
    bytes
}

#[test]
fn a_sender_of_another_version_is_answered_in_words_that_it_understands() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"x");
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    // in plain, and in TLS as this version has it
    let protocol = format!("blast/{}", VERSION + 41);
    let versions = [VERSION.to_string(), (VERSION + 41).to_string()];
    for hello in [of_version(VERSION + 41, 1), first::foreign_client(&[protocol.as_bytes(), &[7; 32]])] {
        let began = Instant::now();
        let mut other = connect(port);
        other.write_all(&hello).unwrap();
        let answer = until_closed(&mut other);
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        // Refuse is the same in every version: prefix, code 3, words, and a tag under the published key.
        assert_eq!((&answer[..8], answer[10]), (&b"blast\r\n\0"[..], 5), "{answer:?}");
        let (said, tag) = answer.split_at(answer.len() - 16);
        assert_eq!(&blake3::keyed_hash(&PUBLISHED_KEY.0, said).as_bytes()[..16], tag);
        assert_eq!(said[PREFIX_LEN], 3);
        let words = std::str::from_utf8(&said[PREFIX_LEN + 1..]).unwrap();
        assert!(versions.iter().all(|v| words.contains(v)), "both versions are named: {words}");
        receiver.says(&versions[1]);
    }
    send(dir.path().join("s"), port).outcome().expect(0);
    receiver.wait().expect(0);
}

/// A listener that answers the first connection with these bytes and closes; what the sender made of it.
fn answered(answer: Vec<u8>, bound: Duration) -> Outcome {
    let dir = scratch();
    write(dir.path().join("f"), b"x");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; HEADER_LEN];
        stream.read_exact(&mut hello[..PREFIX_LEN]).unwrap();
        stream.write_all(&answer).unwrap();
        // Kept until the sender has gone, so that it is not the end of the connection that it sees.
        until_closed(&mut stream);
    });
    let sender = send(dir.path().join("f"), port).start().wait_within(bound);
    server.join().unwrap();
    sender
}

#[test]
fn a_receiver_of_another_version_is_refused_at_once_and_both_versions_are_named() {
    let sender = answered(of_version(VERSION + 41, 2), AT_ONCE);
    sender.expect(3).claims_nothing().tells(&VERSION.to_string()).tells(&(VERSION + 41).to_string());
}

#[test]
fn what_listens_there_and_is_not_blast_is_named_at_once() {
    for banner in [&b"SSH-2.0-OpenSSH_9.6p1 Debian\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 64]] {
        let sender = answered(banner.to_vec(), AT_ONCE);
        assert!([3, 4].contains(&sender.code.unwrap()), "{sender:?}");
        sender.claims_nothing().tells("does not speak blast");
        assert!(sender.err.bytes().all(|b| b == b'\n' || b >= b' '), "{sender:?}");
    }
}

#[test]
fn a_listener_that_says_nothing_is_left_after_a_bounded_time() {
    let began = Instant::now();
    let sender = answered(Vec::new(), Duration::from_secs(10));
    sender.expect(4).claims_nothing().tells("no answer to the handshake within 5 s");
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
}

/// A port that is ours and on which nobody listens; a receiver can listen on it nevertheless.
fn reserved() -> (Socket, u16) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    (socket, port)
}

#[test]
fn a_refused_connection_is_tried_again_for_ten_seconds_since_scripts_start_both_ends_at_once() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"x");
    let (_nobody, port) = reserved();
    let in_vain = send(dir.path().join("s"), port).start();
    // A receiver that comes meanwhile is found.
    let (_reserved, later) = reserved();
    let early = send(dir.path().join("s"), later).start();
    assert!(!early.ends_within(Duration::from_millis(500)), "it waits: {}", early.said());
    let receiver = recv_on(later, dir.path().join("d")).start();
    early.wait().expect(0);
    receiver.wait().expect(0);
    let sender = in_vain.wait();
    sender.expect(4).claims_nothing().tells("connection refused").tells(&format!("127.0.0.1:{port}"));
    let took = sender.took.as_secs_f32();
    assert!((9.5..16.0).contains(&took), "{took} s");
}

#[test]
fn a_second_sender_is_told_that_the_receiver_is_busy_and_the_first_goes_on() {
    let dir = scratch();
    write(dir.path().join("f"), b"x");
    let content = random_bytes(2, (1 << 20) + 1);
    let receiver = recv("-").start();
    let mut first = send("-", receiver.port()).stdin(Stdio::piped()).start();
    let mut input = first.take_stdin();
    input.write_all(&content).unwrap();
    receiver.brings(1 << 20);
    let second = send(dir.path().join("f"), receiver.port()).outcome();
    second.expect(3).claims_nothing().tells("busy with another sender");
    assert!(second.took < AT_ONCE * 2, "{second:?}");
    drop(input);
    first.wait().expect(0);
    let receiver = receiver.wait();
    receiver.expect(0);
    assert!(receiver.out == content);
}

#[test]
fn a_port_is_free_again_at_once_and_never_shared_with_a_live_receiver() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"x");
    let on = |dest: &str, port: u16| recv_on(port, dir.path().join(dest));
    let first = recv(dir.path().join("1")).start();
    let port = first.port();
    send(dir.path().join("s"), port).outcome().expect(0);
    first.wait().expect(0);
    // At once after a success, and at once after one that was killed in the middle.
    let second = on("2", port).start();
    second.says("listening");
    let sender = send("-", second.port()).stdin(Stdio::piped()).start();
    second.says("connected");
    second.signal(Signal::KILL);
    drop((second, sender));
    let third = on("3", port).start();
    third.says("listening");
    let clash = on("4", port).outcome();
    assert!(clash.code != Some(0) && clash.took < AT_ONCE, "{clash:?}");
    clash.claims_nothing().tells(&port.to_string()).tells("in use").tells(&format!("process {} (blast)", third.id()));
    assert!(!dir.path().join("4").exists());
    send(dir.path().join("s"), port).outcome().expect(0);
    third.wait().expect(0);
}
