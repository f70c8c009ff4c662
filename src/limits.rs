//! Every bound of the program, in one place, with compile-time checks between them. A bound that lives elsewhere is a
//! bound nobody finds.

use std::time::Duration;

/// Bytes of content in a full chunk. A power of two of at least 1 KiB, so that the digests of a large file's slices
/// are subtrees of the file's own BLAKE3.
pub const CHUNK_LEN: usize = 1 << 20;

/// The largest window, in chunks: the acknowledgement's bitmap has one bit for each.
pub const WINDOW_MAX: u32 = 1024;

/// The window that a session begins with unless `--window` says otherwise, in chunks; less where memory is short.
pub const WINDOW_START: u32 = 128;

/// As far as it grows then, if it proves to be too small and an eighth of the memory that is available has room for it.
/// It is the most a slow disk or a gap can make a side hold.
pub const WINDOW_AUTO_MAX: u32 = 256;

/// The window where there is less memory than that, in chunks.
pub const WINDOW_AUTO_MIN: u32 = 8;

/// With all credit used, nothing freed for this long means that somebody has stopped.
pub const WINDOW_STALL: Duration = Duration::from_millis(20);

/// Links of one session at once, the most either side accepts.
pub const LINKS_MAX: usize = 64;

/// Ids of links that a receiver remembers, so that none joins twice; far more than can be dialled at once.
pub const JOINED_MAX: usize = 4096;

/// Memory for the zstd contexts of all workers that compress; with many workers it rules out the higher levels.
pub const COMPRESS_MEMORY: usize = 24 << 20;

/// Memory for the bzip2 contexts of workers that have time to compress more thoroughly; it says how many do at once.
pub const COMPRESS_MORE_MEMORY: usize = 24 << 20;

/// Bytes that one write to a socket offers: small enough that it is still in the second-level cache when the kernel
/// copies it (1 MiB writes cost 5 to 30 % more CPU).
pub const WRITE_LEN: usize = 512 << 10;

/// What may wait unsent in a socket before a link stops taking chunks (`TCP_NOTSENT_LOWAT`): what the link carries in
/// this time …
pub const SEND_PORTION_TIME: Duration = Duration::from_millis(20);
/// … but at least so many bytes, …
pub const SEND_PORTION_MIN: usize = 128 << 10;
/// … and at most so many.
pub const SEND_PORTION_MAX: usize = 2 << 20;

/// What must have come before a link that reads is woken (`SO_RCVLOWAT`): what it brings in this time …
pub const RECV_PORTION_TIME: Duration = Duration::from_millis(10);
/// … if that is more bytes than these, else any, …
pub const RECV_PORTION_MIN: usize = 16 << 10;
/// … and at most so many: a chunk with the next one's header, so that where there is no hurry each chunk is one call.
pub const RECV_PORTION_MAX: usize = CHUNK_LEN + 128;

/// With a limit on the rate, bytes go in pieces that last so long at that rate …
pub const BWLIMIT_PIECE_TIME: Duration = Duration::from_millis(20);
/// … but have at least so many bytes, and [`WRITE_LEN`] at most.
pub const BWLIMIT_PIECE_MIN: usize = 64;

/// The least that can be a limit, bytes a second: with all links at work each still shows a sign of life in time.
pub const BWLIMIT_MIN: u64 = 1 << 10;

/// How far behind its limit a transfer may make up for it at once: timers are late, more so on a busy machine.
pub const BWLIMIT_LATE: Duration = Duration::from_millis(40);

/// How long a link waits for a portion before it takes what there is.
pub const PORTION_PATIENCE: Duration = Duration::from_millis(20);

/// Payload of a control frame, the most a decoder accepts.
pub const CONTROL_MAX: usize = 64 << 10;

/// Body of a handshake message, the most a peer may make us read before it has joined.
pub const HANDSHAKE_MAX: usize = 4 << 10;

/// Bytes of TLS records that either side reads before TLS stands; both of ours say less than 2 KiB.
pub const TLS_HANDSHAKE_MAX: usize = 4 << 10;

/// Bytes of text in a reason sent to the peer.
pub const REASON_MAX: usize = 1 << 10;

/// Bytes of a path in a note on the wire; longer ones are cut and marked.
pub const NOTE_PATH_MAX: usize = 4 << 10;

