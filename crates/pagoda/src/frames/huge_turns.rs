//! The zone that gives the next huge frame, and the zone of a huge frame in a region.
//!
//! Huge frames go by the same policy as base frames, with turns of their own. A zone gives one only
//! if it keeps its high watermark without it, as huge frames are for plenty of room. A remote zone
//! gives one only if no local zone has a base frame to spare either. This module must never take a
//! frame, nor wake reclaim for one.

use pagoda_core::page::HUGE_FRAME;
use pagoda_core::page_entry::Word;
use pagoda_core::size::Bytes;
use pagoda_core::zone as turns;
use pagoda_core::zone::levels::Level;

use crate::engine::Engine;
use crate::frames::zones::ZONES_MAX;

impl Engine {
    /// The zone in turn for a huge frame that has one ready or room for it. None if no zone can
    /// give one.
    pub(crate) fn zone_for_huge(&self) -> Option<usize> {
        let Some(turns) = &self.zones.huge_turns else { return Some(0) };
        let levels = self.zone_levels();
        let is_remote = |zone: usize| self.zones.parts[zone].is_remote;
        let has_base_frames = |zone: usize| {
            let now = self.zone_now(zone, &levels[zone]);
            now.free_frames > now.low_frames
        };
        let spills = !(0..self.zones.count()).any(|zone| !is_remote(zone) && has_base_frames(zone));
        let local = (0..self.zones.count()).filter(|zone| !is_remote(*zone));
        let least = local.map(|zone| self.zones.size(zone)).min().expect("a budget has a local zone");
        let now = |zone: usize| {
            let may_give = (spills || !is_remote(zone)) && self.has_huge_frame(zone, &levels[zone]);
            let spare = if may_give { self.spare_for_huge(zone, &levels[zone]) } else { Bytes::ZERO };
            turns::Zone::of_huge_frames(spare, self.zones.size(zone), least)
        };
        self.take_turn(turns, now, 1).ok().map(|grant| grant.zone.index())
    }

    /// Whether a zone has a ready huge frame, or room for one: its free memory may be in base
    /// frames.
    fn has_huge_frame(&self, zone: usize, level: &Level) -> bool {
        level.room_bytes >= HUGE_FRAME as i64 || self.huge.ready_bytes_of(zone) > 0
    }

    /// The bytes that a zone can give away above its high watermark.
    fn spare_for_huge(&self, zone: usize, level: &Level) -> Bytes {
        let high_bytes = self.zone_now(zone, level).high_frames * self.entry_bytes() as u64;
        Bytes::new(level.free_bytes.max(0) as u64).saturating_sub(Bytes::new(high_bytes))
    }

    /// A huge frame of a zone was taken.
    pub(crate) fn gave_huge(&self, zone: usize) {
        if self.zones.are_several() {
            self.gave(zone, HUGE_FRAME as u64);
        }
    }

    /// The zone of a huge frame with these entries: the zone of most of them, the first if several
    /// tie. The kernel may have collapsed base pages of several zones, on the node of most of
    /// those.
    pub(crate) fn zone_of_huge(&self, words: &[Word]) -> usize {
        if !self.zones.are_several() {
            return 0;
        }
        let mut counts = [0; ZONES_MAX];
        words.iter().for_each(|word| counts[word.zone()] += 1);
        let most = counts.iter().copied().max().unwrap_or(0);
        counts.iter().position(|count| *count == most).unwrap_or(0)
    }

    /// Whether base pages with these entries may become one huge frame of a zone: if that keeps its
    /// high watermark.
    pub(crate) fn has_room_to_be_huge(&self, words: &[Word]) -> bool {
        if !self.zones.are_several() {
            return true;
        }
        let zone = self.zone_of_huge(words);
        self.spare_for_huge(zone, &self.zone_levels()[zone]) >= Bytes::new(HUGE_FRAME as u64)
    }

    /// Base pages with these entries, each wholly resident, are in a huge frame now. Returns its
    /// zone.
    pub(crate) fn became_huge(&self, words: &[Word]) -> usize {
        let zone = self.zone_of_huge(words);
        let entry_bytes = self.entry_bytes() as i64;
        for word in words.iter().filter(|word| word.zone() != zone) {
            self.zones.in_regions(word.zone(), -entry_bytes);
            self.zones.in_regions(zone, entry_bytes);
        }
        zone
    }
}

#[cfg(test)]
#[path = "huge_turns_test.rs"]
mod tests;
