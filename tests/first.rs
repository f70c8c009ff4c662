//! The first connection as a peer makes it that is a test: the library's own TLS, and inside it whatever the test says.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use blast::ids::SessionId;
use blast::link::handshake::{self, HandshakeError};
use blast::link::tls;
use blast::wire::{Handshake, Offer, PUBLISHED_KEY, SessionKeys, Terms, decode_message, encode_handshake, trust};

use crate::ends::PATIENCE;

/// What a test's dialer commits itself to.
const NONCE: [u8; 32] = [7; 32];

/// Work on a connection as the library does.
pub fn with<T>(stream: &mut TcpStream, work: impl AsyncFnOnce(&mut tokio::net::TcpStream) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let own = stream.try_clone().unwrap();
    own.set_nonblocking(true).unwrap();
    let done = runtime.block_on(async {
        let mut own = tokio::net::TcpStream::from_std(own).unwrap();
        work(&mut own).await
    });
    stream.set_nonblocking(false).unwrap();
    done
}

/// A message under the published key.
pub fn encoded(message: &Handshake) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_handshake(message, &PUBLISHED_KEY, &mut bytes);
    bytes
}

/// Hello of a sender without a key.
pub fn hello(session: SessionId, offer: Offer) -> Vec<u8> {
    let terms = Terms { nonce: NONCE, ..Terms::default() };
    encoded(&Handshake::Hello { session, terms, offer })
}

/// Say these bytes as Hello; the answer.
pub fn greet(stream: &mut TcpStream, hello: &[u8]) -> Result<Handshake, HandshakeError> {
    greet_within(stream, hello, PATIENCE)
}

/// The same, if it comes by then.
pub fn greet_within(stream: &mut TcpStream, hello: &[u8], limit: Duration) -> Result<Handshake, HandshakeError> {
    let dialer = tls::Dialer::new(&trust::commitment(&NONCE))?;
    with(stream, async |stream| {
        handshake::within(limit, async {
            let mut channel = dialer.dial(stream).await?;
            channel.say(stream, hello).await?;
            Ok(decode_message(&channel.hear(stream).await?)?)
        })
        .await
    })
}

/// Hear a sender's Hello and answer it with the bytes that `answer` makes of its session; the keys of a session that is
/// not encrypted.
pub fn receive(stream: &mut TcpStream, answer: impl Fn(SessionId) -> Vec<u8>) -> (SessionId, Arc<SessionKeys>) {
    with(stream, async |stream| {
        let knock = tls::hear(stream).await.expect("an honest end");
        let mut channel = knock.accept(stream).await.expect("an honest end");
        let hello = channel.hear(stream).await.expect("an honest end's message");
        let Ok(Handshake::Hello { session, .. }) = decode_message(&hello) else { panic!("not a Hello") };
        let answer = answer(session);
        channel.say(stream, &answer).await.expect("it listens");
        let secret = trust::secret(channel.exporter(), None, &hello, &answer);
        (session, Arc::new(SessionKeys::new(*secret, None)))
    })
}

/// What another program's TLS client says first, with these protocols.
pub fn foreign_client(alpn: &[&[u8]]) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let mut client = rustls::ClientConnection::new(Arc::new(config), "example.org".try_into().unwrap()).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}
