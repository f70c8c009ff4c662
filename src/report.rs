//! What a transfer has to say: notes about single entries, events while it runs, the report at its end. Data only;
//! `cli` renders it.

mod limit;
mod omitted;
mod rehearsal;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::child::Exit;
use crate::error::ExitCode;
use crate::ids::{Digest, InstanceCode, SessionCode};
use crate::limits::{NOTES_LEN_MAX, NOTES_MAX};
use crate::options::From;
use crate::stats::StageTimes;
pub use limit::{End, Limit, Limited, limit};
pub use omitted::{Omitted, OmittedCount, OmittedKind};
pub use rehearsal::{Rehearsal, Rehearsed, Tell};

/// What happened to one entry. The numbers are the wire's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum NoteKind {
    /// It was listed and then gone; left out.
    Vanished = 1,
    /// It became shorter while it was read; what was missing is zeros.
    Shrank = 2,
    /// It changed or grew while it was read; the announced length was sent.
    Changed = 3,
    /// It could not be opened or listed; left out.
    Unreadable = 4,
    /// Ranges of it could not be read; they are zeros.
    ReadError = 5,
    /// It cannot be carried (a name or path too long, a type that this version does not send); left out.
    NotCarried = 6,
    /// A socket: skipped by design.
    Socket = 7,
    /// The receiver could not create it; left out.
    NotCreated = 8,
    /// The receiver created it, but an attribute could not be set.
    Attribute = 9,
    /// The owner is not ours to set (an unprivileged receiver).
    Owner = 10,
    /// A bit that needs trust was withheld.
    Withheld = 11,
    /// A pseudo file system (/proc and the like) is mounted on it; the mount point went, nothing in it.
    Pseudo = 12,
    /// An extended attribute could not be read or set.
    Xattr = 13,
    /// An access control list could not be read or set.
    Acl = 14,
    /// An attribute of the file system's own (its flags, an ACL of NFSv4): not carried by design.
    OtherXattr = 15,
    /// An attribute that is not ours to set: another system's label, or what only root may give.
    NotOurs = 16,
    /// Nobody here has the name of its owner or group; the number stays. Once for each name.
    UnknownName = 17,
    /// The file system cannot hold its time and took another.
    Time = 18,
    /// Root may not give it to its owner there.
    OwnerRefused = 19,
    /// Something to know about an archive of another program; nothing is missing.
    Remark = 20,
    /// Not one entry: bytes of a stream that were not unpacked.
    Unread = 21,
}

impl NoteKind {
    /// Every kind, in the wire's order.
    pub const ALL: [NoteKind; 21] = {
        use NoteKind::*;
        [
            Vanished,
            Shrank,
            Changed,
            Unreadable,
            ReadError,
            NotCarried,
            Socket,
            NotCreated,
            Attribute,
            Owner,
            Withheld,
            Pseudo,
            Xattr,
            Acl,
            OtherXattr,
            NotOurs,
            UnknownName,
            Time,
            OwnerRefused,
            Remark,
            Unread,
        ]
    };

    /// The kind for a byte that a peer sent.
    pub fn from_wire(kind: u8) -> Option<NoteKind> {
        Self::ALL.into_iter().find(|k| *k as u8 == kind)
    }

    /// Whether a transfer with such a note is less than whole.
    pub fn is_loss(self) -> bool {
        use NoteKind::{NotOurs, OtherXattr, Owner, Pseudo, Remark, Socket, UnknownName};
        !matches!(self, Socket | Owner | Pseudo | OtherXattr | NotOurs | UnknownName | Remark)
    }
}

/// One thing that happened to one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// What happened.
    pub kind: NoteKind,
    /// The entry's path inside the transfer, raw bytes; escape before printing.
    pub path: Vec<u8>,
    /// The cause or the extent, in words; may hold foreign text, escape before printing.
    pub detail: String,
}

/// Notes of one side: the first [`NOTES_MAX`] by name, [`NOTES_LEN_MAX`] bytes at most, the rest by number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Notes {
    /// The named ones, in the order they happened.
    pub named: Vec<Note>,
    /// All of them that make the transfer less than whole, named or not.
    pub losses: u64,
    /// All of them that do not (sockets, owners), named or not.
    pub harmless: u64,
    /// Bytes of the named ones' text.
    named_len: usize,
}

impl Note {
    /// What it is one of many of: notes of one class may well be there for every entry, for one and the same reason.
    /// `None` if each has a story of its own.
    pub fn class(&self) -> Option<(NoteKind, &str)> {
        use NoteKind::{Acl, Attribute, NotCreated, OwnerRefused, Time, Withheld, Xattr};
        match self.kind {
            NotCreated | Attribute | Withheld => Some((self.kind, &self.detail)),
            Xattr | Acl | Time | OwnerRefused => Some((self.kind, "")),
            _ => None,
        }
    }

