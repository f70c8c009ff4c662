//! What happened to single entries, as text: what was left out on request, what costs nothing, what makes a transfer
//! less than whole. Nothing is printed here; every name leaves escaped.

use std::collections::HashMap;
use std::fmt::Write;

use super::args::Verbosity;
use super::numbers::{count, entries, plural};
use crate::error::escape;
use crate::report::{Note, NoteKind, Notes, Omitted, OmittedCount, OmittedKind};

/// Losses listed by name in a report unless `-v` asks for all.
const LOSSES_SHOWN: usize = 50;

/// So many notes of one class are one line.
const CLASS_FROM: u64 = 4;

/// What one side left out, and why; what makes a transfer less than whole by name, or not at all.
pub fn left_out(omitted_on_request: &Omitted, notes: &Notes, losses_by_name: bool) -> String {
    let mut out = omitted(omitted_on_request);
    let notes = [notes, &Notes::default()];
    harmless(&mut out, notes, Verbosity::Normal);
    if losses_by_name {
        losses(&mut out, notes, Verbosity::Normal);
    }
    out
}

/// One line for each kind of what was left out on request.
pub fn omitted(omitted: &Omitted) -> String {
    let mut out = String::new();
    for kind in OmittedKind::ALL {
        let OmittedCount { count: n, first } = omitted.of(kind);
        let what = match kind {
            _ if *n == 0 => continue,
            OmittedKind::Excluded => format!("excluded: {}", plural(*n, "name", "names")),
            OmittedKind::OtherFileSystem => {
                format!("not entered: {}", plural(*n, "other file system", "other file systems"))
            }
            OmittedKind::Cache => format!("only the tag sent: {}", plural(*n, "cache", "caches")),
        };
        let first = if first.is_empty() { "(the root of the transfer)".to_owned() } else { escape(first) };
        let _ = writeln!(out, "{what} ({}{first})", if *n > 1 { "first " } else { "" });
    }
    out
}

/// One line for each kind of note that costs nothing.
pub fn harmless(out: &mut String, notes: [&Notes; 2], verbosity: Verbosity) {
    let named = || notes.iter().flat_map(|n| &n.named);
    let total: u64 = notes.iter().map(|n| n.harmless).sum();
    let sockets = named().filter(|n| n.kind == NoteKind::Socket).count() as u64;
    let pseudo = named().filter(|n| n.kind == NoteKind::Pseudo);
    let unknown = named().filter(|n| n.kind == NoteKind::UnknownName);
    let attributes = named().filter(|n| [NoteKind::NotOurs, NoteKind::OtherXattr].contains(&n.kind));
    let remarks = named().filter(|n| n.kind == NoteKind::Remark);
    let by_name =
        [pseudo.clone().count(), unknown.clone().count(), attributes.clone().count(), remarks.clone().count()];
    let told = sockets + by_name.iter().sum::<usize>() as u64;
    // Of owners only the first is kept by name.
    match named().find(|n| n.kind == NoteKind::Owner) {
        Some(owner) => {
            let others = total.saturating_sub(told);
            let _ = writeln!(
                out,
                "owners not set: {} (they are not this user's to set; first {})",
                entries(others),
                name(owner)
            );
        }
        None if total > told => {
            let _ = writeln!(out, "{} more of no consequence", plural(total - told, "note", "notes"));
        }
        None => {}
    }
    attributes.for_each(|n| {
        let (words, why) = match n.kind {
            NoteKind::NotOurs => ("not set", "they are another system's, or not this user's to set"),
            _ => ("not carried", "they are the file system's own"),
        };
        let _ = writeln!(out, "attributes {words}: {} ({why}; first {})", escape(n.detail.as_bytes()), name(n));
    });
    pseudo.for_each(|n| {
        let _ = writeln!(out, "not entered: {} ({})", name(n), escape(n.detail.as_bytes()));
    });
    if let Some(first) = unknown.clone().next() {
        let n = unknown.clone().count() as u64;
        let _ = writeln!(
            out,
            "names of owners that nobody has here: {} (the numbers stay; first {})",
            count(n),
            name(first)
        );
        if verbosity >= Verbosity::Verbose {
            unknown.for_each(|n| {
                let _ = writeln!(out, "  {}: {}", name(n), escape(n.detail.as_bytes()));
            });
        }
    }
    remarks.for_each(|n| {
        let first = if n.path.is_empty() { String::new() } else { format!(", first {}", escape(&n.path)) };
        let _ = writeln!(out, "about the archive: {}{first}", escape(n.detail.as_bytes()));
    });
    if sockets > 0 {
        let _ = writeln!(out, "skipped: {}", plural(sockets, "socket", "sockets"));
        if verbosity >= Verbosity::Verbose {
            named().filter(|n| n.kind == NoteKind::Socket).for_each(|n| {
                let _ = writeln!(out, "  {}", name(n));
            });
        }
    }
}

