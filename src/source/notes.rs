//! Where problems with single entries go. Any stage may add one at any time; the conductor reads them by index, so
//! that each reaches the receiver exactly once.

use std::sync::{Mutex, MutexGuard};

use crate::report::{Note, NoteKind, Notes, Omitted, OmittedKind, Rehearsed, Tell};

/// The notes of one side, shared by its stages. Bounded: what does not fit by name is counted.
#[derive(Default)]
pub struct NoteSink {
    notes: Mutex<Notes>,
    omitted: Mutex<Omitted>,
    /// Who else hears of everything at once, in a rehearsal.
    tell: Option<Tell>,
}

impl NoteSink {
    /// No notes.
    pub fn new() -> NoteSink {
        NoteSink::default()
    }

    /// No notes; `tell` hears of each.
    pub fn telling(tell: Tell) -> NoteSink {
        NoteSink { tell: Some(tell), ..NoteSink::default() }
    }

    /// Who hears of everything.
    pub(super) fn teller(&self) -> Option<Tell> {
        self.tell.clone()
    }

    /// Add one.
    pub fn push(&self, note: Note) {
        if let Some(tell) = &self.tell {
            tell(Rehearsed::Noted(&note));
        }
        self.lock().push(note);
    }

    /// Add one for the entry at `path`.
    pub(crate) fn add(&self, kind: NoteKind, path: &[u8], detail: impl Into<String>) {
        self.push(Note { kind, path: path.to_vec(), detail: detail.into() });
    }

    /// The entry at `path` was left out on request, or what is in it; `rule` is the pattern that says so.
    pub(crate) fn omit(&self, kind: OmittedKind, path: &[u8], rule: &[u8]) {
        if let Some(tell) = &self.tell {
            tell(Rehearsed::Omitted { kind, path, rule });
        }
        self.lock_omitted().add(kind, path);
    }

    /// All that was left out on request.
    pub fn omitted(&self) -> Omitted {
        self.lock_omitted().clone()
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

    fn lock_omitted(&self) -> MutexGuard<'_, Omitted> {
        self.omitted.lock().expect("no thread panics while it holds this lock")
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
