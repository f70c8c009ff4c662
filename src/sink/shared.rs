//! Who else can write to the destination. What the jail holds against the sender it holds against them as well; but who
//! may rename a directory above the destination decides where it is, and who may write into it decides what else is in
//! it when all is done.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags, Stat};

use crate::error::escape;

/// A directory, the destination or one above it, to which others can write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// Its path, escaped.
    pub shown: String,
    /// Its twelve permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Sharing {
    /// Whether anybody can, and not its group only.
    pub fn with_everybody(&self) -> bool {
        self.mode & 0o002 != 0
    }
}

/// In words, after "it" or a name.
impl std::fmt::Display for Sharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = if self.with_everybody() { "everybody" } else { "its group" };
        let Sharing { shown, mode, uid, gid } = self;
        write!(f, "{who} can write to '{shown}' (mode {mode:04o}, owner {uid}:{gid})")
    }
}

/// The directory and those above it, up to the root, to which others can write. Where the sticky bit is set nobody can
/// rename or remove what is not theirs, as in `/tmp`. Goes up by descriptors, since a path may lead elsewhere by now;
/// it ends where there is no leave to go on.
pub(super) fn sharing(directory: BorrowedFd<'_>) -> Vec<Sharing> {
    let mut found = Vec::new();
    let Ok(mut stat) = rustix::fs::fstat(directory) else { return found };
    let mut here: Option<OwnedFd> = None;
    loop {
        let fd = here.as_ref().map_or(directory, |fd| fd.as_fd());
        if stat.st_mode & 0o022 != 0 && stat.st_mode & 0o1000 == 0 {
            found.push(Sharing { shown: path_of(fd), mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(above) = rustix::fs::openat(fd, "..", flags, Mode::empty()) else { return found };
        let Ok(stat_above) = rustix::fs::fstat(&above) else { return found };
        if is_same(&stat_above, &stat) {
            return found;
        }
        (here, stat) = (Some(above), stat_above);
    }
}

fn is_same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

fn path_of(fd: BorrowedFd<'_>) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    path.map_or_else(|_| "?".into(), |path| escape(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_others_can_write_to_is_found_up_to_the_root_and_a_sticky_bit_makes_it_fine() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a\n/b/c");
        fs::create_dir_all(&place).unwrap();
        let found = |modes: [u32; 3]| {
            let paths = [dir.path().join("a\n"), dir.path().join("a\n/b"), place.clone()];
            for (path, mode) in paths.iter().zip(modes) {
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            let found = sharing(File::open(&place).unwrap().as_fd());
            found.into_iter().map(|s| (s.mode, s.shown.rsplit_once('/').unwrap().1.to_owned())).collect::<Vec<_>>()
        };
        let named = |mode: u32, name: &str| (mode, name.to_owned());
        assert_eq!(found([0o755, 0o755, 0o755]), []);
        assert_eq!(found([0o755, 0o755, 0o777]), [named(0o777, "c")]);
        assert_eq!(found([0o757, 0o775, 0o700]), [named(0o775, "b"), named(0o757, "a\\n")]);
        assert_eq!(found([0o1777, 0o3777, 0o1775]), []);
        let one = Sharing { shown: "/d".into(), mode: 0o777, uid: 1, gid: 2 };
        assert_eq!(one.to_string(), "everybody can write to '/d' (mode 0777, owner 1:2)");
        let group = Sharing { mode: 0o2775, ..one };
        assert_eq!(group.to_string(), "its group can write to '/d' (mode 2775, owner 1:2)");
    }
}
