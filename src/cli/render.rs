//! What is said at the end, as text: the final report, or the failure. Nothing is printed here. Every
//! foreign name (paths, links, a peer's words) leaves escaped.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use super::args::Verbosity;
use super::limited;
use super::notes::{harmless, losses, omitted};
use super::numbers::{absence, bytes, bytes_exact, count, entries, plural, rate, span};
use crate::error::{ExitCode, escape};
use crate::options::Destination;
use crate::report::{Difference, DifferenceKind, LinkReport, ManifestReport, ReadBack, Report, Verified};

/// Which end is speaking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Side {
    /// The sender.
    Send,
    /// The receiver, and where it puts things.
    Recv(Destination),
}

/// A failure: what went wrong, how far it had come, what to try. The lines after the first stand alone.
pub fn failure(what: &str, incomplete: Option<String>, hint: Option<&str>) -> String {
    let mut said = what.trim_end().to_owned();
    if let Some(incomplete) = incomplete {
        let _ = write!(said, "\n{incomplete}");
    }
    if let Some(hint) = hint {
        let _ = write!(said, "\ntry: {hint}");
    }
    said
}

/// How far a transfer had come when it failed; `total` is known once the walk has ended.
pub fn incomplete(done: u64, total: Option<u64>) -> String {
    let of = total.map(|total| format!(" of {}", bytes_exact(total))).unwrap_or_default();
    format!("incomplete: {}{of} had arrived, none of it is promised to be durable", bytes_exact(done))
}

/// The final report: the verdict last, and what limited the run.
pub fn report(report: &Report, side: &Side, verbosity: Verbosity) -> String {
    let mut out = String::new();
    let what = if report.entries == 0 && report.stream_digest.is_some() {
        bytes_exact(report.content_bytes)
    } else {
        format!("{}, {}", entries(report.entries), bytes_exact(report.content_bytes))
    };
    let verb = if *side == Side::Send { "sent" } else { "received" };
    let seconds = report.elapsed.as_secs_f64();
    let goodput = if seconds > 0.0 { report.stream_bytes as f64 / seconds } else { 0.0 };
    let _ = writeln!(out, "{verb} {what} in {}, {}", span(report.elapsed), rate(goodput));
    // Chunks that did not shrink are not worth a line.
    if report.payload_bytes < report.stream_bytes - report.stream_bytes / 100 {
        let part = report.payload_bytes as f64 * 100.0 / report.stream_bytes as f64;
        let _ = writeln!(out, "compressed to {part:.1} %: {} on the links", bytes(report.payload_bytes));
    }
    links(&mut out, &report.links);
    let _ = writeln!(out, "transfer digest  {}", report.transfer_digest);
    if let Some(digest) = report.stream_digest {
        let _ = writeln!(out, "stream's BLAKE3  {digest}  (as b3sum prints it)");
    }
    if let Some(manifest) = &report.manifest {
        let _ = writeln!(out, "{}", manifest_line(manifest));
    }
    if let Some(ReadBack { files, bytes: read }) = report.read_back {
        let files = plural(files, "file", "files");
        let _ = writeln!(out, "verified         {files}, {} read back from the disk", bytes(read));
    }
    if let Some(size) = report.device_size {
        let _ = writeln!(out, "{}", device_line(size, report.content_bytes));
    }
    out += &omitted(&report.omitted);
    let notes = [&report.source_notes, &report.sink_notes];
    harmless(&mut out, notes, verbosity);
    losses(&mut out, notes, verbosity);
    let _ = writeln!(out, "{}", verdict(report, side));
    let _ = writeln!(out, "limited by: {}", limited::line(&report.limited()));
    out
}

/// What a quiet transfer that is less than whole still says.
pub fn partial(report: &Report, side: &Side) -> String {
    let mut out = String::new();
    losses(&mut out, [&report.source_notes, &report.sink_notes], Verbosity::Quiet);
    if let Some(manifest) = report.manifest.as_ref().filter(|manifest| manifest.failed.is_some()) {
        let _ = writeln!(out, "{}", manifest_line(manifest));
    }
    out + &verdict(report, side)
}

