//! The first connection's agreement: TLS, and inside it Hello and Welcome, in which each side proves that it has the
//! key (if there is one) on this channel and no other. What both said becomes the session's secret.
//!
//! Nothing is agreed on otherwise than both sides want: a key on one side only, different keys, or encryption wanted by
//! one only end it, with words for both. The listener goes on waiting then.

use std::sync::Arc;

use tokio::net::TcpStream;
use zeroize::Zeroizing;

use super::handshake::{self, HandshakeError};
use super::tls::{self, Channel, Knock};
use crate::error::ExitCode;
use crate::ids::{SessionCode, SessionId};
use crate::key::Key;
use crate::limits;
use crate::options::Trust;
use crate::report::Protection;
use crate::wire::trust::{self, Role};
use crate::wire::{self, Address, Cipher, Handshake, Layout, Offer, PUBLISHED_KEY, SessionKeys, Terms, WireError};

/// What both sides have agreed on.
pub struct Agreement {
    /// The session's keys.
    pub keys: Arc<SessionKeys>,
    /// Who the other side is.
    pub protection: Protection,
}

impl Agreement {
    fn new(secret: &[u8; 32], cipher: Option<Cipher>, trusted: bool, code: SessionCode) -> Agreement {
        let name = |cipher| match cipher {
            Cipher::Aes256Gcm => "AES-256-GCM",
            Cipher::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        };
        let protection = Protection { trusted, cipher: cipher.map(name), code: (!trusted).then_some(code) };
        Agreement { keys: Arc::new(SessionKeys::new(*secret, cipher)), protection }
    }
}

/// What a listener's Welcome says.
#[derive(Debug)]
pub struct Welcomed {
    /// What it wants to be sent.
    pub layout: Layout,
    /// Whether it wants the names of owners and groups.
    pub owner_names: bool,
    /// Chunks it holds at most.
    pub window_chunks: u32,
    /// Where it can be reached.
    pub addresses: Vec<Address>,
}

const KEY_MISSING_AT_RECEIVER: &str = "the sender has a key and the receiver has none: copy the sender's key file to the receiver \
     (--key-file FILE or ~/.config/blast/key), or send with --key-file none";
const KEY_MISSING_AT_SENDER: &str = "the receiver has a key and the sender has none: copy the receiver's key file to the \
     sender (--key-file FILE or ~/.config/blast/key), or receive with --key-file none";
const KEYS_DIFFER: &str = "the two sides have different keys: copy the key file of one to the other";
const PLAIN_SENDER: &str =
    "the sender has --no-encrypt and the receiver has not: give it to both, or better to neither";
const PLAIN_RECEIVER: &str =
    "the receiver has --no-encrypt and the sender has not: give it to both, or better to neither";

/// A dialer that has not called yet; make it before the connection.
pub struct Dialer {
    tls: tls::Dialer,
    nonce: Zeroizing<[u8; 32]>,
}

impl Dialer {
    /// A fresh one.
    pub fn new() -> Result<Dialer, HandshakeError> {
        let nonce = fresh()?;
        Ok(Dialer { tls: tls::Dialer::new(&trust::commitment(&nonce))?, nonce })
    }
}

/// Agree as the dialer. [`HandshakeError::Distrust`] is our own refusal: nothing but Hello has been said then.
pub async fn dial(
    dialer: Dialer,
    stream: &mut TcpStream,
    trust: &Trust,
    session: SessionId,
    offer: Offer,
) -> Result<(Welcomed, Agreement), HandshakeError> {
    let Dialer { tls, nonce } = dialer;
    let key = trust.key.as_deref();
    let said = handshake::within(limits::HANDSHAKE_TIMEOUT, async {
        let mut channel = tls.dial(stream).await?;
        let proof = key.map(|key| trust::proof(key, Role::Dialer, channel.exporter()));
        let terms = Terms { nonce: *nonce, proof, plain: trust.plain, aes: has_aes() };
        let hello = encoded(&Handshake::Hello { session, terms, offer });
        channel.say(stream, &hello).await?;
        Ok((channel, hello))
    });
    let (mut channel, hello) = said.await?;
    let answer = handshake::within(limits::HANDSHAKE_TIMEOUT, channel.hear(stream)).await?;
    match decoded(&answer, "Welcome")? {
        Handshake::Welcome { session: theirs, layout, owner_names, cipher, proof, window_chunks, addresses }
            if theirs == session =>
        {
            check_listener(key, proof, channel.exporter())?;
            match cipher {
                None if !trust.plain => return Err(distrust(PLAIN_RECEIVER)),
                Some(_) if trust.plain => return Err(distrust(PLAIN_SENDER)),
                Some(Cipher::Aes256Gcm) if !has_aes() => {
                    return Err(distrust("the receiver chose a cipher that was not offered"));
                }
                _ => {}
            }
            let secret = trust::secret(channel.exporter(), key, &hello, &answer);
            let code = trust::code(channel.exporter(), &nonce);
            let agreement = Agreement::new(&secret, cipher, key.is_some(), code);
            Ok((Welcomed { layout, owner_names, window_chunks, addresses }, agreement))
        }
        Handshake::Refuse { code, reason } => Err(HandshakeError::Refused { code, reason }),
        _ => Err(HandshakeError::Not("Welcome")),
    }
}

fn check_listener(key: Option<&Key>, proof: Option<[u8; 32]>, exporter: &[u8; 32]) -> Result<(), HandshakeError> {
    match (key, proof) {
        (None, None) => Ok(()),
        (Some(_), None) => Err(distrust(KEY_MISSING_AT_RECEIVER)),
        (None, Some(_)) => Err(distrust(KEY_MISSING_AT_SENDER)),
        (Some(key), Some(proof)) if trust::proves(&proof, key, Role::Listener, exporter) => Ok(()),
        (Some(_), Some(_)) => Err(distrust(KEYS_DIFFER)),
    }
}

