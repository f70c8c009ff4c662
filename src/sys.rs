//! System calls that the crates lack: the only unsafe code of the project, each with its safety argument.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zeroize::Zeroize;

/// How many descriptors this process may have, after the limit has been raised as far as the system lets us.
pub fn open_files_limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        // Without the right to raise it, what there is must do.
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
        let limit = if raised { maximum } else { current };
        limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
    })
}

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

/// The names of the extended attributes of `name` in `dir`, which is not followed: each with its NUL, appended to
/// `out`, of which the spare capacity is offered. `ENOSYS` before Linux 6.13.
pub fn listxattrat(dir: BorrowedFd<'_>, name: &CStr, out: &mut Vec<u8>) -> Result<(), Errno> {
    const NUMBER: libc::c_long = 465;
    let room = out.spare_capacity_mut();
    // SAFETY: the descriptor is open, since it is borrowed; the name ends in a NUL; the kernel writes at most as many
    // bytes as there is room for, to memory that is ours, and says how many it wrote.
    let done = unsafe {
        libc::syscall(NUMBER, dir.as_raw_fd(), name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW, room.as_mut_ptr(), room.len())
    };
    extend(out, done)
}

/// The value of one of these attributes, likewise.
pub fn getxattrat(dir: BorrowedFd<'_>, name: &CStr, attribute: &CStr, out: &mut Vec<u8>) -> Result<(), Errno> {
    const NUMBER: libc::c_long = 464;
    /// `struct xattr_args` of linux/xattr.h.
    #[repr(C, align(8))]
    struct Args {
        value: u64,
        size: u32,
        flags: u32,
    }
    let room = out.spare_capacity_mut();
    let size = u32::try_from(room.len()).unwrap_or(u32::MAX);
    let args = Args { value: room.as_mut_ptr() as u64, size, flags: 0 };
    // SAFETY: the descriptor is open, since it is borrowed; both names end in a NUL; the kernel reads `args`, whose
    // size it is told, and writes at most `size` bytes to memory that is ours and has as many, and says how many it
    // wrote.
    let done = unsafe {
        libc::syscall(
            NUMBER,
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            attribute.as_ptr(),
            &raw const args,
            size_of::<Args>(),
        )
    };
    extend(out, done)
}

/// Take over what a call wrote to a vector's spare capacity.
fn extend(out: &mut Vec<u8>, done: libc::c_long) -> Result<(), Errno> {
    let Ok(written) = usize::try_from(done) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    let len = (out.len() + written).min(out.capacity());
    // SAFETY: the kernel has written that many bytes after the vector's own, and it never writes more than it was
    // offered, which was no more than the capacity.
    unsafe { out.set_len(len) };
    Ok(())
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

/// Bytes of a block device.
pub fn block_device_len(device: impl AsFd) -> io::Result<u64> {
    // BLKGETSIZE64 of linux/fs.h: made of the size of a size_t, and yet it writes eight bytes everywhere.
    const LEN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<usize>(0x12, 114);
    // SAFETY: this operation of a block device writes one u64 to the place that the getter has for one, and reads
    // nothing. Whatever else the descriptor is refuses it: 0x12 is the number of block devices alone.
    let len = unsafe { rustix::ioctl::ioctl(device, rustix::ioctl::Getter::<LEN, u64>::new()) };
    len.map_err(io::Error::from)
}

/// What TCP says of a connection (`TCP_INFO`, see tcp(7)).
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpState {
    /// Packets sent and not acknowledged.
    pub unacked: u32,
    /// How often in a row a retransmission timer has run out, since anything was last acknowledged.
    pub retransmits: u8,
    /// Packets sent again, in all.
    pub resent: u32,
    /// Since data last came.
    pub quiet: Duration,
    /// The largest packet that the way is said to carry, bytes.
    pub pmtu: u32,
    /// Bytes of ours in one packet.
    pub mss: u32,
    /// The round trip, smoothed.
    pub rtt: Duration,
    /// The shortest round trip yet; `None` until there was one, or where the kernel does not tell.
    pub min_rtt: Option<Duration>,
    /// Bytes of ours that the peer's kernel has; `None` where the kernel does not tell.
    pub acked: Option<u64>,
}

/// Ask TCP about a connection.
pub fn tcp_state(socket: impl AsFd) -> io::Result<TcpState> {
    // `struct tcp_info` of linux/tcp.h only ever grows at its end; the crate's own lacks the tail.
    const RETRANSMITS: usize = 2;
    const SND_MSS: usize = 16;
    const UNACKED: usize = 24;
    const LAST_DATA_RECV: usize = 52;
    const PMTU: usize = 60;
    const RTT: usize = 68;
    const TOTAL_RETRANS: usize = 100;
    const BYTES_ACKED: usize = 120;
    const MIN_RTT: usize = 148;
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, since it is borrowed; the kernel writes at most `len` bytes to a place that has
    // as many, and leaves in `len` how many it wrote.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let told = &info[..(len as usize).min(info.len())];
    // what an older kernel does not write
    let word = |at: usize| told.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_ne_bytes(*bytes));
    let acked = told.get(BYTES_ACKED..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_ne_bytes(*bytes));
    let micros = |word: u32| Duration::from_micros(word.into());
    Ok(TcpState {
        unacked: word(UNACKED).unwrap_or(0),
        retransmits: told.get(RETRANSMITS).copied().unwrap_or(0),
        resent: word(TOTAL_RETRANS).unwrap_or(0),
        quiet: Duration::from_millis(word(LAST_DATA_RECV).unwrap_or(0).into()),
        pmtu: word(PMTU).unwrap_or(0),
        mss: word(SND_MSS).unwrap_or(0),
        rtt: micros(word(RTT).unwrap_or(0)),
        // all ones until there is a sample
        min_rtt: word(MIN_RTT).filter(|rtt| *rtt != u32::MAX).map(micros),
        acked,
    })
}

