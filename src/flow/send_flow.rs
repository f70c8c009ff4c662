//! The sending side of a session: chunks sealed and not yet acknowledged, and what each link sends next.

use std::collections::VecDeque;

use super::in_flight::Hedge;
use super::planted::{self, Bug};
use super::seq_set::ones;
use super::{Acked, InFlight, Lack, Poll, Scheduler, SeqSet, Take, Time, Violation, Why};
use crate::ids::{LinkId, Seq, SessionId};
use crate::limits::{CHUNK_LOSSES_MAX, WINDOW_MAX};
use crate::options::Schedule;
use crate::wire::Ack;

/// The sender's half of the protocol. Steps of a chunk, all in one thread or behind one lock:
///
/// 1. [`sealed`](SendFlow::sealed), in any order: the chunk waits.
/// 2. [`poll_send`](SendFlow::poll_send) by a link with room: the lowest number that waits below the credit limit.
/// 3. [`sent`](SendFlow::sent) once the socket took its first byte: the chunk is in flight on that link.
/// 4. [`handle_ack`](SendFlow::handle_ack): acknowledged chunks are forgotten; what failed verification waits again.
/// 5. [`link_down`](SendFlow::link_down): what only that link carried waits again.
///
/// A chunk is never sealed twice and keeps its payload until it is acknowledged, so a number's bytes are the same on
/// whatever link and however often it is sent. Memory is what the caller puts in with `sealed`.
#[derive(Debug)]
pub struct SendFlow<P> {
    session: SessionId,
    /// Chunks below it may be sent; never falls.
    credit: u64,
    /// Chunks below it survive a power loss on the receiver; never falls.
    durable: u64,
    /// Chunks below it are acknowledged and forgotten.
    acked: u64,
    /// The lowest number that was never sent; at least `acked`.
    unsent: u64,
    /// How many chunks there are, once known.
    chunks: Option<u64>,
    /// One for each number from `acked` to the highest sealed.
    slots: VecDeque<Slot<P>>,
    /// Acknowledged numbers above `acked`.
    held: SeqSet,
    scheduler: Scheduler,
    in_flight: InFlight,
    /// How often the last chunk that waited and had credit was taken.
    ran_dry: u64,
    /// Chunk frames that links have begun.
    begun: u64,
}

#[derive(Debug)]
struct Slot<P> {
    /// `Some` from sealed to acknowledged.
    payload: Option<P>,
    sent: bool,
}

impl<P: Clone> SendFlow<P> {
    /// A session with nothing sealed and no link.
    pub fn new(session: SessionId, schedule: Schedule) -> SendFlow<P> {
        SendFlow {
            session,
            credit: 0,
            durable: 0,
            acked: 0,
            unsent: 0,
            chunks: None,
            slots: VecDeque::new(),
            held: SeqSet::default(),
            scheduler: Scheduler::new(schedule),
            in_flight: InFlight::default(),
            ran_dry: 0,
            begun: 0,
        }
    }

    /// A chunk is ready for the wire. Numbers may come in any order; each comes once.
    pub fn sealed(&mut self, session: SessionId, seq: Seq, payload: P) {
        if session != self.session && !planted::is(Bug::StaleSealedTaken) {
            return;
        }
        assert!(self.chunks.is_none_or(|chunks| seq.0 < chunks), "chunk {seq} is past the end of the stream");
        let at = seq.0.checked_sub(self.acked).expect("a chunk is sealed before it is acknowledged");
        let at = usize::try_from(at).expect("the pool bounds what is sealed");
        while self.slots.len() <= at {
            self.slots.push_back(Slot { payload: None, sent: false });
        }
        let slot = &mut self.slots[at];
        let bug = planted::is(Bug::StaleSealedTaken);
        assert!(slot.payload.is_none() && !slot.sent || bug, "chunk {seq} is sealed once");
        slot.payload = Some(payload);
        self.scheduler.wait(seq);
    }

    /// The source has ended: there are this many chunks.
    pub fn ended(&mut self, chunks: u64) {
        assert!(self.acked + self.slots.len() as u64 <= chunks, "chunks past the end of the stream");
        self.chunks = Some(chunks);
    }

    /// A link can carry chunks. Ids are never used again in a session.
    pub fn link_up(&mut self, link: LinkId) {
        self.in_flight.link_up(link);
        self.scheduler.link_up(link);
    }