/// Notes in one control frame.
pub const NOTES_PER_FRAME_MAX: usize = 1 << 10;

/// A path inside the archive, bytes. Far beyond `PATH_MAX`: ten thousand levels of thirty bytes fit.
pub const PATH_LEN_MAX: usize = 384 << 10;

/// One component of a path, bytes, as Linux has it.
pub const NAME_LEN_MAX: usize = 255;

/// The two numbers of a device, as Linux packs them in 32 bits.
pub const DEVICE_MAJOR_MAX: u32 = (1 << 12) - 1;
/// See [`DEVICE_MAJOR_MAX`].
pub const DEVICE_MINOR_MAX: u32 = (1 << 20) - 1;

/// A symbolic link's target, bytes: what Linux can store.
pub const TARGET_LEN_MAX: usize = 4095;

/// The name of an extended attribute and its value, bytes, as Linux has them.
pub const XATTR_NAME_MAX: usize = 255;
/// See [`XATTR_NAME_MAX`].
pub const XATTR_VALUE_MAX: usize = 64 << 10;

/// Names and values of all extended attributes of one entry, bytes; what is beyond is left out and named. With the
/// longest paths even less has room in [`PAX_LEN_MAX`].
pub const XATTRS_LEN_MAX: usize = 512 << 10;

/// Body of one pax header, bytes. With its two blocks and the entry's it must fit in one chunk.
pub const PAX_LEN_MAX: usize = 800 << 10;

/// All extended headers and long names before one member of a foreign archive, bytes.
pub const FOREIGN_META_MAX: u64 = 1 << 20;

/// Extents of one file with holes in a foreign archive.
pub const FOREIGN_EXTENTS_MAX: usize = 1 << 20;

/// Files of this many bytes and more are sliced into data chunks; smaller ones travel whole in mixed chunks, unless
/// header and content together do not fit one.
pub const LARGE_FILE_LEN: u64 = CHUNK_LEN as u64;

/// Extents of one sparse file. A file with more has its shortest holes filled with zeros on the way.
pub const SPARSE_EXTENTS_MAX: usize = 1 << 20;

/// Holes begin and end at multiples of this many bytes, and shorter ones are carried as zeros: what a file system can
/// leave out, and more than an extent costs in the map.
pub const HOLE_LEN_MIN: u64 = 4 << 10;

/// Holes of a file that was changed shortly before are read all the same if they are no longer than this together.
pub const HOLES_READ_MAX: u64 = 64 << 20;

/// A file whose last change is no older than this when a transfer begins may have data that its file system does not
/// tell of yet.
pub const SETTLED: Duration = Duration::from_secs(60);

/// Notes kept by name on either side; beyond it they are only counted.
pub const NOTES_MAX: usize = 10_000;

/// Bytes of their paths and details; beyond it they are only counted, too.
pub const NOTES_LEN_MAX: usize = 4 << 20;

/// A link with nothing to say sends a ping after this long.
pub const HEARTBEAT: Duration = Duration::from_millis(2500);

/// A link that has brought no byte for this long has missed a ping.
pub const HEARTBEAT_LATE: Duration = Duration::from_millis(3000);

/// A link that has brought no byte for this long is dead.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP has sent the same bytes again this often, while the peer is heard: large packets do not get through.
pub const HOLE_RETRANSMITS: u8 = 3;

/// The MSS to try then, one after the other: what IPv6 promises on every way (packets of 1280 bytes), and IPv4 (576).
pub const SMALL_MSS: [u32; 2] = [1220, 536];

/// From accepting a connection to its handshake's last byte, an absolute deadline.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// One attempt to connect to one address.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Between the starts of attempts at a name's several addresses (RFC 8305 recommends 250 ms).
pub const CONNECT_STAGGER: Duration = Duration::from_millis(250);

/// How long a refused first connection is tried again, since scripts start both ends at once.
pub const REFUSED_RETRY: Duration = Duration::from_secs(10);

/// First and last pause before it is tried again; it doubles between them: who started second is a few milliseconds late.
pub const REFUSED_PAUSE_MIN: Duration = Duration::from_millis(4);
/// See [`REFUSED_PAUSE_MIN`].
pub const REFUSED_PAUSE_MAX: Duration = Duration::from_millis(200);

