//! Pipes that hold more: the 64 KiB of a new one cost a switch of processes sixteen times for each chunk.

use std::fs;
use std::os::fd::AsFd;

use crate::limits::CHUNK_LEN;

/// Let a pipe hold a chunk, or as much as this user's pipes may. One that holds more already keeps it. Without the
/// right to a larger one, or if it is no pipe, it works as it is.
pub fn widen(pipe: impl AsFd) {
    let pipe = pipe.as_fd();
    let Ok(now) = rustix::pipe::fcntl_getpipe_size(pipe) else { return };
    if now >= CHUNK_LEN || rustix::pipe::fcntl_setpipe_size(pipe, CHUNK_LEN).is_ok() {
        return;
    }
    let allowed = fs::read_to_string("/proc/sys/fs/pipe-max-size").ok().and_then(|text| text.trim().parse().ok());
    if let Some(allowed) = allowed.filter(|allowed| (now + 1..CHUNK_LEN).contains(allowed)) {
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_gets_larger_and_never_smaller() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let before = rustix::pipe::fcntl_getpipe_size(&reader).unwrap();
        widen(&writer);
        let wide = rustix::pipe::fcntl_getpipe_size(&reader).unwrap();
        assert!(wide == CHUNK_LEN || (before..CHUNK_LEN).contains(&wide), "{before} {wide}");
        if rustix::pipe::fcntl_setpipe_size(&reader, 4 * CHUNK_LEN).is_ok() {
            widen(&reader);
            assert_eq!(rustix::pipe::fcntl_getpipe_size(&writer).unwrap(), 4 * CHUNK_LEN);
        } else {
            eprintln!("SKIPPED: a pipe that is large already: this needs the right to one");
        }
        widen(fs::File::open("/dev/null").unwrap());
    }
}
