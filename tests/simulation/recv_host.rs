//! The receiver around a [`RecvFlow`], as a model. It is also the specification of how the receiving conductor drives
//! the flow:
//!
//! 1. A connection that joins is put into the flow and told the whole state (and Commit, once there is one) before
//!    anything else.
//! 2. When a chunk's header is there, `begin`; skip the payload of one that is held already; otherwise take a buffer
//!    (waiting for one if need be: the lowest missing number is sure to get one), read, verify in parallel.
//! 3. After every verified chunk, deliver what is in order to the sink. A copy too many gives its buffer back.
//! 4. A written chunk gives its buffer back, and that is credit. Every completion is stamped with its session.
//! 5. Whenever the flow's version differs from what a link last told, the link sends an ack: at once, or nearly, if it
//!    brought the chunk, and soon if it did not, because the one that did may be dead.
//! 6. A sync covers what was written before it began. Then, and only then, the durable mark rises. A sync that fails
//!    ends the session.
//! 7. When Finish has come and every chunk is delivered, written and synced: Commit on every link.

use blast::flow::planted::{self, Bug};
use blast::flow::{RecvFlow, Verdict, Violation};
use blast::ids::Seq;
use blast::limits::CORRUPT_IN_A_ROW_MAX;
use blast::options::Window;

use super::check::{Checked, Invariant, Mark, ensure};
use super::disk::Disk;
use super::kept::{Keeper, Kept};
use super::net::{Backward, Copied, End, Event, Forward, Net, Side};
use super::scenario::{Micros, Scenario};
use super::send_host::{digest, session_id};

pub struct RecvHost {
    pub session: u32,
    /// Which incarnation of the process; completions of an earlier one never come.
    pub process: u32,
    pub flow: RecvFlow<Kept>,
    /// Counts what the flow keeps.
    pub keeper: Keeper,
    /// One above the highest number that came, and what Finish said.
    came: u64,
    pub ends: Option<u64>,
    pub disk: Disk,
    /// What was delivered, in order.
    pub applied: Vec<u64>,
    /// Chunks written, whose buffers are free.
    written: u64,
    /// Buffers that are being read into, verified, held or written.
    buffers: u64,
    most_links: u64,
    /// Connection and frame that were read last.
    last_read: Option<(usize, u64)>,
    /// When the sink is done with what it has.
    sink_busy: Micros,
    pub sink_stopped: Micros,
    syncing: bool,
    since_sync: u64,
    pub committed: bool,
    /// A sync has failed: the session cannot go on.
    pub failed: bool,
}

/// What came of a message from the sender.
pub type Handled = Checked<Result<(), Violation>>;

impl RecvHost {
    pub fn new(session: u32, process: u32, scenario: &Scenario) -> RecvHost {
        RecvHost {
            session,
            process,
            flow: RecvFlow::new(session_id(session), Window { start: scenario.window_start, max: scenario.window }),
            keeper: Keeper::default(),
            came: 0,
            ends: None,
            disk: Disk::default(),
            applied: Vec::with_capacity(scenario.chunks as usize),
            written: 0,
            buffers: 0,
            most_links: 0,
            last_read: None,
            sink_busy: 0,
            sink_stopped: 0,
            syncing: false,
            since_sync: 0,
            committed: false,
            failed: false,
        }
    }

    pub fn handle_join(&mut self, net: &mut Net, conn: usize) -> Handled {
        let link = net.conns[conn].id;
        if let Err(violation) = self.flow.link_up(link) {
            return Ok(Err(violation));
        }
        net.conns[conn].recv_end = End::Up;
        self.most_links = self.most_links.max(net.up(Side::Recv).count() as u64);
        net.send_backward(conn, Backward::Joined);
        if planted::is(Bug::JoinWithoutState) && self.flow.next() > 0 {
            net.conns[conn].acked_version = self.flow.version();
        } else {
            self.send_ack(net, conn);
        }
        if self.committed {
            net.marks.hit(Mark::CommitRepeated);
            net.send_backward(conn, Backward::Commit { digest: digest(self.applied.iter()) });
        }
        Ok(Ok(()))
    }

