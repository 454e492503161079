//! A mapping of shared memory, for tests that write it as another process would.
//!
//! Nothing here may cut the file short: a touch beyond its end ends the process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use pagoda_core::page::OS_PAGE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::mem::range::PageRange;
use crate::mem::region_bytes::RegionBytes;

/// A shared mapping, readable and writable; unmapped on drop.
#[derive(Debug)]
pub struct SharedMapping {
    bytes: RegionBytes,
}

impl SharedMapping {
    /// Maps `len` bytes of `file` from `offset` on, whole OS pages.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If that is no whole number of pages.
    pub fn of(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, offset)? };
        // SAFETY: it is shared memory, unmapped on drop, and never discarded by this value, which
        // shows only copies. Other mappings of the file write outside of this process's memory
        // model.
        Ok(Self { bytes: unsafe { RegionBytes::new(PageRange::at(at.expose_provenance(), len)) } })
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> PageRange {
        self.bytes.range()
    }

    /// Its address.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.range().start())
    }

    /// Copies from it.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.bytes.read_at(offset, into);
    }

    /// Copies whole words into it.
    ///
    /// # Panics
    /// If it reaches beyond the end, or these are no whole words.
    pub fn write(&self, offset: usize, words: &[u8]) {
        self.bytes.write_words(offset, words);
    }

    /// Takes its pages out of this process's page table: their content stays in the file.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn forget_pages(&self, offset: usize, len: usize) -> io::Result<()> {
        let at = self.bytes.check(offset, len);
        // SAFETY: `check` saw that it lies in this mapping; of shared memory no content changes.
        Ok(unsafe { madvise(at.cast(), len, Advice::LinuxDontNeed) }?)
    }

    /// Has the kernel hold the page at `offset` by a reference of its own, as a device does, until
    /// the value is dropped.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn hold(&self, offset: usize) -> io::Result<(OwnedFd, OwnedFd)> {
        let (reads, writes) = rustix::pipe::pipe()?;
        let page = libc::iovec { iov_base: self.bytes.check(offset, OS_PAGE).cast(), iov_len: OS_PAGE };
        // SAFETY: `check` saw that the page is of this mapping. The pipe takes a reference to it
        // and is never read; nothing is written.
        let held = unsafe { libc::vmsplice(writes.as_raw_fd(), &raw const page, 1, 0) };
        if held < 0 { Err(io::Error::last_os_error()) } else { Ok((reads, writes)) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        let at = std::ptr::with_exposed_provenance_mut(self.range().start());
        // SAFETY: the mapping is this value's, and no reference into it outlives a call.
        let _ = unsafe { munmap(at, self.range().len()) };
    }
}
