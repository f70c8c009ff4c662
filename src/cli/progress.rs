//! What is shown while a transfer runs. On a terminal a bar and a line for each link, drawn in place; anywhere else one
//! plain line now and then. One thread reads the counters and draws; nothing that moves data ever waits for it.
//!
//! The bar counts what has *arrived* (acknowledged, written), not what a socket or a cache took, and reaches 100 % only
//! when the receiver has synced.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::Verbosity;
use super::numbers::{bytes, count, entries, rate, span};
use super::render::printable;
use crate::error::escape;
use crate::stats::{Phase, Stats};

/// Between two looks at the counters, on a terminal and elsewhere.
const DRAW_EVERY: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Rates are means over this long.
const RATE_OVER: Duration = Duration::from_secs(5);

/// Bytes of an answer that are read.
const ANSWER_MAX: u64 = 4 << 10;

/// Lines for links on a terminal; the rest is summed up in one.
const LINK_LINES: usize = 16;

/// When a plain line is due: every 10 s in the first minute, then every 30 s.
#[derive(Debug)]
struct Cadence {
    next: Duration,
}

impl Cadence {
    fn new() -> Cadence {
        Cadence { next: Duration::from_secs(10) }
    }

    /// True if a line is due `now`, counted from the start. However late, it is due once, not once for each line
    /// missed.
    fn due(&mut self, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        let step = if now < Duration::from_secs(60) { 10 } else { 30 };
        self.next = Duration::from_secs((now.as_secs() / step + 1) * step);
        true
    }
}

/// One look at the counters.
#[derive(Clone, Debug)]
struct Look {
    at: Duration,
    phase: Phase,
    done: u64,
    read_back: u64,
    /// Content the walk has found, and whether that is all; `None` where nobody knows (receiver, standard input).
    found: Option<(u64, bool)>,
    entries_done: u64,
    entries_found: u64,
    links: Vec<LinkLook>,
}

#[derive(Clone, Debug)]
struct LinkLook {
    name: String,
    up: bool,
    wire_bytes: u64,
    corrupt: u64,
    outages: u64,
}

impl Look {
    fn take(stats: &Stats, sending: bool, at: Duration) -> Look {
        let bytes_found = stats.bytes_found.load(Relaxed);
        let links = stats.links();
        Look {
            at,
            phase: stats.phase(),
            done: done(stats, sending),
            read_back: stats.read_back.load(Relaxed),
            found: (bytes_found > 0).then(|| (bytes_found, stats.found_all.load(Relaxed))),
            entries_done: stats.entries_done.load(Relaxed),
            entries_found: stats.entries_found.load(Relaxed),
            links: links
                .iter()
                .map(|l| LinkLook {
                    name: escape(l.name.as_bytes()),
                    up: l.up.load(Relaxed) > 0,
                    wire_bytes: l.wire_bytes.load(Relaxed),
                    corrupt: l.corrupt.load(Relaxed),
                    outages: l.outages.load(Relaxed),
                })
                .collect(),
        }
    }
}

/// Content bytes that have arrived. The sender has no count of just those: it is at most what was laid out, and at most
/// what was acknowledged of the stream (which has headers as well).
pub fn done(stats: &Stats, sending: bool) -> u64 {
    let content = stats.content_done.load(Relaxed);
    if sending { content.min(stats.stream_done.load(Relaxed)) } else { content }
}

/// Turns looks into words. Time comes in with them.
#[derive(Debug)]
struct Meter {
    sending: bool,
    /// Looks of the last [`RATE_OVER`], and the one before them.
    looks: VecDeque<Look>,
    phase_since: Duration,
}

impl Meter {
    fn new(sending: bool) -> Meter {
        Meter { sending, looks: VecDeque::new(), phase_since: Duration::ZERO }
    }

    fn push(&mut self, look: Look) {
        if self.looks.back().is_none_or(|last| last.phase != look.phase) {
            self.phase_since = look.at;
        }
        let oldest = look.at.saturating_sub(RATE_OVER);
        self.looks.push_back(look);
        while self.looks.get(1).is_some_and(|second| second.at <= oldest) {
            self.looks.pop_front();
        }
    }

