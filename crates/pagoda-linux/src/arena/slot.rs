//! The slots of an arena: their owners, and their content.
//!
//! A free slot is a number in a table; [`Slot`] is the right to the memory behind it. This module
//! must never make two rights of one number.

use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Granules;
use rustix::io::Errno;

use super::Space;
use crate::mem::range::PageRange;

/// An arena's slot, held by one owner: the exclusive right to the memory at its address.
///
/// Not `Copy`: as long as it is held no other code reads or writes there. [`Space::release_slot`]
/// gives it back as a number, [`Space::claim_slot`] makes it a right again.
#[derive(Debug)]
#[must_use = "a slot that is forgotten can never be claimed again"]
pub struct Slot {
    index: u32,
}

impl Slot {
    /// Its number.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Space {
    /// Has the kernel take memory for first writes to these slots from `node` and no other. Frames
    /// that are moved there stay where they are.
    ///
    /// # Errors
    /// `EINVAL`: there is no such node, or it has no memory. `ENOSYS`: a kernel without nodes.
    /// `EPERM`: not allowed here.
    ///
    /// # Panics
    /// If there are no such slots.
    pub fn bind(&self, slots: std::ops::Range<u32>, node: u32) -> Result<(), Errno> {
        let range = PageRange::new(self.address(slots.start), self.address(slots.end)).expect("some slots");
        assert_eq!(self.arena.range().intersection(range), Some(range), "slots of the arena");
        crate::mem::node::bind(range, node)
    }

    /// Makes slot `index` a right. Panics if it is held: the table would be wrong then, and data at
    /// risk.
    pub fn claim_slot(&self, index: u32) -> Slot {
        let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
        let before = self.claimed[word].fetch_or(bit, Ordering::Acquire);
        assert!(before & bit == 0, "slot {index} is claimed twice");
        Slot { index }
    }

    /// Gives the right up and leaves the number.
    pub fn release_slot(&self, slot: Slot) -> u32 {
        let Slot { index } = slot;
        self.claimed[index as usize / 64].fetch_and(!(1u64 << (index % 64)), Ordering::Release);
        index
    }

    /// The length of a slot in bytes.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(super) fn address(&self, index: u32) -> usize {
        self.arena.range().start() + index as usize * self.slot_bytes
    }

    /// The memory of slots, at least one, which must follow each other in the arena.
    pub(crate) fn run(&self, slots: &[Slot]) -> PageRange {
        let (first, last) = (slots.first().expect("a slot"), slots.last().expect("a slot"));
        assert_eq!(last.index as usize - first.index as usize, slots.len() - 1, "slots follow each other");
        PageRange::at(self.address(first.index), slots.len() * self.slot_bytes)
    }

    /// The content of a slot. A hole in it reads as zero.
    #[must_use]
    pub fn bytes<'a>(&'a self, slot: &'a Slot) -> &'a [u8] {
        let at = std::ptr::with_exposed_provenance(self.address(slot.index));
        // SAFETY: the slot lies within the arena (it was claimed from its bitmap), which is mapped
        // as long as `self` lives; holding the `Slot` excludes every writer, and moves out of it
        // need it too. Missing pages of the arena are the kernel's business and read as zero.
        unsafe { std::slice::from_raw_parts(at, self.slot_bytes) }
    }

    /// The content of a slot, to be written. Writing to a hole takes a fresh page from the kernel.
    #[must_use]
    pub fn bytes_mut<'a>(&'a self, slot: &'a mut Slot) -> &'a mut [u8] {
        let at = std::ptr::with_exposed_provenance_mut(self.address(slot.index));
        // SAFETY: as for `bytes`, and `&mut Slot` excludes every other reader.
        unsafe { std::slice::from_raw_parts_mut(at, self.slot_bytes) }
    }

    /// Which OS pages of a slot are there; all, where the kernel does not say.
    #[must_use]
    pub fn pages_of(&self, slot: &Slot) -> Granules {
        let all = Granules::range(0, (self.slot_bytes / OS_PAGE) as u32);
        self.occupancy.of(PageRange::at(self.address(slot.index), self.slot_bytes)).unwrap_or(all)
    }
}
