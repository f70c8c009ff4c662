//! What a seed decides before a run begins: sizes, speeds and the plan of faults.

use blast::limits::WINDOW_MAX;
use blast::options::Schedule;

use super::rng::Rng;

/// Microseconds of virtual time.
pub type Micros = u64;

pub const SECOND: Micros = 1_000_000;

/// Everything a seed decides but the small chances of a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub kind: Kind,
    pub schedule: Schedule,
    pub chunks: u64,
    /// Chunks the sender holds at most.
    pub send_pool: u64,
    /// Chunks the receiver holds at most.
    pub window: u32,
    /// The receiver begins with so many of them.
    pub window_start: u32,
    pub cables: Vec<CableSpec>,
    /// The most that sealing, verifying and writing one chunk, and a sync, take.
    pub seal: Micros,
    pub verify: Micros,
    pub write: Micros,
    pub sync: Micros,
    /// Writes after which a sync begins.
    pub sync_group: u64,
    /// How long a link waits before it sends an ack, so that one ack tells of several changes.
    pub ack_gap: Micros,
    /// How long the links wait that did not bring the chunk of which there is something to tell.
    pub ack_repeat: Micros,
    pub faults: Vec<(Micros, Fault)>,
    /// When faults stop.
    pub calm_at: Micros,
}

/// Who is in the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Honest ends and any faults.
    Faults,
    /// Honest ends, one good cable at least, and others that harm or change for ever: they fall silent (both ways or
    /// one), slow down, leave, join late.
    Lasting,
    /// A sender that sends any frame at any time.
    HostileSend,
    /// A receiver that sends any frame at any time.
    HostileRecv,
}

/// Directions of a cable: from sender to receiver, and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ways {
    pub forward: bool,
    pub backward: bool,
}

impl Ways {
    pub const NONE: Ways = Ways { forward: false, backward: false };
    pub const BOTH: Ways = Ways { forward: true, backward: true };
    pub const FORWARD: Ways = Ways { forward: true, backward: false };
    pub const BACKWARD: Ways = Ways { forward: false, backward: true };

    pub fn any(self) -> bool {
        self.forward || self.backward
    }

    pub fn and(self, other: Ways) -> Ways {
        Ways { forward: self.forward || other.forward, backward: self.backward || other.backward }
    }
}

#[derive(Clone, Debug)]
pub struct CableSpec {
    /// For one chunk.
    pub serialise: Micros,
    /// One way.
    pub delay: Micros,
    /// Chunks that a socket takes before it is full.
    pub socket: usize,
    /// When it is plugged in.
    pub up_at: Micros,
}

/// What goes wrong with a cable, a process or a disk.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The connection breaks; each side learns of it after its own time.
    Cut { cable: usize, sender_told: Micros, receiver_told: Micros },
    /// Nothing comes through these ways, and nobody is told; for ever if there is no time to heal.
    Stall { cable: usize, ways: Ways, heal: Option<Micros> },
    /// The same for the connection that is up; a new one would work.
    StallConnection { cable: usize, ways: Ways },
    /// So many times slower; for ever if it does not end.
    Slow { cable: usize, factor: u64, lasts: Option<Micros> },
    /// Every other chunk arrives changed.
    Corrupt { cable: usize, lasts: Micros },
    /// New connections are refused.
    Refuse { cable: usize, lasts: Micros },
    /// The sink writes nothing.
    SinkStops { lasts: Micros },
    /// The next sync fails, and those after it lie.
    SyncFails,
    /// The source's files change.
    SourceChanges,
    /// A new session begins; the sides that did not crash still have work of the old one under way.
    Restart { sender_crashed: bool, receiver_crashed: bool, power_lost: bool },
}

