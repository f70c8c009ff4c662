//! Which link takes which number next.

use super::SeqSet;
use super::planted::{self, Bug};
use crate::ids::{LinkId, Seq};
use crate::options::Schedule;

/// Numbers that wait to be sent, and whose turn it is to take the lowest.
///
/// [`Schedule::Pull`]: any link that asks. Links ask when their socket has room, so equal links take turns and unequal
/// ones take what they can carry, with no weights to guess. [`Schedule::RoundRobin`]: the links in strict rotation, so
/// that every link waits for the slowest; for comparison.
#[derive(Debug)]
pub struct Scheduler {
    schedule: Schedule,
    /// Sealed and never sent, or sent and lost.
    waiting: SeqSet,
    /// Live links in the order they came up.
    rotation: Vec<LinkId>,
    /// Whose turn it is, an index into `rotation`; 0 if that is empty.
    turn: usize,
}

impl Scheduler {
    /// Nothing waits.
    pub fn new(schedule: Schedule) -> Scheduler {
        Scheduler { schedule, waiting: SeqSet::default(), rotation: Vec::new(), turn: 0 }
    }

    /// A link joins the rotation at its end.
    pub fn link_up(&mut self, link: LinkId) {
        self.rotation.push(link);
    }

    /// A link leaves the rotation; if it was its turn, it is the next one's.
    pub fn link_down(&mut self, link: LinkId) {
        let Some(at) = self.rotation.iter().position(|l| *l == link) else { return };
        self.rotation.remove(at);
        if at < self.turn {
            self.turn -= 1;
        }
        if self.turn == self.rotation.len() {
            self.turn = 0;
        }
    }

    /// A number waits to be sent.
    pub fn wait(&mut self, seq: Seq) {
        self.waiting.insert(seq.0);
    }

    /// A number need not be sent any more.
    pub fn forget(&mut self, seq: Seq) {
        self.waiting.remove(seq.0);
    }

    /// A link took a number.
    pub fn sent(&mut self, link: LinkId, seq: Seq) {
        self.waiting.remove(seq.0);
        if self.rotation.get(self.turn) == Some(&link) {
            self.turn = (self.turn + 1) % self.rotation.len();
        }
    }

    /// Every number below `base` is acknowledged.
    pub fn advance(&mut self, base: u64) {
        self.waiting.advance(base);
    }

    /// What a link may take: the lowest number that waits below the credit limit, if it is the link's turn.
    pub fn next(&self, link: LinkId, credit: u64) -> Option<Seq> {
        if self.schedule == Schedule::RoundRobin && self.rotation.get(self.turn) != Some(&link) {
            return None;
        }
        if planted::is(Bug::FirstLinkOnly) && self.hedges() && self.rotation.first() != Some(&link) {
            return None;
        }
        self.waiting.lowest().filter(|seq| *seq < credit).map(Seq)
    }

    /// Whether a number waits below `end`.
    pub fn is_waiting_below(&self, end: u64) -> bool {
        self.waiting.lowest().is_some_and(|seq| seq < end)
    }

    /// How many numbers wait below `end`.
    pub fn waiting_below(&self, end: u64) -> usize {
        self.waiting.count_below(end)
    }

    /// Links in the rotation.
    pub fn links(&self) -> usize {
        self.rotation.len()
    }

    /// Whether an idle link may send late numbers once more. Strict rotation does not: it is there to show its cost.
    pub fn hedges(&self) -> bool {
        self.schedule == Schedule::Pull
    }

    /// Whether a number waits.
    pub fn waits(&self, seq: Seq) -> bool {
        self.waiting.contains(seq.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: [LinkId; 3] = [LinkId(0), LinkId(1), LinkId(2)];

    fn with_links(schedule: Schedule) -> Scheduler {
        let mut scheduler = Scheduler::new(schedule);
        LINKS.iter().for_each(|l| scheduler.link_up(*l));
        (0..9).for_each(|s| scheduler.wait(Seq(s)));
        scheduler
    }

    #[test]
    fn strict_rotation_gives_each_link_its_turn_and_skips_the_dead() {
        let mut scheduler = with_links(Schedule::RoundRobin);
        for seq in 0..4 {
            let taker = LINKS[seq as usize % 3];
            for link in LINKS {
                assert_eq!(scheduler.next(link, 9), (link == taker).then_some(Seq(seq)));
            }
            scheduler.sent(taker, Seq(seq));
        }
        scheduler.link_down(LINKS[1]);
        assert_eq!(scheduler.next(LINKS[2], 9), Some(Seq(4)), "the turn of a dead link is the next one's");
        scheduler.sent(LINKS[2], Seq(4));
        scheduler.link_down(LINKS[0]);
        assert_eq!(scheduler.next(LINKS[2], 9), Some(Seq(5)));
        scheduler.link_down(LINKS[2]);
        assert_eq!(scheduler.next(LINKS[2], 9), None);
    }

    #[test]
    fn pull_gives_the_lowest_number_below_the_credit_limit_to_whoever_asks() {
        let mut scheduler = with_links(Schedule::Pull);
        scheduler.sent(LINKS[2], Seq(0));
        scheduler.sent(LINKS[2], Seq(1));
        assert_eq!(scheduler.next(LINKS[2], 3), Some(Seq(2)));
        scheduler.sent(LINKS[1], Seq(2));
        assert_eq!(scheduler.next(LINKS[0], 3), None, "no credit");
        scheduler.wait(Seq(1));
        assert_eq!(scheduler.next(LINKS[0], 3), Some(Seq(1)), "a resend needs none");
    }
}
