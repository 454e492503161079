//! The half of a pseudo-terminal that a program gets.
//!
//! This module must never open one: where there is no devpts the caller has to make it first.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use linux_raw_sys::general::{__NR_ioctl, O_CLOEXEC, O_NOCTTY, O_RDWR};
use linux_raw_sys::ioctl::{TIOCGPTPEER, TIOCSPTLCK};
use rustix::process::{ioctl_tiocsctty, setsid};

use crate::raw_syscall::syscall3;

/// Unlocks a terminal and opens the program's end, given the user's. It needs no path.
///
/// # Errors
/// The kernel's; `ENOTTY` if `user` is no such end.
pub fn program_end(user: impl AsFd) -> io::Result<OwnedFd> {
    let descriptor = user.as_fd().as_raw_fd() as usize;
    let unlocked = 0i32;
    let at = (&raw const unlocked).expose_provenance();
    // SAFETY: the kernel reads one int at the address, which lives until the call returns.
    unsafe { syscall3(__NR_ioctl, descriptor, TIOCSPTLCK as usize, at) }?;
    let flags = (O_RDWR | O_NOCTTY | O_CLOEXEC) as usize;
    // SAFETY: the argument is a number; the call touches no memory of ours.
    let program = unsafe { syscall3(__NR_ioctl, descriptor, TIOCGPTPEER as usize, flags) }?;
    // SAFETY: the kernel made this descriptor just now for us, so that it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(program as i32) })
}

/// Has `command` lead a session of its own, whose controlling terminal is its standard input at
/// that moment.
pub fn control_by_standard_input(command: &mut Command) {
    let take = || {
        setsid()?;
        // SAFETY: descriptor 0 is open between fork and exec, where the standard library has put
        // the terminal already, and this thread, which is the only one, does not close it
        // meanwhile.
        ioctl_tiocsctty(unsafe { BorrowedFd::borrow_raw(0) })?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls, allocates nothing and takes
    // no lock.
    unsafe { command.pre_exec(take) };
}
