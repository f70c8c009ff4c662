//! Options that operators know: limits on the rate, congestion control, marks on packets. Limits are shown by what
//! cannot be faster, which holds on a busy machine too.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::ends::{BLAST, Run, scratch};
use crate::hosts::{Host, Lab, Length, Stream, of, until};

const MB: u64 = 1 << 20;

/// The least that so many bytes can take at that rate, but for a start and what a late timer may make up for.
fn least(bytes: u64, rate: u64) -> f64 {
    bytes as f64 / rate as f64 * 0.95
}

#[test]
fn a_limit_for_the_whole_is_shared_by_the_links_and_named_as_what_limited() {
    let Some(lab) = Lab::up(&["200mbit", "200mbit"]) else { return };
    let options = ["--bwlimit", "4M", "--compress", "off"];
    let arrived = Stream::start(&lab, Length::Bytes(16 * MB), "10.77.1.2", &options, &[]).arrives();
    // 0.3 s without it
    assert!(arrived.seconds() >= least(16 * MB, 4 * MB), "{:?}", arrived.sender);
    let rows = arrived.sent();
    // in turns, but for what the first carried before the other was up
    assert!(rows.iter().all(|r| (20.0..80.0).contains(&r.share)), "{rows:#?}");
    assert!(rows.iter().all(|r| r.outages == 0 && r.hedged <= 1), "{rows:#?}");
    arrived.sender.tells("limited by: --bwlimit, ");
}

#[test]
fn a_limit_for_one_link_shows_in_its_share() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let options = ["--bwlimit", "l2=8mbit", "--compress", "off"];
    let arrived = Stream::start(&lab, Length::Bytes(48 * MB), "10.77.1.2", &options, &[]).arrives();
    let rows = arrived.sent();
    let slow = of(&rows, "l2");
    assert!(slow.chunks > 0 && slow.share < 20.0, "half without it: {rows:#?}");
    let carried = slow.share / 100.0 * 48.0 * MB as f64;
    assert!(arrived.seconds() >= least(carried as u64, 1_000_000) - 0.3, "{rows:#?} {:?}", arrived.sender);
}

#[test]
fn a_link_that_dies_leaves_its_part_of_the_limit_to_the_others() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Bytes(12 * MB), "10.77.1.2", &["--bwlimit", "8mbit"], &[]);
    lab.carries(2, MB);
    lab.cut(2);
    stream.sender.says("link l2 is down");
    // half of the limit was its own before, and all of it is now
    let (before, began) = (lab.sent(1), Instant::now());
    lab.carries(1, 5 * MB);
    let rate = (lab.sent(1) - before) as f64 / began.elapsed().as_secs_f64();
    assert!(rate < 1_250_000.0, "{rate} bytes/s with headers");
    assert!(rate > 600_000.0, "{rate} bytes/s");
    stream.arrives();
}

#[test]
fn a_chunk_that_trickles_for_longer_than_links_may_be_silent_arrives() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let options = ["--bwlimit", "20K", "--compress", "off"];
    let arrived = Stream::start(&lab, Length::Bytes(300 << 10), "10.77.1.2", &options, &[]).arrives();
    assert!(arrived.seconds() >= least(300, 20), "{:?}", arrived.sender);
    for rows in [arrived.sent(), arrived.received()] {
        assert!(rows.iter().all(|r| r.outages == 0 && r.resent == 0), "{rows:#?}");
    }
    // late because of the limit, the chunk is not sent on the other link as well, which would make it later
    let other = lab.sent(1).min(lab.sent(2));
    assert!(other < 100 << 10, "{other} bytes on the other link");
}

