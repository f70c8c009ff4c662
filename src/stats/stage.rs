//! Stopwatches: how long each stage was busy, waited for something to do, and waited to be rid of what it had done. One
//! reading of the clock at each change, which is once or twice for a chunk and never for a byte or a file.
//!
//! Every thread has a [`Stopwatch`] of its own, so that none of them writes to another's cache line; what is reported
//! is their sum.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A stage of a transfer. The numbers are the wire's; the order is that of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Sender: reading of a stream that somebody else produces. Waiting for input is waiting for the producer.
    Input = 1,
    /// Sender: walk and plan. Waiting for output is waiting for a buffer or for the workers.
    Source = 2,
    /// Sender's workers: open and read files, lay out chunks.
    Fill = 3,
    /// Sender's workers: digest.
    Hash = 4,
    /// Sender's workers: compress.
    Compress = 5,
    /// Sender's links together, one thread for each link, though one thread does the work of all. Waiting for input is
    /// waiting for a chunk or for credit, waiting for output is waiting for room in a socket.
    Send = 6,
    /// Receiver's links together. Waiting for input is waiting for bytes, waiting for output for a buffer.
    Receive = 7,
    /// Receiver's workers: decompress.
    Decompress = 8,
    /// Receiver's workers: verify.
    Verify = 9,
    /// Receiver: the archive into write jobs; makes the directories.
    Unpack = 10,
    /// Receiver: what writes to the disk.
    Write = 11,
    /// Receiver: what writes to standard output. Waiting for output is waiting for the consumer.
    Output = 12,
    /// Receiver: the sync at the end.
    Sync = 13,
    /// CPU time of the whole process. Its threads are the CPUs it may use.
    Process = 14,
    /// CPU time of the whole machine, whoever used it. Its threads are the machine's CPUs.
    Machine = 15,
}

impl Stage {
    /// Every stage, in the wire's order.
    pub const ALL: [Stage; 15] = {
        use Stage::*;
        [
            Input, Source, Fill, Hash, Compress, Send, Receive, Decompress, Verify, Unpack, Write, Output, Sync,
            Process, Machine,
        ]
    };

    /// The stage for a byte that a peer sent.
    pub fn from_wire(stage: u8) -> Option<Stage> {
        Self::ALL.into_iter().find(|s| *s as u8 == stage)
    }
}

/// What a stage's stopwatches came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageTimes {
    /// Which stage.
    pub stage: Stage,
    /// Threads that worked at it.
    pub threads: u16,
    /// At work, summed over the threads.
    pub busy: Duration,
    /// Waiting for something to do, summed over the threads.
    pub wait_in: Duration,
    /// Waiting to hand on what was done, summed over the threads.
    pub wait_out: Duration,
    /// At work, the thread that worked most.
    pub busiest: Duration,
}

/// Nanoseconds of one thread in one state.
#[derive(Default, Debug)]
pub struct Tally(AtomicU64);

impl Tally {
    /// One more span of time.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// All of them.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// How one thread at one stage spends its time. What it is in the middle of is not counted yet.
#[derive(Default, Debug)]
pub struct Stopwatch {
    /// At work.
    pub busy: Tally,
    /// Waiting for something to do.
    pub wait_in: Tally,
    /// Waiting to hand on what was done.
    pub wait_out: Tally,
}

/// A thread's own clock: each call books the time since the last one.
#[derive(Debug)]
pub struct Lap {
    since: Instant,
}

impl Lap {
    /// A clock that starts now.
    pub fn start() -> Lap {
        Lap { since: Instant::now() }
    }

    /// The time since the last call was spent so.
    pub fn book(&mut self, tally: &Tally) {
        tally.add(self.next());
    }

    /// The time since the last call was spent so, but for `part` of it, which was spent otherwise.
    pub fn split(&mut self, tally: &Tally, part: Duration, other: &Tally) {
        let time = self.next();
        let part = part.min(time);
        other.add(part);
        tally.add(time - part);
    }

    /// The time since the last call is nobody's.
    pub fn skip(&mut self) {
        self.next();
    }

    fn next(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.since, now)
    }
}

/// Runs `work` and says how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let mut lap = Lap::start();
    let done = work();
    (done, lap.next())
}

/// CPU time used up to now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Usage {
    process: Duration,
    /// Busy time and number of the machine's CPUs, where the system tells.
    machine: Option<(Duration, u16)>,
}

impl Usage {
    pub(super) fn now() -> Usage {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let process = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
        Usage { process, machine: fs::read_to_string("/proc/stat").ok().and_then(|text| machine(&text)) }
    }

    /// What was used since then, as two more stages.
    pub(super) fn since(self, then: Usage) -> impl Iterator<Item = StageTimes> {
        let times = |stage, threads, busy| StageTimes {
            stage,
            threads,
            busy,
            wait_in: Duration::ZERO,
            wait_out: Duration::ZERO,
            busiest: busy,
        };
        let ours = available_parallelism().map_or(1, |n| n.get().min(u16::MAX.into()) as u16);
        let process = times(Stage::Process, ours, self.process.saturating_sub(then.process));
        let machine = self.machine.zip(then.machine);
        let machine = machine.map(|((now, cpus), (then, _))| times(Stage::Machine, cpus, now.saturating_sub(then)));
        [Some(process), machine].into_iter().flatten()
    }
}

/// Busy time of all CPUs and their number, from the text of `/proc/stat`. Its unit is a hundredth of a second on every
/// architecture (USER_HZ); user time includes that of guests.
fn machine(text: &str) -> Option<(Duration, u16)> {
    let mut lines = text.lines();
    let mut fields = lines.next()?.split_ascii_whitespace();
    if fields.next() != Some("cpu") {
        return None;
    }
    let fields: Vec<u64> = fields.map_while(|n| n.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|i| fields.get(*i)).sum();
    let cpus = lines.take_while(|line| line.starts_with("cpu")).count();
    (fields.len() >= 4 && cpus > 0).then(|| (Duration::from_millis(busy.saturating_mul(10)), cpus as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_is_booked_once() {
        let watch = Stopwatch::default();
        let (_, outside) = timed(|| {
            let mut lap = Lap::start();
            let start = lap.since;
            lap.book(&watch.busy);
            lap.split(&watch.busy, Duration::from_secs(3600), &watch.wait_out);
            lap.split(&watch.busy, Duration::ZERO, &watch.wait_out);
            lap.book(&watch.wait_in);
            let booked = watch.busy.total() + watch.wait_in.total() + watch.wait_out.total();
            assert_eq!(booked, lap.since - start);
            booked
        });
        assert!(watch.wait_out.total() <= outside, "a part is no longer than the whole");
    }

    #[test]
    fn the_machines_busy_time_is_read_as_the_system_writes_it() {
        let text = "cpu  100 1 20 5000 300 4 5 6 7 8\ncpu0 50 1 10 2500 150 2 2 3 0 0\ncpu1 0 0 0 0\nintr 5\n";
        assert_eq!(machine(text), Some((Duration::from_millis(1360), 2)));
        assert_eq!(machine("cpu  1 2 3\n"), None);
        assert_eq!(machine("intr 1\n"), None);
        assert_eq!(machine(""), None);
    }

    #[test]
    fn usage_has_the_process_and_grows() {
        let then = Usage::now();
        let mut sum = 0u64;
        while Usage::now().process == then.process {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        let stages: Vec<StageTimes> = Usage::now().since(then).collect();
        assert_eq!(stages[0].stage, Stage::Process);
        assert!(stages[0].busy > Duration::ZERO && stages[0].threads > 0);
    }
}
