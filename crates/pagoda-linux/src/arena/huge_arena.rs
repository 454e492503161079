//! The arena of huge frames: slots of 2 MiB whose frames only ever move whole.
//!
//! The kernel moves a part of a huge page by splitting it, and a split frees subpages that read as
//! zero: pages that were moved out of huge pages in parts came back wrong in our tests. So a huge
//! frame is never split: it moves between its slot and a region in one piece, or its content is
//! copied. This module must never move less than all of one.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use linux_raw_sys::general as raw;
use pagoda_core::page::HUGE_FRAME;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::arena::Space;
use crate::mem::own_memory::OwnMapping;
use crate::mem::range::PageRange;
use crate::raw_syscall::syscall3;
use crate::uffd::{Progress, Stop, Uffd, to_io_error};

/// A slot of the huge arena, held by one owner: the exclusive right to the 2 MiB at its address. As
/// a [`Slot`](crate::arena::Slot) it is given back as a number, and claimed again.
#[derive(Debug)]
#[must_use = "a slot that is forgotten can never be claimed again"]
pub struct HugeSlot {
    index: u32,
}

impl HugeSlot {
    /// Its number in the huge arena.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// The outcome of a move of a huge frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugeMove {
    /// All of it went.
    Done,
    /// Nothing went.
    Nothing(Stop),
    /// Only so many bytes moved: the kernel split it, because there is no huge page at one of the
    /// ends.
    Part(usize, Stop),
}

/// The outcome of giving a huge frame back to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// All of it went.
    All,
    /// Another thread is giving something back: it is done in a moment.
    Busy,
    /// At least a part of it stays: it is pinned, or shared.
    PartStays,
}

#[derive(Debug)]
pub(crate) struct HugeArena {
    mapping: OwnMapping,
    claimed: Vec<AtomicU64>,
}

impl HugeArena {
    /// Reserves `slots` slots (address space only) and has them followed by `uffd`.
    pub(crate) fn reserve(uffd: &Uffd, slots: u32) -> io::Result<Self> {
        let mapping = OwnMapping::reserve(slots.max(1) as usize * HUGE_FRAME, HUGE_FRAME, true)?;
        // SAFETY: the mapping is ours, just made, and used only through this value.
        unsafe { uffd.follow(mapping.range()).map_err(to_io_error)? };
        let claimed = (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { mapping, claimed })
    }

    /// Where all of it is.
    pub(crate) fn range_of_all(&self) -> PageRange {
        self.mapping.range()
    }

    fn range(&self, index: u32) -> PageRange {
        PageRange::at(self.mapping.range().start() + index as usize * HUGE_FRAME, HUGE_FRAME)
    }
}

impl Space {
    /// Makes huge slot `index` a right. Panics if it is held, as [`claim_slot`](Self::claim_slot)
    /// does.
    pub fn claim_huge(&self, index: u32) -> HugeSlot {
        let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
        let before = self.huge.claimed[word].fetch_or(bit, Ordering::Acquire);
        assert!(before & bit == 0, "huge slot {index} is claimed twice");
        HugeSlot { index }
    }

    /// Gives the right up and leaves the number.
    pub fn release_huge(&self, slot: HugeSlot) -> u32 {
        let HugeSlot { index } = slot;
        self.huge.claimed[index as usize / 64].fetch_and(!(1u64 << (index % 64)), Ordering::Release);
        index
    }

    /// The content of a huge slot.
    #[must_use]
    pub fn huge_bytes<'a>(&'a self, slot: &'a HugeSlot) -> &'a [u8] {
        let at = std::ptr::with_exposed_provenance(self.huge.range(slot.index).start());
        // SAFETY: the slot lies within the arena (it was claimed from its bitmap), which is mapped
        // as long as `self` lives; holding the `HugeSlot` excludes every writer, and moves out of
        // it need it too. Its missing pages are the kernel's business and read as zero.
        unsafe { std::slice::from_raw_parts(at, HUGE_FRAME) }
    }

