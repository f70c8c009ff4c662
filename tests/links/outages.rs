//! Links that die while a stream is on them: cut, silenced, reset, again and again, the first one too, and all at once.

use std::time::Duration;

use crate::hosts::{Lab, Length, Stream, of, says_times};

const MB: u64 = 1 << 20;
const THREE: [&str; 3] = ["80mbit", "80mbit", "80mbit"];

/// Far more than blast takes to move what links that are up can carry at once; less than a link's silence is borne.
const SOON: Duration = Duration::from_secs(8);

pub(super) fn three_links(lab: &Lab) -> Stream {
    three_links_with(lab, &[])
}

/// The same, with these options to the receiver.
pub(super) fn three_links_with(lab: &Lab, recv: &[&str]) -> Stream {
    let stream = Stream::start(lab, Length::Open, "10.77.1.2", &[], recv);
    for link in 1..=3 {
        stream.sender.says(&format!("link l{link} is up"));
        lab.carries(link, MB);
    }
    stream
}

/// One cable is pulled and plugged in again; the stream goes on without it and with it.
fn cut_and_back(link: u32) {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links(&lab);
    lab.cut(link);
    stream.sender.says(&format!("link l{link} is down: no carrier; 2 links remain"));
    stream.receiver.says(&format!("link l{link} is down: no carrier"));
    for other in (1..=3).filter(|l| *l != link) {
        lab.carries(other, 2 * MB);
    }
    lab.join(link);
    stream.sender.says(&format!("link l{link} is back"));
    lab.carries(link, 2 * MB);
    let arrived = stream.arrives();
    for rows in [arrived.sent(), arrived.received()] {
        for row in &rows {
            let down = row.name == format!("l{link}");
            assert_eq!((row.outages, row.last.as_str()), if down { (1, "no carrier") } else { (0, "") }, "{rows:#?}");
            assert_eq!(row.away > 0.0, down, "{rows:#?}");
        }
    }
}

#[test]
fn a_pulled_cable_is_noticed_at_once_and_carries_again_when_it_is_back() {
    cut_and_back(2);
}

#[test]
fn the_first_link_may_be_the_one_whose_cable_is_pulled() {
    cut_and_back(1);
}

#[test]
fn a_cable_that_is_pulled_three_times_comes_back_three_times() {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links(&lab);
    for times in 1..=3 {
        lab.cut(2);
        says_times(&stream, "link l2 is down: no carrier", times);
        lab.join(2);
        says_times(&stream, "link l2 is back", times);
    }
    lab.carries(2, 2 * MB);
    let rows = stream.arrives().sent();
    assert_eq!(of(&rows, "l2").outages, 3, "{rows:#?}");
}

/// One link turns into a black hole: neither end is told. It is found dead, and carries again when it is healed.
fn black_hole(link: u32) {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links_with(&lab, &["--window", "64M"]);
    lab.hole(link);
    stream.sender.says(&format!("link l{link} is down: silent for 10 s; 2 links remain"));
    stream.receiver.says(&format!("link l{link} is down: silent for 10 s"));
    lab.heal(link);
    stream.sender.says(&format!("link l{link} is back"));
    lab.carries(link, 2 * MB);
    let rows = stream.arrives().sent();
    let row = of(&rows, &format!("l{link}"));
    assert!(row.outages == 1 && row.last.contains("10 s") && (10.0..60.0).contains(&row.away), "{rows:#?}");
    // long before it is found dead: the others run out of window, and send what is late once more
    assert!(rows.iter().any(|r| r.name != row.name && r.hedged > 0), "{rows:#?}");
}

#[test]
fn a_link_that_turns_into_a_black_hole_is_found_dead_and_carries_again_when_healed() {
    black_hole(3);
}

#[test]
fn the_first_link_may_be_the_black_hole() {
    black_hole(1);
}

#[test]
fn the_end_does_not_wait_for_a_silent_link() {
    let Some(lab) = Lab::up(&THREE) else { return };
    for link in [1, 3] {
        let stream = three_links(&lab);
        lab.hole(link);
        lab.carries(2, MB);
        stream.enough();
        // what the silent link had taken is sent again by the others, long before it is found dead
        let arrived = stream.arrives();
        assert!(arrived.sender.waited < SOON && arrived.receiver.waited < SOON, "{:?}", arrived.sender);
        lab.heal(link);
    }
}

#[test]
fn a_link_whose_every_segment_is_reset_is_dialled_until_it_answers() {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links(&lab);
    lab.reset(2);
    stream.sender.says("link l2 is down: reset by the peer; 2 links remain");
    stream.receiver.says("link l2 is down: ");
    stream.sender.says("link l2 is down: connection refused");
    lab.carries(1, 2 * MB);
    lab.heal(2);
    stream.sender.says("link l2 is back");
    lab.carries(2, 2 * MB);
    let rows = stream.arrives().sent();
    assert_eq!(of(&rows, "l2").outages, 1, "{rows:#?}");
}

#[test]
fn when_every_link_is_silent_both_ends_give_up_after_the_timeout_and_say_how_far_they_came() {
    let Some(lab) = Lab::up(&["80mbit", "80mbit"]) else { return };
    let timeout = ["--timeout", "12"];
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &timeout, &timeout);
    (1..=2).for_each(|link| lab.carries(link, 4 * MB));
    (1..=2).for_each(|link| lab.hole(link));
    stream.sender.says("no link remains, waiting for one to come back");
    stream.receiver.says("no link remains, waiting for one to come back");
    let failed = stream.fails(4, Duration::from_secs(20));
    failed.sender.tells("all links are lost (l1: ").tells("bytes acknowledged").tells("incomplete, ");
    failed.receiver.tells("all links to the sender are lost (l1: ").tells("bytes delivered, nothing committed");
    assert!(!failed.sender.err.contains("outcome unknown"), "not everything was sent: {:?}", failed.sender);
}

#[test]
fn with_every_cable_pulled_the_timeout_begins_at_once() {
    let Some(lab) = Lab::up(&["80mbit", "80mbit"]) else { return };
    let timeout = ["--timeout", "2"];
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &timeout, &timeout);
    (1..=2).for_each(|link| lab.carries(link, 2 * MB));
    (1..=2).for_each(|link| lab.cut(link));
    let failed = stream.fails(4, SOON);
    for end in [failed.sender, failed.receiver] {
        end.tells("no carrier; no link remains").tells("incomplete");
    }
}

#[test]
fn a_session_survives_the_loss_of_every_link_within_the_timeout() {
    let Some(lab) = Lab::up(&["80mbit", "80mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    (1..=2).for_each(|link| lab.carries(link, 2 * MB));
    (1..=2).for_each(|link| lab.cut(link));
    stream.sender.says("no carrier; no link remains");
    stream.receiver.says("no carrier; no link remains");
    lab.join(2);
    stream.sender.says("link l2 is back");
    lab.carries(2, 2 * MB);
    stream.arrives();
}
