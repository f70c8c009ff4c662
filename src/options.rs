//! What a transfer is asked to do, as meant. The command line is turned into these once, in `cli`; the conductors read
//! nothing else.

use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::ids::InstanceCode;
use crate::key::Key;
use crate::limits;
use crate::report::{Event, Found};

/// Who the other side must be, and what others may see.
#[derive(Clone, Default)]
pub struct Trust {
    /// The other side must have this key too; without one, neither may.
    pub key: Option<Arc<Key>>,
    /// Nothing is encrypted, on either side.
    pub plain: bool,
}

/// Whom a receiver takes senders from beside its own networks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// Anybody.
    Any,
    /// The addresses that begin with so many bits of this one.
    Network(IpAddr, u8),
}

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

/// One `--link`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkSpec {
    /// A local interface, as the system names it.
    Interface(String),
    /// One of our own addresses (bind to it) or one of the receiver's (connect to it).
    Address(IpAddr),
    /// From this interface to this address of the receiver's, through a router if need be. A link-local address is
    /// meant on that interface; one of our own there means the interface.
    Pair {
        /// The local interface, or its index.
        interface: String,
        /// The receiver's address.
        remote: IpAddr,
    },
    /// Not this interface. The others are discovered, or those that are named.
    Not(String),
}

impl LinkSpec {
    /// The interfaces that are left out.
    pub fn left_out(links: &[LinkSpec]) -> Vec<String> {
        let name = |link: &LinkSpec| match link {
            LinkSpec::Not(name) => Some(name.clone()),
            _ => None,
        };
        links.iter().filter_map(name).collect()
    }

    /// Whether any link is named, so that none is discovered.
    pub fn by_hand(links: &[LinkSpec]) -> bool {
        links.iter().any(|link| !matches!(link, LinkSpec::Not(_)))
    }
}

/// Where a receiver listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bind {
    /// At one of our addresses; a link-local one needs the name or the index of its interface.
    Address(IpAddr, Option<String>),
    /// At every address, but only for what comes in by this interface.
    Interface(String),
}

impl LinkSpec {
    /// What the link is called in reports.
    pub fn name(&self) -> String {
        match self {
            LinkSpec::Interface(name) | LinkSpec::Not(name) => name.clone(),
            LinkSpec::Address(ip) => ip.to_string(),
            LinkSpec::Pair { interface, remote } => format!("{interface}={remote}"),
        }
    }
}

/// How fast chunks may go, in bytes of their frames a second; `None` is without a limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bwlimit {
    /// All links together.
    pub whole: Option<NonZeroU64>,
    /// Single links, each once.
    pub links: Vec<(LinkSpec, Option<NonZeroU64>)>,
}

impl Bwlimit {
    /// Limit a link, or the whole; the last word counts.
    pub fn set(&mut self, link: Option<LinkSpec>, rate: Option<NonZeroU64>) {
        match link {
            None => self.whole = rate,
            Some(link) => {
                self.links.retain(|(known, _)| *known != link);
                self.links.push((link, rate));
            }
        }
    }
}

/// What every socket of a side is told beyond what the program needs itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SocketOptions {
    /// The congestion control, as the kernel calls it; `None` is the system's.
    pub congestion: Option<String>,
    /// The differentiated services code point of its packets, 0 to 63.
    pub dscp: Option<u8>,
}

/// What is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sources {
    /// Standard input.
    Stdin,
    /// What this command, given to a shell, writes to its standard output.
    Run(OsString),
    /// One or more paths, as given.
    Paths(Vec<PathBuf>),
}

impl Sources {
    /// The paths that are read, as given.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Sources::Stdin | Sources::Run(_) => &[],
            Sources::Paths(paths) => paths,
        }
    }
}

/// Which of the sources' entries are sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Select {
    /// The first one that matches decides; what none matches is sent.
    pub rules: Vec<RuleOption>,
    /// Directories on which another file system is mounted are sent empty.
    pub one_file_system: bool,
    /// Of directories that are tagged as caches only the tag is sent.
    pub exclude_caches: bool,
    /// Only what a list names of the only source, which is a directory.
    pub files_from: Option<FilesFrom>,
}

/// One rule or file of rules; patterns as `source::select` has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuleOption {
    /// What matches is left out.
    Exclude(Vec<u8>),
    /// What matches is sent.
    Include(Vec<u8>),
    /// Patterns, one a line; `-` is standard input.
    ExcludeFrom(PathBuf),
}

