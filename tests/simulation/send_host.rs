//! The sender around a [`SendFlow`], as a model. It is also the specification of how the sending conductor drives the
//! flow:
//!
//! 1. Plan the next chunk while there is a buffer for it; seal it in parallel; tell the flow, stamped with the session.
//! 2. After every event, each link with room polls, the links taking turns, until none has anything to send. A link
//!    that is told `Until` polls again at that time at the latest.
//! 3. An ack frees buffers, so plan again.
//! 4. A link that dies is taken out of the flow at once and dialled again.
//! 5. When every chunk is planned the flow is told how many there are; when every chunk is sealed, Finish goes out on
//!    every link, and on every link that joins later.
//! 6. Only Commit is success, and only one that comes after Finish and knows the digest of what was sealed.

use blast::flow::planted::{self, Bug};
use blast::flow::{Poll, SendFlow, Take, Violation, Why};
use blast::ids::{Seq, SessionId};
use blast::limits::WINDOW_MAX;
use blast::wire::Ack;

use super::check::{Checked, Failure, Invariant, Mark, ensure};
use super::kept::{Keeper, Kept};
use super::net::{Event, Forward, Net, Side};
use super::rng::mix;
use super::scenario::Scenario;

pub struct SendHost {
    pub session: u32,
    /// Which incarnation of the process; completions of an earlier one never come.
    pub process: u32,
    pub flow: SendFlow<Kept>,
    /// Counts what the flow keeps.
    pub keeper: Keeper,
    /// What went on the wire at least once.
    sent: Vec<bool>,
    /// Chunks below it are planned.
    planned: u64,
    sealed: u64,
    /// Buffers that acks have freed.
    freed: u64,
    /// The highest credit limit that has arrived.
    pub credit: u64,
    /// The source's files; changing them changes every chunk read from then on.
    pub source: u64,
    /// What was sealed in this session, by number.
    pub contents: Vec<Option<u64>>,
    pub committed: bool,
    turn: usize,
    seed: u64,
}

/// The session's id.
pub fn session_id(session: u32) -> SessionId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&session.to_le_bytes());
    SessionId(id)
}

impl SendHost {
    pub fn new(seed: u64, session: u32, process: u32, source: u64, scenario: &Scenario) -> SendHost {
        SendHost {
            session,
            process,
            flow: SendFlow::new(session_id(session), scenario.schedule),
            keeper: Keeper::default(),
            sent: vec![false; scenario.chunks as usize],
            planned: 0,
            sealed: 0,
            freed: 0,
            credit: 0,
            source,
            contents: vec![None; scenario.chunks as usize],
            committed: false,
            turn: 0,
            seed,
        }
    }

    pub fn plan(&mut self, net: &mut Net, scenario: &Scenario) {
        if self.planned == 0 && scenario.chunks == 0 {
            self.flow.ended(0);
            net.marks.hit(Mark::Empty);
        }
        while self.planned < scenario.chunks.min(self.freed + scenario.send_pool) {
            let delay = net.some(scenario.seal);
            net.after(delay, Event::Sealed { process: self.process, session: self.session, seq: self.planned });
            self.planned += 1;
            if self.planned == scenario.chunks {
                self.flow.ended(scenario.chunks);
            }
        }
    }

    pub fn handle_sealed(&mut self, net: &mut Net, session: u32, seq: u64) -> Checked {
        let content = self.read(session, seq);
        if session != self.session {
            net.marks.hit(Mark::StaleSealed);
            let before = format!("{:?}", self.flow);
            self.flow.sealed(session_id(session), Seq(seq), self.keeper.keep(content));
            let after = format!("{:?}", self.flow);
            return ensure(before == after, Invariant::Stale, || format!("chunk {seq} sealed in session {session}"));
        }
        self.contents[seq as usize] = Some(content);
        self.flow.sealed(session_id(session), Seq(seq), self.keeper.keep(content));
        self.sealed += 1;
        if self.all_sealed() {
            for conn in net.up(Side::Send).collect::<Vec<_>>() {
                self.finish(net, conn);
            }
        }
        self.pump(net)
    }

    pub fn handle_joined(&mut self, net: &mut Net, conn: usize) -> Checked {
        net.joined(conn);
        self.flow.link_up(net.conns[conn].id);
        self.finish(net, conn);
        self.pump(net)
    }

    pub fn handle_down(&mut self, net: &mut Net, conn: usize) -> Checked {
        let link = net.conns[conn].id;
        let carried = self.flow.in_flight(link);
        let requeued = self.flow.link_down(link);
        match (carried, requeued) {
            (1.., 0) => net.marks.hit(Mark::NothingToRequeue),
            (_, 1..) => net.marks.hit(Mark::Requeued),
            _ => {}
        }
        self.pump(net)
    }

    /// Whether no receiver can mean this ack: what a sender must not believe, told without the flow.
    pub fn breaks(&self, net: &Net, ack: &Ack) -> bool {
        let unsent = |seq: u64| !self.sent.get(seq as usize).copied().unwrap_or(false);
        let bit = |i: u64| ack.bitmap[i as usize / 64] >> (i % 64) & 1 == 1;
        let carried = |link| net.up(Side::Send).find(|c| net.conns[*c].id == link).map(|c| net.conns[c].frames);
        bit(0)
            || ack.durable > ack.next
            || ack.credit_limit.saturating_sub(ack.next) > WINDOW_MAX.into()
            || ack.next > self.sent.len() as u64
            || (0..ack.next).any(unsent)
            || (0..WINDOW_MAX.into()).any(|i| bit(i) && unsent(ack.next.saturating_add(i)))
            || ack.links.iter().any(|(link, settled)| carried(*link).is_some_and(|carried| *settled > carried))
    }

