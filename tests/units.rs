//! A relay that knows where each handshake message and each frame ends: it passes them on one at a time, changed or
//! not, and can cut a connection between any two of them, in an orderly way or by a reset.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use blast::wire::{HEADER_LEN, PREFIX_LEN};

use crate::relay::{RECORD_HEADER_LEN, Way, dial, is_record, listen};

/// One handshake message, TLS record or frame on its way.
pub struct Unit {
    pub link: Ipv4Addr,
    /// How many connections came before on that link.
    pub connection: u64,
    pub way: Way,
    /// How many units came before, this way and the other.
    pub number: u64,
    pub others: u64,
    pub bytes: Vec<u8>,
}

/// What becomes of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Pass,
    /// It does not pass, and the connection ends in both ways.
    End,
    /// The same, by a reset.
    Reset,
}

type Decide = dyn Fn(&mut Unit) -> Fate + Send + Sync;

/// A relay at work.
pub struct Units {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    to: u16,
    decide: Box<Decide>,
    /// After a cut nobody is let through any more.
    refuses: bool,
    links: Vec<Link>,
}

struct Link {
    addr: SocketAddr,
    connections: AtomicU64,
    closed: AtomicBool,
}

impl Units {
    /// Listen on each of `links` and pass on to `to`. With `refuses` a link on which something was cut is closed.
    pub fn start(
        links: &[Ipv4Addr],
        to: u16,
        refuses: bool,
        decide: impl Fn(&mut Unit) -> Fate + Send + Sync + 'static,
    ) -> Units {
        let listeners = listen(links);
        let link = |l: &TcpListener| Link {
            addr: l.local_addr().unwrap(),
            connections: Default::default(),
            closed: false.into(),
        };
        let links: Vec<Link> = listeners.iter().map(link).collect();
        let port = links[0].addr.port();
        let shared = Arc::new(Shared { to, decide: Box::new(decide), refuses, links });
        for (at, listener) in listeners.into_iter().enumerate() {
            let shared = shared.clone();
            thread::spawn(move || shared.serve(&listener, at));
        }
        Units { port, shared }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        self.shared.links.iter().for_each(Link::close);
    }
}

impl Link {
    fn close(&self) {
        if !self.closed.swap(true, SeqCst) {
            // one more connection, so that it looks at the mark and ends
            let _ = TcpStream::connect(self.addr);
        }
    }
}

impl Shared {
    fn serve(self: Arc<Shared>, listener: &TcpListener, at: usize) {
        let IpAddr::V4(ip) = self.links[at].addr.ip() else { unreachable!("we listen on IPv4") };
        for near in listener.incoming() {
            if self.links[at].closed.load(SeqCst) {
                return;
            }
            let (Ok(near), Ok(far)) = (near, dial(ip, self.to)) else { continue };
            let connection = self.links[at].connections.fetch_add(1, SeqCst);
            let counts: Arc<[AtomicU64; 2]> = Arc::default();
            for way in [Way::Forth, Way::Back] {
                let (near, far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (from, to) = if way == Way::Forth { (near, far) } else { (far, near) };
                let (shared, counts) = (self.clone(), counts.clone());
                thread::spawn(move || {
                    let own = way as usize;
                    let _ = to.set_nodelay(true);
                    let mut past_handshake = false;
                    while let Some(bytes) = next_unit(&from, &mut past_handshake) {
                        let (number, others) = (counts[own].load(SeqCst), counts[1 - own].load(SeqCst));
                        let mut unit = Unit { link: ip, connection, way, number, others, bytes };
                        match (shared.decide)(&mut unit) {
                            Fate::Pass => {}
                            fate => return shared.cut(at, fate, &[from, to]),
                        }
                        // before the other end can answer it
                        counts[own].fetch_add(1, SeqCst);
                        let mut to = &to;
                        if to.write_all(&unit.bytes).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    }

    fn cut(&self, at: usize, fate: Fate, streams: &[TcpStream]) {
        if self.refuses {
            self.links[at].close();
        }
        for stream in streams {
            if fate == Fate::Reset {
                let _ = rustix::net::connect_unspec(stream);
            }
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The next whole unit; nothing at the end, or within one.
fn next_unit(mut from: &TcpStream, past_handshake: &mut bool) -> Option<Vec<u8>> {
    let mut bytes = vec![0; RECORD_HEADER_LEN];
    from.read_exact(&mut bytes).ok()?;
    let in_record = !*past_handshake && is_record(&bytes);
    let is_message = !*past_handshake && bytes.starts_with(b"bl");
    let head_len = match (in_record, is_message) {
        (true, _) => RECORD_HEADER_LEN,
        (_, true) => PREFIX_LEN,
        _ => HEADER_LEN,
    };
    *past_handshake = !in_record;
    bytes.resize(head_len, 0);
    from.read_exact(&mut bytes[RECORD_HEADER_LEN..]).ok()?;
    let len = if in_record {
        usize::from(u16::from_be_bytes(bytes[3..5].try_into().unwrap()))
    } else if is_message {
        usize::from(u16::from_le_bytes(bytes[12..14].try_into().unwrap())) + 16
    } else {
        u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize
    };
    bytes.resize(head_len + len, 0);
    from.read_exact(&mut bytes[head_len..]).ok()?;
    Some(bytes)
}
