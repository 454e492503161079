//! Which memory is empty in the child of a fork (madvise WIPEONFORK): its parent's swapped-out
//! pages must not be given to the child there.
//!
//! Only `/proc/self/smaps` tells, for which the kernel walks all present pages: about half of the
//! time that a fork takes for them. A program may ask by a raw system call, and the C library's
//! random numbers lie in a mapping that the kernel makes so (`MAP_DROPPABLE`, Linux 6.11). So every
//! fork of managed memory reads it. This module must never take memory for wiped that is not.

use std::io;

use crate::mem::range::PageRange;
use crate::procfs::maps::Mapping;
use crate::procfs::smaps::{Flag, SmapsReader};

/// Reads which memory that is, any number of times.
pub struct WipedReader(SmapsReader);

impl WipedReader {
    /// Opens the file and allocates the only memory that this reader will ever use. Call it on the
    /// thread that will read, or on one that it shares descriptors with. After a fork the child
    /// needs a reader of its own.
    ///
    /// # Errors
    /// Those of opening it: no `/proc` (`NotFound`), or no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(SmapsReader::new()?))
    }

    /// Calls `f` with each mapping that is empty in a child, lowest address first.
    ///
    /// # Errors
    /// Those of `pread`. Mappings before it were passed to `f`.
    pub fn for_each(&mut self, mut f: impl FnMut(&Mapping)) -> io::Result<()> {
        self.0.for_each(&[Flag::WipedOnFork], |mapping, _| f(mapping))
    }

    /// Whether any of `range` is sealed (mseal(2)): it can be neither unmapped nor moved. The same
    /// file tells it.
    ///
    /// # Errors
    /// Those of `pread`.
    pub fn is_any_sealed(&mut self, range: PageRange) -> io::Result<bool> {
        let mut is_any = false;
        self.0.for_each(&[Flag::Sealed], |mapping, _| {
            let sealed = PageRange::new(mapping.start, mapping.end);
            is_any |= sealed.is_some_and(|sealed| sealed.intersection(range).is_some());
        })?;
        Ok(is_any)
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::OS_PAGE;
    use rustix::mm::{Advice, madvise};

    use super::*;
    use crate::mem::region_memory::RegionMemory;

    #[test]
    fn wiped_memory_is_seen_however_it_was_asked_for() {
        let memory = RegionMemory::map(8 * OS_PAGE).expect("map");
        let start = memory.range().start();
        let wiped = start + 2 * OS_PAGE;
        // SAFETY: the advice changes what a child of the test would find, and there is none.
        unsafe {
            let at = std::ptr::with_exposed_provenance_mut(wiped);
            madvise(at, 3 * OS_PAGE, Advice::LinuxWipeOnFork).expect("advised");
        }
        let mut reader = WipedReader::new().expect("a reader");
        let mut seen = || {
            let mut seen = Vec::new();
            reader.for_each(|mapping| seen.push((mapping.start, mapping.end))).expect("read");
            seen
        };
        assert!(seen().contains(&(wiped, wiped + 3 * OS_PAGE)));
    }
}
