//! Lifting: taking pages out of managed memory that its owner has protected.
//!
//! The kernel moves pages only between mappings that may be written (`UFFDIO_MOVE`). mremap(2) with
//! `MREMAP_DONTUNMAP` asks for no right: in one step it takes the pages to another address, and
//! leaves the range mapped, registered and empty. There they may be written, and move on like any
//! others. Their owner never sees another protection than its own.
//!
//! The call posts an event and waits until it is read, so another thread than its caller has to
//! read it. This module must never lift memory that may not be managed: only for managed memory
//! does the event tell that the pages were the caller's.

use std::io;

use pagoda_core::page::HUGE_FRAME;
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, MremapFlags, mprotect, mremap_fixed, munlock};

use super::Space;
use crate::mem::own_memory::OwnMapping;
use crate::mem::range::PageRange;

/// The most bytes that are lifted at once: one batch of base pages.
pub const LIFT_BYTES: usize = HUGE_FRAME;

/// The addresses that pages are lifted to.
#[derive(Debug)]
pub struct LiftPlace(OwnMapping);

impl LiftPlace {
    /// Reserves the addresses.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn reserve() -> io::Result<Self> {
        OwnMapping::reserve(LIFT_BYTES, HUGE_FRAME, false).map(Self)
    }

    /// Whether an event's target is one of these addresses.
    #[must_use]
    pub fn has(&self, address: usize) -> bool {
        self.0.range().contains(address)
    }

    /// The addresses of the pages of `from` once they are lifted.
    ///
    /// # Panics
    /// If it is longer than [`LIFT_BYTES`].
    #[must_use]
    pub fn of(&self, from: PageRange) -> PageRange {
        assert!(from.len() <= LIFT_BYTES, "{} bytes are lifted at once", from.len());
        PageRange::at(self.0.range().start(), from.len())
    }
}

impl Space {
    /// Lifts the pages of `from`, managed memory of one mapping, to `place`, where nothing is.
    /// Blocks until its event was read.
    ///
    /// # Errors
    /// `EFAULT`: `from` is not one mapping, or nothing is mapped there. Else those of mremap(2).
    /// Nothing was lifted then.
    pub fn lift(&self, from: PageRange, place: &LiftPlace) -> Result<(), Errno> {
        let (old, new) = (at(from), at(place.of(from)));
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: the source is adopted memory (`Adoption`), whose pages may be taken out; the
        // target is addresses of ours, where nothing is.
        unsafe { mremap_fixed(old, from.len(), from.len(), flags, new).map(drop) }
    }

    /// Puts everything back: `from` turned out not to be managed, so that no event was posted.
    ///
    /// # Errors
    /// Those of mremap(2).
    pub fn put_back_lifted(&self, from: PageRange, place: &LiftPlace) -> Result<(), Errno> {
        let (old, new) = (at(place.of(from)), at(from));
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: the lifted pages go back to their own addresses, with their own protection.
        unsafe { mremap_fixed(old, from.len(), from.len(), flags, new).map(drop) }
    }

    /// Lets the pages lifted from `from` be moved on, by [`evict`](Self::evict), once its event was
    /// read.
    ///
    /// # Errors
    /// Those of mprotect(2) and of ending the registration that it brought along.
    pub fn open_lifted(&self, from: PageRange, place: &LiftPlace) -> Result<(), Errno> {
        let lifted = place.of(from);
        self.uffd.unregister(lifted)?;
        // SAFETY: the addresses are ours, and no other code uses the pages there.
        //
        // Their owner may have locked them at the last moment: then they could not be moved.
        unsafe {
            munlock(at(lifted), lifted.len())?;
            mprotect(at(lifted), lifted.len(), MprotectFlags::READ | MprotectFlags::WRITE)
        }
    }

    /// Drops the pages of `from` that are left at `place`: they hold no content of its owner.
    pub fn drop_lifted(&self, from: PageRange, place: &LiftPlace) {
        // SAFETY: nothing relies on the content of the pages that stayed behind.
        unsafe { place.0.discard(place.of(from)) };
    }
}

fn at(range: PageRange) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(range.start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::tests::open;
    use crate::testing::access::Access;
    use crate::testing::area::{Area, Rights};

    /// Without the events that a registration would ask for: nothing waits for a reader.
    #[test]
    fn protected_pages_go_on_and_what_is_not_managed_goes_back() {
        let Some(space) = open("lifting", 16 * 4096, 0) else { return };
        let place = LiftPlace::reserve().expect("addresses");
        let access = Access::begin().expect("access");
        for (index, rights) in [Rights::Read, Rights::None].into_iter().enumerate() {
            let mut area = Area::new(16, 0).expect("a mapping");
            for page in 0..16 {
                area.write(&access, page, 0, 1 + page as u64).expect("written");
            }
            let range = area.foreign().range();
            area.protect(0..16, rights).expect("protected");
            assert_eq!(space.lift(range, &place), Ok(()));
            assert!(space.held_pages(range).is_empty(), "all of it left");
            assert_eq!(space.put_back_lifted(range, &place), Ok(()));
            assert_eq!(space.held_pages(range).count(), 16);
            assert_eq!(space.lift(range, &place), Ok(()));
            assert_eq!(space.open_lifted(range, &place), Ok(()));
            let slot = space.claim_slot(index as u32);
            let slots = [slot];
            assert_eq!(space.evict(place.of(range), &slots, 0).bytes, range.len());
            let [slot] = slots;
            let words = space.bytes(&slot).chunks_exact(4096).map(|page| u64::from(page[0]));
            assert!(words.eq(1..=16), "{rights:?}");
            space.release_slot(slot);
            space.drop_lifted(range, &place);
            area.protect(0..16, Rights::Write).expect("its own mapping is still there");
        }
    }

    #[test]
    fn a_part_of_two_mappings_is_not_lifted() {
        let Some(space) = open("lifting", 16 * 4096, 0) else { return };
        let place = LiftPlace::reserve().expect("addresses");
        let access = Access::begin().expect("access");
        let mut area = Area::new(16, 0).expect("a mapping");
        area.write(&access, 3, 0, 7).expect("written");
        area.protect(4..8, Rights::None).expect("protected");
        let range = area.foreign().range();
        space.register(range).expect("registered");
        assert_eq!(space.lift(range, &place), Err(Errno::FAULT));
        assert!(area.read(&access, 3, 0) == Ok(7), "nothing moved");
    }
}
