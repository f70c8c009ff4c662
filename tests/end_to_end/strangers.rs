//! Whoever is not a blast, in any number, before and during a transfer: scanners, health checks, idle and slow
//! connections, floods. A receiver goes on waiting, links go on joining, a transfer keeps its speed, and neither the
//! log nor memory nor descriptors nor threads grow with them.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use blast::ids::{LinkId, SessionId};
use blast::wire::{Handshake, Offer, PUBLISHED_KEY, encode_handshake};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use socket2::{Domain, Socket, Type};

use crate::ends::{BLAST, End, PATIENCE, Run, recv, scratch, send};
use crate::first;
use crate::hosts::{Host, Lab, Length, Stream, measuring, of, until};
use crate::trees::{assert_same, small, write};

/// What a receiver hears of one connection at most, and the time in which a link shall join whoever else calls.
const HANDSHAKE: Duration = Duration::from_secs(5);

const MB: u64 = 1 << 20;

/// A connection from one of this machine's addresses.
fn from(source: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect_timeout(&to.into(), Duration::from_secs(1))?;
    Ok(socket.into())
}

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn message(message: &Handshake) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_handshake(message, &PUBLISHED_KEY, &mut bytes);
    bytes
}

/// Whether the other side has closed.
fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut stream = stream;
    !matches!(stream.read(&mut [0]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
}

/// A line of what the kernel knows of a process.
fn status(end: &End, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", end.id())).unwrap();
    let line = status.lines().find(|l| l.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn descriptors(end: &End) -> usize {
    fs::read_dir(format!("/proc/{}/fd", end.id())).unwrap().count()
}

fn turned_away(said: &str) -> Vec<&str> {
    said.lines().filter(|l| l.contains("turned away")).collect()
}

/// Lines about senders that were not welcome, whoever they were.
fn refused(said: &str) -> usize {
    said.lines().filter(|l| l.contains("refused a sender")).count()
}

/// What a sender says first, up to where it has to wait, and what another program's TLS says; made once, since whoever
/// floods does not compute it each time either.
fn greetings() -> Vec<Vec<u8>> {
    let blast = format!("blast/{}", blast::wire::VERSION);
    vec![first::foreign_client(&[blast.as_bytes(), &[7; 32]]), first::foreign_client(&[b"h2", b"http/1.1"])]
}

/// Strangers without end, about a thousand a second.
struct Flood {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// A flood from `source` to `to`, by a thread that `spawn` starts.
    fn start(
        source: Ipv4Addr,
        to: SocketAddr,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> JoinHandle<()>,
    ) -> Flood {
        let greetings = greetings();
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), count.clone());
        let thread = spawn(Box::new(move || {
            let began = Instant::now();
            let mut open = VecDeque::new();
            while !stopped.load(Relaxed) {
                let n = counted.load(Relaxed);
                // a pace, and nothing that is waited for
                thread::sleep(Duration::from_millis(n).saturating_sub(began.elapsed()));
                let Ok(mut stream) = from(source, to) else { continue };
                counted.store(n + 1, Relaxed);
                match n % 8 {
                    // a health check
                    0 => continue,
                    // whole greetings, which are the dearest to hear
                    5 => drop(stream.write_all(&greetings[0])),
                    6 => drop(stream.write_all(&greetings[1])),
                    // a byte of one, and another whenever it is looked at again
                    7 => drop(stream.write_all(&greetings[0][..1])),
                    // one that stays, and says nothing or half of what we would
                    1 => {}
                    2 => drop(stream.write_all(b"blast\r\n\0\x01")),
                    // a link of a session that is none
                    3 => {
                        let (session, nonce) = (SessionId([n as u8; 16]), [0; 16]);
                        drop(stream.write_all(&message(&Handshake::Join { session, link: LinkId(1), nonce })));
                    }
                    _ => drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")),
                }
                open.push_back(stream);
                if open.len() > 200 {
                    open.pop_front();
                }
                let slow = open.iter_mut().rev().nth(7);
                slow.map(|stream: &mut TcpStream| stream.write_all(&greetings[0][1..2]));
            }
        }));
        Flood { stop, count, thread }
    }

    fn on_loopback(source: Ipv4Addr, port: u16) -> Flood {
        Flood::start(source, here(port), thread::spawn)
    }

    fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Wait for so many more.
    fn brings(&self, more: u64) {
        let before = self.count();
        until("strangers", || self.count() >= before + more);
    }

    fn end(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap();
        self.count.load(Relaxed)
    }
}

#[test]
fn silent_strangers_keep_no_sender_out_and_the_oldest_of_them_give_up_their_places() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 1);
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    // more than there are places in all, and more than one address has
    let others: Vec<_> = (2..82).map(|n| from(Ipv4Addr::new(127, 0, 0, n), here(port)).unwrap()).collect();
    let same: Vec<_> = (0..12).map(|_| from(Ipv4Addr::LOCALHOST, here(port)).unwrap()).collect();
    until("the oldest were closed", || is_closed(&others[0]) && is_closed(&same[3]));
    let asked = Instant::now();
    send(&source, port).args(&["--streams", "4"]).outcome().expect(0);
    assert!(asked.elapsed() < HANDSHAKE, "places are given up at once: {:?}", asked.elapsed());
    receiver.wait().expect(0).tells("it said nothing while others came");
    assert_same(dir.path().join("d"), &source);
}

