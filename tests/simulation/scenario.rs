//! What a seed decides before a run begins: sizes, speeds and the plan of faults.

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
    /// Honest ends, and one cable that falls silent for ever.
    QuietStall,
    /// A sender that sends any frame at any time.
    HostileSend,
    /// A receiver that sends any ack at any time.
    HostileRecv,
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
    /// Nothing comes through, and nobody is told; for ever if there is no time to heal.
    Stall { cable: usize, heal: Option<Micros> },
    /// The same for the connection that is up; a new one would work.
    StallConnection { cable: usize },
    /// Ten times slower.
    Slow { cable: usize, lasts: Micros },
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
            0..=9 => Kind::Faults,
            10..=12 => Kind::QuietStall,
            13..=14 => Kind::HostileSend,
            _ => Kind::HostileRecv,
        };
        let links = if kind == Kind::QuietStall { rng.range(2, 4) } else { rng.range(1, 4) };
        let chunks = match rng.below(10) {
            0 => rng.below(4),
            1..=6 => rng.range(4, 32),
            // So short that the time of death is more than the work.
            _ if kind == Kind::QuietStall => rng.range(4, 32),
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
        scenario.plan_faults(rng);
        scenario
    }

    /// The time that the work takes at most on one cable, one chunk after the other.
    pub fn work(&self, cable: usize) -> Micros {
        let cable = &self.cables[cable];
        let chunk = cable.serialise
            + 2 * cable.delay
            + self.seal
            + self.verify
            + 2 * self.write
            + 2 * self.ack_gap.max(self.ack_repeat);
        (self.chunks + 2) * chunk + 2 * self.sync * (self.chunks / self.sync_group + 2)
    }

    fn plan_faults(&mut self, rng: &mut Rng) {
        let cables = self.cables.len();
        let fast = self.cables.iter().map(|c| c.serialise).min().expect("one cable at least");
        let usual = 10_000 + self.chunks * (fast / cables as u64 + self.write).max(self.seal);
        if self.kind == Kind::QuietStall {
            // With less, what the silent link takes is found late one after the other, not together.
            self.send_pool = self.send_pool.max(10);
            let cable = rng.below(cables as u64) as usize;
            self.faults.push((rng.below(usual), Fault::Stall { cable, heal: None }));
            return;
        }
        // This one may suffer, but never for ever.
        let survivor = rng.below(cables as u64) as usize;
        let mut stalled_for_ever = false;
        for _ in 0..rng.below(13) {
            let at = rng.below(usual * 3 / 2);
            let cable = rng.below(cables as u64) as usize;
            let long = |rng: &mut Rng| if rng.percent(70) { rng.below(usual) } else { rng.below(12 * SECOND) };
            let told = |rng: &mut Rng| if rng.percent(50) { 0 } else { rng.below(10 * SECOND) };
            let fault = match rng.below(24) {
                0..=5 => Fault::Cut { cable, sender_told: told(rng), receiver_told: told(rng) },
                6..=7 if cable != survivor => {
                    stalled_for_ever = true;
                    Fault::Stall { cable, heal: None }
                }
                6..=8 => Fault::Stall { cable, heal: Some(long(rng)) },
                9..=10 => Fault::StallConnection { cable },
                11..=12 => Fault::Slow { cable, lasts: long(rng) },
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
        let calm = if rng.percent(60) || stalled_for_ever { usual * 2 } else { 15 * SECOND };
        self.calm_at = usual + rng.below(calm);
    }
}
