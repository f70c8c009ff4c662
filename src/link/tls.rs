//! TLS 1.3 around Hello and Welcome, and nothing else: it gives the first connection secrecy and both ends a value that
//! no man in the middle can make the same on both sides (the exporter, RFC 8446 section 7.5). Who the other end is, TLS
//! is not asked: the listener's key pair is made for this process and thrown away with it (a raw public key, RFC 7250),
//! and the dialer checks only that the handshake was signed with it. The key is proved inside, see
//! [`greet`](super::greet).
//!
//! One way to do everything, so that there is nothing to negotiate down: X25519, Ed25519, ChaCha20-Poly1305. No earlier
//! version, tickets, resumption, early data or client certificates. Every message fits a packet of a few hundred bytes:
//! a way that lets no large ones through must be found out by the bulk, see `mtu`, not end before it. (A hybrid with
//! ML-KEM does not fit; what is recorded today is safe from tomorrow's computers where there is a key, which enters the
//! secret.)
//!
//! Records are taken from the socket one at a time, header first, and nothing is read beyond one. Once the handshake is
//! over exactly one record goes each way, so that both ends leave TLS at a byte that both know and the connection
//! carries frames from there on. Nobody is waited for here: the caller has one deadline for everything.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, ring as suite};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::{Accepted, Acceptor, AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, Connection, DigitallySignedStruct, ServerConfig, SignatureScheme, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

use super::handshake::{self, HandshakeError};
use crate::limits;
use crate::wire::{self, Handshake, VERSION, WireError};

/// The first byte of a connection that begins with TLS: a record with a piece of a handshake.
pub const FIRST_BYTE: u8 = 22;

const RECORD_CHANGE_CIPHER_SPEC: u8 = 20;
const RECORD_ALERT: u8 = 21;
const RECORD_APPLICATION_DATA: u8 = 23;

/// A record's type, version and length.
const RECORD_HEADER_LEN: usize = 5;

/// What every record says, whatever the version is (RFC 8446 section 5.1), but for a dialer's first.
const VERSION_OF_RECORDS: [u8; 2] = [3, 3];
const FIRST_VERSION: [u8; 2] = [3, 1];

/// A record with the longest message: the kind that is hidden inside, and the cipher's tag.
const MESSAGE_RECORD_MAX: usize = wire::PREFIX_LEN + limits::HANDSHAKE_MAX + 16 + 1 + 16;

const ALPN_BEGINS: &[u8] = b"blast/";

/// An established channel, on either side.
pub struct Channel {
    tls: Connection,
    exporter: Zeroizing<[u8; 32]>,
}

/// A listener that has heard a dialer's first TLS message, and spent nothing on it yet.
pub struct Knock {
    accepted: Accepted,
    left: usize,
    /// What the dialer binds itself to before it knows anything of us, see [`wire::trust::commitment`].
    pub commitment: [u8; 32],
}

/// A dialer that has not called yet. What it says first takes its time to be computed, and a listener that many others
/// call does not wait for it: so this is made before the connection.
pub struct Dialer(Connection);

impl Dialer {
    /// Committed to that, see [`wire::trust::commitment`].
    pub fn new(commitment: &[u8; 32]) -> Result<Dialer, HandshakeError> {
        Ok(Dialer(ClientConnection::new(dialer(commitment)?, IpAddr::from([127, 0, 0, 1]).into())?.into()))
    }

    /// Begin. The other end may answer with a plain Refuse, which is an error here.
    pub async fn dial(self, stream: &mut TcpStream) -> Result<Channel, HandshakeError> {
        establish(stream, self.0, FIRST_BYTE, limits::TLS_HANDSHAKE_MAX).await
    }
}

/// Make what a listener needs for all its connections, so that the first caller does not wait for it.
pub fn prepare() -> Result<(), HandshakeError> {
    listener()?;
    Ok(())
}

/// Begin as the listener: the dialer's first message, and no more.
pub async fn hear(stream: &mut TcpStream) -> Result<Knock, HandshakeError> {
    let mut left = limits::TLS_HANDSHAKE_MAX;
    let mut acceptor = Acceptor::default();
    loop {
        let record = record(stream, FIRST_VERSION, &mut left).await?;
        let mut unread = &record[..];
        while !unread.is_empty() {
            acceptor.read_tls(&mut unread)?;
        }
        if let Some(accepted) = acceptor.accept().map_err(|(error, _)| error)? {
            let commitment = offered(&accepted)?;
            return Ok(Knock { accepted, left, commitment });
        }
    }
}

impl Knock {
    /// Go on with the handshake.
    pub async fn accept(self, stream: &mut TcpStream) -> Result<Channel, HandshakeError> {
        let tls = self.accepted.into_connection(listener()?).map_err(|(error, _)| error)?;
        establish(stream, tls.into(), RECORD_APPLICATION_DATA, self.left).await
    }
}

