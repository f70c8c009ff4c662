//! How the receiver is reached: names with several addresses, hosts with one family, ports that are filtered.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::ends::{BLAST, Run, scratch, shim};
use crate::hosts::{Host, Lab, Length, Stream, names, of};

const MB: u64 = 1 << 20;

/// One unanswered attempt, and room for a busy machine.
const FEW_SECONDS: Duration = Duration::from_secs(8);

/// `blast send` on host a, where the name `rx` has these addresses.
fn send_to_rx(lab: &Lab, dir: &Path, addresses: &[&str], args: &str) -> Run {
    let hosts: String = addresses.iter().map(|a| format!("{a} rx\n")).collect();
    let (file, source) = (dir.join("hosts"), dir.join("source"));
    fs::write(&file, format!("127.0.0.1 localhost\n{hosts}")).unwrap();
    fs::write(&source, vec![7; 3 << 20]).unwrap();
    // ip netns exec gives a command its own mounts
    let script =
        format!("mount --bind {} /etc/hosts && exec {BLAST} send {args} {} rx", file.display(), source.display());
    lab.command(Host::A, &["sh", "-c", &script])
}

#[test]
fn of_a_names_addresses_one_that_works_is_enough() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    // what is unreachable shall be silent, not refused by the own kernel
    lab.on(Host::A, "ip -6 route add default via fd77:1::9");
    lab.on(Host::A, "ip route add default via 10.77.1.9");
    let dir = scratch();
    for addresses in [
        &["2001:db8::1", "10.77.1.2", "10.66.6.6"][..],
        &["10.66.6.6", "2001:db8::1", "10.77.1.2"],
        &["10.66.6.6", "10.66.6.7", "fd77:1::2"],
    ] {
        let receiver = lab.blast(Host::B, &["recv", "-"]).start();
        receiver.says("listening on port");
        let sender = send_to_rx(&lab, dir.path(), addresses, "").outcome();
        sender.expect(0);
        assert!(sender.took < FEW_SECONDS, "{addresses:?}: {sender:?}");
        assert_eq!(receiver.wait().expect(0).out.len(), 3 << 20);
    }
}

#[test]
fn when_no_address_works_each_is_named_with_its_reason() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let dir = scratch();
    // no route, nobody there
    let failed = send_to_rx(&lab, dir.path(), &["2001:db8::1", "10.77.1.77"], "").outcome();
    failed.expect(4).tells("cannot reach rx:7411: ").tells("[2001:db8::1]:7411: Network is unreachable");
    failed.tells("10.77.1.77:7411: no answer").claims_nothing();
    assert!(failed.took < FEW_SECONDS, "{failed:?}");
    // nobody listens: worth waiting for, and then as plain
    let failed = send_to_rx(&lab, dir.path(), &["2001:db8::1", "10.77.1.2"], "").outcome();
    failed.expect(4).tells("[2001:db8::1]:7411: Network is unreachable").tells("10.77.1.2:7411: connection refused");
    assert!(failed.took > FEW_SECONDS, "a receiver that is started a little later is waited for: {failed:?}");
}

#[test]
fn the_receiver_is_reached_by_both_families_whatever_the_system_s_default() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    for v6only in [0, 1] {
        lab.on(Host::B, &format!("sysctl -qw net.ipv6.bindv6only={v6only}"));
        for to in ["10.77.1.2", "fd77:1::2"] {
            Stream::start(&lab, Length::Bytes(MB), to, &[], &[]).arrives();
        }
    }
}

#[test]
fn hosts_without_ipv6_notice_nothing() {
    let Some(lab) = Lab::up(&["max", "max"]) else { return };
    lab.on_both("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    let arrived = Stream::start(&lab, Length::Bytes(8 * MB), "10.77.2.2", &[], &[]).arrives();
    assert_eq!(names(&arrived.sent()), ["l1", "l2"]);
    for end in [arrived.sender, arrived.receiver] {
        assert!(!end.err.contains("warning") && !end.err.contains("is down"), "{end:?}");
    }
}

/// A kernel that was built or started without IPv6 knows no sockets of that family.
#[test]
fn a_kernel_without_ipv6_is_listened_on_by_ipv4() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let dir = scratch();
    let text = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <errno.h>\n#include <sys/socket.h>\n\
                int socket(int domain, int type, int protocol) {\n\
                if (domain == AF_INET6) { errno = EAFNOSUPPORT; return -1; }\n\
                return ((int (*)(int, int, int))dlsym(RTLD_NEXT, \"socket\"))(domain, type, protocol); }\n";
    let Some(preload) = shim(dir.path(), text) else { return };
    let receiver = lab.command(Host::B, &["env", &preload, BLAST, "recv", "-"]).start();
    receiver.says("listening on port");
    let sender = lab.command(Host::A, &["env", &preload, BLAST, "send", "/etc/passwd", "10.77.1.2"]).outcome();
    sender.expect(0);
    assert_eq!(receiver.wait().expect(0).out, fs::read("/etc/passwd").unwrap());
    let refused = lab.command(Host::A, &["env", &preload, BLAST, "send", "/etc/passwd", "fd77:1::2"]).outcome();
    refused.expect(4).tells("Address family not supported");
}

#[test]
fn a_link_whose_port_is_filtered_is_reported_and_delays_nothing() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    lab.filter(Host::B, "ip daddr 10.77.2.2 tcp dport 7411 drop");
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    // the other link does not wait for this one's answer
    lab.carries(1, 10 * MB);
    stream.sender.says("link l2 is down: no answer; 1 link remains");
    let rows = stream.arrives().sent();
    assert_eq!((of(&rows, "l2").chunks, of(&rows, "l2").last.as_str()), (0, "no answer"), "{rows:#?}");
    assert_eq!(of(&rows, "l1").share, 100.0, "{rows:#?}");
}

#[test]
fn a_receiver_whose_port_is_filtered_is_an_error_within_seconds() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    lab.filter(Host::B, "tcp dport 7411 drop");
    let failed = lab.blast(Host::A, &["send", "/etc/passwd", "10.77.1.2"]).outcome();
    failed.expect(4).tells("cannot reach 10.77.1.2:7411: ").tells("no answer").tells("try: ");
    assert!(failed.took < FEW_SECONDS, "{failed:?}");
}
