//! Links that let small packets through and no large ones: named as such, and carrying again with small ones.

use std::time::Duration;

use crate::hosts::{Host, Lab, Length, Stream, at_once, names, of, says_times};

const MB: u64 = 1 << 20;

/// What is said of such a link.
const NAMED: &str = "large packets do not get through (MTU 1500?)";

/// From a to b, packets of more than `bytes` vanish on these links.
fn narrow(lab: &Lab, links: &[u32], bytes: u32) {
    let links: Vec<String> = links.iter().map(|l| format!("l{l}")).collect();
    lab.filter(Host::B, &format!("iifname {{ {} }} meta length > {bytes} drop", links.join(", ")));
}

fn two_links() -> Option<Lab> {
    let lab = Lab::up(&["40mbit", "40mbit"])?;
    (1..=2).for_each(|link| lab.segment_early(link));
    Some(lab)
}

/// `narrow` links let no packet of more than `bytes` through from the beginning; each is named, and carries.
fn from_the_start((narrow_links, bytes, times): (&[u32], u32, u64)) {
    let Some(lab) = two_links() else { return };
    narrow(&lab, narrow_links, bytes);
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    for link in narrow_links {
        stream.sender.says(&format!("link l{link} is down: {NAMED}"));
        says_times(&stream, &format!("link l{link} is back after "), times as usize);
        lab.carries(*link, 3 * MB);
    }
    let arrived = stream.arrives();
    let rows = arrived.sent();
    for row in &rows {
        let is_narrow = narrow_links.iter().any(|l| row.name == format!("l{l}"));
        assert_eq!(row.outages, if is_narrow { times } else { 0 }, "{rows:#?}");
        assert_eq!(row.last.contains(NAMED) && row.last.contains("check that both ends"), is_narrow, "{rows:#?}");
        // found by the third retransmission and a ping; silence is borne for ten seconds each time
        assert_eq!(row.away > 0.0, is_narrow, "{rows:#?}");
        assert!(row.away < 10.0 * times as f64, "{rows:#?}");
    }
    for row in arrived.received() {
        assert_eq!(row.outages, of(&rows, &row.name).outages, "the receiver is told at once: {:?}", arrived.receiver);
    }
}

#[test]
fn a_link_that_lets_no_large_packet_through_is_named_and_carries_small_ones_the_first_too() {
    at_once([(&[2][..], 1400, 1), (&[1], 1400, 1)], from_the_start);
}

#[test]
fn packets_may_have_to_be_smaller_still_and_on_every_link() {
    at_once([(&[2][..], 1000, 2), (&[1, 2], 1000, 2)], from_the_start);
}

/// The hole opens while the links are at work.
fn in_mid_run(link: u32) {
    let Some(lab) = two_links() else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    (1..=2).for_each(|link| lab.carries(link, 2 * MB));
    narrow(&lab, &[link], 1400);
    stream.sender.says(&format!("link l{link} is down: {NAMED}"));
    stream.sender.says(&format!("link l{link} is back after "));
    stream.receiver.says(&format!("link l{link} is back after "));
    lab.carries(link, 3 * MB);
    let rows = stream.arrives().sent();
    let row = of(&rows, &format!("l{link}"));
    assert_eq!((row.outages, row.last.contains(NAMED)), (1, true), "{rows:#?}");
    assert!(row.away > 0.0 && row.away < 10.0, "{rows:#?}");
    assert!(rows.iter().all(|r| r.name == row.name || r.outages == 0), "{rows:#?}");
}

#[test]
fn a_link_may_stop_letting_large_packets_through_in_mid_run_the_first_too() {
    at_once([1, 2], in_mid_run);
}

#[test]
fn links_that_are_slow_and_lose_packets_are_not_taken_for_black_holes() {
    let Some(lab) = Lab::up(&["1mbit", "1mbit"]) else { return };
    (1..=2).for_each(|link| lab.segment_early(link));
    lab.lose(2, 50);
    let arrived = Stream::start(&lab, Length::Bytes(3 * MB), "10.77.1.2", &[], &[]).arrives();
    let rows = arrived.sent();
    assert_eq!(names(&rows), ["l1", "l2"]);
    assert!(rows.iter().all(|r| r.outages == 0 && r.last.is_empty() && r.away == 0.0), "{rows:#?}");
    assert!(!arrived.receiver.err.contains("turned away"), "not even suspected: {:?}", arrived.receiver);
}

/// Connections come about again and again, and nothing that matters gets through: that is no sign of life.
#[test]
fn links_that_come_up_and_carry_nothing_do_not_put_off_the_timeout() {
    let Some(lab) = two_links() else { return };
    narrow(&lab, &[1, 2], 400);
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &["--timeout", "11"], &["--timeout", "20"]);
    stream.sender.says("link l1 is back after ");
    let failed = stream.fails(4, Duration::from_secs(30));
    failed.sender.tells("all links are lost (l1: large packets do not get through").tells("incomplete, 0 bytes");
    failed.receiver.tells("0 bytes delivered, nothing committed");
}
