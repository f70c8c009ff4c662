//! What limited a run: a decision on the stages' times alone.
//!
//! In a chain of stages with bounded queues the one that limits is at work all the time, those before it wait to hand
//! on, those after it wait for something to do. So the stage that was used most is the answer, with these exceptions:
//!
//! - A *sync* at the end that takes as long as all the rest is one.
//! - Where the *CPU* of a machine is full and we are who fills it, every stage there seems to be at work all the time,
//!   and links too, since a full socket is emptied late. Only what is waited for outside (producer, consumer) is more
//!   certain than that, and links, if what fills the CPU is compression, which takes what the links leave.
//! - All links are served by one thread on each end; where that has no time left, they seem to be used.
//! - A full window with nobody at work is the *round trip*.

use std::time::Duration;

use super::LinkReport;
use crate::stats::{Stage, StageTimes};

/// One end of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The one that has it.
    Sender,
    /// The one that gets it.
    Receiver,
}

/// What limited a run.
#[derive(Clone, PartialEq, Debug)]
pub enum Limit {
    /// The links of these names.
    Links(Vec<String>),
    /// The user's limit on the rate.
    Bwlimit,
    /// What writes into the sender's standard input.
    Producer,
    /// What reads from the receiver's standard output.
    Consumer,
    /// The sender's walk of the tree.
    Walk,
    /// The sender's reading of files.
    Reads,
    /// The receiver's making of directories and handing out of work, which one thread does.
    Unpack,
    /// The receiver's writing.
    Writes,
    /// The receiver's sync at the end.
    Sync,
    /// An end's CPU, most of it used by that stage.
    Cpu(End, Stage),
    /// An end's CPU, most of it used by other programs.
    Others(End),
    /// The time that an acknowledgement takes, with a whole window under way.
    RoundTrip,
    /// Told by the receiver, which does not know more: it waited for the sender.
    Sender,
    /// Nothing was used nearly all the time; this was used most.
    NoneAlone(Option<Box<Limit>>),
    /// It was over before anything could be told.
    TooShort,
}

/// The limit, and the part of the time that it was used, 0 to 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Limited {
    /// What.
    pub by: Limit,
    /// How much.
    pub share: f64,
}

/// Used so much, it is the limit: it can have been little faster at best.
const SATURATED: f64 = 0.85;

/// A sync that takes so much of the time is the limit.
const SYNC_MUCH: f64 = 0.5;

/// A machine's CPUs are full; what is left over is between two slices of time.
const CPU_FULL: f64 = 0.92;

/// We are who fills them: of two ends on one machine, each has less than half.
const CPU_OURS: f64 = 0.33;

/// Nothing can be told of runs shorter than the first; that nothing stands out, only of those longer than the second.
const SHORT: Duration = Duration::from_millis(100);
/// See [`SHORT`].
const LONG: Duration = Duration::from_millis(500);

