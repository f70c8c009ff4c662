//! One run: two hosts, their cables, the plan of faults, and the checks.

use super::bound;
use super::check::{Checked, Failure, Invariant, Mark, Marks, ensure};
use super::hostile;
use super::net::{Backward, Copied, End, Event, Forward, Net, Side};
use super::recv_host::RecvHost;
use super::rng::Rng;
use super::scenario::{Fault, Kind, Micros, SECOND, Scenario, Ways};
use super::send_host::{SendHost, accused};
use blast::flow::planted::{self, Bug};
use blast::options::Schedule;

/// Events that no run needs; more of them mean that something goes round in circles.
const EVENTS_MAX: u64 = 200_000;

pub struct World {
    pub seed: u64,
    pub scenario: Scenario,
    pub net: Net,
    pub send: SendHost,
    pub recv: RecvHost,
    /// Delivered chunks that were compared with what was sealed.
    compared: usize,
    calm: bool,
    /// When it must have ended, once that can be said.
    deadline: Option<Micros>,
    /// A hostile peer was caught, or has no more ideas.
    pub over: bool,
    pub mischief: u32,
    events: u64,
}

/// What a run leaves.
pub struct Outcome {
    pub trace: u64,
    pub marks: Marks,
    pub events: u64,
    /// When the sender knew of Commit.
    pub ended: Micros,
    /// Late chunks that were sent once more.
    pub hedges: u64,
}

/// Run one seed to its end.
pub fn run(seed: u64, printing: bool) -> Checked<Outcome> {
    let mut rng = Rng::new(seed);
    let scenario = Scenario::new(&mut rng);
    run_scenario(seed, scenario, rng, printing)
}

/// Run a scenario to its end.
pub fn run_scenario(seed: u64, scenario: Scenario, rng: Rng, printing: bool) -> Checked<Outcome> {
    if printing {
        eprintln!("{scenario:#?}");
    }
    let mut net = Net::new(rng, &scenario.cables);
    net.printing = printing;
    let send = SendHost::new(seed, 0, 0, 0, &scenario);
    let recv = RecvHost::new(0, 0, &scenario);
    let mut world = World {
        seed,
        scenario,
        net,
        send,
        recv,
        compared: 0,
        calm: false,
        deadline: None,
        over: false,
        mischief: 0,
        events: 0,
    };
    world.begin();
    world.run()?;
    let Net { trace, marks, hedges, now, .. } = world.net;
    Ok(Outcome { trace, marks, events: world.events, ended: now, hedges })
}

impl World {
    fn begin(&mut self) {
        if self.scenario.schedule == Schedule::RoundRobin {
            self.net.marks.hit(Mark::RoundRobin);
        }
        for cable in 0..self.scenario.cables.len() {
            self.net.dial_afresh(cable, self.scenario.cables[cable].up_at);
        }
        for index in 0..self.scenario.faults.len() {
            self.net.after(self.scenario.faults[index].0, Event::Fault { index });
        }
        match self.scenario.kind {
            Kind::Faults => self.net.after(self.scenario.calm_at, Event::Calm),
            // A tail that is too long ends some time; what never ends is another fault.
            Kind::Lasting => {
                let tail = bound::lasting(&self.scenario);
                self.deadline = Some(tail + bound::aftermath(&self.scenario) + bound::session(&self.scenario));
            }
            Kind::HostileSend | Kind::HostileRecv => self.net.after(1000, Event::Mischief),
        }
        if self.scenario.kind != Kind::HostileSend {
            self.send.plan(&mut self.net, &self.scenario);
        }
    }

    fn run(&mut self) -> Checked {
        while !self.send.committed && !self.over {
            let Some(event) = self.net.next() else {
                return Err(Box::new(Failure {
                    invariant: Invariant::Ends,
                    detail: "nothing can happen any more".into(),
                }));
            };
            if self.net.printing {
                eprintln!("{:>12} {event:?}", self.net.now);
            }
            self.events += 1;
            let (now, deadline) = (self.net.now, self.deadline);
            ensure(self.events < EVENTS_MAX, Invariant::Ends, || format!("{EVENTS_MAX} events"))?;
            if let Some(time) = deadline {
                ensure(now <= time, Invariant::Ends, || format!("not done after {time} us of virtual time"))?;
            }
            self.handle(event)?;
            self.check_memory()?;
        }
        let (now, tail) = (self.net.now, bound::lasting(&self.scenario));
        ensure(self.scenario.kind != Kind::Lasting || now <= tail, Invariant::Tail, || {
            format!("done after {now} us, {tail} are enough")
        })
    }

