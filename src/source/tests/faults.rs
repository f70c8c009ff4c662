//! Sources that change or fail while they are read: told truly, and everything else exact.

use super::*;

#[test]
fn a_file_that_vanished_is_left_out_and_named() {
    let src = tree();
    for name in ["a", "b", "c"] {
        write(src.path(), name, name.as_bytes());
    }
    let held = hold(src.path());
    std::fs::remove_file(src.path().join("b")).unwrap();
    let sent = held.fill();
    assert_eq!(sent.paths(), ["", "a", "c"]);
    assert_eq!(sent.entry("c").kind, EntryKind::File { size: 1 });
    assert_eq!(sent.noted(), [(NoteKind::Vanished, "b".into())]);
}
