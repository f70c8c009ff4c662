//! The report or the failure as one JSON object on one line, for `--json`. The README documents the fields: they may
//! gain company, but keep their names and meanings.
//!
//! The text is ASCII, everything else is escaped as JSON does: a terminal shows it unharmed. A path is text; one that
//! is not UTF-8 has its bytes in `path_hex` as well, and what is no text replaced in `path`.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use serde::Serialize;

use super::limited;
use super::render::Side;
use crate::child::Exit;
use crate::error::{Error, ExitCode};
use crate::report::{
    End, Limit, Limited, LinkReport, ManifestReport, Note, NoteKind, Notes, Omitted, OmittedCount, OmittedKind,
    ReadBack, Rehearsal, Report,
};
use crate::stats::{Stage, StageTimes};

/// The final report.
pub fn report(report: &Report, side: &Side) -> String {
    line(&ReportJson {
        side: if *side == Side::Send { "send" } else { "recv" },
        code: report.code as u8,
        whole: report.code == ExitCode::Whole,
        authenticated: report.protection.trusted,
        cipher: report.protection.cipher,
        session_code: report.protection.code.map(|code| code.to_string()),
        entries: report.entries,
        content_bytes: report.content_bytes,
        stream_bytes: report.stream_bytes,
        payload_bytes: report.payload_bytes,
        elapsed_s: seconds(report.elapsed),
        transfer_digest: report.transfer_digest.to_string(),
        stream_digest: report.stream_digest.map(|d| d.to_string()),
        empty_stdin: report.empty_stdin,
        limited_by: LimitJson::of(&report.limited()),
        links: report.links.iter().map(LinkJson::of).collect(),
        stages: Ends { sender: stages(&report.sender_stages), receiver: stages(&report.receiver_stages) },
        notes: Ends { sender: NotesJson::of(&report.source_notes), receiver: NotesJson::of(&report.sink_notes) },
        manifest: report.manifest.as_ref().map(ManifestJson::of),
        read_back: report.read_back.map(|ReadBack { files, bytes }| ReadBackJson { files, bytes }),
        device: report.device_size.map(|size| DeviceJson { size, left: size.saturating_sub(report.content_bytes) }),
        omitted: (*side == Side::Send).then(|| OmittedJson::of(&report.omitted)),
        command: report.command.map(|exit| CommandJson::of(Some(exit))),
    })
}

/// What comes of a rehearsal.
pub fn rehearsal(found: &Rehearsal) -> String {
    line(&RehearsalJson {
        dry_run: true,
        code: found.exit_code() as u8,
        whole: found.exit_code() == ExitCode::Whole,
        entries: found.entries,
        content_bytes: found.content_bytes,
        stream_bytes: found.stream_bytes,
        stream: found.is_stream,
        notes: NotesJson::of(&found.notes),
        omitted: OmittedJson::of(&found.omitted),
    })
}

/// A failure: what went wrong, the exit code, what to try.
pub fn failure(error: &str, code: ExitCode, hint: Option<&str>) -> String {
    line(&FailureJson { error, code: code as u8, hint, command: None })
}

/// The failure of a transfer.
pub fn failed(error: &Error) -> String {
    let command = match error {
        Error::Command { exit, .. } => Some(CommandJson::of(*exit)),
        _ => None,
    };
    line(&FailureJson { error: &error.to_string(), code: error.exit_code() as u8, hint: error.hint(), command })
}

#[derive(Serialize)]
struct RehearsalJson<'a> {
    dry_run: bool,
    code: u8,
    whole: bool,
    entries: u64,
    content_bytes: u64,
    stream_bytes: u64,
    stream: bool,
    notes: NotesJson<'a>,
    omitted: OmittedJson,
}

#[derive(Serialize)]
struct FailureJson<'a> {
    error: &'a str,
    code: u8,
    hint: Option<&'a str>,
    command: Option<CommandJson>,
}

#[derive(Serialize)]
struct ReadBackJson {
    files: u64,
    bytes: u64,
}

/// How the command of `--run` on this side ended; nothing in it if it had not.
#[derive(Serialize)]
struct CommandJson {
    status: Option<i32>,
    signal: Option<i32>,
}

impl CommandJson {
    fn of(exit: Option<Exit>) -> CommandJson {
        CommandJson { status: exit.and_then(Exit::status), signal: exit.and_then(Exit::signal) }
    }
}

