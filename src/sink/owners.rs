//! Which owner something gets here: the number that the sender says, unless it was asked for anything else.
//!
//! 1. The first rule of `--owner-map` or `--group-map` that matches.
//! 2. With `--by-name`: who has the sender's name for it here. Number 0 is root everywhere and stays 0.
//! 3. The number.
//!
//! Names are looked up by a thread of their own, which is started before the process is confined to the destination and
//! so still reaches the system's users, wherever they are kept. What was asked once is remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::unistd::{Group, User};

use super::Shared;
use crate::archive::{AclWho, Entry};
use crate::error::{Error, escape};
use crate::options::{IdRule, MapFrom, MapTo, Owners};
use crate::report::NoteKind;

/// Names that are remembered; a sender that says more makes us forget and ask again.
const NAMES_MAX: usize = 1 << 16;

/// Users or groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    Users,
    Groups,
}

/// What is asked for, ready to be used.
pub(super) struct OwnerMap {
    by_name: bool,
    users: Side,
    groups: Side,
    ask: Sender<Question>,
}

struct Side {
    of: Of,
    rules: Vec<Resolved>,
    /// Who has a name here; `None` if nobody.
    known: Mutex<HashMap<Vec<u8>, Option<u32>>>,
}

struct Resolved {
    from: MapFrom,
    to: u32,
}

struct Question {
    of: Of,
    name: String,
    answer: Sender<Option<u32>>,
}

/// What came of one id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mapped {
    To(u32),
    /// The number stays since nobody has the name here; told for the first with this name.
    Unknown {
        first: bool,
    },
}

impl OwnerMap {
    /// Understand what is asked; `None` if that is nothing. Fails with a name that nobody has here.
    pub fn new(owners: &Owners) -> Result<Option<OwnerMap>, Error> {
        if *owners == Owners::default() {
            return Ok(None);
        }
        let (ask, questions) = bounded(0);
        std::thread::Builder::new()
            .name("names".into())
            .spawn(move || answer(&questions))
            .map_err(|e| Error::Bug(format!("cannot start a thread: {e}")))?;
        let side = |of, rules: &[IdRule], option: &str| {
            let resolved = rules.iter().map(|rule| resolve(rule, of, option)).collect::<Result<_, _>>()?;
            Ok::<_, Error>(Side { of, rules: resolved, known: Mutex::default() })
        };
        let users = side(Of::Users, &owners.users, "--owner-map")?;
        let groups = side(Of::Groups, &owners.groups, "--group-map")?;
        Ok(Some(OwnerMap { by_name: owners.by_name, users, groups, ask }))
    }

    /// Who gets what belongs to `id`, whom the sender calls `name`; the name is empty if it says none.
    pub fn map(&self, of: Of, id: u32, name: &[u8]) -> Mapped {
        let side = if of == Of::Users { &self.users } else { &self.groups };
        if let Some(rule) = side.rules.iter().find(|rule| rule.matches(id, name)) {
            return Mapped::To(rule.to);
        }
        if !self.by_name || id == 0 || name.is_empty() {
            return Mapped::To(id);
        }
        match side.find(name, &self.ask) {
            (Some(here), _) => Mapped::To(here),
            (None, first) => Mapped::Unknown { first },
        }
    }

    /// Whether there are rules, beyond the names that both machines have.
    pub fn has_rules(&self) -> bool {
        !(self.users.rules.is_empty() && self.groups.rules.is_empty())
    }

    /// As [`OwnerMap::map`] for an id that stands alone, without a name: only rules count.
    pub fn map_number(&self, of: Of, id: u32) -> u32 {
        let side = if of == Of::Users { &self.users } else { &self.groups };
        side.rules.iter().find(|rule| rule.matches(id, b"")).map_or(id, |rule| rule.to)
    }
}

/// Make an entry's owner and group, and those that its access control lists name by number, those of here.
pub(super) fn apply(entry: &mut Entry, shared: &Shared) {
    let Some(map) = &shared.owners else { return };
    let names = entry.extras.as_ref().map(|extras| (extras.uname.clone(), extras.gname.clone())).unwrap_or_default();
    for (of, id, name) in [(Of::Users, &mut entry.uid, names.0), (Of::Groups, &mut entry.gid, names.1)] {
        let name = name.unwrap_or_default();
        match map.map(of, *id, &name) {
            Mapped::To(here) => *id = here,
            Mapped::Unknown { first: false } => {}
            Mapped::Unknown { first: true } => {
                let who = if of == Of::Users { "user" } else { "group" };
                let text = format!("there is no {who} '{}' here, the number {id} stays", escape(&name));
                shared.note(NoteKind::UnknownName, entry.path.clone(), text);
            }
        }
    }
    if let Some(extras) = &mut entry.extras
        && (extras.access_acl.is_some() || extras.default_acl.is_some())
        && map.has_rules()
    {
        let extras = Arc::make_mut(extras);
        for acl in [&mut extras.access_acl, &mut extras.default_acl].into_iter().flatten() {
            *acl = acl.mapped(|who| match who {
                AclWho::User(id) => AclWho::User(map.map_number(Of::Users, id)),
                AclWho::NamedGroup(id) => AclWho::NamedGroup(map.map_number(Of::Groups, id)),
                other => other,
            });
        }
    }
}

