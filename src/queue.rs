//! What stages hand their work on with, one chunk at a time: how their threads wait.
//!
//! A channel's own `recv` and `send` look again a few times and give way in between before they sleep: four system
//! calls, and CPU that another stage could use, for a few microseconds less to wait. [`next`] and [`put`] sleep at
//! once. But whoever wakes a sleeper of a channel holds a lock that the sleeper wants first, which often costs both
//! another system call. Where every chunk is handed from thread to thread, [`Putter`] and [`Taker`] cost one to wake
//! and one to sleep.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crossbeam_channel::{Receiver, SendError, Sender, TryRecvError, TrySendError, never, select};

/// The next piece, as soon as there is one; `None` once nobody can send another.
pub fn next<T>(queue: &Receiver<T>) -> Option<T> {
    match queue.try_recv() {
        Ok(piece) => Some(piece),
        Err(TryRecvError::Disconnected) => None,
        Err(TryRecvError::Empty) => select! {
            recv(queue) -> piece => piece.ok(),
            recv(never::<()>()) -> _ => None,
        },
    }
}

/// Every piece until nobody can send another.
pub fn each<T>(queue: Receiver<T>) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || next(&queue))
}

/// Hand on one piece, as soon as there is room; it comes back if nobody can receive it.
pub fn put<T>(queue: &Sender<T>, piece: T) -> Result<(), SendError<T>> {
    match queue.try_send(piece) {
        Ok(()) => Ok(()),
        Err(TrySendError::Disconnected(piece)) => Err(SendError(piece)),
        Err(TrySendError::Full(piece)) => select! {
            send(queue, piece) -> sent => sent,
            recv(never::<()>()) -> _ => unreachable!("nothing ever comes"),
        },
    }
}

/// A queue for so many pieces.
pub fn bounded<T>(len: usize) -> (Putter<T>, Taker<T>) {
    let state = State { pieces: VecDeque::with_capacity(len), takers: 1, waiting: 0, putter_waits: false, over: false };
    let queue = Arc::new(Queue { len, state: Mutex::new(state), filled: Condvar::new(), freed: Condvar::new() });
    (Putter(queue.clone()), Taker(queue))
}

struct Queue<T> {
    len: usize,
    state: Mutex<State<T>>,
    filled: Condvar,
    freed: Condvar,
}

struct State<T> {
    pieces: VecDeque<T>,
    takers: usize,
    /// Takers that wait for a piece.
    waiting: usize,
    /// Somebody waits for room.
    putter_waits: bool,
    /// The putter is gone, or every taker.
    over: bool,
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }

    fn end(&self) {
        self.lock().over = true;
        self.filled.notify_all();
        self.freed.notify_all();
    }
}

/// The end of a queue where pieces go in; its drop ends the queue.
pub struct Putter<T>(Arc<Queue<T>>);

impl<T> Putter<T> {
    /// Hand on one piece, as soon as there is room. If every taker is gone it is dropped.
    pub fn put(&self, piece: T) {
        let queue = &*self.0;
        let mut state = queue.lock();
        while state.pieces.len() == queue.len && !state.over {
            state.putter_waits = true;
            state = queue.freed.wait(state).expect("no thread panics while it holds this lock");
        }
        if state.over {
            return;
        }
        state.pieces.push_back(piece);
        let wake = state.waiting > 0;
        drop(state);
        if wake {
            queue.filled.notify_one();
        }
    }
}

impl<T> Drop for Putter<T> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The end of a queue where pieces come out, for any number of threads.
pub struct Taker<T>(Arc<Queue<T>>);

impl<T> Iterator for Taker<T> {
    type Item = T;

    /// The next piece, as soon as there is one; `None` once the putter is gone and nothing is left.
    fn next(&mut self) -> Option<T> {
        let queue = &*self.0;
        let mut state = queue.lock();
        while state.pieces.is_empty() {
            if state.over {
                return None;
            }
            state.waiting += 1;
            state = queue.filled.wait(state).expect("no thread panics while it holds this lock");
            state.waiting -= 1;
        }
        let piece = state.pieces.pop_front();
        if std::mem::take(&mut state.putter_waits) {
            queue.freed.notify_one();
        }
        piece
    }
}

impl<T> Clone for Taker<T> {
    fn clone(&self) -> Taker<T> {
        self.0.lock().takers += 1;
        Taker(self.0.clone())
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        let left = {
            let mut state = self.0.lock();
            state.takers -= 1;
            state.takers
        };
        if left == 0 {
            self.0.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_sent_comes_in_order_and_then_the_end() {
        let (to, from) = crossbeam_channel::bounded(2);
        let reader = std::thread::spawn(move || each(from).collect::<Vec<_>>());
        (0..1000).for_each(|n| put(&to, n).unwrap());
        drop(to);
        assert_eq!(reader.join().unwrap(), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn what_nobody_can_receive_comes_back() {
        let (to, from) = crossbeam_channel::bounded(1);
        put(&to, 1).unwrap();
        let waiting = std::thread::spawn(move || put(&to, 2).unwrap_err().0);
        drop(from);
        assert_eq!(waiting.join().unwrap(), 2);
    }

    #[test]
    fn a_queue_hands_on_everything_in_order_whatever_its_length() {
        for len in [1, 2, 100, 5000] {
            let (to, from) = bounded(len);
            let reader = std::thread::spawn(move || from.collect::<Vec<_>>());
            (0..2000).for_each(|n| to.put(n));
            drop(to);
            assert_eq!(reader.join().unwrap(), (0..2000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn each_piece_goes_to_one_of_many_takers_and_the_end_to_all() {
        let (to, from) = bounded(3);
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let from = from.clone();
                std::thread::spawn(move || from.collect::<Vec<_>>())
            })
            .collect();
        drop(from);
        (0..5000).for_each(|n| to.put(n));
        drop(to);
        let mut all: Vec<i32> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..5000).collect::<Vec<_>>());
    }

    #[test]
    fn a_putter_that_waits_for_room_does_not_wait_for_takers_that_are_gone() {
        let (to, from) = bounded(1);
        to.put(1);
        let waiting = std::thread::spawn(move || to.put(2));
        while !from.0.lock().putter_waits {
            std::thread::yield_now();
        }
        drop(from.clone());
        drop(from);
        waiting.join().unwrap();
    }
}
