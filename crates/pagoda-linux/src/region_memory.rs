//! The memory of a library's region: a mapping that is managed, read and written through bounds-checked copies or, by
//! whoever vouches for it, through its address.
//!
//! Children of a fork don't get it (they would read zeroes where a page is out; so they fault instead).

use std::io;

use pagoda_core::page::HUGE_FRAME;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::range::PageRange;
use crate::space::Adoption;

/// The right to manage the regions that this crate makes, and foreign memory whose owner vouched for it.
#[must_use]
pub fn own_regions() -> Adoption {
    // SAFETY: the only ranges that a safe caller can have are those of `RegionMemory`, which is private anonymous memory
    // that its maker gives to be managed, and of `ForeignMemory`, whose unsafe constructor asks for the same.
    unsafe { Adoption::assume() }
}

/// Memory that somebody else mapped.
#[derive(Debug)]
pub struct ForeignMemory {
    range: PageRange,
}

impl ForeignMemory {
    /// The whole OS pages from `start`, `len` bytes. None if they are not whole pages.
    ///
    /// # Safety
    /// As long as the memory is managed, all of the following hold.
    /// - It is one private anonymous mapping, readable and writable, not locked, not executable, without huge pages.
    /// - Nothing of the manager's own lies in it: not its threads' stacks, not the heap that its threads allocate from,
    ///   not the control block of any thread.
    /// - No thread whose stack lies in it calls the manager or a region, or drops one: it would wait for a page of its own stack
    ///   with the manager's locks held.
    /// - The process does not fork while a page may be out, or never uses the memory in the child.
    /// - Whoever unmaps it or moves it does so from a thread that holds no lock of the manager.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> Option<Self> {
        let start = start.expose_provenance();
        PageRange::new(start, start.checked_add(len)?).map(|range| Self { range })
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> PageRange {
        self.range
    }
}

/// A region's own mapping; unmapped on drop.
#[derive(Debug)]
pub struct RegionMemory {
    range: PageRange,
}

impl RegionMemory {
    /// Maps `len` bytes (a multiple of the OS page), aligned to a huge frame.
    pub fn map(len: usize) -> io::Result<Self> {
        let padded = len.checked_add(HUGE_FRAME).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let raw = unsafe {
            mmap_anonymous(std::ptr::null_mut(), padded, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let start = raw.expose_provenance().next_multiple_of(HUGE_FRAME);
        let range = PageRange::at(start, len);
        // SAFETY: both rests are parts of the mapping just made, which nobody uses; the advice concerns the same
        // mapping and changes no content.
        unsafe {
            if start > raw.addr() {
                munmap(raw, start - raw.addr())?;
            }
            let tail = raw.addr() + padded - range.end();
            if tail > 0 {
                munmap(raw.byte_add(padded - tail), tail)?;
            }
            let at = std::ptr::with_exposed_provenance_mut(start);
            madvise(at, len, Advice::LinuxDontFork)?;
            // A kernel without huge pages has none to forbid.
            let _ = madvise(at, len, Advice::LinuxNoHugepage);
        }
        Ok(Self { range })
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> PageRange {
        self.range
    }

    fn check(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.range.len()),
            "{len} bytes at {offset} lie beyond the region's end"
        );
        std::ptr::with_exposed_provenance_mut(self.range.start() + offset)
    }

    /// Copies from the region. Waits for pages that are out. Panics if it reaches beyond the end.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        let from = self.check(offset, into.len());
        // SAFETY: the source lies in this mapping, readable as long as `self` lives; `into` is somebody's exclusive
        // memory and so not part of it. Another thread may write the same bytes through the region's address, which
        // is its unsafe user's business; copies through `&self` from several threads race only with `write_at`, and
        // see some mixture of bytes, all of them valid u8.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies into the region. Waits for pages that are out. Panics if it reaches beyond the end.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) {
        let to = self.check(offset, from.len());
        // SAFETY: as for `read_at`, with the sides exchanged, and `&mut self` excludes other safe access.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Discards `offset..offset + len`, whole OS pages: it reads zero afterwards. Panics if it reaches beyond the end.
    pub fn discard(&mut self, offset: usize, len: usize) -> io::Result<()> {
        let at = self.check(offset, len);
        // SAFETY: the range lies in this mapping, and `&mut self` says that nobody relies on its content.
        unsafe { madvise(at.cast(), len, Advice::LinuxDontNeed)? };
        Ok(())
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        let at = std::ptr::with_exposed_provenance_mut(self.range.start());
        // SAFETY: this value owns the mapping; whoever uses its address vouched to stop before.
        let _ = unsafe { munmap(at, self.range.len()) };
    }
}