fn device_line(size: u64, written: u64) -> String {
    let size_said = bytes_exact(size);
    match size.saturating_sub(written) {
        0 => format!("device           {size_said}, written to its end"),
        left => format!("device           {size_said}; its last {} are as they were", bytes_exact(left)),
    }
}

fn manifest_line(manifest: &ManifestReport) -> String {
    let path = escape(manifest.path.as_os_str().as_bytes());
    match manifest {
        ManifestReport { failed: Some(why), .. } => format!("manifest         not written to {path}: {why}"),
        ManifestReport { foreign: 0, files, .. } => {
            format!("manifest         {path}, {}", plural(*files, "file", "files"))
        }
        ManifestReport { foreign, files, .. } => format!(
            "manifest         {path}, {}; {} not UTF-8, which 'blast verify' checks and b3sum cannot",
            plural(*files, "file", "files"),
            plural(*foreign, "name is", "names are"),
        ),
    }
}

/// One file that differs, as a line.
pub fn difference(difference: &Difference) -> String {
    let Difference { kind, path, detail } = difference;
    let words = match kind {
        DifferenceKind::Missing => "missing",
        DifferenceKind::Content => "different",
        DifferenceKind::Unreadable => "unreadable",
        DifferenceKind::Irregular => "no regular file",
        DifferenceKind::Extra => "not in the manifest",
    };
    let path = if path.is_empty() { "." } else { &escape(path) };
    match detail.as_str() {
        "" => format!("{words}: {path}\n"),
        detail => format!("{words}: {path}: {}\n", escape(detail.as_bytes())),
    }
}

/// What came of a comparison with a manifest, the verdict last.
pub fn verified(verified: &Verified, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let speed = if seconds > 0.0 { verified.bytes as f64 / seconds } else { 0.0 };
    let files = plural(verified.files, "file", "files");
    let mut out = format!("compared {files}, {} in {}, {}\n", bytes_exact(verified.bytes), span(elapsed), rate(speed));
    let extra = verified.count(DifferenceKind::Extra);
    if extra > 0 {
        let _ = writeln!(out, "not in the manifest: {}", plural(extra, "file", "files"));
    }
    if verified.exit_code() == ExitCode::Whole {
        out += "same: every file is what the manifest says\n";
        return out;
    }
    let counts = [
        (DifferenceKind::Content, "different"),
        (DifferenceKind::Missing, "missing"),
        (DifferenceKind::Unreadable, "unreadable"),
        (DifferenceKind::Irregular, "no regular file"),
    ];
    let counts = counts.iter().filter(|(kind, _)| verified.count(*kind) > 0);
    let counts: Vec<String> = counts.map(|(kind, words)| format!("{} {words}", count(verified.count(*kind)))).collect();
    let _ = writeln!(out, "DIFFERENT: {}; the rest is what the manifest says", counts.join(", "));
    out
}

fn verdict(report: &Report, side: &Side) -> String {
    let lost = report.source_notes.losses.saturating_add(report.sink_notes.losses);
    match (report.code, side) {
        (ExitCode::Whole, Side::Recv(Destination::Stdout)) => {
            "whole: every byte was verified and written to standard output".to_owned()
        }
        (ExitCode::Whole, Side::Recv(Destination::Run(_))) => {
            "whole: every byte was verified, and the command took all of it and exited with status 0".to_owned()
        }
        (ExitCode::Whole, _) if report.stream_digest.is_some() => {
            "whole: every byte was verified and written out by the receiver".to_owned()
        }
        (ExitCode::Whole, Side::Send) => "whole: every entry is on the receiver's disk, synced and verified".to_owned(),
        (ExitCode::Whole, Side::Recv(_)) => "whole: every entry is on this disk, synced and verified".to_owned(),
        (_, _) if lost > 0 => format!(
            "PARTIAL: {} left out, changed or incomplete; all the rest is verified and synced",
            plural(lost, "thing was", "things were")
        ),
        _ if report.manifest.as_ref().is_some_and(|manifest| manifest.failed.is_some()) => {
            "PARTIAL: the manifest is missing; all else is verified and synced".to_owned()
        }
        _ => "PARTIAL: the other side left something out; its report names it".to_owned(),
    }
}

