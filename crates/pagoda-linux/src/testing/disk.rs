//! A disk that fails: the file system is still mounted, and answers everything with an error.
//!
//! This module must never be given a file system that is needed: writes that are not on the disk
//! yet are lost.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use linux_raw_sys::general::__NR_ioctl;

use crate::raw_syscall::syscall3;

/// `EXT4_IOC_SHUTDOWN`: `_IOR('X', 125, __u32)`.
const SHUTDOWN: usize = 0x8004_587d;

/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: without flushing the journal.
const WITHOUT_JOURNAL: u32 = 2;

/// From now on all reads and writes of the ext4 file system of `file` fail with `EIO`.
///
/// # Errors
/// The kernel's; `ENOTTY` if it is no ext4.
pub fn shut_down_ext4(file: &File) -> io::Result<()> {
    let how = WITHOUT_JOURNAL;
    let descriptor = file.as_raw_fd() as usize;
    // SAFETY: the descriptor is open as long as `file` is borrowed; the kernel reads one u32 at the
    // address, which lives until the call returns, and writes to no memory of ours.
    unsafe { syscall3(__NR_ioctl, descriptor, SHUTDOWN, (&raw const how).expose_provenance()) }?;
    Ok(())
}
