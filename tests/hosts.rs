//! Two hosts joined by links that can be shaped, cut and spoiled: `scripts/netlab` for tests, and the program on both.
//!
//! A lab is named after the test process, so that labs never meet, and is taken away when its test ends; what a killed
//! process has left behind goes when the next one begins. Nothing sleeps to wait: a condition is polled until it holds
//! or everybody's patience has ended.

use std::cell::Cell;
use std::fs::File;
use std::io::{PipeWriter, Write, pipe};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::ends::{BLAST, End, Outcome, PATIENCE, Run};

/// One lab of two hosts, a and b. The links are the interfaces l1, l2 … on both; 10.77.LINK.1 and fd77:LINK::1 on a,
/// .2 and ::2 on b.
pub struct Lab {
    name: String,
    /// How many links it has.
    links: Cell<u32>,
}

/// A host of a lab; blast sends from a to b.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host {
    A,
    B,
}

impl Lab {
    /// A lab with one link for each rate (`100mbit`, `max`), or nothing, said loudly, where that cannot be had.
    pub fn up(rates: &[&str]) -> Option<Lab> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static MISSING: OnceLock<Option<&str>> = OnceLock::new();
        if let Some(what) = MISSING.get_or_init(missing) {
            eprintln!("SKIPPED: a test of links in network namespaces: {what}");
            return None;
        }
        static STALE: Once = Once::new();
        STALE.call_once(take_stale_away);
        let lab = Lab {
            name: format!("blast-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)),
            links: Cell::new(rates.len() as u32),
        };
        lab.netlab("up", rates);
        Some(lab)
    }

    /// Pull the cable.
    pub fn cut(&self, link: u32) {
        self.netlab("cut", &[&link.to_string()]);
    }

    /// Plug it in again.
    pub fn join(&self, link: u32) {
        self.netlab("join", &[&link.to_string()]);
    }

    /// Every packet vanishes.
    pub fn hole(&self, link: u32) {
        self.netlab("hole", &[&link.to_string()]);
    }

    /// Every TCP segment is answered with a reset.
    pub fn reset(&self, link: u32) {
        self.netlab("reset", &[&link.to_string()]);
    }

    /// One packet in a thousand is lost, times `per_mille`.
    pub fn lose(&self, link: u32, per_mille: u32) {
        self.netlab("loss", &[&link.to_string(), &per_mille.to_string()]);
    }

    /// A byte is changed in one of `one_in` full packets from a to b, past TCP's checksum.
    pub fn corrupt(&self, link: u32, one_in: u32) {
        self.netlab("corrupt", &[&link.to_string(), &one_in.to_string()]);
    }

    /// End of hole, reset, loss and corruption.
    pub fn heal(&self, link: u32) {
        self.netlab("heal", &[&link.to_string()]);
    }

    /// Change a link's rate.
    pub fn rate(&self, link: u32, rate: &str) {
        self.netlab("rate", &[&link.to_string(), rate]);
    }

    /// Lay one more cable, which has no address and is not up on either host; returns its number.
    pub fn lay(&self) -> u32 {
        self.links.set(self.links.get() + 1);
        let (link, a, b) = (self.links.get(), self.namespace(Host::A), self.namespace(Host::B));
        let name = format!("l{link}");
        run("ip", &["link", "add", &name, "netns", &a, "type", "veth", "peer", "name", &name, "netns", &b]);
        link
    }

    /// Take a cable and its interfaces away and lay another between interfaces of the same names and hardware
    /// addresses, as a driver does that is loaded anew.
    pub fn lay_anew(&self, link: u32) {
        let (a, b, name) = (self.namespace(Host::A), self.namespace(Host::B), format!("l{link}"));
        let [mac_a, mac_b] = [Host::A, Host::B].map(|h| self.on(h, &format!("cat /sys/class/net/{name}/address")));
        self.on(Host::A, &format!("ip link delete {name}"));
        let ends = ["link", "add", &name, "address", mac_a.trim(), "netns", &a, "type", "veth"];
        run("ip", &[&ends[..], &["peer", "name", &name, "address", mac_b.trim(), "netns", &b]].concat());
    }