    /// What the flows keep is within the sender's pool and the receiver's window, and has buffers.
    fn check_memory(&self) -> Checked {
        let World { send, recv, scenario, .. } = self;
        let kept = send.keeper.count();
        ensure(kept <= scenario.send_pool, Invariant::Kept, || {
            format!("the sender keeps {kept} chunks, its pool is {}", scenario.send_pool)
        })?;
        let (kept, most) = (recv.keeper.count(), recv.buffers().min(scenario.window.into()));
        ensure(kept <= most, Invariant::Memory, || format!("the receiver keeps {kept} chunks, {most} have buffers"))
    }

    fn handle(&mut self, event: Event) -> Checked {
        let World { net, send, recv, scenario, .. } = self;
        match event {
            Event::Sealed { process, session, seq } if process == send.process => {
                send.handle_sealed(net, session, seq)?;
            }
            Event::Room { conn } => {
                net.room(conn);
                send.pump(net)?;
            }
            Event::HedgeDue { conn, at } => {
                if net.conns[conn].hedge_due == Some(at) {
                    net.conns[conn].hedge_due = None;
                    send.pump(net)?;
                }
            }
            Event::Arrive { conn, at: Side::Recv } => {
                let message = net.read_forward(conn);
                if let Some(message) = message.filter(|_| scenario.kind != Kind::HostileRecv) {
                    self.handle_forward(conn, message)?;
                }
            }
            Event::Arrive { conn, at: Side::Send } => {
                if let Some(message) = net.read_backward(conn) {
                    self.handle_backward(conn, message)?;
                }
            }
            Event::Join { conn } => {
                let c = &net.conns[conn];
                if c.stalled.any() && !c.broken {
                    // TCP tries again.
                    net.after(SECOND, event);
                } else if !c.broken {
                    recv.handle_join(net, conn)?.map_err(accused)?;
                }
            }
            Event::Verified { process, session, conn, copy } if process == recv.process => {
                if recv.handle_verified(net, scenario, session, conn, copy)? && !net.conns[conn].broken {
                    net.marks.hit(Mark::StruckOut);
                    self.cut(conn, 0, 0);
                }
                self.compare()?;
            }
            Event::Wrote { process, session, seq } if process == recv.process => {
                recv.handle_wrote(net, scenario, session, seq)?;
            }
            Event::Synced { process, session, mark } if process == recv.process => {
                recv.handle_synced(net, scenario, session, mark)?;
                if recv.failed {
                    // The disk is replaced and everything starts over.
                    self.restart(false, false, false)?;
                }
                self.check_commit()?;
            }
            Event::Sealed { .. } | Event::Verified { .. } | Event::Wrote { .. } | Event::Synced { .. } => {}
            Event::AckDue { conn, at } => recv.handle_ack_due(net, conn, at),
            Event::Dial { cable, epoch } => net.dial(cable, epoch),
            Event::Down { conn, side } => self.handle_down(conn, side)?,
            Event::Silence { conn, epoch } => {
                // Whoever hears nothing ends it, and the other side hears of that.
                let (stalled, delay) = (net.conns[conn].stalled, net.cables[net.conns[conn].cable].spec.delay);
                let unnoticed =
                    planted::is(Bug::NoStallDeadline) || planted::is(Bug::HalfCutUnnoticed) && stalled != Ways::BOTH;
                if net.is_silent(conn, epoch) && !unnoticed {
                    net.marks.hit(Mark::Silent);
                    let told = |hears: bool| if hears { delay } else { 0 };
                    if stalled != Ways::BOTH {
                        net.marks.hit(Mark::HalfCut);
                    }
                    self.cut(conn, told(!stalled.backward), told(!stalled.forward));
                }
            }
            Event::Heal { cable, epoch } => self.heal(cable, epoch),
            Event::Fault { index } => {
                let fault = scenario.faults[index].1;
                self.fault(fault)?;
            }
            Event::Calm => self.calm(),
            Event::Mischief => hostile::mischief(self)?,
        }
        if self.events.is_multiple_of(16) {
            self.flow_invariants();
        }
        Ok(())
    }

    /// What the flow knows of itself. Not with planted bugs: those are for the checks of this simulation.
    pub fn flow_invariants(&self) {
        if cfg!(not(feature = "planted")) {
            self.send.flow.invariants();
            self.recv.flow.invariants();
        }
    }

