//! System calls that the crates lack: the only unsafe code of the project, each with its safety argument.

#![allow(unsafe_code)]

/// Whether `signal` was set to be ignored when this process began, as `nohup` does with SIGHUP. Ask before a handler is
/// installed: a handler takes the place of the wish.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with no new action sigaction changes nothing; it writes the current action to a place that is valid for
    // writes of that type. `action` is read only after it returned 0, which means that it was written.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Let a write beyond the process's file size limit fail with `EFBIG`, which names the file, instead of ending the
/// process with `SIGXFSZ`, which does not.
pub fn ignore_file_size_signal() {
    // SAFETY: SIG_IGN installs no handler, so no code of ours runs in signal context; no memory is passed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_ignores_sigpipe_and_nobody_ignores_sigterm() {
        assert!(is_ignored(libc::SIGPIPE), "the standard library ignores it at start");
        assert!(!is_ignored(libc::SIGTERM));
        assert!(!is_ignored(-1));
    }
}