impl Scenario {
    pub fn new(rng: &mut Rng) -> Scenario {
        let kind = match rng.below(16) {
            0..=8 => Kind::Faults,
            9..=12 => Kind::Lasting,
            13..=14 => Kind::HostileSend,
            _ => Kind::HostileRecv,
        };
        let links = if kind == Kind::Lasting { rng.range(2, 4) } else { rng.range(1, 4) };
        let chunks = match rng.below(10) {
            0 => rng.below(4),
            1..=6 => rng.range(4, 32),
            _ => rng.range(32, 150),
        };
        // Half of the cables of a run are equal, because that is the usual case.
        let (serialise, delay) = (rng.range(200, 8000), rng.range(20, 3000));
        let equal = rng.percent(50);
        let cables = (0..links)
            .map(|n| CableSpec {
                serialise: if equal { serialise } else { rng.range(200, 20_000) },
                delay: if equal { delay } else { rng.range(20, 20_000) },
                socket: rng.range(1, 3) as usize,
                up_at: if n > 0 && rng.percent(20) { rng.below(200_000) } else { 0 },
            })
            .collect();
        let window = match rng.below(4) {
            0 => rng.range(1, 3),
            1 => rng.range(2, 8),
            2 => rng.range(8, 20),
            _ => rng.range(16, 140),
        };
        let send_pool = if rng.percent(70) { rng.range(1, 30) } else { rng.range(20, 150) };
        let mut scenario = Scenario {
            kind,
            schedule: if kind == Kind::Faults && rng.percent(8) { Schedule::RoundRobin } else { Schedule::Pull },
            chunks,
            send_pool,
            window: window as u32,
            window_start: if rng.percent(60) { window } else { rng.range(1, window) } as u32,
            cables,
            seal: rng.range(1, 3000),
            verify: rng.range(1, 6000),
            write: rng.range(1, 4000),
            sync: rng.range(100, 30_000),
            sync_group: rng.range(1, 12),
            ack_gap: rng.below(3000),
            ack_repeat: if rng.percent(50) { rng.below(3000) } else { rng.range(3000, 60_000) },
            faults: Vec::new(),
            calm_at: 0,
        };
        if kind == Kind::Lasting {
            scenario.plan_lasting(rng);
        } else {
            scenario.plan_faults(rng);
        }
        scenario
    }

    /// Whether a cable falls silent and stays so.
    pub fn falls_silent(&self, cable: usize) -> bool {
        self.faults.iter().any(|f| matches!(f.1, Fault::Stall { cable: c, heal: None, .. } if c == cable))
    }

    /// By how much a cable slows down for ever.
    pub fn slows_down(&self, cable: usize) -> u64 {
        let factor = |f: &(Micros, Fault)| match f.1 {
            Fault::Slow { cable: c, factor, lasts: None } if c == cable => Some(factor),
            _ => None,
        };
        self.faults.iter().filter_map(factor).max().unwrap_or(1)
    }

    /// About how long it takes if nothing goes wrong.
    fn usual(&self) -> Micros {
        let fast = self.cables.iter().map(|c| c.serialise).min().expect("one cable at least");
        10_000 + self.chunks * (fast / self.cables.len() as u64 + self.write).max(self.seal)
    }