    pub fn handle_forward(&mut self, conn: usize, message: Forward) -> Checked {
        let World { net, recv, scenario, .. } = self;
        let breaks = recv.breaks(&message);
        let handled = match message {
            Forward::Chunk { seq, content, intact } => {
                recv.handle_chunk(net, scenario, conn, Copied { index: 0, seq, content, intact })?
            }
            Forward::Finish { chunks } => recv.handle_finish(net, scenario, chunks)?,
        };
        ensure(handled.is_err() == breaks, Invariant::Named, || format!("{message:?} was answered with {handled:?}"))?;
        match handled {
            Ok(()) => {}
            Err(violation) if scenario.kind == Kind::HostileSend => {
                net.marks.hit(hostile::named(&violation));
                self.over = true;
            }
            Err(violation) => return Err(accused(violation)),
        }
        self.check_commit()
    }

    fn handle_backward(&mut self, conn: usize, message: Backward) -> Checked {
        let World { net, send, recv, scenario, .. } = self;
        match message {
            Backward::Joined => {
                if net.conns[conn].send_end == End::New {
                    send.handle_joined(net, conn)?;
                }
            }
            Backward::Ack(ack) => {
                if !matches!(scenario.kind, Kind::HostileSend | Kind::HostileRecv) {
                    send.handle_ack(net, scenario, &ack)?.map_err(accused)?;
                }
            }
            Backward::Commit { .. } if scenario.kind == Kind::HostileSend => self.over = true,
            Backward::Commit { digest } => {
                send.handle_commit(digest).map_err(accused)?;
                ensure(recv.committed, Invariant::Equal, || "nobody committed".into())?;
            }
        }
        Ok(())
    }

