//! What has been sent and is not yet acknowledged: which link carries which number, since when, and which numbers have
//! been out for so long that an idle link should send them once more.

use std::collections::VecDeque;
use std::time::Duration;

use super::planted::{self, Bug};
use super::{SeqSet, Time, Violation};
use crate::ids::{LinkId, Seq};
use crate::limits::{HEDGE_AGAIN, HEDGE_MAX, HEDGE_MIN, HEDGE_STARVED, HEDGE_UNMEASURED, LINKS_MAX};

/// The table of frames in flight. A *frame* is one copy of a number on one link; a number may have several. Numbers
/// are *out* while at least one copy is in flight and none is acknowledged.
///
/// All operations cost O(1) amortised, and nothing is allocated once rings have grown to the size of the window; only
/// [`InFlight::hedge`] walks the numbers that are out.
#[derive(Default, Debug)]
pub struct InFlight {
    /// Numbers below it are acknowledged.
    base: u64,
    /// One for each number from `base` on that was ever sent; a number that was not has no carriers.
    numbers: VecDeque<Number>,
    out: SeqSet,
    /// At most [`LINKS_MAX`]; a place is used again, an id is not.
    links: Vec<Link>,
    /// The delay of all links together, for a link that has none of its own yet.
    delay: Delay,
}

/// What is known of one number.
#[derive(Clone, Copy, Default, Debug)]
struct Number {
    /// Bit i is set while the link in place i carries a copy.
    carriers: u64,
    /// When the latest copy was sent.
    last_sent: Time,
    /// Copies that arrived and failed verification.
    losses: u32,
}

#[derive(Debug)]
struct Link {
    /// `None` while the place is free.
    id: Option<LinkId>,
    /// Frames in the order they were sent, from frame `settled` of the link on.
    frames: VecDeque<Frame>,
    settled: u64,
    delay: Delay,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    seq: u64,
    sent_at: Time,
}

/// What [`InFlight::hedge`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hedge {
    /// This number is late.
    Now(Seq),
    /// Nothing is late before this time.
    Until(Time),
    /// There is no other link to help.
    Never,
}

impl InFlight {
    /// A link begins to carry frames. Panics if the id is up already or the links are too many: ids and links are ours.
    pub fn link_up(&mut self, id: LinkId) {
        assert!(self.place(id).is_none(), "link {id} is up already");
        match self.links.iter_mut().find(|l| l.id.is_none()) {
            Some(link) => (link.id, link.settled, link.delay) = (Some(id), 0, Delay::default()),
            None => {
                assert!(self.links.len() < LINKS_MAX, "a session has at most {LINKS_MAX} links");
                self.links.push(Link { id: Some(id), frames: VecDeque::new(), settled: 0, delay: Delay::default() });
            }
        }
    }

    /// A link is gone with all it carried; `orphan` is called for each number that no other link carries, in the order
    /// in which they were sent.
    pub fn link_down(&mut self, id: LinkId, mut orphan: impl FnMut(Seq)) {
        let Some(place) = self.place(id) else { return };
        self.links[place].id = None;
        while let Some(frame) = self.links[place].frames.pop_front() {
            if self.put_down(frame.seq, place) {
                orphan(Seq(frame.seq));
            }
        }
    }

    /// Whether a link is up.
    pub fn is_up(&self, id: LinkId) -> bool {
        self.place(id).is_some()
    }

    /// A link took a copy of a number. The frame counts on the link even if the number is not `wanted` any more,
    /// because it was acknowledged meanwhile.
    pub fn sent(&mut self, id: LinkId, seq: Seq, wanted: bool, now: Time) {
        let Some(place) = self.place(id) else { return };
        self.links[place].frames.push_back(Frame { seq: seq.0, sent_at: now });
        if !wanted {
            return;
        }
        let at = seq.0.checked_sub(self.base).expect("what is below the base is not wanted");
        let at = usize::try_from(at).expect("the window bounds what is in flight");
        if self.numbers.len() <= at {
            self.numbers.resize(at + 1, Number::default());
        }
        let number = &mut self.numbers[at];
        number.carriers |= 1 << place;
        number.last_sent = now;
        self.out.insert(seq.0);
    }

