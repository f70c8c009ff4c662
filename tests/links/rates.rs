//! What links add up to. Coarse on purpose, since the machine may be busy: orders of magnitude between right and wrong.

use crate::hosts::{Lab, Length, Stream, measuring, of};

const MB: u64 = 1 << 20;

#[test]
fn three_equal_links_carry_nearly_three_times_as_much_as_one() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["60mbit", "60mbit", "60mbit"]) else { return };
    let one = Stream::start(&lab, Length::Bytes(30 * MB), "10.77.1.2", &["--link", "l1"], &[]).arrives().seconds();
    let three = Stream::start(&lab, Length::Bytes(30 * MB), "10.77.1.2", &[], &[]).arrives().seconds();
    assert!(one / three > 2.0, "{one} s on one link, {three} s on three");
}

#[test]
fn a_slow_link_beside_a_fast_one_adds_its_little() {
    let _alone = measuring();
    let Some(lab) = Lab::up(&["200mbit", "10mbit"]) else { return };
    let arrived = Stream::start(&lab, Length::Bytes(48 * MB), "10.77.1.2", &[], &[]).arrives();
    // 2.1 s by the fast one alone; in equal shares it would take 20 s
    assert!(arrived.seconds() < 6.0, "{:?}", arrived.sender);
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
    // 5 s by the other alone; by the slow one its half would take minutes
    assert!(arrived.seconds() < 20.0, "{:?}", arrived.sender);
}
