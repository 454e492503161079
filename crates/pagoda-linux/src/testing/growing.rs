//! A mapping that grows downwards when the page below it is touched, as the stacks of old threading
//! libraries did.
//!
//! This module must never place it near another mapping: it takes the pages below for its own.

use std::io;

use super::mapping::{PAGE, WORDS};

/// How far apart the owner of such a mapping has to keep everything else: the kernel's guard gap
/// and all that it grows by.
pub const APART: usize = 64 << 20;

/// Memory from `top` downwards. It is unmapped on drop.
#[derive(Debug)]
pub struct GrowsDown {
    top: usize,
    pages: usize,
}

impl GrowsDown {
    /// A fresh mapping of this many pages that ends at `top`. Nothing else may ever lie within
    /// [`APART`] below `top`.
    ///
    /// # Errors
    /// The kernel's; also if something is mapped there.
    pub fn new(top: usize, pages: usize) -> io::Result<Self> {
        let (start, len) = (top - pages * PAGE, pages * PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN | libc::MAP_FIXED_NOREPLACE;
        let hint = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: a mapping that replaces nothing aliases nothing.
        let at = unsafe { libc::mmap(hint, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Before Linux 4.17 the flag is not known, and the address a hint.
        assert_eq!(at.expose_provenance(), start, "where it was asked for");
        Ok(Self { top, pages })
    }
    /// Its length in OS pages.
    pub fn pages(&self) -> usize {
        self.pages
    }
    /// One page more, by touching it: the new one's words.
    ///
    /// # Panics
    /// If it has all that it may have.
    pub fn grow(&mut self) -> &mut [u64] {
        assert!((self.pages + 2) * PAGE < APART, "{} pages are too many", self.pages);
        self.pages += 1;
        self.page_mut(self.pages - 1)
    }
    /// The words of page `page` from the top downwards.
    ///
    /// # Panics
    /// If it has no such page.
    pub fn page_mut(&mut self, page: usize) -> &mut [u64] {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        let at = std::ptr::with_exposed_provenance_mut(self.top - (page + 1) * PAGE);
        // SAFETY: the page is this mapping's, or becomes so by the first touch, since nothing else
        // lies there; the only owner is borrowed exclusively, and every bit pattern is a u64.
        unsafe { std::slice::from_raw_parts_mut(at, WORDS) }
    }
    /// Whether a page, all of them written, is not present: only the engine can have taken it.
    pub fn is_any_out(&self) -> bool {
        let mut present = vec![0u8; self.pages];
        let start = std::ptr::with_exposed_provenance_mut(self.top - self.pages * PAGE);
        // SAFETY: the kernel writes one byte for each page to `present`, which is as long.
        let got = unsafe { libc::mincore(start, self.pages * PAGE, present.as_mut_ptr()) };
        got == 0 && present.iter().any(|present| present & 1 == 0)
    }
}

impl Drop for GrowsDown {
    fn drop(&mut self) {
        let len = self.pages * PAGE;
        // SAFETY: this value owns the range, and nothing borrows it.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.top - len), len) };
    }
}
