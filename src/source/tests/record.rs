//! The manifest of sources that change while they are read: what was sent has its line, what was left out has none.

use super::*;
use crate::chunk::chunk_digest;
use crate::manifest::{Draft, parse_line};

/// Plan all of `path`, change it, send it; the chunks and the manifest's lines by path.
fn recorded(path: &Path, change: impl FnOnce()) -> (Sent, BTreeMap<String, String>) {
    let out = tree();
    let (draft, pen) = Draft::create(&out.path().join("m"), &[path.to_path_buf()]).unwrap();
    let mut recorder = Recorder::new(pen);
    let (running, notes, stats) = begin(open_tree(&[path.to_path_buf()]).unwrap().recorded(), Layout::Archive);
    let planned: Vec<Planned> = running.planned.iter().collect();
    change();
    let mut scratch = FillScratch::default();
    let mut filled = Vec::new();
    for planned in planned {
        let mut chunk = planned.fill(&mut scratch);
        let digest = chunk_digest(chunk.kind, &chunk.buf[..chunk.len]);
        recorder.push(chunk.kind, chunk.len, digest, chunk.lines.take().as_deref());
        filled.push(content(chunk));
    }
    let sent = put_together(filled, running.join().unwrap(), notes, stats);
    assert_eq!(draft.finish(recorder.finish(None)).failed, None);
    let text = std::fs::read_to_string(out.path().join("m")).unwrap();
    let line = |line: &str| {
        let line = parse_line(line.as_bytes()).unwrap();
        (String::from_utf8(line.path).unwrap(), line.digest.to_string())
    };
    let lines: BTreeMap<_, _> = text.lines().map(line).collect();
    assert_eq!(lines.len(), text.lines().count(), "a name has one line");
    (sent, lines)
}

/// What the manifest should be, from the archive itself.
fn in_archive(sent: &Sent) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::<String, String>::new();
    for (entry, content) in sent.entries() {
        let digest = match &entry.kind {
            EntryKind::File { .. } => blake3::hash(&content).to_string(),
            EntryKind::Hardlink { target } => lines[std::str::from_utf8(target).unwrap()].clone(),
            _ => continue,
        };
        lines.insert(String::from_utf8(entry.path).unwrap(), digest);
    }
    lines
}

#[test]
fn the_manifest_has_what_was_sent_of_files_that_changed() {
    let src = tree();
    let dir = src.path();
    for name in ["gone", "grown", "large", "replaced", "same", "shorter"] {
        write(dir, name, &noise(3, if name == "large" { 3 * CHUNK_LEN + 5 } else { 5000 }));
    }
    for name in ["gone", "large", "replaced", "same"] {
        std::fs::hard_link(dir.join(name), dir.join(format!("{name} too"))).unwrap();
    }
    let (sent, lines) = recorded(dir, || {
        std::fs::remove_file(dir.join("gone")).unwrap();
        std::fs::remove_file(dir.join("replaced")).unwrap();
        write(dir, "replaced", b"another file");
        write(dir, "grown", &noise(4, 5001));
        write(dir, "shorter", b"short");
        std::fs::OpenOptions::new().write(true).open(dir.join("large")).unwrap().set_len(CHUNK_LEN as u64 + 9).unwrap();
    });
    assert_eq!(lines, in_archive(&sent));
    assert!(!lines.contains_key("gone") && lines.contains_key("gone too"));
    assert_eq!(lines["shorter"], blake3::hash(b"short").to_string());
    assert_ne!(lines["replaced"], lines["replaced too"]);
    let mut zeroed = noise(3, CHUNK_LEN + 9);
    zeroed.resize(3 * CHUNK_LEN + 5, 0);
    assert_eq!(lines["large too"], blake3::hash(&zeroed).to_string(), "zeros where its end was");
}
