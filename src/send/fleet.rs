//! All links of a session: which there are, which are added, that each is kept up, and by how many connections.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::knee::{Knee, Look, Step};
use super::links::Links;
use super::reach::Agreed;
use crate::ids::LinkId;
use crate::limits;
use crate::link::Opened;
use crate::link::dial::{self, LinkIds};
use crate::link::discover::{self, Candidate, Kept};
use crate::link::interfaces::{self, Interface, Kind};
use crate::link::send_link::{self, Leave};
use crate::link::send_session::SendSession;
use crate::options::{LinkSpec, Observer, Schedule, SendOptions};
use crate::report::Event;
use crate::stats::LinkStats;
use crate::sys::{TcpState, tcp_state};
use crate::wire::{Address, FIRST_NONCES};

/// All links of the session, those that are up and those that are dialled again and again.
pub(super) struct Fleet {
    pub(super) session: Arc<SendSession>,
    pub(super) ids: Arc<LinkIds>,
    /// Connections on each link, to begin with.
    pub(super) streams: u16,
    /// Links for which it is not known yet how many connections pay.
    measured: Vec<Measured>,
    /// Whether that is to be found.
    auto: bool,
    /// Connections that may still be added.
    pub(super) room: u16,
    /// What is kept up.
    pub(super) kept: Vec<Kept>,
    /// Interfaces that the user has left out.
    pub(super) left_out: Vec<String>,
    /// A first connection that is none of the links by hand, so that it carries no chunks.
    control: Option<(LinkId, Leave)>,
    /// There will be no other links than these.
    fixed: bool,
    /// Where the receiver can be reached, as it says itself.
    pub(super) addresses: Vec<Address>,
}

/// A link whose connections are counted by measuring.
struct Measured {
    candidate: Candidate,
    stats: Arc<LinkStats>,
    turns: Arc<Semaphore>,
    knee: Knee,
    /// Connections beside the first, newest last.
    more: Vec<Leave>,
}

impl Fleet {
    /// Start every link: the first connection, the pairs it revealed or `--link` named, each as often as `--streams`
    /// says.
    pub(super) fn launch(session: &Arc<SendSession>, options: &SendOptions, agreed: Agreed) -> Fleet {
        let links = Links::find(options, interfaces::list().unwrap_or_default(), &agreed);
        let mut fleet = Fleet {
            session: session.clone(),
            ids: Arc::new(LinkIds::default()),
            streams: options.streams.unwrap_or(1).max(1),
            measured: Vec::new(),
            // strict rotation is there to be compared with
            auto: options.streams.is_none() && options.schedule == Schedule::Pull,
            room: limits::LINKS_MAX as u16 - 1,
            kept: Vec::new(),
            left_out: LinkSpec::left_out(&options.links),
            fixed: agreed.alone || LinkSpec::by_hand(&options.links),
            addresses: agreed.addresses,
            control: None,
        };
        let mut connection =
            Some(Opened { link: LinkId(0), stream: agreed.stream, keys: session.keys.dialer(LinkId(0), FIRST_NONCES) });
        for candidate in links.candidates() {
            let is_first = links.first.as_ref() == Some(&candidate.name);
            let first = if is_first { connection.take() } else { None };
            let own = links.interfaces.iter().map(|(i, _)| i).find(|i| i.name == candidate.kept().interface);
            fleet.keep(candidate.clone(), own, first);
        }
        if let Some(Opened { link, stream, keys }) = connection {
            let session = session.clone();
            // it carries nothing worth a line in a report
            let stats = Arc::new(LinkStats { name: agreed.candidate.name, ..LinkStats::default() });
            let stays = Leave::default();
            fleet.control = Some((link, stays.clone()));
            let stream = Arc::new(stream);
            tokio::task::spawn_local(async move {
                send_link::run(&session, link, stats, &stream, keys, true, &stays, pending()).await
            });
        }
        fleet
    }

    /// Whether that connection carries no chunks, so that nobody counts it as a link.
    pub(super) fn is_control(&self, link: LinkId) -> bool {
        self.control.as_ref().is_some_and(|(control, _)| *control == link)
    }