    fn rate(&self, of: impl Fn(&Look) -> u64) -> f64 {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else { return 0.0 };
        let seconds = last.at.saturating_sub(first.at).as_secs_f64();
        if seconds > 0.0 { of(last).saturating_sub(of(first)) as f64 / seconds } else { 0.0 }
    }

    /// How full the bar is, in per mille; `None` where the whole is not known yet.
    fn per_mille(&self) -> Option<u64> {
        let last = self.looks.back()?;
        match (last.phase, last.found) {
            (Phase::Done, _) => Some(1000),
            (_, Some((total, true))) => Some(((u128::from(last.done) * 1000 / u128::from(total)) as u64).min(999)),
            _ => None,
        }
    }

    /// The transfer in one line.
    fn status(&self) -> String {
        let Some(last) = self.looks.back() else { return String::new() };
        let waited = span(Duration::from_secs(last.at.saturating_sub(self.phase_since).as_secs()));
        match last.phase {
            Phase::Waiting if self.sending => return format!("waiting for the receiver ({waited})"),
            Phase::Waiting => return format!("waiting for a sender ({waited})"),
            Phase::Syncing if self.sending => {
                return format!("everything has arrived; the receiver syncs its disk ({waited})");
            }
            Phase::Syncing => {
                let written = bytes(last.done);
                return format!("everything has arrived; syncing the disk, {written} written ({waited})");
            }
            Phase::ReadingBack => {
                let (read, written) = (bytes(last.read_back), bytes(last.done));
                return format!("all is written and synced; reading it back, {read} of {written} ({waited})");
            }
            Phase::Done => return format!("{}, done", bytes(last.done)),
            Phase::Moving => {}
        }
        let speed = self.rate(|look| look.done);
        let mut said = bytes(last.done);
        if let Some((total, true)) = last.found {
            let percent = self.per_mille().unwrap_or(0) / 10;
            said += &format!(" of {} ({percent} %)", bytes(total));
        }
        match (last.entries_done, last.found) {
            (0, _) => {}
            (n, Some((_, true))) if last.entries_found >= n => {
                said += &format!(", {} of {}", count(n), entries(last.entries_found));
            }
            (n, _) => said += &format!(", {}", entries(n)),
        }
        said += &format!(", {}", rate(speed));
        match last.found {
            Some((total, true)) if speed >= 1.0 => {
                let left = Duration::from_secs((total.saturating_sub(last.done) as f64 / speed) as u64);
                said += &format!(", {} left", span(left.max(Duration::from_secs(1))));
            }
            Some((total, false)) => said += &format!(", {} found so far", bytes(total)),
            _ => {}
        }
        said
    }

    /// One line for each link.
    fn links(&self) -> Vec<String> {
        let Some(last) = self.looks.back() else { return Vec::new() };
        let sum: u64 = last.links.iter().map(|l| l.wire_bytes).sum();
        let width = last.links.iter().map(|l| l.name.chars().count()).max().unwrap_or(0);
        let line = |(i, link): (usize, &LinkLook)| {
            // Links are only ever added, so one place is one link; older looks may lack it.
            let speed = self.rate(|look| look.links.get(i).map_or(0, |l| l.wire_bytes));
            let share = link.wire_bytes as f64 * 100.0 / sum.max(1) as f64;
            let mut said = format!("{:<width$}  ", link.name);
            said += &if link.up { format!("{:>9}  {share:>4.1} %", rate(speed)) } else { "down".to_owned() };
            if link.corrupt > 0 {
                said += &format!("  {} corrupt", count(link.corrupt));
            }
            if link.outages > 0 {
                said += &format!(
                    "  {} down so far",
                    if link.outages == 1 { "once".to_owned() } else { format!("{} times", link.outages) }
                );
            }
            said
        };
        last.links.iter().enumerate().map(line).collect()
    }