#[test]
fn slow_half_closed_and_foreign_connections_are_closed_as_soon_as_it_is_known_what_they_are() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"x");
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    let ended = |mut stream: TcpStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let asked = Instant::now();
        let got = stream.read(&mut [0]);
        assert!(!matches!(got, Ok(1)), "a stranger gets no answer");
        asked.elapsed()
    };
    // the first byte that we would not say is enough
    for words in [&b"S"[..], b"\x17", b"\x16\x03\x01\xff\xff", b"\n", b"bl\0"] {
        let mut stream = from(Ipv4Addr::new(127, 0, 0, 2), here(port)).unwrap();
        stream.write_all(words).unwrap();
        let took = ended(stream);
        assert!(took < HANDSHAKE / 2, "{words:?}: {took:?}");
    }
    let half = from(Ipv4Addr::new(127, 0, 0, 3), here(port)).unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    let took = ended(half);
    assert!(took < HANDSHAKE / 2, "{took:?}");
    // what could still become ours is heard for so long and no longer, byte by byte
    let slow = from(Ipv4Addr::new(127, 0, 0, 4), here(port)).unwrap();
    let idle = from(Ipv4Addr::new(127, 0, 0, 5), here(port)).unwrap();
    let began = Instant::now();
    let mut pen = slow.try_clone().unwrap();
    let writer = thread::spawn(move || {
        for byte in b"blast\r\n\0\x01\0\x01\0" {
            thread::sleep(Duration::from_secs(1));
            if pen.write_all(&[*byte]).is_err() {
                return;
            }
        }
    });
    ended(slow);
    ended(idle);
    let took = began.elapsed();
    assert!((HANDSHAKE - Duration::from_millis(500)..HANDSHAKE * 2).contains(&took), "{took:?}");
    writer.join().unwrap();
    send(dir.path().join("s"), port).outcome().expect(0);
    receiver.wait().expect(0);
}

