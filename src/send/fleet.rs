//! All links of a session: which there are, which are added, and that each is kept up.

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::reach::Agreed;
use crate::ids::LinkId;
use crate::limits;
use crate::link::dial::{self, LinkIds};
use crate::link::discover::{self, Candidate};
use crate::link::send_link::{self, SendSession};
use crate::options::SendOptions;
use crate::stats::LinkStats;
use crate::wire::Address;

/// All links of the session, those that are up and those that are dialled again and again.
pub(super) struct Fleet {
    pub(super) session: Arc<SendSession>,
    pub(super) ids: Arc<LinkIds>,
    /// Connections on each link.
    pub(super) streams: u16,
    /// Connections that may still be added.
    pub(super) room: u16,
    /// What is kept up, as pairs of our address and the receiver's.
    pub(super) kept: Vec<(IpAddr, IpAddr)>,
    /// A first connection that is none of the links by hand, so that it carries no chunks.
    pub(super) control: Option<LinkId>,
    /// Links by hand are all there will be.
    pub(super) by_hand: bool,
    /// Where the receiver can be reached, as it says itself.
    pub(super) addresses: Vec<Address>,
}

impl Fleet {
    /// Start every link: the first connection, the pairs it revealed or `--link` named, each as often as `--streams`
    /// says.
    pub(super) fn launch(session: &Arc<SendSession>, options: &SendOptions, agreed: Agreed) -> Fleet {
        let mut fleet = Fleet {
            session: session.clone(),
            ids: Arc::new(LinkIds::default()),
            streams: options.streams.unwrap_or(1).max(1),
            room: limits::LINKS_MAX as u16 - 1,
            kept: Vec::new(),
            by_hand: !options.links.is_empty(),
            addresses: agreed.addresses,
            control: None,
        };
        let ours = agreed.stream.local_addr().map_or(agreed.peer.ip(), |a| a.ip());
        let theirs = agreed.peer.ip();
        let mut connection = Some((LinkId(0), agreed.stream));
        if fleet.by_hand {
            let locals = discover::locals().unwrap_or_default();
            let host = agreed.candidate.routes[0].remote;
            for candidate in dial::candidates_by_hand(&options.links, &locals, &fleet.addresses, host) {
                let is_first = !agreed.control_only && candidate.routes.iter().any(|r| r.joins(ours, theirs));
                let first = if is_first { connection.take() } else { None };
                fleet.keep(candidate, first);
            }
        } else {
            fleet.kept.push((ours, theirs));
            fleet.keep(agreed.candidate.clone(), connection.take());
            fleet.grow();
        }
        if let Some((link, stream)) = connection {
            let session = session.clone();
            // it carries nothing worth a line in a report
            let stats = Arc::new(LinkStats { name: agreed.candidate.name, ..LinkStats::default() });
            fleet.control = Some(link);
            tokio::task::spawn_local(
                async move { send_link::run(&session, link, stats, &stream, true, pending()).await },
            );
        }
        fleet
    }

    /// Add a link for every pair of interfaces that has none.
    pub(super) fn grow(&mut self) {
        if self.by_hand {
            return;
        }
        let locals = discover::locals().unwrap_or_default();
        for candidate in discover::pair(&locals, &self.addresses, &self.kept) {
            let pairs = candidate.routes.iter().filter_map(|r| Some((r.local?, r.remote.ip())));
            self.kept.extend(pairs);
            self.keep(candidate, None);
        }
    }

    fn keep(&mut self, candidate: Candidate, mut first: Option<(LinkId, TcpStream)>) {
        let turns = Arc::new(Semaphore::new(limits::DIALS_AT_ONCE));
        for _ in 0..self.streams.min(self.room) {
            self.room -= 1;
            let (session, ids, turns) = (self.session.clone(), self.ids.clone(), turns.clone());
            tokio::task::spawn_local(dial::keep_up(session, ids, turns, candidate.clone(), first.take()));
        }
    }
}
