//! Taking a frame from the zone in turn, and counting the use of each zone's frames.
//!
//! The first zone in turn that has a frame gives it. This module must never give a frame to two
//! takers, nor count one in two zones.

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Granules, Word};
use pagoda_core::zone::levels::Level;
use pagoda_linux::arena::Slot;
use pagoda_linux::uffd::Progress;

use crate::engine::Engine;
use crate::frames::pool::{Holds, Zone, all_of_slot};
use crate::frames::turn_caches::Taker;
use crate::frames::zone_config::ZONES_MAX;
use crate::frames::zones::Part;
use crate::stats::counters::Counter;

impl Engine {
    /// Enters granules that came into the region, in frames of `zone`. Resident granules tell
    /// already of which zone the page is.
    pub(crate) fn came_in(&self, word: Word, came: Granules, zone: usize) -> Word {
        let bytes = i64::from(came.count()) * OS_PAGE as i64;
        self.ledger.resident(bytes);
        let after = word.with_resident(word.resident().or(came));
        if !self.zones.are_several() {
            return after;
        }
        let zone = if word.resident().is_empty() { zone } else { word.zone() };
        self.zones.in_regions(zone, bytes);
        after.with_zone(zone)
    }

    /// Frames of a zone are filled with arriving content, or not any more (negative). They are not
    /// ready, and not resident yet.
    #[cfg(feature = "migrate")]
    pub(crate) fn receiving(&self, zone: usize, bytes: i64) {
        self.ledger.receiving(bytes);
        self.zones.in_regions(zone, bytes);
    }

    /// Reclaim moved bytes of a zone's frames out of the regions.
    pub(crate) fn went_out(&self, zone: usize, bytes: i64) {
        self.ledger.resident(-bytes);
        if self.zones.are_several() {
            self.zones.in_regions(zone, -bytes);
            self.count_evicted(zone, bytes as u64);
        }
    }

    /// So much of a zone's frames was moved out of the regions by reclaim.
    pub(crate) fn count_evicted(&self, zone: usize, bytes: u64) {
        if self.zones.are_several() {
            self.counters.add(super::stats::COUNTERS[self.zones.parts[zone].number].evicted, bytes);
        }
    }

    /// The page in slot `index` leaves memory, and never was in a region.
    pub(crate) fn went_unmoved(&self, index: u32) {
        if self.zones.are_several() {
            let number = self.zones.parts[self.zones.of_slot(index)].number;
            self.counters.add(super::stats::COUNTERS[number].evicted, self.entry_bytes() as u64);
        }
    }

    /// These frames of slot `index` back a staged entry.
    pub(crate) fn went_into_staging(&self, index: u32, there: Granules) {
        let bytes = i64::from(self.zones.went_into_staging(index, there)) * OS_PAGE as i64;
        self.ledger.staged(bytes);
        self.zones.staged(index, bytes);
    }

    /// These frames of slot `index` back no staged entry any more.
    pub(crate) fn left_staging(&self, index: u32, gone: Granules) {
        let bytes = i64::from(self.zones.left_staging(index, gone)) * OS_PAGE as i64;
        self.ledger.staged(-bytes);
        self.zones.staged(index, -bytes);
    }

    /// Which OS pages of the slot of a staged entry have a frame. The kernel is asked where not all
    /// are known to.
    pub(crate) fn staged_frames(&self, slot: &Slot) -> Granules {
        let all = all_of_slot(&self.space);
        if self.zones.staged_pages(slot.index()) == all { all } else { self.space.pages_of(slot) }
    }

    /// The frame of `slot` backs no staged entry any more, and is unused now.
    pub(crate) fn unstage(&self, slot: Slot) {
        let there = self.staged_frames(&slot);
        self.left_staging(slot.index(), all_of_slot(&self.space));
        self.zones.put_pieces(&self.space, slot, there);
    }

    pub(super) fn gave(&self, zone: usize, bytes: u64) {
        let Part { number, is_remote, .. } = self.zones.parts[zone];
        self.counters.add(super::stats::COUNTERS[number].allocated, bytes);
        if is_remote {
            self.counters.add(Counter::ZonesSpilledBytes, bytes);
        }
    }

    /// A frame of the zone in turn, or of the next that has one: ready or fresh. With `regardless`
    /// the budget does not count. Only with several zones.
    pub(crate) fn frame_of_a_zone(&self, regardless: bool, taker: Taker) -> Option<Slot> {
        let all = all_of_slot(&self.space);
        let used = |hands: &Zone| Some((hands.take_whole_ready(&self.space)?, Holds::Used { there: all }));
        let (slot, holds) = self.frame_of_zones(taker, None, regardless, all, used)?;
        // All of it is about to be written.
        self.ledger.took(i64::from(all.without(holds.there(all)).count()) * OS_PAGE as i64);
        Some(slot)
    }

    /// A frame for the `wanted` zero granules of the page of `word`, and its content. It is of the
    /// page's own zone if that has one, as long as a part of the page is resident. The caller that
    /// fills tells the ledger.
    pub(crate) fn frame_of_a_zone_for_zeroes(
        &self,
        word: Word,
        wanted: Granules,
        taker: Taker,
    ) -> Option<(Slot, Holds)> {
        let home = (!word.resident().is_empty()).then(|| word.zone());
        self.frame_of_zones(taker, home, false, wanted, |hands| hands.take_for_zeroes(&self.space))
    }

