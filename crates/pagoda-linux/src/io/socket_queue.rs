//! How much of a stream lies between its writer and its reader: in the buffers of both sockets.
//!
//! The kernel makes them large, for the longest lines. A message that is waited for stands behind
//! all of it. This module must never make a line of 10 Gbit/s slower.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

/// 10 Gbit/s: a line of this rate is kept full.
const RATE_BYTES_PER_S: f64 = 1.25e9;

/// The least for each of both buffers: those of two channels are copied within a millisecond.
const LEAST_BYTES: usize = 128 << 10;

/// Bounds the buffers of `socket` by what is on its way on a line as long as this one is.
pub fn shorten_queue(socket: impl AsFd) {
    let socket = socket.as_fd();
    let on_the_way = shortest_round_trip(&socket).unwrap_or_default().as_secs_f64() * RATE_BYTES_PER_S;
    let bytes = LEAST_BYTES + on_the_way as usize;
    // The kernel bounds them by its own limits. Longer queues are slower for some, and no error.
    let _ = set_socket_send_buffer_size(socket, bytes);
    let _ = set_socket_recv_buffer_size(socket, bytes);
}

/// The shortest round trip that the kernel has seen on a TCP connection. None for other sockets.
fn shortest_round_trip(socket: &impl AsFd) -> Option<Duration> {
    use std::os::fd::AsRawFd;
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