/// Decide. The receiver has no times of the sender; `links` are those of whoever asks.
pub fn limit(elapsed: Duration, sender: &[StageTimes], receiver: &[StageTimes], links: &[LinkReport]) -> Limited {
    if elapsed < SHORT {
        return Limited { by: Limit::TooShort, share: 0.0 };
    }
    let (sender, receiver) = (Times::new(sender, elapsed, receiver), Times::new(receiver, elapsed, receiver));
    let sync = receiver.of(Stage::Sync).map_or(0.0, |t| t.busy.as_secs_f64() / elapsed.as_secs_f64());
    if sync >= SYNC_MUCH {
        return Limited { by: Limit::Sync, share: sync.min(1.0) };
    }
    let outside = [
        (Limit::Producer, sender.one(Stage::Input, |t| t.busy + t.wait_in)),
        (Limit::Consumer, receiver.one(Stage::Output, |t| t.busy + t.wait_out)),
    ];
    let links_share = links_used(links);
    let links_limit = if are_held_back(links) { Limit::Bwlimit } else { Limit::Links(names(links)) };
    let used_links = (links_limit, links_share);
    let full = [(End::Sender, &sender), (End::Receiver, &receiver)]
        .into_iter()
        .filter_map(|(end, times)| times.cpu_full().map(|share| (end, times, share)))
        .max_by(|a, b| a.1.process().total_cmp(&b.1.process()));
    let by_others = [(End::Sender, sender.machine()), (End::Receiver, receiver.machine())]
        .into_iter()
        .filter(|(_, machine)| *machine >= CPU_FULL)
        .max_by(|a, b| a.1.total_cmp(&b.1));
    let mut inside = sender.of_sender();
    inside.extend(receiver.of_receiver());
    let network_threads = sender.one(Stage::Send, |t| t.busy).max(receiver.one(Stage::Receive, |t| t.busy));
    if network_threads < SATURATED {
        inside.push(used_links.clone());
    }
    let most = |of: &[(Limit, f64)]| of.iter().max_by(|a, b| a.1.total_cmp(&b.1)).cloned();
    let saturated = |of: &[(Limit, f64)]| most(of).filter(|(_, share)| *share >= SATURATED);
    let found = saturated(&outside).or_else(|| match full {
        Some((_, times, _)) if links_share >= SATURATED && times.cpu_stage() == Some(Stage::Compress) => {
            Some(used_links.clone())
        }
        Some((end, times, share)) => times.cpu_stage().map(|stage| (Limit::Cpu(end, stage), share)),
        None => saturated(&inside),
    });
    let (by, share) = found.unwrap_or_else(|| {
        let without = links_without(links);
        let blocked = sender.one(Stage::Source, |t| t.wait_out).max(sender.one(Stage::Input, |t| t.wait_out));
        if without >= 0.5 && blocked >= 0.5 {
            (Limit::RoundTrip, without)
        } else if sender.stages.is_empty() && without >= 0.5 {
            (Limit::Sender, without)
        } else if let Some((end, machine)) = by_others {
            (Limit::Others(end), machine)
        } else if elapsed < LONG {
            (Limit::TooShort, 0.0)
        } else {
            let (most, share) = most(&[inside.as_slice(), &outside].concat()).unzip();
            let most = most.filter(|_| share > Some(0.0));
            (Limit::NoneAlone(most.map(Box::new)), share.unwrap_or(0.0))
        }
    });
    Limited { by, share: share.min(1.0) }
}

/// The stages of one end.
struct Times<'a> {
    stages: &'a [StageTimes],
    /// Seconds in which chunks moved: all but the sync.
    moving: f64,
}

