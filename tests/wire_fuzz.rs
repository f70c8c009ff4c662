//! A peer's bytes never panic us, and never make us hold more than a constant, whatever they are.

use crate::replay::replay;
use crate::targets;

#[test]
fn frames_never_panic() {
    replay("wire_frame", targets::frames);
}

#[test]
fn handshakes_never_panic() {
    replay("wire_handshake", targets::handshakes);
}

#[test]
fn announcements_never_panic() {
    replay("wire_announce", targets::announcements);
}

#[test]
fn payloads_never_panic() {
    replay("chunk_open", targets::payloads);
}

#[test]
fn sealed_frames_never_panic_and_none_is_understood_that_was_changed() {
    replay("sealed_frame", targets::sealed_frames);
}