/// 32 bytes in a page of their own, which no core file has (`MADV_DONTDUMP`) and which is wiped before it is given
/// back.
pub struct SecretPage {
    at: std::ptr::NonNull<[u8; 32]>,
    len: usize,
}

// SAFETY: the page belongs to this value alone, and is changed only through `&mut`.
unsafe impl Send for SecretPage {}
// SAFETY: as above.
unsafe impl Sync for SecretPage {}

impl SecretPage {
    /// All zeros.
    pub fn new() -> io::Result<SecretPage> {
        let len = rustix::param::page_size();
        // SAFETY: a new mapping of no file, at a place that the kernel chooses, touches no memory that is in use.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let at = std::ptr::NonNull::new(at).filter(|at| at.as_ptr() != libc::MAP_FAILED);
        let page = SecretPage { at: at.ok_or_else(io::Error::last_os_error)?.cast(), len };
        // SAFETY: the range is the mapping of the line above, and this advice leaves its content as it is.
        match unsafe { libc::madvise(page.at.as_ptr().cast(), len, libc::MADV_DONTDUMP) } {
            0 => Ok(page),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        // SAFETY: the mapping is readable, aligned to a page, longer than this and initialised by the kernel with
        // zeros; it lives as long as `self`, and nobody changes it while `self` is borrowed.
        unsafe { self.at.as_ref() }
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8; 32] {
        // SAFETY: as for reading; the mapping is writable, and `self` is borrowed by nobody else.
        unsafe { self.at.as_mut() }
    }
}

impl Drop for SecretPage {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        // SAFETY: the mapping was made in `new` with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
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
    fn the_kernel_tells_how_much_has_arrived_and_how_soon() {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(tcp_state(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[1; 5000]).unwrap();
        far.read_exact(&mut [0; 5000]).unwrap();
        // an answer carries the acknowledgement
        far.write_all(&[1]).unwrap();
        near.read_exact(&mut [0]).unwrap();
        let told = tcp_state(&near).unwrap();
        // the handshake's own number counts in some kernels
        assert!((5000..=5001).contains(&told.acked.unwrap()), "{told:?}");
        assert!(told.pmtu > 1000 && told.mss > 500 && told.unacked == 0, "{told:?}");
        assert!(told.min_rtt.unwrap() < Duration::from_secs(5) && told.rtt < Duration::from_secs(5), "{told:?}");
    }

    #[test]
    fn a_secret_has_a_page_that_no_core_file_has() {
        let mut page = SecretPage::new().unwrap();
        assert_eq!(page.bytes(), &[0; 32]);
        page.bytes_mut()[31] = 7;
        assert_eq!(page.bytes()[31], 7);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:x}-", page.at.as_ptr() as usize);
        let at = maps.find(&begins).expect("a mapping of its own");
        let flags = maps[at..].lines().find(|l| l.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
    }

    #[test]
    fn rust_ignores_sigpipe_and_nobody_ignores_sigterm() {
        assert!(is_ignored(libc::SIGPIPE), "the standard library ignores it at start");
        assert!(!is_ignored(libc::SIGTERM));
        assert!(!is_ignored(-1));
    }
}