impl<'a> Times<'a> {
    fn new(stages: &'a [StageTimes], elapsed: Duration, receiver: &[StageTimes]) -> Times<'a> {
        let sync = receiver.iter().find(|t| t.stage == Stage::Sync).map_or(Duration::ZERO, |t| t.busy);
        Times { stages, moving: elapsed.saturating_sub(sync).max(elapsed / 10).as_secs_f64() }
    }

    fn of(&self, stage: Stage) -> Option<&StageTimes> {
        self.stages.iter().find(|t| t.stage == stage)
    }

    fn busy(&self, stage: Stage) -> f64 {
        self.of(stage).map_or(0.0, |t| t.busy.as_secs_f64())
    }

    /// The part of the time that a stage with one thread, or a stage's busiest thread, was used.
    fn one(&self, stage: Stage, used: impl Fn(&StageTimes) -> Duration) -> f64 {
        self.of(stage).map_or(0.0, |t| used(t).as_secs_f64() / self.moving)
    }

    /// The same of threads that work at all these stages, whichever has something to do.
    fn workers(&self, stages: &[Stage]) -> f64 {
        let threads = stages.iter().filter_map(|s| self.of(*s)).map(|t| t.threads).max().unwrap_or(0);
        let busy: f64 = stages.iter().map(|s| self.busy(*s)).sum();
        if threads == 0 { 0.0 } else { busy / (self.moving * f64::from(threads)) }
    }

    fn busiest(&self, stages: &[Stage]) -> Option<Stage> {
        let most = stages.iter().copied().max_by(|a, b| self.busy(*a).total_cmp(&self.busy(*b)))?;
        (self.busy(most) > 0.0).then_some(most)
    }

    fn of_sender(&self) -> Vec<(Limit, f64)> {
        let workers = [Stage::Fill, Stage::Hash, Stage::Compress];
        let by = match self.busiest(&workers) {
            Some(Stage::Fill) | None => Limit::Reads,
            Some(stage) => Limit::Cpu(End::Sender, stage),
        };
        vec![
            (Limit::Walk, self.one(Stage::Source, |t| t.busy)),
            (by, self.workers(&workers)),
            (Limit::Cpu(End::Sender, Stage::Send), self.one(Stage::Send, |t| t.busy)),
        ]
    }

    fn of_receiver(&self) -> Vec<(Limit, f64)> {
        let workers = [Stage::Verify, Stage::Decompress];
        let stage = self.busiest(&workers).unwrap_or(Stage::Verify);
        vec![
            (Limit::Cpu(End::Receiver, Stage::Receive), self.one(Stage::Receive, |t| t.busy)),
            (Limit::Cpu(End::Receiver, stage), self.workers(&workers)),
            (Limit::Unpack, self.one(Stage::Unpack, |t| t.busy)),
            // All slices of a file go to one writer, so the others can be idle.
            (Limit::Writes, self.one(Stage::Write, |t| t.busiest)),
        ]
    }

    /// The part of all CPUs that this process used.
    fn process(&self) -> f64 {
        self.workers(&[Stage::Process])
    }

    /// The part of all CPUs that anybody used.
    fn machine(&self) -> f64 {
        self.workers(&[Stage::Machine])
    }

    /// How full the CPUs are, if they are and it is by us.
    fn cpu_full(&self) -> Option<f64> {
        let (process, machine) = (self.process(), self.machine());
        let full = process >= CPU_FULL || (machine >= CPU_FULL && process >= CPU_OURS);
        full.then_some(process.max(machine))
    }

    /// What most of the CPU went to.
    fn cpu_stage(&self) -> Option<Stage> {
        use Stage::*;
        self.busiest(&[Source, Fill, Hash, Compress, Send, Receive, Decompress, Verify, Unpack, Write])
    }
}

/// The part of their time that links had a chunk in hand, each counted by what it carried.
fn links_used(links: &[LinkReport]) -> f64 {
    let sum: f64 = links.iter().map(|l| l.wire_bytes as f64).sum();
    let used = links.iter().map(|l| l.used().unwrap_or(0.0) * l.wire_bytes as f64).sum::<f64>();
    if sum > 0.0 { used / sum } else { 0.0 }
}

/// Whether links that had a chunk in hand waited for leave rather than for the network.
fn are_held_back(links: &[LinkReport]) -> bool {
    let part = |l: &LinkReport| l.limited.as_secs_f64() / (l.busy + l.network).as_secs_f64().max(f64::MIN_POSITIVE);
    let sum: f64 = links.iter().map(|l| l.wire_bytes as f64).sum();
    links.iter().map(|l| part(l) * l.wire_bytes as f64).sum::<f64>() > sum / 2.0
}

/// The part of their time that links were without a chunk.
fn links_without(links: &[LinkReport]) -> f64 {
    if links.iter().all(|l| l.used().is_none()) { 0.0 } else { 1.0 - links_used(links) }
}

/// The links that were used all the time, or all that carried anything.
fn names(links: &[LinkReport]) -> Vec<String> {
    let carried = links.iter().filter(|l| l.wire_bytes > 0);
    let full = carried.clone().filter(|l| l.used().is_some_and(|used| used >= SATURATED));
    let names: Vec<String> = full.map(|l| l.name.clone()).collect();
    if names.is_empty() { carried.map(|l| l.name.clone()).collect() } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    fn secs(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    fn stage(stage: Stage, threads: u16, busy: f64, wait_in: f64, wait_out: f64) -> StageTimes {
        let busiest = secs(busy / f64::from(threads));
        StageTimes { stage, threads, busy: secs(busy), wait_in: secs(wait_in), wait_out: secs(wait_out), busiest }
    }

    fn link(name: &str, gigabytes: u64, [busy, network, idle, held]: [f64; 4]) -> LinkReport {
        let (busy, network, idle, held) = (secs(busy), secs(network), secs(idle), secs(held));
        LinkReport {
            name: name.into(),
            wire_bytes: gigabytes << 30,
            busy,
            network,
            idle,
            held,
            ..LinkReport::default()
        }
    }

    /// Ten seconds on eight cores at each end in which nothing has much to do, and a link that is idle.
    struct Run {
        elapsed: Duration,
        sender: Vec<StageTimes>,
        receiver: Vec<StageTimes>,
        links: Vec<LinkReport>,
    }

    impl Run {
        fn calm() -> Run {
            use Stage::*;
            Run {
                elapsed: TEN,
                sender: vec![
                    stage(Source, 1, 0.2, 0.0, 3.0),
                    stage(Fill, 8, 8.0, 60.0, 0.0),
                    stage(Hash, 8, 8.0, 0.0, 0.1),
                    stage(Send, 1, 2.0, 6.0, 2.0),
                    stage(Process, 8, 18.0, 0.0, 0.0),
                    stage(Machine, 8, 20.0, 0.0, 0.0),
                ],
                receiver: vec![
                    stage(Receive, 1, 3.0, 7.0, 0.0),
                    stage(Verify, 8, 8.0, 70.0, 1.0),
                    stage(Unpack, 1, 0.5, 9.0, 0.0),
                    stage(Write, 8, 16.0, 60.0, 0.0),
                    stage(Sync, 1, 0.1, 0.0, 0.0),
                    stage(Process, 8, 28.0, 0.0, 0.0),
                    stage(Machine, 8, 30.0, 0.0, 0.0),
                ],
                links: vec![link("eth1", 4, [2.0, 3.0, 5.0, 0.0])],
            }
        }

        fn set(mut self, times: StageTimes) -> Run {
            use Stage::*;
            let end = match times.stage {
                Receive | Decompress | Verify | Unpack | Write | Output | Sync => &mut self.receiver,
                _ => &mut self.sender,
            };
            end.retain(|t| t.stage != times.stage);
            end.push(times);
            self
        }

        fn links(mut self, links: &[LinkReport]) -> Run {
            self.links = links.to_vec();
            self
        }

        fn on_sender(&self) -> Limited {
            limit(self.elapsed, &self.sender, &self.receiver, &self.links)
        }

        fn on_receiver(&self) -> Limited {
            limit(self.elapsed, &[], &self.receiver, &self.links)
        }

        /// The limit and its share in per cent, as the sender tells it.
        fn told(&self) -> (Limit, u32) {
            let Limited { by, share } = self.on_sender();
            (by, (share * 100.0).round() as u32)
        }
    }

    #[test]
    fn links_that_always_have_a_chunk_in_hand_are_named() {
        let full = |name, gb| link(name, gb, [1.0, 8.9, 0.1, 0.0]);
        let run = Run::calm().links(&[full("eth1", 1), full("eth2", 1)]);
        assert_eq!(run.told(), (Limit::Links(vec!["eth1".into(), "eth2".into()]), 99));
        // on the receiver the same link is always in the middle of a chunk
        assert_eq!(run.on_receiver().by, Limit::Links(vec!["eth1".into(), "eth2".into()]));
        // one that carried next to nothing says nothing
        let run = Run::calm().links(&[full("eth1", 9), link("eth2", 0, [0.0, 0.0, 9.0, 0.0])]);
        assert_eq!(run.told(), (Limit::Links(vec!["eth1".into()]), 99));
    }

    #[test]
    fn links_that_wait_for_leave_are_limited_by_the_user() {
        let limited = |name, gb, secs_limited| {
            let full = link(name, gb, [1.0, 8.9, 0.1, 0.0]);
            LinkReport { limited: secs(secs_limited), ..full }
        };
        let run = Run::calm().links(&[limited("eth1", 1, 8.5), limited("eth2", 1, 8.0)]);
        assert_eq!(run.told(), (Limit::Bwlimit, 99));
        // a slow link fills up, and the fast one has all that the limit leaves
        let run = Run::calm().links(&[limited("eth1", 9, 8.0), limited("eth2", 1, 0.5)]);
        assert_eq!(run.told(), (Limit::Bwlimit, 99));
        // most goes over a link without a limit, which is full
        let run = Run::calm().links(&[limited("eth1", 9, 0.0), limited("eth2", 1, 8.5)]);
        assert_eq!(run.told(), (Limit::Links(vec!["eth1".into(), "eth2".into()]), 99));
    }

    #[test]
    fn a_slow_sink_is_the_limit_while_links_wait_for_credit() {
        let held = [link("eth1", 4, [1.0, 1.0, 0.0, 8.0])];
        let run = Run::calm().links(&held).set(stage(Stage::Source, 1, 0.1, 0.0, 9.8));
        let disk = run.set(stage(Stage::Write, 8, 78.0, 1.0, 0.0));
        assert_eq!(disk.told(), (Limit::Writes, 98));
        assert_eq!(disk.on_receiver().by, Limit::Writes);
        // one large file has one writer
        let mut one = stage(Stage::Write, 8, 9.7, 70.0, 0.0);
        one.busiest = secs(9.6);
        assert_eq!(Run::calm().links(&held).set(one).told(), (Limit::Writes, 97));
        let mut run = Run::calm().links(&held);
        run.receiver.retain(|t| !matches!(t.stage, Stage::Unpack | Stage::Write));
        let pipe = run.set(stage(Stage::Output, 1, 0.4, 0.1, 9.4));
        assert_eq!(pipe.told(), (Limit::Consumer, 99));
        assert_eq!(pipe.on_receiver().by, Limit::Consumer);
    }

    #[test]
    fn a_slow_source_is_the_limit_while_links_wait_for_chunks() {
        let idle = [link("eth1", 1, [0.5, 0.5, 9.0, 0.0])];
        let disk = Run::calm().links(&idle).set(stage(Stage::Fill, 8, 70.0, 1.0, 0.0));
        assert_eq!(disk.told(), (Limit::Reads, 98));
        assert_eq!(disk.on_receiver(), Limited { by: Limit::Sender, share: 0.9 });
        let walk = Run::calm().links(&idle).set(stage(Stage::Source, 1, 9.3, 0.0, 0.1));
        assert_eq!(walk.told(), (Limit::Walk, 94));
        let mut run = Run::calm().links(&idle);
        run.sender.retain(|t| t.stage != Stage::Source);
        assert_eq!(run.set(stage(Stage::Input, 1, 0.0, 9.7, 0.1)).told(), (Limit::Producer, 98));
    }

    #[test]
    fn workers_that_do_not_keep_up_are_named_by_what_they_do_most() {
        let idle = [link("eth1", 1, [0.5, 0.5, 9.0, 0.0])];
        let one_core = Run::calm()
            .links(&idle)
            .set(stage(Stage::Fill, 1, 3.0, 0.1, 0.0))
            .set(stage(Stage::Hash, 1, 6.5, 0.0, 0.0))
            .set(stage(Stage::Process, 1, 9.8, 0.0, 0.0))
            .set(stage(Stage::Machine, 1, 9.9, 0.0, 0.0));
        assert_eq!(one_core.told(), (Limit::Cpu(End::Sender, Stage::Hash), 100));
        let compress = Run::calm().links(&idle).set(stage(Stage::Compress, 8, 60.0, 0.0, 0.0));
        assert_eq!(compress.told(), (Limit::Cpu(End::Sender, Stage::Compress), 96));
        let verify = Run::calm().set(stage(Stage::Verify, 8, 75.0, 0.0, 0.0));
        assert_eq!(verify.told(), (Limit::Cpu(End::Receiver, Stage::Verify), 95));
        let unpack = Run::calm().set(stage(Stage::Unpack, 1, 9.5, 0.0, 0.0));
        assert_eq!(unpack.told(), (Limit::Unpack, 96));
    }

    #[test]
    fn compression_that_takes_what_the_links_leave_is_not_the_limit() {
        let run = Run::calm()
            .links(&[link("eth1", 1, [1.0, 8.8, 0.2, 0.0])])
            .set(stage(Stage::Compress, 8, 70.0, 0.0, 0.0))
            .set(stage(Stage::Process, 8, 76.0, 0.0, 0.0));
        assert_eq!(run.told(), (Limit::Links(vec!["eth1".into()]), 98));
    }

    #[test]
    fn a_full_cpu_is_the_limit_though_everything_seems_used() {
        let seems_full = [link("lo", 4, [5.0, 4.8, 0.2, 0.0])];
        let mut run = Run::calm().links(&seems_full).set(stage(Stage::Write, 2, 18.0, 1.0, 0.0));
        let cpus = |process| [stage(Stage::Process, 2, process, 0.0, 0.0), stage(Stage::Machine, 2, 19.6, 0.0, 0.0)];
        for (end, process) in [(&mut run.sender, 8.0), (&mut run.receiver, 9.5)] {
            end.retain(|t| !matches!(t.stage, Stage::Process | Stage::Machine));
            end.extend(cpus(process));
        }
        assert_eq!(run.told(), (Limit::Cpu(End::Receiver, Stage::Write), 99));
        // full by others: what we see is the link
        for end in [&mut run.sender, &mut run.receiver] {
            end.retain(|t| !matches!(t.stage, Stage::Process | Stage::Machine));
            end.extend(cpus(3.0));
        }
        assert_eq!(run.told(), (Limit::Links(vec!["lo".into()]), 98));
        let by_others = Run::calm().set(stage(Stage::Machine, 8, 79.0, 0.0, 0.0));
        assert_eq!(by_others.told(), (Limit::Others(End::Sender), 100));
        let busy_thread = Run::calm().links(&seems_full).set(stage(Stage::Receive, 1, 9.4, 0.1, 0.0));
        assert_eq!(busy_thread.told(), (Limit::Cpu(End::Receiver, Stage::Receive), 95));
    }

    #[test]
    fn a_sync_as_long_as_the_rest_is_the_limit_and_a_short_one_does_not_count() {
        let full = [link("eth1", 1, [0.4, 3.5, 0.1, 0.0])];
        let run = Run::calm().links(&full).set(stage(Stage::Sync, 1, 6.0, 0.0, 0.0));
        assert_eq!(run.told(), (Limit::Sync, 60));
        assert_eq!(run.on_receiver().by, Limit::Sync);
        let run = Run::calm().set(stage(Stage::Sync, 1, 4.0, 0.0, 0.0));
        assert_eq!(run.set(stage(Stage::Source, 1, 5.8, 0.0, 0.0)).told(), (Limit::Walk, 97));
    }

    #[test]
    fn a_window_under_way_with_nobody_at_work_is_the_round_trip() {
        let run = Run::calm()
            .links(&[link("eth1", 1, [0.5, 1.0, 0.5, 8.0])])
            .set(stage(Stage::Source, 1, 0.1, 0.0, 9.0))
            .set(stage(Stage::Write, 8, 4.0, 76.0, 0.0));
        assert_eq!(run.told(), (Limit::RoundTrip, 85));
    }

    #[test]
    fn what_cannot_be_told_is_not_claimed() {
        let mut tiny = Run::calm().set(stage(Stage::Sync, 1, 0.05, 0.0, 0.0));
        tiny.elapsed = Duration::from_millis(60);
        assert_eq!(tiny.on_sender().by, Limit::TooShort);
        let quiet = Run { elapsed: Duration::from_millis(400), sender: vec![], receiver: vec![], links: vec![] };
        assert_eq!(quiet.on_sender().by, Limit::TooShort);
        let nothing = Run { elapsed: TEN, ..quiet };
        assert_eq!(nothing.told(), (Limit::NoneAlone(None), 0));
        assert_eq!(Run::calm().told(), (Limit::NoneAlone(Some(Box::new(Limit::Links(vec!["eth1".into()])))), 50));
    }

    #[test]
    fn times_that_no_clock_shows_decide_nothing_but_do_not_panic() {
        // the largest that a frame can say
        for lie in [Duration::from_nanos(u64::MAX), Duration::ZERO] {
            let times = |stage| StageTimes {
                stage,
                threads: u16::MAX,
                busy: if stage == Stage::Sync { Duration::ZERO } else { lie },
                wait_in: lie,
                wait_out: lie,
                busiest: lie,
            };
            let all: Vec<StageTimes> = Stage::ALL.into_iter().map(times).collect();
            for elapsed in [Duration::ZERO, TEN, Duration::from_nanos(u64::MAX)] {
                assert!((0.0..=1.0).contains(&limit(elapsed, &all, &all, &[]).share));
                assert!((0.0..=1.0).contains(&limit(elapsed, &[], &all, &[]).share));
            }
        }
    }
}