    /// One cable is there from the start and stays as it is; each other harms, or comes late.
    fn plan_lasting(&mut self, rng: &mut Rng) {
        let good = rng.below(self.cables.len() as u64) as usize;
        self.cables[good].up_at = 0;
        if rng.percent(40) {
            let near = rng.range(20, 300);
            self.cables[good].delay = near * if rng.percent(50) { 100 } else { 1 };
            let other = (good + 1) % self.cables.len();
            self.cables[other].delay = if self.cables[good].delay == near { near * 100 } else { near };
        }
        // What limits is the links: with less, what a silent link holds is found late one after the other, not
        // together.
        let in_flight: u64 =
            self.cables.iter().map(|c| c.socket as u64 + (2 * c.delay + self.verify) / c.serialise).sum();
        let enough = (in_flight + 10).min(WINDOW_MAX.into());
        self.send_pool = self.send_pool.max(enough);
        self.window_start = self.window_start.max(enough as u32);
        self.window = self.window.max(self.window_start);
        self.write = self.write.min(self.cables[good].serialise);
        let usual = self.usual();
        for cable in (0..self.cables.len()).filter(|c| *c != good) {
            let at = rng.below(usual);
            let ways = rng.pick(&[Ways::BOTH, Ways::BOTH, Ways::FORWARD, Ways::BACKWARD]);
            let lasts = if rng.percent(70) { rng.below(usual) } else { rng.below(12 * SECOND) };
            match rng.below(16) {
                0..=4 => self.faults.push((at, Fault::Stall { cable, ways, heal: None })),
                5..=6 => self.faults.push((at, Fault::Stall { cable, ways, heal: Some(lasts) })),
                7..=9 => self.faults.push((at, Fault::Slow { cable, factor: 100, lasts: None })),
                10 => self.faults.push((at, Fault::Slow { cable, factor: 100, lasts: Some(lasts) })),
                11..=12 => {
                    self.faults.push((at, Fault::Refuse { cable, lasts }));
                    self.faults.push((at, Fault::Cut { cable, sender_told: 0, receiver_told: 0 }));
                }
                // As a second interface, or more streams on the first.
                _ => {
                    self.cables[cable].up_at = at;
                    self.cables[cable].serialise = (self.cables[good].serialise / rng.range(1, 20)).max(50);
                }
            }
        }
    }

    fn plan_faults(&mut self, rng: &mut Rng) {
        let cables = self.cables.len();
        let usual = self.usual();
        // This one may suffer, but never for ever.
        let survivor = rng.below(cables as u64) as usize;
        let mut for_ever = false;
        let at_once = self.send_pool.min(self.window_start.into());
        for _ in 0..rng.below(13) {
            let at = rng.below(usual * 3 / 2);
            let cable = rng.below(cables as u64) as usize;
            let long = |rng: &mut Rng| if rng.percent(70) { rng.below(usual) } else { rng.below(12 * SECOND) };
            let ways = |rng: &mut Rng| rng.pick(&[Ways::BOTH, Ways::BOTH, Ways::FORWARD, Ways::BACKWARD]);
            let told = |rng: &mut Rng| if rng.percent(50) { 0 } else { rng.below(10 * SECOND) };
            let fault = match rng.below(24) {
                0..=5 => Fault::Cut { cable, sender_told: told(rng), receiver_told: told(rng) },
                6..=7 if cable != survivor => {
                    for_ever = true;
                    Fault::Stall { cable, ways: ways(rng), heal: None }
                }
                6..=8 => Fault::Stall { cable, ways: ways(rng), heal: Some(long(rng)) },
                9..=10 => Fault::StallConnection { cable, ways: ways(rng) },
                // Strict rotation waits for the slowest, whatever that is, and with few chunks at a time all do.
                11 if cable != survivor && self.schedule == Schedule::Pull && at_once >= 8 => {
                    for_ever = true;
                    Fault::Slow { cable, factor: 100, lasts: None }
                }
                11..=12 => Fault::Slow { cable, factor: rng.pick(&[10, 100]), lasts: Some(long(rng)) },
                13..=15 => Fault::Corrupt { cable, lasts: long(rng) },
                16 => Fault::Refuse { cable, lasts: long(rng) },
                17 => Fault::SinkStops { lasts: rng.below(3 * SECOND) },
                18 => Fault::SyncFails,
                19 => Fault::SourceChanges,
                _ => {
                    let receiver_crashed = rng.percent(40);
                    Fault::Restart {
                        sender_crashed: rng.percent(40),
                        receiver_crashed,
                        power_lost: receiver_crashed && rng.percent(60),
                    }
                }
            };
            self.faults.push((at, fault));
        }
        let calm = if rng.percent(60) || for_ever { usual * 2 } else { 15 * SECOND };
        self.calm_at = usual + rng.below(calm);
    }
}
