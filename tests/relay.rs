//! A relay between the two ends: it can count what passes, change bits of it, and cut everything at a chosen byte. Its
//! connections to the receiver come from the address that the sender dialled, so that every listening address of the
//! relay is a link of its own to both ends.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use socket2::{Domain, Socket, Type};

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Way {
    /// From the sender to the receiver.
    Forth,
    /// From the receiver to the sender.
    Back,
}

/// What a relay does to bytes. `at` is where they begin in this connection and way, `link` the address that the sender
/// dialled, `connection` how many came before on any address. False cuts everything, these bytes included. No bytes are
/// the end of this way of the connection, which has been passed on.
pub type Act = dyn Fn(&Passing, &mut [u8]) -> bool + Send + Sync;

/// Some bytes on their way through.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    pub link: Ipv4Addr,
    pub connection: u64,
    pub way: Way,
    pub at: u64,
    /// Bytes that have passed in both ways and on all connections before these.
    pub total: u64,
}

/// A relay at work; it ends with the test.
pub struct Relay {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    to: u16,
    act: Box<Act>,
    total: AtomicU64,
    connections: AtomicU64,
    cut: AtomicBool,
    streams: Mutex<Vec<(Ipv4Addr, TcpStream)>>,
    listeners: Mutex<Vec<SocketAddr>>,
}

impl Relay {
    /// Listen on each of `links`, all on one port, and pass everything on to `to` on this machine.
    pub fn start(
        links: &[Ipv4Addr],
        to: u16,
        act: impl Fn(&Passing, &mut [u8]) -> bool + Send + Sync + 'static,
    ) -> Relay {
        let listeners = listen(links);
        let port = listeners[0].local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            to,
            act: Box::new(act),
            total: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            streams: Mutex::default(),
            listeners: Mutex::new(listeners.iter().map(|l| l.local_addr().unwrap()).collect()),
        });
        for listener in listeners {
            let shared = shared.clone();
            thread::spawn(move || shared.serve(&listener));
        }
        Relay { port, shared }
    }

    /// Close what passes over one address, as a middlebox does that has had enough; others may come after.
    pub fn close(&self, link: Ipv4Addr) {
        for (_, stream) in self.shared.streams.lock().unwrap().extract_if(.., |(own, _)| *own == link) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Bytes that have passed.
    pub fn total(&self) -> u64 {
        self.shared.total.load(SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.cut();
    }
}

/// One listener for each address; the first chooses a port that the others must find free too.
pub fn listen(links: &[Ipv4Addr]) -> Vec<TcpListener> {
    loop {
        let first = TcpListener::bind((links[0], 0)).expect("a free port");
        let port = first.local_addr().unwrap().port();
        let others: Result<Vec<_>, _> = links[1..].iter().map(|ip| TcpListener::bind((*ip, port))).collect();
        if let Ok(others) = others {
            return std::iter::once(first).chain(others).collect();
        }
    }
}

/// A connection to a port of this machine, from that address of it.
pub fn dial(from: Ipv4Addr, to: u16) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, to)).into())?;
    Ok(socket.into())
}

impl Shared {
    fn serve(self: Arc<Shared>, listener: &TcpListener) {
        let IpAddr::V4(link) = listener.local_addr().unwrap().ip() else { unreachable!("we listen on IPv4") };
        for near in listener.incoming() {
            if self.cut.load(SeqCst) {
                return;
            }
            let (Ok(near), Ok(far)) = (near, dial(link, self.to)) else { continue };
            let connection = self.connections.fetch_add(1, SeqCst);
            {
                let mut streams = self.streams.lock().unwrap();
                streams.push((link, near.try_clone().unwrap()));
                streams.push((link, far.try_clone().unwrap()));
            }
            for (from, to, way) in
                [(near.try_clone().unwrap(), far.try_clone().unwrap(), Way::Forth), (far, near, Way::Back)]
            {
                let shared = self.clone();
                thread::spawn(move || shared.pass(from, to, link, connection, way));
            }
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, link: Ipv4Addr, connection: u64, way: Way) {
        let mut bytes = vec![0; 256 << 10];
        let mut at = 0;
        let _ = from.set_nodelay(true);
        let act = |n: usize, at, bytes: &mut [u8]| {
            let total = self.total.fetch_add(n as u64, SeqCst);
            let goes_on = (self.act)(&Passing { link, connection, way, at, total }, bytes);
            if !goes_on {
                self.cut();
            }
            goes_on
        };
        loop {
            match from.read(&mut bytes) {
                Ok(0) => {
                    // the end of one way is passed on; the other may have more to say
                    let _ = to.shutdown(Shutdown::Write);
                    break;
                }
                Ok(n) if !act(n, at, &mut bytes[..n]) => return,
                Ok(n) if to.write_all(&bytes[..n]).is_ok() => at += n as u64,
                _ => {
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                    break;
                }
            }
        }
        act(0, at, &mut []);
    }

    /// Close everything and listen no more.
    fn cut(&self) {
        self.cut.store(true, SeqCst);
        for (_, stream) in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for listener in self.listeners.lock().unwrap().drain(..) {
            // one more connection, so that it looks at the mark and ends
            let _ = TcpStream::connect(listener);
        }
    }
}

/// What a piece of a connection belongs to; the numbers are the wire's kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Handshake,
    /// A frame's header; 0 as long as its kind has not passed.
    Header(u8),
    Payload(u8),
    /// This way of the connection has ended.
    End,
}