/// First and last pause before a dead link is dialled again; it doubles between them.
pub const REDIAL_MIN: Duration = Duration::from_millis(100);
/// See [`REDIAL_MIN`].
pub const REDIAL_MAX: Duration = Duration::from_secs(1);

/// All links closed by the peer and nobody back in this time: the peer is gone.
pub const PEER_GONE: Duration = Duration::from_secs(10);

/// All links silent: how long to wait for one to come back, unless `--timeout` says otherwise.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(600);

/// After Commit, how long a socket is drained before it is closed.
pub const DRAIN: Duration = Duration::from_secs(2);

/// How long a command of `--run` has to end once it was asked to.
pub const COMMAND_GRACE: Duration = Duration::from_secs(2);

/// How often a command or a consumer that says nothing is looked at, to see whether it is still there.
pub const COMMAND_LOOK: Duration = Duration::from_millis(500);

/// How often each side looks whether interfaces have come or gone, beside whenever the kernel says so.
pub const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How often the sender compares what links carried with what their interfaces sent.
pub const PROVE_EVERY: Duration = Duration::from_secs(3);

/// Links come up to speed for this long before they are measured.
pub const MEASURE_WARM_UP: Duration = Duration::from_millis(500);

/// How long links are measured, each alone and all together.
pub const MEASURE_TIME: Duration = Duration::from_secs(2);

/// How long a link may share an interface that is not its own with that one's link.
pub const MISPLACED: Duration = Duration::from_secs(1);

/// One change of an interface comes in several messages; after the first, look again no sooner than this.
pub const SETTLE: Duration = Duration::from_millis(20);

/// Chunks in a row on one connection that fail verification, or connections in a row of one link that end damaged,
/// before the link is dropped for good.
pub const CORRUPT_IN_A_ROW_MAX: u32 = 8;

/// A connection that brought this many good chunks before it was damaged does not count as one more in a row.
pub const GOOD_CHUNKS: u64 = 64;

/// A connection that lived this long is dialled again at once; shorter ones wait longer each time.
pub const LIVED: Duration = Duration::from_secs(2);

/// Copies of one chunk that fail verification, on whatever links, before the sender gives up: it is the chunk, or the
/// peer, that is bad.
pub const CHUNK_LOSSES_MAX: u32 = 64;

/// A chunk is not late, and not sent once more on an idle link, before it has been out this long.
pub const HEDGE_MIN: Duration = Duration::from_millis(10);

/// However slow the idle link is, a chunk that has been out this long elsewhere is late.
pub const HEDGE_MAX: Duration = Duration::from_secs(5);

/// When a chunk is late, at the earliest, while too few have been acknowledged to know how long a chunk takes.
pub const HEDGE_UNMEASURED: Duration = Duration::from_millis(200);

/// When a chunk is late, at the earliest, while the source may yet bring another that may be sent.
pub const HEDGE_STARVED: Duration = Duration::from_millis(100);

/// A chunk that is in flight twice is not sent a third time before this long after the second.
pub const HEDGE_AGAIN: Duration = Duration::from_millis(500);

/// Without `--streams`, connections on one link at most.
pub const STREAMS_AUTO_MAX: u16 = 8;

/// How often links that may yet pay for more connections are looked at.
pub const STREAMS_LOOK: Duration = Duration::from_millis(250);

/// What a number of connections carries is measured over this long, or over [`STREAMS_SPAN_TRIPS`] round trips.
pub const STREAMS_SPAN: Duration = Duration::from_secs(1);
/// See [`STREAMS_SPAN`].
pub const STREAMS_SPAN_TRIPS: u32 = 10;

/// More connections stay if together they carry so much more than fewer did.
pub const STREAMS_GAIN: f64 = 1.10;

/// A round trip from which on one connection may be held back by its window or by its losses.
pub const STREAMS_RTT: Duration = Duration::from_millis(2);

/// An interface so fast that one core may not keep up with one connection on it, Mbit/s …
pub const STREAMS_SPEED_MBIT: u32 = 10_000;
/// … if the connection carries this much, bytes a second. Virtual interfaces call themselves fast whatever they are.
pub const STREAMS_FAST: f64 = 300e6;