#[derive(Serialize)]
struct ReportJson<'a> {
    side: &'static str,
    code: u8,
    whole: bool,
    authenticated: bool,
    cipher: Option<&'static str>,
    session_code: Option<String>,
    entries: u64,
    content_bytes: u64,
    stream_bytes: u64,
    payload_bytes: u64,
    elapsed_s: f64,
    transfer_digest: String,
    stream_digest: Option<String>,
    empty_stdin: bool,
    limited_by: LimitJson<'a>,
    links: Vec<LinkJson<'a>>,
    stages: Ends<Vec<StageJson>>,
    notes: Ends<NotesJson<'a>>,
    manifest: Option<ManifestJson<'a>>,
    read_back: Option<ReadBackJson>,
    omitted: Option<OmittedJson>,
    device: Option<DeviceJson>,
    command: Option<CommandJson>,
}

#[derive(Serialize)]
struct DeviceJson {
    size: u64,
    /// Behind what was written.
    left: u64,
}

#[derive(Serialize)]
struct Ends<T> {
    sender: T,
    receiver: T,
}

#[derive(Serialize)]
struct LimitJson<'a> {
    what: &'static str,
    /// The line that people read.
    text: String,
    share: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'a str>,
}

impl LimitJson<'_> {
    fn of(limited: &Limited) -> LimitJson<'static> {
        let what = match &limited.by {
            Limit::Links(_) => "links",
            Limit::Bwlimit => "bwlimit",
            Limit::Producer => "producer",
            Limit::Consumer => "consumer",
            Limit::Walk => "walk",
            Limit::Reads => "reads",
            Limit::Unpack => "unpack",
            Limit::Writes => "writes",
            Limit::Sync => "sync",
            Limit::Cpu(..) => "cpu",
            Limit::Others(_) => "other_programs",
            Limit::RoundTrip => "round_trip",
            Limit::Sender => "sender",
            Limit::NoneAlone(_) => "none",
            Limit::TooShort => "too_short",
        };
        let links = if let Limit::Links(names) = &limited.by { names.clone() } else { Vec::new() };
        let (end, stage) = match limited.by {
            Limit::Cpu(end, stage) => (Some(end), Some(stage)),
            Limit::Others(end) => (Some(end), None),
            _ => (None, None),
        };
        LimitJson {
            what,
            text: limited::line(limited),
            share: round(limited.share),
            links,
            end: end.map(|end| if end == End::Sender { "sender" } else { "receiver" }),
            stage: stage.map(stage_name),
        }
    }
}

#[derive(Serialize)]
struct LinkJson<'a> {
    name: &'a str,
    used: Option<f64>,
    wire_bytes: u64,
    chunks: u64,
    resends: u64,
    hedges: u64,
    corrupt: u64,
    outages: u64,
    away_s: f64,
    connections: u64,
    last_error: Option<&'a str>,
    busy_s: f64,
    network_s: f64,
    limited_s: f64,
    idle_s: f64,
    held_s: f64,
}

impl LinkJson<'_> {
    fn of(link: &LinkReport) -> LinkJson<'_> {
        LinkJson {
            name: &link.name,
            used: link.used().map(round),
            wire_bytes: link.wire_bytes,
            chunks: link.chunks,
            resends: link.resends,
            hedges: link.hedges,
            corrupt: link.corrupt,
            outages: link.outages,
            away_s: seconds(link.away),
            connections: link.connections,
            last_error: link.last_error.as_deref(),
            busy_s: seconds(link.busy),
            network_s: seconds(link.network),
            limited_s: seconds(link.limited),
            idle_s: seconds(link.idle),
            held_s: seconds(link.held),
        }
    }
}

#[derive(Serialize)]
struct StageJson {
    stage: &'static str,
    threads: u16,
    busy_s: f64,
    wait_in_s: f64,
    wait_out_s: f64,
    busiest_s: f64,
}

fn stages(stages: &[StageTimes]) -> Vec<StageJson> {
    let json = |times: &StageTimes| StageJson {
        stage: stage_name(times.stage),
        threads: times.threads,
        busy_s: seconds(times.busy),
        wait_in_s: seconds(times.wait_in),
        wait_out_s: seconds(times.wait_out),
        busiest_s: seconds(times.busiest),
    };
    stages.iter().map(json).collect()
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Input => "input",
        Stage::Source => "source",
        Stage::Fill => "fill",
        Stage::Hash => "hash",
        Stage::Compress => "compress",
        Stage::Send => "send",
        Stage::Receive => "receive",
        Stage::Decompress => "decompress",
        Stage::Verify => "verify",
        Stage::Unpack => "unpack",
        Stage::Write => "write",
        Stage::Output => "output",
        Stage::Sync => "sync",
        Stage::Process => "process",
        Stage::Machine => "machine",
    }
}

#[derive(Serialize)]
struct NotesJson<'a> {
    losses: u64,
    harmless: u64,
    named: Vec<NoteJson<'a>>,
}

impl NotesJson<'_> {
    fn of(notes: &Notes) -> NotesJson<'_> {
        let named = notes.named.iter().map(NoteJson::of).collect();
        NotesJson { losses: notes.losses, harmless: notes.harmless, named }
    }
}