/// A list of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilesFrom {
    /// Where it is; `-` is standard input.
    pub file: PathBuf,
    /// Whether names end in a NUL instead of a newline.
    pub nul: bool,
}

impl Select {
    /// Whether everything is sent.
    pub fn is_everything(&self) -> bool {
        *self == Select::default()
    }
}

/// Called for everything worth telling while a transfer runs, from any thread; it must not block for long.
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// Called with every receiver that was found, at least one: which of them is meant, or why none is. It may wait for a
/// person.
pub type Choose = Arc<dyn Fn(&[Found]) -> Result<usize, Error> + Send + Sync>;

/// How a receiver is found that nobody named.
#[derive(Clone)]
pub struct Find {
    /// Only the one that shows this.
    pub code: Option<InstanceCode>,
    /// Who decides. Anybody on the networks can answer, so somebody must.
    pub choose: Choose,
}

/// The sending side of a transfer.
#[derive(Clone)]
pub struct SendOptions {
    /// What is sent.
    pub sources: Sources,
    /// Which of its entries.
    pub select: Select,
    /// Find the receiver on the directly attached networks; `host` and `port` are not used then.
    pub find: Option<Find>,
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
    /// How fast chunks may go.
    pub bwlimit: Bwlimit,
    /// Who the receiver must be.
    pub trust: Trust,
    /// For every socket.
    pub sockets: SocketOptions,
    /// With every link silent, how long to wait for one.
    pub timeout: Duration,
    /// Chunks this side holds at most, 1 to [`limits::WINDOW_MAX`]; `None` lets the program choose, see
    /// [`Window::chosen`].
    pub window_chunks: Option<u32>,
    /// What is read of entries.
    pub keep: Keep,
    /// Whether holes in files are looked for; otherwise they are sent as the zeros that they read as.
    pub sparse: bool,
    /// Where the BLAKE3 of every file is written to, if anywhere.
    pub manifest: Option<PathBuf>,
    /// Where events go.
    pub observer: Observer,
}

/// A look at the links.
#[derive(Clone)]
pub struct LinksOptions {
    /// As for sending: the receiver, if its links are to be measured, and what all connections are told.
    pub send: SendOptions,
    /// Whether there is a receiver.
    pub measure: bool,
    /// How long each link is measured, and all of them together.
    pub time: Duration,
}

/// What is received into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// The standard input of this command, given to a shell. Standard output is the command's.
    Run(OsString),
    /// A path, as given. A final slash asks for a directory.
    Path(PathBuf),
}

impl Destination {
    /// Whether standard output is for what arrives, so that what is said must go elsewhere.
    pub fn takes_stdout(&self) -> bool {
        matches!(self, Destination::Stdout | Destination::Run(_))
    }
}

/// What is kept of entries beside content, mode, owner and time: everything, unless told otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// Extended attributes, file capabilities among them.
    pub xattrs: bool,
    /// POSIX access control lists.
    pub acls: bool,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep { xattrs: true, acls: true }
    }
}

/// What the receiver lets pass that it otherwise would not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allow {
    /// As root: a destination that everybody can write to, or that lies in such a directory.
    pub shared: bool,
    /// Setuid and setgid bits of files.
    pub suid: bool,
    /// Character and block devices.
    pub devices: bool,
    /// File capabilities.
    pub caps: bool,
    /// Extended attributes of the namespace trusted.
    pub trusted: bool,
    /// Labels of security modules (SELinux, IMA, EVM and the like), which mean something on the sender's system.
    pub labels: bool,
}

impl Allow {
    /// What a sender gets that has proved who it is, beside what is allowed anyway.
    #[must_use]
    pub fn to_a_known_sender(self) -> Allow {
        Allow { suid: true, devices: true, caps: true, trusted: true, ..self }
    }
}

/// Whose things become here. The default is the sender's numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owners {
    /// Whoever has the sender's name for an owner.
    pub by_name: bool,
    /// Before that: the first rule for the user that matches.
    pub users: Vec<IdRule>,
    /// The same for groups.
    pub groups: Vec<IdRule>,
}

/// One rule of `--owner-map` or `--group-map`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdRule {
    /// Whom it is about.
    pub from: MapFrom,
    /// Who that is here.
    pub to: MapTo,
}

/// A user or group of the sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapFrom {
    /// Every one.
    Any,
    /// Those numbers.
    Ids(std::ops::RangeInclusive<u32>),
    /// The one whom the sender calls so.
    Name(Vec<u8>),
}