    /// The content of a huge slot, to be written.
    #[must_use]
    pub fn huge_bytes_mut<'a>(&'a self, slot: &'a mut HugeSlot) -> &'a mut [u8] {
        let at = std::ptr::with_exposed_provenance_mut(self.huge.range(slot.index).start());
        // SAFETY: as for `huge_bytes`, and `&mut HugeSlot` excludes every other reader.
        unsafe { std::slice::from_raw_parts_mut(at, HUGE_FRAME) }
    }

    /// Has the kernel take the frames of these huge slots from `node`, and from no other.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    ///
    /// # Panics
    /// If there are no such slots.
    pub fn bind_huge(&self, slots: std::ops::Range<u32>, node: u32) -> Result<(), Errno> {
        let start = self.huge.range(slots.start).start();
        let Some(range) = PageRange::new(start, self.huge.range(slots.end).start()) else { return Ok(()) };
        assert_eq!(self.huge.mapping.range().intersection(range), Some(range), "slots of the huge arena");
        crate::mem::node::bind(range, node)
    }

    /// Gets a huge frame of zeroes from the kernel, which clears it, for an empty slot. Where the
    /// kernel has no huge page it takes small ones.
    ///
    /// # Errors
    /// `ENOMEM`, and any other error of madvise(2) for lack of memory.
    pub fn populate_huge(&self, slot: &mut HugeSlot) -> io::Result<()> {
        let range = self.huge.range(slot.index);
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the slot is the caller's; the advice changes no content.
        unsafe { madvise(at, range.len(), Advice::LinuxPopulateWrite).map_err(to_io_error) }
    }

    /// Moves the frame of a slot to `to`, managed memory of one huge frame, aligned to it, and
    /// wakes threads that wait there. Where the kernel has a table of OS pages for `to` it is split
    /// on the way, into pages of zeroes if it is all zero.
    ///
    /// # Panics
    /// If `to` is no such range.
    pub fn fill_huge(&self, to: PageRange, slot: &HugeSlot) -> HugeMove {
        assert!(to.len() == HUGE_FRAME && to.start().is_multiple_of(HUGE_FRAME), "a huge frame has a place");
        // SAFETY: the source is a slot that the caller holds; the destination is adopted memory,
        // where the kernel fills only missing pages.
        let progress = unsafe { self.uffd.move_in(to.start(), self.huge.range(slot.index), &self.occupancy) };
        HugeMove::of(progress)
    }

    /// Moves the huge page at `from`, managed memory, into an empty slot.
    ///
    /// # Panics
    /// If `from` is not the place of a huge frame.
    pub fn evict_huge(&self, from: PageRange, slot: &HugeSlot) -> HugeMove {
        assert!(
            from.len() == HUGE_FRAME && from.start().is_multiple_of(HUGE_FRAME),
            "a huge frame has a place"
        );
        // SAFETY: the source is adopted memory; the destination is a slot that the caller holds.
        let progress =
            unsafe { self.uffd.move_out(self.huge.range(slot.index).start(), from, &self.occupancy) };
        HugeMove::of(progress)
    }

    /// Gives the frame of a slot, whose content is not needed, back to the kernel. It waits for no
    /// thread.
    pub fn give_back_huge(&self, slot: &HugeSlot) -> GivenBack {
        let Ok(_way_out) = self.exit_taken.try_lock() else { return GivenBack::Busy };
        // SAFETY: the source is a slot whose content the caller gave up; the destination is the way
        // out, which is ours and empty, and frames on the way out have no owner any more.
        let emptied = unsafe {
            let emptied = self.move_all(self.exit.range().start(), self.huge.range(slot.index));
            self.exit.discard(self.exit.range());
            emptied
        };
        if emptied { GivenBack::All } else { GivenBack::PartStays }
    }

