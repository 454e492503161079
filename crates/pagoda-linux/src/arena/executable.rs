//! Moving pages of memory that is written and executed: a collector's heap with code in it.
//!
//! The kernel moves pages between mappings of the same access alone. So the slots of such a move
//! are made executable for as long as it takes, two changes of protection for each. This module
//! must never leave a slot executable, nor pay for that where no such memory is managed.

use std::sync::atomic::Ordering;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::arena::Space;
use crate::mem::range::PageRange;
use crate::uffd::{Progress, Stop};
use pagoda_core::page::OS_PAGE;

const WRITABLE: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::WRITE);

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
        if !refused || !self.moves_executable() || !protect(slots, WRITABLE.union(MprotectFlags::EXEC)) {
            return progress;
        }
        let progress = transfer();
        // It splits no mapping, and so it can't lack room for one. A slot that stayed executable
        // all the same is taken for such by the next transfer, which is refused at first.
        let done = protect(slots, WRITABLE);
        debug_assert!(done, "a slot is made writable alone");
        progress
    }
}

/// Changes the access to slots.
fn protect(slots: PageRange, access: MprotectFlags) -> bool {
    let at = std::ptr::with_exposed_provenance_mut(slots.start());
    // SAFETY: the slots are memory of the arena that the caller of the transfer holds. It stays
    // readable and writable throughout, and nothing of it is ever executed at this address.
    unsafe { mprotect(at, slots.len(), access) }.is_ok()
}

/// Whether a mapping of this process may be made executable: not under `PR_SET_MDWE`, nor by the
/// rules of SELinux and of filters of system calls.
fn may_be_executable() -> bool {
    let (access, none) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    let Ok(at) = (unsafe { mmap_anonymous(none, OS_PAGE, access, MapFlags::PRIVATE) }) else { return false };
    let may = protect(PageRange::at(at.addr(), OS_PAGE), WRITABLE.union(MprotectFlags::EXEC));
    // SAFETY: the mapping was made above, and nobody else knows of it.
    let unmapped = unsafe { munmap(at, OS_PAGE) };
    debug_assert!(unmapped.is_ok(), "our own mapping is unmapped");
    may
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::tests::open;
    use crate::mem::region_memory::RegionMemory;

    #[test]
    fn memory_that_is_written_and_executed_moves_out_and_back_and_leaves_no_slot_executable() {
        let Some(space) = open("executable memory", 4 * OS_PAGE, 0) else { return };
        let mut memory = RegionMemory::map(8 * OS_PAGE).expect("map");
        let range = memory.range();
        memory.words_mut().iter_mut().enumerate().for_each(|(at, word)| *word = at as u64 / 7);
        space.register(range).expect("registered");
        assert!(protect(range, WRITABLE.union(MprotectFlags::EXEC)));
        let slots = [space.claim_slot(3), space.claim_slot(4)];
        let refused = space.evict(range, &slots, 0);
        assert_eq!((refused.bytes, refused.stop), (0, Some(Stop::Refused)));
        assert!(space.allow_executable(), "this process may make its memory executable");
        for round in 0..3 {
            let out = space.evict(range, &slots, 0);
            assert_eq!((out.bytes, out.stop), (range.len(), None), "round {round}");
            let back = space.fill_run(range, &slots, 0);
            assert_eq!((back.bytes, back.stop), (range.len(), None), "round {round}");
        }
        // Memory that is written alone moves as before, to the same slots.
        assert!(protect(range, WRITABLE));
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
