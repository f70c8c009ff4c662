//! Which links a session begins with: those that `--link` names, or one for each pair of interfaces that the receiver's
//! addresses reveal. The first connection is one of them where it may carry chunks.

use super::reach::Agreed;
use crate::link::by_hand;
use crate::link::discover::{self, Candidate, NoLink};
use crate::link::interfaces::Interface;
use crate::options::{LinkSpec, SendOptions};

/// The links that can be had.
pub(super) struct Links {
    /// Each of our interfaces with its link, or why it has none.
    pub(super) interfaces: Vec<(Interface, Result<Candidate, NoLink>)>,
    /// Links that are not named after an interface.
    pub(super) others: Vec<Candidate>,
    /// The link that the first connection is, by name, unless it is none of them.
    pub(super) first: Option<String>,
}

impl Links {
    /// Find them, now that the receiver has told its addresses.
    pub(super) fn find(options: &SendOptions, interfaces: Vec<Interface>, agreed: &Agreed) -> Links {
        let first = &agreed.candidate;
        if agreed.alone {
            let interfaces = interfaces.into_iter().map(|i| (i, Err(NoLink::NotNamed))).collect();
            return Links { interfaces, others: vec![first.clone()], first: Some(first.name.clone()) };
        }
        if LinkSpec::by_hand(&options.links) {
            return Links::by_hand(options, interfaces, agreed);
        }
        let left_out = LinkSpec::left_out(&options.links);
        let survey = |kept: &[_]| discover::survey(&interfaces, &agreed.addresses, kept, &left_out);
        let (ours, theirs) = agreed.ends();
        let anew = survey(&[]);
        if agreed.control_only || discover::is_better_found_anew(&interfaces, ours, theirs, &anew) {
            let mut found: Vec<_> = interfaces.into_iter().zip(anew).collect();
            let own = found.iter_mut().find(|(i, _)| i.name == first.name);
            if let Some((_, Ok(link))) = own.filter(|_| !agreed.control_only) {
                // better that than nothing
                link.routes.extend(first.routes.iter().cloned());
            }
            return Links { interfaces: found, others: Vec::new(), first: None };
        }
        let found = survey(&[first.kept()]);
        let mut others = vec![first.clone()];
        let own = |(i, found): (Interface, _)| {
            let found = if i.name == first.name { others.pop().ok_or(NoLink::Kept) } else { found };
            (i, found)
        };
        let interfaces = interfaces.into_iter().zip(found).map(own).collect();
        Links { interfaces, others, first: Some(first.name.clone()) }
    }

    fn by_hand(options: &SendOptions, interfaces: Vec<Interface>, agreed: &Agreed) -> Links {
        let locals = discover::addresses(&interfaces);
        let host = agreed.candidate.routes[0].remote;
        let mut named = by_hand::candidates(&options.links, &locals, &agreed.addresses, host);
        let (ours, theirs) = agreed.ends();
        let is_first = |c: &&Candidate| !agreed.control_only && c.routes.iter().any(|r| r.joins(ours, theirs));
        let first = named.iter().find(is_first).map(|c| c.name.clone());
        let own = |i: Interface| {
            let at = named.iter().position(|c| c.name == i.name);
            let link = at.map(|at| named.remove(at)).ok_or(NoLink::NotNamed);
            (i, link)
        };
        let interfaces = interfaces.into_iter().map(own).collect();
        Links { interfaces, others: named, first }
    }

    /// All of them.
    pub(super) fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.interfaces.iter().filter_map(|(_, link)| link.as_ref().ok()).chain(&self.others)
    }
}
