//! What threads note about staged pages for the policy of tiers (`pagoda_core::zone::tiering`), and
//! moving the content of a staged page to a frame of another zone.
//!
//! A page changes zones only while it is staged whole and its entry's busy bit is taken: as when it
//! is stored, nothing else reads or writes it then. Its content is copied to a slot of the other
//! zone, and the entry names that slot from then on. This module must never move a page of which a
//! part is in a region, and never give up the old slot before the entry names the new one.
//!
//! Without a remote zone there are no tiers, and all this costs a test of that.

use std::sync::atomic::{AtomicU32, Ordering};

use pagoda_core::zone::tiering::{self, Seen, TICK_MS};
use pagoda_linux::arena::Slot;
use pagoda_linux::process::thread::ran_ns;

use crate::engine::Engine;
use crate::frames::pool::all_of_slot;
use crate::stats::counters::Counter;

/// A note on a slot: the lowest bits of the tick, and what was done then.
const TICK: u32 = 0xffff;
const STAGED: u32 = 1 << 16;
const SAMPLED: u32 = 1 << 17;
const DEMOTED: u32 = 1 << 18;
/// Demoted to make room for a hot page, and not by reclaim.
const MADE_ROOM: u32 = 1 << 19;

/// The tick that it is now.
pub(crate) fn tick() -> u64 {
    ran_ns() / (u64::from(TICK_MS) * 1_000_000)
}

#[cfg(test)]
#[path = "tiers_test.rs"]
mod tests;

/// Local zones, or remote ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    Local,
    Remote,
}

/// The notes of an engine with local and remote zones.
pub(crate) struct Tiers {
    /// For each slot, when the page in it was staged or demoted; 0 if that is not known. It is
    /// written with the busy bit of the page's entry.
    notes: Box<[AtomicU32]>,
    /// Pages that may still be promoted in this tick.
    may_promote: AtomicU32,
    /// Counts of [`Seen`], since it was taken.
    hot: AtomicU32,
    promoted: AtomicU32,
    demoted: AtomicU32,
    regretted: AtomicU32,
}

impl Tiers {
    pub(super) fn new(slots: u32) -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            notes: (0..slots).map(|_| zero()).collect(),
            may_promote: zero(),
            hot: zero(),
            promoted: zero(),
            demoted: zero(),
            regretted: zero(),
        }
    }

    fn note(&self, slot: u32, what: u32) {
        let note = if what == 0 { 0 } else { what | tick() as u32 & TICK };
        self.notes[slot as usize].store(note, Ordering::Relaxed);
    }

    /// The page in this slot was put there for another reason than to see whether it is used.
    pub(super) fn forget(&self, slot: u32) {
        self.note(slot, 0);
    }

    /// When the page in this slot was staged or demoted, if that is known.
    pub(crate) fn since(&self, slot: u32) -> Option<u16> {
        let note = self.notes[slot as usize].load(Ordering::Relaxed);
        (note != 0).then_some((note & TICK) as u16)
    }

    /// The page in this slot was staged to see whether it comes back. If another has the slot by
    /// now, the note is about that one: it comes back whole, or is promoted in vain.
    pub(crate) fn note_sampled(&self, slot: u32) {
        self.note(slot, SAMPLED);
    }

    /// So many pages may be promoted from now on.
    pub(crate) fn may_promote(&self, pages: u32) {
        self.may_promote.store(pages, Ordering::Relaxed);
    }

    /// The counts since the last call.
    pub(crate) fn take_seen(&self) -> Seen {
        let [hot, promoted, demoted, regretted] = [&self.hot, &self.promoted, &self.demoted, &self.regretted]
            .map(|count| count.swap(0, Ordering::Relaxed));
        Seen { hot, promoted, demoted, regretted, is_round_over: false }
    }

    /// The page in a remote zone's slot is wanted. Whether it is hot, and may be promoted.
    fn comes_back(&self, slot: u32) -> bool {
        let note = self.notes[slot as usize].load(Ordering::Relaxed);
        let (now, then) = (tick() as u16, (note & TICK) as u16);
        if note & DEMOTED != 0 {
            // One touch does not show that it is hot.
            if note & MADE_ROOM != 0 && tiering::is_regretted(now, then) {
                self.regretted.fetch_add(1, Ordering::Relaxed);
            }
            return false;
        }
        if note == 0 || !tiering::is_hot(now, then) {
            return false;
        }
        self.hot.fetch_add(1, Ordering::Relaxed);
        let one_less = |pages: u32| pages.checked_sub(1);
        self.may_promote.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

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
        let is_noted =
            |tiers: &Tiers| tiers.notes[slot as usize].load(Ordering::Relaxed) & (SAMPLED | DEMOTED) != 0;
        self.zones.tiers().is_some_and(is_noted)
    }

    /// The page in `slot` was staged, by the holder of its busy bit.
    pub(crate) fn note_staged(&self, slot: u32) {
        if let Some(tiers) = self.zones.tiers() {
            tiers.note(slot, STAGED);
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
        tiers.promoted.fetch_add(1, Ordering::Relaxed);
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
        if makes_room {
            tiers.note(moved.slot, DEMOTED | MADE_ROOM);
            tiers.demoted.fetch_add(1, Ordering::Relaxed);
        } else {
            tiers.note(moved.slot, DEMOTED);
        }
        self.counters.add(Counter::ZonesDemotedBytes, self.entry_bytes() as u64);
        Some(moved)
    }

    fn move_to(&self, slot: u32, tier: Tier, low_part: u64) -> Option<Moved> {
        let all = all_of_slot(&self.space);
        // A frame in the place of a hole would hide what is in the file, or hold old bytes.
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