/// Everything that makes a transfer less than whole, by name, in the order of the walk whichever worker came first.
pub fn losses(out: &mut String, notes: [&Notes; 2], verbosity: Verbosity) {
    let total: u64 = notes.iter().map(|n| n.losses).sum();
    if total == 0 {
        return;
    }
    let most = if verbosity >= Verbosity::Verbose { usize::MAX } else { LOSSES_SHOWN };
    let _ = writeln!(out, "left out, changed or incomplete: {}", count(total));
    let mut named: Vec<&Note> = notes.iter().flat_map(|n| &n.named).filter(|n| n.kind.is_loss()).collect();
    named.sort_by(|a, b| a.path.split(|b| *b == b'/').cmp(b.path.split(|b| *b == b'/')));
    let mut classes: HashMap<(NoteKind, &str), u64> = HashMap::new();
    named.iter().filter_map(|note| note.class()).for_each(|class| *classes.entry(class).or_default() += 1);
    let (mut lines, mut shown) = (0, 0);
    for note in &named {
        let one_of = note.class().and_then(|class| classes.get_mut(&class));
        let which = match one_of {
            Some(0) => continue,
            Some(many) if *many >= CLASS_FROM && verbosity < Verbosity::Verbose => {
                let many = std::mem::take(many);
                shown += many;
                format!("{}, first {}", entries(many), name(note))
            }
            _ => {
                shown += 1;
                name(note)
            }
        };
        let _ = writeln!(out, "  {}: {which}{}", words(note.kind), detail(note));
        lines += 1;
        if lines == most {
            break;
        }
    }
    if total > shown {
        let kept = named.len() as u64 > shown;
        let how = if kept { "-v names more" } else { "not kept by name" };
        let _ = writeln!(out, "  and {} more ({how})", count(total - shown));
    }
}

/// One note, beginning with its entry.
pub fn note(note: &Note) -> String {
    format!("{}: {}{}", name(note), words(note.kind), detail(note))
}

fn detail(note: &Note) -> String {
    if note.detail.is_empty() { String::new() } else { format!(": {}", escape(note.detail.as_bytes())) }
}

fn name(note: &Note) -> String {
    if note.kind == NoteKind::Unread {
        return "what follows the archive".to_owned();
    }
    if note.path.is_empty() { "(the root of the transfer)".to_owned() } else { escape(&note.path) }
}

fn words(kind: NoteKind) -> &'static str {
    match kind {
        NoteKind::Vanished => "vanished before it was read, left out",
        NoteKind::Shrank => "shrank while it was read, zeros in place of its end",
        NoteKind::Changed => "changed while it was read",
        NoteKind::Unreadable => "unreadable, left out",
        NoteKind::ReadError => "read errors, zeros in their place",
        NoteKind::NotCarried => "cannot be carried, left out",
        NoteKind::Socket => "socket, skipped",
        NoteKind::NotCreated => "could not be created, left out",
        NoteKind::Attribute => "an attribute could not be set",
        NoteKind::Owner => "owner not set",
        NoteKind::Withheld => "withheld",
        NoteKind::Pseudo => "pseudo file system, not entered",
        NoteKind::Xattr => "extended attribute not kept",
        NoteKind::Acl => "ACL not kept",
        NoteKind::OtherXattr => "attribute of the file system, not carried",
        NoteKind::NotOurs => "attribute not set",
        NoteKind::UnknownName => "owner's name not known here",
        NoteKind::Time => "time not kept",
        NoteKind::OwnerRefused => "owner not set",
        NoteKind::Remark => "about the archive",
        NoteKind::Unread => "not unpacked",
    }
}
