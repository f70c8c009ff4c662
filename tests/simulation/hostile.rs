//! Peers that say anything at any time, in well-formed messages. Whatever they say is harmless, or named as what it is;
//! the same questions are answered here without the flow ([`RecvHost::breaks`], [`SendHost::breaks`]).

use blast::flow::Violation;
use blast::ids::LinkId;
use blast::limits::WINDOW_MAX;
use blast::wire::Ack;

use super::check::{Checked, Invariant, Mark, ensure};
use super::net::{Event, Forward, Side};
#[cfg(doc)]
use super::recv_host::RecvHost;
use super::rng::Rng;
use super::scenario::Kind;
use super::send_host::SendHost;
use super::world::World;

/// Ideas that a hostile peer has in one run.
const IDEAS: u32 = 100;

/// One idea of the hostile peer. The run is over when it is caught, or when it has had its ideas.
pub fn mischief(world: &mut World) -> Checked {
    world.mischief += 1;
    world.over = world.mischief > IDEAS;
    // Sometimes all at once, so that many copies are being verified together.
    let pause = if world.net.rng.percent(70) { 1 } else { world.net.some(40_000) };
    world.net.after(pause, Event::Mischief);
    let up: Vec<usize> = world.net.up(Side::Recv).collect();
    if up.is_empty() {
        return Ok(());
    }
    let conn = world.net.rng.pick(&up);
    match world.scenario.kind {
        Kind::HostileSend if world.net.rng.percent(2) => bogus_join(world, conn),
        Kind::HostileSend => bogus_frame(world, conn),
        _ if world.net.rng.percent(2) => bogus_commit(world),
        _ => bogus_ack(world),
    }
}

/// Chunks near and beyond the limit, again and again, and ends that contradict each other.
fn bogus_frame(world: &mut World, conn: usize) -> Checked {
    let (next, limit, ends) = (world.recv.flow.next(), world.recv.flow.credit_limit(), world.recv.ends);
    let rng = &mut world.net.rng;
    let message = match rng.below(1000) {
        // Early or late, and again and again: the same, or another one.
        0..10 => Forward::Finish { chunks: limit + rng.below(4) },
        10..15 => Forward::Finish { chunks: ends.unwrap_or(limit) },
        15..20 => Forward::Finish { chunks: rng.below(limit + 4) },
        20..25 => Forward::Finish { chunks: extreme(rng) },
        25..35 => Forward::Chunk { seq: extreme(rng), content: rng.next(), intact: true },
        35..40 => Forward::Chunk { seq: limit + rng.below(3), content: rng.next(), intact: true },
        40..300 => {
            Forward::Chunk { seq: limit - 1 - rng.below(limit.min(3)), content: rng.next(), intact: rng.percent(90) }
        }
        300..600 => Forward::Chunk { seq: rng.below(limit), content: rng.next(), intact: rng.percent(90) },
        _ => Forward::Chunk { seq: next.min(limit - 1), content: rng.next(), intact: rng.percent(90) },
    };
    // As if it had arrived at once: order and delay are nothing to a hostile peer.
    if world.net.conns[conn].waiting.is_some() { Ok(()) } else { world.handle_forward(conn, message) }
}

/// A connection that joins under the id of one that is up.
fn bogus_join(world: &mut World, conn: usize) -> Checked {
    let link = world.net.conns[conn].id;
    let before = world.recv.flow.version();
    let joined = world.recv.flow.link_up(link);
    if let Err(violation) = &joined {
        world.net.marks.hit(named(violation));
    }
    let refused = joined == Err(Violation::LinkInUse(link)) && world.recv.flow.version() == before;
    ensure(refused, Invariant::Named, || format!("a second link {link} was answered with {joined:?}"))
}