impl Channel {
    /// The same 32 secret bytes on both ends of this channel, and on no others.
    pub fn exporter(&self) -> &[u8; 32] {
        &self.exporter
    }

    /// Send the one message of this side.
    pub async fn say(&mut self, stream: &mut TcpStream, message: &[u8]) -> Result<(), HandshakeError> {
        self.tls.writer().write_all(message)?;
        flush(&mut self.tls, stream).await
    }

    /// Receive the one message of the other side, in one record.
    pub async fn hear(&mut self, stream: &mut TcpStream) -> Result<Zeroizing<Vec<u8>>, HandshakeError> {
        let mut left = RECORD_HEADER_LEN + MESSAGE_RECORD_MAX;
        let record = record(stream, VERSION_OF_RECORDS, &mut left).await?;
        if record[0] != RECORD_APPLICATION_DATA {
            return Err(HandshakeError::Record("one that carries no message"));
        }
        let len = feed(&mut self.tls, &record)?;
        if len == 0 {
            return Err(HandshakeError::Record("one that carries no message"));
        }
        let mut message = Zeroizing::new(vec![0; len]);
        self.tls.reader().read_exact(&mut message)?;
        Ok(message)
    }
}

/// The rest of the handshake. Its records are encrypted, but for the listener's first, which is the dialer's first to
/// hear (`kind`), and those that only middleboxes look at; a record that claims to be anything else was changed on its
/// way.
async fn establish(
    stream: &mut TcpStream,
    mut tls: Connection,
    mut kind: u8,
    mut left: usize,
) -> Result<Channel, HandshakeError> {
    while tls.is_handshaking() {
        flush(&mut tls, stream).await?;
        let record = record(stream, VERSION_OF_RECORDS, &mut left).await?;
        if record[0] == kind {
            kind = RECORD_APPLICATION_DATA;
        } else if !matches!(record[0], RECORD_CHANGE_CIPHER_SPEC | RECORD_ALERT) {
            return Err(HandshakeError::Record("one of another type"));
        }
        if feed(&mut tls, &record)? > 0 {
            return Err(HandshakeError::Record("a message within the handshake"));
        }
    }
    if tls.alpn_protocol() != Some(&alpn()) {
        return Err(HandshakeError::Foreign);
    }
    let exporter = tls.export_keying_material([0; 32], b"EXPORTER-blast", Some(&[]))?;
    Ok(Channel { tls, exporter: Zeroizing::new(exporter) })
}

/// Give TLS one record; how many bytes of a message it held.
fn feed(tls: &mut Connection, record: &[u8]) -> Result<usize, HandshakeError> {
    let mut unread = record;
    let mut state = None;
    while !unread.is_empty() {
        tls.read_tls(&mut unread)?;
        state = Some(tls.process_new_packets()?);
    }
    let state = state.ok_or(HandshakeError::Record("an empty one"))?;
    if state.peer_has_closed() {
        return Err(HandshakeError::Record("an end"));
    }
    Ok(state.plaintext_bytes_to_read())
}

/// Send what TLS has to say, in one write.
async fn flush(tls: &mut Connection, stream: &mut TcpStream) -> Result<(), HandshakeError> {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes)?;
    }
    Ok(stream.write_all(&bytes).await?)
}

/// One record, at most `left` bytes, which become fewer. Not one byte beyond it is read, and as many are allocated as
/// its header says.
async fn record(stream: &mut TcpStream, version: [u8; 2], left: &mut usize) -> Result<Vec<u8>, HandshakeError> {
    let mut header = [0; RECORD_HEADER_LEN];
    let mut came = 0;
    while came < header.len() {
        match stream.read(&mut header[came..]).await? {
            0 => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            more => came += more,
        }
        // who says something else is not waited for
        if !matches!(header[0], RECORD_CHANGE_CIPHER_SPEC..=RECORD_APPLICATION_DATA) {
            wire::may_be_handshake(&header[..came])?;
        }
    }
    if wire::may_be_handshake(&header).is_ok() {
        return Err(refused(stream, &header).await);
    }
    if header[1..3] != version {
        return Err(HandshakeError::Record("one of another version"));
    }
    let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
    *left = left.checked_sub(header.len() + len).ok_or(HandshakeError::Record("one that is too long"))?;
    let mut record = vec![0; header.len() + len];
    record[..header.len()].copy_from_slice(&header);
    stream.read_exact(&mut record[header.len()..]).await?;
    Ok(record)
}

