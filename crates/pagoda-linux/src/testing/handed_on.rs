//! Memory that a program hands on by the C library without copying it: into a pipe, or to a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Of asm-generic/socket.h.
const SO_ZEROCOPY: libc::c_int = 60;

/// Puts `memory` into a pipe, as much as there is room for. It is to stay as it is until it was
/// read there.
///
/// # Errors
/// The C library's.
pub fn to_pipe(pipe: impl AsFd, memory: &[u8]) -> io::Result<usize> {
    let part = libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: memory.len() };
    // SAFETY: one part, of memory that is there; it is not written.
    let put = unsafe { libc::vmsplice(pipe.as_fd().as_raw_fd(), &raw const part, 1, 0) };
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// Asks for sends without copies.
///
/// # Errors
/// The C library's.
pub fn by_socket(socket: impl AsFd) -> io::Result<()> {
    let yes: libc::c_int = 1;
    // SAFETY: it reads one number, of this size.
    let set = unsafe {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ZEROCOPY,
            (&raw const yes).cast(),
            length,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