    /// Lead all cables of both hosts to one switch instead of to each other: so many from each, of that rate.
    pub fn switched(ports: u32, rate: &str) -> Option<Lab> {
        let lab = Lab::up(&["max"])?;
        lab.on(Host::A, "ip link del l1");
        // the lab takes the namespace between its hosts away with them
        let between = format!("{}-wire", lab.name);
        run("ip", &["netns", "add", &between]);
        let on_switch = |command: &str| {
            let mut args = vec!["-n", &between];
            args.extend(command.split_whitespace());
            run("ip", &args);
        };
        on_switch("link add br0 type bridge");
        on_switch("link set br0 up");
        let shape = |namespace: &str, device: &str| {
            let shaped =
                ["qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "80000", "limit", "400000"];
            run("tc", &[&["-n", namespace], &shaped[..]].concat());
        };
        for host in [Host::A, Host::B] {
            let own = lab.namespace(host);
            for link in 1..=ports {
                let (device, port) = (format!("l{link}"), format!("{host:?}{link}").to_lowercase());
                run(
                    "ip",
                    &["link", "add", &device, "netns", &own, "type", "veth", "peer", "name", &port, "netns", &between],
                );
                on_switch(&format!("link set {port} master br0"));
                on_switch(&format!("link set {port} up"));
                lab.on(host, &format!("ip link set {device} up"));
                shape(&own, &device);
                shape(&between, &port);
            }
        }
        lab.links.set(ports);
        Some(lab)
    }

    /// Run a command on a host; its standard output.
    pub fn on(&self, host: Host, command: &str) -> String {
        let namespace = self.namespace(host);
        let mut args = vec!["netns", "exec", &namespace];
        args.extend(command.split_whitespace());
        run("ip", &args)
    }

    /// Run a command on both hosts.
    pub fn on_both(&self, command: &str) {
        self.on(Host::A, command);
        self.on(Host::B, command);
    }

    /// Set what the kernel calls a sysctl, on both hosts.
    pub fn set(&self, key: &str, value: &str) {
        for host in [Host::A, Host::B] {
            run("ip", &["netns", "exec", &self.namespace(host), "sysctl", "-qw", &format!("{key}={value}")]);
        }
    }

    /// Let a host filter by these rules of nft, in the table `inet test`.
    pub fn filter(&self, host: Host, rules: &str) {
        let table = format!("table inet test {{ chain in {{ type filter hook input priority 0; {rules}; }}; }}");
        let namespace = self.namespace(host);
        run("ip", &["netns", "exec", &namespace, "nft", &table]);
    }

    /// Such rules apply no more.
    pub fn unfilter(&self, host: Host) {
        self.on(host, "nft delete table inet test");
    }

    /// On its way from a to b a packet of more than `bytes` vanishes. What is segmented later than by TCP counts as one
    /// packet, so it must be TCP that does it; that concerns connections from now on.
    pub fn segment_early(&self, link: u32) {
        self.on(Host::A, &format!("ip link set l{link} gso_max_segs 1"));
    }

    /// The link-local address of a host's interface.
    pub fn link_local(&self, host: Host, link: u32) -> String {
        let shown = self.on(host, &format!("ip -6 -oneline address show dev l{link} scope link"));
        let address = shown.split_whitespace().find(|word| word.starts_with("fe80"));
        address.and_then(|a| a.split('/').next()).unwrap_or_else(|| panic!("no link-local address in {shown}")).into()
    }

    /// A socket on a host, bound to that address.
    pub fn datagrams(&self, host: Host, address: &str) -> UdpSocket {
        let address = address.to_owned();
        // the socket stays there when the thread has ended
        let there = self.inside(host, move || UdpSocket::bind(&address).unwrap_or_else(|e| panic!("{address}: {e}")));
        there.join().expect("it only binds")
    }

    /// A thread on a host.
    pub fn inside<T: Send + 'static>(
        &self,
        host: Host,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let namespace = File::open(format!("/run/netns/{}", self.namespace(host))).expect("the lab is up");
        thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            work()
        })
    }

    /// The number of an interface on a host.
    pub fn index(&self, host: Host, link: u32) -> u32 {
        self.on(host, &format!("cat /sys/class/net/l{link}/ifindex")).trim().parse().expect("a number")
    }

    /// Bytes that host a has sent on a link.
    pub fn sent(&self, link: u32) -> u64 {
        let listed = self.netlab("bytes", &[]);
        let line = listed.lines().find_map(|l| l.strip_prefix(&format!("l{link} ")));
        line.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("no l{link} in {listed}"))
    }

    /// Wait until host a has sent `bytes` more on a link than now.
    pub fn carries(&self, link: u32, bytes: u64) {
        let before = self.sent(link);
        until(&format!("link {link} carries {bytes} bytes"), || self.sent(link) >= before + bytes);
    }

    /// `blast` with these arguments on a host.
    pub fn blast(&self, host: Host, args: &[&str]) -> Run {
        self.command(host, &[&[BLAST], args].concat())
    }

    /// A command on a host, not started.
    pub fn command(&self, host: Host, args: &[&str]) -> Run {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(host)]);
        Run::of(if host == Host::A { "send" } else { "recv" }, command, args)
    }

    fn namespace(&self, host: Host) -> String {
        format!("{}-{}", self.name, if host == Host::A { "a" } else { "b" })
    }

    fn netlab(&self, verb: &str, args: &[&str]) -> String {
        netlab(&self.name, verb, args)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new(script()).args(["down", "-n", &self.name]).stderr(Stdio::null()).status();
    }
}