/// Whoever will not even begin with TLS says so in the words that every version understands.
async fn refused(stream: &mut TcpStream, begun: &[u8]) -> HandshakeError {
    match handshake::hear_rest(stream, begun, |_| None).await {
        Ok(Handshake::Refuse { code, reason }) => HandshakeError::Refused { code, reason },
        Ok(_) => HandshakeError::Record("a message outside of TLS"),
        Err(error) => error,
    }
}

/// What is offered as this version's protocol.
fn alpn() -> Vec<u8> {
    [ALPN_BEGINS, VERSION.to_string().as_bytes()].concat()
}

/// The commitment of a dialer that offers this version; what else it wants, if it does not.
fn offered(accepted: &Accepted) -> Result<[u8; 32], HandshakeError> {
    let hello = accepted.client_hello();
    let mut offers = hello.alpn().ok_or(HandshakeError::Foreign)?;
    let first = offers.next().ok_or(HandshakeError::Foreign)?;
    if first != alpn() {
        let version = first.strip_prefix(ALPN_BEGINS).and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
        return Err(version.map_or(HandshakeError::Foreign, |theirs| WireError::Version { theirs }.into()));
    }
    let commitment = offers.next().and_then(|c| c.try_into().ok());
    commitment.filter(|_| offers.next().is_none()).ok_or(HandshakeError::Foreign)
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        Arc::new(CryptoProvider {
            cipher_suites: vec![suite::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256],
            kx_groups: vec![suite::kx_group::X25519],
            ..suite::default_provider()
        })
    };
    PROVIDER.get_or_init(make).clone()
}

fn dialer(commitment: &[u8; 32]) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn(), commitment.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// The same for all connections: the key pair lives as long as this process.
fn listener() -> Result<Arc<ServerConfig>, rustls::Error> {
    static CONFIG: OnceLock<Result<Arc<ServerConfig>, rustls::Error>> = OnceLock::new();
    CONFIG.get_or_init(make_listener).clone()
}

