//! The receiver is found without an address: over cables that have none, by its code or after a question, and only
//! while it waits and does not hide.

use std::cell::Cell;
use std::fs;
use std::io::{Write, pipe};
use std::net::{SocketAddrV6, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use blast::wire::{Announce, DATAGRAM_LEN, GROUP_V6, decode_announce, encode_announce};

use crate::ends::{BLAST, End, Run, contains, scratch};
use crate::hosts::{Host, Lab, Length, Stream, names, until};

const MB: u64 = 1 << 20;

/// Links that have link-local addresses only.
fn bare_lab(rates: &[&str]) -> Option<Lab> {
    let lab = Lab::up(rates)?;
    for link in 1..=rates.len() {
        lab.on_both(&format!("ip -4 address flush dev l{link}"));
        lab.on_both(&format!("ip -6 address flush dev l{link} scope global"));
    }
    Some(lab)
}

/// `blast recv -` on b, once it waits.
fn waiting(lab: &Lab, args: &[&str]) -> End {
    let receiver = lab.blast(Host::B, &["recv"]).args(args).last("-").start();
    receiver.says("listening on port");
    receiver
}

/// The code that a receiver shows.
fn code(receiver: &End) -> String {
    receiver.says("\nor: blast send SRC... auto  (code ");
    let said = receiver.said();
    said.split("(code ").nth(1).and_then(|after| after.split(')').next()).expect("a code").to_owned()
}

/// `blast send ARGS - auto` on a host, of a few bytes.
fn send_on(lab: &Lab, host: Host, args: &[&str]) -> Run {
    let (input, mut feed) = pipe().expect("a pipe");
    feed.write_all(b"some bytes").expect("a pipe holds them");
    lab.blast(host, &["send"]).args(args).last("-").last("auto").stdin(input)
}

fn send(lab: &Lab, args: &[&str]) -> Run {
    send_on(lab, Host::A, args)
}

/// The few bytes came.
#[track_caller]
fn took(receiver: End) {
    assert_eq!(receiver.wait().expect(0).out, b"some bytes");
}

#[test]
fn over_cables_without_addresses_the_receiver_of_a_code_is_found_and_only_while_it_waits() {
    let Some(lab) = bare_lab(&["100mbit", "100mbit"]) else { return };
    let receiver = waiting(&lab, &["-v"]);
    // as people type it
    let code = code(&receiver).to_lowercase().replace('-', "");
    let stream = Stream::to(&lab, receiver, Length::Open, "auto", &["--code", &code]);
    (1..=2).for_each(|link| lab.carries(link, 3 * MB));
    let late = send(&lab, &["--code", &code]).outcome();
    late.expect(4).tells("no receiver answered (asked over l1, l2, lo)").tells("without --hidden").claims_nothing();
    let rows = stream.arrives().sent();
    assert_eq!(names(&rows), ["l1", "l2"]);
    assert!(rows.iter().all(|r| r.chunks > 0 && r.outages == 0), "{rows:#?}");
}

#[test]
fn several_receivers_are_listed_with_the_line_to_type_for_each_and_a_code_picks_one() {
    let Some(lab) = Lab::up(&["max", "max"]) else { return };
    let receivers = [waiting(&lab, &[]), waiting(&lab, &["--port", "0"])];
    let codes = [code(&receivers[0]), code(&receivers[1])];
    let several = send(&lab, &["-v"]).outcome();
    several.expect(2).tells("2 receivers answered").tells("at 10.77.").claims_nothing();
    for code in &codes {
        let lines = several.err.matches(&format!("\n    blast send --code {code} -v - auto\n")).count();
        assert_eq!(lines, 1, "one line for all addresses of a receiver: {several:?}");
    }
    assert!(several.err.contains(&format!("10.77.1.2:{}", receivers[1].port())), "{several:?}");
    let other = send(&lab, &["--code", "000-000"]).outcome();
    other.expect(4).tells("no receiver has the code 000-000; others answered: ").tells(&codes[1]);
    for (receiver, code) in receivers.into_iter().zip(codes).rev() {
        send(&lab, &["--code", &code]).outcome().expect(0);
        took(receiver);
    }
}

#[test]
fn a_hidden_receiver_is_not_found_and_takes_who_names_it() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let receiver = waiting(&lab, &["--hidden"]);
    assert!(!receiver.said().contains("auto"), "{}", receiver.said());
    send(&lab, &[]).outcome().expect(4).tells("no receiver answered (asked over l1, lo)").claims_nothing();
    lab.blast(Host::A, &["send", "/proc/self/comm", "10.77.1.2"]).outcome().expect(0);
    receiver.wait().expect(0);
}

#[test]
fn without_a_terminal_nothing_is_sent_to_a_receiver_that_nobody_confirmed() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let receiver = waiting(&lab, &[]);
    let code = code(&receiver);
    let refused = send(&lab, &[]).outcome();
    refused.expect(3).tells("at 10.77.1.2, code ").claims_nothing();
    refused.tells(&format!("\n    blast send --code {code} - auto"));
    send(&lab, &["--code", &code]).outcome().expect(0);
    took(receiver);
}

/// `blast send SOURCE auto` on a, on a terminal of its own; what it shows is heard on standard error.
fn on_a_terminal(lab: &Lab, source: &Path) -> End {
    // exec: an interrupt typed there would end a shell that waits, too, and its end would be told instead of blast's
    let line = format!("exec script -qec 'exec {BLAST} send {} auto' /dev/null >&2", source.display());
    lab.command(Host::A, &["sh", "-c", &line]).stdin(Stdio::piped()).start()
}