#[derive(Serialize)]
struct NoteJson<'a> {
    kind: &'static str,
    loss: bool,
    #[serde(flatten)]
    path: PathJson,
    detail: &'a str,
}

impl NoteJson<'_> {
    fn of(note: &Note) -> NoteJson<'_> {
        let kind = match note.kind {
            NoteKind::Vanished => "vanished",
            NoteKind::Shrank => "shrank",
            NoteKind::Changed => "changed",
            NoteKind::Unreadable => "unreadable",
            NoteKind::ReadError => "read_error",
            NoteKind::NotCarried => "not_carried",
            NoteKind::Socket => "socket",
            NoteKind::NotCreated => "not_created",
            NoteKind::Attribute => "attribute",
            NoteKind::Owner => "owner",
            NoteKind::Withheld => "withheld",
            NoteKind::Pseudo => "pseudo",
            NoteKind::Xattr => "xattr",
            NoteKind::Acl => "acl",
            NoteKind::OtherXattr => "other_xattr",
            NoteKind::NotOurs => "not_ours",
            NoteKind::UnknownName => "unknown_name",
            NoteKind::Time => "time",
            NoteKind::OwnerRefused => "owner_refused",
            NoteKind::Remark => "remark",
            NoteKind::Unread => "unread",
        };
        NoteJson { kind, loss: note.kind.is_loss(), path: PathJson::of(&note.path), detail: &note.detail }
    }
}

#[derive(Serialize)]
struct ManifestJson<'a> {
    #[serde(flatten)]
    path: PathJson,
    files: u64,
    foreign: u64,
    failed: Option<&'a str>,
}

