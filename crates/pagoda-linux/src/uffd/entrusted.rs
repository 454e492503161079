//! The other end of `foreign.rs`: memory of this process whose missing pages another process fills.
//!
//! So benches and tests restore VMs. This module must never fill a page.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::mem::plain_memory::PlainMemory;
use crate::uffd::{Mode, Uffd, feature, to_io_error};

/// A descriptor that is given to the other process.
#[derive(Debug)]
pub struct EntrustedUffd(Uffd);

impl EntrustedUffd {
    /// Opens it as a VMM does that restores a snapshot: with events of discards.
    ///
    /// # Errors
    /// The kernel's: it has no userfaultfd for this process.
    pub fn open(mode: Mode) -> io::Result<Self> {
        Uffd::open(mode, feature::EVENT_REMOVE).map(Self).map_err(to_io_error)
    }

    /// Has a thread that touches a missing page of `memory` wait for the other process, and a
    /// thread that discards pages tell it before.
    ///
    /// # Errors
    /// The kernel's.
    pub fn register(&self, memory: &PlainMemory) -> io::Result<()> {
        // SAFETY: it is private anonymous memory, which its owner gives to be filled by this call.
        // Only missing pages are filled, whose content no thread has read: their readers wait. Any
        // bytes are valid words. No thread that fills them uses the memory: they are another
        // process's.
        unsafe { self.0.register(memory.range()) }.map_err(to_io_error)
    }
}

impl AsFd for EntrustedUffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
