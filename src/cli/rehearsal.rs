//! What a dry run says: a line for each name if asked for, then what it comes to. Nothing is printed here.

use std::fmt::Write;

use super::args::Verbosity;
use super::notes;
use super::numbers::{bytes_exact, entries, plural};
use crate::error::escape;
use crate::report::{OmittedKind, Rehearsal, Rehearsed};

/// One name: `+` if it would go, `-` and why if not.
pub fn line(found: &Rehearsed<'_>) -> String {
    match found {
        Rehearsed::Goes { path, directory } => {
            format!("+ {}{}\n", shown(path), if *directory { "/" } else { "" })
        }
        Rehearsed::Omitted { kind: OmittedKind::Excluded, path, rule } => {
            format!("- {}: excluded by '{}'\n", shown(path), escape(rule))
        }
        Rehearsed::Omitted { kind: OmittedKind::OtherFileSystem, path, .. } => {
            format!("- {}/: what is in it: another file system\n", shown(path))
        }
        Rehearsed::Omitted { kind: OmittedKind::Cache, path, .. } => {
            format!("- {}/: what is in it: a cache, of which only the tag goes\n", shown(path))
        }
        Rehearsed::Noted(note) => format!("- {}\n", notes::note(note)),
    }
}

fn shown(path: &[u8]) -> String {
    if path.is_empty() { ".".to_owned() } else { escape(path) }
}

/// What it comes to.
pub fn text(found: &Rehearsal, verbosity: Verbosity) -> String {
    if found.is_stream {
        return "would send a stream; how much it is only its end will tell, and nothing of it was read\n".to_owned();
    }
    let mut out = String::new();
    let _ = writeln!(out, "would send {}, {}", entries(found.entries), bytes_exact(found.content_bytes));
    // With -v all names have been told already.
    let losses_by_name = verbosity < Verbosity::Verbose;
    out += &notes::left_out(&found.omitted, &found.notes, losses_by_name);
    if found.notes.losses > 0 {
        let things = plural(found.notes.losses, "thing", "things");
        let _ = writeln!(out, "it would be PARTIAL: {things} left out, changed or incomplete");
    }
    out += "nothing was sent: this was a dry run\n";
    out
}
