//! Which links are made: every network that both hosts share, with one address given; or what `--link` names.

use std::path::Path;
use std::time::Duration;

use crate::ends::{scratch, shim};
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

/// Everything is in one network, the address given too: the addresses alone would lead over one of two cables.
fn one_network_on_both_cables(lab: &Lab) {
    for link in 1..=2 {
        lab.on_both(&format!("ip address flush dev l{link} scope global"));
        lab.on(Host::A, &format!("ip address add 10.99.0.1{link}/24 dev l{link}"));
        lab.on(Host::B, &format!("ip address add 10.99.0.2{link}/24 dev l{link}"));
    }
}

/// By the interfaces' own counters.
#[track_caller]
fn each_carries_about_half(lab: &Lab, to: &str) {
    let before = [1, 2].map(|l| lab.sent(l));
    let arrived = Stream::start(lab, Length::Bytes(60 * MB), to, &[], &[]).arrives();
    let carried = [1, 2].map(|l| lab.sent(l) - before[l as usize - 1]);
    let all: u64 = carried.iter().sum();
    assert!(carried.iter().all(|c| (0.35..0.65).contains(&(*c as f64 / all as f64))), "{to}: {carried:?}");
    for rows in [arrived.sent(), arrived.received()] {
        assert_eq!(names(&rows), ["l1", "l2"], "{to}");
        assert!(rows.iter().all(|r| (35.0..65.0).contains(&r.share)), "{to}: {rows:#?}");
    }
}

#[test]
fn two_interfaces_in_the_network_of_the_address_given_carry_half_each() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    one_network_on_both_cables(&lab);
    for to in ["10.99.0.21", "10.99.0.22"] {
        each_carries_about_half(&lab, to);
    }
}

#[test]
fn without_ipv6_two_interfaces_in_one_network_carry_half_each_too() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    lab.on_both("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    one_network_on_both_cables(&lab);
    for to in ["10.99.0.21", "10.99.0.22"] {
        each_carries_about_half(&lab, to);
    }
}

#[test]
fn behind_one_switch_two_interfaces_on_each_side_carry_half_each() {
    let Some(lab) = Lab::switched(2, "100mbit") else { return };
    one_network_on_both_cables(&lab);
    for to in ["10.99.0.21", "10.99.0.22"] {
        let came = |link| lab.on(Host::B, &format!("cat /sys/class/net/l{link}/statistics/rx_bytes"));
        let came = || [1, 2].map(|link| came(link).trim().parse::<u64>().expect("a number"));
        let before = came();
        each_carries_about_half(&lab, to);
        let after = came();
        let carried = [0, 1].map(|i| after[i] - before[i]);
        assert!(carried.iter().all(|c| *c > 20 * MB), "each cable of the receiver too: {carried:?}");
    }
}