    /// A link is gone. What only it carried waits again; returns how many chunks that is.
    pub fn link_down(&mut self, link: LinkId) -> u64 {
        self.scheduler.link_down(link);
        let mut requeued = 0;
        self.in_flight.link_down(link, |seq| {
            if !planted::is(Bug::RequeueSkipped) {
                self.scheduler.wait(seq);
            }
            requeued += 1;
        });
        requeued
    }

    /// What a link with room sends next. Changes nothing until [`SendFlow::sent`].
    pub fn poll_send(&self, link: LinkId, now: Time) -> Poll<P> {
        if !self.in_flight.is_up(link) {
            return Poll::Idle;
        }
        let credit = if planted::is(Bug::CreditIgnored) { u64::MAX } else { self.credit };
        if let Some(seq) = self.scheduler.next(link, credit) {
            let why = if self.slot(seq).sent { Why::Resend } else { Why::Fresh };
            return Poll::Send(self.take(seq, why));
        }
        if !self.scheduler.hedges() || self.all_acked() || planted::is(Bug::HedgeForgotten) {
            return Poll::Idle;
        }
        let more_to_come = self.unsent < self.credit.min(self.chunks.unwrap_or(u64::MAX));
        match self.in_flight.hedge(link, more_to_come, now) {
            Hedge::Now(seq) => Poll::Send(self.take(seq, Why::Hedge)),
            Hedge::Until(time) => Poll::Until(time),
            Hedge::Never => Poll::Idle,
        }
    }

    /// The link's socket took the first byte of the chunk: its frame counts on that link from now on.
    pub fn sent(&mut self, link: LinkId, seq: Seq, now: Time) {
        self.scheduler.sent(link, seq);
        let at = seq.0.checked_sub(self.acked).map(|at| at as usize);
        let wanted = at.is_some_and(|at| self.slots[at].payload.is_some());
        self.in_flight.sent(link, seq, wanted, now);
        self.begun += 1;
        if !self.scheduler.is_waiting_below(self.credit) {
            self.ran_dry += 1;
        }
        let Some(at) = at else { return };
        self.slots[at].sent = true;
        while self.slots.get((self.unsent - self.acked) as usize).is_some_and(|s| s.sent) {
            self.unsent += 1;
        }
    }

    /// Merge a snapshot of the receiver's state. Older ones change nothing, whatever order they come in.
    pub fn handle_ack(&mut self, ack: &Ack, now: Time) -> Result<Acked, Violation> {
        if ack.bitmap[0] & 1 == 1 {
            return Err(Violation::Nonsense("a chunk is both missing and held"));
        }
        if ack.durable > ack.next {
            return Err(Violation::Nonsense("a chunk is durable before it has arrived"));
        }
        if ack.credit_limit.checked_sub(ack.next).is_some_and(|window| window > u64::from(WINDOW_MAX)) {
            return Err(Violation::Nonsense("more chunks are allowed than the largest window holds"));
        }
        let mut acked = Acked::default();
        for seq in self.acked..ack.next {
            self.acknowledge(seq, &mut acked)?;
        }
        for (word, start) in ack.bitmap.iter().zip((ack.next..).step_by(64)) {
            // Bits below our own base are of an old ack; `held` takes out what is known, so the cost is what is new.
            let known = match self.acked.saturating_sub(start) {
                0 => self.held.bits_from(start),
                stale @ 1..64 => self.held.bits_from(start) | ((1 << stale) - 1),
                64.. => u64::MAX,
            };
            for seq in ones(word & !known, start) {
                self.acknowledge(seq, &mut acked)?;
            }
        }
        self.advance(ack.next);
        acked.credit_rose = ack.credit_limit > self.credit;
        self.credit = self.credit.max(ack.credit_limit);
        self.durable = self.durable.max(ack.durable);
        for (link, settled) in &ack.links {
            let mut hopeless = None;
            self.in_flight.settle(*link, *settled, now, |seq, last, times| {
                if last && !planted::is(Bug::LossNotResent) {
                    self.scheduler.wait(seq);
                }
                if times >= CHUNK_LOSSES_MAX {
                    hopeless = Some(Violation::NeverVerifies { seq, times });
                }
                acked.lost.push((seq, *link));
            })?;
            hopeless.map_or(Ok(()), Err)?;
        }
        Ok(acked)
    }

    /// Chunks below it are acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Whether the source has ended and every chunk is acknowledged.
    pub fn all_acked(&self) -> bool {
        self.chunks == Some(self.acked)
    }