    /// Bytes of its path and detail.
    pub fn text_len(&self) -> usize {
        self.path.len() + self.detail.len()
    }
}

impl Notes {
    /// As another side counted them.
    pub fn counted(named: Vec<Note>, losses: u64, harmless: u64) -> Notes {
        let named_len = named.iter().map(Note::text_len).sum();
        Notes { named, losses, harmless, named_len }
    }

    /// Count one more, and keep its name while there is room. Owner notes are counted only: one line must do. Of what
    /// file systems call attributes only the first is kept, and counted: there, every entry has some.
    pub fn push(&mut self, note: Note) {
        if note.kind == NoteKind::OtherXattr && self.named.iter().any(|n| n.kind == note.kind) {
            return;
        }
        if note.kind.is_loss() {
            self.losses += 1;
        } else {
            self.harmless += 1;
        }
        let first_of_kind = || !self.named.iter().any(|n| n.kind == note.kind);
        let fits = self.named.len() < NOTES_MAX && self.named_len + note.text_len() <= NOTES_LEN_MAX;
        if fits && (note.kind != NoteKind::Owner || first_of_kind()) {
            self.named_len += note.text_len();
            self.named.push(note);
        }
    }

    /// The exit code that these notes alone call for.
    pub fn exit_code(&self) -> ExitCode {
        if self.losses == 0 { ExitCode::Whole } else { ExitCode::Partial }
    }
}

/// One line of the final report for each link (all connections of one pair of interface and address).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LinkReport {
    /// What people call it: the local interface, or the peer's address where there is none.
    pub name: String,
    /// Bytes of chunk frames sent or received, headers included.
    pub wire_bytes: u64,
    /// Chunks sent or verified.
    pub chunks: u64,
    /// Chunks sent again after a loss.
    pub resends: u64,
    /// Chunks sent a second time because they were late elsewhere.
    pub hedges: u64,
    /// Chunks that failed verification.
    pub corrupt: u64,
    /// Times the link died.
    pub outages: u64,
    /// How long it was away in all, until the end where it did not come back.
    pub away: Duration,
    /// Connections on it, the most at once; without those that were tried and did not pay.
    pub connections: u64,
    /// Why it died last.
    pub last_error: Option<String>,
    /// Moving chunks' bytes to or from its sockets.
    pub busy: Duration,
    /// In the middle of a chunk, without room in its sockets (sender) or bytes from them (receiver).
    pub network: Duration,
    /// Of that, held back by `--bwlimit` (sender).
    pub limited: Duration,
    /// Up without a chunk: none was sealed (sender), or none came (receiver).
    pub idle: Duration,
    /// Up without credit for the next chunk (sender) or a buffer for it (receiver).
    pub held: Duration,
}

impl LinkReport {
    /// The part of its time that it had a chunk in hand, 0 to 1; `None` if it was never up. A link that is as fast as
    /// it can be has one all the time.
    pub fn used(&self) -> Option<f64> {
        let used = self.busy.as_secs_f64() + self.network.as_secs_f64();
        let all = used + self.idle.as_secs_f64() + self.held.as_secs_f64();
        (all > 0.0).then(|| used / all)
    }
}

/// Who a session's two ends are to each other, and what others can see of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Protection {
    /// Each has proved to the other that it has the key.
    pub trusted: bool,
    /// What everything is encrypted with; nothing if it is not.
    pub cipher: Option<&'static str>,
    /// What people compare where there is no key; the same on both ends unless somebody stands between them.
    pub code: Option<SessionCode>,
}

/// What came of a transfer, for both ends.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// `Whole` or `Partial`; anything else is an [`crate::Error`].
    pub code: ExitCode,
    /// Who the other side was.
    pub protection: Protection,
    /// Entries delivered; 0 for a raw stream.
    pub entries: u64,
    /// Bytes of content: file data for a tree, the stream's length for a raw stream.
    pub content_bytes: u64,
    /// Bytes of the archive or stream that the chunks carried.
    pub stream_bytes: u64,
    /// Bytes of all chunks as they were sent, each counted once, without headers: what compression made of the stream.
    pub payload_bytes: u64,
    /// From the first connection to Commit.
    pub elapsed: Duration,
    /// BLAKE3 over (length, digest) of all chunks in order; the same on both ends.
    pub transfer_digest: Digest,
    /// A raw stream's own BLAKE3, equal to what `b3sum` prints.
    pub stream_digest: Option<Digest>,
    /// One for each link, in the order they came up.
    pub links: Vec<LinkReport>,
    /// What the sender noted.
    pub source_notes: Notes,
    /// What the receiver noted.
    pub sink_notes: Notes,
    /// Where the sender's time went; empty on the receiver, which is not told.
    pub sender_stages: Vec<StageTimes>,
    /// Where the receiver's time went.
    pub receiver_stages: Vec<StageTimes>,
    /// True if standard input, or the command that makes the stream, brought no byte at all.
    pub empty_stdin: bool,
    /// How the command of this side ended that made or took the stream, if there was one.
    pub command: Option<Exit>,
    /// What the receiver read back, if it was asked to.
    pub read_back: Option<ReadBack>,
    /// The manifest, if one was asked for.
    pub manifest: Option<ManifestReport>,
    /// Bytes of the block device that this receiver wrote to.
    pub device_size: Option<u64>,
    /// What the sender left out on request; nothing on the receiver, which is not told.
    pub omitted: Omitted,
}

