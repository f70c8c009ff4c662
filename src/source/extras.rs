//! Extended attributes and access control lists of what is sent.
//!
//! They are taken when an entry is looked at, since the plan of a chunk must know their length: with one system call
//! where there are none. A file that is opened later and is not as it was then (another inode, or changed since) is
//! asked again, by its descriptor; so what is sent together belongs together.
//!
//! Carried are the namespaces user, trusted and security as far as this process may read them, and of the namespace
//! system the POSIX lists, as lists. What else a file system calls an attribute is told and left.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::meta::Meta;
use super::owners::OwnerNames;
use crate::archive::{Acl, Extras, Xattr};
use crate::error::escape;
use crate::limits::{XATTR_VALUE_MAX, XATTRS_LEN_MAX};
use crate::options::Keep;
use crate::report::NoteKind;
use crate::sys;

const ACCESS_ACL: &CStr = c"system.posix_acl_access";
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";

/// Bytes that most lists of names, and most values, fit in. The kernel allocates what it is offered.
const OFTEN_ENOUGH: usize = 256;

/// What was found of one entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Taken {
    /// `None` if there is nothing.
    pub extras: Option<Arc<Extras>>,
    /// What could not be taken.
    pub troubles: Vec<Trouble>,
}

/// A note to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Trouble {
    pub kind: NoteKind,
    pub detail: String,
}

/// What is asked.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// Something open.
    Open(BorrowedFd<'a>),
    /// A name in a directory, which is not followed.
    Name(BorrowedFd<'a>, &'a CStr),
}

/// Memory for answers.
#[derive(Default)]
pub(super) struct Answers {
    names: Vec<u8>,
    value: Vec<u8>,
}

/// Asks, for one source.
pub(super) struct Asker {
    keep: Keep,
    /// A device whose file system has none, or 0.
    without: AtomicU64,
    /// This kernel has no calls that take a directory and a name.
    old_kernel: AtomicBool,
    /// What owners are called, if that is taken.
    names: Option<OwnerNames>,
}

impl Asker {
    pub fn new(keep: Keep) -> Asker {
        Asker { keep, without: AtomicU64::new(0), old_kernel: AtomicBool::new(false), names: None }
    }

    /// Take the names of owners and groups, too.
    pub fn naming(self, names: bool) -> Asker {
        Asker { names: names.then(OwnerNames::default), ..self }
    }

    /// Everything of one entry.
    pub fn take(&self, at: At<'_>, meta: &Meta, answers: &mut Answers) -> Taken {
        let mut taken = self.attributes(at, meta, answers);
        if let Some(names) = &self.names {
            taken.extras = names.add(meta, taken.extras);
        }
        taken
    }

    fn attributes(&self, at: At<'_>, meta: &Meta, answers: &mut Answers) -> Taken {
        let mut taken = Taken::default();
        if !(self.keep.xattrs || self.keep.acls) || self.without.load(Relaxed) == meta.inode.dev {
            return taken;
        }
        let Answers { names, value } = answers;
        match self.fill(names, |names| self.list(at, names)) {
            Ok(()) if names.is_empty() => return taken,
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) => {
                self.without.store(meta.inode.dev, Relaxed);
                return taken;
            }
            // It is gone, or something else has its name: whoever opens it will say so.
            Err(Errno::NOENT | Errno::STALE | Errno::LOOP | Errno::NOTDIR) => return taken,
            Err(errno) => {
                taken.trouble(NoteKind::Xattr, format!("its attributes cannot be listed: {}", words(errno)));
                return taken;
            }
        }
        let (mut extras, mut len) = (Extras::default(), 0);
        for name in names.split_inclusive(|b| *b == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            if name == ACCESS_ACL || name == DEFAULT_ACL {
                if self.keep.acls {
                    match self.fill(value, |value| self.get(at, name, value)) {
                        Ok(()) => match Acl::from_bytes(value) {
                            Some(acl) if name == ACCESS_ACL => extras.access_acl = Some(acl),
                            Some(acl) => extras.default_acl = Some(acl),
                            None => taken.trouble(NoteKind::Acl, "its ACL is damaged".into()),
                        },
                        Err(Errno::NODATA) => {}
                        Err(errno) => taken.trouble(NoteKind::Acl, format!("its ACL cannot be read: {}", words(errno))),
                    }
                }
            } else if !self.keep.xattrs {
            } else if Xattr::is_name(name.to_bytes()) {
                match self.fill(value, |value| self.get(at, name, value)) {
                    Ok(()) if len + name.count_bytes() + value.len() > XATTRS_LEN_MAX => {
                        let text = format!("there is no room for its attribute {}", shown(name));
                        taken.trouble(NoteKind::Xattr, text);
                    }
                    Ok(()) => {
                        len += name.count_bytes() + value.len();
                        extras.xattrs.push(Xattr { name: name.to_bytes().to_vec(), value: value.clone() });
                    }
                    Err(Errno::NODATA) => {}
                    Err(errno) => {
                        let text = format!("its attribute {} cannot be read: {}", shown(name), words(errno));
                        taken.trouble(NoteKind::Xattr, text);
                    }
                }
            } else {
                taken.trouble(NoteKind::OtherXattr, shown(name));
            }
        }
        extras.xattrs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        extras.xattrs.dedup_by(|a, b| a.name == b.name);
        taken.extras = (!extras.is_empty()).then(|| Arc::new(extras));
        taken
    }

    /// Replace `answer` by what `ask` answers, offering it more once it says that it needs more.
    fn fill(&self, answer: &mut Vec<u8>, ask: impl Fn(&mut Vec<u8>) -> Result<(), Errno>) -> Result<(), Errno> {
        for len in [OFTEN_ENOUGH, XATTR_VALUE_MAX] {
            answer.clear();
            if answer.capacity() < len {
                *answer = Vec::with_capacity(len);
            }
            // What the kernel is offered is the capacity.
            answer.shrink_to(len);
            match ask(answer) {
                Err(Errno::RANGE) => {}
                answered => return answered,
            }
        }
        Err(Errno::RANGE)
    }

    fn list(&self, at: At<'_>, names: &mut Vec<u8>) -> Result<(), Errno> {
        match at {
            At::Open(fd) => rustix::fs::flistxattr(fd, spare_capacity(names)).map(drop),
            At::Name(dir, name) => {
                if !self.old_kernel.load(Relaxed) {
                    match sys::listxattrat(dir, name, names) {
                        Err(Errno::NOSYS | Errno::PERM) => self.old_kernel.store(true, Relaxed),
                        listed => return listed,
                    }
                }
                rustix::fs::llistxattr(place(dir, name), spare_capacity(names)).map(drop)
            }
        }
    }

    fn get(&self, at: At<'_>, attribute: &CStr, value: &mut Vec<u8>) -> Result<(), Errno> {
        match at {
            At::Open(fd) => rustix::fs::fgetxattr(fd, attribute, spare_capacity(value)).map(drop),
            At::Name(dir, name) => {
                if !self.old_kernel.load(Relaxed) {
                    return sys::getxattrat(dir, name, attribute, value);
                }
                rustix::fs::lgetxattr(place(dir, name), attribute, spare_capacity(value)).map(drop)
            }
        }
    }
}

impl Taken {
    fn trouble(&mut self, kind: NoteKind, detail: String) {
        self.troubles.push(Trouble { kind, detail });
    }
}

/// A name in an open directory as a path of one step, whatever the directory is called by now.
fn place(dir: BorrowedFd<'_>, name: &CStr) -> Vec<u8> {
    [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name.to_bytes()].concat()
}

fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

fn shown(name: &CStr) -> String {
    escape(name.to_bytes())
}