    pub fn handle_down(&mut self, net: &mut Net, scenario: &Scenario, conn: usize) {
        self.flow.link_down(net.conns[conn].id);
        net.conns[conn].waiting = None;
        self.tell_somehow(net, scenario);
    }

    /// Whether no sender may send this: what a receiver must not take, told without the flow.
    pub fn breaks(&self, message: &Forward) -> bool {
        match *message {
            Forward::Chunk { seq, .. } => seq >= self.flow.credit_limit() || self.ends.is_some_and(|ends| seq >= ends),
            Forward::Finish { chunks } => chunks < self.came || self.ends.is_some_and(|ends| chunks != ends),
        }
    }

    /// Buffers in use.
    pub fn buffers(&self) -> u64 {
        self.buffers
    }

    /// The header of a chunk frame.
    pub fn handle_chunk(&mut self, net: &mut Net, scenario: &Scenario, conn: usize, mut copy: Copied) -> Handled {
        let link = net.conns[conn].id;
        let arrival = match self.flow.begin(link, Seq(copy.seq)) {
            Ok(arrival) => arrival,
            Err(violation) => return Ok(Err(violation)),
        };
        self.came = self.came.max(copy.seq + 1);
        let limit = self.written + u64::from(scenario.window);
        ensure(copy.seq < limit, Invariant::Memory, || {
            format!("chunk {} was admitted, {limit} has no buffer", copy.seq)
        })?;
        if !arrival.fresh {
            net.marks.hit(Mark::LateDuplicate);
            self.flow.settled(link, arrival.index);
            self.tell(net, scenario, conn);
            return Ok(Ok(()));
        }
        copy.index = arrival.index;
        if self.buffers >= self.room(net, scenario) {
            net.marks.hit(Mark::OutOfBuffers);
            net.conns[conn].waiting = Some(copy);
        } else {
            self.read(net, scenario, conn, copy)?;
        }
        Ok(Ok(()))
    }

    /// The frame that a connection read last.
    pub fn last_read(&self, conn: usize) -> Option<u64> {
        self.last_read.filter(|(c, _)| *c == conn).map(|(_, index)| index)
    }

    fn read(&mut self, net: &mut Net, scenario: &Scenario, conn: usize, copy: Copied) -> Checked {
        self.buffers += 1;
        let most = u64::from(scenario.window) + self.most_links;
        ensure(self.buffers <= most, Invariant::Memory, || format!("{} buffers of {most} are in use", self.buffers))?;
        self.last_read = Some((conn, copy.index));
        let delay = net.some(scenario.verify);
        net.after(delay, Event::Verified { process: self.process, session: self.session, conn, copy });
        Ok(())
    }

    /// Buffers there are: the window, and one for each link.
    fn room(&self, net: &Net, scenario: &Scenario) -> u64 {
        u64::from(scenario.window) + net.up(Side::Recv).count() as u64
    }

    fn free_buffer(&mut self, net: &mut Net, scenario: &Scenario) -> Checked {
        self.buffers -= 1;
        if self.buffers >= self.room(net, scenario) {
            return Ok(());
        }
        let waiting = net.up(Side::Recv).find(|c| net.conns[*c].waiting.is_some());
        if let Some(conn) = waiting {
            let copy = net.conns[conn].waiting.take().expect("it waits");
            self.read(net, scenario, conn, copy)?;
            net.resume(conn);
        }
        Ok(())
    }

