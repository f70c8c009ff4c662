//! The payloads of all frames that are not chunks.

use std::time::Duration;

use arrayvec::ArrayVec;

use super::address::{self, Address};
use super::codec::{self, Fields};
use super::{ControlHeader, FrameKey, WireError, note};
use crate::error::ExitCode;
use crate::ids::{Digest, LinkId};
use crate::limits::{CONTROL_MAX, LINKS_MAX, REASON_MAX, WINDOW_MAX};
use crate::report::Note;
use crate::stats::{Stage, StageTimes};

pub(super) const KIND_CHUNK: u8 = 1;
const KIND_ACK: u8 = 2;
const KIND_NOTES: u8 = 3;
const KIND_PING: u8 = 4;
const KIND_PONG: u8 = 5;
const KIND_LINKS: u8 = 6;
const KIND_FINISH: u8 = 7;
const KIND_COMMIT: u8 = 8;
const KIND_BYE: u8 = 9;
const KIND_ABORT: u8 = 10;

/// The kinds whose payloads are read here.
pub(super) const KINDS: std::ops::RangeInclusive<u8> = KIND_ACK..=KIND_ABORT;

const BITMAP_WORDS: usize = (WINDOW_MAX / 64) as usize;

const _: () = assert!(4 * 8 + BITMAP_WORDS * 8 + 2 + LINKS_MAX * 12 <= CONTROL_MAX);
const STAGE_LEN: usize = 4 + 4 * 8;
const _: () = assert!(2 + 4 * 8 + 2 * 32 + 2 + Stage::ALL.len() * STAGE_LEN + 2 + note::NOTES_LEN <= CONTROL_MAX);
const _: () = assert!(2 + address::ADDRESSES_MAX * address::ADDRESS_LEN <= CONTROL_MAX);

/// The receiver's whole state, absolute. Losing or repeating one is harmless.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ack {
    /// Every chunk below it is verified and held or further on.
    pub next: u64,
    /// Bit i of word j: chunk `next + 64 j + i` is verified and held. Bit 0 of word 0 is always 0.
    pub bitmap: [u64; BITMAP_WORDS],
    /// Chunks below it may be sent.
    pub credit_limit: u64,
    /// Chunks below it survive a power loss.
    pub durable: u64,
    /// Notes below it have arrived.
    pub notes: u64,
    /// For each live link, how many of its chunk frames, counted in order, are settled: verified, duplicate or dropped.
    /// At most [`LINKS_MAX`].
    pub links: ArrayVec<(LinkId, u64), LINKS_MAX>,
}

/// The sender's last word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finish {
    /// Chunks in all.
    pub chunks: u64,
    /// Entries in all.
    pub entries: u64,
    /// Stream bytes in all.
    pub bytes: u64,
    /// Content bytes in all.
    pub content_bytes: u64,
    /// Notes in all.
    pub notes: u64,
    /// Losses and harmless notes that are beyond the named ones.
    pub unnamed: (u64, u64),
    /// Digest of the transfer.
    pub digest: Digest,
}

/// The receiver's last word: everything is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// `Whole` or `Partial`.
    pub code: ExitCode,
    /// Entries on disk.
    pub entries: u64,
    /// Content bytes on disk.
    pub content_bytes: u64,
    /// Digest of the transfer, as the receiver computed it.
    pub digest: Digest,
    /// A raw stream's own BLAKE3.
    pub stream_digest: Option<Digest>,
    /// Losses and harmless notes of the receiver, all of them.
    pub totals: (u64, u64),
    /// Where the receiver's time went: each stage once, in the order of [`Stage::ALL`].
    pub stages: Vec<StageTimes>,
    /// The first of the notes, as many as one frame holds ([`super::notes_that_fit`]).
    pub notes: Vec<Note>,
}

/// Frames other than chunks. All are idempotent and may travel on any link.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each acknowledgement")]
pub enum Control {
    /// The receiver's whole state.
    Ack(Ack),
    /// Notes `first`, `first + 1` … of the sender, as many as one frame holds ([`super::notes_that_fit`]).
    Notes {
        /// The index of the first.
        first: u64,
        /// The notes.
        notes: Vec<Note>,
    },
    /// A sign of life that asks for one.
    Ping(u64),
    /// The answer, with the ping's number.
    Pong(u64),
    /// Addresses to try, at most [`super::ADDRESSES_MAX`].
    Links(Vec<Address>),
    /// The sender's last word.
    Finish(Finish),
    /// The receiver's last word.
    Commit(Commit),
    /// Commit has arrived; nothing follows.
    Bye,
    /// The session is over and failed.
    Abort {
        /// The exit code for both ends.
        code: ExitCode,
        /// Why, in words; cut to [`REASON_MAX`] bytes. Escape before printing.
        reason: String,
    },
}