/// A user or group of the receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapTo {
    /// A number, whether anybody has it or not.
    Id(u32),
    /// A name, which somebody must have.
    Name(Vec<u8>),
}

impl Owners {
    /// Whether the sender must say how owners are called.
    pub fn need_names(&self) -> bool {
        let by_name = |rule: &IdRule| matches!(rule.from, MapFrom::Name(_));
        self.by_name || self.users.iter().chain(&self.groups).any(by_name)
    }
}

/// The receiving side of a transfer.
#[derive(Clone)]
pub struct RecvOptions {
    /// What is received into.
    pub destination: Destination,
    /// Where to listen; `None` is every address of both families.
    pub bind: Option<Bind>,
    /// The port; 0 lets the system choose.
    pub port: u16,
    /// Who the sender must be.
    pub trust: Trust,
    /// Whom senders are taken from beside our own networks; empty, with a key, is anybody.
    pub from: Vec<From>,
    /// For every socket.
    pub sockets: SocketOptions,
    /// Senders cannot find it, they must name it.
    pub hidden: bool,
    /// Zeros are not written into one file or onto a block device, where they need not be.
    pub sparse: bool,
    /// What is let pass.
    pub allow: Allow,
    /// What is set on entries.
    pub keep: Keep,
    /// Whose things become here.
    pub owners: Owners,
    /// With every link silent, how long to wait for one.
    pub timeout: Duration,
    /// Chunks this side holds at most, 1 to [`limits::WINDOW_MAX`]; `None` lets the program choose, see
    /// [`Window::chosen`].
    pub window_chunks: Option<u32>,
    /// Whether what was written is read back from the disk and compared before it counts as received.
    pub verify: bool,
    /// Where the BLAKE3 of every file is written to, if anywhere.
    pub manifest: Option<PathBuf>,
    /// Where events go.
    pub observer: Observer,
}

/// How many chunks a side may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// From the beginning.
    pub start: u32,
    /// Once it has proved to be too small for what is under way in a round trip, or for pauses of who writes.
    pub max: u32,
}

impl Window {
    /// That many, come what may.
    pub fn fixed(chunks: u32) -> Window {
        Window { start: chunks, max: chunks }
    }

    /// The wish, or what the memory allows of which so many bytes are available.
    pub fn chosen(wish: Option<u32>, available: Option<u64>) -> Window {
        if let Some(chunks) = wish {
            return Window::fixed(chunks.clamp(1, limits::WINDOW_MAX));
        }
        let room = available.map_or(u64::MAX, |bytes| bytes / 8 / limits::CHUNK_LEN as u64);
        let max = room.clamp(limits::WINDOW_AUTO_MIN.into(), limits::WINDOW_AUTO_MAX.into()) as u32;
        Window { start: limits::WINDOW_START.min(max), max }
    }
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
            select: Select::default(),
            find: None,
            host: host.to_owned(),
            port: limits::PORT,
            links: Vec::new(),
            streams: None,
            compress: Compress::Auto,
            schedule: Schedule::Pull,
            bwlimit: Bwlimit::default(),
            trust: Trust::default(),
            sockets: SocketOptions::default(),
            timeout: limits::TIMEOUT_DEFAULT,
            window_chunks: None,
            keep: Keep::default(),
            sparse: true,
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
            bind: None,
            port: limits::PORT,
            trust: Trust::default(),
            from: Vec::new(),
            sockets: SocketOptions::default(),
            hidden: false,
            sparse: false,
            allow: Allow::default(),
            keep: Keep::default(),
            owners: Owners::default(),
            timeout: limits::TIMEOUT_DEFAULT,
            window_chunks: None,
            verify: false,
            manifest: None,
            observer: Arc::new(|_| {}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_the_wish_or_what_memory_allows() {
        let gib = 1 << 30;
        let cases = [
            (Some(5), Some(0), (5, 5)),
            (Some(0), None, (1, 1)),
            (Some(9999), None, (1024, 1024)),
            (None, None, (128, 256)),
            (None, Some(64 * gib), (128, 256)),
            (None, Some(gib + gib / 2), (128, 192)),
            (None, Some(gib / 2), (64, 64)),
            (None, Some(0), (8, 8)),
        ];
        for (wish, available, (start, max)) in cases {
            assert_eq!(Window::chosen(wish, available), Window { start, max }, "{wish:?} {available:?}");
        }
    }
}
