//! The manifest of what is received: a file's line is written once the file is whole on disk under its name. A small
//! file's digest is taken by its writer, when its bytes are in the cache; a large file's comes from its verified
//! chunks.
//!
//! Writers finish in any order, lines come in the transfer's: unpack gives each file a numbered place, and what is
//! finished early waits for the places before it. These are no more than the files that writers have in their queues,
//! which the chunks' buffers bound; a place that is let go of without a line does not hold up the others.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::chunk::Ordered;
use crate::ids::Digest;
use crate::manifest::{Line, Lines, Pen};

/// Writes the manifest, in the order of the places it gave.
pub struct Recorder {
    next: AtomicU64,
    state: Mutex<State>,
}

struct State {
    order: Ordered<Option<Lines>>,
    /// `None` once it was taken.
    pen: Option<Pen>,
}

impl Recorder {
    /// Nothing was received yet.
    pub fn new(pen: Pen) -> Arc<Recorder> {
        let state = State { order: Ordered::new(), pen: Some(pen) };
        Arc::new(Recorder { next: AtomicU64::new(0), state: Mutex::new(state) })
    }

    /// The pen back, after the sink has ended.
    pub fn take(&self) -> Option<Pen> {
        self.lock().pen.take()
    }

    /// Visit the lines of all files so far, but not of their further names.
    pub fn each_file(&self, visit: impl FnMut(Line)) -> io::Result<()> {
        self.lock().pen.as_mut().map_or(Ok(()), |pen| pen.each_file(visit))
    }

    /// The next file's place.
    pub(super) fn place(self: &Arc<Recorder>) -> Place {
        Place { number: self.next.fetch_add(1, Relaxed), recorder: Some(self.clone()) }
    }

    /// The only line: of a file, or of standard output, which has no name.
    pub(super) fn only(&self, digest: Digest, name: Option<&[u8]>) {
        let mut state = self.lock();
        match (&mut state.pen, name) {
            (Some(pen), Some(name)) => pen.file(digest, name),
            (Some(pen), None) => pen.stream(digest),
            (None, _) => {}
        }
    }

    fn put(&self, number: u64, lines: Option<Lines>) {
        let mut state = self.lock();
        let State { order, pen } = &mut *state;
        order.push(number, lines, |lines| {
            if let (Some(pen), Some(lines)) = (pen.as_mut(), &lines) {
                pen.append(lines);
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }
}

/// A file's place in the manifest. Dropped without a line, there is none.
pub(super) struct Place {
    number: u64,
    /// `None` once the line is written.
    recorder: Option<Arc<Recorder>>,
}

impl Place {
    /// The file is on disk, and this is its digest.
    pub fn file(mut self, digest: Digest, path: &[u8]) {
        let mut lines = Lines::default();
        lines.file(digest, path);
        self.put(Some(lines));
    }

    /// The file at `target` has this name too.
    pub fn link(mut self, path: &[u8], target: &[u8]) {
        let mut lines = Lines::default();
        lines.link(path, target);
        self.put(Some(lines));
    }

    /// Something else takes this name: what was written about it so far is true no more.
    pub fn gone(mut self, path: &[u8]) {
        let mut lines = Lines::default();
        lines.gone(path);
        self.put(Some(lines));
    }

    fn put(&mut self, lines: Option<Lines>) {
        if let Some(recorder) = self.recorder.take() {
            recorder.put(self.number, lines);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.put(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Draft;

    #[test]
    fn lines_come_in_the_order_of_their_places_and_a_place_may_stay_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (draft, pen) = Draft::create(&dir.path().join("m"), &[]).unwrap();
        let recorder = Recorder::new(pen);
        let mut places: Vec<Option<Place>> = (0..5).map(|_| Some(recorder.place())).collect();
        for (at, path) in [(3, Some("d")), (1, None), (4, Some("e")), (0, Some("a")), (2, Some("c"))] {
            let place = places[at].take().unwrap();
            match path {
                Some(path) => place.file(Digest([at as u8; 32]), path.as_bytes()),
                None => drop(place),
            }
        }
        let report = draft.finish(recorder.take().unwrap());
        assert_eq!((report.files, report.failed), (4, None));
        let text = std::fs::read_to_string(dir.path().join("m")).unwrap();
        let paths: Vec<&str> = text.lines().map(|line| &line[66..]).collect();
        assert_eq!(paths, ["a", "c", "d", "e"]);
    }
}
