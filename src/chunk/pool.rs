//! A bounded pool of buffers. Memory for chunks is claimed here and nowhere else, so the pool's size is the bound of a
//! side's memory and the length of every queue that chunks wait in.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use crate::storage::Storage;

type Hook = Box<dyn Fn() + Send + Sync>;

/// Buffers of equal length, made when first needed and reused last in, first out, while they are warm in the cache.
pub struct Pool {
    count: usize,
    buf_len: usize,
    state: Mutex<State>,
    returned: Condvar,
    hook: OnceLock<Hook>,
}

struct State {
    /// Buffers that nobody has.
    free: Vec<Arc<Slot>>,
    /// Who waits for one.
    waiting: usize,
    /// Buffers that exist, at most `count`.
    made: usize,
    closed: bool,
}

/// A buffer's memory, which outlives its users.
struct Slot {
    bytes: Storage,
    /// Handles that have not been dropped: the last one gives the slot back.
    users: AtomicUsize,
}

impl Slot {
    fn new(len: usize) -> Arc<Slot> {
        Arc::new(Slot { bytes: Storage::new(len), users: AtomicUsize::new(1) })
    }
}

impl Pool {
    /// A pool of at most `count` buffers of `buf_len` bytes each. No buffer is made yet.
    pub fn new(count: usize, buf_len: usize) -> Arc<Pool> {
        Arc::new(Pool {
            count,
            buf_len,
            state: Mutex::new(State { free: Vec::with_capacity(count), waiting: 0, made: 0, closed: false }),
            returned: Condvar::new(),
            hook: OnceLock::new(),
        })
    }

    /// A buffer, as soon as there is one; its bytes are what its last user left. `None` once the pool is closed.
    ///
    /// Who has to wait is woken when an eighth of the pool is free, not for each buffer: then there is more to do than
    /// waking costs. So the others must come back without the help of who waits.
    pub fn take(self: &Arc<Pool>) -> Option<Buf> {
        let must_wait = |state: &State| !state.closed && state.free.is_empty() && state.made == self.count;
        let mut state = self.lock();
        while must_wait(&state) {
            state.waiting += 1;
            state = self.returned.wait(state).expect("no thread panics while it holds this lock");
            state.waiting -= 1;
            if state.waiting > 0 && state.free.len() > 1 {
                self.returned.notify_one();
            }
        }
        self.claim(state)
    }

    /// A buffer if there is one now and the pool is open.
    pub fn try_take(self: &Arc<Pool>) -> Option<Buf> {
        self.claim(self.lock())
    }

    /// Wake everybody who waits in [`Pool::take`], and give out no more buffers. Buffers that are out stay usable.
    pub fn close(&self) {
        self.lock().closed = true;
        self.returned.notify_all();
    }

    /// Call `hook` after each return of a buffer, from the thread that dropped it and outside the pool's lock: it may
    /// take buffers, but must not block, nor own the pool (neither would ever be freed). Can be set once.
    pub fn on_return(&self, hook: impl Fn() + Send + Sync + 'static) {
        assert!(self.hook.set(Box::new(hook)).is_ok(), "a pool has one hook");
    }

    /// Buffers that somebody has now.
    pub fn taken(&self) -> usize {
        let state = self.lock();
        state.made - state.free.len()
    }

    /// Buffers at most.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of each buffer.
    pub fn buf_len(&self) -> usize {
        self.buf_len
    }

    fn claim(self: &Arc<Pool>, mut state: MutexGuard<State>) -> Option<Buf> {
        if state.closed {
            return None;
        }
        let mut slot = match state.free.pop() {
            Some(slot) => {
                drop(state);
                slot
            }
            None if state.made < self.count => {
                state.made += 1;
                drop(state);
                Slot::new(self.buf_len)
            }
            None => return None,
        };
        match Arc::get_mut(&mut slot) {
            Some(slot) => *slot.users.get_mut() = 1,
            // Another user is between giving up its share and letting go of the memory. That is rare, and shorter
            // than any wait.
            None => slot = Slot::new(self.buf_len),
        }
        Some(Buf { slot: Some(slot), pool: self.clone() })
    }

    fn give_back(&self, slot: Arc<Slot>) {
        let wake = {
            let mut state = self.lock();
            state.free.push(slot);
            state.waiting > 0 && state.free.len() >= (self.count / 8).max(1)
        };
        if wake {
            self.returned.notify_one();
        }
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }
}

/// One buffer of a [`Pool`], which gets it back on drop. Dereferences to all its bytes.
pub struct Buf {
    /// Always there, but in `drop`.
    slot: Option<Arc<Slot>>,
    pool: Arc<Pool>,
}

impl Buf {
    /// Exchange the storage with another of the same length, so that a result in scratch memory becomes this buffer's
    /// content without a copy.
    pub(super) fn swap_storage(&mut self, other: &mut Storage) {
        let slot = self.slot_mut();
        assert_eq!(slot.bytes.len(), other.len(), "buffers of one pool are equally long");
        std::mem::swap(&mut slot.bytes, other);
    }

