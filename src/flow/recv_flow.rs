//! The receiving side of a session: what is admitted, held, delivered, credited and acknowledged.

use super::arrivals::Arrivals;
use super::planted::{self, Bug};
use super::{Reassembler, Time, Violation};
use crate::ids::{LinkId, Seq, SessionId};
use crate::limits::{LINKS_MAX, WINDOW_MAX, WINDOW_STALL};
use crate::options::Window;
use crate::wire::Ack;

/// The receiver's half of the protocol. Steps of a chunk, all in one thread or behind one lock except verification:
///
/// 1. [`begin`](RecvFlow::begin) when a frame's header has been read: within the credit, or a violation. If the number
///    is held already, skip the payload and call [`settled`](RecvFlow::settled).
/// 2. Read the payload into the link's own buffer and verify it, in parallel and in any order.
/// 3. [`verified`](RecvFlow::verified) takes the number and the buffer; [`dropped`](RecvFlow::dropped) tells that
///    verification failed, and the sender will send the number again.
/// 4. [`poll_deliver`](RecvFlow::poll_deliver) gives chunks out in order.
/// 5. [`released`](RecvFlow::released) when their buffers are free again: that is the sender's new credit.
///
/// The buffers of chunks held, delivered and not released are at most the window, because numbers beyond the credit
/// are refused; with one more buffer for each link that is all the memory any peer can make a receiver use.
#[derive(Debug)]
pub struct RecvFlow<P> {
    session: SessionId,
    /// Chunks that the sender may be ahead of what was delivered and freed. It only grows, so that credit once given
    /// stays given.
    window: u32,
    /// As far as it may grow.
    window_max: u32,
    /// With all credit used: since when nothing has been freed, and how much had been.
    stalled: Option<(Time, u64)>,
    reassembler: Reassembler<P>,
    /// Buffers of delivered chunks that are free again; at most what was delivered.
    released: u64,
    /// Chunks below it survive a power loss; never falls.
    durable: u64,
    /// How many chunks there are, once Finish has come.
    chunks: Option<u64>,
    /// One above the highest number that ever began.
    begun: u64,
    /// Live links.
    links: Vec<Arrivals>,
    /// Frames begun on all links ever: the first index of the next link.
    frames: u64,
    version: u64,
    /// The version from which on an acknowledgement must not be put off.
    urgent: u64,
}

/// A chunk frame begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Names the frame on its link in [`RecvFlow::verified`], [`RecvFlow::dropped`] and [`RecvFlow::settled`].
    pub index: u64,
    /// Whether the number is still missing; if not, the payload is not worth reading.
    pub fresh: bool,
}

/// What came of a verified copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict<P> {
    /// The number is taken, and its buffer with it.
    Held,
    /// Another copy was faster; the buffer is the caller's again.
    Duplicate(P),
    /// The copy is of another session; the buffer is the caller's again.
    Stale(P),
}

/// Copies on one link that failed verification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strikes {
    /// Since the last one that verified.
    pub in_a_row: u32,
    /// In all.
    pub total: u64,
}

impl<P> RecvFlow<P> {
    /// A session with no link, that begins with buffers for `window.start` chunks.
    pub fn new(session: SessionId, window: Window) -> RecvFlow<P> {
        let Window { start, max } = window;
        assert!(1 <= start && start <= max && max <= WINDOW_MAX, "a window of 1 to {WINDOW_MAX} chunks");
        RecvFlow {
            session,
            window: start,
            window_max: max,
            stalled: None,
            reassembler: Reassembler::new(max),
            released: 0,
            durable: 0,
            chunks: None,
            begun: 0,
            links: Vec::new(),
            frames: 0,
            version: 1,
            urgent: 1,
        }
    }

    /// A link can bring chunks. The peer chose its id: refuse the connection, not the session, if that is in use.
    pub fn link_up(&mut self, link: LinkId) -> Result<(), Violation> {
        if self.place(link).is_some() {
            return Err(Violation::LinkInUse(link));
        }
        if self.links.len() == LINKS_MAX {
            return Err(Violation::TooManyLinks);
        }
        self.links.push(Arrivals::new(link, self.frames));
        self.version += 1;
        Ok(())
    }

    /// A link is gone. Its frames are forgotten; a copy that is still being verified can still take its number.
    pub fn link_down(&mut self, link: LinkId) {
        if let Some(at) = self.place(link) {
            self.links.remove(at);
            self.version += 1;
            #[cfg(feature = "planted")]
            if planted::is(Bug::HeldDropped) {
                self.reassembler.drop_held();
            }
        }
    }

