//! Which memory is empty in the child of a fork (madvise WIPEONFORK): its parent's swapped-out
//! pages must not be given to the child there.
//!
//! Only `/proc/self/smaps` tells, for which the kernel walks all present pages. So it is read in a
//! process that has asked for such memory, or whose parent has, and in no other; the hook of
//! madvise(2) notes that. This module must never take memory for wiped that is not.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::procfs::maps::Mapping;
use crate::procfs::smaps::{Flag, SmapsReader};

/// Whether there may be such memory. In this library's own data, which a child has, too.
static ASKED_FOR: AtomicBool = AtomicBool::new(false);

/// Notes that there may be such memory from now on. To be called before the kernel is asked for it.
pub fn expect() {
    ASKED_FOR.store(true, Ordering::SeqCst);
}

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

    /// Calls `f` with each mapping that is empty in a child, lowest address first. It costs nothing
    /// where none was asked for.
    ///
    /// # Errors
    /// Those of `pread`. Mappings before it were passed to `f`.
    pub fn for_each(&mut self, mut f: impl FnMut(&Mapping)) -> io::Result<()> {
        if !ASKED_FOR.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.0.for_each(&[Flag::WipedOnFork], |mapping, _| f(mapping))
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::OS_PAGE;
    use rustix::mm::{Advice, madvise};

    use super::*;
    use crate::mem::region_memory::RegionMemory;

    #[test]
    fn wiped_memory_is_seen_once_it_was_asked_for() {
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
        assert_eq!(seen(), []);
        expect();
        assert!(seen().contains(&(wiped, wiped + 3 * OS_PAGE)));
    }
}