    /// Success, or what the receiver did wrong.
    pub fn handle_commit(&mut self, digest: u64) -> Result<(), String> {
        if !planted::is(Bug::CommitBelieved) {
            if !self.all_sealed() {
                return Err("it committed before the source had ended".into());
            }
            if self.digest() != digest {
                return Err("it committed to something else".into());
            }
        }
        self.committed = true;
        Ok(())
    }

    /// Whether Finish has gone out.
    pub fn all_sealed(&self) -> bool {
        self.sealed == self.contents.len() as u64
    }

    /// Of what was sealed, once all is.
    pub fn digest(&self) -> u64 {
        digest(self.contents.iter().flatten())
    }

    pub fn handle_ack(&mut self, net: &mut Net, scenario: &Scenario, ack: &Ack) -> Checked<Result<(), Violation>> {
        if ack.next < self.flow.acked() {
            net.marks.hit(Mark::AckOvertaken);
        }
        match self.flow.handle_ack(ack, net.time()) {
            Err(violation) => return Ok(Err(violation)),
            Ok(acked) => {
                self.freed += acked.released;
                self.credit = self.credit.max(ack.credit_limit);
                if !acked.lost.is_empty() {
                    net.marks.hit(Mark::Resent);
                }
            }
        }
        self.plan(net, scenario);
        self.pump(net)?;
        Ok(Ok(()))
    }

    /// Let every link with room take what the flow gives it, in turns.
    pub fn pump(&mut self, net: &mut Net) -> Checked {
        let links: [usize; 8] = {
            let mut up = net.up(Side::Send);
            std::array::from_fn(|_| up.next().unwrap_or(usize::MAX))
        };
        let count = links.iter().filter(|c| **c != usize::MAX).count();
        let mut idle = 0;
        while idle < count {
            self.turn = (self.turn + 1) % count;
            let conn = links[self.turn];
            idle = if self.send_one(net, conn)? { 0 } else { idle + 1 };
        }
        Ok(())
    }

    /// Send one chunk on a link if there is one to send and the socket has room.
    fn send_one(&mut self, net: &mut Net, conn: usize) -> Checked<bool> {
        if !net.has_room(conn) {
            return Ok(false);
        }
        let link = net.conns[conn].id;
        match self.flow.poll_send(link, net.time()) {
            Poll::Send(take) => {
                self.flow.sent(link, take.seq, net.time());
                self.sent[take.seq.0 as usize] = true;
                let content = self.check_take(net, &take)?;
                net.send_forward(conn, Forward::Chunk { seq: take.seq.0, content, intact: true });
                return Ok(true);
            }
            Poll::Until(time) => {
                let at = (time.as_nanos().div_ceil(1000)) as u64;
                let due = &mut net.conns[conn].hedge_due;
                if due.is_none_or(|due| at < due || due <= net.now) {
                    *due = Some(at);
                    net.after(at - net.now, Event::HedgeDue { conn, at });
                }
            }
            Poll::Idle => {}
        }
        Ok(false)
    }

    /// What goes on the wire is within the credit, and what was sealed under this number.
    fn check_take(&self, net: &mut Net, take: &Take<Kept>) -> Checked<u64> {
        let Take { seq, why, payload: Kept { content: payload, .. } } = *take;
        ensure(seq.0 < self.credit, Invariant::Credit, || {
            format!("chunk {seq} was sent, the limit is {}", self.credit)
        })?;
        if seq.0 + 1 == self.credit {
            net.marks.hit(Mark::Blocked);
        }
        if why == Why::Hedge {
            net.marks.hit(Mark::Hedged);
            net.hedges += 1;
        }
        let again = why != Why::Fresh && planted::is(Bug::SealedTwice);
        let content = if again { self.read(self.session, seq.0) } else { payload };
        let sealed = self.contents[seq.0 as usize];
        ensure(sealed == Some(content), Invariant::Nonce, || format!("chunk {seq} has a second content"))?;
        Ok(content)
    }

    fn finish(&self, net: &mut Net, conn: usize) {
        let chunks = self.contents.len() as u64;
        if self.all_sealed() {
            net.send_forward(conn, Forward::Finish { chunks });
        }
    }

    /// A chunk as the source has it now. Sessions differ, or a chunk of the wrong one would pass for the right one.
    fn read(&self, session: u32, seq: u64) -> u64 {
        mix(self.seed ^ u64::from(session) << 40 ^ self.source << 24 ^ seq)
    }
}

/// Of a whole stream.
pub fn digest<'a>(contents: impl Iterator<Item = &'a u64>) -> u64 {
    contents.fold(0, |digest, content| mix(digest ^ content))
}

/// The failure of an honest peer that was accused.
pub fn accused(violation: impl ToString) -> Box<Failure> {
    Box::new(Failure { invariant: Invariant::Honest, detail: violation.to_string() })
}