/// What stands in the way of a lab.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("this needs root");
    }
    let there = |tool: &str| Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    for (tool, needed) in
        [("ip", "this needs ip of iproute2"), ("tc", "this needs tc of iproute2"), ("nft", "this needs nft")]
    {
        if !there(tool) {
            return Some(needed);
        }
    }
    // where root may not make namespaces, no test can
    let probe = format!("blast-{}-probe", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &probe]).stderr(Stdio::null()).status();
    let _ = Command::new("ip").args(["netns", "del", &probe]).stderr(Stdio::null()).status();
    (!made.is_ok_and(|s| s.success())).then_some("this may not make network namespaces")
}

/// Labs of processes that are no more.
fn take_stale_away() {
    for line in run("ip", &["netns", "list"]).lines() {
        let name = line.split_whitespace().next().unwrap_or("");
        let Some((lab, _)) = name.rsplit_once('-') else { continue };
        let pid = lab.strip_prefix("blast-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            netlab(lab, "down", &[]);
        }
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/netlab")
}

fn netlab(name: &str, verb: &str, args: &[&str]) -> String {
    run(script().to_str().expect("a path that is text"), &[&[verb, "-n", name], args].concat())
}

/// Run a command that must succeed; its standard output.
#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    let done = Command::new(program).args(args).stdin(Stdio::null()).output();
    let done = done.unwrap_or_else(|e| panic!("{program} does not start: {e}"));
    assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// Wait until `holds`.
#[track_caller]
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "this never came: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Wait until the sender has said a line so many times.
#[track_caller]
pub fn says_times(stream: &Stream, line: &str, times: usize) {
    until(&format!("'{line}' {times} times"), || stream.sender.said().matches(line).count() >= times);
}

/// What mostly waits for silence to be noticed waits at the same time.
pub fn at_once<T: Copy + Send, const N: usize>(cases: [T; N], test: impl Fn(T) + Sync) {
    let test = &test;
    thread::scope(|scope| cases.map(|case| scope.spawn(move || test(case)).thread().id()));
}

/// Tests that compare rates run one at a time.
pub fn measuring() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream on its way from host a to host b, as long as the test wants it to be.
pub struct Stream {
    pub sender: End,
    pub receiver: End,
    source: Source,
}

/// What a stream is of and for how long.
struct Source {
    enough: Arc<AtomicBool>,
    thread: thread::JoinHandle<(u64, blake3::Hash)>,
}

/// How much a stream shall have.
#[derive(Clone, Copy)]
pub enum Length {
    Bytes(u64),
    /// Until [`Stream::enough`].
    Open,
}

#[derive(Debug)]
/// How both ends of a stream ended, and what a report says of each link.
pub struct Arrived {
    pub sender: Outcome,
    pub receiver: Outcome,
}

impl Stream {
    /// `blast recv -` on b and `blast send - TO` on a, with more arguments for each.
    pub fn start(lab: &Lab, length: Length, to: &str, send: &[&str], recv: &[&str]) -> Stream {
        Stream::start_in(lab, &[], length, to, send, recv)
    }

    /// The same, both in this environment (`NAME=value`).
    pub fn start_in(lab: &Lab, env: &[&str], length: Length, to: &str, send: &[&str], recv: &[&str]) -> Stream {
        let receiver =
            lab.command(Host::B, &["env"]).args(env).args(&[BLAST, "recv", "-v"]).args(recv).last("-").start();
        receiver.says("listening on port");
        Stream::to_in(lab, receiver, env, length, to, send)
    }

    /// `blast send - TO` on a, to a receiver that has been started on b.
    pub fn to(lab: &Lab, receiver: End, length: Length, to: &str, send: &[&str]) -> Stream {
        Stream::to_in(lab, receiver, &[], length, to, send)
    }

    fn to_in(lab: &Lab, receiver: End, env: &[&str], length: Length, to: &str, send: &[&str]) -> Stream {
        let (input, feed) = pipe().expect("a pipe");
        let source = Source::start(feed, length);
        // what the sender has read ahead must still go when the test has seen enough
        let ahead = if matches!(length, Length::Open) { &["--window", "24M"][..] } else { &[] };
        let sender = lab
            .command(Host::A, &["env"])
            .args(env)
            .args(&[BLAST, "send", "-v"])
            .args(ahead)
            .args(send)
            .last("-")
            .last(to)
            .stdin(input)
            .start();
        Stream { sender, receiver, source }
    }

    /// Let it end.
    pub fn enough(&self) {
        self.source.enough.store(true, Relaxed);
    }

    /// Let it end, and expect that all of it has arrived.
    #[track_caller]
    pub fn arrives(self) -> Arrived {
        self.enough();
        let (sender, receiver) = (self.sender.wait(), self.receiver.wait());
        assert_eq!((sender.code, receiver.code), (Some(0), Some(0)), "{sender:?}\n{receiver:?}");
        let (len, digest) = self.source.thread.join().expect("it only writes");
        assert_eq!(receiver.out.len() as u64, len, "{sender:?}\n{receiver:?}");
        assert_eq!(blake3::hash(&receiver.out), digest, "other bytes arrived: {sender:?}\n{receiver:?}");
        Arrived { sender, receiver }
    }

    /// Expect that both ends fail with that code within `limit`.
    #[track_caller]
    pub fn fails(self, code: i32, limit: Duration) -> Arrived {
        let sender = self.sender.wait_within(limit);
        let receiver = self.receiver.wait_within(limit);
        for end in [&sender, &receiver] {
            end.expect(code).claims_nothing();
        }
        Arrived { sender, receiver }
    }
}

impl Source {
    /// Feed a pipe with bytes that nothing compresses.
    fn start(mut feed: PipeWriter, length: Length) -> Source {
        let enough = Arc::new(AtomicBool::new(false));
        let ours = enough.clone();
        let thread = thread::spawn(move || {
            let mut hasher = blake3::Hasher::new();
            let mut random = blake3::Hasher::new().update(b"a stream").finalize_xof();
            let (mut block, mut len) = (vec![0; 64 << 10], 0);
            loop {
                let want = match length {
                    Length::Bytes(all) => (all - len).min(block.len() as u64) as usize,
                    Length::Open if ours.load(Relaxed) => 0,
                    Length::Open => block.len(),
                };
                random.fill(&mut block[..want]);
                // a sender that has failed reads no more
                if want == 0 || feed.write_all(&block[..want]).is_err() {
                    return (len, hasher.finalize());
                }
                hasher.update(&block[..want]);
                len += want as u64;
            }
        });
        Source { enough, thread }
    }
}

impl Arrived {
    /// What the sender's report says of each link.
    pub fn sent(&self) -> Vec<Row> {
        rows(self.sender.report())
    }

    /// What the receiver's report says of each link.
    pub fn received(&self) -> Vec<Row> {
        rows(&self.receiver.err)
    }

    /// Seconds from the first connection to Commit, as the sender reports them.
    pub fn seconds(&self) -> f64 {
        let words: Vec<&str> = self.sender.report().lines().next().unwrap_or("").split_whitespace().collect();
        let at = words.iter().position(|w| *w == "in").unwrap_or_else(|| panic!("no time: {:?}", self.sender));
        words[at + 1].parse().unwrap_or_else(|_| panic!("no seconds: {:?}", self.sender))
    }
}

/// A link's line in a report.
#[derive(Debug)]
pub struct Row {
    pub name: String,
    /// Of all bytes, in percent.
    pub share: f64,
    pub chunks: u64,
    pub resent: u64,
    pub hedged: u64,
    pub corrupt: u64,
    pub outages: u64,
    /// How long it was away in all, seconds.
    pub away: f64,
    /// Why it was down last, or nothing.
    pub last: String,
}

fn rows(report: &str) -> Vec<Row> {
    let table = report.lines().skip_while(|l| !l.trim_start().starts_with("link ") || !l.contains("share")).skip(1);
    let rows: Vec<Row> = table.take_while(|l| l.starts_with("  ")).map(row).collect();
    assert!(!rows.is_empty(), "no table of links: {report}");
    rows
}

/// `  l1  33.3 %  99 %  52.4 MB  50  0  0  0  0  away 4.2 s  last: why`; a link that was never up has `-` for what it
/// was used.
fn row(line: &str) -> Row {
    let (rest, last) = line.split_once("  last: ").unwrap_or((line, ""));
    let (figures, away) = rest.split_once("  away ").unwrap_or((rest, ""));
    let words: Vec<String> = figures.split_whitespace().map(|w| w.replace(',', "")).collect();
    let counts = &words[words.len().saturating_sub(5)..];
    let count = |at: usize| counts[at].parse().unwrap_or_else(|_| panic!("{:?} in {line:?}", counts[at]));
    Row {
        name: words[0].clone(),
        share: words[1].parse().unwrap_or_else(|_| panic!("no share in {line:?}")),
        chunks: count(0),
        resent: count(1),
        hedged: count(2),
        corrupt: count(3),
        outages: count(4),
        away: away_seconds(away),
        last: last.to_owned(),
    }
}

/// `4.2 s`, `1 min 5 s`, `less than 0.1 s`, or nothing.
fn away_seconds(text: &str) -> f64 {
    let words: Vec<&str> = text.split_whitespace().filter(|w| !["less", "than"].contains(w)).collect();
    let figure = |pair: &[&str]| {
        let figure: f64 = pair[0].parse().unwrap_or_else(|_| panic!("no span: {text:?}"));
        figure * if pair[1] == "min" { 60.0 } else { 1.0 }
    };
    words.chunks(2).map(figure).sum()
}

/// The row of that link.
#[track_caller]
pub fn of<'a>(rows: &'a [Row], name: &str) -> &'a Row {
    rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no link {name} in {rows:#?}"))
}

/// The links' names in order.
pub fn names(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
    names.sort_unstable();
    names
}
