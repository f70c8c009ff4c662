//! How a stage's thread waits for its next piece of work, and for room for what it has done.
//!
//! A channel's own `recv` and `send` look again a few times and give way in between before they sleep. Where work comes
//! one chunk at a time that is four system calls, and CPU that another stage could use, for a few microseconds less to
//! wait. A selection sleeps at once.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn everything_sent_comes_in_order_and_then_the_end() {
        let (to, from) = bounded(2);
        let reader = std::thread::spawn(move || each(from).collect::<Vec<_>>());
        (0..1000).for_each(|n| put(&to, n).unwrap());
        drop(to);
        assert_eq!(reader.join().unwrap(), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn what_nobody_can_receive_comes_back() {
        let (to, from) = bounded(1);
        put(&to, 1).unwrap();
        let waiting = std::thread::spawn(move || put(&to, 2).unwrap_err().0);
        drop(from);
        assert_eq!(waiting.join().unwrap(), 2);
    }
}