    /// The same buffer for several users, none of whom changes it.
    pub fn share(mut self) -> SharedBuf {
        SharedBuf { slot: self.slot.take(), pool: self.pool.clone() }
    }

    fn slot_mut(&mut self) -> &mut Slot {
        self.slot.as_mut().and_then(Arc::get_mut).expect("a buffer that is not shared has one user")
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slot.as_ref().expect("it is there until the drop").bytes
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slot_mut().bytes
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.give_back(slot);
        }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

/// A share in one buffer of a [`Pool`], which gets it back when the last share is dropped. Unlike an [`Arc`] of a
/// [`Buf`] it allocates nothing.
pub struct SharedBuf {
    /// Always there, but in `drop`.
    slot: Option<Arc<Slot>>,
    pool: Arc<Pool>,
}

impl SharedBuf {
    fn slot(&self) -> &Arc<Slot> {
        self.slot.as_ref().expect("it is there until the drop")
    }
}

impl Clone for SharedBuf {
    fn clone(&self) -> SharedBuf {
        // as with Arc: a new share comes from one that exists, so nothing need be ordered
        self.slot().users.fetch_add(1, Ordering::Relaxed);
        SharedBuf { slot: Some(self.slot().clone()), pool: self.pool.clone() }
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slot().bytes
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take()
            && slot.users.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.pool.give_back(slot);
        }
    }
}

impl std::fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBuf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc;

    #[test]
    fn a_pool_makes_no_more_than_its_count_and_reuses_the_warmest() {
        let pool = Pool::new(2, 64);
        let mut first = pool.take().unwrap();
        let second = pool.try_take().unwrap();
        assert_eq!((first.len(), pool.taken()), (64, 2));
        assert!(pool.try_take().is_none());
        first[0] = 7;
        drop(second);
        drop(first);
        assert_eq!(pool.taken(), 0);
        assert_eq!(pool.take().unwrap()[0], 7, "the last one returned is the first one reused");
    }

    #[test]
    fn a_waiting_taker_gets_the_buffer_that_comes_back() {
        let pool = Pool::new(1, 1);
        let only = pool.take().unwrap();
        let (tell, told) = mpsc::channel();
        let taker = std::thread::spawn({
            let pool = pool.clone();
            move || {
                tell.send(()).unwrap();
                pool.take().is_some()
            }
        });
        told.recv().unwrap();
        drop(only);
        assert!(taker.join().unwrap());
    }

    #[test]
    fn who_waits_is_woken_for_an_eighth_of_the_pool_and_everyone_who_waits_gets_one() {
        let pool = Pool::new(64, 1);
        let mut all: Vec<_> = (0..64).map(|_| pool.take().unwrap()).collect();
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let pool = pool.clone();
                std::thread::spawn(move || pool.take().unwrap())
            })
            .collect();
        while pool.lock().waiting < 3 {
            std::thread::yield_now();
        }
        all.truncate(64 - 7);
        assert_eq!((pool.taken(), pool.lock().waiting), (57, 3), "seven are not worth it");
        all.truncate(64 - 8);
        let taken: Vec<_> = takers.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(pool.taken(), 56 + taken.len());
    }

    #[test]
    fn closing_wakes_every_taker_with_nothing_and_keeps_what_is_out() {
        let pool = Pool::new(1, 8);
        let only = pool.take().unwrap();
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let pool = pool.clone();
                std::thread::spawn(move || pool.take().is_none())
            })
            .collect();
        pool.close();
        assert!(takers.into_iter().all(|t| t.join().unwrap()));
        assert_eq!(only.len(), 8);
        drop(only);
        assert!(pool.try_take().is_none() && pool.take().is_none(), "closed stays closed, with buffers free");
    }

    #[test]
    fn a_shared_buffer_comes_back_once_after_its_last_user_whoever_that_is() {
        let pool = Pool::new(3, 4096);
        for round in 0..2000_u64 {
            let mut buf = pool.take().expect("all are back");
            buf[..8].copy_from_slice(&round.to_le_bytes());
            let shared = buf.share();
            assert_eq!(pool.taken(), 1);
            std::thread::scope(|scope| {
                for share in [shared.clone(), shared] {
                    scope.spawn(move || assert_eq!(share[..8], round.to_le_bytes()));
                }
            });
            assert_eq!(pool.taken(), 0);
        }
    }

    #[test]
    fn the_hook_runs_after_each_return_and_may_take() {
        let pool = Pool::new(1, 1);
        let calls = Arc::new(AtomicUsize::new(0));
        pool.on_return({
            let (calls, pool) = (calls.clone(), Arc::downgrade(&pool));
            move || {
                if calls.fetch_add(1, SeqCst) == 0 {
                    let pool = pool.upgrade().expect("somebody returned a buffer to it");
                    assert!(pool.try_take().is_some(), "the buffer is back before the hook runs");
                }
            }
        });
        drop(pool.take());
        assert_eq!(calls.load(SeqCst), 2, "the hook's own buffer came back too");
    }
}