/// What was read back from the disk and found to be what was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadBack {
    /// Files, each once whatever its names.
    pub files: u64,
    /// Their bytes, holes included.
    pub bytes: u64,
}

/// What came of a manifest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManifestReport {
    /// The file, as given.
    pub path: PathBuf,
    /// Lines in it.
    pub files: u64,
    /// Lines whose names `b3sum` cannot check.
    pub foreign: u64,
    /// Why there is none, although everything else went well.
    pub failed: Option<String>,
}

impl ManifestReport {
    /// The exit code that this alone calls for.
    pub fn exit_code(&self) -> ExitCode {
        if self.failed.is_some() { ExitCode::Partial } else { ExitCode::Whole }
    }
}

/// How a file differs from what a manifest says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DifferenceKind {
    /// It is not there.
    Missing,
    /// It has another digest.
    Content,
    /// It cannot be read.
    Unreadable,
    /// Something else has its name.
    Irregular,
    /// The manifest does not name it; told only if asked for, and no difference.
    Extra,
}

impl DifferenceKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [DifferenceKind; 5] = {
        use DifferenceKind::*;
        [Missing, Content, Unreadable, Irregular, Extra]
    };
}

/// One file that differs from what a manifest says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// How.
    pub kind: DifferenceKind,
    /// Its path below the tree, raw bytes; escape before printing.
    pub path: Vec<u8>,
    /// The cause, in words, where there is more to say.
    pub detail: String,
}

/// What came of a comparison with a manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Files that the manifest names.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// How many differ, by kind.
    pub counts: [u64; DifferenceKind::ALL.len()],
}

impl Verified {
    /// How many differ in this way.
    pub fn count(&self, kind: DifferenceKind) -> u64 {
        self.counts[kind as usize]
    }

    /// Whole, or verification failed. Files that nobody asked about change nothing.
    pub fn exit_code(&self) -> ExitCode {
        let differ = DifferenceKind::ALL.iter().filter(|kind| **kind != DifferenceKind::Extra);
        if differ.map(|kind| self.count(*kind)).sum::<u64>() == 0 { ExitCode::Whole } else { ExitCode::Verification }
    }
}

impl Report {
    /// What limited the run.
    pub fn limited(&self) -> Limited {
        limit(self.elapsed, &self.sender_stages, &self.receiver_stages, &self.links)
    }
}

/// A receiver that waits and was found without an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What its host calls itself, raw bytes; escape before printing.
    pub host: Vec<u8>,
    /// Where it can be dialled, best first; never empty.
    pub addrs: Vec<SocketAddr>,
    /// What it shows.
    pub code: InstanceCode,
}

/// Something worth telling while a transfer runs.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The receiver listens; the addresses a sender can be given, best first.
    Listening {
        /// Addresses with the port.
        addrs: Vec<SocketAddr>,
        /// What a sender that finds the receiver by itself must show; nothing if it cannot be found.
        code: Option<InstanceCode>,
    },
    /// No sender can find this receiver by itself.
    NotAnnounced {
        /// Why.
        why: String,
    },
    /// The two ends have agreed to begin.
    Connected {
        /// The peer's address.
        peer: SocketAddr,
        /// Who that is.
        protection: Protection,
    },
    /// The receiver has no key, and so takes senders from networks only.
    Keyless {
        /// Networks beside its own.
        from: Vec<From>,
    },
    /// A link came up, or came back.
    LinkUp {
        /// Its name.
        name: String,
        /// How long it had been away, if it had been up or missed before.
        after: Option<Duration>,
    },
    /// A link died or could not be dialled.
    LinkDown {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
        /// Links that remain.
        remaining: usize,
    },
    /// A chunk failed verification.
    Corrupt {
        /// The link that brought it.
        link: String,
        /// Chunks so far on it.
        count: u64,
    },
    /// It was measured how many connections a link shall have.
    Streams {
        /// Its name.
        link: String,
        /// So many.
        connections: u16,
        /// What they carry together, one connection being 1; if there is only one, what twice as many carried.
        gain: f64,
    },
    /// The system does not confine the receiver to the destination.
    Unconfined {
        /// Why.
        why: String,
    },
    /// Somebody measures the links of a receiver that waits.
    Measured {
        /// The peer's address.
        peer: SocketAddr,
    },
    /// Anything else that a person should read.
    Warning(String),
}
