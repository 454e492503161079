//! Base frames that are adjacent in physical memory: a huge page of the kernel's, split into them.
//!
//! The kernel splits a huge page when a part of it is moved, and then frees every OS page that is
//! all zero, for its page of zeroes (Linux 6.12 and newer). So each is marked before the split, and
//! the mark is taken off where it arrived. Frames that travel whole stay adjacent from then on. The
//! page comes from a mapping of its own, which is gone afterwards: where a huge page was split the
//! kernel keeps a table of OS pages, and gives none any more. This module must never leave a mark
//! in a frame that it reports as zero.

use std::io;
use std::time::Duration;

use pagoda_core::page::{HUGE_FRAME, OS_PAGE};

use crate::arena::{Slot, Space};
use crate::mem::own_memory::OwnMapping;
use crate::mem::range::PageRange;
use crate::uffd::Stop;

/// The first byte of an OS page while its huge page is split.
const MARK: u8 = 1;

/// Tries of a move that the kernel refuses for a moment: while an event is unread, or the page is
/// in use. With the sleep before each they last as long as many reads of events.
const TRIES: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

impl Space {
    /// Puts frames of zeroes, fresh from the kernel, into empty slots that follow each other and
    /// are as long as a huge page together: adjacent, if the kernel has a huge page to give. All
    /// pages that are there ([`pages_of`](Self::pages_of)) are zero; some are missing only where
    /// the kernel refuses to move them, after a wait of at most some milliseconds.
    ///
    /// # Errors
    /// Those of mmap(2).
    ///
    /// # Panics
    /// If the slots are not as long as a huge page.
    pub fn break_huge_page(&self, slots: &mut [Slot]) -> io::Result<()> {
        let to = self.run(slots);
        assert_eq!(to.len(), HUGE_FRAME, "slots for all of a huge page");
        let page = OwnMapping::reserve(HUGE_FRAME, HUGE_FRAME, true)?;
        let from = page.range();
        for at in (from.start()..from.end()).step_by(OS_PAGE) {
            // SAFETY: the mapping is ours, just made, and no other code knows of it.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(MARK) };
        }
        let (mut done, mut tries) = (0, 0);
        while done < HUGE_FRAME {
            // All of it in one piece would move as the huge page that it is.
            let len = if done == 0 { self.slot_bytes() } else { HUGE_FRAME - done };
            let rest = PageRange::at(from.start() + done, len);
            // SAFETY: the source is ours alone; the destination is slots that the caller holds.
            let progress = unsafe { self.uffd.move_in(to.start() + done, rest, &self.occupancy) };
            done += progress.bytes;
            match progress.stop {
                None => {}
                Some(Stop::Again | Stop::Busy) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
                Some(_) => break,
            }
        }
        for slot in slots {
            let there = self.pages_of(slot);
            let bytes = self.bytes_mut(slot);
            // Where nothing is a write would take another frame from the kernel.
            for page in there.runs().flat_map(|(first, end)| first..end) {
                bytes[page as usize * OS_PAGE] = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page_entry::Granules;

    use super::*;
    use crate::arena::tests::open_with;
    use crate::mem::contiguity::contiguous_bytes;

    const BASE: usize = 64 << 10;

    /// Whether the kernel gives huge pages on request.
    fn are_there_huge_pages() -> bool {
        let mut memory =
            crate::mem::plain_memory::PlainMemory::map(4 << 20, crate::mem::plain_memory::Pages::Huge)
                .expect("memory");
        memory.words_mut().fill(1);
        let range = memory.range();
        let scanner = crate::procfs::pagemap::PagemapScanner::new();
        scanner
            .and_then(|mut scanner| scanner.huge_bytes(range.start(), range.end()))
            .is_ok_and(|bytes| bytes > 0)
    }

    #[test]
    fn a_broken_huge_page_is_base_frames_of_zeroes_that_lie_side_by_side() {
        let Some(space) = open_with("a huge page that is broken", 64, BASE, 0) else { return };
        let expect_side_by_side = are_there_huge_pages();
        // Twice at the same slots, and at slots that don't begin where a huge page could be.
        for first in [0, 0, 17] {
            let mut slots: Vec<Slot> = (first..first + 32).map(|index| space.claim_slot(index)).collect();
            space.break_huge_page(&mut slots).expect("a huge page");
            for slot in &slots {
                assert_eq!(space.pages_of(slot), Granules::range(0, 16), "slot {}", slot.index());
                assert!(space.bytes(slot).iter().all(|byte| *byte == 0), "slot {}", slot.index());
            }
            let frames = contiguous_bytes(space.run(&slots), BASE).expect("pagemap");
            if let Some((present, side_by_side)) = frames.filter(|_| expect_side_by_side) {
                assert_eq!((present, side_by_side), (HUGE_FRAME as u64, HUGE_FRAME as u64), "from {first}");
            }
            assert_eq!(space.give_back(&slots), slots.len(), "they go like any other");
            for slot in slots {
                space.release_slot(slot);
            }
        }
    }
}
