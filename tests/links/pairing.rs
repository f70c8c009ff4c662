//! Which links are made: every network that both hosts share, with one address given; or what `--link` names.

use std::time::Duration;

use crate::hosts::{Host, Lab, Length, Stream, names, of, until};

const MB: u64 = 1 << 20;
const THREE: [&str; 3] = ["100mbit", "100mbit", "100mbit"];

/// All links of this stream carry something before it ends.
#[track_caller]
fn all_carry(lab: &Lab, links: &[u32], to: &str, options: &[&str]) -> Vec<String> {
    let stream = Stream::start(lab, Length::Open, to, options, &[]);
    let before: Vec<u64> = links.iter().map(|l| lab.sent(*l)).collect();
    until("every link carries 3 MB", || links.iter().zip(&before).all(|(l, b)| lab.sent(*l) > b + 3 * MB));
    let rows = stream.arrives().sent();
    assert!(rows.iter().all(|r| r.chunks > 0 && r.outages == 0), "{rows:#?}");
    names(&rows).into_iter().map(str::to_owned).collect()
}

#[test]
fn given_one_address_every_shared_network_carries_its_share() {
    let Some(lab) = Lab::up(&THREE) else { return };
    let arrived = Stream::start(&lab, Length::Bytes(90 * MB), "10.77.2.2", &[], &[]).arrives();
    for rows in [arrived.sent(), arrived.received()] {
        assert_eq!(names(&rows), ["l1", "l2", "l3"]);
        // equal links have equal shares, but for what the first carried before the others were up
        assert!(rows.iter().all(|r| (25.0..42.0).contains(&r.share)), "{rows:#?}");
        assert!(rows.iter().all(|r| r.corrupt == 0 && r.outages == 0 && r.last.is_empty()), "{rows:#?}");
    }
    assert!(arrived.receiver.err.contains("connected with 10.77.2.1:"), "an IPv4 peer is shown as one");
}

#[test]
fn hosts_without_ipv4_share_all_their_networks_too() {
    let Some(lab) = Lab::up(&THREE) else { return };
    for link in 1..=3 {
        lab.on_both(&format!("ip -4 address flush dev l{link}"));
    }
    assert_eq!(all_carry(&lab, &[1, 2, 3], "fd77:3::2", &[]), ["l1", "l2", "l3"]);
}

#[test]
fn cables_without_addresses_carry_their_share() {
    let Some(lab) = Lab::up(&THREE) else { return };
    for link in 2..=3 {
        lab.on_both(&format!("ip -4 address flush dev l{link}"));
        lab.on_both(&format!("ip -6 address flush dev l{link} scope global"));
    }
    assert_eq!(all_carry(&lab, &[1, 2, 3], "10.77.1.2", &[]), ["l1", "l2", "l3"]);
}

#[test]
fn a_link_local_address_is_address_enough() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    for link in 1..=2 {
        lab.on_both(&format!("ip -4 address flush dev l{link}"));
        lab.on_both(&format!("ip -6 address flush dev l{link} scope global"));
    }
    let to = format!("{}%l2", lab.link_local(Host::B, 2));
    assert_eq!(all_carry(&lab, &[1, 2], &to, &[]), ["l1", "l2"]);
}

#[test]
fn one_network_on_two_interfaces_is_two_links() {
    let Some(lab) = Lab::up(&THREE) else { return };
    for link in 2..=3 {
        lab.on_both(&format!("ip -4 address flush dev l{link}"));
        lab.on_both(&format!("ip -6 address flush dev l{link} scope global"));
        lab.on(Host::A, &format!("ip address add 10.99.0.1{link}/24 dev l{link}"));
        lab.on(Host::B, &format!("ip address add 10.99.0.2{link}/24 dev l{link}"));
    }
    assert_eq!(all_carry(&lab, &[1, 2, 3], "10.77.1.2", &[]), ["l1", "l2", "l3"]);
}

#[test]
fn an_interface_that_appears_later_joins() {
    let Some(lab) = Lab::up(&["50mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    stream.sender.says("link l1 is up");
    let link = lab.lay();
    for (host, number) in [(Host::A, 1), (Host::B, 2)] {
        lab.on(host, &format!("ip address add 10.88.0.{number}/24 dev l{link}"));
        lab.on(host, &format!("ip link set l{link} up"));
    }
    stream.sender.says("link l2 is up");
    lab.carries(link, 3 * MB);
    assert_eq!(names(&stream.arrives().received()), ["l1", "l2"]);
}

#[test]
fn links_given_by_interface_or_address_are_the_only_ones() {
    let Some(lab) = Lab::up(&THREE) else { return };
    for (options, used) in [
        (&["--link", "l2"][..], &[("l2", 2)][..]),
        (&["--link", "10.77.3.2"], &[("10.77.3.2", 3)]),
        (&["--link", "fd77:2::1"], &[("fd77:2::1", 2)]),
        (&["--link", "10.77.3.1", "--link", "l1"], &[("10.77.3.1", 3), ("l1", 1)]),
    ] {
        let before = [1, 2, 3].map(|l| lab.sent(l));
        let rows = Stream::start(&lab, Length::Bytes(12 * MB), "10.77.1.2", options, &[]).arrives().sent();
        assert_eq!(rows.len(), used.len(), "{options:?}: {rows:#?}");
        for link in 1..=3 {
            let carried = lab.sent(link) - before[link as usize - 1];
            match used.iter().find(|(_, l)| *l == link) {
                Some((name, _)) => assert!(of(&rows, name).chunks > 0 && carried > 2 * MB, "{options:?}: {rows:#?}"),
                None => assert!(carried < MB, "{options:?}: link {link} carried {carried} bytes"),
            }
        }
    }
}

#[test]
fn a_link_by_hand_may_be_a_cable_without_addresses() {
    let Some(lab) = Lab::up(&THREE) else { return };
    lab.on_both("ip -4 address flush dev l3");
    lab.on_both("ip -6 address flush dev l3 scope global");
    let carried = lab.sent(3);
    let rows = Stream::start(&lab, Length::Bytes(12 * MB), "10.77.1.2", &["--link", "l3"], &[]).arrives().sent();
    assert_eq!(names(&rows), ["l3"]);
    assert!(lab.sent(3) - carried > 12 * MB, "{rows:#?}");
}

#[test]
fn a_link_by_hand_that_does_not_exist_is_a_usage_error_that_names_those_that_do() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let refused = lab.blast(Host::A, &["send", "--link", "eth7", "/etc/hostname", "10.77.1.2"]).outcome();
    refused.expect(2).tells("--link eth7: no such interface here has an address (there are l1, lo)");
}

#[test]
fn links_by_hand_that_lead_nowhere_end_in_an_error_on_both_ends() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let options = ["--link", "10.66.6.6", "--timeout", "2"];
    let failed = Stream::start(&lab, Length::Bytes(MB), "10.77.1.2", &options, &[]).fails(4, Duration::from_secs(20));
    failed.sender.tells("all links are lost (10.66.6.6: ");
    failed.receiver.tells("the other side stopped: all links are lost");
}

#[test]
fn streams_are_so_many_connections_on_every_link() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &["--streams", "20"], &[]);
    for link in ["l1", "l2"] {
        let line = format!("link {link} is up");
        until(&format!("20 times: {line}"), || stream.sender.said().matches(&line).count() == 20);
    }
    let arrived = stream.arrives();
    assert!(!arrived.sender.err.contains("is down"), "the receiver turned none away: {:?}", arrived.sender);
    let rows = arrived.sent();
    assert_eq!(names(&rows), ["l1", "l2"], "streams of one link are one line of the report");
}
