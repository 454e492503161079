//! Memory of words that are only used atomically: by several threads, and if it is shared by
//! several processes.
//!
//! This module must never show its memory as anything else.

use std::io;
use std::sync::atomic::AtomicU64;

use super::mapping::map_raw;

/// A mapping of words. It is unmapped on drop.
#[derive(Debug)]
pub struct AtomicWords {
    start: usize,
    len: usize,
}

impl AtomicWords {
    /// Fresh memory of this process alone; a child gets a copy.
    ///
    /// # Errors
    /// The kernel's.
    pub fn private(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE)
    }
    /// Fresh memory that is shared with all children.
    ///
    /// # Errors
    /// The kernel's.
    pub fn shared(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED)
    }
    fn map(len: usize, flags: i32) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_ANONYMOUS;
        let bytes = len * size_of::<AtomicU64>();
        // SAFETY: nothing is replaced: no flag here says where it has to be.
        let start = unsafe { map_raw(0, bytes, protection, flags, -1) }?;
        Ok(Self { start, len })
    }
    /// All of them.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, is aligned to a page, and stays mapped while
        // `self` is borrowed; every bit pattern is a u64, and all access is atomic.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.start), self.len) }
    }
}

impl Drop for AtomicWords {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<AtomicU64>();
        // SAFETY: this value owns the range, and nothing borrows it.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.start), bytes) };
    }
}