fn links(out: &mut String, links: &[LinkReport]) {
    if links.is_empty() {
        return;
    }
    let sum: u64 = links.iter().map(|l| l.wire_bytes).sum();
    let mut rows =
        vec![["link", "share", "used", "bytes", "chunks", "resent", "hedged", "corrupt", "outages"].map(str::to_owned)];
    rows.extend(links.iter().map(|l| {
        [
            escape(l.name.as_bytes()),
            format!("{:.1} %", l.wire_bytes as f64 * 100.0 / sum.max(1) as f64),
            l.used().map_or_else(|| "-".to_owned(), |used| format!("{:.0} %", used * 100.0)),
            bytes(l.wire_bytes),
            count(l.chunks),
            count(l.resends),
            count(l.hedges),
            count(l.corrupt),
            count(l.outages),
        ]
    }));
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
    let tails = std::iter::once(String::new()).chain(links.iter().map(outages));
    for (row, tail) in rows.iter().zip(tails) {
        let _ = write!(out, "  {:<w$}", row[0], w = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(out, "  {cell:>width$}");
        }
        let _ = writeln!(out, "{tail}");
    }
}

/// How long a link was away in all, and why last; nothing if it never was.
fn outages(link: &LinkReport) -> String {
    let away = (link.away > Duration::ZERO).then(|| format!("  away {}", absence(link.away)));
    let last = link.last_error.as_ref().map(|why| format!("  last: {why}"));
    away.unwrap_or_default() + &last.unwrap_or_default()
}

