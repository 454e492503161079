//! Huge frames at a fixed place, for a benchmark to clear and write again and again, or as a buffer
//! that takes one fault in place of 512.
//!
//! They are transparent huge pages of a mapping of our own. The page tables tell whether the kernel
//! really gave them: this must never be taken for granted, because a range of OS pages is cleared
//! just as well, and measures something else.

use std::io;
use std::ops::{Deref, DerefMut};

use pagoda_core::page::HUGE_FRAME;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::mem::own_memory::OwnMapping;
use crate::procfs::pagemap::PagemapScanner;

/// A range of huge frames, in memory from the start. Gone when it is dropped.
#[derive(Debug)]
pub struct HugeFrames {
    mapping: OwnMapping,
}

impl HugeFrames {
    /// Maps `count` frames and populates them. Blocks while the kernel clears them.
    ///
    /// # Errors
    /// Those of `mmap` or `madvise`; without enough memory, `ENOMEM`.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn new(count: usize) -> io::Result<Self> {
        let mut frames = Self::untouched(count, true)?;
        frames.populate()?;
        Ok(frames)
    }

    /// Maps `count` frames without memory: each touch faults, for a huge page or for an OS page.
    ///
    /// # Errors
    /// Those of `mmap`.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn untouched(count: usize, huge: bool) -> io::Result<Self> {
        let len = count.checked_mul(HUGE_FRAME).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { mapping: OwnMapping::reserve(len, HUGE_FRAME, huge)? })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.mapping.range().len() / HUGE_FRAME
    }

    /// The address of the first one.
    #[must_use]
    pub fn start(&self) -> usize {
        self.mapping.range().start()
    }

    /// All of them, as bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        self
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none of this number.
    pub fn frame(&mut self, number: usize) -> &mut [u8] {
        &mut self.bytes()[number * HUGE_FRAME..][..HUGE_FRAME]
    }

    /// Puts memory where there is none, after a discard. Present content stays.
    ///
    /// # Errors
    /// Those of `madvise`; without enough memory, `ENOMEM`.
    pub fn populate(&mut self) -> io::Result<()> {
        loop {
            match self.advise(Advice::LinuxPopulateWrite) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Gives all memory back to the kernel. Touching a frame then faults, and it reads as zero.
    ///
    /// # Errors
    /// Those of `madvise` (`EINVAL` where the memory was locked).
    pub fn discard(&mut self) -> io::Result<()> {
        Ok(self.advise(Advice::LinuxDontNeed)?)
    }

    fn advise(&mut self, advice: Advice) -> Result<(), Errno> {
        let range = self.mapping.range();
        // SAFETY: the range is our own mapping, borrowed mutably: no code relies on its content
        // now.
        unsafe { madvise(std::ptr::with_exposed_provenance_mut(range.start()), range.len(), advice) }
    }

    /// Whether each of them is one huge page now.
    ///
    /// # Errors
    /// As [`PagemapScanner::huge_bytes`].
    pub fn are_huge(&self) -> io::Result<bool> {
        let range = self.mapping.range();
        Ok(PagemapScanner::new()?.huge_bytes(range.start(), range.end())? == range.len())
    }
}

impl Deref for HugeFrames {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let range = self.mapping.range();
        // SAFETY: the mapping is readable, and written only through a mutable borrow of its one
        // owner; anonymous memory holds valid bytes from the start. It lives longer than the
        // borrow.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(range.start()), range.len()) }
    }
}

impl DerefMut for HugeFrames {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.mapping.range();
        // SAFETY: as for `deref`; it is writable, too, and borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(range.start()), range.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_hold_their_content_until_they_are_discarded() {
        let mut frames = HugeFrames::new(2).expect("memory");
        assert_eq!((frames.count(), frames.start() % HUGE_FRAME), (2, 0));
        frames.frame(1)[0] = 7;
        frames.populate().expect("nothing to do");
        assert_eq!(frames.bytes()[HUGE_FRAME], 7);
        frames.discard().expect("discard");
        match frames.are_huge() {
            Ok(huge) => assert!(!huge, "nothing is there"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
        assert_eq!(frames.frame(1)[0], 0);
    }
}
