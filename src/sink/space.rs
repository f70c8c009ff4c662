//! How much room there is where something is received.

use std::os::fd::AsFd;

use crate::device;
use crate::error::escape;

/// In brackets, a space before them: what is free where this is, and where that is mounted; nothing if it cannot be
/// known.
pub(super) fn space(on: impl AsFd) -> String {
    let on = on.as_fd();
    let Ok(vfs) = rustix::fs::fstatvfs(on) else { return String::new() };
    let mounted = rustix::fs::fstat(on).ok().and_then(|stat| device::mounted_at(stat.st_dev).into_iter().next());
    let place =
        mounted.map_or_else(|| "there".into(), |at| format!("on '{}'", escape(at.as_os_str().as_encoded_bytes())));
    format!(
        " ({} of {} MiB and {} of {} inodes are free {place})",
        vfs.f_bavail.saturating_mul(vfs.f_frsize) >> 20,
        vfs.f_blocks.saturating_mul(vfs.f_frsize) >> 20,
        vfs.f_favail,
        vfs.f_files
    )
}

/// In words, if so many bytes have no room where this is.
pub(super) fn shortage(on: impl AsFd, needed: u64) -> Option<String> {
    let vfs = rustix::fs::fstatvfs(on).ok()?;
    let free = vfs.f_bavail.saturating_mul(vfs.f_frsize);
    (free < needed).then(|| format!("{needed} bytes are needed and {free} are free"))
}