    /// A copy has been read and verified. True if the link must be dropped, because copy after copy fails.
    pub fn handle_verified(
        &mut self,
        net: &mut Net,
        scenario: &Scenario,
        session: u32,
        conn: usize,
        copy: Copied,
    ) -> Checked<bool> {
        let Copied { index, seq, content, intact } = copy;
        let (link, id) = (net.conns[conn].id, session_id(session));
        if session != self.session {
            net.marks.hit(Mark::StaleVerified);
            let before = format!("{:?}", self.flow);
            match intact {
                true => drop(self.flow.verified(id, link, index, Seq(seq), self.keeper.keep(content))),
                false => drop(self.flow.dropped(id, link, index)),
            }
            let after = format!("{:?}", self.flow);
            ensure(before == after, Invariant::Stale, || format!("chunk {seq} verified in session {session}"))?;
            return Ok(false);
        }
        let alive = net.conns[conn].recv_end == End::Up;
        if !alive && net.conns[conn].torn == Some(index) {
            self.free_buffer(net, scenario)?;
            return Ok(false);
        }
        if !intact && !planted::is(Bug::TakenUnverified) {
            let strikes = self.flow.dropped(id, link, index);
            self.free_buffer(net, scenario)?;
            self.tell(net, scenario, conn);
            return Ok(strikes.in_a_row >= CORRUPT_IN_A_ROW_MAX);
        }
        // What a failed verification leaves is anything but the content.
        let content = if intact { content } else { !content };
        match self.flow.verified(id, link, index, Seq(seq), self.keeper.keep(content)) {
            Verdict::Held if !alive => net.marks.hit(Mark::VerifiedAfterDeath),
            Verdict::Held => {}
            Verdict::Duplicate(_) | Verdict::Stale(_) => {
                net.marks.hit(Mark::DuplicateVerified);
                self.free_buffer(net, scenario)?;
            }
        }
        self.deliver(net, scenario)?;
        self.tell(net, scenario, conn);
        Ok(false)
    }

    fn deliver(&mut self, net: &mut Net, scenario: &Scenario) -> Checked {
        while let Some((Seq(seq), Kept { content, .. })) = self.flow.poll_deliver() {
            net.note(seq ^ content);
            let expected = self.applied.len() as u64;
            ensure(seq == expected, Invariant::Applied, || format!("chunk {seq} was delivered instead of {expected}"))?;
            self.applied.push(content);
            let start = self.sink_busy.max(self.sink_stopped).max(net.now);
            self.sink_busy = start + net.some(scenario.write);
            // Writers work in parallel, so the end of one is not in order with the end of another.
            let delay = self.sink_busy - net.now + net.rng.below(scenario.write);
            net.after(delay, Event::Wrote { process: self.process, session: self.session, seq });
            if planted::is(Bug::ReleasedEarly) {
                self.flow.released(session_id(self.session), 1);
            }
        }
        Ok(())
    }

    pub fn handle_wrote(&mut self, net: &mut Net, scenario: &Scenario, session: u32, seq: u64) -> Checked {
        if session != self.session {
            net.marks.hit(Mark::StaleWrote);
            let before = format!("{:?}", self.flow);
            self.flow.released(session_id(session), 1);
            let after = format!("{:?}", self.flow);
            return ensure(before == after, Invariant::Stale, || format!("chunk {seq} written in session {session}"));
        }
        self.disk.write(seq);
        self.written += 1;
        self.since_sync += 1;
        if !planted::is(Bug::ReleasedEarly) {
            self.flow.released(session_id(session), 1);
        }
        if planted::is(Bug::DurableBeforeSync) {
            self.raise_durable(session, self.disk.written())?;
        }
        self.free_buffer(net, scenario)?;
        self.sync_if_due(net, scenario);
        self.tell_somehow(net, scenario);
        Ok(())
    }

    /// Begin a sync if enough was written, or if nothing is left to write.
    pub fn sync_if_due(&mut self, net: &mut Net, scenario: &Scenario) {
        let all_written = self.flow.complete() && self.written == self.applied.len() as u64;
        let due = self.since_sync >= scenario.sync_group || all_written;
        if due && !self.syncing && !self.committed && !self.failed {
            self.begin_sync(net, scenario);
        }
    }

