//! What owners and groups are called on this machine, if the receiver asks for it. Each number is looked up once; whom
//! nobody has given a name goes without one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use nix::unistd::{Gid, Group, Uid, User};

use super::meta::Meta;
use crate::archive::Extras;

/// Names by number, of one source.
#[derive(Default)]
pub(super) struct OwnerNames {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    users: HashMap<u32, Option<Vec<u8>>>,
    groups: HashMap<u32, Option<Vec<u8>>>,
    /// What an entry has that has nothing but its owner's and group's names.
    alone: HashMap<(u32, u32), Option<Arc<Extras>>>,
}

impl OwnerNames {
    /// What an entry has, and the names of its owner and group with it.
    pub fn add(&self, meta: &Meta, extras: Option<Arc<Extras>>) -> Option<Arc<Extras>> {
        let ids = (meta.uid, meta.gid);
        let mut known = self.known.lock().expect("no thread panics while it holds this lock");
        let alone = match known.alone.get(&ids) {
            Some(alone) => alone.clone(),
            None => {
                let (uname, gname) = (known.user(ids.0), known.group(ids.1));
                let names = Extras { uname, gname, ..Extras::default() };
                let alone = (!names.is_empty()).then(|| Arc::new(names));
                known.alone.insert(ids, alone.clone());
                alone
            }
        };
        match (extras, &alone) {
            (None, _) => alone,
            (extras, None) => extras,
            (Some(extras), Some(names)) => {
                let Extras { uname, gname, .. } = (**names).clone();
                Some(Arc::new(Extras { uname, gname, ..(*extras).clone() }))
            }
        }
    }
}

impl Known {
    fn user(&mut self, id: u32) -> Option<Vec<u8>> {
        let look_up = || User::from_uid(Uid::from_raw(id)).ok().flatten().and_then(|user| usable(user.name));
        self.users.entry(id).or_insert_with(look_up).clone()
    }

    fn group(&mut self, id: u32) -> Option<Vec<u8>> {
        let look_up = || Group::from_gid(Gid::from_raw(id)).ok().flatten().and_then(|group| usable(group.name));
        self.groups.entry(id).or_insert_with(look_up).clone()
    }
}

fn usable(name: String) -> Option<Vec<u8>> {
    Some(name.into_bytes()).filter(|name| Extras::is_owner_name(name))
}
