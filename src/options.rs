//! What a transfer is asked to do, as meant. The command line is turned into these once, in `cli`; the conductors read
//! nothing else.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use crate::report::Event;

/// How chunks are spread over links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Schedule {
    /// A link takes the next chunk when its socket has room.
    #[default]
    Pull,
    /// Strict rotation, whatever the links' speeds; for comparison.
    RoundRobin,
}

/// Which chunks are compressed. One that does not shrink is sent as it is, whatever is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compress {
    /// None.
    Off,
    /// Chunk by chunk, while the links are what limits and there is CPU for it.
    #[default]
    Auto,
    /// All, at this zstd level.
    Level(i32),
}

/// One `--link`: an interface by name, or a local or remote address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkSpec {
    /// A local interface, as the system names it.
    Interface(String),
    /// One of our own addresses (bind to it) or one of the receiver's (connect to it).
    Address(IpAddr),
}

/// What is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sources {
    /// Standard input.
    Stdin,
    /// One or more paths, as given.
    Paths(Vec<PathBuf>),
}

impl Sources {
    /// The paths that are read, as given.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Sources::Stdin => &[],
            Sources::Paths(paths) => paths,
        }
    }
}

/// Called for everything worth telling while a transfer runs, from any thread; it must not block for long.
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// The sending side of a transfer.
#[derive(Clone)]
pub struct SendOptions {
    /// What is sent.
    pub sources: Sources,
    /// The receiver's name or address, as given.
    pub host: String,
    /// The receiver's port.
    pub port: u16,
    /// Links by hand; empty means discover them.
    pub links: Vec<LinkSpec>,
    /// Connections on each link; `None` lets the program choose.
    pub streams: Option<u16>,
    /// Which chunks are compressed.
    pub compress: Compress,
    /// How chunks are spread over links.
    pub schedule: Schedule,
    /// With every link silent, how long to wait for one.
    pub timeout: Duration,
    /// Chunks this side holds at most; 1 to [`limits::WINDOW_MAX`].
    pub window_chunks: u32,
    /// Where the BLAKE3 of every file is written to, if anywhere.
    pub manifest: Option<PathBuf>,
    /// Where events go.
    pub observer: Observer,
}

/// What is received into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A path, as given. A final slash asks for a directory.
    Path(PathBuf),
}

/// The receiving side of a transfer.
#[derive(Clone)]
pub struct RecvOptions {
    /// What is received into.
    pub destination: Destination,
    /// Where to listen; `None` is every address of both families.
    pub listen: Option<IpAddr>,
    /// The port; 0 lets the system choose.
    pub port: u16,
    /// With every link silent, how long to wait for one.
    pub timeout: Duration,
    /// Chunks this side holds at most; 1 to [`limits::WINDOW_MAX`].
    pub window_chunks: u32,
    /// Where the BLAKE3 of every file is written to, if anywhere.
    pub manifest: Option<PathBuf>,
    /// Where events go.
    pub observer: Observer,
}

/// A comparison of a tree with a manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyOptions {
    /// The tree.
    pub dir: PathBuf,
    /// The manifest, written by us or by `b3sum`.
    pub manifest: PathBuf,
    /// Whether files that the manifest does not name are told too.
    pub extra: bool,
}

impl SendOptions {
    /// The defaults for sending `sources` to `host`.
    pub fn new(sources: Sources, host: &str) -> SendOptions {
        SendOptions {
            sources,
            host: host.to_owned(),
            port: limits::PORT,
            links: Vec::new(),
            streams: None,
            compress: Compress::Auto,
            schedule: Schedule::Pull,
            timeout: limits::TIMEOUT_DEFAULT,
            window_chunks: limits::WINDOW_DEFAULT,
            manifest: None,
            observer: Arc::new(|_| {}),
        }
    }
}

impl RecvOptions {
    /// The defaults for receiving into `destination`.
    pub fn new(destination: Destination) -> RecvOptions {
        RecvOptions {
            destination,
            listen: None,
            port: limits::PORT,
            timeout: limits::TIMEOUT_DEFAULT,
            window_chunks: limits::WINDOW_DEFAULT,
            manifest: None,
            observer: Arc::new(|_| {}),
        }
    }

    /// The wildcard or chosen address with the port.
    pub fn listen_addr(&self) -> Option<SocketAddr> {
        self.listen.map(|ip| SocketAddr::new(ip, self.port))
    }
}