    /// The plain line: the transfer, then its links.
    fn plain(&self) -> String {
        let mut said = self.status();
        let Some(last) = self.looks.back().filter(|last| last.phase == Phase::Moving) else { return said };
        for (i, link) in last.links.iter().enumerate().take(LINK_LINES) {
            let speed = self.rate(|look| look.links.get(i).map_or(0, |l| l.wire_bytes));
            said += if i == 0 { "; " } else { ", " };
            said += &format!("{} {}", link.name, if link.up { rate(speed) } else { "down".to_owned() });
        }
        if last.links.len() > LINK_LINES {
            said += &format!(" and {} links more", last.links.len() - LINK_LINES);
        }
        said
    }

    /// The lines below the bar on a terminal `width` columns wide. None wraps: a line that did could not be redrawn in
    /// place.
    fn screen(&self, width: usize) -> String {
        let links = self.links();
        let mut lines = vec![fit(&self.status(), width.saturating_sub(BAR_COLUMNS))];
        if self.looks.back().is_some_and(|look| look.phase == Phase::Moving) {
            lines.extend(links.iter().take(LINK_LINES).map(|l| fit(&format!("  {l}"), width)));
            if links.len() > LINK_LINES {
                lines.push(fit(&format!("  and {} links more", links.len() - LINK_LINES), width));
            }
        }
        lines.join("\n")
    }
}

/// Columns that the bar takes before the first line's text, and one to spare at the edge.
const BAR_COLUMNS: usize = 24 + 3 + 1;

fn fit(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        line.to_owned()
    } else {
        line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
    }
}

/// Standard error while a transfer runs: the one place through which events and progress reach it, so that a line never
/// lands inside the bar.
pub struct Screen {
    verbosity: Verbosity,
    bar: Option<ProgressBar>,
    /// Keeps lines of several threads whole.
    lines: Mutex<()>,
    /// Somebody is being asked something, and nothing is drawn over it.
    asking: AtomicBool,
}

impl Screen {
    /// Standard error as it is: a terminal that can redraw gets a bar.
    pub fn new(verbosity: Verbosity) -> Screen {
        let draws = verbosity > Verbosity::Quiet && can_draw(io::stderr().is_terminal(), |name| std::env::var_os(name));
        let bar = draws.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(style(false));
            bar
        });
        Screen { verbosity, bar, lines: Mutex::new(()), asking: AtomicBool::new(false) }
    }

    /// Print lines about the transfer, the first with our name in front. A standard error that is gone is no reason to
    /// end a transfer.
    pub fn say(&self, text: &str) {
        let text = printable(text);
        let print = || {
            let _ = writeln!(io::stderr(), "blast: {text}");
        };
        self.aside(print);
    }

    /// Print something while the bar is out of the way.
    pub fn aside(&self, print: impl FnOnce()) {
        let _guard = self.lines.lock().unwrap_or_else(|e| e.into_inner());
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Ask a person for a line, where standard error is a terminal; standard input may be data, so the terminal itself
    /// is read. No lock is held meanwhile: a signal must still end the process.
    pub fn ask(&self, question: &str) -> Option<String> {
        if !io::stderr().is_terminal() {
            return None;
        }
        let mut terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
        self.asking.store(true, Relaxed);
        if let Some(bar) = &self.bar {
            // a bar that has ended draws nothing until it is begun anew
            bar.finish_and_clear();
        }
        let mut answer = String::new();
        let asked = terminal.write_all(format!("blast: {}", printable(question)).as_bytes());
        let heard = asked.and_then(|()| BufReader::new(terminal).take(ANSWER_MAX).read_line(&mut answer));
        if let Some(bar) = &self.bar {
            bar.reset();
        }
        self.asking.store(false, Relaxed);
        heard.ok().map(|_| answer)
    }

    fn draw(&self, bar: &ProgressBar, meter: &Meter) {
        // A process in the background that writes to its terminal may be stopped for it (stty tostop).
        if !in_foreground() {
            return;
        }
        let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col)).max(20);
        let per_mille = meter.per_mille();
        if per_mille.is_some() && bar.length().is_none() {
            bar.set_length(1000);
            bar.set_style(style(true));
        }
        bar.set_position(per_mille.unwrap_or(0));
        bar.set_message(meter.screen(width));
        bar.tick();
    }
}