    /// A number is acknowledged: whatever copies are left do not matter.
    pub fn acked(&mut self, seq: Seq) {
        self.out.remove(seq.0);
        if let Some(number) = self.number(seq.0) {
            number.carriers = 0;
        }
    }

    /// Every number below `base` is acknowledged.
    pub fn advance(&mut self, base: u64) {
        let gone = usize::try_from(base.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.numbers.drain(..gone.min(self.numbers.len()));
        self.base = self.base.max(base);
        self.out.advance(self.base);
    }

    /// The peer has settled the first `settled` frames of a link. Call it after [`InFlight::acked`] for the same ack:
    /// settled frames of numbers that are still out failed verification. `lost` is called for each of them, with
    /// whether it was the last copy in flight.
    pub fn settle(
        &mut self,
        id: LinkId,
        settled: u64,
        now: Time,
        mut lost: impl FnMut(Seq, bool, u32),
    ) -> Result<(), Violation> {
        let Some(place) = self.place(id) else { return Ok(()) };
        let link = &self.links[place];
        let sent = link.settled + link.frames.len() as u64;
        if settled > sent && !planted::is(Bug::SettledUnsentTaken) {
            return Err(Violation::SettledUnsent { link: id, settled, sent });
        }
        while self.links[place].settled < settled.min(sent) {
            let link = &mut self.links[place];
            let frame = link.frames.pop_front().expect("settled is at most what was sent");
            link.settled += 1;
            let delay = now.saturating_sub(frame.sent_at);
            link.delay.sample(delay);
            self.delay.sample(delay);
            if self.out.contains(frame.seq) {
                let last = self.put_down(frame.seq, place);
                let number = self.number(frame.seq).expect("a number that is out is in the table");
                number.losses += 1;
                lost(Seq(frame.seq), last, number.losses);
            }
        }
        Ok(())
    }

    /// Whether at least one copy of a number is in flight and none acknowledged.
    pub fn is_out(&self, seq: Seq) -> bool {
        self.out.contains(seq.0)
    }

    /// How many numbers are.
    pub fn count_out(&self) -> usize {
        self.out.count_below(u64::MAX)
    }

    /// Frames that a link carries and the peer has not settled.
    pub fn on_link(&self, id: LinkId) -> usize {
        self.place(id).map_or(0, |place| self.links[place].frames.len())
    }

    /// The lowest number that is late, as seen from a link with nothing better to do.
    ///
    /// A number is late when its latest copy has been out for clearly longer than this link takes for a chunk: then a
    /// copy sent here will probably be there first. Measuring with the helper's own delay is what tells a slow or dead
    /// link from an ordinary wait: equal links see each other's chunks within it, while the chunks of a link a hundred
    /// times slower, or of a silent one, are late together and follow each other without pause. A number that is out
    /// twice must be late by far more, so that a receiver that reads nothing gets each number about once more.
    ///
    /// `more_to_come`: the source may yet bring a chunk that may be sent. It is better to send than a late one, unless
    /// it does not come because the late ones have all the buffers; so be more patient, and not for ever.
    pub fn hedge(&self, id: LinkId, more_to_come: bool, now: Time) -> Hedge {
        let Some(place) = self.place(id) else { return Hedge::Never };
        if self.links.iter().filter(|l| l.id.is_some()).count() < 2 {
            return Hedge::Never;
        }
        let own = self.links[place].delay;
        let mut patience = own.or(self.delay).patience();
        if more_to_come {
            patience = (patience * 2).max(HEDGE_STARVED);
        }
        // What another link takes a moment from now is not late before this either, so nobody need be woken for it.
        let mut earliest = now + patience;
        for seq in self.out.iter() {
            let number = &self.numbers[(seq - self.base) as usize];
            if number.carriers >> place & 1 == 1 {
                continue;
            }
            let hedged = number.carriers.count_ones() > 1;
            let due = number.last_sent + if hedged { HEDGE_AGAIN.max(patience * 4) } else { patience };
            if due <= now {
                return Hedge::Now(Seq(seq));
            }
            earliest = earliest.min(due);
        }
        Hedge::Until(earliest)
    }

    /// Panics unless the table agrees with itself. Costs O(everything).
    pub fn invariants(&self) {
        assert!(self.out.lowest().is_none_or(|lowest| lowest >= self.base), "what is acknowledged is not out");
        for (number, seq) in self.numbers.iter().zip(self.base..) {
            assert_eq!(self.out.contains(seq), number.carriers != 0, "number {seq} is out while a link carries it");
            for (place, link) in self.links.iter().enumerate() {
                let carried = link.frames.iter().filter(|f| f.seq == seq).count();
                let marked = number.carriers >> place & 1 == 1;
                assert!(!marked || carried == 1, "the link in place {place} carries number {seq}");
                assert!(marked || carried == 0 || !self.out.contains(seq), "place {place} is marked for number {seq}");
            }
        }
        for link in &self.links {
            assert!(link.id.is_some() || link.frames.is_empty(), "a link that is down carries nothing");
        }
    }

    /// One copy less; true if none is left of a number that is out.
    fn put_down(&mut self, seq: u64, place: usize) -> bool {
        if !self.out.contains(seq) {
            return false;
        }
        let number = self.number(seq).expect("a number that is out is in the table");
        number.carriers &= !(1 << place);
        let last = number.carriers == 0;
        if last {
            self.out.remove(seq);
        }
        last
    }

    fn number(&mut self, seq: u64) -> Option<&mut Number> {
        let at = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        self.numbers.get_mut(at)
    }

    fn place(&self, id: LinkId) -> Option<usize> {
        self.links.iter().position(|l| l.id == Some(id))
    }
}

/// How long a link takes from a frame's first byte to its settlement: smoothed mean and deviation as RFC 6298 has them
/// for round trips. A sample counts as at most four times the mean, so that one long silence that healed does not make
/// the link patient for the next minute.
#[derive(Clone, Copy, Default, Debug)]
struct Delay {
    mean: Duration,
    deviation: Duration,
    samples: u32,
}

impl Delay {
    /// Samples from which on the figures are believed. The first chunks are all out together, and the first to be
    /// settled is not typical of them.
    const ENOUGH: u32 = 8;

