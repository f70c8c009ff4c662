//! Peers that say anything at any time, in well-formed messages.

use blast::wire::Ack;

use super::check::{Checked, Mark};
use super::net::{Event, Forward, Side};
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
        Kind::HostileSend => bogus_frame(world, conn),
        _ => bogus_ack(world),
    }
}

/// Chunks near and beyond the limit, again and again, and ends that contradict each other.
fn bogus_frame(world: &mut World, conn: usize) -> Checked {
    let (next, limit) = (world.recv.flow.next(), world.recv.flow.credit_limit());
    let rng = &mut world.net.rng;
    let message = match rng.below(100) {
        0..1 => Forward::Finish { chunks: rng.below(limit + 4) },
        1..2 => Forward::Chunk { seq: rng.next(), content: rng.next(), intact: true },
        2..4 => Forward::Chunk { seq: limit + rng.below(3), content: rng.next(), intact: true },
        4..30 => {
            Forward::Chunk { seq: limit - 1 - rng.below(limit.min(3)), content: rng.next(), intact: rng.percent(90) }
        }
        30..60 => Forward::Chunk { seq: rng.below(limit), content: rng.next(), intact: rng.percent(90) },
        _ => Forward::Chunk { seq: next.min(limit - 1), content: rng.next(), intact: rng.percent(90) },
    };
    // As if it had arrived at once: order and delay are nothing to a hostile peer.
    if world.net.conns[conn].waiting.is_some() { Ok(()) } else { world.handle_forward(conn, message) }
}

/// Snapshots that are nearly true.
fn bogus_ack(world: &mut World) -> Checked {
    let ack = {
        let (acked, rng) = (world.send.flow.acked(), &mut world.net.rng);
        let next = if rng.percent(97) { (acked + rng.below(3)).saturating_sub(rng.below(2)) } else { rng.next() };
        let mut ack = Ack { next, ..Ack::default() };
        ack.durable = if rng.percent(95) { rng.below(next.saturating_add(1).max(1)) } else { rng.next() };
        ack.credit_limit = if rng.percent(95) { next.saturating_add(rng.below(40)) } else { rng.next() };
        for _ in 0..rng.below(3) {
            let bit = if rng.percent(95) { rng.range(1, 4) } else { rng.below(1024) };
            ack.bitmap[bit as usize / 64] |= 1 << (bit % 64);
        }
        let up: Vec<usize> = world.net.up(Side::Send).collect();
        for conn in up {
            let link = world.net.conns[conn].id;
            let carried = world.send.flow.in_flight(link) as u64;
            let settled =
                if world.net.rng.percent(97) { world.net.rng.below(carried + 1) } else { world.net.rng.next() };
            ack.links.push((link, settled));
        }
        ack
    };
    let World { net, send, scenario, .. } = world;
    if SendHost::handle_ack(send, net, scenario, &ack)?.is_err() {
        net.marks.hit(Mark::HostileRecvCaught);
        world.over = true;
    } else {
        world.flow_invariants();
    }
    Ok(())
}
