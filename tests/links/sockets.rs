//! What is asked of the system for each connection, and what happens where it cannot be had.

use std::fs;

use crate::ends::{BLAST, scratch};
use crate::hosts::{Host, Lab, Length, Stream, of};

const MB: u64 = 1 << 20;

/// Explicit sizes switch the kernel's autotuning off, and are capped far below what a long link needs.
#[test]
fn the_sizes_of_socket_buffers_are_left_to_the_kernel() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit"]) else { return };
    let dir = scratch();
    let [sent, received] = ["sent", "received"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let traced = |log: &str, args: &[&str]| {
        [&["strace", "-f", "-qq", "-e", "trace=setsockopt", "-o", log, BLAST], args]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    if !std::process::Command::new("strace").arg("-V").output().is_ok_and(|o| o.status.success()) {
        eprintln!("SKIPPED: which socket options are set: this needs strace");
        return;
    }
    let start =
        |host, command: &[String]| lab.command(host, &command.iter().map(String::as_str).collect::<Vec<_>>()).start();
    let receiver = start(Host::B, &traced(&received, &["recv", "-"]));
    receiver.says("listening on port");
    start(Host::A, &traced(&sent, &["send", "/etc/passwd", "10.77.1.2"])).wait().expect(0);
    receiver.wait().expect(0);
    for log in [sent, received] {
        let options = fs::read_to_string(log).unwrap();
        assert!(options.contains("TCP_NODELAY"), "{options}");
        assert!(!options.contains("SO_SNDBUF") && !options.contains("SO_RCVBUF"), "{options}");
    }
}

#[test]
fn a_receiver_can_be_started_anew_at_once_and_a_second_one_beside_it_is_refused() {
    let Some(lab) = Lab::up(&["50mbit"]) else { return };
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // a transfer that fails leaves connections behind that the system remembers for a minute
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    lab.carries(1, 2 * MB);
    stream.receiver.signal(rustix::process::Signal::TERM);
    drop(stream);
    let first = lab.blast(Host::B, &["recv", &path("first")]).start();
    first.says("listening on port 7411");
    let second = lab.blast(Host::B, &["recv", &path("second")]).outcome();
    let holder = format!("cannot listen on port 7411: Address already in use (held by process {} (blast))", first.id());
    second.expect(4).tells(&holder).tells("try: ").claims_nothing();
    lab.blast(Host::A, &["send", "/etc/passwd", "10.77.1.2"]).outcome().expect(0);
    first.wait().expect(0);
    assert_eq!(fs::read(path("first")).unwrap(), fs::read("/etc/passwd").unwrap());
    assert!(!dir.path().join("second").exists());
}

#[test]
fn an_interface_that_leads_nowhere_at_both_ends_is_not_waited_for_and_said_why() {
    let Some(lab) = Lab::up(&["100mbit", "100mbit", "100mbit"]) else { return };
    lab.hole(2);
    let stream = Stream::start(&lab, Length::Open, "10.77.1.2", &[], &[]);
    // long before the attempt at the second has failed
    (1..=3).filter(|l| *l != 2).for_each(|link| lab.carries(link, 4 * MB));
    stream.sender.says("link l2 is down: no answer; 2 links remain");
    let rows = stream.arrives().sent();
    assert_eq!((of(&rows, "l2").chunks, of(&rows, "l2").last.as_str()), (0, "no answer"), "{rows:#?}");
    // nor is the end of what is short
    let arrived = Stream::start(&lab, Length::Bytes(MB), "10.77.1.2", &[], &[]).arrives();
    assert!(!arrived.sender.err.contains("no answer"), "{:?}", arrived.sender);
}
