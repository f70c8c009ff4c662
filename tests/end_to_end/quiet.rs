//! How much is said of an ordinary run, what `-q` still says, and that no name can put a control character into either
//! output, in reports and in errors.

use crate::ends::{Outcome, recv, scratch, send, transfer};
use crate::trees::{Set, assert_same, small, write};

#[track_caller]
fn is_plain(end: &Outcome) {
    for byte in end.err.bytes().chain(end.out.iter().copied()) {
        assert!(byte == b'\n' || byte >= b' ' && byte != 0x7f, "byte {byte:#x}: {end:?}");
    }
}

#[test]
fn a_normal_run_says_a_few_plain_lines_and_its_report_is_on_standard_output() {
    let dir = scratch();
    let source = dir.path().join("s");
    small(&source, 1);
    let (sender, receiver) = transfer(&source, dir.path().join("d"), &["--streams", "3"]);
    for end in [&sender, &receiver] {
        is_plain(end);
        let report = end.report();
        for words in ["entries", "transfer digest", "whole: every entry is on", "lo "] {
            assert!(report.contains(words) && !end.err.contains(words), "'{words}': {end:?}");
        }
    }
    assert!(sender.err.lines().count() <= 3, "{sender:?}");
    // The lines to paste are the receiver's: one for each address.
    let addresses = receiver.err.lines().filter(|l| l.starts_with("    blast send SRC... ")).count();
    assert!(addresses >= 1 && receiver.err.lines().count() <= addresses + 4, "{receiver:?}");
    assert!(!receiver.err.contains("::ffff:"), "an IPv4 address is shown as one: {receiver:?}");
}

#[test]
fn quiet_ends_still_say_what_went_wrong() {
    let dir = scratch();
    write(dir.path().join("full/x"), b"x");
    let receiver = recv(dir.path().join("full")).args(&["-q"]).outcome();
    receiver.expect(3).tells("is not empty");
    let sender = send(dir.path().join("nope"), 1).args(&["-q"]).outcome();
    sender.expect(2).tells("nope");
}

#[test]
fn names_that_would_write_to_the_terminal_are_shown_escaped_and_arrive_as_they_are() {
    let dir = scratch();
    let set = Set(dir.path());
    let bad = b"x\x1b[31mred\n0 errors\r\x07\xff";
    for name in [&b"f"[..], b"socket"] {
        set.file([b"s/", &bad[..], b"/", name].concat(), b"");
    }
    let socket = [b"s/", &bad[..], b"\x9b"].concat();
    drop(std::os::unix::net::UnixListener::bind(set.path(socket)).unwrap());
    let (sender, receiver) = transfer(set.path("s"), set.path("d"), &["-v"]);
    assert_same(set.path("d"), set.path("s"));
    is_plain(&sender);
    is_plain(&receiver);
    sender.tells("x\\x1b[31mred\\n0 errors\\r\\x07\\xff\\x9b");
    // In errors, too.
    let dest = set.path([b"s/", &bad[..]].concat());
    let receiver = recv(&dest).outcome();
    receiver.expect(3).tells("x\\x1b[31mred\\n0 errors\\r\\x07\\xff");
    is_plain(&receiver);
}
