//! Links that carry one way only: nothing arrives at one end, while all that it sends arrives at the other.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use super::outages::three_links_with;
use crate::hosts::{Host, Lab, Length, Stream, at_once, of};
use crate::trees::random_bytes;

const MB: u64 = 1 << 20;
const THREE: [&str; 3] = ["60mbit", "60mbit", "60mbit"];

/// From now on nothing arrives at `host` over `links`.
fn deafen(lab: &Lab, host: Host, links: &str) {
    lab.filter(host, &format!("iifname {{ {links} }} drop"));
}

/// One end of a link hears nothing any more. Both find out, and the link is used again when it works.
fn one_end_is_deaf((deaf, link): (Host, u32)) {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links_with(&lab, &["--window", "64M"]);
    deafen(&lab, deaf, &format!("l{link}"));
    for end in [&stream.sender, &stream.receiver] {
        end.says(&format!("link l{link} is down: "));
    }
    lab.carries(link % 3 + 1, MB);
    lab.unfilter(deaf);
    stream.sender.says(&format!("link l{link} is back after 1"));
    lab.carries(link, 2 * MB);
    let arrived = stream.arrives();
    for rows in [arrived.sent(), arrived.received()] {
        let row = of(&rows, &format!("l{link}"));
        // found after ten seconds, dialled in vain for some
        assert!(row.outages == 1 && (9.0..40.0).contains(&row.away), "{rows:#?}");
        assert!(rows.iter().all(|r| r.name == row.name || r.outages == 0), "{rows:#?}");
    }
    assert!(!arrived.sender.err.contains("large packets"), "no packets get through, of whatever size: {arrived:?}");
}

#[test]
fn a_link_that_carries_one_way_only_is_found_dead_by_both_ends_and_comes_back_the_first_too() {
    at_once([(Host::B, 1), (Host::A, 1), (Host::B, 2), (Host::A, 3)], one_end_is_deaf);
}

/// A sender that hears nothing gives its links up, and what it says last may arrive. The receiver must not take that
/// for a goodbye, after which it would wait for ten seconds only.
#[test]
fn a_session_of_which_only_the_senders_words_arrive_is_waited_for_by_the_receiver_too() {
    let Some(lab) = Lab::up(&THREE) else { return };
    let receiver = lab.blast(Host::B, &["recv", "-v", "-"]).start();
    receiver.says("listening on port");
    let mut sender = lab.blast(Host::A, &["send", "-v", "-", "10.77.1.2"]).stdin(Stdio::piped()).start();
    let mut input = sender.take_stdin();
    let content = random_bytes(9, 6 << 20);
    input.write_all(&content[..3 << 20]).unwrap();
    receiver.brings(3 << 20);
    deafen(&lab, Host::A, "l1, l2, l3");
    for end in [&sender, &receiver] {
        end.says("no link remains, waiting for one to come back");
    }
    let patience = blast::limits::PEER_GONE + Duration::from_secs(1);
    assert!(!receiver.ends_within(patience), "the sender is there: {}", receiver.said());
    lab.unfilter(Host::A);
    for link in 1..=3 {
        receiver.says(&format!("link l{link} is back after "));
    }
    input.write_all(&content[3 << 20..]).unwrap();
    drop(input);
    sender.wait().expect(0);
    assert!(receiver.wait().expect(0).out == content);
}

/// Every link carries one way only: both ends give up after their timeout, not before, and say how far they came.
fn all_one_way(deaf: Host) {
    let Some(lab) = Lab::up(&["80mbit", "80mbit"]) else { return };
    let timeout = ["--timeout", "13"];
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &timeout, &timeout);
    (1..=2).for_each(|link| lab.carries(link, 4 * MB));
    deafen(&lab, deaf, "l1, l2");
    for end in [&stream.sender, &stream.receiver] {
        end.says("no link remains, waiting for one to come back");
    }
    let failed = stream.fails(4, Duration::from_secs(25));
    failed.sender.tells("all links are lost (l1: ").tells("bytes acknowledged").tells("incomplete, ");
    failed.receiver.tells("bytes delivered, nothing committed").tells("incomplete, ");
}

#[test]
fn when_every_link_carries_one_way_only_both_ends_give_up_after_the_timeout() {
    at_once([Host::A, Host::B], all_one_way);
}