/// The payload of a control frame, whose header has been decoded with `key`. Checks the payload's seal or digest first;
/// a sealed one is decrypted in place.
pub fn decode_control(header: &ControlHeader, payload: &mut [u8], key: &FrameKey) -> Result<Control, WireError> {
    if payload.len() != header.payload_len() || !key.open_control(header, payload) {
        return Err(WireError::PayloadDigest);
    }
    let payload = &*payload;
    if key.seals() && header.digest.0 != [0; 32] {
        return Err(WireError::Reserved("control frame's header"));
    }
    if !key.seals() && header.digest.0 != *blake3::hash(payload).as_bytes() {
        return Err(WireError::PayloadDigest);
    }
    match header.kind {
        KIND_ACK => ack(payload).map(Control::Ack),
        KIND_NOTES => {
            let mut fields = Fields::of("Notes", payload);
            let first = fields.u64()?;
            let notes = note::notes(&mut fields)?;
            if first.checked_add(notes.len() as u64).is_none() {
                return Err(fields.malformed("its numbers are too large"));
            }
            fields.end()?;
            Ok(Control::Notes { first, notes })
        }
        KIND_PING => number("Ping", payload).map(Control::Ping),
        KIND_PONG => number("Pong", payload).map(Control::Pong),
        KIND_LINKS => {
            let mut fields = Fields::of("Links", payload);
            let addresses = address::addresses(&mut fields)?;
            fields.end()?;
            Ok(Control::Links(addresses))
        }
        KIND_FINISH => finish(payload).map(Control::Finish),
        KIND_COMMIT => commit(payload).map(Control::Commit),
        KIND_BYE => Fields::of("Bye", payload).end().map(|()| Control::Bye),
        KIND_ABORT => {
            let mut fields = Fields::of("Abort", payload);
            let code = ExitCode::from_wire(fields.u8()?);
            let reason = codec::reason(fields.remainder("reason", REASON_MAX)?);
            Ok(Control::Abort { code, reason })
        }
        kind => Err(WireError::Kind { what: "frame", kind }),
    }
}

pub(super) fn kind(frame: &Control) -> u8 {
    match frame {
        Control::Ack(_) => KIND_ACK,
        Control::Notes { .. } => KIND_NOTES,
        Control::Ping(_) => KIND_PING,
        Control::Pong(_) => KIND_PONG,
        Control::Links(_) => KIND_LINKS,
        Control::Finish(_) => KIND_FINISH,
        Control::Commit(_) => KIND_COMMIT,
        Control::Bye => KIND_BYE,
        Control::Abort { .. } => KIND_ABORT,
    }
}

/// Append the payload, at most [`CONTROL_MAX`] bytes.
pub(super) fn encode_payload(frame: &Control, out: &mut Vec<u8>) {
    match frame {
        Control::Ack(ack) => put_ack(ack, out),
        Control::Notes { first, notes } => {
            put_u64s(&[*first], out);
            note::put_notes(notes, out);
        }
        Control::Ping(number) | Control::Pong(number) => put_u64s(&[*number], out),
        Control::Links(addresses) => address::put_addresses(addresses, out),
        Control::Finish(finish) => put_finish(finish, out),
        Control::Commit(commit) => put_commit(commit, out),
        Control::Bye => {}
        Control::Abort { code, reason } => {
            out.push(*code as u8);
            codec::put_reason(reason, out);
        }
    }
}

fn put_ack(ack: &Ack, out: &mut Vec<u8>) {
    put_u64s(&[ack.next, ack.credit_limit, ack.durable, ack.notes], out);
    put_u64s(&ack.bitmap, out);
    out.extend_from_slice(&(ack.links.len() as u16).to_le_bytes());
    for (link, settled) in &ack.links {
        out.extend_from_slice(&link.0.to_le_bytes());
        put_u64s(&[*settled], out);
    }
}

fn ack(payload: &[u8]) -> Result<Ack, WireError> {
    let mut fields = Fields::of("Ack", payload);
    let mut ack = Ack {
        next: fields.u64()?,
        credit_limit: fields.u64()?,
        durable: fields.u64()?,
        notes: fields.u64()?,
        ..Ack::default()
    };
    for word in &mut ack.bitmap {
        *word = fields.u64()?;
    }
    if ack.bitmap[0] & 1 != 0 {
        return Err(fields.malformed("the next chunk is missing and held"));
    }
    if ack.next.checked_add(WINDOW_MAX.into()).is_none() {
        return Err(fields.malformed("its numbers are too large"));
    }
    let count = fields.count("list of links", LINKS_MAX)?;
    ack.links = (0..count).map(|_| Ok((LinkId(fields.u32()?), fields.u64()?))).collect::<Result<_, WireError>>()?;
    fields.end()?;
    Ok(ack)
}