    fn sample(&mut self, sample: Duration) {
        if self.samples == 0 {
            (self.mean, self.deviation) = (sample, sample / 2);
        } else {
            let sample = sample.min((self.mean * 4).max(HEDGE_MIN));
            self.deviation = (self.deviation * 3 + self.mean.abs_diff(sample)) / 4;
            self.mean = (self.mean * 7 + sample) / 8;
        }
        self.samples = self.samples.saturating_add(1);
    }

    fn or(self, other: Delay) -> Delay {
        if self.samples >= Delay::ENOUGH { self } else { other }
    }

    /// How long a number may be out elsewhere before this link thinks it late.
    fn patience(self) -> Duration {
        let least = if self.samples >= Delay::ENOUGH { HEDGE_MIN } else { HEDGE_UNMEASURED };
        (self.mean * 2).max(self.mean + self.deviation * 4).clamp(least, HEDGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// The table as one would first write it: frames in lists, everything searched.
    #[derive(Default)]
    struct Model {
        frames: BTreeMap<LinkId, Vec<(u64, bool)>>,
        settled: BTreeMap<LinkId, u64>,
        acked: BTreeSet<u64>,
    }

    impl Model {
        fn is_out(&self, seq: u64) -> bool {
            !self.acked.contains(&seq) && self.frames.values().flatten().any(|(s, wanted)| *s == seq && *wanted)
        }

        fn carries(&self, link: LinkId, seq: u64) -> bool {
            self.frames[&link].iter().any(|(s, _)| *s == seq)
        }
    }

    proptest! {
        /// Random sends, acks, settlements and link losses agree with the model, and every change keeps the invariants.
        #[test]
        fn agrees_with_lists_of_frames(ops in prop::collection::vec((0..8u8, 0..4u32, 0..40u64), 1..300)) {
            let (mut table, mut model, mut base, mut ids) = (InFlight::default(), Model::default(), 0, 4);
            let mut links: Vec<LinkId> = (0..4).map(LinkId).collect();
            for link in &links {
                table.link_up(*link);
                model.frames.insert(*link, Vec::new());
            }
            for (at, (op, which, n)) in ops.into_iter().enumerate() {
                let (link, seq) = (links[which as usize], base + n);
                let now = Time::from_millis(at as u64);
                match op {
                    0..=3 if !model.carries(link, seq) => {
                        let wanted = !model.acked.contains(&seq);
                        table.sent(link, Seq(seq), wanted, now);
                        model.frames.get_mut(&link).unwrap().push((seq, wanted));
                    }
                    4 => {
                        table.acked(Seq(seq));
                        model.acked.insert(seq);
                    }
                    5 => {
                        (base..base + n / 8).for_each(|s| { model.acked.insert(s); table.acked(Seq(s)); });
                        base += n / 8;
                        table.advance(base);
                    }
                    6 => {
                        let settled = model.settled.entry(link).or_default();
                        let frames = model.frames.get_mut(&link).unwrap();
                        let more = (n % 4).min(frames.len() as u64);
                        *settled += more;
                        let gone: Vec<(u64, bool)> = frames.drain(..more as usize).collect();
                        let settled = *settled;
                        let expected: Vec<(u64, bool)> = gone
                            .iter()
                            .filter(|(s, _)| !model.acked.contains(s))
                            .map(|(s, _)| (*s, !model.is_out(*s)))
                            .collect();
                        let mut lost = Vec::new();
                        table.settle(link, settled, now, |s, last, _| lost.push((s.0, last))).unwrap();
                        prop_assert_eq!(lost, expected);
                    }
                    7 => {
                        let gone = model.frames.remove(&link).unwrap();
                        let expected: Vec<u64> = gone
                            .iter()
                            .map(|(s, _)| *s)
                            .filter(|s| !model.acked.contains(s) && !model.is_out(*s))
                            .collect();
                        let mut orphans = Vec::new();
                        table.link_down(link, |s| orphans.push(s.0));
                        prop_assert_eq!(orphans, expected);
                        links[which as usize] = LinkId(ids);
                        ids += 1;
                        table.link_up(links[which as usize]);
                        model.frames.insert(links[which as usize], Vec::new());
                    }
                    _ => {}
                }
                table.invariants();
                for s in base..base + 50 {
                    prop_assert_eq!(table.is_out(Seq(s)), model.is_out(s), "number {}", s);
                }
                for link in &links {
                    prop_assert_eq!(table.on_link(*link), model.frames[link].len());
                }
                // What is hedged is the lowest number that is out and not on the helper.
                let late = table.hedge(links[0], false, Time::from_secs(3600));
                let expected = (base..base + 50).find(|s| model.is_out(*s) && !model.carries(links[0], *s));
                let late = if let Hedge::Now(seq) = late { Some(seq.0) } else { None };
                prop_assert_eq!(late, expected);
            }
        }
    }

    #[test]
    fn settling_more_than_was_sent_is_a_violation() {
        let (mut table, link) = (InFlight::default(), LinkId(7));
        table.link_up(link);
        table.sent(link, Seq(0), true, Time::ZERO);
        let settled = table.settle(link, 2, Time::ZERO, |_, _, _| {});
        assert_eq!(settled, Err(Violation::SettledUnsent { link, settled: 2, sent: 1 }));
        assert_eq!(table.settle(LinkId(8), 9, Time::ZERO, |_, _, _| {}), Ok(()), "an unknown link is one that is gone");
    }
}
