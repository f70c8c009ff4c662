//! From a sender's Hello to its first word: Welcome, and the proof that it arrived.
//!
//! Whoever is in between can damage Welcome, and a sender can leave before it has heard it. So until a frame or a Join
//! has come that only the sender of this session can have said, nothing is created, no thread is started and no command
//! runs, and the receiver has lost nothing by going back to wait for the next one. A session whose first connection
//! fails here can still be joined for as long as any other whose links are gone.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::door::{BUSY, Caller, Door, Wish, advertised, turn_away};
use crate::error::{Error, ExitCode};
use crate::ids::{LinkId, SessionId};
use crate::limits;
use crate::link::greet::{Agreement, Welcomed};
use crate::link::handshake::HandshakeError;
use crate::link::watch::Interrupts;
use crate::options::{RecvOptions, Window};
use crate::sink::Prepared;
use crate::stats::memory_available;
use crate::wire::{self, Control, FIRST_NONCES, FrameKey, HEADER_LEN, Layout, Offer, SessionKeys};

/// A session whose sender has said something that nobody else can say.
pub(super) struct Begun {
    pub(super) session: SessionId,
    pub(super) offer: Offer,
    pub(super) layout: Layout,
    pub(super) window: Window,
    /// It has proved that it has our key.
    pub(super) trusted: bool,
    pub(super) agreement: Agreement,
    pub(super) peer: std::net::SocketAddr,
    /// The first connection, if it is still there; nothing of its frames has been read.
    pub(super) stream: Option<TcpStream>,
    /// Links that came meanwhile.
    pub(super) early: Vec<Caller>,
}

/// Welcome who wants to begin a session. Nothing if nothing came of it: the next one is waited for.
///
/// # Errors
/// What is offered does not fit what is `prepared`, and the sender has been told; or we were interrupted.
pub(super) async fn begin(
    options: &RecvOptions,
    prepared: Option<&Prepared>,
    first: Caller,
    door: &mut Door,
    interrupts: &mut Interrupts,
) -> Result<Option<Begun>, Error> {
    let Caller { mut stream, peer, wish, place } = first;
    // it has become a session, which is no longer pending
    drop(place);
    let Wish::Begin(guest) = wish else { unreachable!("first_hello returns one who wants to begin") };
    let (session, offer, trusted) = (guest.session, guest.offer.clone(), guest.is_trusted());
    let layout = match prepared.map_or(Ok(Layout::Raw), |prepared| prepared.layout(&offer)) {
        Ok(layout) => layout,
        Err(error) => {
            let _ = guest.refuse(&mut stream, error.exit_code(), &error.reason()).await;
            return Err(error);
        }
    };
    let window = Window::chosen(options.window_chunks, memory_available());
    let (owner_names, addresses) = (options.owners.need_names(), advertised(options, door.port));
    let (answer, agreement) = guest.agree(Welcomed { layout, owner_names, window_chunks: window.max, addresses });
    door.serve(Some((session, agreement.keys.clone())));
    let said = answer.welcome(&mut stream).await;
    let mut unproven = Unproven { session, lost: None, until: Instant::now() + limits::HANDSHAKE_TIMEOUT };
    if let Err(why) = said {
        unproven.lose(why);
    }
    let mut key = agreement.keys.listener(LinkId(0), FIRST_NONCES).into;
    let early = unproven.first_word(&stream, &mut key, prepared.is_none(), door, interrupts).await?;
    let Some(early) = early else {
        door.serve(None);
        if prepared.is_some() {
            let why = unproven.lost.unwrap_or(HandshakeError::Not("a frame of its session")).to_string();
            door.porter.strangers.left(peer, &why);
        }
        return Ok(None);
    };
    let stream = unproven.lost.is_none().then_some(stream);
    Ok(Some(Begun { session, offer, layout, window, trusted, agreement, peer, stream, early }))
}

/// End a session of which nothing can come, although it was welcomed: say why.
pub(super) async fn take_back(stream: Option<TcpStream>, early: Vec<Caller>, keys: &SessionKeys, error: &Error) {
    for caller in early {
        turn_away(caller, error.exit_code(), &error.reason());
    }
    let Some(mut stream) = stream else { return sleep(limits::REDIAL_MIN).await };
    let mut key = keys.listener(LinkId(0), FIRST_NONCES).out;
    let mut bytes = Vec::new();
    let abort = Control::Abort { code: error.exit_code(), reason: error.reason() };
    wire::encode_control(&abort, &mut key, &mut bytes);
    let told = async {
        stream.write_all(&bytes).await?;
        stream.shutdown().await?;
        // closing with unread bytes would reset it, and the reset overtake the reason
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
    };
    let _ = timeout(limits::DRAIN, told).await;
}

/// A session that has been welcomed.
struct Unproven {
    session: SessionId,
    /// Why its first connection is of no use any more.
    lost: Option<HandshakeError>,
    until: Instant,
}

impl Unproven {
    fn lose(&mut self, why: HandshakeError) {
        self.lost = Some(why);
        self.until = Instant::now() + limits::PEER_GONE;
    }

    /// Wait for a word that is this session's, and return the links that have joined; nothing if none comes, or
    /// somebody else does once the first connection is lost, or while `anybody` is more important.
    async fn first_word(
        &mut self,
        stream: &TcpStream,
        key: &mut FrameKey,
        anybody: bool,
        door: &mut Door,
        interrupts: &mut Interrupts,
    ) -> Result<Option<Vec<Caller>>, Error> {
        loop {
            let is_lost = self.lost.is_some();
            tokio::select! {
                biased;
                first = first_frame(stream, key), if !is_lost => match first {
                    Ok(()) => return Ok(Some(Vec::new())),
                    Err(why) => self.lose(why),
                },
                caller = door.next() => match &caller.wish {
                    // it was made with the session's keys, or it would not be here
                    Wish::Join { session, .. } if *session == self.session => return Ok(Some(vec![caller])),
                    Wish::Begin(_) if is_lost || anybody => {
                        door.waiting = Some(caller);
                        return Ok(None);
                    }
                    _ => turn_away(caller, ExitCode::Refused, BUSY),
                },
                signal = interrupts.next() => {
                    return Err(Error::Interrupted(format!("{signal} while waiting for a sender")));
                }
                () = sleep_until(self.until) => return Ok(None),
            }
        }
    }
}

/// Until the header of a frame is there that nobody else can have made. What is behind the tag is for who reads it.
async fn first_frame(stream: &TcpStream, key: &mut FrameKey) -> Result<(), HandshakeError> {
    let mut header = [0; HEADER_LEN];
    loop {
        match stream.peek(&mut header).await? {
            HEADER_LEN => break,
            0 => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            // it may come in pieces
            _ => sleep(limits::PEEK_AGAIN).await,
        }
    }
    match wire::decode_header(&header, key) {
        Err(error) if error.may_be_damage() => Err(error.into()),
        _ => Ok(()),
    }
}