    /// The header of a chunk frame has been read on a link.
    pub fn begin(&mut self, link: LinkId, seq: Seq) -> Result<Arrival, Violation> {
        let bug = planted::is(Bug::WindowNotEnforced) && seq.0 < u64::MAX;
        if seq.0 >= self.credit_limit() && !bug {
            return Err(Violation::BeyondCredit { seq, limit: self.credit_limit() });
        }
        if let Some(chunks) = self.chunks.filter(|chunks| seq.0 >= *chunks) {
            return Err(Violation::BeyondEnd { seq, chunks });
        }
        self.begun = self.begun.max(seq.0 + 1);
        self.grow_if_starved();
        self.frames += 1;
        let index = self.place(link).map_or(0, |at| self.links[at].begin());
        Ok(Arrival { index, fresh: !self.reassembler.has(seq) })
    }

    /// A frame's payload was skipped, because its number is held already.
    pub fn settled(&mut self, link: LinkId, index: u64) {
        self.settle(link, index);
    }

    /// A copy passed verification. A link that is gone no longer counts, but its copy is as good as any.
    pub fn verified(&mut self, session: SessionId, link: LinkId, index: u64, seq: Seq, payload: P) -> Verdict<P> {
        let bug = planted::is(Bug::StaleVerifiedTaken) && seq.0 < self.credit_limit();
        if session != self.session && !bug {
            return Verdict::Stale(payload);
        }
        if let Some(arrivals) = self.settle(link, index) {
            arrivals.strikes_in_a_row = 0;
        }
        match self.reassembler.put(seq, payload) {
            Ok(()) => {
                self.version += 1;
                Verdict::Held
            }
            Err(payload) => Verdict::Duplicate(payload),
        }
    }

    /// A copy failed verification. The caller drops a link with too many in a row.
    pub fn dropped(&mut self, session: SessionId, link: LinkId, index: u64) -> Strikes {
        let none = Strikes { in_a_row: 0, total: 0 };
        if session != self.session {
            return none;
        }
        let strikes = self.settle(link, index).map_or(none, |arrivals| {
            arrivals.strikes_in_a_row = arrivals.strikes_in_a_row.saturating_add(1);
            arrivals.strikes += 1;
            Strikes { in_a_row: arrivals.strikes_in_a_row, total: arrivals.strikes }
        });
        self.hurry();
        strikes
    }

    /// The next chunk in order, if it is held.
    pub fn poll_deliver(&mut self) -> Option<(Seq, P)> {
        self.reassembler.take()
    }

    /// So many buffers of delivered chunks are free again.
    pub fn released(&mut self, session: SessionId, buffers: u64) {
        if session != self.session && !planted::is(Bug::StaleReleaseCounted) {
            return;
        }
        self.released += buffers;
        let bug = planted::is(Bug::StaleReleaseCounted);
        assert!(self.released <= self.reassembler.delivered() || bug, "only what was delivered is released");
        self.version += 1;
        self.grow_if_starved();
    }

    /// Twice the window if all of it is under way while there is nothing to write: then it is smaller than what the
    /// links carry in a round trip.
    fn grow_if_starved(&mut self) {
        if self.begun >= self.credit_limit() && self.released == self.reassembler.delivered() {
            self.grow(self.window.saturating_mul(2));
        }
    }

    /// Look at the time, now and then. The whole window if the sender has used all credit and nothing has been freed
    /// for a while: whoever stopped there, what the sender has to send can wait here as well, and is here once it goes
    /// on.
    pub fn look(&mut self, now: Time) {
        match self.stalled {
            _ if self.begun < self.credit_limit() => self.stalled = None,
            Some((since, released)) if released == self.released => {
                if now.saturating_sub(since) >= WINDOW_STALL {
                    self.grow(self.window_max);
                }
            }
            _ => self.stalled = Some((now, self.released)),
        }
    }

    fn grow(&mut self, window: u32) {
        let window = window.min(self.window_max);
        if window > self.window {
            self.window = window;
            self.version += 1;
            self.hurry();
        }
    }

    /// Chunks below `mark` survive a power loss.
    pub fn durable(&mut self, session: SessionId, mark: u64) {
        if (session != self.session && !planted::is(Bug::StaleDurableTaken)) || mark <= self.durable {
            return;
        }
        let bug = planted::is(Bug::StaleDurableTaken);
        assert!(mark <= self.reassembler.delivered() || bug, "only what was delivered is durable");
        self.durable = mark;
        self.version += 1;
    }

