//! Reclaim of zones each by itself, beside the one list of all: which list a step works on
//! (`pagoda_core::zone::reclaim`), and how much is on it.
//!
//! Zones that are reclaimed by themselves have a hand and a queue each, and keep their own
//! watermarks. The threads are the same. If nothing of a zone can leave, pages of the others go: a
//! thread that needs a frame must never wait for one zone alone.

use std::sync::{Mutex, MutexGuard};

use pagoda_core::budget::watermark::Pressure;
use pagoda_core::zone::reclaim::{Lack, Reclaimers};

use crate::engine::Engine;
use crate::error::StopReason;
use crate::frames::zones::ZONES_MAX;
use crate::state::hand::Step;
use crate::store::Scratch;

/// The pages that age together: those of all zones, or those of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List(Option<usize>);

impl List {
    pub(super) const OF_ALL: Self = Self(None);

    /// The number of its hand.
    pub(super) fn number(self) -> usize {
        self.0.unwrap_or(0)
    }
}

impl Engine {
    /// Whether reclaim is to run: from the moment that free memory is below the low watermark until
    /// it is at the high one; with a list for each zone, until each zone is at its own.
    pub(crate) fn has_to_reclaim(&self, pressure: &mut Pressure) -> bool {
        let is_short = pressure.update(self.free());
        match &self.zones.reclaimers {
            None => is_short,
            Some(reclaimers) => {
                let lacks = self.zone_lacks();
                self.locked(reclaimers).look(is_short, &lacks[..self.zones.count()])
            }
        }
    }

    /// One step for the zone that needs it most. What can't leave of one zone leaves of another.
    pub(super) fn step_of_a_zone(&self, reclaimers: &Mutex<Reclaimers>, scratch: &mut Scratch) -> Step {
        let lacks = self.zone_lacks();
        let mut tried = 0;
        loop {
            let zone = self.locked(reclaimers).next(&lacks[..self.zones.count()], tried);
            let Some(zone) = zone else { return Step::Exhausted };
            let step = self.step_of(List(Some(zone)), scratch);
            if step != Step::Exhausted {
                return step;
            }
            self.rest(List(Some(zone)));
            tried |= 1 << zone;
        }
    }

    /// Nothing of a list can leave now.
    pub(super) fn rest(&self, list: List) {
        if let (Some(zone), Some(reclaimers)) = (list.0, &self.zones.reclaimers) {
            self.locked(reclaimers).rest(zone);
        }
    }

    /// The zones to evict from, as bits.
    pub(super) fn zones_of(&self, list: List) -> u64 {
        list.0.map_or_else(|| self.short_zones(), |zone| 1 << zone)
    }

    /// Bytes of a list's frames in the regions.
    pub(super) fn resident_of(&self, list: List) -> u64 {
        list.0.map_or_else(|| self.ledger.resident_bytes(), |zone| self.zones.resident_bytes_of(zone))
    }

    /// Bytes of a list's frames that are staged.
    pub(super) fn staged_of(&self, list: List) -> u64 {
        list.0.map_or_else(|| self.ledger.staged_bytes(), |zone| self.zones.staged_bytes_of(zone))
    }

    /// How far each zone is below its high watermark, in bytes.
    fn zone_lacks(&self) -> [Lack; ZONES_MAX] {
        let levels = self.zone_levels();
        let frame_bytes = self.entry_bytes() as u64;
        std::array::from_fn(|zone| {
            if zone >= self.zones.count() {
                return Lack { amount: 0, batch: 1 };
            }
            let now = self.zone_now(zone, &levels[zone]);
            Lack {
                amount: (now.high_frames * frame_bytes) as i64 - levels[zone].free_bytes,
                batch: (now.high_frames - now.low_frames) * frame_bytes,
            }
        })
    }

    fn locked<'a>(&self, reclaimers: &'a Mutex<Reclaimers>) -> MutexGuard<'a, Reclaimers> {
        reclaimers.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken))
    }
}
