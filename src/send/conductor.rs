//! The sender's one decider: takes every event, one at a time, and says when the session is over and how.

use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::check;
use super::fleet::Fleet;
use super::stages::Totals;
use crate::error::{Error, escape, escape_words};
use crate::limits;
use crate::link::LinkEvent;
use crate::link::cables;
use crate::link::interfaces;
use crate::link::proof::{Proof, Stray};
use crate::link::send_session::SendSession;
use crate::link::watch::{self, Interrupts, Watch};
use crate::options::{LinkSpec, SendOptions};
use crate::report::Event;
use crate::wire::{self, Commit, Control};

/// A `--link` as it was typed.
fn shown(link: &LinkSpec) -> String {
    let not = if matches!(link, LinkSpec::Not(_)) { "!" } else { "" };
    format!("{not}{}", escape(link.name().as_bytes()))
}

pub(super) struct Conductor<'a> {
    pub(super) options: &'a SendOptions,
    pub(super) session: &'a SendSession,
    pub(super) watch: Watch,
    pub(super) fleet: Fleet,
    pub(super) proof: Proof,
}

impl Conductor<'_> {
    pub(super) async fn wait(
        &mut self,
        inbox: &mut UnboundedReceiver<LinkEvent>,
        mut totals: oneshot::Receiver<Result<Totals, Error>>,
        interrupts: &mut Interrupts,
    ) -> Result<(Commit, Totals), Error> {
        if self.fleet.kept.is_empty() {
            let links: Vec<String> = self.options.links.iter().map(shown).collect();
            let asked = links.join(", ");
            return Err(Error::Network(format!("with --link {asked} no interface leads to the receiver")));
        }
        let mut known: Option<Totals> = None;
        let mut changes = self.session.cables.changes();
        let mut looks = tokio::time::interval(limits::PROVE_EVERY);
        let mut look = tokio::time::interval(limits::STREAMS_LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let deadline = self.watch.deadline();
            tokio::select! {
                Some(event) = inbox.recv() => {
                    if let Some(commit) = self.handle(event)? {
                        return match known {
                            Some(totals) => check(&commit, &totals).map(|()| (commit, totals)),
                            None => Err(Error::Verification("the receiver committed before the source had ended".into())),
                        };
                    }
                }
                totals = &mut totals, if known.is_none() => {
                    let totals = totals.unwrap_or_else(|_| Err(Error::Bug("the source ended without a word".into())))?;
                    self.finish(&totals);
                    known = Some(totals);
                }
                signal = interrupts.next() => {
                    return Err(Error::Interrupted(format!("{signal}; incomplete, {}", self.progress())));
                }
                () = cables::changed(&mut changes) => self.fleet.grow(),
                _ = looks.tick() => self.prove(),
                _ = look.tick(), if known.is_none() && self.fleet.is_measuring() => self.fleet.measure(&self.options.observer),
                () = watch::at(deadline) => return Err(self.lost()),
            }
        }
    }

    fn handle(&mut self, event: LinkEvent) -> Result<Option<Commit>, Error> {
        let tell = &self.options.observer;
        match event {
            LinkEvent::Up { link, .. } if self.fleet.is_control(link) => {}
            LinkEvent::Down { link, .. } if self.fleet.is_control(link) => self.fleet.lost_control(),
            LinkEvent::Up { stats, .. } => {
                self.fleet.needs_no_control();
                let after = self.watch.up(&stats.name, Instant::now());
                tell(Event::LinkUp { name: stats.name.clone(), after });
            }
            LinkEvent::Proven { stats } => self.watch.proven(&stats.name),
            LinkEvent::Down { stats, ended, .. } if ended.is_left() => {
                self.watch.left(&stats.name, &ended, Instant::now());
            }
            LinkEvent::Down { stats, ended, .. } => {
                self.watch.down(&stats.name, &ended, Instant::now());
                stats.outages.fetch_add(1, Relaxed);
                *stats.last_error.lock().expect("no thread panics while it holds this lock") =
                    Some(ended.reason.clone());
                let remaining = self.watch.remaining();
                tell(Event::LinkDown { name: stats.name.clone(), reason: ended.reason, remaining });
            }
            LinkEvent::Unreachable { stats, ended } => {
                if self.watch.unreachable(&stats.name, &ended, Instant::now()) {
                    *stats.last_error.lock().expect("no thread panics while it holds this lock") =
                        Some(ended.reason.clone());
                    let remaining = self.watch.remaining();
                    tell(Event::LinkDown { name: stats.name.clone(), reason: ended.reason, remaining });
                }
            }
            LinkEvent::Control(Control::Commit(commit)) => return Ok(Some(commit)),
            LinkEvent::Control(Control::Abort { code, reason }) => {
                return Err(Error::Peer { code, reason: escape_words(&reason) });
            }
            LinkEvent::Control(Control::Links(addresses)) => {
                // looking at our interfaces is not free, and nothing stops a peer from saying the same for ever
                if addresses != self.fleet.addresses {
                    self.fleet.addresses = addresses;
                    self.fleet.grow();
                }
            }
            LinkEvent::Enough => return Err(Error::Interrupted("enough was measured".into())),
            LinkEvent::Panicked => return Err(Error::Bug("a thread of the sender panicked".into())),
            LinkEvent::Control(_) | LinkEvent::Complete | LinkEvent::Hopeless { .. } | LinkEvent::Stillborn { .. } => {}
            LinkEvent::Violation { what, .. } => {
                return Err(Error::Verification(format!("the receiver broke the protocol: {what}")));
            }
            LinkEvent::Corrupt { stats, count } => tell(Event::Corrupt { link: stats.name.clone(), count }),
        }
        Ok(None)
    }

    /// Let links go that leave by another interface than their own, unless nothing else is left.
    fn prove(&mut self) {
        // with one link there is none to be dropped
        if self.fleet.kept.len() < 2 {
            return;
        }
        let Ok(carried) = interfaces::carried() else { return };
        let sent = carried.into_iter().map(|(name, carried)| (name, carried.sent)).collect();
        let mut given: Vec<(String, u64)> = Vec::new();
        for link in self.session.stats.links() {
            let Some(kept) = self.fleet.kept.iter().find(|k| k.link == link.name) else { continue };
            let bytes = link.wire_bytes.load(Relaxed);
            match given.iter_mut().find(|(name, _)| *name == kept.interface) {
                Some((_, sum)) => *sum += bytes,
                None => given.push((kept.interface.clone(), bytes)),
            }
        }
        for Stray { interface, over } in self.proof.look(sent, given) {
            let why = format!("it leaves by {over}, not by {interface}");
            let strays = self.fleet.kept.iter().filter(|k| k.interface == interface).map(|k| k.link.clone());
            for link in strays.collect::<Vec<_>>() {
                if self.watch.is_up_beside(&link) {
                    self.session.expel(&link, why.clone());
                } else {
                    (self.options.observer)(Event::Warning(format!("link {link}: {why}")));
                }
            }
        }
    }

    fn finish(&self, totals: &Totals) {
        let notes = totals.notes.notes();
        let named_losses = notes.named.iter().filter(|n| n.kind.is_loss()).count() as u64;
        let named_harmless = notes.named.len() as u64 - named_losses;
        let finish = wire::Finish {
            chunks: totals.end.chunks,
            entries: totals.end.entries,
            bytes: totals.end.stream_bytes,
            content_bytes: totals.end.content_bytes,
            notes: notes.named.len() as u64,
            unnamed: (notes.losses - named_losses, notes.harmless.saturating_sub(named_harmless)),
            digest: totals.transfer_digest,
        };
        self.session.last_words().set_finish(finish, notes);
        self.session.bells.ring_all();
    }

    fn lost(&self) -> Error {
        let reasons = self.watch.reasons();
        let unknown = if self.session.flow().all_sent() {
            "; everything was sent, but the receiver did not confirm it: outcome unknown, run again"
        } else {
            ""
        };
        let progress = self.progress();
        if self.watch.all_damaged() {
            return Error::Verification(format!("every link was given up ({reasons}); {progress}{unknown}"));
        }
        Error::Network(format!("all links are lost ({reasons}); incomplete, {progress}{unknown}"))
    }

    fn progress(&self) -> String {
        let stats = &self.session.stats;
        format!("{} bytes acknowledged", stats.stream_done.load(Relaxed))
    }

    /// Until the receiver has certainly heard the last word: one link has ended in goodbyes, or none is left.
    pub(super) async fn until_told(&mut self, inbox: &mut UnboundedReceiver<LinkEvent>) {
        // the first connection is up although its link has not said so yet
        while self.watch.is_untried() || self.watch.connections() > 0 || self.fleet.has_control() {
            let Some(event) = inbox.recv().await else { return };
            match event {
                LinkEvent::Down { ended, .. } if ended.is_over() => return,
                LinkEvent::Down { link, .. } if self.fleet.is_control(link) => self.fleet.lost_control(),
                LinkEvent::Up { stats, .. } => drop(self.watch.up(&stats.name, Instant::now())),
                LinkEvent::Down { stats, ended, .. } => self.watch.down(&stats.name, &ended, Instant::now()),
                _ => {}
            }
        }
    }
}
