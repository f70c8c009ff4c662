//! What is taken away in mid-run and comes back: connections that somebody kills, at one end or in between; addresses;
//! whole interfaces. Each also on the first link.

use super::outages::three_links;
use crate::hosts::{Host, Lab, Length, Stream, at_once, of, says_times};

const MB: u64 = 1 << 20;
const THREE: [&str; 3] = ["80mbit", "80mbit", "80mbit"];

/// All of it arrives, and this link alone was away, so often, on both ends.
#[track_caller]
fn arrives_after(stream: Stream, link: u32, outages: u64) {
    let arrived = stream.arrives();
    let (sent, received) = (arrived.sent(), arrived.received());
    for row in sent.iter().chain(&received) {
        let expected = if row.name == format!("l{link}") { outages } else { 0 };
        assert!(row.outages == expected && (expected > 0 || row.away == 0.0), "{row:?}\n{arrived:?}");
    }
    assert!(of(&sent, &format!("l{link}")).away > 0.0, "{sent:#?}");
}

fn killed_by_the_system((host, link): (Host, u32)) {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links(&lab);
    let listed = lab.on(host, &format!("ss -tnK src 10.77.{link}.{}", if host == Host::A { 1 } else { 2 }));
    if !listed.contains(&format!("10.77.{link}.")) {
        eprintln!("SKIPPED: connections that are killed by ss -K: this kernel cannot");
        return;
    }
    for end in [&stream.sender, &stream.receiver] {
        end.says(&format!("link l{link} is down: "));
        end.says(&format!("link l{link} is back after "));
    }
    lab.carries(link, 2 * MB);
    arrives_after(stream, link, 1);
}

#[test]
fn a_connection_that_either_host_kills_is_made_again_the_first_too() {
    at_once([(Host::A, 1), (Host::B, 1), (Host::A, 2), (Host::B, 3)], killed_by_the_system);
}

/// A firewall at one end resets whatever arrives there; the other end's word does not reach the program behind it.
fn reset_at((host, link): (Host, u32)) {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links(&lab);
    lab.filter(host, &format!("iifname l{link} tcp flags & rst == 0 reject with tcp reset"));
    for end in [&stream.sender, &stream.receiver] {
        end.says(&format!("link l{link} is down: "));
    }
    lab.carries(link % 3 + 1, MB);
    lab.unfilter(host);
    for end in [&stream.sender, &stream.receiver] {
        end.says(&format!("link l{link} is back after "));
    }
    lab.carries(link, 2 * MB);
    arrives_after(stream, link, 1);
}

#[test]
fn a_link_that_is_reset_at_one_end_comes_back_the_first_too() {
    at_once([(Host::A, 1), (Host::B, 1), (Host::B, 2), (Host::A, 3)], reset_at);
}

#[test]
fn a_link_that_flaps_five_times_comes_back_five_times() {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links(&lab);
    for times in 1..=5 {
        for link in 1..=2 {
            lab.cut(link);
            says_times(&stream, &format!("link l{link} is down: no carrier"), times);
            lab.join(link);
            says_times(&stream, &format!("link l{link} is back after "), times);
        }
    }
    (1..=2).for_each(|link| lab.carries(link, MB));
    let rows = stream.arrives().sent();
    assert_eq!([1, 2, 3].map(|l| of(&rows, &format!("l{l}")).outages), [5, 5, 0], "{rows:#?}");
}

/// An address goes, and comes back.
fn address_away((host, link): (Host, u32)) {
    let Some(lab) = Lab::up(&THREE) else { return };
    let stream = three_links(&lab);
    let address = format!("10.77.{link}.{}/24 dev l{link}", if host == Host::A { 1 } else { 2 });
    lab.on(host, &format!("ip address delete {address}"));
    let here = if host == Host::A { &stream.sender } else { &stream.receiver };
    here.says(&format!("link l{link} is down: its address is gone; 2 links remain"));
    stream.sender.says(&format!("link l{link} is down: "));
    lab.carries(link % 3 + 1, MB);
    lab.on(host, &format!("ip address add {address}"));
    stream.sender.says(&format!("link l{link} is back after "));
    // the other end may hear of the loss later than of the return
    stream.receiver.says(&format!("link l{link} is down: "));
    lab.carries(link, 2 * MB);
    arrives_after(stream, link, 1);
}

#[test]
fn an_address_that_goes_and_comes_back_is_used_again_the_first_links_too() {
    at_once([(Host::A, 1), (Host::B, 1), (Host::A, 3), (Host::B, 2)], address_away);
}

/// An interface is deleted and made anew, so that it has another index.
fn interface_anew(link: u32, addresses: bool) {
    let Some(lab) = Lab::up(&THREE) else { return };
    if !addresses {
        lab.on_both(&format!("ip -4 address flush dev l{link}"));
        lab.on_both(&format!("ip -6 address flush dev l{link} scope global"));
    }
    let stream = three_links(&lab);
    lab.lay_anew(link);
    stream.sender.says(&format!("link l{link} is down: the interface is gone; 2 links remain"));
    for (host, number) in [(Host::A, 1), (Host::B, 2)] {
        if addresses {
            lab.on(host, &format!("ip address add 10.77.{link}.{number}/24 dev l{link}"));
        }
        lab.on(host, &format!("ip link set l{link} up"));
    }
    stream.sender.says(&format!("link l{link} is back after "));
    lab.carries(link, 2 * MB);
    arrives_after(stream, link, 1);
}

#[test]
fn the_first_links_interface_may_be_made_anew() {
    interface_anew(1, true);
}

#[test]
fn an_interface_with_link_local_addresses_only_may_be_made_anew() {
    interface_anew(2, false);
}

#[test]
fn an_interface_that_appears_while_the_first_link_is_away_joins() {
    let Some(lab) = Lab::up(&["50mbit", "50mbit"]) else { return };
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    (1..=2).for_each(|link| lab.carries(link, MB));
    lab.cut(1);
    stream.sender.says("link l1 is down: no carrier");
    let link = lab.lay();
    for (host, number) in [(Host::A, 1), (Host::B, 2)] {
        lab.on(host, &format!("ip address add 10.88.0.{number}/24 dev l{link}"));
        lab.on(host, &format!("ip link set l{link} up"));
    }
    stream.sender.says("link l3 is up");
    lab.carries(link, 3 * MB);
    lab.join(1);
    stream.sender.says("link l1 is back after ");
    lab.carries(1, MB);
    arrives_after(stream, 1, 1);
}