    /// Has the kernel collapse the OS pages of `at`, managed memory of the place of a huge frame,
    /// to one huge page, which takes longer where its processors are busy. It holds the mappings'
    /// lock while it copies, so that no write is lost, and nothing is moved meanwhile. All pages
    /// have to be there, each by itself: a page that is shared, write-protected, or the page of
    /// zeroes makes the kernel refuse, and all stay as they are. A place that had OS pages can't
    /// get a huge page by a move: the kernel keeps their table.
    ///
    /// # Panics
    /// If `at` is not the place of a huge frame.
    ///
    /// # Errors
    /// `EINVAL`: not all of it can be joined. `ENOMEM`: there is no free huge page. `EAGAIN`,
    /// `EBUSY`: a page is in use elsewhere.
    pub fn join_huge(&self, at: PageRange) -> Result<(), Errno> {
        assert!(at.len() == HUGE_FRAME && at.start().is_multiple_of(HUGE_FRAME), "a huge frame has a place");
        let (start, len, advice) = (at.start(), at.len(), raw::MADV_COLLAPSE as usize);
        // SAFETY: the advice changes no content, and other users of the memory find it unchanged.
        unsafe { syscall3(raw::__NR_madvise, start, len, advice).map(drop) }
    }

    /// Lets the kernel map `range`, managed memory, by huge pages. A fault where there is nothing
    /// comes before the kernel has made a table of OS pages for it, over which no huge page can be
    /// moved. The kernel may also collapse OS pages that are all there to a huge page, at any time.
    pub fn allow_huge(&self, range: PageRange) {
        let at = std::ptr::with_exposed_provenance_mut(range.start());
        // SAFETY: the advice changes no content.
        let _ = unsafe { madvise(at, range.len(), Advice::LinuxHugepage) };
    }
}

impl Space {
    /// [`join_huge`](Self::join_huge) where pages are kept small: they are allowed to be huge for
    /// as long as it takes. Within that time the kernel may also collapse them by itself, and a
    /// thread that touches a missing page of `at` waits for a huge page that is cleared and dropped
    /// before its fault is reported. The second result is false if the kernel may still collapse a
    /// part of it at any time: all or some of it was unmapped or moved meanwhile.
    ///
    /// # Panics
    /// If `at` is not the place of a huge frame.
    pub fn join_small(&self, at: PageRange) -> (Result<(), Errno>, bool) {
        self.allow_huge(at);
        let joined = self.join_huge(at);
        // A mapping that moved has taken the advice along. The kernel says that it changes before
        // it moves it.
        let is_small = self.keep_pages_small(at).is_ok() && self.is_quiet();
        (joined, is_small)
    }
}

impl HugeMove {
    fn of(progress: Progress) -> Self {
        match progress {
            Progress { bytes: HUGE_FRAME, .. } => Self::Done,
            Progress { bytes: 0, stop } => Self::Nothing(stop.unwrap_or(Stop::Again)),
            Progress { bytes, stop } => Self::Part(bytes, stop.unwrap_or(Stop::Again)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::tests::open;
    use crate::testing::process::{end, fork, sleep_until_killed};
    use crate::testing::wait::until;

    #[test]
    fn a_shared_frame_stays_and_goes_when_it_is_ours_again() {
        let Some(space) = open("a huge frame that stays", 4096, 1) else { return };
        let mut slot = space.claim_huge(0);
        space.huge_bytes_mut(&mut slot).fill(7);
        space.set_forked(space.huge.range(0), true);
        let child = fork(sleep_until_killed).expect("forked");
        assert_eq!(space.give_back_huge(&slot), GivenBack::PartStays);
        assert!(space.huge_bytes(&slot).iter().all(|byte| *byte == 7));
        {
            let _taken = space.exit_taken.lock().expect("free");
            assert_eq!(space.give_back_huge(&slot), GivenBack::Busy);
        }
        end(child).expect("ended");
        // A write makes it ours alone, unless a child of another test has come to share it.
        until("the frame goes", || {
            space.huge_bytes_mut(&mut slot).fill(8);
            space.give_back_huge(&slot) == GivenBack::All
        });
        assert!(space.huge_bytes(&slot).iter().all(|byte| *byte == 0));
        space.release_huge(slot);
    }
}