    fn handle_down(&mut self, conn: usize, side: Side) -> Checked {
        let World { net, send, recv, scenario, .. } = self;
        let c = &mut net.conns[conn];
        match side {
            Side::Send if c.send_end != End::Dead => {
                let was_up = std::mem::replace(&mut c.send_end, End::Dead) == End::Up;
                let cable = c.cable;
                if c.recv_end == End::Up {
                    net.marks.hit(Mark::HalfOpen);
                }
                if was_up {
                    send.handle_down(net, conn)?;
                }
                if net.cables[cable].conn == Some(conn) {
                    net.cables[cable].conn = None;
                    net.redial(cable);
                }
            }
            Side::Recv if c.recv_end != End::Dead => {
                let was_up = std::mem::replace(&mut c.recv_end, End::Dead) == End::Up;
                if was_up {
                    recv.handle_down(net, scenario, conn);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The connection breaks now; each side learns of it after its own time.
    fn cut(&mut self, conn: usize, sender_told: Micros, receiver_told: Micros) {
        let net = &mut self.net;
        if net.conns[conn].broken {
            return;
        }
        net.break_off(conn);
        net.after(sender_told, Event::Down { conn, side: Side::Send });
        net.after(receiver_told, Event::Down { conn, side: Side::Recv });
    }

    fn heal(&mut self, cable: usize, epoch: u32) {
        let net = &mut self.net;
        if net.cables[cable].stall_epoch != epoch || !net.cables[cable].stalled.any() {
            return;
        }
        net.cables[cable].stalled = Ways::NONE;
        for conn in 0..net.conns.len() {
            if net.conns[conn].cable == cable {
                net.heal(conn);
            }
        }
    }

    fn fault(&mut self, fault: Fault) -> Checked {
        if self.calm {
            return Ok(());
        }
        let net = &mut self.net;
        let now = net.now;
        match fault {
            Fault::Cut { cable, sender_told, receiver_told } => {
                if let Some(conn) = net.cables[cable].conn {
                    // What was being read when it broke may or may not have been whole.
                    net.conns[conn].torn = self.recv.last_read(conn).filter(|_| net.rng.percent(50));
                    self.cut(conn, sender_told, receiver_told);
                }
            }
            Fault::Stall { cable, ways, heal } => {
                let c = &mut net.cables[cable];
                c.stalled = c.stalled.and(ways);
                c.stall_epoch += 1;
                let epoch = c.stall_epoch;
                if let Some(conn) = c.conn {
                    net.stall(conn, ways);
                }
                if let Some(heal) = heal {
                    net.after(heal, Event::Heal { cable, epoch });
                }
            }
            Fault::StallConnection { cable, ways } => {
                if let Some(conn) = net.cables[cable].conn {
                    net.stall(conn, ways);
                }
            }
            Fault::Slow { cable, factor, lasts } => {
                let c = &mut net.cables[cable];
                (c.slow_until, c.slow_factor) = (lasts.map_or(Micros::MAX, |lasts| now + lasts), factor);
            }
            Fault::Corrupt { cable, lasts } => net.cables[cable].corrupt_until = now + lasts,
            Fault::Refuse { cable, lasts } => net.cables[cable].refuse_until = now + lasts,
            Fault::SinkStops { lasts } => self.recv.sink_stopped = now + lasts,
            Fault::SyncFails => self.recv.disk.fail_next_sync(),
            Fault::SourceChanges => {
                net.marks.hit(Mark::SourceChanged);
                self.send.source += 1;
            }
            Fault::Restart { sender_crashed, receiver_crashed, power_lost } => {
                self.restart(sender_crashed, receiver_crashed, power_lost)?;
            }
        }
        Ok(())
    }

    /// A new session begins. The work of a process that lives on is still under way, in the name of the old session.
    fn restart(&mut self, sender_crashed: bool, receiver_crashed: bool, power_lost: bool) -> Checked {
        if power_lost {
            let claimed = self.recv.flow.ack().durable;
            if self.recv.disk.lose_power(&mut self.net.rng) {
                self.net.marks.hit(Mark::PowerLost);
            }
            let left = self.recv.disk.durable();
            ensure(claimed <= left, Invariant::Durable, || format!("of {claimed} durable chunks {left} are left"))?;
        }
        for conn in 0..self.net.conns.len() {
            self.net.break_off(conn);
            self.net.conns[conn].send_end = End::Dead;
            self.net.conns[conn].recv_end = End::Dead;
            self.net.conns[conn].waiting = None;
        }
        let session = self.send.session + 1;
        let process = self.send.process + u32::from(sender_crashed);
        self.send = SendHost::new(self.seed, session, process, self.send.source, &self.scenario);
        let process = self.recv.process + u32::from(receiver_crashed);
        let sink_stopped = self.recv.sink_stopped;
        self.recv = RecvHost::new(session, process, &self.scenario);
        self.recv.sink_stopped = sink_stopped;
        self.compared = 0;
        for cable in 0..self.net.cables.len() {
            self.net.cables[cable].conn = None;
            let pause = self.net.some(100_000);
            self.net.dial_afresh(cable, pause);
        }
        if self.scenario.kind != Kind::HostileSend {
            self.send.plan(&mut self.net, &self.scenario);
        }
        Ok(())
    }

    /// Faults stop. Cables that fell silent or slowed down for ever stay so; all others work from now on.
    fn calm(&mut self) {
        self.calm = true;
        let now = self.net.now;
        for cable in 0..self.net.cables.len() {
            if !self.scenario.falls_silent(cable) {
                self.heal(cable, self.net.cables[cable].stall_epoch);
            }
            let slow = self.scenario.slows_down(cable) > 1;
            let c = &mut self.net.cables[cable];
            (c.corrupt_until, c.refuse_until) = (now, now);
            if !slow {
                c.slow_until = now;
            }
        }
        let sink = self.recv.sink_stopped.saturating_sub(now);
        // A sync that is to fail yet costs a session.
        let sessions = 1 + u64::from(self.recv.disk.will_fail());
        let bound = bound::aftermath(&self.scenario) + sink + sessions * bound::session(&self.scenario);
        self.deadline = Some(now + bound);
    }

    /// What was delivered is what was sealed, in order.
    fn compare(&mut self) -> Checked {
        if self.scenario.kind == Kind::HostileSend {
            return Ok(());
        }
        for at in self.compared..self.recv.applied.len() {
            let (applied, sealed) = (self.recv.applied[at], self.send.contents.get(at).copied().flatten());
            ensure(sealed == Some(applied), Invariant::Applied, || format!("chunk {at} is not what was sealed"))?;
        }
        self.compared = self.recv.applied.len();
        Ok(())
    }

    fn check_commit(&self) -> Checked {
        if self.recv.committed && self.scenario.kind != Kind::HostileSend { self.check_whole() } else { Ok(()) }
    }

    /// Success means that all is there, and that no power loss can take it.
    fn check_whole(&self) -> Checked {
        let (chunks, durable) = (self.send.contents.len(), self.recv.disk.durable());
        let whole = self.recv.applied.len() == chunks && durable == chunks as u64;
        ensure(whole, Invariant::Equal, || {
            format!("of {chunks} chunks {} were applied and {durable} are durable", self.recv.applied.len())
        })
    }
}
