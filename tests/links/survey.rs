//! `blast links`: which links there are, and what they carry, measured against a receiver that goes on waiting.

use std::fs;

use serde_json::Value;

use crate::ends::scratch;
use crate::hosts::{Host, Lab, Length, Stream};

const MB: f64 = 1e6;

fn survey(lab: &Lab, args: &[&str]) -> Value {
    let done = lab.blast(Host::A, &[&["links", "--json", "--time", "1"], args].concat()).outcome();
    serde_json::from_slice(&done.expect(0).out).unwrap_or_else(|e| panic!("{e}: {done:?}"))
}

fn interface<'a>(survey: &'a Value, name: &str) -> &'a Value {
    let all = survey["interfaces"].as_array().unwrap();
    all.iter().find(|i| i["name"] == name).unwrap_or_else(|| panic!("no {name} in {survey}"))
}

#[test]
fn without_a_receiver_every_interface_is_shown_with_why_it_is_no_link() {
    let Some(lab) = Lab::up(&["max", "max"]) else { return };
    lab.on(Host::B, "ip link set l2 down");
    lab.on(Host::A, "ip link add lan0 type bridge");
    let survey = survey(&lab, &["--for", "8T"]);
    for (name, used, why) in [
        ("lo", false, "loopback"),
        ("l1", true, ""),
        ("l2", false, "no carrier: nothing at the other end of the cable"),
        ("lan0", false, "a bridge of containers or virtual machines"),
    ] {
        let shown = interface(&survey, name);
        assert_eq!((shown["used"].as_bool(), shown["why_not"].as_str().unwrap_or("")), (Some(used), why), "{shown}");
    }
    assert_eq!(interface(&survey, "l1")["addresses"][0], "10.77.1.1/24");
    assert!(survey["together_bytes_per_s"].is_null() && survey["for_bytes"] == 8u64 << 40, "{survey}");
}

#[test]
fn links_are_measured_alone_and_together_and_the_receiver_goes_on_waiting() {
    let Some(lab) = Lab::up(&["80mbit", "20mbit", "max"]) else { return };
    lab.on(Host::B, "ip link set l3 down");
    let dir = scratch();
    let dest = dir.path().join("dest");
    let receiver = lab.blast(Host::B, &["recv", "-v", dest.to_str().unwrap()]).start();
    receiver.says("listening on port");
    let survey = survey(&lab, &["10.77.2.2"]);
    // from above by what the links can carry; how much of it is had depends on the machine's other work
    for (name, most) in [("l1", 10.1 * MB), ("l2", 2.6 * MB)] {
        let measured = &interface(&survey, name)["measured"];
        let alone = measured["alone"]["bytes_per_s"].as_f64().unwrap_or(0.0);
        let beside = measured["together_bytes_per_s"].as_f64().unwrap_or(0.0);
        for rate in [alone, beside] {
            assert!((most / 10.0..most).contains(&rate), "{name}: {measured}");
        }
        assert_eq!(measured["alone"]["mtu"], 1500);
    }
    assert_eq!(interface(&survey, "l3")["used"], false);
    receiver.says("10.77.2.1 measures the links");
    assert!(!dest.exists(), "nothing was received");
    lab.blast(Host::A, &["send", "/etc/passwd", "10.77.1.2"]).outcome().expect(0);
    receiver.wait().expect(0);
    assert_eq!(fs::read(&dest).unwrap(), fs::read("/etc/passwd").unwrap());
}

#[test]
fn a_sender_that_comes_while_the_links_are_measured_is_served_at_once() {
    let Some(lab) = Lab::up(&["20mbit"]) else { return };
    let receiver = lab.blast(Host::B, &["recv", "-v", "-"]).start();
    receiver.says("listening on port");
    let survey = lab.blast(Host::A, &["links", "--time", "600", "10.77.1.2"]).start();
    receiver.says("measures the links");
    lab.carries(1, 1 << 20);
    Stream::to(&lab, receiver, Length::Bytes(3 << 20), "10.77.1.2", &[]).arrives();
    survey.wait().expect(7).tells("another sender came");
}

#[test]
fn without_anybody_who_waits_there_is_nothing_to_measure() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let failed = lab.blast(Host::A, &["links", "10.77.1.77"]).outcome();
    failed.expect(4).tells("cannot reach 10.77.1.77:7411").tells("try: ");
}