    /// Whether the source has ended and every chunk was sent at least once.
    pub fn all_sent(&self) -> bool {
        self.chunks == Some(self.unsent)
    }

    /// What a link that found nothing to send waits for.
    pub fn lacks(&self) -> Lack {
        if self.all_sent() {
            Lack::Nothing
        } else if self.unsent >= self.credit {
            Lack::Credit
        } else {
            Lack::Chunk
        }
    }

    /// Chunks below it may be sent.
    pub fn credit(&self) -> u64 {
        self.credit
    }

    /// Chunks below it survive a power loss on the receiver, as it says.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Chunks that may be sent and that no link has taken. Before the first ack, when it is not known yet what may be
    /// sent, all that are sealed.
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting_below(if self.credit == 0 { u64::MAX } else { self.credit })
    }

    /// How often the links have taken the last chunk that waited.
    pub fn ran_dry(&self) -> u64 {
        self.ran_dry
    }

    /// Chunk frames that links have begun, every copy counted.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Numbers that links have taken and that are not acknowledged.
    pub fn unacked(&self) -> usize {
        self.in_flight.count_out()
    }

    /// Links that are up.
    pub fn links(&self) -> usize {
        self.scheduler.links()
    }

    /// Chunk frames that a link carries and the receiver has not settled.
    pub fn in_flight(&self, link: LinkId) -> usize {
        self.in_flight.on_link(link)
    }

    /// Panics unless the state agrees with itself. Costs O(window).
    pub fn invariants(&self) {
        self.in_flight.invariants();
        assert!(self.slots.front().is_none_or(|s| s.sent || !self.held.contains(self.acked)));
        for (slot, seq) in self.slots.iter().zip(self.acked..) {
            let (held, waits, out) =
                (self.held.contains(seq), self.scheduler.waits(Seq(seq)), self.in_flight.is_out(Seq(seq)));
            assert!(!held || slot.payload.is_none(), "acknowledged chunk {seq} is forgotten");
            assert!(held || !slot.sent || slot.payload.is_some(), "chunk {seq} is kept until acknowledged");
            assert!(slot.payload.is_some() == (waits || out), "chunk {seq} waits or is in flight");
            assert!(!(waits && out), "chunk {seq} does not wait while it is in flight");
            assert!(!slot.sent || seq < self.credit, "chunk {seq} was sent within the credit");
            assert!(slot.sent || seq >= self.unsent, "every chunk below {} was sent", self.unsent);
        }
    }

    /// One number newly acknowledged, below or above the base.
    fn acknowledge(&mut self, seq: u64, acked: &mut Acked) -> Result<(), Violation> {
        let slot = usize::try_from(seq - self.acked).ok().and_then(|at| self.slots.get_mut(at));
        let Some(slot) = slot.filter(|s| s.sent) else {
            return Err(Violation::AckOfUnsent { seq: Seq(seq) });
        };
        if slot.payload.take().is_some() {
            acked.released += 1;
            self.held.insert(seq);
            self.scheduler.forget(Seq(seq));
            self.in_flight.acked(Seq(seq));
        } else if planted::is(Bug::ReleasedTwice) {
            acked.released += 1;
        }
        Ok(())
    }

    /// Forget everything below `next`, all of it acknowledged.
    fn advance(&mut self, next: u64) {
        if next <= self.acked {
            return;
        }
        self.slots.drain(..(next - self.acked) as usize);
        self.acked = next;
        self.unsent = self.unsent.max(next);
        self.held.advance(next);
        self.scheduler.advance(next);
        self.in_flight.advance(next);
    }

    fn slot(&self, seq: Seq) -> &Slot<P> {
        &self.slots[(seq.0 - self.acked) as usize]
    }

    fn take(&self, seq: Seq, why: Why) -> Take<P> {
        let payload = self.slot(seq).payload.clone().expect("a chunk keeps its payload until it is acknowledged");
        Take { seq, payload, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{HEDGE_AGAIN, HEDGE_MIN, HEDGE_UNMEASURED};
    use std::time::Duration;

    const SESSION: SessionId = SessionId([1; 16]);
    const A: LinkId = LinkId(0);
    const B: LinkId = LinkId(1);
    const C: LinkId = LinkId(2);

    fn ms(ms: u64) -> Time {
        Duration::from_millis(ms)
    }

    /// A flow with these links, `chunks` sealed (number n's payload is n), all of them credited, and the source ended.
    fn flow(links: &[LinkId], chunks: u64) -> SendFlow<u64> {
        let mut flow = SendFlow::new(SESSION, Schedule::Pull);
        links.iter().for_each(|l| flow.link_up(*l));
        (0..chunks).for_each(|n| flow.sealed(SESSION, Seq(n), n));
        flow.ended(chunks);
        flow.handle_ack(&Ack { credit_limit: chunks, ..Ack::default() }, ms(0)).unwrap();
        flow
    }

    /// What the link would send, as (number, why); it is sent if `take`.
    fn poll(flow: &mut SendFlow<u64>, link: LinkId, now: Time, take: bool) -> Option<(u64, Why)> {
        let Poll::Send(Take { seq, payload, why }) = flow.poll_send(link, now) else { return None };
        assert_eq!(seq.0, payload);
        if take {
            flow.sent(link, seq, now);
            flow.invariants();
        }
        Some((seq.0, why))
    }

    #[test]
    fn a_link_without_a_chunk_knows_what_it_waits_for() {
        let mut flow = SendFlow::new(SESSION, Schedule::Pull);
        flow.link_up(A);
        assert_eq!(flow.lacks(), Lack::Credit);
        flow.handle_ack(&Ack { credit_limit: 2, ..Ack::default() }, ms(0)).unwrap();
        assert_eq!(flow.lacks(), Lack::Chunk);
        for n in 0..2 {
            flow.sealed(SESSION, Seq(n), n);
            poll(&mut flow, A, ms(0), true);
        }
        assert_eq!(flow.lacks(), Lack::Credit);
        flow.handle_ack(
            &Ack { next: 1, credit_limit: 9, links: [(A, 1)].into_iter().collect(), ..Ack::default() },
            ms(1),
        )
        .unwrap();
        assert_eq!(flow.lacks(), Lack::Chunk);
        flow.ended(2);
        assert_eq!(flow.lacks(), Lack::Nothing, "everything is sent, though not acknowledged");
    }

    fn ack(next: u64, above: &[u64], links: &[(LinkId, u64)]) -> Ack {
        let mut ack = Ack { next, credit_limit: next + 8, links: links.iter().copied().collect(), ..Ack::default() };
        for seq in above {
            ack.bitmap[((seq - next) / 64) as usize] |= 1 << ((seq - next) % 64);
        }
        ack
    }

    #[test]
    fn what_a_dead_link_carried_is_sent_first_and_lowest_first() {
        let mut flow = flow(&[A, B], 6);
        for link in [A, B, A, B] {
            poll(&mut flow, link, ms(0), true);
        }
        assert_eq!(flow.link_down(A), 2);
        flow.invariants();
        let rest: Vec<_> = std::iter::from_fn(|| poll(&mut flow, B, ms(1), true)).collect();
        assert_eq!(rest, [(0, Why::Resend), (2, Why::Resend), (4, Why::Fresh), (5, Why::Fresh)]);
        assert_eq!(flow.poll_send(A, ms(1)), Poll::Idle, "a link that is down sends nothing");
    }

    #[test]
    fn a_copy_that_failed_verification_is_sent_again_and_its_link_named() {
        let mut flow = flow(&[A, B], 3);
        for link in [A, B, A] {
            poll(&mut flow, link, ms(0), true);
        }
        let acked = flow.handle_ack(&ack(0, &[1, 2], &[(A, 2), (B, 1)]), ms(3)).unwrap();
        flow.invariants();
        assert_eq!(acked, Acked { released: 2, credit_rose: true, lost: vec![(Seq(0), A)] });
        assert_eq!(poll(&mut flow, B, ms(3), true), Some((0, Why::Resend)));
        assert_eq!(flow.handle_ack(&ack(3, &[], &[(A, 2), (B, 2)]), ms(5)).unwrap().released, 1);
        assert!(flow.all_acked());
    }

    #[test]
    fn acks_out_of_order_merge_to_the_newest() {
        let mut flow = flow(&[A, B], 8);
        for link in [A, B, A, B, A, B] {
            poll(&mut flow, link, ms(0), true);
        }
        let newest = Ack { durable: 1, ..ack(4, &[5], &[(A, 2), (B, 3)]) };
        flow.handle_ack(&newest, ms(9)).unwrap();
        for stale in [ack(0, &[1, 2], &[(A, 1)]), ack(1, &[3], &[]), ack(4, &[], &[(A, 2)]), newest] {
            let acked = flow.handle_ack(&stale, ms(9)).unwrap();
            assert_eq!(acked, Acked::default());
            flow.invariants();
        }
        assert_eq!((flow.acked(), flow.durable(), flow.credit()), (4, 1, 12));
    }

    #[test]
    fn an_ack_that_no_receiver_can_mean_is_a_violation() {
        let sent_two = || {
            let mut flow = flow(&[A], 4);
            poll(&mut flow, A, ms(0), true);
            poll(&mut flow, A, ms(0), true);
            flow
        };
        let unsent = |seq| Violation::AckOfUnsent { seq: Seq(seq) };
        let cases = [
            (ack(3, &[], &[]), unsent(2)),
            (Ack { next: u64::MAX, ..Ack::default() }, unsent(2)),
            (ack(0, &[2], &[]), unsent(2)),
            (ack(0, &[700], &[]), unsent(700)),
            (ack(0, &[], &[(A, 3)]), Violation::SettledUnsent { link: A, settled: 3, sent: 2 }),
            (ack(0, &[0], &[]), Violation::Nonsense("a chunk is both missing and held")),
            (Ack { durable: 1, ..ack(0, &[], &[]) }, Violation::Nonsense("a chunk is durable before it has arrived")),
            (
                Ack { credit_limit: 1026, ..ack(1, &[], &[]) },
                Violation::Nonsense("more chunks are allowed than the largest window holds"),
            ),
        ];
        for (ack, violation) in cases {
            assert_eq!(sent_two().handle_ack(&ack, ms(1)), Err(violation));
        }
    }

    #[test]
    fn a_chunk_that_never_verifies_ends_the_session() {
        let mut flow = flow(&[A], 1);
        for times in 1..CHUNK_LOSSES_MAX {
            assert!(poll(&mut flow, A, ms(0), true).is_some());
            flow.handle_ack(&ack(0, &[], &[(A, times.into())]), ms(0)).unwrap();
        }
        poll(&mut flow, A, ms(0), true);
        let last = flow.handle_ack(&ack(0, &[], &[(A, CHUNK_LOSSES_MAX.into())]), ms(0));
        assert_eq!(last, Err(Violation::NeverVerifies { seq: Seq(0), times: CHUNK_LOSSES_MAX }));
    }

    #[test]
    fn a_chunk_sealed_in_another_session_is_ignored() {
        let mut flow: SendFlow<u64> = SendFlow::new(SESSION, Schedule::Pull);
        flow.link_up(A);
        flow.handle_ack(&ack(0, &[], &[]), ms(0)).unwrap();
        flow.sealed(SessionId([2; 16]), Seq(0), 9);
        assert_eq!(flow.poll_send(A, ms(0)), Poll::Idle);
    }

    /// Links that take 4 ms for a chunk, all in step: at the end of the stream each has its last chunks in flight.
    fn tail_of_equal_links() -> SendFlow<u64> {
        let mut flow = flow(&[A, B], 10);
        for round in 0..4u64 {
            poll(&mut flow, A, ms(4 * round), true);
            poll(&mut flow, B, ms(4 * round), true);
            let now = ms(4 * round + 4);
            flow.handle_ack(&ack(2 * round + 2, &[], &[(A, round + 1), (B, round + 1)]), now).unwrap();
        }
        poll(&mut flow, A, ms(16), true);
        poll(&mut flow, B, ms(16), true);
        flow
    }

    #[test]
    fn equal_links_do_not_send_each_others_last_chunks_while_acks_take_their_usual_time() {
        let mut flow = tail_of_equal_links();
        let Poll::Until(due) = flow.poll_send(A, ms(17)) else { panic!("the other link's last chunk may become late") };
        assert!(due >= ms(16) + HEDGE_MIN, "{due:?}");
        assert_eq!(poll(&mut flow, A, due - ms(1), false), None);
    }

    #[test]
    fn an_idle_link_rescues_the_chunks_of_a_silent_one_without_a_pause_between_them() {
        let mut flow = flow(&[A, B, C], 12);
        // A takes 0, 3, 6, 9 and is never heard of again; the others work on.
        for n in 0..12u64 {
            poll(&mut flow, [A, B, C][n as usize % 3], ms(n), true);
        }
        flow.handle_ack(&ack(0, &[1, 2, 4, 5, 7, 8, 10, 11], &[(B, 4), (C, 4)]), ms(15)).unwrap();
        let Poll::Until(due) = flow.poll_send(B, ms(15)) else { panic!("the chunks of A will be late") };
        assert!(due < ms(60), "{due:?}");
        let rescue: Vec<_> = (0..5).map(|_| poll(&mut flow, B, ms(60), true).map(|(seq, _)| seq)).collect();
        assert_eq!(rescue, [Some(0), Some(3), Some(6), Some(9), None]);
        assert_eq!(poll(&mut flow, C, ms(60), false), None, "once more is enough");
        flow.handle_ack(&ack(12, &[], &[(B, 8)]), ms(70)).unwrap();
        assert!(flow.all_acked(), "long before A is found dead");
        assert_eq!(flow.link_down(A), 0);
    }

    #[test]
    fn a_hedge_that_dies_with_its_link_can_be_made_again() {
        let mut flow = tail_of_equal_links();
        flow.link_up(C);
        assert_eq!(poll(&mut flow, C, ms(100), true), Some((8, Why::Hedge)));
        assert_eq!(poll(&mut flow, C, ms(100), true), Some((9, Why::Hedge)));
        assert_eq!(poll(&mut flow, B, ms(99) + HEDGE_AGAIN, false), None, "both are out twice");
        assert_eq!(poll(&mut flow, B, ms(100) + HEDGE_AGAIN, false), Some((8, Why::Hedge)));
        flow.link_down(C);
        assert_eq!(poll(&mut flow, B, ms(200), true), Some((8, Why::Hedge)));
        assert_eq!(flow.link_down(A), 0, "B carries it");
        assert_eq!(flow.link_down(B), 2);
        flow.link_up(LinkId(3));
        assert_eq!(poll(&mut flow, LinkId(3), ms(200), false), Some((8, Why::Resend)));
    }

    #[test]
    fn an_idle_link_finds_out_by_itself_what_another_took_after_it_had_asked() {
        let mut flow: SendFlow<u64> = SendFlow::new(SESSION, Schedule::Pull);
        flow.link_up(A);
        assert_eq!(flow.poll_send(A, ms(5)), Poll::Idle, "there is no other link");
        flow.link_up(B);
        assert_eq!(flow.poll_send(B, ms(5)), Poll::Until(ms(5) + HEDGE_UNMEASURED), "nothing is out, but may soon be");
    }

    #[test]
    fn a_link_is_more_patient_while_the_source_may_bring_something_better() {
        let mut flow: SendFlow<u64> = SendFlow::new(SESSION, Schedule::Pull);
        flow.link_up(A);
        flow.link_up(B);
        flow.handle_ack(&Ack { credit_limit: 2, ..Ack::default() }, ms(0)).unwrap();
        flow.sealed(SESSION, Seq(0), 0);
        poll(&mut flow, A, ms(0), true);
        let starved = Poll::Until(HEDGE_UNMEASURED * 2);
        assert_eq!(flow.poll_send(B, ms(1)), starved, "chunk 1 is allowed and not sealed yet");
        flow.sealed(SESSION, Seq(2), 2);
        flow.sealed(SESSION, Seq(1), 1);
        assert_eq!(poll(&mut flow, B, ms(1), true), Some((1, Why::Fresh)));
        assert_eq!(flow.poll_send(B, ms(1)), Poll::Until(HEDGE_UNMEASURED), "chunk 2 has no credit");
    }

    #[test]
    fn strict_rotation_waits_for_the_link_whose_turn_it_is() {
        let mut flow: SendFlow<u64> = SendFlow::new(SESSION, Schedule::RoundRobin);
        [A, B].into_iter().for_each(|l| flow.link_up(l));
        (0..4).for_each(|n| flow.sealed(SESSION, Seq(n), n));
        flow.ended(4);
        flow.handle_ack(&ack(0, &[], &[]), ms(0)).unwrap();
        assert_eq!(poll(&mut flow, B, ms(0), true), None);
        assert_eq!(poll(&mut flow, A, ms(0), true), Some((0, Why::Fresh)));
        assert_eq!(poll(&mut flow, A, ms(0), true), None);
        assert_eq!(poll(&mut flow, B, ms(0), true), Some((1, Why::Fresh)));
        flow.link_down(A);
        assert_eq!(poll(&mut flow, B, ms(0), true), Some((0, Why::Resend)));
    }
}
