//! Which OS pages of private anonymous memory hold something, by the kernel's answer for each page.
//!
//! A page holds something if it has a frame or the shared page of zeroes, if it is in the kernel's
//! swap, and while the kernel moves it from one frame to another (a compaction, say). Of the last
//! two the page table shows no page, and mincore(2) does not tell a page in swap from none: so the
//! entries of `/proc/self/pagemap` are read, which tell all of them. This module must never take a
//! page for a hole that would read as anything but zero.

use std::io;
use std::os::fd::OwnedFd;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{GRANULES, Granules};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::mem::range::PageRange;
use crate::procfs::pagemap::{ENTRY_BYTES, is_populated, is_shared};

/// Asks about the memory of the process that opened it: after a fork the child needs its own.
#[derive(Debug)]
pub struct Occupancy {
    pagemap: OwnedFd,
}

impl Occupancy {
    /// Opens `/proc/thread-self/pagemap`.
    ///
    /// # Errors
    /// No `/proc` (`NotFound`), not allowed (a process that may not be looked at, since it gave up
    /// its user), or no descriptor left.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self { pagemap: rustix::fs::open(c"/proc/thread-self/pagemap", flags, Mode::empty())? })
    }

    /// Which of the OS pages of `range` hold something. Where nothing is mapped nothing does.
    /// Blocks for the kernel's lock on the address space, as a page fault does.
    ///
    /// # Errors
    /// Those of pread(2), by a filter of system calls.
    ///
    /// # Panics
    /// If the range has more than [`GRANULES`] pages.
    pub(crate) fn of(&self, range: PageRange) -> Result<Granules, Errno> {
        self.those(range, is_populated)
    }

    /// Which of the OS pages of `range` are present and mapped more than once: a fork shares them.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub(crate) fn shared(&self, range: PageRange) -> Result<Granules, Errno> {
        self.those(range, is_shared)
    }

    fn those(&self, range: PageRange, is: impl Fn([u8; ENTRY_BYTES]) -> bool) -> Result<Granules, Errno> {
        let pages = range.len() / OS_PAGE;
        let mut entries = [0u8; GRANULES as usize * ENTRY_BYTES];
        let entries = &mut entries[..pages * ENTRY_BYTES];
        let offset = (range.start() / OS_PAGE * ENTRY_BYTES) as u64;
        let got = loop {
            match rustix::io::pread(&self.pagemap, &mut *entries, offset) {
                Err(Errno::INTR) => {}
                got => break got?,
            }
        };
        // It ends where the addresses of a program do.
        let (entries, _) = entries[..got].as_chunks();
        let bits = entries.iter().rev().fold(0, |bits, entry| bits << 1 | u16::from(is(*entry)));
        Ok(Granules::from_bits(bits))
    }

    /// Whether the OS page at `address` holds something.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub(crate) fn is_held(&self, address: usize) -> Result<bool, Errno> {
        Ok(!self.of(PageRange::page(address))?.is_empty())
    }
}
