//! Connections that something between the two ends closes properly, as a proxy or firewall does that has had enough.

use std::net::Ipv4Addr;
use std::process::Command;

use crate::ends::{BLAST, Run, recv, scratch};
use crate::hosts::until;
use crate::relay::Relay;
use crate::trees::{assert_same, random_bytes, write};

const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

#[test]
fn a_link_that_is_closed_in_between_is_dialled_again_the_first_one_too() {
    let dir = scratch();
    write(dir.path().join("s/large"), random_bytes(8, 96 << 20));
    for link in [FIRST, SECOND] {
        let dest = dir.path().join(link.to_string());
        let receiver = recv(&dest).args(&["-v"]).start();
        // what passes after the first part waits until the connection was closed, or all might be over by then
        let gate = std::sync::Arc::new(std::sync::Barrier::new(2));
        let (closed, held) = (gate.clone(), std::sync::Once::new());
        let relay = Relay::start(&[FIRST, SECOND], receiver.port(), move |passing, _| {
            if passing.total > 24 << 20 {
                held.call_once(|| {
                    closed.wait();
                });
            }
            true
        });
        let sender =
            Run::of("send", Command::new(BLAST), &["send", "-v", "--link", "127.0.0.2", "--link", "127.0.0.3"]);
        let sender = sender.last(dir.path().join("s")).last(format!("{FIRST}:{}", relay.port)).start();
        until("a part has passed", || relay.total() > 24 << 20);
        relay.close(link);
        gate.wait();
        sender.says(&format!("link {link} is down: closed by the peer; 1 link remains"));
        sender.says(&format!("link {link} is back after "));
        let (sender, receiver) = (sender.wait(), receiver.wait());
        sender.expect(0);
        receiver.expect(0);
        assert_same(&dest, dir.path().join("s"));
        assert_eq!(sender.err.matches("is down").count(), 1, "{sender:?}");
    }
}