fn put_finish(finish: &Finish, out: &mut Vec<u8>) {
    let Finish { chunks, entries, bytes, content_bytes, notes, unnamed, digest } = *finish;
    put_u64s(&[chunks, entries, bytes, content_bytes, notes, unnamed.0, unnamed.1], out);
    out.extend_from_slice(&digest.0);
}

fn finish(payload: &[u8]) -> Result<Finish, WireError> {
    let mut fields = Fields::of("Finish", payload);
    let finish = Finish {
        chunks: fields.u64()?,
        entries: fields.u64()?,
        bytes: fields.u64()?,
        content_bytes: fields.u64()?,
        notes: fields.u64()?,
        unnamed: (fields.u64()?, fields.u64()?),
        digest: Digest(fields.array()?),
    };
    fields.end()?;
    Ok(finish)
}

fn put_commit(commit: &Commit, out: &mut Vec<u8>) {
    assert!(commit.code <= ExitCode::Partial, "a transfer that failed is aborted, not committed");
    out.extend_from_slice(&[commit.code as u8, commit.stream_digest.is_some().into()]);
    put_u64s(&[commit.entries, commit.content_bytes, commit.totals.0, commit.totals.1], out);
    out.extend_from_slice(&commit.digest.0);
    out.extend_from_slice(&commit.stream_digest.map_or([0; 32], |d| d.0));
    put_stages(&commit.stages, out);
    note::put_notes(&commit.notes, out);
}

fn commit(payload: &[u8]) -> Result<Commit, WireError> {
    let mut fields = Fields::of("Commit", payload);
    let code = match fields.u8()? {
        0 => ExitCode::Whole,
        1 => ExitCode::Partial,
        _ => return Err(fields.malformed("it is neither whole nor partial")),
    };
    let has_stream_digest = match fields.u8()? {
        0 => false,
        1 => true,
        _ => return Err(fields.malformed("a stream's digest is there or not")),
    };
    let entries = fields.u64()?;
    let content_bytes = fields.u64()?;
    let totals = (fields.u64()?, fields.u64()?);
    let digest = Digest(fields.array()?);
    let stream_digest = if has_stream_digest {
        Some(Digest(fields.array()?))
    } else {
        fields.zeros::<32>()?;
        None
    };
    let stages = stages(&mut fields)?;
    let notes = note::notes(&mut fields)?;
    fields.end()?;
    Ok(Commit { code, entries, content_bytes, digest, stream_digest, totals, stages, notes })
}

fn put_stages(stages: &[StageTimes], out: &mut Vec<u8>) {
    assert!(stages.is_sorted_by(|a, b| a.stage < b.stage), "each stage once, in order");
    out.extend_from_slice(&(stages.len() as u16).to_le_bytes());
    for times in stages {
        out.extend_from_slice(&[times.stage as u8, 0]);
        out.extend_from_slice(&times.threads.to_le_bytes());
        // 584 years of one thread
        let nanos = |time: Duration| time.as_nanos().try_into().unwrap_or(u64::MAX);
        put_u64s(&[times.busy, times.wait_in, times.wait_out, times.busiest].map(nanos), out);
    }
}

fn stages(fields: &mut Fields) -> Result<Vec<StageTimes>, WireError> {
    let count = fields.count("list of stages", Stage::ALL.len())?;
    let mut stages: Vec<StageTimes> = Vec::with_capacity(count);
    for _ in 0..count {
        let stage = fields.u8()?;
        let stage = Stage::from_wire(stage).ok_or(WireError::Kind { what: "stage", kind: stage })?;
        fields.zeros::<1>()?;
        if stages.last().is_some_and(|last| last.stage >= stage) {
            return Err(fields.malformed("its stages are not in order"));
        }
        let threads = fields.u16()?;
        let mut time = || fields.u64().map(Duration::from_nanos);
        let (busy, wait_in, wait_out, busiest) = (time()?, time()?, time()?, time()?);
        stages.push(StageTimes { stage, threads, busy, wait_in, wait_out, busiest });
    }
    Ok(stages)
}

fn number(message: &'static str, payload: &[u8]) -> Result<u64, WireError> {
    let mut fields = Fields::of(message, payload);
    let number = fields.u64()?;
    fields.end()?;
    Ok(number)
}

fn put_u64s(numbers: &[u64], out: &mut Vec<u8>) {
    numbers.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
}
