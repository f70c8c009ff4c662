//! The protocol's decisions against a peer that says anything: the receiver's against frames, the sender's against
//! acknowledgements. A violation ends the session, as it does where it matters; nothing panics, and after every step
//! the state agrees with itself.

use std::time::Duration;

use blast::flow::{Arrival, Poll, RecvFlow, SendFlow, Verdict};
use blast::ids::{LinkId, Seq, SessionId};
use blast::options::{Schedule, Window};
use blast::wire::Ack;

use super::Bytes;

const SESSION: SessionId = SessionId([1; 16]);

/// Chunks sealed ahead at most.
const POOL: u64 = 16;

/// Frames, ends, links and completions in any order.
pub fn receive_flow(input: &[u8]) {
    let mut bytes = Bytes(input);
    let start = u32::from(bytes.u8() % 8) + 1;
    let mut flow: RecvFlow<u8> = RecvFlow::new(SESSION, Window { start, max: start * 4 });
    // what is being verified, and what was delivered and not freed
    let (mut verifying, mut unfreed): (Vec<(LinkId, Arrival, Seq)>, u64) = (Vec::new(), 0);
    while !bytes.0.is_empty() {
        match bytes.u8() % 10 {
            0..3 => {
                let (link, seq) = (LinkId(u32::from(bytes.u8() % 4)), Seq(bytes.near(flow.next())));
                match flow.begin(link, seq) {
                    Ok(arrival) if arrival.fresh => verifying.push((link, arrival, seq)),
                    // a link that is not up carries nothing
                    Ok(arrival) if flow.ack().links.iter().any(|(up, _)| *up == link) => {
                        flow.settled(link, arrival.index);
                    }
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
            step @ 3..6 if !verifying.is_empty() => {
                let at = usize::from(bytes.u8()) % verifying.len();
                let (link, arrival, seq) = verifying.swap_remove(at);
                if !flow.ack().links.iter().any(|(up, _)| *up == link) {
                    continue;
                }
                match step {
                    3 => drop(flow.dropped(SESSION, link, arrival.index)),
                    _ => {
                        let verdict = flow.verified(SESSION, link, arrival.index, seq, 0);
                        assert!(!matches!(verdict, Verdict::Stale(_)));
                    }
                }
            }
            6 => {
                let link = LinkId(u32::from(bytes.u8() % 4));
                if flow.link_up(link).is_err() {
                    flow.link_down(link);
                    verifying.retain(|(on, ..)| *on != link);
                }
            }
            7 => {
                if flow.finish(bytes.near(flow.next())).is_err() {
                    return;
                }
            }
            8 => unfreed += std::iter::from_fn(|| flow.poll_deliver()).count() as u64,
            9 if unfreed > 0 => {
                unfreed -= 1;
                flow.released(SESSION, 1);
            }
            _ => flow.look(Duration::from_millis(bytes.u8().into())),
        }
        flow.invariants();
        assert!(flow.held() as u64 + unfreed <= u64::from(flow.window()), "memory is the window");
    }
}

/// Acknowledgements of anything, between chunks that are sent as they may be.
pub fn send_flow(input: &[u8]) {
    let mut bytes = Bytes(input);
    let schedule = if bytes.u8() % 2 == 0 { Schedule::Pull } else { Schedule::RoundRobin };
    let mut flow: SendFlow<u64> = SendFlow::new(SESSION, schedule);
    let (mut sealed, mut links, mut last_link, mut now, mut ended) = (0, Vec::new(), 0, Duration::ZERO, false);
    while !bytes.0.is_empty() {
        now += Duration::from_millis(bytes.u8().into());
        match bytes.u8() % 8 {
            0 if sealed < flow.acked() + POOL && !ended => {
                flow.sealed(SESSION, Seq(sealed), sealed);
                sealed += 1;
            }
            1 if links.len() < 4 => {
                last_link += 1;
                links.push(LinkId(last_link));
                flow.link_up(LinkId(last_link));
            }
            2 if !links.is_empty() && bytes.u8() % 4 == 0 => {
                let link = links.swap_remove(usize::from(bytes.u8()) % links.len());
                flow.link_down(link);
            }
            3 if bytes.u8() % 16 == 0 && !ended => {
                ended = true;
                flow.ended(sealed);
            }
            4..6 if !links.is_empty() => {
                let link = links[usize::from(bytes.u8()) % links.len()];
                if let Poll::Send(take) = flow.poll_send(link, now) {
                    assert_eq!(take.payload, take.seq.0, "a number's payload is its own");
                    flow.sent(link, take.seq, now);
                }
            }
            _ => {
                let next = bytes.near(flow.acked() + 8);
                let mut ack = Ack { next, credit_limit: bytes.near(next.wrapping_add(12)), ..Ack::default() };
                ack.bitmap[0] = u64::from(bytes.u8());
                ack.durable = bytes.near(next).min(next);
                for link in &links {
                    ack.links.push((*link, u64::from(bytes.u8() % 16)));
                }
                if next.checked_add(1024).is_none() || flow.handle_ack(&ack, now).is_err() {
                    return;
                }
            }
        }
        flow.invariants();
    }
}
