//! Memory that the kernel holds on to for long: a registered buffer of io_uring, which is never
//! used.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// IORING_REGISTER_BUFFERS.
const REGISTER_BUFFERS: usize = 0;

/// Words of `struct io_uring_params`.
const PARAMS_WORDS: usize = 15;

/// A ring with one buffer. Once it is dropped the kernel lets go of the memory, in its own time.
#[derive(Debug)]
pub struct Pinned {
    _ring: OwnedFd,
}

impl Pinned {
    /// Pins this memory. Nothing is ever read into it or written from it.
    ///
    /// # Errors
    /// The kernel's: it may have no io_uring, or not allow so much to be pinned.
    pub fn new(memory: &[u8]) -> io::Result<Self> {
        let mut params = [0u64; PARAMS_WORDS];
        // SAFETY: the parameters are a structure of this size, which the kernel fills.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1usize, params.as_mut_ptr()) };
        let ring = i32::try_from(ring).ok().filter(|ring| *ring >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just made this descriptor, and it has no other owner.
        let ring = unsafe { OwnedFd::from_raw_fd(ring) };
        let buffer = libc::iovec { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: memory.len() };
        // SAFETY: the kernel reads one vector here and keeps the pages it names, also after an
        // unmap. It changes them by requests alone, and this ring never gets one: it is not mapped.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.as_raw_fd(),
                REGISTER_BUFFERS,
                &raw const buffer,
                1usize,
            )
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { _ring: ring }) }
    }
}
