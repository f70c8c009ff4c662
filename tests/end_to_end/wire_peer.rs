//! A peer that is this test: it speaks the wire format, and says what no honest end would.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use blast::chunk::{TransferDigest, chunk_digest};
use blast::ids::{LinkId, Seq, SessionId};
use blast::limits::CHUNK_LEN;
use blast::link::greet;
use blast::options::Trust;
use blast::wire::*;

use crate::ends::PATIENCE;
use crate::first;
use crate::trees::random_bytes;

/// Bytes of the stream that is sent: three chunks, the last a short one.
pub const STREAM_LEN: usize = 2 * CHUNK_LEN + 100;
pub const CHUNKS: u64 = 3;

/// A frame, as it was heard.
#[expect(clippy::large_enum_variant, reason = "one at a time")]
pub enum Heard {
    Control(Control),
    Chunk(ChunkHead),
}

/// One connection in a session, either side's.
pub struct Peer {
    pub session: SessionId,
    /// The other end has closed the connection.
    pub gone: bool,
    stream: TcpStream,
    pub keys: Arc<SessionKeys>,
    /// For what we say.
    key: FrameKey,
    heard: Option<Receiver<Heard>>,
    deaf: Arc<AtomicBool>,
    /// Chunk frames that came.
    pub frames: u64,
    /// The latest acknowledgement.
    pub ack: Ack,
    /// What the chunks are that came, by number.
    pub heads: Vec<Option<ChunkHead>>,
    pub finish: Option<Finish>,
    pub pongs: u64,
    /// Further connections, closed with this one.
    pub kept: Vec<TcpStream>,
}

/// The first 16 bytes of keyed BLAKE3.
fn tag(key: &TagKey, bytes: &[u8]) -> [u8; 16] {
    *blake3::keyed_hash(&key.0, bytes).as_bytes().first_chunk().unwrap()
}

/// A frame whose header was changed. [`Peer::say`] gives it the tag that fits.
pub fn patched(mut frame: Vec<u8>, patch: impl Fn(&mut [u8])) -> Vec<u8> {
    patch(&mut frame);
    frame
}

