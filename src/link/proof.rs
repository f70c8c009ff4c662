//! Does what a link sends leave by its interface? Binding a socket to an interface says so, but not every system lets
//! everybody bind, and two interfaces in one network, or a routing rule, send everything by one of them. So the
//! interfaces' own byte counters are compared with what their links have carried.

/// Bytes that a link's sockets may still hold, unsent, are a part of what it was given. After so many given the part
/// does not matter.
const ENOUGH: u64 = 16 << 20;

/// Something counted, by interface.
pub type Counts = Vec<(String, u64)>;

/// Compares, window by window.
#[derive(Default, Debug)]
pub struct Proof {
    /// At the window's start: what the interfaces had sent, and what their links had been given.
    start: Option<(Counts, Counts)>,
}

/// An interface whose links leave by another.
#[derive(Debug, PartialEq, Eq)]
pub struct Stray {
    /// The interface that they are named after.
    pub interface: String,
    /// The one that carries them.
    pub over: String,
}

impl Proof {
    /// Look at what each interface has `sent` and what its links were `given`, in all and by name. Looks that bring
    /// nothing new cost nothing but themselves.
    pub fn look(&mut self, sent: Counts, given: Counts) -> Vec<Stray> {
        let Some((sent_before, given_before)) = &self.start else {
            self.start = Some((sent, given));
            return Vec::new();
        };
        let moved = |now: &Counts, before: &Counts, name: &str| {
            let at = |counts: &Counts| counts.iter().find(|(n, _)| n == name).map_or(0, |(_, bytes)| *bytes);
            // an interface that was made anew counts from zero
            at(now).saturating_sub(at(before))
        };
        let was_given = |name: &str| moved(&given, given_before, name);
        let has_sent = |name: &str| moved(&sent, sent_before, name);
        let enough: Vec<&String> = given.iter().map(|(name, _)| name).filter(|n| was_given(n) >= ENOUGH).collect();
        if enough.is_empty() {
            return Vec::new();
        }
        let strays = enough
            .iter()
            .filter(|name| sent.iter().any(|(n, _)| n == **name) && has_sent(name) < was_given(name) / 4)
            .filter_map(|name| {
                let missing = was_given(name) - has_sent(name);
                let surplus = |other: &str| has_sent(other).saturating_sub(was_given(other));
                let over = sent.iter().map(|(n, _)| n).filter(|n| n != name).max_by_key(|n| surplus(n))?;
                // counters that do not count are no proof of anything
                let stray = || Stray { interface: (*name).clone(), over: over.clone() };
                (surplus(over) >= missing / 2).then(stray)
            })
            .collect();
        self.start = Some((sent, given));
        strays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn counts(of: &[(&str, u64)]) -> Counts {
        of.iter().map(|(name, mb)| (name.to_string(), mb * MB)).collect()
    }

    /// What had been counted before.
    const BASE: u64 = 1000 * MB;

    fn before(of: &[(&str, u64)]) -> Counts {
        of.iter().map(|(name, _)| (name.to_string(), BASE)).collect()
    }

    fn after(of: &[(&str, u64)]) -> Counts {
        of.iter().map(|(name, mb)| (name.to_string(), BASE + mb * MB)).collect()
    }

    /// What a second look finds after these megabytes.
    fn found(sent: &[(&str, u64)], given: &[(&str, u64)]) -> Vec<(String, String)> {
        let mut proof = Proof::default();
        assert_eq!(proof.look(before(sent), before(given)), []);
        let strays = proof.look(after(sent), after(given));
        strays.into_iter().map(|s| (s.interface, s.over)).collect()
    }

    #[test]
    fn a_link_whose_bytes_another_interface_carries_is_a_stray() {
        let stray = [("b".to_string(), "a".to_string())];
        assert_eq!(found(&[("a", 43), ("b", 0), ("c", 5)], &[("a", 20), ("b", 20), ("c", 3)]), stray);
        assert_eq!(found(&[("a", 25), ("b", 1)], &[("b", 20)]), stray);
    }

    #[test]
    fn links_that_leave_by_their_own_interface_are_none() {
        assert_eq!(found(&[("a", 21), ("b", 22)], &[("a", 20), ("b", 20)]), []);
        // much of it may still wait in the socket
        assert_eq!(found(&[("a", 12)], &[("a", 20)]), []);
        // others use the interfaces too
        assert_eq!(found(&[("a", 900), ("b", 17)], &[("a", 20), ("b", 20)]), []);
    }

    #[test]
    fn too_little_and_counters_that_do_not_count_are_no_proof() {
        assert_eq!(found(&[("a", 30), ("b", 0)], &[("a", 20), ("b", 10)]), []);
        assert_eq!(found(&[("a", 20), ("b", 0)], &[("a", 20), ("b", 20)]), [], "nobody carries it");
        assert_eq!(found(&[("a", 40)], &[("a", 20), ("b", 20)]), [], "an interface that is not there");
    }

    #[test]
    fn what_is_too_little_adds_up() {
        let mut proof = Proof::default();
        for mb in [0, 6, 12] {
            assert_eq!(proof.look(counts(&[("a", mb), ("b", 0)]), counts(&[("b", mb)])), []);
        }
        let stray = Stray { interface: "b".into(), over: "a".into() };
        assert_eq!(proof.look(counts(&[("a", 18), ("b", 0)]), counts(&[("b", 18)])), [stray]);
    }
}
