//! Moving the content of a staged page to a frame of another zone.
//!
//! A page changes zones only while it is staged whole and its entry's busy bit is taken: as when it
//! is stored, nothing else reads or writes it then. Its content is copied to a slot of the other
//! zone, and the entry names that slot from then on. This module must never move a page of which a
//! part is in a region, and never give up the old slot before the entry names the new one.
//!
//! Without a remote zone there are no tiers, and all this costs a test of that.

use pagoda_linux::arena::Slot;

use crate::engine::Engine;
use crate::frames::pool::all_of_slot;
use crate::frames::tier_notes::Tier;
use crate::stats::counters::Counter;

#[cfg(test)]
#[path = "tiers_test.rs"]
mod tests;

/// A page whose content lies in another zone now.
pub(crate) struct Moved {
    /// Where it lies.
    pub(crate) slot: u32,
    /// Where it lay: to be given up once the entry names the other.
    pub(crate) left: Slot,
}

impl Engine {
    /// Whether the page in `slot` was whole in the region, and was staged or demoted only by the
    /// policy of tiers: then it comes back whole, as if it had not been looked at.
    pub(crate) fn comes_back_whole(&self, slot: u32) -> bool {
        self.zones.tiers().is_some_and(|tiers| tiers.was_whole(slot))
    }

    /// The page in `slot` was staged, by the holder of its busy bit.
    pub(crate) fn note_staged(&self, slot: u32) {
        if let Some(tiers) = self.zones.tiers() {
            tiers.note_staged(slot);
        }
    }

    /// Promotes a whole page that comes back from `slot`, if it is hot and a local zone has a frame
    /// to spare. The caller has the busy bit, and nothing of the page is in the region.
    pub(crate) fn promote_staged(&self, slot: u32) -> Option<Moved> {
        let tiers = self.zones.tiers()?;
        if self.zones.tier_of_slot(slot) == Tier::Local || !tiers.comes_back(slot) {
            return None;
        }
        let moved = self.move_to(slot, Tier::Local, 1)?;
        tiers.note_promoted();
        self.counters.add(Counter::ZonesPromotedBytes, self.entry_bytes() as u64);
        Some(moved)
    }

    /// Demotes a whole page in `slot`, if a remote zone has a frame to spare. To make room for a
    /// hot page a remote zone may go down to half of its low watermark: the promotion gives a frame
    /// back, and the budget has as much free as before. The caller has the busy bit, and nothing of
    /// the page is in a region.
    pub(crate) fn demote_staged(&self, slot: u32, makes_room: bool) -> Option<Moved> {
        let tiers = self.zones.tiers()?;
        if self.zones.tier_of_slot(slot) == Tier::Remote {
            return None;
        }
        let moved = self.move_to(slot, Tier::Remote, if makes_room { 2 } else { 1 })?;
        tiers.note_demoted(moved.slot, makes_room);
        self.counters.add(Counter::ZonesDemotedBytes, self.entry_bytes() as u64);
        Some(moved)
    }

    fn move_to(&self, slot: u32, tier: Tier, low_part: u64) -> Option<Moved> {
        let all = all_of_slot(&self.space);
        // A frame in the place of a hole would hide the file's bytes, or hold old ones.
        if self.zones.staged_pages(slot) != all {
            return None;
        }
        let mut into = self.frame_of_tier(tier, low_part)?;
        let left = self.space.claim_slot(slot);
        self.space.bytes_mut(&mut into).copy_from_slice(self.space.bytes(&left));
        let slot = self.space.release_slot(into);
        self.went_into_staging(slot, all);
        Some(Moved { slot, left })
    }

    /// A whole frame of the first zone of this tier that keeps one part in `low_part` of its low
    /// watermark without it.
    fn frame_of_tier(&self, tier: Tier, low_part: u64) -> Option<Slot> {
        if self.ledger.excess_bytes() > 0 {
            return None;
        }
        let levels = self.zone_levels();
        let frame_bytes = self.entry_bytes() as i64;
        self.zones.of_tier(tier).find_map(|zone| {
            let now = self.zone_now(zone, &levels[zone]);
            if now.free_frames <= now.low_frames / low_part {
                return None;
            }
            let hands = self.zones.hands(zone);
            let fresh = || {
                let has_room = self.has_room() && levels[zone].room_bytes >= frame_bytes;
                let slot = has_room.then(|| hands.take_empty(&self.space)).flatten()?;
                self.ledger.took(frame_bytes);
                Some(slot)
            };
            let slot = hands.take_whole_ready(&self.space).or_else(fresh)?;
            self.gave(zone, frame_bytes as u64);
            Some(slot)
        })
    }

    /// Frames that local zones can give to promoted pages, and all their frames.
    pub(crate) fn local_frames(&self) -> (u64, u64) {
        let levels = self.zone_levels();
        let frame_bytes = self.entry_bytes() as u64;
        self.zones.of_tier(Tier::Local).fold((0, 0), |(spare, all), zone| {
            let now = self.zone_now(zone, &levels[zone]);
            let more = now.free_frames.saturating_sub(now.low_frames);
            (spare + more, all + self.zones.size(zone).get() / frame_bytes)
        })
    }
}