/// Snapshots that are nearly true, old, or of something else.
fn bogus_ack(world: &mut World) -> Checked {
    let ack = {
        let (acked, rng) = (world.send.flow.acked(), &mut world.net.rng);
        let next = match rng.below(100) {
            0..2 => extreme(rng),
            2..12 => acked.saturating_sub(rng.below(8)),
            _ => (acked + rng.below(3)).saturating_sub(rng.below(2)),
        };
        let mut ack = Ack { next, ..Ack::default() };
        ack.durable = if rng.percent(98) { rng.below(next.saturating_add(1).max(1)) } else { extreme(rng) };
        ack.credit_limit = match rng.below(100) {
            0..2 => extreme(rng),
            2..6 => next.saturating_add(u64::from(WINDOW_MAX) + rng.below(2)),
            6..16 => rng.below(next.saturating_add(1).max(1)),
            _ => next.saturating_add(rng.below(40)),
        };
        for _ in 0..rng.below(3) {
            let bit = if rng.percent(98) { rng.range(1, 4) } else { rng.below(1024) };
            ack.bitmap[bit as usize / 64] |= 1 << (bit % 64);
        }
        let up: Vec<usize> = world.net.up(Side::Send).collect();
        for conn in up {
            let (link, frames) = (world.net.conns[conn].id, world.net.conns[conn].frames);
            let rng = &mut world.net.rng;
            let settled = match rng.below(100) {
                0 => extreme(rng),
                1 => frames + 1,
                _ => rng.below(frames + 1),
            };
            ack.links.push((link, settled));
        }
        if world.net.rng.percent(10) {
            // No link of this session.
            ack.links.push((LinkId(u32::MAX - 1), extreme(&mut world.net.rng)));
        }
        ack
    };
    let breaks = world.send.breaks(&world.net, &ack);
    let World { net, send, scenario, .. } = world;
    let handled = SendHost::handle_ack(send, net, scenario, &ack)?;
    // What it claims to be damaged again and again is possible, and hopeless.
    let right = handled.is_err() == breaks || matches!(handled, Err(Violation::NeverVerifies { .. }));
    ensure(right, Invariant::Named, || format!("{ack:?} was answered with {handled:?}"))?;
    match handled {
        Ok(()) => world.flow_invariants(),
        Err(violation) => {
            net.marks.hit(named(&violation));
            world.over = true;
        }
    }
    Ok(())
}

/// The mark of what a peer was caught at.
pub fn named(violation: &Violation) -> Mark {
    match violation {
        Violation::BeyondCredit { .. } => Mark::BeyondCredit,
        Violation::BeyondEnd { .. } => Mark::BeyondEnd,
        Violation::Finish { .. } => Mark::EndChanged,
        Violation::AckOfUnsent { .. } => Mark::AckOfUnsent,
        Violation::SettledUnsent { .. } => Mark::SettledUnsent,
        Violation::NeverVerifies { .. } => Mark::NeverVerifies,
        Violation::Nonsense(_) => Mark::NonsenseAck,
        Violation::LinkInUse(_) | Violation::TooManyLinks => Mark::LinkRefused,
    }
}

/// Success, too early or of something else.
fn bogus_commit(world: &mut World) -> Checked {
    let rng = &mut world.net.rng;
    let digest = if rng.percent(50) { world.send.digest() } else { rng.next() };
    let whole = world.send.all_sealed() && digest == world.send.digest();
    let handled = world.send.handle_commit(digest);
    ensure(handled.is_ok() == whole, Invariant::Named, || format!("a commit was answered with {handled:?}"))?;
    world.net.marks.hit(if whole { Mark::CommitForged } else { Mark::CommitRefused });
    world.over = true;
    Ok(())
}

/// Where arithmetic goes wrong.
fn extreme(rng: &mut Rng) -> u64 {
    let edge = rng.pick(&[u64::MAX, u64::MAX - 1, u64::MAX - 1023, u64::MAX / 2, 1 << 63, 1 << 32, 1 << 20]);
    if rng.percent(80) { edge } else { rng.next() }
}
