//! Where problems with single entries go. Any stage may add one at any time; the conductor reads them by index, so
//! that each reaches the receiver exactly once.

use std::sync::{Mutex, MutexGuard};

use crate::report::{Note, NoteKind, Notes};

/// The notes of one side, shared by its stages. Bounded: what does not fit by name is counted.
#[derive(Default, Debug)]
pub struct NoteSink {
    notes: Mutex<Notes>,
}

impl NoteSink {
    /// No notes.
    pub fn new() -> NoteSink {
        NoteSink::default()
    }

    /// Add one.
    pub fn push(&self, note: Note) {
        self.lock().push(note);
    }

    /// Add one for the entry at `path`.
    pub(crate) fn add(&self, kind: NoteKind, path: &[u8], detail: impl Into<String>) {
        self.push(Note { kind, path: path.to_vec(), detail: detail.into() });
    }

    /// Notes kept by name so far. It never shrinks.
    pub fn len(&self) -> usize {
        self.lock().named.len()
    }

    /// Whether no note is kept by name.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The named notes from index `from` on, at most `most` of them, in the order they came.
    pub fn range(&self, from: usize, most: usize) -> Vec<Note> {
        let notes = self.lock();
        notes.named.iter().skip(from).take(most).cloned().collect()
    }

    /// All losses and all harmless notes so far, named or not.
    pub fn totals(&self) -> (u64, u64) {
        let notes = self.lock();
        (notes.losses, notes.harmless)
    }

    /// All of them.
    pub fn notes(&self) -> Notes {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("no thread panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NOTES_MAX;

    #[test]
    fn notes_beyond_the_bound_are_counted_and_not_kept() {
        let sink = NoteSink::new();
        for i in 0..NOTES_MAX + 5 {
            sink.add(NoteKind::Vanished, format!("f{i}").as_bytes(), "");
        }
        sink.add(NoteKind::Socket, b"s", "");
        assert_eq!(sink.len(), NOTES_MAX);
        assert_eq!(sink.totals(), (NOTES_MAX as u64 + 5, 1));
        let last = sink.range(NOTES_MAX - 1, 10);
        assert_eq!(last.len(), 1);
        assert_eq!(last[0].path, format!("f{}", NOTES_MAX - 1).into_bytes());
        assert!(sink.range(NOTES_MAX, 10).is_empty());
    }
}
