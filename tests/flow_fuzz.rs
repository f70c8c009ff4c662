//! Whatever a peer says, in whatever order, the protocol's decisions neither panic nor contradict themselves. The
//! simulation asks the same of whole sessions; here bytes decide, so that a fuzzer can.

use crate::replay::replay;
use crate::targets;

#[test]
fn the_receiving_flow_stands_any_frames() {
    replay("receive_flow", targets::receive_flow);
}

#[test]
fn the_sending_flow_stands_any_acknowledgements() {
    replay("send_flow", targets::send_flow);
}