/// The last guard before a terminal or a log: control characters that slipped through every escape become visible.
/// Text that is already escaped stays as it is.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() && c != '\n' {
            let _ = write!(out, "\\x{:02x}", c as u32);
        } else {
            out.push(c);
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::ids::Digest;
    use crate::report::{Note, NoteKind, Notes, Omitted, Protection};

    fn sample() -> Report {
        Report {
            code: ExitCode::Whole,
            protection: Protection::default(),
            entries: 8_001,
            content_bytes: 2_000_000_000,
            stream_bytes: 2_004_000_000,
            payload_bytes: 2_004_000_000,
            elapsed: Duration::from_millis(4_200),
            transfer_digest: Digest([0xab; 32]),
            stream_digest: None,
            links: vec![
                LinkReport {
                    name: "l1".into(),
                    wire_bytes: 1_503_000_000,
                    chunks: 1_434,
                    busy: Duration::from_millis(300),
                    network: Duration::from_millis(3_660),
                    idle: Duration::from_millis(40),
                    ..LinkReport::default()
                },
                LinkReport {
                    name: "l\x1b2".into(),
                    wire_bytes: 501_000_000,
                    chunks: 478,
                    resends: 7,
                    hedges: 1,
                    corrupt: 2,
                    outages: 3,
                    away: Duration::from_millis(2_100),
                    last_error: Some("timed out".into()),
                    network: Duration::from_secs(4),
                    ..LinkReport::default()
                },
            ],
            source_notes: Notes::default(),
            sink_notes: Notes::default(),
            sender_stages: Vec::new(),
            receiver_stages: Vec::new(),
            empty_stdin: false,
            manifest: None,
            device_size: None,
            read_back: None,
            omitted: Omitted::default(),
            command: None,
        }
    }

    fn note(kind: NoteKind, path: &[u8], detail: &str) -> Note {
        Note { kind, path: path.to_vec(), detail: detail.to_owned() }
    }

    #[test]
    fn a_whole_transfer_reports_shares_and_digest_and_ends_in_its_verdict() {
        let text = report(&sample(), &Side::Send, Verbosity::Normal);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "sent 8,001 entries, 2.00 GB (2,000,000,000 bytes) in 4.2 s, 477 MB/s");
        assert_eq!(lines[2], "  l1      75.0 %   99 %  1.50 GB   1,434       0       0        0        0");
        assert_eq!(
            lines[3],
            "  l\\x1b2  25.0 %  100 %   501 MB     478       7       1        2        3  away 2.1 s  last: timed out"
        );
        assert_eq!(lines[4], format!("transfer digest  {}", "ab".repeat(32)));
        assert_eq!(lines[5], "whole: every entry is on the receiver's disk, synced and verified");
        assert_eq!(lines[6], "limited by: link l1+l\\x1b2, 99 % used");
        assert_eq!(lines.len(), 7);
        let text = report(&Report { payload_bytes: 340_000_000, ..sample() }, &Side::Send, Verbosity::Normal);
        assert_eq!(text.lines().nth(1), Some("compressed to 17.0 %: 340 MB on the links"));
        let raw = Report { entries: 0, stream_digest: Some(Digest([1; 32])), links: Vec::new(), ..sample() };
        let text = report(&raw, &Side::Recv(Destination::Stdout), Verbosity::Normal);
        assert!(text.starts_with("received 2.00 GB (2,000,000,000 bytes) in"), "{text}");
        assert!(text.contains(&format!("stream's BLAKE3  {}", "01".repeat(32))), "{text}");
        let ends =
            "whole: every byte was verified and written to standard output\nlimited by: nothing that was measured\n";
        assert!(text.ends_with(ends), "{text}");
    }

    #[test]
    fn what_was_read_back_has_a_line() {
        let read_back = Some(ReadBack { files: 8_000, bytes: 2_000_000_000 });
        let text = report(&Report { read_back, ..sample() }, &Side::Recv(Destination::Stdout), Verbosity::Normal);
        assert!(text.contains("\nverified         8,000 files, 2.00 GB read back from the disk\n"), "{text}");
    }

    #[test]
    fn a_manifest_is_named_with_what_it_lacks() {
        let of = |foreign, failed: Option<&str>| {
            let failed = failed.map(str::to_owned);
            let code = if failed.is_some() { ExitCode::Partial } else { ExitCode::Whole };
            let manifest = Some(ManifestReport { path: "m\x1b".into(), files: 1_234, foreign, failed });
            Report { manifest, code, ..sample() }
        };
        let text = report(&of(0, None), &Side::Send, Verbosity::Normal);
        assert!(text.contains("\nmanifest         m\\x1b, 1,234 files\n"), "{text}");
        let text = report(&of(2, None), &Side::Send, Verbosity::Normal);
        assert!(text.contains("1,234 files; 2 names are not UTF-8, which 'blast verify' checks"), "{text}");
        let failed = of(0, Some("No space left on device"));
        for text in [report(&failed, &Side::Send, Verbosity::Normal), partial(&failed, &Side::Send)] {
            assert!(text.contains("manifest         not written to m\\x1b: No space left on device\n"), "{text}");
            assert!(text.contains("\nPARTIAL: the manifest is missing; all else is verified and synced"), "{text}");
        }
    }

    #[test]
    fn differences_are_named_escaped_and_counted() {
        let said =
            |kind, detail: &str| difference(&Difference { kind, path: b"a\x1b\n".into(), detail: detail.into() });
        assert_eq!(said(DifferenceKind::Content, ""), "different: a\\x1b\\n\n");
        assert_eq!(
            said(DifferenceKind::Unreadable, "Permission\rdenied"),
            "unreadable: a\\x1b\\n: Permission\\rdenied\n"
        );
        let mut outcome = Verified { files: 1_200, bytes: 5_000, counts: [0, 0, 0, 0, 7] };
        let text = verified(&outcome, Duration::from_secs(2));
        assert_eq!(
            text,
            "compared 1,200 files, 5.00 kB (5,000 bytes) in 2 s, 2.50 kB/s\nnot in the manifest: 7 files\n\
             same: every file is what the manifest says\n"
        );
        outcome.counts = [3, 1, 0, 2, 0];
        let text = verified(&outcome, Duration::from_secs(2));
        assert!(
            text.ends_with(
                "\nDIFFERENT: 1 different, 3 missing, 2 no regular file; the rest is what the manifest says\n"
            )
        );
    }

    #[test]
    fn what_is_missing_is_named_escaped_and_capped() {
        let mut partial_report = Report { code: ExitCode::Partial, ..sample() };
        partial_report.source_notes.push(note(NoteKind::Vanished, b"a\x1b[31m\nb", "No such file"));
        partial_report.source_notes.push(note(NoteKind::Socket, b"run/sock", ""));
        for i in 0..60 {
            let path = format!("dir/{i}");
            partial_report.sink_notes.push(note(NoteKind::NotCreated, path.as_bytes(), "File\rexists"));
        }
        for i in 0..50 {
            partial_report.sink_notes.push(note(NoteKind::Vanished, format!("gone/{i}").as_bytes(), ""));
        }
        for i in 0..7000 {
            let detail = format!("cannot set user.{i}: Operation not supported");
            partial_report.sink_notes.push(note(NoteKind::Xattr, format!("x/{i}").as_bytes(), &detail));
        }
        for i in 0..3 {
            partial_report.sink_notes.push(note(NoteKind::Withheld, format!("w/{i}").as_bytes(), "setuid"));
        }
        partial_report.source_notes.push(note(NoteKind::OtherXattr, b"nfs", "system.nfs4_acl"));
        partial_report.source_notes.push(note(NoteKind::OtherXattr, b"nfs2", "system.nfs4_acl"));
        partial_report.sink_notes.push(note(NoteKind::NotOurs, b"l", "security.selinux, and 7 more"));
        for path in [&b"x"[..], b"y"] {
            partial_report.sink_notes.push(note(NoteKind::Owner, path, ""));
        }
        let text = report(&partial_report, &Side::Send, Verbosity::Normal);
        assert!(text.contains("  vanished before it was read, left out: a\\x1b[31m\\nb: No such file\n"), "{text}");
        // A class of entries with one reason is one line, and the rest has room.
        assert!(text.contains("  could not be created, left out: 60 entries, first dir/0: File\\rexists\n"), "{text}");
        assert!(text.contains("  vanished before it was read, left out: gone/47\n"), "{text}");
        assert!(text.contains("  and 7,005 more (-v names more)\n"), "{text}");
        assert!(text.contains("attributes not carried: system.nfs4_acl (they are the file system's own; first nfs)\n"));
        assert!(text.contains("attributes not set: security.selinux, and 7 more (they"), "{text}");
        assert!(text.contains("skipped: 1 socket\n"), "{text}");
        assert!(text.contains("owners not set: 2 entries (they are not this user's to set; first x)\n"), "{text}");
        assert!(text.contains("\nPARTIAL: 7,114 things were left out"), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        let all = report(&partial_report, &Side::Send, Verbosity::Verbose);
        assert!(
            all.contains("w/2: setuid")
                && all.contains("dir/59")
                && all.contains("  run/sock\n")
                && !all.contains("  and "),
            "{all}"
        );
        let quiet = partial(&partial_report, &Side::Send);
        assert!(quiet.contains("vanished") && quiet.contains("PARTIAL") && !quiet.contains("digest"), "{quiet}");
    }

    #[test]
    fn a_failure_ends_in_what_to_try() {
        let e = Error::Network("no route to h".into());
        let text = failure(&e.to_string(), Some(incomplete(5_000, Some(10_000))), e.hint());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "no route to h");
        assert_eq!(
            lines[1],
            "incomplete: 5.00 kB (5,000 bytes) of 10.0 kB (10,000 bytes) had arrived, none of it is promised to be durable"
        );
        assert!(lines[2].starts_with("try: check that"), "{text}");
        assert_eq!(printable("a\x1b\r\n\\x1b\u{9b}"), "a\\x1b\\x0d\n\\x1b\\x9b");
    }
}