/// ARP answers for every address on every interface, and without IPv6 there is no other way to name one.
#[test]
fn behind_one_switch_without_ipv6_a_link_into_another_ones_interface_is_named_and_dropped() {
    let Some(lab) = Lab::switched(2, "100mbit") else { return };
    lab.on_both("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    one_network_on_both_cables(&lab);
    // whichever would answer first: let it be the second
    lab.on(Host::B, "sysctl -qw net.ipv4.conf.l1.arp_ignore=8");
    let stream = Stream::start(&lab, Length::Open, "10.99.0.21", &[], &[]);
    stream.sender.says("link l1 is down: it arrives by l2, not by l1, and l2 has a link; 1 link remains");
    lab.carries(2, 2 * MB);
    let rows = stream.arrives().sent();
    assert!(of(&rows, "l2").share > 50.0, "{rows:#?}");
}

/// Before Linux 5.7 only root could bind a socket to an interface.
fn nobody_may_bind_to_an_interface(dir: &Path) -> Option<String> {
    let text = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n#include <sys/socket.h>\n\
                int setsockopt(int fd, int level, int name, const void *value, socklen_t len) {\n\
                if (level == SOL_SOCKET && name == SO_BINDTODEVICE) { errno = EPERM; return -1; }\n\
                return ((int (*)(int, int, int, const void *, socklen_t))dlsym(RTLD_NEXT, \"setsockopt\"))\
                (fd, level, name, value, len); }\n";
    shim(dir, text)
}

#[test]
fn a_second_link_into_the_same_interface_is_named_and_turned_away() {
    let Some(lab) = Lab::up(&["200mbit", "200mbit"]) else { return };
    lab.on_both("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    one_network_on_both_cables(&lab);
    let dir = scratch();
    let Some(shim) = nobody_may_bind_to_an_interface(dir.path()) else { return };
    let stream = Stream::start_in(&lab, &[&shim], Length::Open, "10.99.0.21", &[], &[]);
    let why = "it arrives by l1, not by l2, and l1 has a link";
    stream.sender.says(&format!("link l2 is down: {why}; 1 link remains"));
    let rows = stream.arrives().sent();
    assert_eq!((of(&rows, "l2").last.as_str(), of(&rows, "l1").share), (why, 100.0), "{rows:#?}");
}

#[test]
fn a_link_that_leaves_by_another_interface_is_named_and_dropped() {
    let Some(lab) = Lab::up(&["200mbit", "200mbit"]) else { return };
    let dir = scratch();
    let Some(shim) = nobody_may_bind_to_an_interface(dir.path()) else { return };
    let stream = Stream::start_in(&lab, &[&shim], Length::Open, "10.77.1.2", &[], &[]);
    (1..=2).for_each(|link| lab.carries(link, MB));
    lab.on(Host::A, "ip route add 10.77.2.2/32 via 10.77.1.2 dev l1");
    let why = "it leaves by l1, not by l2";
    stream.sender.says(&format!("link l2 is down: {why}; 1 link remains"));
    let rows = stream.arrives().sent();
    assert_eq!((of(&rows, "l2").last.as_str(), of(&rows, "l2").outages), (why, 1), "{rows:#?}");
}

#[test]
fn bridges_of_containers_and_tunnels_are_left_out_whatever_they_are_called() {
    let Some(lab) = Lab::up(&["100mbit"]) else { return };
    for (host, number) in [(Host::A, 1), (Host::B, 2)] {
        lab.on(host, "ip link add lan0 type bridge");
        lab.on(host, "ip tuntap add dev eth6 mode tun");
        for (name, net) in [("lan0", 20), ("eth6", 21)] {
            lab.on(host, &format!("ip address add 10.{net}.0.{number}/24 dev {name}"));
            lab.on(host, &format!("ip link set {name} up"));
        }
    }
    let arrived = Stream::start(&lab, Length::Bytes(8 * MB), "10.77.1.2", &[], &[]).arrives();
    assert_eq!(names(&arrived.sent()), ["l1"]);
    assert!(!arrived.sender.err.contains("is down"), "{:?}", arrived.sender);
}

#[test]
fn a_veth_of_any_name_is_a_link_unless_it_is_a_bridge_s_port() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit", "100mbit"]) else { return };
    for host in [Host::A, Host::B] {
        for (link, name) in [(2, "docker0"), (3, "veth3")] {
            lab.on(host, &format!("ip link set l{link} down"));
            lab.on(host, &format!("ip link set l{link} name {name}"));
        }
        lab.on(host, "ip link add br3 type bridge");
        lab.on(host, "ip link set veth3 master br3");
        for name in ["docker0", "veth3", "br3"] {
            lab.on(host, &format!("ip link set {name} up"));
        }
    }
    lab.on(Host::A, "ip address replace fd77:2::1/64 dev docker0 nodad");
    lab.on(Host::B, "ip address replace fd77:2::2/64 dev docker0 nodad");
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    stream.sender.says("link docker0 is up");
    lab.carries(1, 2 * MB);
    assert_eq!(names(&stream.arrives().sent()), ["docker0", "l1"]);
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
fn a_link_from_an_interface_to_an_address_may_lead_through_a_router() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    lab.on(Host::B, "ip address add 10.66.0.2/32 dev lo");
    lab.on(Host::A, "ip route add 10.66.0.2 via 10.77.2.2 dev l2");
    let options = ["--link", "l1", "--link", "l2=10.66.0.2"];
    let rows = Stream::start(&lab, Length::Bytes(20 * MB), "10.77.1.2", &options, &[]).arrives().sent();
    assert_eq!(names(&rows), ["l1", "l2=10.66.0.2"]);
    assert!(rows.iter().all(|r| r.share > 20.0), "{rows:#?}");
    let remote = format!("{}%l2", lab.link_local(Host::B, 2));
    let rows = Stream::start(&lab, Length::Bytes(8 * MB), "10.77.1.2", &["--link", &remote], &[]).arrives().sent();
    assert_eq!(rows.len(), 1, "{rows:#?}");
    assert_eq!(rows[0].share, 100.0, "{rows:#?}");
    assert!(lab.sent(2) > 8 * MB, "by the second cable");
}

#[test]
fn an_interface_that_is_left_out_carries_nothing_not_even_as_the_first() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let before = lab.sent(1);
    let rows = Stream::start(&lab, Length::Bytes(12 * MB), "10.77.1.2", &["--link", "!l1"], &[]).arrives().sent();
    assert_eq!(names(&rows), ["l2"]);
    assert!(lab.sent(1) - before < MB, "the address that was given is on the other cable: control only");
    let options = ["--link", "!l1", "--link", "!l2"];
    let failed = Stream::start(&lab, Length::Bytes(MB), "10.77.1.2", &options, &[]).fails(4, Duration::from_secs(5));
    failed.sender.tells("with --link !l1, !l2 no interface leads to the receiver");
}

#[test]
fn a_receiver_that_is_bound_is_reached_there_and_nowhere_else() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let local = lab.link_local(Host::B, 2);
    let zoned = format!("{local}%l2");
    for (bind, to) in [("10.77.2.2", "10.77.2.2"), ("l2", "10.77.2.2"), ("l2", &zoned), (&zoned, &zoned)] {
        let arrived = Stream::start(&lab, Length::Bytes(8 * MB), to, &[], &["--bind", bind]).arrives();
        for rows in [arrived.sent(), arrived.received()] {
            assert_eq!(names(&rows), ["l2"], "--bind {bind}");
        }
        assert!(!arrived.sender.err.contains("is down"), "--bind {bind}: {:?}", arrived.sender);
    }
    // a port in brackets, and the interface's number as its zone
    let index = lab.on(Host::B, "cat /sys/class/net/l2/ifindex");
    let bind = format!("[{local}%{}]:7999", index.trim());
    let receiver = lab.blast(Host::B, &["recv", "--bind", &bind, "-"]).start();
    receiver.says(":7999");
    let index = lab.on(Host::A, "cat /sys/class/net/l2/ifindex");
    let to = format!("[{local}%{}]:7999", index.trim());
    lab.blast(Host::A, &["send", "/etc/passwd", &to]).outcome().expect(0);
    assert_eq!(receiver.wait().expect(0).out, std::fs::read("/etc/passwd").unwrap());
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