impl ManifestJson<'_> {
    fn of(manifest: &ManifestReport) -> ManifestJson<'_> {
        ManifestJson {
            path: PathJson::of(manifest.path.as_os_str().as_bytes()),
            files: manifest.files,
            foreign: manifest.foreign,
            failed: manifest.failed.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct OmittedJson {
    excluded: OmittedCountJson,
    other_file_systems: OmittedCountJson,
    caches: OmittedCountJson,
}

#[derive(Serialize)]
struct OmittedCountJson {
    count: u64,
    #[serde(flatten)]
    first: Option<PathJson>,
}

impl OmittedJson {
    fn of(omitted: &Omitted) -> OmittedJson {
        let json = |kind| {
            let OmittedCount { count, first } = omitted.of(kind);
            OmittedCountJson { count: *count, first: (*count > 0).then(|| PathJson::of(first)) }
        };
        OmittedJson {
            excluded: json(OmittedKind::Excluded),
            other_file_systems: json(OmittedKind::OtherFileSystem),
            caches: json(OmittedKind::Cache),
        }
    }
}

/// A path, losslessly.
#[derive(Serialize)]
struct PathJson {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl PathJson {
    fn of(path: &[u8]) -> PathJson {
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, b| {
                let _ = write!(hex, "{b:02x}");
                hex
            })
        };
        let path_hex = std::str::from_utf8(path).is_err().then(|| hex(path));
        PathJson { path: String::from_utf8_lossy(path).into_owned(), path_hex }
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

fn round(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
}

pub(super) fn line(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("numbers, texts and lists");
    let mut out = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        if matches!(c, ' '..='~') {
            out.push(c);
        } else {
            // Only inside strings; beyond 16 bits as a surrogate pair.
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ids::{Digest, SessionCode};
    use crate::report::Protection;

    fn sample() -> Report {
        let note = |kind, path: &[u8]| Note { kind, path: path.to_vec(), detail: "d\u{202e}".into() };
        let mut source_notes = Notes::default();
        source_notes.push(note(NoteKind::Vanished, b"a\xff\"\n"));
        source_notes.push(note(NoteKind::Socket, "é\u{1f600}\u{9b}".as_bytes()));
        let ms = Duration::from_millis;
        let mut omitted = Omitted::default();
        [&b"x\xff"[..], b"y"].iter().for_each(|path| omitted.add(OmittedKind::Excluded, path));
        Report {
            omitted,
            code: ExitCode::Partial,
            protection: Protection {
                trusted: false,
                cipher: Some("AES-256-GCM"),
                code: Some(SessionCode::of(&[7; 32])),
            },
            entries: 2,
            content_bytes: 3,
            stream_bytes: 1 << 60,
            payload_bytes: 5,
            elapsed: ms(4_200),
            transfer_digest: Digest([0xab; 32]),
            stream_digest: None,
            links: vec![LinkReport {
                name: "eth1".into(),
                wire_bytes: 7,
                chunks: 1,
                connections: 4,
                busy: ms(1_000),
                network: ms(3_000),
                away: Duration::from_millis(1_500),
                limited: ms(250),
                ..LinkReport::default()
            }],
            source_notes,
            sink_notes: Notes::default(),
            sender_stages: vec![StageTimes {
                stage: Stage::Hash,
                threads: 2,
                busy: ms(500),
                wait_in: ms(1),
                wait_out: ms(0),
                busiest: ms(300),
            }],
            receiver_stages: Vec::new(),
            empty_stdin: false,
            manifest: Some(ManifestReport { path: "m".into(), files: 1, foreign: 0, failed: None }),
            device_size: Some(10),
            read_back: Some(ReadBack { files: 2, bytes: 3 }),
            command: Some(Exit::Status(0)),
        }
    }

    #[test]
    fn a_report_is_one_line_of_ascii_with_the_documented_fields() {
        let text = report(&sample(), &Side::Send);
        assert!(text.ends_with("}\n") && text.trim_end().bytes().all(|b| (b' '..=b'~').contains(&b)), "{text}");
        let read: Value = serde_json::from_str(&text).unwrap();
        let none = json!({ "losses": 0, "harmless": 0, "named": [] });
        let right = json!({
            "side": "send", "code": 1, "whole": false, "authenticated": false, "cipher": "AES-256-GCM",
            "session_code": "7R1E-G3W0", "entries": 2, "content_bytes": 3, "stream_bytes": 1u64 << 60,
            "payload_bytes": 5,
            "elapsed_s": 4.2, "transfer_digest": "ab".repeat(32), "stream_digest": null, "empty_stdin": false,
            "limited_by": { "what": "links", "text": "link eth1, 100 % used", "share": 1.0, "links": ["eth1"] },
            "links": [{
                "name": "eth1", "used": 1.0, "wire_bytes": 7, "chunks": 1, "resends": 0, "hedges": 0, "corrupt": 0,
                "outages": 0, "away_s": 1.5, "connections": 4, "last_error": null, "busy_s": 1.0, "network_s": 3.0,
                "limited_s": 0.25, "idle_s": 0.0, "held_s": 0.0,
            }],
            "stages": {
                "sender": [{
                    "stage": "hash", "threads": 2, "busy_s": 0.5, "wait_in_s": 0.001, "wait_out_s": 0.0,
                    "busiest_s": 0.3,
                }],
                "receiver": [],
            },
            "notes": {
                "sender": { "losses": 1, "harmless": 1, "named": [
                    { "kind": "vanished", "loss": true, "path": "a\u{fffd}\"\n", "path_hex": "61ff220a",
                      "detail": "d\u{202e}" },
                    { "kind": "socket", "loss": false, "path": "é\u{1f600}\u{9b}", "detail": "d\u{202e}" },
                ] },
                "receiver": none,
            },
            "manifest": { "path": "m", "files": 1, "foreign": 0, "failed": null },
            "device": { "size": 10, "left": 7 },
            "omitted": {
                "excluded": { "count": 2, "path": "x\u{fffd}", "path_hex": "78ff" },
                "other_file_systems": { "count": 0 },
                "caches": { "count": 0 },
            },
            "command": { "status": 0, "signal": null },
            "read_back": { "files": 2, "bytes": 3 },
        });
        assert_eq!(read, right);
    }

    #[test]
    fn a_limit_that_is_a_cpu_says_whose_and_where_it_goes() {
        let limited = Limited { by: Limit::Cpu(End::Receiver, Stage::Write), share: 0.98765 };
        let read = serde_json::to_value(LimitJson::of(&limited)).unwrap();
        let text = "CPU: writing on the receiver, 99 % used";
        let right = json!({ "what": "cpu", "text": text, "share": 0.9877, "end": "receiver", "stage": "write" });
        assert_eq!(read, right);
    }

    #[test]
    fn a_failure_has_its_code_and_what_to_try() {
        let read: Value = serde_json::from_str(&failure("no \"x\"", ExitCode::Network, Some("try"))).unwrap();
        assert_eq!(read, json!({ "error": "no \"x\"", "code": 4, "hint": "try", "command": null }));
        let read: Value = serde_json::from_str(&failure("", ExitCode::Bug, None)).unwrap();
        assert_eq!(read, json!({ "error": "", "code": 70, "hint": null, "command": null }));
        for (exit, status, signal) in
            [(Exit::Status(3), json!(3), json!(null)), (Exit::Signal(9), json!(null), json!(9))]
        {
            let error = Error::Command { what: "c".into(), producer: false, exit: Some(exit) };
            let read: Value = serde_json::from_str(&failed(&error)).unwrap();
            assert_eq!((&read["code"], &read["error"]), (&json!(5), &json!("c")));
            assert_eq!(read["command"], json!({ "status": status, "signal": signal }));
        }
    }
}
