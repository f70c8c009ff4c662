//! blast moves a tree or a stream between two machines over every link they share, verified.
//!
//! `blast recv /restore` on one machine and `blast send /data host` on the other. The sender turns the tree into one
//! tar stream, cuts it into numbered chunks of at most 1 MiB and lets every link take the next one when it has room;
//! the receiver verifies each with BLAKE3, puts them back in order and unpacks them. The program is a thin shell around
//! this library: [`send::run`] and [`recv::run`] do a transfer and return a [`report::Report`], or an [`Error`] that
//! says what a user can act on.
//!
//! # How data flows
//!
//! ```text
//! sender                                              receiver
//!
//! walk      list the tree, in one fixed order         write ×N  bytes and attributes onto the disk
//!   │                                                   ▲
//! plan      number chunks: which entries share one,   unpack    the archive into jobs for writers, in order
//!   │       which slice of a large file is one          ▲
//! fill ×N   read files, lay out the chunk             deliver   in the order of the numbers
//! seal ×N   compress, digest                            ▲
//!   │                                                 open ×N   decompress, verify
//! SendFlow  who sends what; what is unacknowledged      ▲
//!   │                                                 RecvFlow  admit, hold, acknowledge, give credit
//!   │                                                   ▲
//! link ×L   ═══════════════ chunk frames ══════════►  link ×L
//!           ◄══════════ acks and credit, any link ══
//! ```
//!
//! - **Numbers come before parallelism.** A chunk has its sequence number from the plan on. What follows runs in any
//!   order on any thread, and order is restored in one place, the receiver's reassembly buffer. The chunks' contents in
//!   order are the stream: a valid tar archive, or the raw bytes of one file, block device or standard input.
//! - **Two kinds of chunk.** A *mixed* chunk holds whole small entries, headers and padding; the worker that lays it
//!   out opens and reads them there and then, so a file that has vanished or shrunk is left out or told truly and
//!   disturbs no other. A *data* chunk is one aligned slice of a large file or raw stream and nothing else: it bypasses
//!   the archive parser, and the slices' digests merge into the file's own BLAKE3. A file with holes travels as mixed
//!   chunks, its map before its data: no hole is read, sent or written.
//! - **Sealed once.** A chunk is kept as sealed until it is acknowledged, and what is sent again, on whatever link, is
//!   the same bytes. The source is never read twice.
//! - **Links pull.** A link takes the lowest waiting chunk when its socket has room, so fast and slow links each carry
//!   their share without weights or measurements. A link that dies gives its unacknowledged chunks back; when nothing
//!   fresh may be sent, an idle link sends the lowest unacknowledged one once more, so the slowest link does not decide
//!   when it ends.
//! - **One connection a link, unless more pay.** Over a long way, on a bond or a very fast interface twice as many are
//!   tried, and again, for as long as they carry a tenth more; what did not pay leaves once all it carried is settled.
//! - **Credit is memory.** The receiver allows as many chunks as it has buffers. A number is taken only by a verified
//!   copy and a held chunk is never dropped, so memory is the window and one buffer for each link, whatever the peer,
//!   the disk or the network do. The window grows to twice what it begins with if it proves to be smaller than what is
//!   under way in a round trip, or if the writer stops, as far as the machine's free memory allows.
//! - **Little is done for each chunk.** Its memory is the pool's and nothing is allocated; a socket is served when it
//!   has or takes a portion (a few milliseconds of its rate), an acknowledgement rides on the next chunk, and whoever
//!   waits is woken for a batch where there is one.
//! - **Acks are absolute.** One snapshot says all there is to say: what is held, how far credit goes, and how many
//!   frames of each link are settled, from which the sender finds chunks that failed verification. Losing or repeating
//!   one costs nothing, and no connection is special: any link may die, the first one too.
//! - **Success is one thing.** The sender's last word is Finish with the digest of all chunks. The receiver syncs the
//!   disk, then answers Commit on every link. Without Commit the sender fails; end-of-file and resets end nothing. What
//!   happened to single entries travels beside the stream as [`report::Note`]s and makes the exit code 1.
//! - **Every stage times itself**: at work, waiting for input, waiting for output, on both ends ([`stats::Stage`]); the
//!   receiver's times travel in Commit, and the report names what limited the run ([`report::limit`]).
//!
//! # The rooms
//!
//! | room | what it does | what it never does |
//! |---|---|---|
//! | [`child`] [`device`] [`error`] [`ids`] [`key`] [`limits`] [`options`] [`pipe`] [`queue`] [`report`] [`stats`] [`storage`] [`sys`] | the ground floor: words and bounds all share; `sys` has the only unsafe code | import another room |
//! | [`wire`] | frames and handshake messages to bytes and back; its documentation is the wire format | see a socket |
//! | [`archive`] | the tar dialect: one entry's headers to bytes and back | I/O |
//! | [`manifest`] | digests of files as `b3sum` writes them: one line to bytes and back, and the file they go to | read what is listed |
//! | [`chunk`] | buffers, digests, seal and open | I/O |
//! | [`flow`] | the protocol's decisions, as state machines | name a clock, thread, socket or file |
//! | [`source`] | what is sent: choose, walk, plan, fill, block devices, standard input, what a command writes | follow a link, write |
//! | [`sink`] | what is received: unpack, writers, raw targets (file, block device, standard output, a command); nothing leaves its root or replaces what is there | trust a name |
//! | [`link`] | the only sockets: find, announce, dial, accept, handshake, read, write | touch a file |
//! | [`send`] [`recv`] | the two conductors, mirrored: build the stages, own the session, wait, report | move bytes themselves |
//! | [`read_back`] | read files again from the disk and compare them with their digests | write |
//! | [`verify`] | compare a tree with a manifest | write |
//! | [`cli`] | arguments, progress, exit codes, reports | know how anything works |
//!
//! Imports go one way: ground floor ← wire, archive, manifest ← chunk, flow ← source, sink, link, read_back ← send,
//! recv, verify ← cli. The crate `tar` is named only in `archive`; tokio and socket2 only in `link`, `send` and `recv`;
//! clap and indicatif only in `cli`, which is also the only room that prints. `tests/house.rs` holds all this.
//!
//! # Threads
//!
//! Each side has one tokio runtime on one thread: sockets, timers, signals. CPU and disk belong to plain threads joined
//! by bounded channels: the source's walk and plan, a worker for each core that fills and seals (or opens and
//! verifies), the sink's unpacker and writers. Queues from the runtime into threads are as long as the buffer pool, so
//! handing over never waits; the flow stands behind a mutex held for one decision, never over I/O. Buffers are pooled
//! and claimed in the order of the numbers, so the lowest number always has what it needs. Closing runs down the chain;
//! the first error wins and runs up.
//!
//! # Who may talk to whom
//!
//! The first connection begins with TLS, which nobody between the two ends can read; inside it each proves to the other
//! that it has the key ([`key`]), if there is one, and both derive the secret from which all that follows is encrypted
//! and authenticated, further connections too ([`wire`] has the details, [`link::greet`] the two ends). Without a key a
//! receiver takes only neighbours, and both sides show the same code. Until then a stranger costs a receiver a place
//! among few, some KiB and five seconds ([`limits`]).
//!
//! # What is deliberately absent
//!
//! - Weights, speed probes and bonding: a socket's own room is the measurement, and a link's number of connections is
//!   found with the transfer's own chunks.
//! - A control connection: it would be a link that may not die.
//! - Reading a file again to send it again, and checksums of whole files before sending.
//! - Replacing anything in a destination: one that holds more than empty directories is refused.
//! - Certificates, names and anybody to ask whom to trust: both machines have the same key, or people compare a code.
//! - In this version: resuming after either process has ended and starting the receiver over ssh.

pub mod archive;
pub mod child;
pub mod chunk;
pub mod cli;
pub mod device;
pub mod error;
pub mod flow;
pub mod ids;
pub mod key;
pub mod limits;
pub mod link;
pub mod manifest;
pub mod options;
pub mod pipe;
pub mod queue;
pub mod read_back;
pub mod recv;
pub mod report;
pub mod send;
pub mod sink;
pub mod source;
pub mod stats;
pub mod storage;
pub mod sys;
pub mod verify;
pub mod wire;

pub use error::{Error, ExitCode};