pub const CHUNK: u8 = 1;
pub const ACK: u8 = 2;
pub const FINISH: u8 = 7;
pub const COMMIT: u8 = 8;

/// Consecutive bytes of one handshake message, header or payload.
pub struct Piece<'a> {
    pub what: What,
    /// How many frames of the kind came before on this connection and way.
    pub number: u64,
    /// Where in the header or payload the bytes begin.
    pub offset: usize,
    pub bytes: &'a mut [u8],
}

impl Piece<'_> {
    /// Flip a bit of the byte at `offset` of the header or payload, if this piece has it.
    pub fn flip(&mut self, offset: usize) -> bool {
        let here = offset.checked_sub(self.offset).and_then(|at| self.bytes.get_mut(at));
        here.map(|byte| *byte ^= 1 << (offset % 8)).is_some()
    }
}

/// A TLS record's type, version and length.
pub const RECORD_HEADER_LEN: usize = 5;

/// Whether a TLS record begins here. Of a frame's tag, which is as good as random, one in 2^21 looks like it.
pub fn is_record(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=23, 3, 1 | 3, ..])
}

/// Finds where frames begin in one way of one connection.
#[derive(Default)]
struct Frames {
    /// What has passed of the current record's header, message's prefix or frame's header.
    head: Vec<u8>,
    past_handshake: bool,
    in_record: bool,
    /// Bytes left of the body or payload, and how many it has.
    left: usize,
    len: usize,
    counts: [u64; 16],
}

impl Frames {
    fn walk(&mut self, mut bytes: &mut [u8], see: &dyn Fn(&mut Piece)) {
        if bytes.is_empty() {
            see(&mut Piece { what: What::End, number: 0, offset: 0, bytes });
            return;
        }
        while !bytes.is_empty() {
            if self.head.is_empty() && !self.past_handshake {
                self.in_record = is_record(bytes);
                // after the last record, frames
                self.past_handshake = !self.in_record && !bytes.starts_with(b"bl");
            }
            let head_len = match (self.past_handshake, self.in_record) {
                (true, _) => blast::wire::HEADER_LEN,
                (false, true) => RECORD_HEADER_LEN,
                (false, false) => blast::wire::PREFIX_LEN,
            };
            let in_head = self.left == 0;
            let n = bytes.len().min(if in_head { head_len - self.head.len() } else { self.left });
            let (piece, rest) = std::mem::take(&mut bytes).split_at_mut(n);
            bytes = rest;
            let before = if self.past_handshake { 0 } else { head_len };
            let offset = if in_head { self.head.len() } else { before + self.len - self.left };
            if in_head {
                self.head.extend_from_slice(piece);
            }
            let kind = self.head.get(16).copied().unwrap_or(0);
            let what = match (self.past_handshake, in_head) {
                (false, _) => What::Handshake,
                (true, true) => What::Header(kind),
                (true, false) => What::Payload(kind),
            };
            let count = &mut self.counts[usize::from(kind % 16)];
            see(&mut Piece { what, number: *count, offset, bytes: piece });
            if in_head && self.head.len() == head_len {
                self.len = if self.in_record {
                    usize::from(u16::from_be_bytes(self.head[3..5].try_into().unwrap()))
                } else if self.past_handshake {
                    u32::from_le_bytes(self.head[20..24].try_into().unwrap()) as usize
                } else {
                    usize::from(u16::from_le_bytes(self.head[12..14].try_into().unwrap())) + 16
                };
                self.left = self.len;
            } else if !in_head {
                self.left -= n;
            }
            if self.head.len() == head_len && self.left == 0 {
                *count += u64::from(self.past_handshake);
                self.head.clear();
                self.past_handshake |= !self.in_record;
                self.in_record = false;
            }
        }
    }
}

impl Relay {
    /// A relay that shows every piece of every frame, which may be changed.
    pub fn of_frames(links: &[Ipv4Addr], to: u16, see: impl Fn(&Passing, &mut Piece) + Send + Sync + 'static) -> Relay {
        let known: Mutex<HashMap<(u64, Way), Frames>> = Mutex::default();
        Relay::start(links, to, move |passing, bytes| {
            let at = (passing.connection, passing.way);
            let mut frames = known.lock().unwrap().remove(&at).unwrap_or_default();
            frames.walk(bytes, &|piece| see(passing, piece));
            known.lock().unwrap().insert(at, frames);
            true
        })
    }
}
