//! Turns that threads have been granted in advance, so that most allocations don't take the lock of
//! the turns.
//!
//! A cache holds turns, and no frames: the right to so many frames of one zone before the next
//! zone's turn. A cached turn takes no memory, counts against no budget, and lowers no watermark.
//! Left unused, it makes no thread wait. The zone is checked when a turn is used. If it has no
//! frame above its low watermark by then, because others were quicker or it shrank, the turn goes
//! back with the rest of the cache, and the zones are asked anew. All caches together hold less
//! than a quarter of the smallest local zone's batch ([`cache_frames`]). That bounds how far the
//! shares of threads can differ from those of the policy. Remote zones, and policies without turns,
//! are asked each time.
//!
//! No thread has to give its cached turns back: the reclaimer empties caches that were not used
//! between two of its looks, even those of ended threads. This module must never take a frame, nor
//! wait.

use std::sync::Mutex;

use pagoda_core::zone as turns;
use pagoda_core::zone::cache::{FrameCache, cache_frames};
use pagoda_core::zone::levels::Level;
use pagoda_core::zone::{Grant, Shortage};

use crate::engine::Engine;
use crate::frames::turn_caches::Taker;
use crate::frames::zones::ZONES_MAX;

impl Engine {
    /// The zone in turn: by an earlier grant to `taker`, else by the current levels of all zones.
    pub(crate) fn zone_in_turn(
        &self,
        turns: &Mutex<turns::Zones>,
        taker: Taker,
        levels: &[Level; ZONES_MAX],
    ) -> Result<usize, Shortage> {
        let now = |zone: usize| self.zone_now(zone, &levels[zone]);
        let caches = &self.zones.caches;
        let cache = caches.of(taker);
        if let Some(zone) = cache.and_then(FrameCache::take) {
            let turns::Zone { free_frames, low_frames, .. } = now(zone.index());
            if free_frames > low_frames {
                return Ok(zone.index());
            }
            self.take_turns_back(turns, [Grant { zone, frames: 1 }]);
            self.take_turns_back(turns, cache.and_then(FrameCache::drain));
        }
        let now: [turns::Zone; ZONES_MAX] =
            std::array::from_fn(|zone| if zone < self.zones.count() { now(zone) } else { NONE });
        let most = match cache {
            Some(_) => cache_frames(&now[..self.zones.local], caches.caches.len() as u32),
            None => 1,
        };
        let granted = self.take_turn(turns, |zone| now[zone], most);
        let Ok(Grant { zone, frames }) = granted else {
            // Other caches hold turns of zones that have nothing to give.
            self.drain_turns();
            return Err(Shortage);
        };
        let rest = Grant { zone, frames: frames - 1 };
        self.take_turns_back(turns, cache.and_then(|cache| cache.keep(rest)));
        Ok(zone.index())
    }

    fn take_turns_back(&self, turns: &Mutex<turns::Zones>, unused: impl IntoIterator<Item = Grant>) {
        for grant in unused {
            self.turns(turns).take_back(grant);
        }
    }

    /// Empties all caches.
    pub(crate) fn drain_turns(&self) {
        self.drain_by(FrameCache::drain);
    }

    /// Empties the caches that were not used since the last call.
    pub(crate) fn drain_idle_turns(&self) {
        self.drain_by(FrameCache::drain_if_idle);
    }

    fn drain_by(&self, drain: impl Fn(&FrameCache) -> Option<Grant>) {
        if let Some(turns) = &self.zones.turns {
            self.take_turns_back(turns, self.zones.caches.caches.iter().filter_map(drain));
        }
    }
}

/// In place of a zone that there is not.
const NONE: turns::Zone = turns::Zone { free_frames: 0, low_frames: 0, high_frames: 1 };

#[cfg(test)]
#[path = "turns_test.rs"]
mod tests;