fn make_listener() -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = provider();
    let unmade = || rustls::Error::General("no key pair could be made".into());
    let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| unmade())?;
    let signing = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(pair.as_ref().to_vec()).into())?;
    let public = signing.public_key().ok_or_else(unmade)?.as_ref().to_vec();
    let certified = CertifiedKey::new(vec![CertificateDer::from(public)], signing);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified))));
    config.alpn_protocols = vec![alpn()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// Takes anybody who has signed the handshake with the key that was shown.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn on_runtime<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    /// Both ends' channels.
    async fn established(near: &mut TcpStream, far: &mut TcpStream) -> (Channel, Channel) {
        let listener = async {
            let mut channel = hear(far).await?.accept(far).await?;
            let said = channel.hear(far).await?;
            Ok::<_, HandshakeError>((channel, said))
        };
        let dialer = async {
            let mut channel = Dialer::new(&[7; 32])?.dial(near).await?;
            channel.say(near, b"hello").await?;
            Ok::<_, HandshakeError>(channel)
        };
        let (dialer, listener) = tokio::join!(dialer, listener);
        let (listener, said) = listener.unwrap();
        assert_eq!(&said[..], b"hello");
        (dialer.unwrap(), listener)
    }

    #[test]
    fn both_ends_export_the_same_value_and_leave_at_a_known_byte() {
        on_runtime(async {
            let (mut near, mut far) = connected().await;
            let (mut dialer, mut listener) = established(&mut near, &mut far).await;
            assert_eq!(dialer.exporter(), listener.exporter());
            let longest = vec![9; wire::PREFIX_LEN + limits::HANDSHAKE_MAX + 16];
            listener.say(&mut far, &longest).await.unwrap();
            // at once, and in the same segment
            far.write_all(b"frames").await.unwrap();
            assert_eq!(dialer.hear(&mut near).await.unwrap()[..], longest);
            near.write_all(b"more frames").await.unwrap();
            drop((dialer, listener));
            let mut frames = [0; 6];
            near.read_exact(&mut frames).await.unwrap();
            let mut more = [0; 11];
            far.read_exact(&mut more).await.unwrap();
            assert_eq!((&frames, &more), (b"frames", b"more frames"));
            let (mut near, mut far) = connected().await;
            let (another, _) = established(&mut near, &mut far).await;
            assert_ne!(another.exporter(), &[0; 32]);
        });
    }

    #[test]
    fn a_listener_learns_the_commitment_first_and_may_answer_in_plain_words() {
        on_runtime(async {
            let (mut near, mut far) = connected().await;
            let answers = async {
                assert_eq!(hear(&mut far).await.unwrap().commitment, [7; 32]);
                let refusal = Handshake::Refuse { code: crate::ExitCode::Refused, reason: "no\x1b".into() };
                handshake::say(&mut far, &refusal, &wire::PUBLISHED_KEY).await.unwrap();
            };
            let (dialed, ()) = tokio::join!(Dialer::new(&[7; 32]).unwrap().dial(&mut near), answers);
            let Err(HandshakeError::Refused { reason, .. }) = dialed else { panic!("not refused") };
            assert_eq!(reason, "no\x1b");
        });
    }

    /// What a listener says of a dialer that offers this.
    fn offering(alpn: Vec<Vec<u8>>) -> HandshakeError {
        on_runtime(async {
            let (mut near, mut far) = connected().await;
            let mut config = (*dialer(&[7; 32]).unwrap()).clone();
            config.alpn_protocols = alpn;
            let tls = ClientConnection::new(Arc::new(config), IpAddr::from([127, 0, 0, 1]).into()).unwrap();
            let (_, heard) =
                tokio::join!(establish(&mut near, tls.into(), FIRST_BYTE, limits::TLS_HANDSHAKE_MAX), async {
                    let heard = hear(&mut far).await;
                    drop(far);
                    heard
                });
            heard.map(|_| ()).unwrap_err()
        })
    }

    #[test]
    fn another_version_and_another_purpose_are_told_apart_before_anything_is_computed() {
        let version = offering(vec![b"blast/77".to_vec(), vec![7; 32]]);
        assert!(matches!(version, HandshakeError::Wire(WireError::Version { theirs: 77 })), "{version}");
        for foreign in [
            vec![],
            vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            vec![alpn()],
            vec![alpn(), vec![7; 31]],
            vec![alpn(), vec![7; 32], vec![7; 32]],
            vec![b"blast/".to_vec()],
            vec![b"blast/99999".to_vec()],
        ] {
            let said = offering(foreign.clone());
            assert!(matches!(said, HandshakeError::Foreign), "{foreign:?}: {said}");
        }
    }

    /// How a listener ends that hears this and then the end.
    fn heard(bytes: &[u8]) -> HandshakeError {
        on_runtime(async {
            let (mut near, mut far) = connected().await;
            near.write_all(bytes).await.unwrap();
            near.shutdown().await.unwrap();
            hear(&mut far).await.map(|_| ()).unwrap_err()
        })
    }

    #[test]
    fn no_record_is_read_that_would_take_more_than_the_bound() {
        let max = limits::TLS_HANDSHAKE_MAX - RECORD_HEADER_LEN;
        let begins = |kind: u8, len: usize| [&[kind, 3, 1][..], &(len as u16).to_be_bytes()].concat();
        let too_long = heard(&begins(22, max + 1));
        assert!(matches!(too_long, HandshakeError::Record("one that is too long")), "{too_long}");
        let cut = heard(&begins(22, max));
        assert!(matches!(cut, HandshakeError::Io(_)), "{cut}");
        // many small pieces of one long message
        let mut pieces = [&begins(22, 4)[..], &[1, 0, 0xff, 0xff]].concat();
        for _ in 0..=max / 6 {
            pieces.extend([&begins(22, 1)[..], &[0]].concat());
        }
        let pieces = heard(&pieces);
        assert!(matches!(pieces, HandshakeError::Record("one that is too long")), "{pieces}");
        for not_a_hello in [begins(23, 1), begins(20, 1), begins(21, 2), begins(22, 0)] {
            let ended = heard(&[&not_a_hello[..], &[1; 2]].concat());
            assert!(matches!(ended, HandshakeError::Tls(_) | HandshakeError::Io(_)), "{ended}");
        }
        assert!(matches!(heard(b"GET / HTTP/1.1\r\n"), HandshakeError::Wire(WireError::NotBlast { .. })));
    }

    #[test]
    fn after_the_handshake_anything_but_one_message_is_fatal() {
        for wrong in [&b"blast\r\n\0"[..], &[21, 3, 3, 0, 2, 1, 0], &[23, 3, 3, 0, 20], &[20, 3, 3, 0, 1, 1]] {
            on_runtime(async {
                let (mut near, mut far) = connected().await;
                let (mut dialer, _) = established(&mut near, &mut far).await;
                far.write_all(wrong).await.unwrap();
                far.write_all(&[0; 20]).await.unwrap();
                assert!(dialer.hear(&mut near).await.is_err(), "{wrong:?}");
            });
        }
        // a key update is a record of the right kind, with no message in it
        on_runtime(async {
            let (mut near, mut far) = connected().await;
            let (mut dialer, mut listener) = established(&mut near, &mut far).await;
            listener.tls.refresh_traffic_keys().unwrap();
            flush(&mut listener.tls, &mut far).await.unwrap();
            let said = dialer.hear(&mut near).await.unwrap_err();
            assert!(matches!(said, HandshakeError::Record("one that carries no message")), "{said}");
        });
    }
}
