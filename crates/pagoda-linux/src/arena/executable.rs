//! Moving pages of memory that is written and executed: a collector's heap with code in it.
//!
//! The kernel moves pages between mappings of the same access alone. So the slots of such a move
//! are made executable for as long as it takes, two changes of protection for each. This module
//! must never leave a slot executable, nor pay for that where no such memory is managed.

use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::arena::Space;
use crate::mem::range::PageRange;
use crate::uffd::{Progress, Stop};

const WRITABLE: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);
const EXECUTABLE: MprotectFlags = WRITABLE.union(MprotectFlags::EXEC);

impl Space {
    /// From now on memory that is written and executed is moved, too. False, and nothing changes,
    /// where this process may not make its own memory executable.
    pub fn allow_executable(&self) -> bool {
        if may_be_executable() {
            self.moves_executable.store(true, Ordering::Relaxed);
        }
        self.moves_executable()
    }

    /// Whether memory that is written and executed is moved.
    #[must_use]
    pub fn moves_executable(&self) -> bool {
        self.moves_executable.load(Ordering::Relaxed)
    }

    /// The result of `transfer`, which moves pages into or out of `slots`; of a second try of it
    /// with executable slots, if the first was refused.
    pub(super) fn of_any_access(&self, slots: PageRange, transfer: impl Fn() -> Progress) -> Progress {
        let progress = transfer();
        let refused = progress.bytes == 0 && progress.stop == Some(Stop::Refused);
        if !refused || !self.moves_executable() {
            return progress;
        }
        // SAFETY: the caller of the transfer holds the slots, which stay readable and writable.
        if !unsafe { protect(slots, EXECUTABLE) } {
            return progress;
        }
        let progress = transfer();
        // This splits no mapping, and so it can't lack room for one. If it fails all the same, the
        // next transfer of the slot is refused at first, and changes it back.
        // SAFETY: as above.
        let done = unsafe { protect(slots, WRITABLE) };
        debug_assert!(done, "a slot is made writable alone");
        progress
    }
}

/// Changes the access to `range`. False if the kernel refuses.
///
/// # Safety
/// It is memory of the caller alone, and `access` allows everything that is still done there.
unsafe fn protect(range: PageRange, access: MprotectFlags) -> bool {
    let at = std::ptr::with_exposed_provenance_mut(range.start());
    // SAFETY: the caller vouches for it.
    unsafe { mprotect(at, range.len(), access) }.is_ok()
}

/// Whether a mapping of this process may be made executable: not under `PR_SET_MDWE`, nor by the
/// rules of SELinux and of filters of system calls.
fn may_be_executable() -> bool {
    let (access, none) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    let Ok(at) = (unsafe { mmap_anonymous(none, OS_PAGE, access, MapFlags::PRIVATE) }) else { return false };
    // SAFETY: the mapping was made above, and no other code has its address.
    let may = unsafe { protect(PageRange::at(at.addr(), OS_PAGE), EXECUTABLE) };
    // SAFETY: as above.
    let unmapped = unsafe { munmap(at, OS_PAGE) };
    debug_assert!(unmapped.is_ok(), "our own mapping is unmapped");
    may
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::tests::open;
    use crate::mem::region_memory::RegionMemory;
    use crate::testing::skip::skip;

    #[test]
    fn memory_that_is_written_and_executed_moves_out_and_back_and_leaves_no_slot_executable() {
        let Some(space) = open("executable memory", 4 * OS_PAGE, 0) else { return };
        if !may_be_executable() {
            return skip("executable memory", "this process may not make its own memory executable");
        }
        let mut memory = RegionMemory::map(8 * OS_PAGE).expect("map");
        let range = memory.range();
        memory.words_mut().iter_mut().enumerate().for_each(|(at, word)| *word = at as u64 / 7);
        space.register(range).expect("registered");
        // SAFETY: it is the test's own memory, which stays readable and writable.
        let access = |access| unsafe { protect(range, access) };
        assert!(access(EXECUTABLE));
        let slots = [space.claim_slot(3), space.claim_slot(4)];
        let refused = space.evict(range, &slots, 0);
        assert_eq!((refused.bytes, refused.stop), (0, Some(Stop::Refused)));
        assert!(space.allow_executable());
        for round in 0..3 {
            let out = space.evict(range, &slots, 0);
            assert_eq!((out.bytes, out.stop), (range.len(), None), "round {round}");
            let back = space.fill_run(range, &slots, 0);
            assert_eq!((back.bytes, back.stop), (range.len(), None), "round {round}");
        }
        // Memory that is written alone moves as before, to the same slots.
        assert!(access(WRITABLE));
        assert_eq!(space.evict(range, &slots, 0).bytes, range.len());
        let half = PageRange::at(range.start(), 4 * OS_PAGE);
        assert_eq!(space.fill(half, &slots[0], 0).bytes, half.len());
        let rest = PageRange::at(half.end(), 4 * OS_PAGE);
        assert_eq!(space.fill(rest, &slots[1], 0).bytes, rest.len());
        let is_as_it_was = memory.words_mut().iter().enumerate().all(|(at, word)| *word == at as u64 / 7);
        assert!(is_as_it_was);
        slots.into_iter().for_each(|slot| _ = space.release_slot(slot));
    }
}