#[test]
fn on_a_terminal_a_person_is_asked_and_only_yes_will_do() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let dir = scratch();
    let source = dir.path().join("source");
    fs::write(&source, "some bytes").expect("written");
    let receiver = waiting(&lab, &[]);
    // at which of its addresses depends on which answers came in time
    let question = format!(", code {}; is that what its 'blast recv' shows? [y/N] ", code(&receiver));
    for (answer, exit) in [("n\n", 3), ("\n", 3), ("\x03", 7), ("y\n", 0)] {
        let mut sender = on_a_terminal(&lab, &source);
        sender.says(&question);
        let mut keys = sender.take_stdin();
        keys.write_all(answer.as_bytes()).expect("it listens");
        sender.wait().expect(exit);
    }
    took(receiver);
}

#[test]
fn what_is_no_query_gets_no_answer_and_stops_nothing() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let receiver = waiting(&lab, &[]);
    let index = lab.index(Host::A, 1);
    let near = format!("[{}%{index}]:0", lab.link_local(Host::A, 1));
    let stranger: UdpSocket = lab.datagrams(Host::A, &near);
    let group = SocketAddrV6::new(GROUP_V6, 7411, 0, index);
    let foreign = encode_announce(&Announce::Query { nonce: [9; 16] });
    let mut random = blake3::Hasher::new().update(b"foreign").finalize_xof();
    for len in (0..1400).step_by(28) {
        let mut noise = vec![0; len];
        random.fill(&mut noise);
        let mut damaged = foreign;
        damaged[len % DATAGRAM_LEN] ^= 1;
        for bytes in [&noise[..], &foreign[..len.min(DATAGRAM_LEN - 1)], &damaged] {
            stranger.send_to(bytes, group).expect("sent");
        }
    }
    stranger.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket has one");
    let query = encode_announce(&Announce::Query { nonce: [7; 16] });
    let answered = Cell::new(None);
    until("an answer", || {
        // any of them may be lost where there is so much
        stranger.send_to(&query, group).expect("sent");
        let mut bytes = [0; 2048];
        let came = stranger.recv_from(&mut bytes);
        let is_come = came.is_ok();
        answered.set(came.ok().map(|(len, from)| (bytes[..len].to_vec(), from.port())));
        is_come
    });
    // what is answered is answered in order
    let (bytes, from_port) = answered.take().expect("it came");
    assert_eq!((bytes.len(), from_port), (DATAGRAM_LEN, 7411), "no more than was asked with");
    let Ok(Announce::Answer { nonce, port, instance, .. }) = decode_announce(&bytes) else { panic!("no answer") };
    assert_eq!((nonce, port, instance.code().to_string()), ([7; 16], 7411, code(&receiver)));
    send(&lab, &["--code", &code(&receiver)]).outcome().expect(0);
    took(receiver);
}

#[test]
fn who_is_not_on_a_network_of_the_receiver_gets_no_answer() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let receiver = waiting(&lab, &[]);
    // a way back there is, over the same neighbour, a common network there is not
    lab.on(Host::A, "ip address add 10.88.0.1/32 dev l1");
    lab.on(Host::B, "ip route add 10.88.0.1/32 via 10.77.1.1");
    let query = encode_announce(&Announce::Query { nonce: [7; 16] });
    lab.on(Host::A, "ip route add 239.255.0.0/16 dev l1");
    let [far, near] = ["10.88.0.1:0", "10.77.1.1:0"].map(|address| lab.datagrams(Host::A, address));
    let mut bytes = [0; DATAGRAM_LEN];
    for socket in [&far, &near] {
        socket.send_to(&query, "239.255.74.11:7411").expect("sent");
    }
    near.set_read_timeout(Some(crate::ends::PATIENCE)).expect("a socket has one");
    near.recv_from(&mut bytes).expect("an answer");
    far.set_nonblocking(true).expect("a socket can");
    assert!(far.recv_from(&mut bytes).is_err(), "what came first would have been answered first");
    drop(receiver);
}

#[test]
fn a_receiver_is_found_over_an_interface_that_appeared_while_it_waited() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let receiver = waiting(&lab, &[]);
    let code = code(&receiver);
    let link = lab.lay();
    assert_eq!(link, 2);
    for host in [Host::A, Host::B] {
        lab.on(host, "ip link set l2 up");
    }
    until("both have an address", || {
        [Host::A, Host::B].iter().all(|h| lab.on(*h, "ip -6 -oneline address show dev l2 scope link").contains("fe80"))
    });
    let sender = send(&lab, &["--link", "l2", "--code", &code]).outcome();
    sender.expect(0);
    let report = sender.report();
    assert!(contains(report.as_bytes(), b"\n  l2 ") && !contains(report.as_bytes(), b"\n  l1 "), "{report}");
    took(receiver);
}

#[test]
fn both_ends_on_one_machine_and_hosts_without_ipv6_find_each_other() {
    let Some(lab) = Lab::up(&["max"]) else { return };
    let receiver = waiting(&lab, &[]);
    send_on(&lab, Host::B, &["--code", &code(&receiver)]).outcome().expect(0);
    took(receiver);
    lab.on_both("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
    for host in [Host::A, Host::B] {
        let receiver = waiting(&lab, &["-v"]);
        let sender = send_on(&lab, host, &["-v", "--code", &code(&receiver)]).outcome();
        assert!(!sender.expect(0).err.contains("warning"), "{sender:?}");
        assert!(!receiver.said().contains("warning"), "{}", receiver.said());
        took(receiver);
    }
}
