//! Block devices: how large one is, and who else has it. Never reads or writes what is on one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Dev;

use crate::error::escape;

/// Bytes of the device that is open, as the kernel counts them; its inode has none. 0 without a medium.
pub fn len(device: impl AsFd) -> io::Result<u64> {
    crate::sys::block_device_len(device)
}

/// Where a device, a partition of it, or a volume on either is mounted, as far as this process can see.
pub fn mounted_at(device: Dev) -> Vec<PathBuf> {
    let ours = with_all_on(device);
    let Ok(table) = fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let is_ours = |number: Option<Dev>, source: &Path| {
        // Some file systems have numbers of their own; then the name of what is mounted tells.
        let by_name =
            || fs::metadata(source).is_ok_and(|m| m.file_type().is_block_device() && ours.contains(&m.rdev()));
        number.is_some_and(|number| ours.contains(&number)) || source.is_absolute() && by_name()
    };
    mounts(&table, is_ours)
}

/// Who has a device that could not be had alone, in words after "it is".
pub fn held_by(device: Dev) -> String {
    if let Some(at) = mounted_at(device).first() {
        return format!("mounted at '{}'", escape(at.as_os_str().as_bytes()));
    }
    if is_swap(device) {
        return "used as swap".into();
    }
    match holders(device).first() {
        Some(volume) => format!("part of {}", escape(volume.as_bytes())),
        None => "in use by another program, or mounted where this one cannot see it".into(),
    }
}

/// The device itself, its partitions, and the volumes that are made of any of them.
fn with_all_on(device: Dev) -> BTreeSet<Dev> {
    let mut all = BTreeSet::new();
    let mut to_look = vec![device];
    while let Some(device) = to_look.pop() {
        if !all.insert(device) {
            continue;
        }
        let place = sysfs(device);
        let partitions = entries(&place).into_iter().filter(|inner| inner.join("partition").exists());
        let numbers = partitions.chain(entries(&place.join("holders"))).filter_map(|d| number_of(&d.join("dev")));
        to_look.extend(numbers);
    }
    all
}

fn holders(device: Dev) -> Vec<std::ffi::OsString> {
    entries(&sysfs(device).join("holders")).iter().filter_map(|d| Some(d.file_name()?.to_owned())).collect()
}

fn is_swap(device: Dev) -> bool {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut used = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    used.any(|path| fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device() && m.rdev() == device))
}

fn sysfs(device: Dev) -> PathBuf {
    format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device)).into()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
}

fn number_of(file: &Path) -> Option<Dev> {
    number(fs::read_to_string(file).ok()?.trim())
}

fn number(text: &str) -> Option<Dev> {
    let (major, minor) = text.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The mount points in a table, see proc_pid_mountinfo(5), of what `is_ours` says is meant: its number, its source.
fn mounts(table: &[u8], is_ours: impl Fn(Option<Dev>, &Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in table.split(|b| *b == b'\n') {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let Some(dash) = fields.iter().position(|field| *field == b"-") else { continue };
        let (Some(number_field), Some(at), Some(source)) = (fields.get(2), fields.get(4), fields.get(dash + 2)) else {
            continue;
        };
        let number = std::str::from_utf8(number_field).ok().and_then(number);
        if is_ours(number, &unescaped(source)) {
            found.push(unescaped(at));
        }
    }
    found
}

/// The table has white space and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, others)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| others.get(..3)).flatten();
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &others[3..];
            }
            None => {
                out.push(*first);
                rest = others;
            }
        }
    }
    std::ffi::OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_number_or_by_source_whatever_their_names() {
        let table = b"22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n\
                      30 22 7:0 / /mnt/a\\040b\\134c rw shared:1 master:2 - ext4 /dev/loop0 rw\n\
                      31 22 0:44 / /mnt/pool rw - btrfs /dev/loop1 rw\n\
                      32 22 7:0 /sub /bound rw - ext4 /dev/loop0 rw\n\
                      broken line\n";
        let loop0 = rustix::fs::makedev(7, 0);
        let at = |is_ours: &dyn Fn(Option<Dev>, &Path) -> bool| mounts(table, is_ours);
        assert_eq!(at(&|n, _| n == Some(loop0)), [Path::new("/mnt/a b\\c"), Path::new("/bound")]);
        assert_eq!(at(&|_, source| source == Path::new("/dev/loop1")), [Path::new("/mnt/pool")]);
        assert!(at(&|_, _| false).is_empty());
    }

    #[test]
    fn escapes_that_are_none_stay_as_they_are() {
        for (field, path) in [("a\\012b", "a\nb"), ("\\04", "\\04"), ("\\999x", "\\999x"), ("\\", "\\"), ("", "")] {
            assert_eq!(unescaped(field.as_bytes()), Path::new(path), "{field}");
        }
    }

    #[test]
    fn what_is_no_device_has_no_size() {
        assert!(len(fs::File::open("/dev/null").unwrap()).is_err());
    }
}
