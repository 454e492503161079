//! The zone of each frame, as the engine counts it: by the slot in the arena, by the entry in a
//! region. At the end the counts must be those of the frames that exist.

use crate::world::World;
use pagoda_core::page_entry::{Granules, Word};

impl World {
    pub fn zone_of(&self, slot: usize) -> usize {
        slot * self.setting.zones / self.claimed.borrow().len()
    }

    /// The zone whose turn it is.
    pub fn first_zone(&self) -> usize {
        if self.setting.zones > 1 { self.below(self.setting.zones) } else { 0 }
    }

    /// The zone to which a page is counted that the kernel put into the region itself.
    pub fn zone_of_kernel_memory(&self, word: Word) -> usize {
        if word.resident().is_empty() { self.first_zone() } else { word.zone() }
    }

    /// The word when granules of a zone have come in: all of a page is counted as of one zone.
    pub fn came(&self, word: Word, came: Granules, zone: usize) -> Word {
        let zone = if word.resident().is_empty() { zone } else { word.zone() };
        self.in_regions(zone, came.count() as isize);
        word.with_resident(word.resident().or(came)).with_zone(zone)
    }

    pub fn in_regions(&self, zone: usize, pages: isize) {
        let mut all = self.in_regions.get();
        all[zone] += pages;
        self.in_regions.set(all);
    }

    pub fn staged(&self, slot: usize, pages: isize) {
        let mut all = self.staged.get();
        all[self.zone_of(slot)] += pages;
        self.staged.set(all);
    }
}