/// Connections that were asked for and have not all come up after this long are not waited for.
pub const STREAMS_PATIENCE: Duration = Duration::from_secs(10);

/// Connections that the kernel keeps until they are accepted: what a flood brings while a turn of the runtime lasts.
pub const BACKLOG: i32 = 1024;

/// How long nothing is accepted once the kernel has no descriptor or memory for it.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Pause before it is looked again whether the rest of a sender's first header has come.
pub const PEEK_AGAIN: Duration = Duration::from_millis(5);

/// Strangers who are named one by one; later ones are only counted.
pub const STRANGERS_NAMED: u64 = 5;

/// Connections that have not finished their handshake: in all, and from one address.
pub const PENDING_MAX: usize = 64;
/// See [`PENDING_MAX`].
pub const PENDING_PER_ADDRESS_MAX: usize = 8;

/// Connections of one link that the sender dials at once.
pub const DIALS_AT_ONCE: usize = 4;

/// The port both sides use unless told otherwise. Receivers that wait are asked for on this UDP port, whatever TCP port
/// they listen on.
pub const PORT: u16 = 7411;

/// When receivers are asked for, from the start on; after the last every [`ASK_AGAIN`].
pub const ASK_AT: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(700)];
/// See [`ASK_AT`].
pub const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long answers are gathered, so that a second receiver is not overlooked: so long from the start, …
pub const ANSWERS_IN: Duration = Duration::from_secs(1);
/// … and so long after the first answer, which other interfaces follow.
pub const ANSWERS_AFTER_FIRST: Duration = Duration::from_millis(300);

/// How long receivers are asked for if none answers, since scripts start both ends at once.
pub const ASK_FOR: Duration = Duration::from_secs(10);

/// Receivers that are listed; whoever floods us with answers gets no more memory.
pub const FOUND_MAX: usize = 64;
/// Addresses kept of one receiver.
pub const FOUND_ADDRESSES_MAX: usize = 64;

/// Sockets that a sender asks with, one for each of its addresses.
pub const ASKING_MAX: usize = 128;

/// Answers that a waiting receiver gives at once at most, …
pub const ANSWERS_BURST: u32 = 256;
/// … and in a second in the long run.
pub const ANSWERS_PER_SECOND: u32 = 64;

/// Bytes of a host's name, as Linux has it.
pub const HOST_NAME_MAX: usize = 64;

const _: () = assert!(CHUNK_LEN.is_power_of_two() && CHUNK_LEN >= 1024);
const _: () = assert!(CHUNK_LEN.is_multiple_of(WRITE_LEN));
const _: () =
    assert!(WINDOW_START <= WINDOW_AUTO_MAX && WINDOW_AUTO_MAX <= WINDOW_MAX && WINDOW_MAX.is_multiple_of(64));
const _: () = assert!(0 < WINDOW_AUTO_MIN && WINDOW_AUTO_MIN <= WINDOW_START);
const _: () = assert!(DIALS_AT_ONCE < PENDING_PER_ADDRESS_MAX, "one place is left for a stranger on the same host");
const _: () = assert!(1 < STREAMS_AUTO_MAX && STREAMS_AUTO_MAX as usize <= LINKS_MAX);
const _: () = assert!(LINKS_MAX <= 64, "one bit of a word for each link");
const _: () = assert!((LINKS_MAX * BWLIMIT_PIECE_MIN) as u64 * 2 < BWLIMIT_MIN * IDLE_TIMEOUT.as_secs());
const _: () = assert!(PATH_LEN_MAX * 2 + TARGET_LEN_MAX < PAX_LEN_MAX);
const _: () = assert!(PAX_LEN_MAX + 4 * 512 <= CHUNK_LEN);
const _: () = assert!(HOLE_LEN_MIN.is_multiple_of(1024) && (CHUNK_LEN as u64).is_multiple_of(HOLE_LEN_MIN));
const _: () = assert!(HEDGE_MAX.as_millis() < IDLE_TIMEOUT.as_millis());
const _: () = assert!(HEARTBEAT.as_millis() < HEARTBEAT_LATE.as_millis());
const _: () = assert!(HEARTBEAT.as_millis() * 3 < IDLE_TIMEOUT.as_millis());
const _: () = assert!(ANSWERS_IN.as_millis() < ASK_FOR.as_millis());
