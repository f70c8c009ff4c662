//! Large packets that do not get through.
//!
//! Where the two ends of a wire, or a switch or tunnel between them, disagree about the MTU, and nobody says so (or a
//! firewall swallows who does), a connection comes about, small frames pass and chunks never do. TCP sends the same
//! large packet again and again, and the link looks alive, since its pings come in. The signs, all at once:
//!
//! 1. TCP has sent the same bytes again [`limits::HOLE_RETRANSMITS`] times, and nothing was acknowledged meanwhile.
//!    A link that is merely slow or lossy makes progress between, and that sets the count to zero.
//! 2. The peer has been heard since. From a dead one nothing would have come.
//! 3. A further connection along the same route comes about: it lets small packets through both ways, just now. Without
//!    this, a link whose one direction is dead would be called by the wrong name.
//!
//! The further connection then takes the place of the first, with a smaller MSS ([`limits::SMALL_MSS`]), which bounds
//! the packets of both directions.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::Ended;
use crate::{limits, sys};

/// How often TCP is asked.
const LOOK: Duration = Duration::from_millis(250);

/// What comes in this soon after the last progress may have been on its way before.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// The next smaller MSS to try after `mss`, or after the system's own.
pub(super) fn smaller(mss: Option<u32>) -> u32 {
    let [.., smallest] = limits::SMALL_MSS;
    limits::SMALL_MSS.into_iter().find(|small| mss.is_none_or(|mss| *small < mss)).unwrap_or(smallest)
}

/// Until large packets on `stream` prove not to get through. `connect` makes a further connection along the same route,
/// which is returned.
pub(super) async fn until_black_hole(
    stream: &TcpStream,
    connect: impl AsyncFn() -> Option<TcpStream>,
) -> (Ended, TcpStream) {
    let mut signs = Signs::new(Instant::now());
    loop {
        sleep(LOOK).await;
        if !signs.all_there(stream, Instant::now()) {
            continue;
        }
        let Some(further) = connect().await else { continue };
        // that took its time, in which large packets may have got through after all
        let now = Instant::now();
        if signs.all_there(stream, now) {
            return (Ended { silent_for: now - signs.moved_at, ..Ended::lost(reason(signs.pmtu)) }, further);
        }
    }
}

fn reason(pmtu: u32) -> String {
    format!(
        "large packets do not get through (MTU {pmtu}?), trying small ones; check that both ends and all between have \
         the same MTU"
    )
}

struct Signs {
    /// When TCP was last seen to make progress, or to have nothing to do.
    moved_at: Instant,
    retransmits: u8,
    pmtu: u32,
}

impl Signs {
    fn new(now: Instant) -> Signs {
        Signs { moved_at: now, retransmits: 0, pmtu: 0 }
    }

    fn all_there(&mut self, stream: &TcpStream, now: Instant) -> bool {
        // of a socket that cannot be asked nothing is said; others will find out what is wrong with it
        sys::tcp_state(stream).is_ok_and(|tcp| self.see(&tcp, now))
    }

    fn see(&mut self, tcp: &sys::TcpState, now: Instant) -> bool {
        if tcp.unacked == 0 || tcp.retransmits == 0 || tcp.retransmits < self.retransmits {
            self.moved_at = now;
        }
        (self.retransmits, self.pmtu) = (tcp.retransmits, tcp.pmtu);
        tcp.retransmits >= limits::HOLE_RETRANSMITS && tcp.quiet + ON_ITS_WAY < now - self.moved_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_mss_falls_to_the_least_and_stays_there() {
        let mut mss = None;
        let steps = [(); 4].map(|()| *mss.insert(smaller(mss)));
        assert_eq!(steps, [1220, 536, 536, 536]);
    }

    /// One look each 250 ms at what TCP says: bytes unacknowledged, retransmissions, when data last came.
    fn first_seen(looks: impl IntoIterator<Item = (u32, u8, Duration)>) -> Option<usize> {
        let mut now = Instant::now();
        let mut signs = Signs::new(now);
        looks.into_iter().position(|(unacked, retransmits, quiet)| {
            now += LOOK;
            signs.see(&sys::TcpState { unacked, retransmits, quiet, ..sys::TcpState::default() }, now)
        })
    }

    #[test]
    fn nothing_acknowledged_for_long_while_the_peer_is_heard_is_a_black_hole() {
        let retransmits = |look: u32| [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3][look.min(11) as usize];
        // heard at once, or only by the ping that comes after 2.5 s
        assert_eq!(first_seen((0..20).map(|i| (9, retransmits(i), 40 * MS))), Some(6));
        let ping = |i: u32| if i < 10 { 250 * i * MS } else { 250 * (i - 10) * MS };
        assert_eq!(first_seen((0..20).map(|i| (9, retransmits(i), ping(i)))), Some(10));
    }

    #[test]
    fn silence_progress_and_idleness_are_none() {
        let still = |i: u32| ((i / 3).min(200) as u8, 250 * i * MS);
        assert_eq!(first_seen((0..60).map(|i| (9, still(i).0, still(i).1))), None, "nothing is heard either");
        assert_eq!(first_seen((0..60).map(|i| (9, (i % 3) as u8, 10 * MS))), None, "lost packets get through at last");
        assert_eq!(first_seen((0..60).map(|_| (0, 0, 10 * MS))), None, "nothing to send");
    }
}