    fn frame_of_zones(
        &self,
        taker: Taker,
        home: Option<usize>,
        regardless: bool,
        wanted: Granules,
        take_whole: impl Fn(&Zone) -> Option<(Slot, Holds)>,
    ) -> Option<(Slot, Holds)> {
        let parts_first = wanted != all_of_slot(&self.space);
        let may_use = regardless || self.may_use_frame();
        let may_take = regardless || self.has_room();
        let frame_bytes = self.entry_bytes() as u64;
        let given = |zone: usize, slot: Slot, holds: Holds| {
            self.gave(zone, u64::from(wanted.count()) * OS_PAGE as u64);
            (slot, holds)
        };
        let fresh = |zone: usize| {
            let slot = self.zones.parts[zone].hands.take_empty(&self.space)?;
            Some(given(zone, slot, Holds::Nothing))
        };
        let whole_at = |zone: usize, levels: &[Level; ZONES_MAX]| {
            if may_use && let Some((slot, holds)) = take_whole(&self.zones.parts[zone].hands) {
                return Some(given(zone, slot, holds));
            }
            let has_room = may_take && levels[zone].room_bytes >= frame_bytes as i64;
            has_room.then(|| fresh(zone)).flatten()
        };
        let part_of = |zone: usize| {
            let (slot, there) = self.zones.parts[zone].hands.take_part_ready(&self.space)?;
            Some(given(zone, slot, Holds::Used { there }))
        };
        // A part of a page takes no turn.
        if let Some(zone) = home {
            let frame = may_use.then(|| part_of(zone)).flatten();
            if let Some(frame) = frame.or_else(|| whole_at(zone, &self.zone_levels())) {
                return Some(frame);
            }
        }
        let turn = self.zones_in_turn(taker);
        let whole = |zone: usize| whole_at(zone, &turn.levels);
        // Mostly the first zone has one, and the order of the others is not needed.
        if !parts_first && let Some(frame) = turn.first.and_then(whole) {
            return Some(frame);
        }
        let order = self.zones_in_order(&turn);
        let part = || order.iter().filter(|_| may_use).find_map(part_of);
        if parts_first && let Some(frame) = part() {
            return Some(frame);
        }
        // Parts of frames do as well. Without any the budget may have room for a frame, and each
        // zone for a part of one.
        let frame = order.iter().find_map(whole).or_else(part);
        frame.or_else(|| order.iter().filter(|_| may_take).find_map(fresh))
    }

    /// A whole ready frame of the zone in turn, or of another.
    pub(crate) fn take_whole_ready(&self, taker: Taker) -> Option<Slot> {
        if !self.zones.are_several() {
            return self.zones.parts[0].hands.take_whole_ready(&self.space);
        }
        let order = self.zones_in_order(&self.zones_in_turn(taker));
        order.iter().find_map(|zone| {
            let slot = self.zones.parts[zone].hands.take_whole_ready(&self.space)?;
            self.gave(zone, self.entry_bytes() as u64);
            Some(slot)
        })
    }

    /// Lets `place` move one OS page of `content` into the page of `word`. Its frame is of the
    /// page's own zone if that has one, else of the zone in turn. Returns that zone. Only with
    /// several zones.
    pub(crate) fn place_page_of_a_zone(
        &self,
        word: Word,
        content: &[u8],
        may_open: bool,
        taker: Taker,
        place: impl Fn(&Slot, usize) -> (bool, Progress),
    ) -> Option<(usize, Progress)> {
        let turn = self.zones_in_turn(taker);
        let order = self.zones_in_order(&turn);
        let order = if word.resident().is_empty() { order } else { order.with_first(word.zone()) };
        let has_room = self.has_room();
        let fresh = |zone: usize| {
            let placed = self.zones.parts[zone].hands.place_fresh_page(&self.space, content, &place)?;
            self.ledger.took(OS_PAGE as i64);
            Some(placed)
        };
        // One zone tries all ways before the next does: otherwise the zone with the most parts of
        // frames would give more than its share.
        let placed = order.iter().find_map(|zone| {
            let hands = &self.zones.parts[zone].hands;
            let fits = has_room && turn.levels[zone].room_bytes >= OS_PAGE as i64;
            let placed = hands
                .place_page(&self.space, content, false, &place)
                .or_else(|| fits.then(|| fresh(zone)).flatten())
                .or_else(|| {
                    may_open.then(|| hands.place_page(&self.space, content, true, &place)).flatten()
                })?;
            Some((zone, placed))
        });
        // As for frames: if the budget has room, or is not enforced, some zone gives beyond its
        // part.
        let beyond = || order.iter().find_map(|zone| Some((zone, fresh(zone)?)));
        let placed = placed.or_else(|| has_room.then(beyond).flatten());
        if let Some((zone, _)) = placed {
            self.gave(zone, OS_PAGE as u64);
        }
        placed
    }

    /// The zone to which a page of memory is counted that the kernel put into the region itself.
    pub(crate) fn zone_of_kernel_memory(&self, word: Word) -> usize {
        if !self.zones.are_several() {
            return 0;
        }
        if !word.resident().is_empty() {
            return word.zone();
        }
        let zone = self.zones_in_order(&self.zones_in_turn(Taker::ONCE)).first();
        self.gave(zone, self.entry_bytes() as u64);
        zone
    }
}