#[test]
fn an_interrupt_is_heard_at_the_other_end_although_a_chunk_trickles() {
    let Some(lab) = Lab::up(&["100mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &["--bwlimit", "10K"], &[]);
    lab.carries(1, 10 << 10);
    stream.sender.signal(rustix::process::Signal::INT);
    let failed = stream.fails(7, Duration::from_secs(20));
    failed.receiver.tells("the other side stopped: interrupted: SIGINT");
}

#[test]
fn a_limit_for_what_is_no_link_is_a_usage_error() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    for (options, why) in [
        (&["--bwlimit", "eth7=1M"][..], "--bwlimit eth7: no such interface here has an address (there are l1, lo)"),
        (&["--bwlimit", "10.77.1.2=1M"], "--bwlimit 10.77.1.2: no link has this name (links have their interfaces'"),
        (&["--link", "l1", "--bwlimit", "lo=1M"], "--bwlimit lo: no link has this name (--link names l1)"),
    ] {
        let args = [&["send"], options, &["/etc/hostname", "10.77.1.2"]].concat();
        lab.blast(Host::A, &args).outcome().expect(2).tells(why);
    }
}

/// `ss -ti` of a host shows that congestion control on a connection.
fn shows(lab: &Lab, host: Host, name: &str) -> bool {
    lab.on(host, "ss -Htinn state established").split_whitespace().any(|word| word == name)
}

#[test]
fn each_side_has_the_congestion_control_it_asks_for() {
    let Some(lab) = Lab::up(&["50mbit", "50mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &["--congestion", "reno"], &[]);
    lab.carries(2, MB);
    assert!(shows(&lab, Host::A, "reno") && !shows(&lab, Host::A, "cubic"), "all connections of the sender");
    assert!(shows(&lab, Host::B, "cubic") && !shows(&lab, Host::B, "reno"), "the receiver has asked for nothing");
    stream.arrives();
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &["--congestion", "reno"]);
    lab.carries(2, MB);
    assert!(shows(&lab, Host::B, "reno") && !shows(&lab, Host::B, "cubic"), "accepted connections have it too");
    stream.arrives();
}

#[test]
fn a_congestion_control_that_the_kernel_lacks_is_refused_before_anything_is_done() {
    let dir = scratch();
    let target = dir.path().join("target");
    let target = target.to_str().expect("text");
    for (side, operands) in [("send", &["/etc/hostname", "127.0.0.1:1"][..]), ("recv", &["-p", "0", target])] {
        let args = [&[side, "--congestion", "nonesuch"], operands].concat();
        let refused = Run::of(side, Command::new(BLAST), &args).outcome();
        refused.expect(2).tells("--congestion nonesuch: this kernel does not have it (available: ");
        refused.tells("modprobe tcp_nonesuch");
    }
    assert!(!std::path::Path::new(target).exists(), "nothing is made");
}

/// Packets that came in with that mark, those of IPv4 and of IPv6, and those of TCP without it.
fn counted(lab: &Lab, host: Host) -> Vec<u64> {
    let listed = lab.on(host, "nft list table inet test");
    let mut words = listed.split_whitespace();
    let mut counts = Vec::new();
    while let Some(word) = words.next() {
        if word == "packets" {
            counts.push(words.next().and_then(|n| n.parse().ok()).expect("a number of packets"));
        }
    }
    counts
}

#[test]
fn each_side_marks_all_its_packets_of_both_families() {
    let Some(lab) = Lab::up(&["50mbit", "50mbit"]) else { return };
    // One link of each family; without ECN a packet's byte is the mark alone. The kernel resets a connection that is
    // gone on its own account and has no mark for that.
    lab.on_both("ip -4 address flush dev l2");
    for (host, mark) in [(Host::B, "ef"), (Host::A, "af21")] {
        let ports = if host == Host::B { "tcp dport 7411" } else { "tcp sport 7411" };
        lab.filter(
            host,
            &format!(
                "{ports} ip dscp {mark} ip ecn not-ect counter; {ports} ip6 dscp {mark} ip6 ecn not-ect counter; \
                 {ports} tcp flags & rst == 0 ip dscp != {mark} counter; \
                 {ports} tcp flags & rst == 0 ip6 dscp != {mark} counter; \
                 {ports} tcp flags & syn == syn ip dscp {mark} counter; \
                 {ports} tcp flags & syn == syn ip6 dscp {mark} counter"
            ),
        );
    }
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &["--dscp", "ef"], &["--dscp", "af21"]);
    until("both links carry something", || [1, 2].iter().all(|l| lab.sent(*l) > 2 * MB));
    stream.arrives();
    for host in [Host::A, Host::B] {
        let [v4, v6, other_v4, other_v6, syn_v4, syn_v6] = counted(&lab, host)[..] else { panic!("six counters") };
        assert!(v4 > 10 && v6 > 10, "on {host:?}: {v4} and {v6} packets are marked");
        assert_eq!((other_v4, other_v6), (0, 0), "on {host:?} some are not");
        assert!(syn_v4 > 0 && syn_v6 > 0, "on {host:?} the first packets are not");
    }
}