fn style(known: bool) -> ProgressStyle {
    let template = if known { "[{bar:24}] {msg}" } else { "{spinner} {msg}" };
    ProgressStyle::with_template(template).expect("a template known to be well-formed").progress_chars("=> ")
}

fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Whether lines may be redrawn in place.
fn can_draw(is_terminal: bool, env: impl Fn(&str) -> Option<std::ffi::OsString>) -> bool {
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    is_terminal && set("NO_COLOR").is_none() && set("TERM").is_some_and(|term| term != "dumb")
}

/// The thread that shows the counters, until dropped.
pub struct Progress {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begin to show `stats` on `screen`.
    pub fn start(screen: Arc<Screen>, stats: Arc<Stats>, sending: bool) -> Progress {
        if screen.verbosity == Verbosity::Quiet {
            return Progress { stop: None, thread: None };
        }
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let (started, mut cadence, mut meter) = (Instant::now(), Cadence::new(), Meter::new(sending));
            let every = if screen.bar.is_some() { DRAW_EVERY } else { LOOK_EVERY };
            loop {
                let now = started.elapsed();
                meter.push(Look::take(&stats, sending, now));
                match &screen.bar {
                    _ if screen.asking.load(Relaxed) => {}
                    Some(bar) => screen.draw(bar, &meter),
                    None if cadence.due(now) => screen.say(&meter.plain()),
                    None => {}
                }
                if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            if let Some(bar) = &screen.bar {
                bar.finish_and_clear();
            }
        });
        // Without a thread to spare the transfer still runs, unseen.
        Progress { stop: Some(stop), thread: thread.ok() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Look {
        Look {
            at: Duration::from_secs(seconds),
            phase: Phase::Moving,
            done: seconds * 100_000_000,
            read_back: seconds * 50_000_000,
            found: Some((10_000_000_000, true)),
            entries_done: seconds * 10,
            entries_found: 1_000,
            links: vec![
                LinkLook { name: "l1".into(), up: true, wire_bytes: seconds * 75_000_000, corrupt: 0, outages: 0 },
                LinkLook {
                    name: "link2".into(),
                    up: seconds < 50,
                    wire_bytes: seconds * 25_000_000,
                    corrupt: 2,
                    outages: 1,
                },
            ],
        }
    }

    fn meter(sending: bool, looks: impl IntoIterator<Item = Look>) -> Meter {
        let mut meter = Meter::new(sending);
        looks.into_iter().for_each(|look| meter.push(look));
        meter
    }

    #[test]
    fn plain_lines_come_every_ten_seconds_in_the_first_minute_then_every_thirty() {
        let mut cadence = Cadence::new();
        let due: Vec<u64> = (0..=150).filter(|s| cadence.due(Duration::from_secs(*s))).collect();
        assert_eq!(due, [10, 20, 30, 40, 50, 60, 90, 120, 150]);
        let mut cadence = Cadence::new();
        assert!(cadence.due(Duration::from_secs(47)), "a late line is said");
        assert!(!cadence.due(Duration::from_secs(48)), "and said once");
        assert!(cadence.due(Duration::from_secs(50)));
        let mut cadence = Cadence::new();
        let hour = (0..36_000).filter(|tenth| cadence.due(Duration::from_millis(tenth * 100))).count();
        assert_eq!(hour, 6 + 59 * 2 - 1, "one hour");
    }

    #[test]
    fn the_plain_line_has_amount_rate_time_left_and_links_and_nothing_that_moves_a_cursor() {
        let plain = meter(true, (0..=20).map(at)).plain();
        assert_eq!(
            plain,
            "2.00 GB of 10.0 GB (20 %), 200 of 1,000 entries, 100 MB/s, 1 min 20 s left; l1 75.0 MB/s, link2 25.0 MB/s"
        );
        assert!(plain.chars().all(|c| !c.is_control()));
        let plain = meter(true, (0..=60).map(at)).plain();
        assert!(plain.ends_with("; l1 75.0 MB/s, link2 down"), "{plain}");
    }

    #[test]
    fn an_unknown_total_has_no_percentage_and_no_time_left() {
        let unknown = |look: Look| Look { found: None, ..look };
        let plain = meter(false, (0..=20).map(at).map(unknown)).status();
        assert_eq!(plain, "2.00 GB, 200 entries, 100 MB/s");
        let growing = |look: Look| Look { found: Some((3_000_000_000, false)), ..look };
        let plain = meter(true, (0..=20).map(at).map(growing)).status();
        assert_eq!(plain, "2.00 GB, 200 entries, 100 MB/s, 3.00 GB found so far");
        let stream = |look: Look| Look { found: None, entries_done: 0, ..look };
        assert_eq!(meter(true, (0..=20).map(at).map(stream)).status(), "2.00 GB, 100 MB/s");
    }

    #[test]
    fn full_means_durable_and_syncing_says_so_and_moves() {
        let full = |look: Look| Look { done: 10_000_000_000, ..look };
        let moving = meter(true, [full(at(100))]);
        assert_eq!(moving.per_mille(), Some(999));
        let syncing = |look: Look| Look { phase: Phase::Syncing, ..full(look) };
        let mut meter = meter(true, [full(at(100)), syncing(at(101)), syncing(at(104))]);
        assert_eq!(meter.per_mille(), Some(999));
        assert_eq!(meter.status(), "everything has arrived; the receiver syncs its disk (3 s)");
        meter.push(Look { phase: Phase::Done, ..full(at(105)) });
        assert_eq!(meter.per_mille(), Some(1000));
    }

    #[test]
    fn the_rate_is_of_the_last_seconds() {
        let stalled = (0..=20).map(at).chain((21..=30).map(|s| Look { at: Duration::from_secs(s), ..at(20) }));
        let meter = meter(true, stalled);
        assert_eq!(meter.rate(|look| look.done), 0.0);
        assert!(meter.looks.len() <= 7, "{}", meter.looks.len());
        assert!(!meter.status().contains("left"), "no time left is claimed without a rate: {}", meter.status());
    }

    #[test]
    fn no_line_on_a_terminal_is_wider_than_it() {
        let crowd = |look: Look| {
            let links = (0..40).map(|i| LinkLook { name: format!("interface{i}"), ..look.links[0].clone() }).collect();
            Look { links, ..look }
        };
        let meter = meter(true, (0..=20).map(at).map(crowd));
        for width in [20, 40, 80, 200] {
            let screen = meter.screen(width);
            let lines: Vec<&str> = screen.lines().collect();
            assert_eq!(lines.len(), 1 + LINK_LINES + 1);
            assert!(lines[0].chars().count() + BAR_COLUMNS <= width.max(BAR_COLUMNS + 1), "{screen}");
            assert!(lines.iter().all(|l| l.chars().count() <= width), "{screen}");
        }
        assert!(meter.screen(200).ends_with("and 24 links more"));
    }

    #[test]
    fn a_bar_is_drawn_only_where_it_can_be() {
        let env = |term: &'static str, no_color: &'static str| {
            move |name: &str| match name {
                "TERM" => Some(term.into()),
                "NO_COLOR" => Some(no_color.into()),
                _ => None,
            }
        };
        assert!(can_draw(true, env("xterm", "")));
        assert!(!can_draw(false, env("xterm", "")));
        assert!(!can_draw(true, env("dumb", "")));
        assert!(!can_draw(true, env("", "")));
        assert!(!can_draw(true, env("xterm", "1")));
        assert!(!can_draw(true, |_| None));
    }
}