#[test]
fn a_flood_costs_a_waiting_receiver_no_thread_no_file_little_memory_and_few_lines() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 1);
    let receiver = recv(dir.path().join("d")).args(&["-v"]).start();
    let port = receiver.port();
    let flood = Flood::on_loopback(Ipv4Addr::new(127, 0, 0, 2), port);
    // as much as this has it once and for all
    flood.brings(200);
    let (threads, memory) = (status(&receiver, "Threads"), receiver.peak_memory());
    let mut most = 0;
    for _ in 0..10 {
        flood.brings(200);
        most = most.max(descriptors(&receiver));
    }
    assert_eq!(status(&receiver, "Threads"), threads);
    let grown = receiver.peak_memory() - memory;
    assert!(grown < MB, "{grown} bytes more for 2000 strangers");
    // 8 places of one address, the listener and what the runtime has
    assert!(most < 32, "{most} descriptors");
    assert!(!dir.path().join("d").exists(), "nothing was created for them");
    send(&source, port).outcome().expect(0);
    let came = flood.end();
    let receiver = receiver.wait();
    receiver.expect(0);
    println!("{came} strangers: {grown} bytes, {most} descriptors at most");
    let lines = turned_away(&receiver.err);
    assert_eq!(lines.len() as u64, 5 + u64::from(came.ilog10()), "{came} strangers: {receiver:?}");
    receiver.tells("turned away 1000 connections that were not blast's, the last from 127.0.0.2");
    assert_same(dir.path().join("d"), &source);
}

#[test]
fn with_few_descriptors_strangers_leave_enough_for_links_and_files() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 1);
    let line = format!("ulimit -n 64; exec {BLAST} recv --port 0 {}", dir.path().join("d").display());
    let receiver = Run::of("recv", Command::new("sh"), &["-c", &line]).start();
    let port = receiver.port();
    let crowd: Vec<_> = (2..102).map(|n| from(Ipv4Addr::new(127, 0, 0, n), here(port)).unwrap()).collect();
    let asked = Instant::now();
    send(&source, port).outcome().expect(0);
    let took = asked.elapsed();
    assert!(took < HANDSHAKE - Duration::from_secs(1), "nobody's deadline is waited for: {took:?}");
    drop(crowd);
    receiver.wait().expect(0);
    assert_same(dir.path().join("d"), &source);
}

#[test]
fn a_receiver_without_a_descriptor_left_neither_ends_nor_spins_and_takes_the_next_sender() {
    let dir = scratch();
    write(dir.path().join("s/f"), b"x");
    let receiver = recv(dir.path().join("d")).start();
    let port = receiver.port();
    // it has raised its limit before it turns anybody away
    drop(from(Ipv4Addr::LOCALHOST, here(port)).unwrap());
    receiver.says("turned away 127.0.0.1");
    let pid = Pid::from_raw(receiver.id() as i32);
    let few = Rlimit { current: Some(3), maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(pid, Resource::Nofile, few).unwrap();
    let ran = || {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", receiver.id())).unwrap();
        Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
    };
    let began = (Instant::now(), ran());
    let _stranger = from(Ipv4Addr::LOCALHOST, here(port)).unwrap();
    let sender = send(dir.path().join("s"), port).start();
    assert!(!sender.ends_within(Duration::from_secs(1)), "nobody takes it: {}", sender.said());
    let (all, spent) = (began.0.elapsed(), ran() - began.1);
    assert!(spent < all / 4, "it ran for {spent:?} of {all:?}");
    prlimit(pid, Resource::Nofile, before).unwrap();
    sender.wait().expect(0);
    receiver.wait().expect(0);
}

#[test]
fn a_flood_from_the_senders_own_address_keeps_none_of_its_links_out() {
    let receiver = recv("-").start();
    let port = receiver.port();
    let flood = Flood::on_loopback(Ipv4Addr::LOCALHOST, port);
    flood.brings(100);
    let asked = Instant::now();
    let mut sender = send("-", port).args(&["-v", "--streams", "8"]).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    until("all have joined", || sender.said().matches("link lo is up").count() >= 8);
    let took = asked.elapsed();
    assert!(took < HANDSHAKE, "{took:?}: {}", sender.said());
    input.write_all(&vec![7; 3 << 20]).unwrap();
    drop(input);
    sender.wait().expect(0);
    assert_eq!(receiver.wait().expect(0).out.len(), 3 << 20);
    println!("8 connections joined in {took:?}; {} strangers", flood.end());
}

#[test]
fn a_flood_takes_no_speed_from_a_transfer_and_a_link_that_comes_back_joins() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    (1..=2).for_each(|link| lab.carries(link, 4 * MB));
    let carried_in = |span: Duration| {
        let (began, before) = (Instant::now(), lab.sent(1));
        thread::sleep(span);
        (lab.sent(1) - before) as f64 / began.elapsed().as_secs_f64()
    };
    let span = Duration::from_millis(1500);
    let alone = carried_in(span);
    // over the receiver's own loopback, so that they need nothing of the link
    let to = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 7411);
    let flood = Flood::start(Ipv4Addr::new(127, 0, 0, 2), to, |work| lab.inside(Host::B, work));
    flood.brings(100);
    let before = flood.count();
    let flooded = carried_in(span);
    let strangers = flood.count() - before;
    println!("{:.2} of the speed with {strangers} strangers in {span:?}", flooded / alone);
    assert!(strangers > 300, "{strangers} are no flood");
    assert!(flooded > 0.8 * alone, "{flooded} of {alone} bytes a second");
    // `ip netns exec` has become the program
    assert!(descriptors(&stream.receiver) < 64);
    // and from the address of the very link that shall join
    lab.reset(2);
    until("link 2 is down", || stream.receiver.said().contains("link l2 is down"));
    let own = SocketAddr::new(IpAddr::from([10, 77, 2, 2]), 7411);
    let same = Flood::start(Ipv4Addr::new(10, 77, 2, 1), own, |work| lab.inside(Host::A, work));
    lab.heal(2);
    let asked = Instant::now();
    until("link 2 is back", || stream.receiver.said().contains("link l2 is back"));
    let took = asked.elapsed();
    println!("joined after {took:?} and {} strangers of its own address", same.count());
    assert!(took < HANDSHAKE, "{took:?}: {}", stream.receiver.said());
    lab.carries(2, 2 * MB);
    same.end();
    flood.end();
    let rows = stream.arrives();
    let lines = turned_away(&rows.receiver.err).len();
    assert!(lines <= 5 + 5, "{rows:?}");
    let refused = refused(&rows.receiver.err);
    assert!((1..=5 + 5).contains(&refused), "{rows:?}");
    assert_eq!(of(&rows.sent(), "l1").outages, 0, "{rows:?}");
}