impl Resolved {
    fn matches(&self, id: u32, name: &[u8]) -> bool {
        match &self.from {
            MapFrom::Any => true,
            MapFrom::Ids(ids) => ids.contains(&id),
            MapFrom::Name(wanted) => wanted == name,
        }
    }
}

impl Side {
    /// Who has the name here, and whether that was asked for the first time.
    fn find(&self, name: &[u8], ask: &Sender<Question>) -> (Option<u32>, bool) {
        let mut known = self.known.lock().expect("no thread panics while it holds this lock");
        if let Some(found) = known.get(name) {
            return (*found, false);
        }
        let found = std::str::from_utf8(name).ok().and_then(|text| {
            let (answer, answered) = bounded(1);
            ask.send(Question { of: self.of, name: text.to_owned(), answer }).ok()?;
            answered.recv().ok()?
        });
        if known.len() >= NAMES_MAX {
            known.clear();
        }
        known.insert(name.to_vec(), found);
        (found, true)
    }
}

fn answer(questions: &Receiver<Question>) {
    for Question { of, name, answer } in questions {
        // Whoever asked may have given up.
        let _ = answer.send(look_up(of, &name));
    }
}

/// Who has a name on this machine. What cannot be found out is nobody.
fn look_up(of: Of, name: &str) -> Option<u32> {
    match of {
        Of::Users => User::from_name(name).ok().flatten().map(|user| user.uid.as_raw()),
        Of::Groups => Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw()),
    }
}

fn resolve(rule: &IdRule, of: Of, option: &str) -> Result<Resolved, Error> {
    let to = match &rule.to {
        MapTo::Id(id) => *id,
        MapTo::Name(name) => std::str::from_utf8(name).ok().and_then(|name| look_up(of, name)).ok_or_else(|| {
            let who = if of == Of::Users { "user" } else { "group" };
            Error::Usage(format!("{option}: there is no {who} '{}' on this machine", escape(name)))
        })?,
    };
    Ok(Resolved { from: rule.from.clone(), to })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(by_name: bool, users: Vec<IdRule>) -> OwnerMap {
        OwnerMap::new(&Owners { by_name, users, groups: Vec::new() }).unwrap().unwrap()
    }

    fn rule(from: MapFrom, to: u32) -> IdRule {
        IdRule { from, to: MapTo::Id(to) }
    }

    #[test]
    fn the_first_rule_that_matches_decides_then_the_name_then_the_number() {
        let rules = vec![
            rule(MapFrom::Ids(1000..=1000), 1),
            rule(MapFrom::Name(b"daemon".to_vec()), 2),
            rule(MapFrom::Ids(900..=1100), 3),
        ];
        let map = map(true, rules);
        let of = |id, name: &[u8]| map.map(Of::Users, id, name);
        assert_eq!(of(1000, b"daemon"), Mapped::To(1));
        assert_eq!(of(1001, b"daemon"), Mapped::To(2));
        assert_eq!(of(1001, b"x"), Mapped::To(3));
        assert_eq!(of(5000, b"root"), Mapped::To(0), "by its name");
        assert_eq!(of(0, b"nobody"), Mapped::To(0), "0 is root everywhere");
        assert_eq!(of(5000, b""), Mapped::To(5000));
        let nobody = b"no such user, I hope";
        assert_eq!(of(5000, nobody), Mapped::Unknown { first: true });
        assert_eq!(of(5000, nobody), Mapped::Unknown { first: false });
        assert_eq!(of(5000, b"\xff"), Mapped::Unknown { first: true });
        assert_eq!((map.map_number(Of::Users, 950), map.map_number(Of::Groups, 950)), (3, 950));
    }

    #[test]
    fn without_by_name_a_name_means_nothing() {
        let map = map(false, vec![rule(MapFrom::Any, 7)]);
        assert_eq!(map.map(Of::Users, 5000, b"root"), Mapped::To(7));
        assert_eq!(map.map(Of::Groups, 5000, b"root"), Mapped::To(5000));
        assert!(OwnerMap::new(&Owners::default()).unwrap().is_none());
    }

    #[test]
    fn a_name_of_this_machine_that_nobody_has_is_refused() {
        let to = |name: &[u8]| IdRule { from: MapFrom::Any, to: MapTo::Name(name.to_vec()) };
        let with = |name| OwnerMap::new(&Owners { by_name: false, users: vec![to(name)], groups: Vec::new() });
        let map = with(b"root").unwrap().unwrap();
        assert_eq!(map.map(Of::Users, 5, b""), Mapped::To(0));
        let refused = with(b"no such user, I hope").err().unwrap();
        assert!(matches!(&refused, Error::Usage(text) if text.contains("no user 'no such user")), "{refused}");
    }

    #[test]
    fn a_flood_of_names_is_forgotten_and_not_kept() {
        let map = map(true, Vec::new());
        for i in 0..NAMES_MAX + 10 {
            // Not text, so that nobody is asked.
            let name = [&b"\xff"[..], &i.to_le_bytes()].concat();
            assert_eq!(map.map(Of::Groups, 5, &name), Mapped::Unknown { first: true });
        }
        assert!(map.groups.known.lock().unwrap().len() <= NAMES_MAX);
    }
}
