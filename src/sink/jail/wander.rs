//! The jail for entries in any order, as the archives of other programs have them: whatever directory an entry is in is
//! gone back to, and one that no entry has announced is made. What this transfer has made may be replaced by a later
//! entry of the same name, by removing it, never by opening it; what was there before may not.
//!
//! A directory that is gone back to gets the mode and time again that it has, which a late entry of its own may change.
//! A link on the way is never followed, and only an entry of its own makes a directory of what is none.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat};
use rustix::io::Errno;

use super::{
    Before, Dir, Handle, Jail, Level, Nature, Place, READABLE, SEARCHABLE, dir_of, has_default_acl, is_plain,
    last_name, left_for_later, set_early,
};
use crate::archive::{Entry, Timestamp};
use crate::sink::attributes::remove_default_acl;

/// What a directory was when it was gone back to.
#[derive(Clone, Copy)]
pub(super) struct AsItWas {
    pub mode: u32,
    pub mtime: Timestamp,
}

impl From<&Stat> for AsItWas {
    fn from(stat: &Stat) -> AsItWas {
        let mtime = Timestamp { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 };
        AsItWas { mode: stat.st_mode & 0o7777, mtime }
    }
}

impl Jail {
    /// The root's own entry; of several the last one holds.
    pub fn reannounce_root(&mut self, entry: &Entry) {
        let root = self.levels[0].dir.as_ref().expect("the root is there");
        if let Some(handle) = root.handle() {
            set_early(&handle, entry, &self.shared);
        }
        *root.attributes.lock().expect("no thread panics while it holds this lock") = Some(left_for_later(entry));
    }

    /// The place of `path`, wherever the last one was.
    pub fn approach(&mut self, path: &[u8]) -> Result<Place, Errno> {
        while self.leave_some(path) {}
        let dir_path = dir_of(path);
        while self.path.len() < dir_path.len() {
            let start = self.top().end + usize::from(self.top().end > 0);
            let end = dir_path[start..].iter().position(|b| *b == b'/').map_or(dir_path.len(), |len| start + len);
            self.step_in(&dir_path[..end], None)?;
        }
        self.here()
    }

    /// Make the directory that `entry` announces, or take the one that is there, and go into it.
    pub fn make_again(&mut self, entry: &Entry) -> Result<(), Errno> {
        self.approach(&entry.path)?;
        self.step_in(&entry.path, Some(entry))
    }

    /// The deepest directory that is open.
    pub fn nearest(&self) -> Arc<Handle> {
        let open = self.levels.iter().rev().find_map(|level| level.dir.as_ref()?.handle());
        open.expect("the root stays open")
    }

    /// Make room for a path that is taken, by removing what this transfer has made of it, also from the manifest. A
    /// directory goes only if it is empty.
    pub fn make_room(&mut self, place: &Place, path: &[u8]) -> Result<(), Errno> {
        let (handle, dir, name) = (&place.handle, place.handle.fd(), last_name(path));
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if handle.nature.foreign || self.before.contains_key(&(stat.st_dev, stat.st_ino)) {
            return Err(Errno::EXIST);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            if let Some(recorder) = &self.shared.recorder {
                recorder.place().gone(path);
            }
            return Ok(());
        }
        self.located = None;
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
    }

    fn here(&self) -> Result<Place, Errno> {
        let dir = self.top().dir.as_ref().ok_or(Errno::NOENT)?;
        Ok(Place { dir: dir.clone(), handle: dir.handle().ok_or(Errno::NOENT)? })
    }

    /// Go into the directory at `path`, which is in the current one.
    fn step_in(&mut self, path: &[u8], announced: Option<&Entry>) -> Result<(), Errno> {
        let (place, name) = (self.here()?, last_name(path));
        let made = match rustix::fs::mkdirat(place.handle.fd(), name, Mode::RWXU) {
            Err(Errno::EXIST) => false,
            other => other.map(|()| true)?,
        };
        let mut fresh = made;
        let (handle, was) = match self.open_again(&place.handle, name, made) {
            Err(Errno::NOTDIR | Errno::LOOP) if !made && announced.is_some() => {
                self.make_room(&place, path)?;
                rustix::fs::mkdirat(place.handle.fd(), name, Mode::RWXU)?;
                fresh = true;
                self.open_again(&place.handle, name, true)?
            }
            other => other?,
        };
        let no_acl = fresh && place.handle.nature.heirless;
        if let Some(entry) = announced {
            set_early(&handle, entry, &self.shared);
        }
        let dir = Dir {
            parent: Some(place.dir),
            name: name.into(),
            nature: handle.nature,
            handle: Mutex::new(Some(Arc::new(handle))),
            attributes: Mutex::new(announced.map(left_for_later)),
            no_acl,
            fresh,
            was,
            shared: self.shared.clone(),
        };
        self.path.clear();
        self.path.extend_from_slice(path);
        self.levels.push(Level { end: self.path.len(), dir: Some(Arc::new(dir)) });
        self.close_far_levels();
        Ok(())
    }

    /// Open a directory to be filled, and what it was if we have not just made it.
    fn open_again(&mut self, parent: &Handle, name: &[u8], made: bool) -> Result<(Handle, Option<AsItWas>), Errno> {
        let permit = self.permits.take();
        let place = rustix::fs::openat(parent.fd(), name, SEARCHABLE, Mode::empty())?;
        let stat = rustix::fs::fstat(&place)?;
        let identity = (stat.st_dev, stat.st_ino);
        let before = self.before.get(&identity).copied();
        let foreign = parent.nature.foreign || before == Some(Before::Foreign);
        let ours = !foreign && before.is_none();
        if ours && stat.st_mode & 0o700 != 0o700 && !self.shared.who.is_root() {
            // Finished as its entry said, which need not let us in; it gets that again.
            let place = format!("/proc/self/fd/{}", place.as_raw_fd());
            rustix::fs::chmodat(CWD, place, Mode::RWXU, AtFlags::empty())?;
        }
        let fd = match rustix::fs::openat(&place, c".", READABLE, Mode::empty()) {
            Err(Errno::ACCESS) if !ours => place,
            other => other?,
        };
        self.devices.touch(stat.st_dev, fd.as_fd())?;
        let exact = made && parent.nature.heirless && is_plain(&stat, &self.shared);
        let heirless = match made {
            true => parent.nature.heirless || remove_default_acl(fd.as_fd()),
            false => !has_default_acl(fd.as_fd()),
        };
        let handle = Handle { fd, nature: Nature { identity, exact, heirless, foreign }, _permit: Some(permit) };
        Ok((handle, (!made && !foreign).then(|| AsItWas::from(&stat))))
    }
}