    /// The sender says how many chunks there are; it may say so before they have come, and again.
    pub fn finish(&mut self, chunks: u64) -> Result<(), Violation> {
        let before = self.chunks.unwrap_or(self.begun);
        if chunks < before || self.chunks.is_some_and(|before| chunks != before) && !planted::is(Bug::FinishChanged) {
            return Err(Violation::Finish { before, now: chunks });
        }
        self.chunks = Some(chunks);
        Ok(())
    }

    /// Whether Finish has come.
    pub fn is_ending(&self) -> bool {
        self.chunks.is_some()
    }

    /// Chunks that the sender may be ahead of what was delivered and freed.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Whether Finish has come and every chunk was delivered.
    pub fn complete(&self) -> bool {
        self.chunks == Some(self.reassembler.delivered())
    }

    /// The whole state, as the sender needs it. `notes` is the caller's.
    pub fn ack(&self) -> Ack {
        Ack {
            next: self.reassembler.next(),
            bitmap: self.reassembler.bitmap(),
            credit_limit: self.credit_limit(),
            durable: self.durable,
            notes: 0,
            links: self.links.iter().map(|l| (l.id, l.count())).collect(),
        }
    }

    /// Rises whenever [`RecvFlow::ack`] would say something new.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The latest version that the sender should hear of at once: a copy failed verification, the window grew, or the
    /// caller said so.
    pub fn urgent(&self) -> u64 {
        self.urgent
    }

    /// What has changed up to now should be heard of at once.
    pub fn hurry(&mut self) {
        self.urgent = self.version;
    }

    /// Chunks below it may be sent.
    pub fn credit_limit(&self) -> u64 {
        self.released + u64::from(self.window)
    }

    /// Chunks held, verified and not delivered.
    pub fn held(&self) -> usize {
        self.reassembler.held()
    }

    /// The lowest number that is missing.
    pub fn next(&self) -> u64 {
        self.reassembler.next()
    }

    /// Panics unless the state agrees with itself. Costs O(window).
    pub fn invariants(&self) {
        self.reassembler.invariants();
        let in_use = self.held() as u64 + self.reassembler.delivered() - self.released;
        assert!(in_use <= u64::from(self.window), "{in_use} buffers are in use, the window is {}", self.window);
        assert!(self.durable <= self.reassembler.delivered(), "only what was delivered is durable");
        assert!(self.chunks.is_none_or(|chunks| self.begun <= chunks), "no chunk past the end");
    }

    /// Settle a frame if its link still lives.
    fn settle(&mut self, link: LinkId, index: u64) -> Option<&mut Arrivals> {
        let arrivals = self.links.iter_mut().find(|l| l.id == link).filter(|l| l.owns(index))?;
        if arrivals.settle(index) {
            self.version += 1;
        }
        Some(arrivals)
    }