    /// Whether there is still such a connection.
    pub(super) fn has_control(&self) -> bool {
        self.control.is_some()
    }

    /// It is gone.
    pub(super) fn lost_control(&mut self) {
        self.control = None;
    }

    /// A link is up, and says whatever is to be said.
    pub(super) fn needs_no_control(&self) {
        if let Some((_, leave)) = self.control.as_ref().filter(|(_, leave)| !leave.asked()) {
            leave.ask();
            self.session.bells.ring_all();
        }
    }

    /// Add a link for every pair of interfaces that has none.
    pub(super) fn grow(&mut self) {
        if self.fixed {
            return;
        }
        let interfaces = interfaces::list().unwrap_or_default();
        for candidate in discover::pair(&interfaces, &self.addresses, &self.kept, &self.left_out) {
            let own = interfaces.iter().find(|i| i.name == candidate.kept().interface);
            self.keep(candidate, own, None);
        }
    }

    /// Keep a link up that leaves by `own`; `first` is a connection of it.
    fn keep(&mut self, candidate: Candidate, own: Option<&Interface>, mut first: Option<Opened>) {
        self.kept.push(candidate.kept());
        let turns = Arc::new(Semaphore::new(limits::DIALS_AT_ONCE));
        for _ in 0..self.streams.min(self.room) {
            self.open(&candidate, &turns, first.take());
        }
        if self.auto {
            let (bond, speed) = own.map_or((false, 0), |i| (i.kind == Kind::Bond, i.speed_mbit));
            let knee = Knee::new(bond, speed, Instant::now());
            let stats = self.session.stats.link(&candidate.name);
            self.measured.push(Measured { candidate, stats, turns, knee, more: Vec::new() });
        }
    }

    /// One more connection.
    fn open(&mut self, candidate: &Candidate, turns: &Arc<Semaphore>, first: Option<Opened>) -> Leave {
        self.room -= 1;
        let leave = Leave::default();
        let (session, ids, turns) = (self.session.clone(), self.ids.clone(), turns.clone());
        tokio::task::spawn_local(dial::keep_up(session, ids, turns, candidate.clone(), first, leave.clone()));
        leave
    }

    /// Whether there is a link of which it is not known how many connections pay.
    pub(super) fn is_measuring(&self) -> bool {
        !self.measured.is_empty()
    }

    /// Look at those links, and have as many connections on each as have proved to pay.
    pub(super) fn measure(&mut self, tell: &Observer) {
        let now = Instant::now();
        for mut link in std::mem::take(&mut self.measured) {
            let have = link.more.len() as u16 + 1;
            // half of the room is kept for links that come later
            let most = limits::STREAMS_AUTO_MAX.min(have + self.room / 2);
            let look = self.look(&link.stats);
            match link.knee.step(look, most, now) {
                Step::Wait => {}
                Step::Try(want) => {
                    for _ in have..want {
                        link.more.push(self.open(&link.candidate, &link.turns, None));
                    }
                }
                Step::Keep(want, gain) => {
                    for leave in link.more.drain(usize::from(want) - 1..) {
                        leave.ask();
                        self.room += 1;
                    }
                    self.session.bells.ring_all();
                    tell(Event::Streams { link: link.candidate.name.clone(), connections: want, gain });
                }
            }
            if !link.knee.is_done() {
                self.measured.push(link);
            }
        }
    }

    /// What a link looks like now.
    fn look(&self, stats: &Arc<LinkStats>) -> Look {
        let mut look = Look {
            links: Vec::new(),
            acked: 0,
            used: stats.times.busy.total() + stats.times.network.total(),
            rtt: Duration::MAX,
        };
        for connection in self.session.by_link.lock().expect("no thread panics while it holds this lock").iter() {
            if !Arc::ptr_eq(&connection.stats, stats) {
                continue;
            }
            // a kernel that does not tell has links of one connection
            let Ok(TcpState { acked: Some(acked), min_rtt: Some(min_rtt), .. }) = tcp_state(&connection.stream) else {
                continue;
            };
            look.links.push(connection.link);
            look.acked += acked;
            look.rtt = look.rtt.min(min_rtt);
        }
        look
    }
}
