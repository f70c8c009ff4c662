//! How chunks reach the sink's thread. The thread sleeps in one place, for a chunk or for the last word, and whoever
//! brings one wakes it with nothing in hand that it wants next: one system call to wake and one to sleep, where waiting
//! on two channels at once took five for every second chunk.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::Stopped;
use crate::chunk::Chunk;
use crate::limits;
use crate::wire::Finish;

/// Where chunks go in, in the order of their numbers. It never fills: chunks are no more than there are buffers.
#[derive(Clone)]
pub struct Feed(Arc<Queue>);

/// The sink's thread has ended: nobody takes chunks any more.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("the sink has ended")]
pub struct Gone;

/// Where the sink's thread gets its chunks from.
pub(super) struct Inlet(Arc<Queue>);

/// What comes next.
pub(super) enum Next {
    Chunk(Chunk),
    /// Nothing came in the time given.
    Quiet,
    /// All chunks have come.
    Finish(Finish),
    Abort,
}

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    chunks: VecDeque<Chunk>,
    last_word: LastWord,
    /// The thread sleeps, and nobody has woken it yet.
    sleeps: bool,
    /// The thread has ended.
    gone: bool,
}

#[derive(Clone, Copy)]
enum LastWord {
    Awaited,
    Finish(Finish),
    Abort,
}

/// Both ends of a new queue.
pub(super) fn new() -> (Feed, Inlet) {
    let chunks = VecDeque::with_capacity(limits::WINDOW_MAX as usize);
    let state = State { chunks, last_word: LastWord::Awaited, sleeps: false, gone: false };
    let queue = Arc::new(Queue { state: Mutex::new(state), changed: Condvar::new() });
    (Feed(queue.clone()), Inlet(queue))
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        let wake = std::mem::take(&mut state.sleeps);
        drop(state);
        if wake {
            self.changed.notify_one();
        }
        changed
    }
}

impl Feed {
    /// Hand over the next chunk. Never waits.
    pub fn put(&self, chunk: Chunk) -> Result<(), Gone> {
        let refused = self.0.change(|state| match state.gone {
            true => Some(chunk),
            false => {
                state.chunks.push_back(chunk);
                None
            }
        });
        // it gives its buffer back outside the lock
        refused.map_or(Ok(()), |_| Err(Gone))
    }

    /// Every chunk was handed over.
    pub(super) fn finish(&self, finish: Finish) {
        self.0.change(|state| state.last_word = LastWord::Finish(finish));
    }

    /// There will be no last word. Does nothing after one.
    pub(super) fn abort(&self) {
        self.0.change(|state| {
            if matches!(state.last_word, LastWord::Awaited) {
                state.last_word = LastWord::Abort;
            }
        });
    }
}

impl Inlet {
    /// The next chunk, or the last word once no chunk is left.
    pub(super) fn next(&mut self, patience: Duration) -> Next {
        let nothing = |state: &mut State| state.chunks.is_empty() && matches!(state.last_word, LastWord::Awaited);
        let mut state = self.0.lock();
        if nothing(&mut state) {
            state.sleeps = true;
            let waited = self.0.changed.wait_timeout_while(state, patience, nothing);
            state = waited.expect("no thread panics while it holds this lock").0;
            state.sleeps = false;
        }
        match (state.last_word, state.chunks.pop_front()) {
            (LastWord::Abort, unwanted) => {
                drop((state, unwanted));
                Next::Abort
            }
            (_, Some(chunk)) => Next::Chunk(chunk),
            (LastWord::Finish(finish), None) => Next::Finish(finish),
            (LastWord::Awaited, None) => Next::Quiet,
        }
    }

    /// The sink has failed: let go of every chunk that still comes, until somebody has noticed.
    pub(super) fn drain(&mut self) -> Stopped {
        while !matches!(self.next(Duration::from_secs(1)), Next::Finish(_) | Next::Abort) {}
        Stopped
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        // their buffers go back outside the lock
        let left = self.0.change(|state| {
            state.gone = true;
            std::mem::take(&mut state.chunks)
        });
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkKind, Pool};
    use crate::ids::{Digest, Seq};

    const SOON: Duration = Duration::from_secs(10);

    fn chunk(pool: &Arc<Pool>, seq: u64) -> Chunk {
        let buf = pool.take().unwrap();
        Chunk { seq: Seq(seq), kind: ChunkKind::Mixed, len: 1, digest: Digest([0; 32]), buf, release: None }
    }

    fn finish() -> Finish {
        Finish { chunks: 2, entries: 0, bytes: 2, content_bytes: 0, notes: 0, unnamed: (0, 0), digest: Digest([0; 32]) }
    }

    #[test]
    fn chunks_come_in_order_and_the_last_word_after_them_however_early_it_was_said() {
        let pool = Pool::new(2, 1);
        let (feed, mut inlet) = new();
        assert!(matches!(inlet.next(Duration::ZERO), Next::Quiet));
        feed.put(chunk(&pool, 0)).unwrap();
        feed.finish(finish());
        feed.put(chunk(&pool, 1)).unwrap();
        feed.abort();
        for expected in 0..2 {
            let Next::Chunk(chunk) = inlet.next(SOON) else { panic!("not a chunk") };
            assert_eq!(chunk.seq, Seq(expected));
        }
        for _ in 0..2 {
            assert!(matches!(inlet.next(SOON), Next::Finish(said) if said == finish()));
        }
    }

    #[test]
    fn whoever_sleeps_is_woken_by_each_thing_that_can_come() {
        let pool = Pool::new(1, 1);
        let (feed, mut inlet) = new();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            loop {
                let next = inlet.next(Duration::from_secs(600));
                tell.send(matches!(next, Next::Chunk(_))).unwrap();
                if matches!(next, Next::Abort) {
                    return;
                }
            }
        });
        for seq in 0..1000 {
            // its buffer is back only once the one before was taken
            feed.put(chunk(&pool, seq)).unwrap();
            assert!(told.recv_timeout(SOON).unwrap());
        }
        feed.abort();
        assert!(!told.recv_timeout(SOON).unwrap());
        thread.join().unwrap();
    }

    #[test]
    fn after_the_end_buffers_go_back_and_nothing_is_taken() {
        let pool = Pool::new(2, 1);
        let (feed, inlet) = new();
        feed.put(chunk(&pool, 0)).unwrap();
        drop(inlet);
        assert_eq!(feed.put(chunk(&pool, 1)), Err(Gone));
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn without_a_last_word_what_is_queued_is_given_up() {
        let pool = Pool::new(2, 1);
        let (feed, mut inlet) = new();
        (0..2).for_each(|seq| feed.put(chunk(&pool, seq)).unwrap());
        feed.abort();
        assert!(matches!(inlet.next(SOON), Next::Abort));
        assert!(matches!(inlet.next(SOON), Next::Abort));
        assert_eq!(pool.taken(), 0);
    }
}
