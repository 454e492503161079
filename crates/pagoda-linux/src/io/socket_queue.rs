//! How long a line is: of the bytes that a writer has written some are always on the way.
//!
//! This module must never decide how many may be.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The shortest round trip that the kernel has seen on a TCP connection. None for other sockets.
pub fn shortest_round_trip(socket: impl AsFd) -> Option<Duration> {
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has as many, and is kept until
    // the call returns. It only reads the socket, which is open as long as it is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    // SAFETY: it was zeroed, and every field is a number for which all bits are valid.
    let info = unsafe { info.assume_init() };
    // The kernel's word for none.
    (result == 0 && info.tcpi_min_rtt != u32::MAX)
        .then(|| Duration::from_micros(u64::from(info.tcpi_min_rtt)))
}