/// A dialer whose Hello has been heard and may be answered.
pub struct Guest {
    channel: Channel,
    hello: Zeroizing<Vec<u8>>,
    key: Option<Arc<Key>>,
    cipher: Option<Cipher>,
    code: SessionCode,
    /// The session it wants to begin.
    pub session: SessionId,
    /// What it brings.
    pub offer: Offer,
}

/// Agree as the listener, up to Hello. Whoever must not talk to us has been told so when this returns
/// [`HandshakeError::Distrust`]. The deadline is the caller's.
pub async fn hear(stream: &mut TcpStream, knock: Knock, trust: &Trust) -> Result<Guest, HandshakeError> {
    let commitment = knock.commitment;
    let mut channel = knock.accept(stream).await?;
    let hello = channel.hear(stream).await?;
    let Handshake::Hello { session, terms, offer } = decoded(&hello, "Hello")? else {
        return Err(HandshakeError::Not("Hello"));
    };
    if trust::commitment(&terms.nonce) != commitment {
        return Err(HandshakeError::Record("another nonce than was committed to"));
    }
    if let Err(words) = check_dialer(&terms, trust, channel.exporter()) {
        refuse(&mut channel, stream, ExitCode::Refused, words).await?;
        return Err(distrust(words));
    }
    let cipher = match terms.aes && has_aes() {
        _ if trust.plain => None,
        true => Some(Cipher::Aes256Gcm),
        false => Some(Cipher::ChaCha20Poly1305),
    };
    let code = trust::code(channel.exporter(), &terms.nonce);
    Ok(Guest { channel, hello, key: trust.key.clone(), cipher, code, session, offer })
}

fn check_dialer(terms: &Terms, trust: &Trust, exporter: &[u8; 32]) -> Result<(), &'static str> {
    match (&trust.key, &terms.proof) {
        (None, None) => {}
        (Some(_), None) => return Err(KEY_MISSING_AT_SENDER),
        (None, Some(_)) => return Err(KEY_MISSING_AT_RECEIVER),
        (Some(key), Some(proof)) if trust::proves(proof, key, Role::Dialer, exporter) => {}
        (Some(_), Some(_)) => return Err(KEYS_DIFFER),
    }
    match (terms.plain, trust.plain) {
        (true, false) => Err(PLAIN_SENDER),
        (false, true) => Err(PLAIN_RECEIVER),
        _ => Ok(()),
    }
}

impl Guest {
    /// Whether it has proved that it has our key.
    pub fn is_trusted(&self) -> bool {
        self.key.is_some()
    }

    /// Agree; nothing has been said yet.
    pub fn agree(self, welcomed: Welcomed) -> (Answer, Agreement) {
        let Guest { channel, hello, key, cipher, code, session, .. } = self;
        let Welcomed { layout, owner_names, window_chunks, addresses } = welcomed;
        let proof = key.as_ref().map(|key| trust::proof(key, Role::Listener, channel.exporter()));
        let welcome =
            encoded(&Handshake::Welcome { session, layout, owner_names, cipher, proof, window_chunks, addresses });
        let secret = trust::secret(channel.exporter(), key.as_deref(), &hello, &welcome);
        (Answer { channel, welcome }, Agreement::new(&secret, cipher, key.is_some(), code))
    }

    /// Do not agree.
    pub async fn refuse(mut self, stream: &mut TcpStream, code: ExitCode, reason: &str) -> Result<(), HandshakeError> {
        let refused = refuse(&mut self.channel, stream, code, reason);
        handshake::within(limits::HANDSHAKE_TIMEOUT, refused).await
    }
}

/// The one message that the dialer is still to hear.
pub struct Answer {
    channel: Channel,
    welcome: Zeroizing<Vec<u8>>,
}

impl Answer {
    /// Welcome.
    pub async fn welcome(mut self, stream: &mut TcpStream) -> Result<(), HandshakeError> {
        handshake::within(limits::HANDSHAKE_TIMEOUT, self.channel.say(stream, &self.welcome)).await
    }

    /// Refuse, although it could have been agreed.
    pub async fn refuse(mut self, stream: &mut TcpStream, code: ExitCode, reason: &str) -> Result<(), HandshakeError> {
        let refused = refuse(&mut self.channel, stream, code, reason);
        handshake::within(limits::HANDSHAKE_TIMEOUT, refused).await
    }
}

async fn refuse(
    channel: &mut Channel,
    stream: &mut TcpStream,
    code: ExitCode,
    reason: &str,
) -> Result<(), HandshakeError> {
    channel.say(stream, &encoded(&Handshake::Refuse { code, reason: reason.to_owned() })).await
}

fn distrust(words: &str) -> HandshakeError {
    HandshakeError::Distrust(words.to_owned())
}

fn encoded(message: &Handshake) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::new());
    wire::encode_handshake(message, &PUBLISHED_KEY, &mut bytes);
    bytes
}

/// A message; a Join or its answer has no place here, whatever its key is.
fn decoded(message: &[u8], expected: &'static str) -> Result<Handshake, HandshakeError> {
    wire::decode_message(message).map_err(|e| match e {
        WireError::NoSession => HandshakeError::Not(expected),
        e => e.into(),
    })
}

fn fresh() -> Result<Zeroizing<[u8; 32]>, HandshakeError> {
    let mut bytes = Zeroizing::new([0; 32]);
    let n =
        rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty()).map_err(std::io::Error::from)?;
    // the kernel gives requests of up to 256 bytes whole
    assert_eq!(n, bytes.len());
    Ok(bytes)
}

/// Whether this CPU has instructions for AES and for the multiplication of GCM.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}
