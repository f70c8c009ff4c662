//! System calls that the crates lack: the only unsafe code of the project, each with its safety argument.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

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

/// Set `SO_RCVLOWAT`, bytes; the kernel caps it at half of the socket's buffer. See socket(7).
pub fn set_receive_low_water(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open, since it is borrowed; the kernel reads one int, from a place that holds one.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What TCP says of a connection. See `TCP_INFO` in tcp(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpState {
    /// Packets sent and not acknowledged.
    pub unacked: u32,
    /// How often in a row a retransmission timer has run out, since anything was last acknowledged.
    pub retransmits: u8,
    /// Since data last came.
    pub quiet: Duration,
    /// The largest packet that the way is said to carry, bytes.
    pub pmtu: u32,
}

/// Ask TCP about a connection.
pub fn tcp_state(socket: impl AsFd) -> io::Result<TcpState> {
    // SAFETY: tcp_info is integers only, for which zeros are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, since it is borrowed; the kernel writes at most `len` bytes to a place that has as
    // many, and any bytes are a value of it. What an older kernel does not write stays zero.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpState {
        unacked: info.tcpi_unacked,
        retransmits: info.tcpi_retransmits,
        quiet: Duration::from_millis(info.tcpi_last_data_recv.into()),
        pmtu: info.tcpi_pmtu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_readable_once_enough_has_come() {
        use rustix::event::{PollFd, PollFlags, poll};
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        set_receive_low_water(&far, 1000).unwrap();
        let ready = |wait_ms: i64| {
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: wait_ms * 1_000_000 };
            poll(&mut [PollFd::new(&far, PollFlags::IN)], Some(&wait)).unwrap() == 1
        };
        near.write_all(&[1; 999]).unwrap();
        assert!(!ready(0));
        near.write_all(&[1]).unwrap();
        assert!(ready(900));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(set_receive_low_water(&file, 1).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }

    #[test]
    fn tcp_tells_of_a_connection_and_of_nothing_else() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let state = tcp_state(&near).unwrap();
        assert_eq!((state.unacked, state.retransmits), (0, 0));
        assert!(state.pmtu > 1000 && state.quiet < Duration::from_secs(60), "{state:?}");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(tcp_state(&file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }

    #[test]
    fn rust_ignores_sigpipe_and_nobody_ignores_sigterm() {
        assert!(is_ignored(libc::SIGPIPE), "the standard library ignores it at start");
        assert!(!is_ignored(libc::SIGTERM));
        assert!(!is_ignored(-1));
    }
}
