//! What links add up to. Coarse on purpose, since the machine may be busy: orders of magnitude between right and wrong.

use crate::hosts::{Host, Lab, Length, Stream, measuring, of, until};

const MB: u64 = 1 << 20;

#[test]
fn three_equal_links_carry_a_third_each_at_the_same_time() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["60mbit", "60mbit", "60mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    lab.carries(1, 5 * MB);
    let second = carried_meanwhile(&lab, 2, || lab.carries(1, 10 * MB));
    let third = carried_meanwhile(&lab, 3, || lab.carries(2, 10 * MB));
    assert!(second > 5 * MB && third > 5 * MB, "while another carried 10 MiB: {second} and {third} bytes");
    let sent = stream.arrives().sent();
    assert!(sent.len() == 3 && sent.iter().all(|row| (25.0..42.0).contains(&row.share)), "{sent:#?}");
}

#[test]
fn a_slow_link_beside_a_fast_one_adds_its_little() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["200mbit", "10mbit"]) else { return };
    let arrived = Stream::start(&lab, Length::Bytes(48 * MB), "10.77.1.2", &[], &[]).arrives();
    let rows = arrived.received();
    assert!(of(&rows, "l2").chunks > 0 && of(&rows, "l2").share < 20.0, "{rows:#?}");
}

#[test]
fn a_link_that_becomes_a_hundred_times_slower_does_not_hold_up_the_other() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Bytes(60 * MB), "10.77.1.2", &[], &[]);
    lab.carries(2, 5 * MB);
    lab.rate(2, "1mbit");
    let arrived = stream.arrives();
    // 5 s by the other alone; by the slow one its half would take 4 minutes
    assert!(arrived.seconds() < 60.0, "{:?}", arrived.sender);
}

#[test]
fn shares_follow_when_the_links_change_places() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["50mbit", "5mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    lab.carries(2, MB);
    let slow_one = carried_meanwhile(&lab, 2, || lab.carries(1, 10 * MB));
    assert!(slow_one < 5 * MB, "{slow_one} bytes on the link with a tenth of the rate");
    lab.rate(1, "5mbit");
    lab.rate(2, "50mbit");
    // what waits in sockets still goes as it was shared out
    lab.carries(2, 5 * MB);
    let slow_one = carried_meanwhile(&lab, 1, || lab.carries(2, 20 * MB));
    assert!(slow_one < 10 * MB, "{slow_one} bytes on the link that has become slow");
    stream.arrives();
}

/// Bytes that host a sends on a link while something happens.
fn carried_meanwhile(lab: &Lab, link: u32, happens: impl FnOnce()) -> u64 {
    let before = lab.sent(link);
    happens();
    lab.sent(link) - before
}

#[test]
fn a_stragglers_last_chunks_are_sent_again_by_the_other_link() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Bytes(40 * MB), "10.77.1.2", &[], &[]);
    lab.carries(2, 5 * MB);
    // 16 s for a chunk
    lab.rate(2, "500kbit");
    let sent = stream.arrives().sent();
    assert!(of(&sent, "l1").hedged > 0, "{sent:#?}");
    assert!(of(&sent, "l2").share < 35.0 && of(&sent, "l2").outages == 0, "{sent:#?}");
}

#[test]
fn a_link_that_is_forty_times_as_long_takes_part() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["40mbit/1ms", "40mbit/40ms"]) else { return };
    let sent = Stream::start(&lab, Length::Bytes(32 * MB), "10.77.1.2", &[], &[]).arrives().sent();
    assert!(of(&sent, "l2").share > 20.0 && of(&sent, "l1").share > 20.0, "{sent:#?}");
    assert!(sent.iter().all(|row| row.outages == 0), "{sent:#?}");
}

#[test]
fn a_long_link_gets_as_many_connections_as_its_window_calls_for() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["200mbit/20ms"]) else { return };
    // one connection: some 100 kB in each round trip of 40 ms, a tenth of what the link carries
    lab.set("net.ipv4.tcp_rmem", "4096 65536 131072");
    // what it measures is less while the machine is busy with something else
    let enough = (0..3).any(|_| {
        let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
        stream.sender.says("x of one)");
        let up = lab.on(Host::A, "ss -Htn state established").lines().count();
        let arrived = stream.arrives();
        let said = &arrived.sender.err;
        let found = said.split_once("link l1: ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        assert!(found.is_some_and(|n: usize| n >= 2 && up >= n), "{up} are up: {said}");
        assert_eq!(said.matches("x of one)").count(), 1, "it is said once: {said}");
        found >= Some(4)
    });
    assert!(enough, "three times less than four connections, where ten would be right");
}

#[test]
fn connections_that_gain_nothing_leave_without_an_outage() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["50mbit/10ms"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    stream.sender.says("link l1: 1 connection (measured: 2 carry ");
    until("one connection is left", || lab.on(Host::A, "ss -Htn state established").lines().count() == 1);
    let arrived = stream.arrives();
    for rows in [arrived.sent(), arrived.received()] {
        let row = of(&rows, "l1");
        assert_eq!((row.outages, row.resent), (0, 0), "{rows:#?}");
    }
    assert!(!arrived.receiver.err.contains("is down"), "{:?}", arrived.receiver);
}
