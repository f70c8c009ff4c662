//! File systems that hold no files: views of the kernel that must not end up in a copy.

use std::os::fd::AsFd;

/// Their `f_type` and what they are called, from the kernel's `magic.h` and, where it is not there, its source.
const PSEUDO: [(u32, &str); 22] = [
    (0x0000_9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x4341_5d53, "smackfs"),
    (0x5a3c_69f0, "apparmorfs"),
    (0xcafe_4a11, "bpf"),
    (0x6265_6570, "configfs"),
    (0xde5e_81e4, "efivarfs"),
    (0x6165_676c, "pstore"),
    (0x0000_1cd1, "devpts"),
    (0x1980_0202, "mqueue"),
    (0x6573_5543, "fusectl"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x6759_6969, "rpc_pipefs"),
    (0x6e73_6673, "nsfs"),
    (0x9572_458f, "binderfs"),
    (0x6e66_7364, "nfsd"),
];

/// `f_type` of tmpfs, which devtmpfs shares.
const TMPFS: u32 = 0x0102_1994;

/// The pseudo file system that a directory is on, if it is on one.
pub(super) fn mounted_at(dir: impl AsFd) -> Option<&'static str> {
    let f_type = rustix::fs::fstatfs(&dir).ok()?.f_type as u32;
    if f_type == TMPFS {
        // Only devtmpfs has the null device at its top.
        let null = rustix::fs::statat(&dir, "null", rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_null = rustix::fs::FileType::from_raw_mode(null.st_mode) == rustix::fs::FileType::CharacterDevice
            && null.st_rdev == rustix::fs::makedev(1, 3);
        return is_null.then_some("devtmpfs");
    }
    PSEUDO.iter().find(|(magic, _)| *magic == f_type).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_and_dev_are_pseudo_and_a_plain_directory_is_not() {
        let open = |path: &std::path::Path| std::fs::File::open(path).unwrap();
        assert_eq!(mounted_at(open("/proc".as_ref())), Some("proc"));
        assert_eq!(mounted_at(open("/dev".as_ref())), Some("devtmpfs"));
        assert_eq!(mounted_at(open(tempfile::tempdir().unwrap().path())), None);
    }
}
