//! Giving frames of the arena back to the kernel: by the way out, which waits for no thread, or by
//! a discard, which makes an event.
//!
//! The way out is memory registered with a descriptor without events; frames that were moved there
//! are discarded. This module must never give back a frame whose content is needed: the caller
//! holds the slots, and gave their content up.

use super::{EXIT_BYTES, Slot, Space};
use crate::mem::range::PageRange;
use crate::uffd::Stop;

impl Space {
    /// Gives the frames of these slots, whose content is not needed, back to the kernel, and
    /// returns how many of the slots, from the first on, are empty now. Waits for no thread: if
    /// another one is giving frames back, it is none.
    pub fn give_back(&self, slots: &[Slot]) -> usize {
        let Ok(_way_out) = self.exit_taken.try_lock() else { return 0 };
        let mut emptied = 0;
        for batch in slots.chunks(EXIT_BYTES / self.slot_bytes) {
            let before = emptied;
            for (i, slot) in batch.iter().enumerate() {
                let from = PageRange::at(self.address(slot.index()), self.slot_bytes);
                // SAFETY: the source is a slot whose content the caller gave up; the destination is
                // the way out, which is ours and empty.
                if !unsafe { self.move_all(self.exit.range().start() + i * self.slot_bytes, from) } {
                    break;
                }
                emptied += 1;
            }
            // SAFETY: frames on the way out have no owner any more.
            unsafe { self.exit.discard(self.exit.range()) };
            if emptied - before < batch.len() {
                break;
            }
        }
        emptied
    }

    /// Gives the frames of slots that follow each other, whose content is not needed, back to the
    /// kernel by a discard. It makes an event of the arena's range, and waits until a thread reads
    /// it.
    ///
    /// # Panics
    /// If the slots don't follow each other.
    pub fn discard(&self, slots: &[Slot]) {
        if slots.is_empty() {
            return;
        }
        // SAFETY: the caller holds the slots and gave their content up.
        unsafe { self.arena.discard(self.run(slots)) };
    }

    /// Moves all of `from` out of the arena, in as many moves as it takes. False if a page has to
    /// stay (pinned for a moment): the pages behind it stay, too.
    ///
    /// # Safety
    /// As for [`Uffd::move_in`], through the second descriptor.
    pub(crate) unsafe fn move_all(&self, to: usize, from: PageRange) -> bool {
        let mut done = 0;
        while let Some(rest) = PageRange::new(from.start() + done, from.end()) {
            // SAFETY: passed on to the caller.
            let out = unsafe { self.exit_uffd.move_in(to + done, rest, &self.occupancy) };
            done += out.bytes;
            if !matches!(out.stop, None | Some(Stop::Again)) {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::arena::tests::open;
    use crate::arena::{Slot, Space};
    use crate::mem::range::PageRange;
    use crate::testing::process::{end, fork, sleep_until_killed};

    const SLOT_BYTES: usize = 16 << 10;

    fn release(space: &Space, slots: Vec<Slot>) {
        for slot in slots {
            space.release_slot(slot);
        }
    }

    #[test]
    fn a_shared_page_stays_and_so_do_the_pages_behind_it() {
        let Some(space) = open("frames that stay", SLOT_BYTES, 0) else { return };
        let mut slots: Vec<Slot> = (0..4).map(|index| space.claim_slot(index)).collect();
        slots.iter_mut().for_each(|slot| space.bytes_mut(slot).fill(7));
        let pages = |space: &Space| -> Vec<u32> {
            let count = |index| {
                let slot = space.claim_slot(index);
                let pages = space.pages_of(&slot).count();
                space.release_slot(slot);
                pages
            };
            (0..4).map(count).collect()
        };
        space.set_forked(PageRange::at(space.address(2), SLOT_BYTES), true);
        let child = fork(sleep_until_killed).expect("forked");
        assert_eq!(space.give_back(&slots), 2);
        release(&space, slots);
        assert_eq!(pages(&space), [0, 0, 4, 4]);
        let mut slots: Vec<Slot> = (2..4).map(|index| space.claim_slot(index)).collect();
        {
            let _taken = space.exit_taken.lock().expect("free");
            assert_eq!(space.give_back(&slots), 0);
        }
        end(child).expect("ended");
        // A write makes it ours alone, and no child of another test gets it after that.
        space.set_forked(PageRange::at(space.address(2), SLOT_BYTES), false);
        space.bytes_mut(&mut slots[0]).fill(8);
        assert_eq!(space.give_back(&slots), 2);
        release(&space, slots);
        assert_eq!(pages(&space), [0, 0, 0, 0]);
    }
}