    fn place(&self, link: LinkId) -> Option<usize> {
        self.links.iter().position(|l| l.id == link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([1; 16]);
    const OTHER: SessionId = SessionId([2; 16]);
    const A: LinkId = LinkId(0);
    const B: LinkId = LinkId(1);

    fn flow(window: u32) -> RecvFlow<u64> {
        growing(Window::fixed(window))
    }

    fn growing(window: Window) -> RecvFlow<u64> {
        let mut flow = RecvFlow::new(SESSION, window);
        flow.link_up(A).unwrap();
        flow.link_up(B).unwrap();
        flow
    }

    fn bring(flow: &mut RecvFlow<u64>, link: LinkId, seq: u64) -> Verdict<u64> {
        let index = flow.begin(link, Seq(seq)).unwrap().index;
        let verdict = flow.verified(SESSION, link, index, Seq(seq), seq);
        flow.invariants();
        verdict
    }

    #[test]
    fn a_number_is_taken_by_the_first_verified_copy_only() {
        let mut flow = flow(4);
        let (a, b) = (flow.begin(A, Seq(0)).unwrap(), flow.begin(B, Seq(0)).unwrap());
        assert!(a.fresh && b.fresh, "nothing is taken before it is verified");
        assert_eq!(flow.dropped(SESSION, A, a.index), Strikes { in_a_row: 1, total: 1 });
        assert_eq!(flow.verified(SESSION, B, b.index, Seq(0), 7), Verdict::Held);
        assert!(!flow.begin(A, Seq(0)).unwrap().fresh);
        assert_eq!(flow.poll_deliver(), Some((Seq(0), 7)));
        assert!(!flow.begin(B, Seq(0)).unwrap().fresh, "nor after it was delivered");
        assert_eq!(flow.poll_deliver(), None);
    }

    fn deliver(flow: &mut RecvFlow<u64>) -> u64 {
        std::iter::from_fn(|| flow.poll_deliver()).count() as u64
    }

    #[test]
    fn the_window_doubles_while_all_of_it_is_under_way_and_nothing_waits_to_be_written() {
        let mut flow = growing(Window { start: 2, max: 7 });
        bring(&mut flow, A, 0);
        assert_eq!(flow.credit_limit(), 2, "half of it is unused");
        let second = flow.begin(A, Seq(1)).unwrap();
        assert_eq!(flow.credit_limit(), 4, "the sender had to stop, and the writer has nothing");
        flow.verified(SESSION, A, second.index, Seq(1), 1);
        assert_eq!(deliver(&mut flow), 2);
        bring(&mut flow, A, 2);
        bring(&mut flow, A, 3);
        assert_eq!(flow.credit_limit(), 4, "the writer is what the sender waits for");
        assert_eq!(deliver(&mut flow), 2);
        let before = flow.version();
        flow.released(SESSION, 4);
        assert_eq!((flow.credit_limit(), flow.window()), (8, 4));
        assert!(flow.version() > before);
        for seq in 4..8 {
            flow.begin(A, Seq(seq)).unwrap();
        }
        assert_eq!((flow.credit_limit(), flow.window()), (11, 7), "no further than it may");
    }

    #[test]
    fn a_copy_that_failed_verification_is_urgent_news_and_one_that_verified_is_not() {
        let mut flow = flow(8);
        bring(&mut flow, A, 0);
        assert!(flow.urgent() < flow.version());
        let damaged = flow.begin(B, Seq(1)).unwrap();
        flow.dropped(SESSION, B, damaged.index);
        assert_eq!(flow.urgent(), flow.version());
        bring(&mut flow, A, 1);
        assert!(flow.urgent() < flow.version());
        flow.hurry();
        assert_eq!(flow.urgent(), flow.version());
    }

    #[test]
    fn the_whole_window_is_given_when_nothing_is_freed_for_a_while() {
        let ms = Time::from_millis;
        let mut flow = growing(Window { start: 2, max: 9 });
        bring(&mut flow, A, 0);
        bring(&mut flow, A, 1);
        let grown = flow.credit_limit();
        deliver(&mut flow);
        for seq in 2..grown {
            bring(&mut flow, A, seq);
        }
        deliver(&mut flow);
        flow.look(ms(10));
        flow.released(SESSION, 1);
        flow.look(ms(40));
        assert_eq!(flow.credit_limit(), grown + 1, "it moves, and so is not stopped");
        bring(&mut flow, A, grown);
        flow.look(ms(50));
        flow.look(ms(69));
        assert_eq!(flow.credit_limit(), grown + 1);
        flow.look(ms(70));
        assert_eq!(flow.credit_limit(), 1 + 9);
        let mut fixed = self::flow(2);
        bring(&mut fixed, A, 0);
        bring(&mut fixed, A, 1);
        fixed.look(ms(0));
        fixed.look(ms(1000));
        assert_eq!(fixed.credit_limit(), 2, "a window that was asked for stays");
    }

    #[test]
    fn the_credit_limit_is_what_was_released_plus_the_window() {
        let mut flow = flow(2);
        assert_eq!(flow.begin(A, Seq(2)), Err(Violation::BeyondCredit { seq: Seq(2), limit: 2 }));
        bring(&mut flow, A, 0);
        bring(&mut flow, B, 1);
        while flow.poll_deliver().is_some() {}
        assert!(flow.begin(A, Seq(2)).is_err(), "delivered buffers are still in use");
        flow.released(SESSION, 1);
        assert_eq!(flow.ack().credit_limit, 3);
        assert!(flow.begin(A, Seq(2)).unwrap().fresh);
    }

    #[test]
    fn the_ack_tells_each_links_settled_frames_and_its_version_every_change() {
        let mut flow = flow(8);
        let mut version = flow.version();
        let mut changed = |flow: &RecvFlow<u64>| std::mem::replace(&mut version, flow.version()) != flow.version();
        let (first, second) = (flow.begin(A, Seq(0)).unwrap().index, flow.begin(A, Seq(2)).unwrap().index);
        assert!(!changed(&flow), "a frame that begins changes nothing");
        flow.verified(SESSION, A, second, Seq(2), 2);
        assert!(changed(&flow));
        let ack = flow.ack();
        assert_eq!((ack.next, ack.bitmap[0], &ack.links[..]), (0, 0b100, &[(A, 0), (B, 0)][..]));
        flow.dropped(SESSION, A, first);
        assert!(changed(&flow));
        assert_eq!(flow.ack().links[..], [(A, 2), (B, 0)], "chunk 0 is lost");
        let duplicate = flow.begin(B, Seq(2)).unwrap();
        assert!(!duplicate.fresh);
        flow.settled(B, duplicate.index);
        assert!(changed(&flow));
        flow.link_down(A);
        assert!(changed(&flow));
        assert_eq!(flow.ack().links[..], [(B, 1)]);
    }

    #[test]
    fn strikes_in_a_row_end_with_a_copy_that_verifies() {
        let mut flow = flow(8);
        let strike = |flow: &mut RecvFlow<u64>| {
            let index = flow.begin(A, Seq(1)).unwrap().index;
            flow.dropped(SESSION, A, index)
        };
        strike(&mut flow);
        assert_eq!(strike(&mut flow), Strikes { in_a_row: 2, total: 2 });
        bring(&mut flow, A, 0);
        assert_eq!(strike(&mut flow), Strikes { in_a_row: 1, total: 3 });
    }

    #[test]
    fn completions_of_another_session_change_nothing() {
        let mut flow = flow(4);
        let index = flow.begin(A, Seq(0)).unwrap().index;
        let before = (flow.version(), flow.ack());
        assert_eq!(flow.verified(OTHER, A, index, Seq(0), 9), Verdict::Stale(9));
        flow.dropped(OTHER, A, index);
        flow.released(OTHER, 3);
        flow.durable(OTHER, 2);
        assert_eq!((flow.version(), flow.ack()), before);
        assert_eq!(flow.poll_deliver(), None);
    }

    #[test]
    fn a_copy_from_a_dead_link_counts_for_the_chunk_and_not_for_the_links_successor() {
        let mut flow = flow(4);
        let (first, second) = (flow.begin(A, Seq(0)).unwrap().index, flow.begin(A, Seq(1)).unwrap().index);
        flow.link_down(A);
        flow.link_up(A).unwrap();
        let fresh = flow.begin(A, Seq(1)).unwrap().index;
        assert_eq!(flow.verified(SESSION, A, first, Seq(0), 0), Verdict::Held);
        assert_eq!(flow.dropped(SESSION, A, second), Strikes { in_a_row: 0, total: 0 });
        assert_eq!(flow.ack().links[..], [(B, 0), (A, 0)]);
        flow.verified(SESSION, A, fresh, Seq(1), 1);
        assert_eq!(flow.ack().links[..], [(B, 0), (A, 1)]);
        assert_eq!(flow.ack().next, 2);
    }

    #[test]
    fn finish_may_come_early_and_must_not_contradict() {
        let mut flow = flow(4);
        bring(&mut flow, A, 1);
        assert_eq!(flow.finish(1), Err(Violation::Finish { before: 2, now: 1 }));
        assert_eq!(flow.finish(2), Ok(()));
        assert_eq!(flow.finish(2), Ok(()), "it is repeated on every link");
        assert_eq!(flow.finish(3), Err(Violation::Finish { before: 2, now: 3 }));
        assert_eq!(flow.begin(A, Seq(2)), Err(Violation::BeyondEnd { seq: Seq(2), chunks: 2 }));
        assert!(!flow.complete());
        bring(&mut flow, B, 0);
        while flow.poll_deliver().is_some() {}
        assert!(flow.complete());
    }

    #[test]
    fn a_link_id_in_use_and_a_link_too_many_are_refused() {
        let mut flow: RecvFlow<u64> = RecvFlow::new(SESSION, Window::fixed(1));
        (0..LINKS_MAX as u32).for_each(|n| flow.link_up(LinkId(n)).unwrap());
        assert_eq!(flow.link_up(LinkId(5)), Err(Violation::LinkInUse(LinkId(5))));
        assert_eq!(flow.link_up(LinkId(99)), Err(Violation::TooManyLinks));
        flow.link_down(LinkId(5));
        flow.link_up(LinkId(99)).unwrap();
    }
}