#[test]
fn whoever_measures_without_end_keeps_no_sender_out() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 1);
    let receiver = recv(dir.path().join("d")).args(&["-v"]).start();
    let port = receiver.port();
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let measures = |n: u8| {
        let (stop, count) = (stop.clone(), count.clone());
        thread::spawn(move || {
            let mut open = VecDeque::new();
            let mut number = 0_u64;
            while !stop.load(Relaxed) {
                let mut session = [n; 16];
                session[..8].copy_from_slice(&number.to_le_bytes());
                number += 1;
                let hello = first::hello(SessionId(session), Offer::Measure);
                let Ok(mut stream) = from(Ipv4Addr::new(127, 0, 0, n), here(port)) else { continue };
                if first::greet_within(&mut stream, &hello, Duration::from_millis(500)).is_ok() {
                    count.fetch_add(1, Relaxed);
                }
                open.push_back(stream);
                if open.len() > 20 {
                    open.pop_front();
                }
            }
        })
    };
    let threads: Vec<_> = (1..=4).map(measures).collect();
    until("they are answered", || count.load(Relaxed) >= 40);
    let asked = Instant::now();
    let sender = send(&source, port).outcome();
    let took = asked.elapsed();
    stop.store(true, Relaxed);
    sender.expect(0);
    assert!(took < HANDSHAKE, "{took:?}");
    for thread in threads {
        thread.join().unwrap();
    }
    let receiver = receiver.wait();
    receiver.expect(0);
    let lines = receiver.err.lines().filter(|l| l.contains("measures the links")).count();
    assert!(lines <= 5 + 4, "{receiver:?}");
    println!("sent in {took:?} beside {} answered measurements", count.load(Relaxed));
    assert_same(dir.path().join("d"), &source);
}
