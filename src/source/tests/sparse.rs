//! Files with holes that change between the walk, the plan and the fill: what is sent is told truly.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use super::*;
use crate::archive::MapReader;
use crate::source::meta::Meta;

/// A file of that length with data in these places.
fn sparse(path: &Path, len: u64, data: &[(u64, &[u8])]) {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path).unwrap();
    file.set_len(len).unwrap();
    data.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
    // so that whoever writes to it later changes the time, however coarse the clock is
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
}

/// A tree whose file system keeps holes.
fn holey() -> Option<TempDir> {
    let dir = tree();
    sparse(&dir.path().join("probe"), 1 << 20, &[(1 << 19, b"x")]);
    let meta = Meta::of(&rustix::fs::stat(&dir.path().join("probe")).unwrap());
    std::fs::remove_file(dir.path().join("probe")).unwrap();
    if !Holes::may_be_in(&meta) {
        eprintln!("SKIPPED: a test of holes: the file system for temporary files keeps none");
        return None;
    }
    Some(dir)
}

/// The bytes of a sparse file, from its map and data.
fn unpacked(entry: &Entry, packed: &[u8]) -> Vec<u8> {
    let EntryKind::Sparse { size, packed: len } = entry.kind else { panic!("{entry:?} has no holes") };
    assert_eq!(packed.len() as u64, len);
    let mut reader = MapReader::new();
    reader.push(packed).unwrap();
    let map = reader.into_map(size).unwrap();
    let mut bytes = vec![0; size as usize];
    let mut data = &packed[map.map_len() as usize..];
    for extent in map.extents() {
        let (now, rest) = data.split_at(extent.len as usize);
        bytes[extent.offset as usize..extent.end() as usize].copy_from_slice(now);
        data = rest;
    }
    bytes
}

/// The file at `path`, whether it was sent with holes or without.
fn bytes_of(sent: &Sent, path: &str) -> Option<Vec<u8>> {
    let (entry, content) = sent.entries().into_iter().find(|(entry, _)| entry.path == path.as_bytes())?;
    match entry.kind {
        EntryKind::Sparse { .. } => Some(unpacked(&entry, &content)),
        _ => Some(content),
    }
}

/// One small, one that fits a chunk with its data, one that does not.
const SHAPES: [(&str, u64, u64, usize); 3] =
    [("small", 600_000, 100_000, 5000), ("packed", 20 << 20, 9 << 20, 70_000), ("pieces", 30 << 20, 5 << 20, 3 << 20)];

fn shapes(dir: &Path) {
    for (name, len, at, data) in SHAPES {
        sparse(&dir.join(name), len, &[(at, &noise(7, data))]);
    }
}

#[test]
fn files_with_holes_are_sent_as_map_and_data() {
    let Some(dir) = holey() else { return };
    shapes(dir.path());
    let sent = send_tree(dir.path());
    for (name, ..) in SHAPES {
        assert!(matches!(sent.entry(name).kind, EntryKind::Sparse { .. }), "{name}");
        assert!(bytes_of(&sent, name).unwrap() == std::fs::read(dir.path().join(name)).unwrap(), "{name}");
    }
    assert_eq!(sent.notes, []);
    assert!(sent.end.stream_bytes < 4 << 20);
}

#[test]
fn what_is_written_into_a_hole_after_the_plan_is_told() {
    let Some(dir) = holey() else { return };
    shapes(dir.path());
    let held = hold(dir.path());
    for (name, len, ..) in SHAPES {
        let file = OpenOptions::new().write(true).open(dir.path().join(name)).unwrap();
        file.write_all_at(b"new", len - 5).unwrap();
    }
    let sent = held.fill();
    // What is read when it is laid out is what it is then.
    for name in ["small", "packed"] {
        assert!(bytes_of(&sent, name).unwrap() == std::fs::read(dir.path().join(name)).unwrap(), "{name}");
    }
    let old = bytes_of(&sent, "pieces").unwrap();
    assert!(old.ends_with(&[0; 5]), "its map is what it was when it was planned");
    assert_eq!(sent.noted(), [(NoteKind::Changed, "pieces".to_owned())]);
}

#[test]
fn a_file_with_holes_that_grew_too_much_keeps_its_plan_and_one_that_shrank_has_zeros() {
    let Some(dir) = holey() else { return };
    shapes(dir.path());
    let held = hold(dir.path());
    let open = |name: &str| OpenOptions::new().write(true).open(dir.path().join(name)).unwrap();
    open("packed").write_all_at(&noise(8, 2 << 20), 1 << 20).unwrap();
    open("pieces").set_len(6 << 20).unwrap();
    let sent = held.fill();
    let mut planned = vec![0; 20 << 20];
    planned[9 << 20..][..70_000].copy_from_slice(&noise(7, 70_000));
    assert!(bytes_of(&sent, "packed").unwrap() == planned);
    let cut = bytes_of(&sent, "pieces").unwrap();
    assert_eq!(cut.len(), 30 << 20);
    assert!(cut[5 << 20..6 << 20] == noise(7, 3 << 20)[..1 << 20] && cut[6 << 20..].iter().all(|b| *b == 0));
    let noted = sent.noted();
    assert!(noted.contains(&(NoteKind::Changed, "packed".to_owned())), "{noted:?}");
    assert!(noted.contains(&(NoteKind::Shrank, "pieces".to_owned())), "{noted:?}");
}

#[test]
fn a_file_with_holes_that_is_gone_or_another_one_is_told_and_its_second_name_has_the_content() {
    let Some(dir) = holey() else { return };
    for name in ["gone", "linked", "replaced"] {
        sparse(&dir.path().join(name), 20 << 20, &[(9 << 20, name.as_bytes())]);
    }
    std::fs::hard_link(dir.path().join("linked"), dir.path().join("z")).unwrap();
    let held = hold(dir.path());
    std::fs::remove_file(dir.path().join("gone")).unwrap();
    std::fs::remove_file(dir.path().join("linked")).unwrap();
    std::fs::remove_file(dir.path().join("replaced")).unwrap();
    sparse(&dir.path().join("replaced"), 30 << 20, &[(3 << 20, b"another")]);
    let sent = held.fill();
    assert_eq!(sent.paths(), ["", "replaced", "z"]);
    assert_eq!(&bytes_of(&sent, "replaced").unwrap()[3 << 20..][..7], b"another");
    assert_eq!(&bytes_of(&sent, "z").unwrap()[9 << 20..][..6], b"linked");
    let noted = [(NoteKind::Vanished, "gone"), (NoteKind::Vanished, "linked"), (NoteKind::Changed, "replaced")];
    assert_eq!(sent.noted(), noted.map(|(kind, path)| (kind, path.to_owned())));
}

#[test]
fn a_rehearsal_counts_the_same_and_reads_nothing() {
    let Some(dir) = holey() else { return };
    shapes(dir.path());
    let sent = send_tree(dir.path()).end;
    let (stats, notes) = (Arc::new(Stats::default()), Arc::new(NoteSink::new()));
    let rehearsed = rehearse(open_tree(&[dir.path().to_path_buf()]).unwrap(), &stats, &notes).unwrap().unwrap();
    assert_eq!(rehearsed, sent);
}
