//! Bytes changed on the way, past TCP's checksum, and packets that are lost.

use std::time::Duration;

use crate::hosts::{Lab, Length, Stream, at_once, of};

const MB: u64 = 1 << 20;
const THREE: [&str; 3] = ["100mbit", "100mbit", "100mbit"];

fn some_are_damaged(link: u32) {
    let Some(lab) = Lab::up(&THREE) else { return };
    // of segments up to 64 KiB long: one in five seconds or so
    lab.corrupt(link, 1000);
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    let name = format!("l{link}");
    let line = format!("link {name} brought a chunk that fails verification; it is sent again (2 so far)");
    stream.sender.says(&line);
    stream.receiver.says(&line);
    let arrived = stream.arrives();
    for rows in [arrived.sent(), arrived.received()] {
        for row in &rows {
            assert_eq!(row.corrupt >= 2, row.name == name, "{rows:#?}");
            assert!(row.name == name || row.corrupt == 0, "{rows:#?}");
        }
    }
    let resent: u64 = arrived.sent().iter().map(|r| r.resent).sum();
    assert!(resent >= 2, "{:#?}", arrived.sent());
}

#[test]
fn damaged_chunks_are_sent_again_counted_and_their_link_named_the_first_too() {
    at_once([1, 2], some_are_damaged);
}

#[test]
fn a_link_that_damages_everything_is_given_up_and_the_others_finish() {
    let Some(lab) = Lab::up(&["50mbit", "50mbit"]) else { return };
    lab.corrupt(2, 1);
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    stream.sender.says("link l2 is down: this link damaged too much in a row; 1 link remains");
    let arrived = stream.arrives();
    for rows in [arrived.sent(), arrived.received()] {
        assert_eq!(of(&rows, "l1").corrupt, 0, "{rows:#?}");
        // what is hit decides: a header's damage ends the connection, a payload's costs the chunk
        let l2 = of(&rows, "l2");
        assert!(l2.outages + l2.corrupt >= 8, "{rows:#?}");
    }
}

#[test]
fn when_the_only_link_damages_everything_both_ends_fail_verification() {
    let Some(lab) = Lab::up(&["100mbit"]) else { return };
    // or what is damaged is one in so many bursts, and chunks come through
    lab.segment_early(1);
    // every full packet: whole headers too; one in 50: no chunk comes through, and most headers do
    for one_in in [1, 50] {
        lab.corrupt(1, one_in);
        let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
        let failed = stream.fails(6, Duration::from_secs(30));
        failed.sender.tells("verification failed");
        failed.receiver.tells("verification failed");
    }
}

#[test]
fn lost_packets_cost_time_only() {
    let Some(lab) = Lab::up(&THREE) else { return };
    (1..=3).for_each(|link| lab.lose(link, 1));
    let rows = Stream::start(&lab, Length::Bytes(60 * MB), "10.77.1.2", &[], &[]).arrives().sent();
    assert!(rows.iter().all(|r| r.chunks > 0 && r.corrupt == 0 && r.outages == 0), "{rows:#?}");
}