    fn begin_sync(&mut self, net: &mut Net, scenario: &Scenario) {
        self.syncing = true;
        self.since_sync = 0;
        self.disk.begin_sync();
        let (mark, delay) = (self.disk.written(), net.some(scenario.sync));
        net.after(delay, Event::Synced { process: self.process, session: self.session, mark });
    }

    pub fn handle_synced(&mut self, net: &mut Net, scenario: &Scenario, session: u32, mark: u64) -> Checked {
        if session != self.session {
            net.marks.hit(Mark::StaleSynced);
            let before = format!("{:?}", self.flow);
            self.flow.durable(session_id(session), mark);
            let after = format!("{:?}", self.flow);
            return ensure(before == after, Invariant::Stale, || format!("{mark} synced in session {session}"));
        }
        self.syncing = false;
        if !self.disk.end_sync() {
            net.marks.hit(Mark::SyncFailed);
            if planted::is(Bug::SyncRetried) {
                self.begin_sync(net, scenario);
            } else {
                self.failed = true;
            }
            return Ok(());
        }
        self.raise_durable(session, mark)?;
        if self.flow.complete() && mark == self.applied.len() as u64 {
            self.commit(net);
        } else {
            self.sync_if_due(net, scenario);
        }
        self.tell_somehow(net, scenario);
        Ok(())
    }

    fn raise_durable(&mut self, session: u32, mark: u64) -> Checked {
        self.flow.durable(session_id(session), mark);
        let durable = self.disk.durable();
        ensure(mark <= durable, Invariant::Durable, || format!("{mark} are called durable, {durable} are"))
    }

    pub fn handle_finish(&mut self, net: &mut Net, scenario: &Scenario, chunks: u64) -> Handled {
        if let Err(violation) = self.flow.finish(chunks) {
            return Ok(Err(violation));
        }
        self.ends = Some(chunks);
        if planted::is(Bug::CommitUnchecked) {
            self.commit(net);
        }
        match self.flow.complete() {
            true => self.sync_if_due(net, scenario),
            false => net.marks.hit(Mark::FinishEarly),
        }
        Ok(Ok(()))
    }

    fn commit(&mut self, net: &mut Net) {
        self.committed = true;
        for conn in net.up(Side::Recv).collect::<Vec<_>>() {
            net.send_backward(conn, Backward::Commit { digest: digest(self.applied.iter()) });
        }
    }

    /// There is something to tell: the link that brought it tells it soon, the others later, unless they told of it
    /// with something else by then.
    fn tell(&mut self, net: &mut Net, scenario: &Scenario, first: usize) {
        for conn in 0..net.conns.len() {
            let c = &mut net.conns[conn];
            if c.recv_end != End::Up || c.acked_version == self.flow.version() {
                continue;
            }
            let gap = if conn == first { scenario.ack_gap } else { scenario.ack_repeat };
            let at = net.now + gap;
            if c.ack_due.is_none_or(|due| at < due) {
                c.ack_due = Some(at);
                net.after(gap, Event::AckDue { conn, at });
            }
        }
    }

    /// Tell by whichever link.
    fn tell_somehow(&mut self, net: &mut Net, scenario: &Scenario) {
        let up = net.up(Side::Recv).count() as u64;
        let turn = net.rng.below(up.max(1)) as usize;
        let first = net.up(Side::Recv).nth(turn).unwrap_or(usize::MAX);
        self.tell(net, scenario, first);
    }

    pub fn handle_ack_due(&mut self, net: &mut Net, conn: usize, at: Micros) {
        let c = &mut net.conns[conn];
        if c.ack_due != Some(at) {
            return;
        }
        c.ack_due = None;
        if c.recv_end == End::Up && c.acked_version != self.flow.version() {
            self.send_ack(net, conn);
        }
    }

    fn send_ack(&mut self, net: &mut Net, conn: usize) {
        self.flow.look(net.time());
        net.conns[conn].acked_version = self.flow.version();
        net.send_backward(conn, Backward::Ack(Box::new(self.flow.ack())));
    }
}