/// A control frame of any kind and payload.
pub fn control_of(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    frame[16] = kind;
    frame[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    frame[48..80].copy_from_slice(blake3::hash(payload).as_bytes());
    frame.extend_from_slice(payload);
    patched(frame, |_| {})
}

/// For frames that get their tags later.
fn any_key() -> FrameKey {
    SessionKeys::new([0; 32], None).dialer(LinkId(0), FIRST_NONCES).out
}

pub fn encoded(control: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_control(control, &mut any_key(), &mut bytes);
    bytes
}

/// A handshake message that was changed behind its prefix, with the MAC that fits; a Join's is of no session.
pub fn greeting(message: &Handshake, patch: impl Fn(&mut [u8])) -> Vec<u8> {
    greeting_under(&TagKey([0; 32]), message, patch)
}

fn greeting_under(joins: &TagKey, message: &Handshake, patch: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_handshake(message, joins, &mut bytes);
    let end = bytes.len() - 16;
    patch(&mut bytes[..end]);
    let is_join = matches!(message, Handshake::Join { .. } | Handshake::Joined { .. });
    let mac = tag(if is_join { joins } else { &PUBLISHED_KEY }, &bytes[..end]);
    bytes[end..].copy_from_slice(&mac);
    bytes
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(stream)
}

/// Say a first message to a receiver in plain; its answer, unless it closes.
pub fn knock(port: u16, message: &Handshake, joins: &TagKey) -> Option<(TcpStream, Handshake)> {
    let mut stream = connect(port)?;
    stream.write_all(&greeting_under(joins, message, |_| {})).ok()?;
    let mut prefix = [0; PREFIX_LEN];
    stream.read_exact(&mut prefix).ok()?;
    let decoded = decode_handshake_prefix(&prefix).expect("an honest end's message");
    let mut rest = vec![0; decoded.rest_len()];
    stream.read_exact(&mut rest).ok()?;
    let joins = TagKey(joins.0);
    Some((stream, decode_handshake(&decoded, &rest, |_| Some(joins)).expect("an honest end's message")))
}

/// The stream's bytes.
pub fn content() -> Vec<u8> {
    random_bytes(5, STREAM_LEN)
}

/// The header of the stream's chunk of that number, and its content.
pub fn piece(seq: u64) -> (ChunkHead, Vec<u8>) {
    let content = content();
    let at = seq as usize * CHUNK_LEN;
    data(seq, at as u64, &content[at..(at + CHUNK_LEN).min(STREAM_LEN)])
}

pub fn data(seq: u64, offset: u64, content: &[u8]) -> (ChunkHead, Vec<u8>) {
    of_kind(seq, ChunkKind::Data { offset, sole: false }, content)
}

pub fn of_kind(seq: u64, kind: ChunkKind, content: &[u8]) -> (ChunkHead, Vec<u8>) {
    let len = content.len() as u32;
    let digest = chunk_digest(kind, content);
    let head =
        ChunkHead { seq: Seq(seq), kind, content_len: len, payload_len: len, codec: None, digest, seal: [0; 16] };
    (head, content.to_vec())
}

/// A chunk frame.
pub fn frame((head, payload): (ChunkHead, Vec<u8>)) -> Vec<u8> {
    let mut bytes = encode_chunk_header(&head, &any_key()).to_vec();
    bytes.extend_from_slice(&payload);
    bytes
}

/// The stream's true totals.
pub fn finish() -> Finish {
    let mut digest = TransferDigest::new();
    (0..CHUNKS).map(piece).for_each(|(head, content)| digest.push(content.len(), head.digest));
    let len = STREAM_LEN as u64;
    Finish {
        chunks: CHUNKS,
        entries: 1,
        bytes: len,
        content_bytes: len,
        notes: 0,
        unnamed: (0, 0),
        digest: digest.finish(),
    }
}

impl Peer {
    fn new(session: SessionId, stream: TcpStream, keys: Arc<SessionKeys>, dials: bool) -> Peer {
        let FrameKeys { out, into } =
            if dials { keys.dialer(LinkId(0), FIRST_NONCES) } else { keys.listener(LinkId(0), FIRST_NONCES) };
        let mut peer = Peer {
            session,
            gone: false,
            stream,
            keys,
            key: out,
            heard: None,
            deaf: Arc::default(),
            frames: 0,
            ack: Ack::default(),
            heads: Vec::new(),
            finish: None,
            pongs: 0,
            kept: Vec::new(),
        };
        peer.listen(into);
        peer
    }

    /// A sender in its session, which is not encrypted (`--no-encrypt`), so that whatever is said can be changed.
    pub fn sender(port: u16, offer: Offer) -> Peer {
        let session = SessionId([7; 16]);
        let mut stream = connect(port).expect("it listens");
        let trust = Trust { key: None, plain: true };
        let dialer = greet::Dialer::new().expect("random bytes");
        let agreed = first::with(&mut stream, async |stream| greet::dial(dialer, stream, &trust, session, offer).await);
        let (_, agreement) = agreed.expect("a welcome");
        Peer::new(session, stream, agreement.keys, true)
    }

    /// Go on over a new connection.
    pub fn rejoin(&mut self, port: u16, link: u32) {
        let join = Handshake::Join { session: self.session, link: LinkId(link), nonce: [9; 16] };
        let (stream, answer) = knock(port, &join, &self.keys.joins()).expect("an answer");
        let Handshake::Joined { own, .. } = answer else { panic!("{answer:?}") };
        let _ = self.stream.shutdown(Shutdown::Both);
        let FrameKeys { out, into } = self.keys.dialer(LinkId(link), [[9; 16], own]);
        (self.stream, self.gone, self.key) = (stream, false, out);
        self.listen(into);
    }

    /// A receiver in the session of the sender who comes, `answer` makes its first message. Not encrypted, either.
    pub fn receiver(listener: &TcpListener, answer: impl Fn(SessionId) -> Vec<u8>) -> Peer {
        let mut stream = loop {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            // a sender of another test may still dial a link again where this port was its receiver's
            let mut first = [0];
            if stream.peek(&mut first).is_ok() && first[0] == blast::link::tls::FIRST_BYTE {
                break stream;
            }
        };
        let (session, keys) = first::receive(&mut stream, answer);
        Peer::new(session, stream, keys, false)
    }

    /// Read from now on, whatever comes.
    fn listen(&mut self, mut key: FrameKey) {
        let mut stream = self.stream.try_clone().unwrap();
        let (tell, heard) = mpsc::channel();
        self.heard = Some(heard);
        let deaf = self.deaf.clone();
        thread::spawn(move || -> io::Result<()> {
            while !deaf.load(Relaxed) {
                let mut header = [0; HEADER_LEN];
                stream.read_exact(&mut header)?;
                let (len, head) = match decode_header(&header, &mut key).expect("an honest end's frame") {
                    Header::Chunk(head) => (head.payload_len as usize, Err(head)),
                    Header::Control(head) => (head.payload_len(), Ok(head)),
                };
                let mut payload = vec![0; len];
                stream.read_exact(&mut payload)?;
                let heard = match head {
                    Ok(head) => {
                        Heard::Control(decode_control(&head, &mut payload, &key).expect("an honest end's frame"))
                    }
                    Err(head) => Heard::Chunk(head),
                };
                let _ = tell.send(heard);
            }
            Ok(())
        });
    }

    /// Read one more frame at most, and then nothing any more.
    pub fn go_deaf(&mut self) {
        self.deaf.store(true, Relaxed);
    }

    /// Say frames, with the tags that they have to have here and now, if the other end still listens.
    pub fn say(&mut self, frames: &[u8]) {
        let mut bytes = frames.to_vec();
        let mut at = 0;
        while at < bytes.len() {
            let tag = self.key.tag(&bytes[at + 16..at + HEADER_LEN]);
            self.key.sent();
            bytes[at..at + 16].copy_from_slice(&tag);
            let len = u32::from_le_bytes(bytes[at + 20..at + 24].try_into().unwrap()) as usize;
            // a header may claim what is not there
            at = at.saturating_add(HEADER_LEN).saturating_add(len);
        }
        self.say_as_it_is(&bytes);
    }

    /// Say any bytes.
    pub fn say_as_it_is(&mut self, bytes: &[u8]) {
        self.gone |= self.stream.write_all(bytes).is_err();
    }

    pub fn control(&mut self, control: Control) {
        self.say(&encoded(&control));
    }

    pub fn chunk(&mut self, chunk: (ChunkHead, Vec<u8>)) {
        self.say(&frame(chunk));
    }

    /// Take in what comes until `done`; false if the connection ends before.
    pub fn until(&mut self, done: impl Fn(&Peer, &Heard) -> bool) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "what was waited for never came");
            let Ok(heard) = self.heard.as_ref().unwrap().recv_timeout(left) else { return false };
            match &heard {
                Heard::Control(Control::Ack(ack)) => self.ack = ack.clone(),
                Heard::Control(Control::Finish(finish)) => self.finish = Some(*finish),
                Heard::Control(Control::Pong(_)) => self.pongs += 1,
                Heard::Control(Control::Ping(n)) => self.control(Control::Pong(*n)),
                Heard::Control(_) => {}
                Heard::Chunk(head) => {
                    self.frames += 1;
                    let at = head.seq.0 as usize;
                    self.heads.resize(self.heads.len().max(at + 1), None);
                    self.heads[at] = Some(*head);
                }
            }
            if done(self, &heard) {
                return true;
            }
        }
    }

    /// Until the first acknowledgement, which gives credit. It comes once we have said something.
    pub fn credited(&mut self) -> u64 {
        self.control(Control::Ping(0));
        self.until(|peer, _| peer.ack.credit_limit > 0);
        self.ack.credit_limit
    }

    /// Until the receiver has said everything that it had to say before now.
    pub fn in_step(&mut self) {
        self.control(Control::Ping(77));
        self.until(|_, heard| matches!(heard, Heard::Control(Control::Pong(77))));
    }

    /// As an honest sender from here on; true if the receiver commits.
    pub fn send_honestly(&mut self) -> bool {
        for seq in 0..CHUNKS {
            self.chunk(piece(seq));
        }
        self.control(Control::Finish(finish()));
        let committed = self.until(|_, heard| matches!(heard, Heard::Control(Control::Commit(_))));
        self.control(Control::Bye);
        let _ = self.stream.shutdown(Shutdown::Write);
        committed
    }

    /// What was not answered by an acknowledgement: what an honest receiver would say of what has come.
    pub fn true_ack(&self, credit: u64) -> Ack {
        let next = self.heads.iter().take_while(|h| h.is_some()).count() as u64;
        Ack { next, credit_limit: next + credit, ..Ack::default() }
    }

    /// As an honest receiver until Finish and all chunks have come.
    pub fn receive_honestly(&mut self) {
        loop {
            let ack = self.true_ack(4);
            self.control(Control::Ack(ack));
            if self.gone || self.is_whole() {
                return;
            }
            let frames = self.frames;
            if !self.until(|peer, heard| peer.frames > frames || matches!(heard, Heard::Control(Control::Finish(_)))) {
                return;
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.finish.is_some_and(|f| self.heads.iter().flatten().count() as u64 == f.chunks)
    }

    /// What an honest receiver says at the end.
    pub fn true_commit(&self) -> Commit {
        let mut digest = TransferDigest::new();
        self.heads.iter().flatten().for_each(|head| digest.push(head.content_len as usize, head.digest));
        let finish = self.finish.expect("Finish has come");
        Commit {
            code: blast::ExitCode::Whole,
            entries: finish.entries,
            content_bytes: finish.content_bytes,
            digest: digest.finish(),
            stream_digest: None,
            totals: (0, 0),
            stages: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Commit, and until the sender has said goodbye.
    pub fn commit(&mut self, commit: Commit) {
        self.control(Control::Commit(commit));
        self.until(|_, heard| matches!(heard, Heard::Control(Control::Bye)));
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Until the other end has said why it stops, or is gone; then close.
    pub fn hear_out(&mut self) {
        self.until(|_, heard| matches!(heard, Heard::Control(Control::Abort { .. })));
        self.close();
    }

    /// Keep the connection, and its noise, until the other end has closed it.
    pub fn ping_until_closed(&mut self) {
        while !self.gone {
            self.control(Control::Ping(1));
        }
    }

    /// Gone.
    pub fn close(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
