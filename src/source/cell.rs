//! A place for one result that one thread makes and another takes: whoever needs it first makes it.

use std::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Cell<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Open,
    Claimed,
    Ready(T),
    /// Taken, or its maker panicked.
    Empty,
}

/// The right and duty to fill a cell.
pub(super) struct Claim<'a, T> {
    cell: &'a Cell<T>,
}

impl<T> Cell<T> {
    pub fn new() -> Cell<T> {
        Cell { state: Mutex::new(State::Open), changed: Condvar::new() }
    }

    /// Whether nobody has claimed it yet.
    pub fn is_open(&self) -> bool {
        matches!(*self.lock(), State::Open)
    }

    /// The claim, if nobody has had it.
    pub fn claim(&self) -> Option<Claim<'_, T>> {
        let mut state = self.lock();
        if !matches!(*state, State::Open) {
            return None;
        }
        *state = State::Claimed;
        Some(Claim { cell: self })
    }

    /// Wait until it is filled, and take what is in it. It must have been claimed, and can be taken once.
    pub fn take(&self) -> T {
        let waiting = |state: &mut State<T>| matches!(state, State::Open | State::Claimed);
        let mut state =
            self.changed.wait_while(self.lock(), waiting).expect("no thread panics while it holds this lock");
        match std::mem::replace(&mut *state, State::Empty) {
            State::Ready(value) => value,
            _ => panic!("the thread that should fill this cell panicked"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }
}

impl<T> Claim<'_, T> {
    pub fn put(self, value: T) {
        *self.cell.lock() = State::Ready(value);
    }
}

impl<T> Drop for Claim<'_, T> {
    fn drop(&mut self) {
        let mut state = self.cell.lock();
        if matches!(*state, State::Claimed) {
            *state = State::Empty;
        }
        drop(state);
        self.cell.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_makes_it_and_the_other_waits() {
        let cell = Cell::new();
        let claim = cell.claim().unwrap();
        assert!(cell.claim().is_none());
        std::thread::scope(|s| {
            s.spawn(|| claim.put(7));
            assert_eq!(cell.take(), 7);
        });
        assert!(cell.claim().is_none());
    }

    #[test]
    fn a_maker_that_panics_wakes_who_waits() {
        let cell = Cell::<u8>::new();
        std::thread::scope(|s| {
            let maker = s.spawn(|| {
                let _claim = cell.claim();
                panic!("on purpose");
            });
            assert!(maker.join().is_err());
        });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cell.take())).is_err());
    }
}
