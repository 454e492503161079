//! Turns that threads have been granted in advance, so that most allocations take no lock of whose turn it is.
//!
//! A cache holds turns, and no frames: the right to so many frames of one zone before it is the next one's turn. What it holds takes no
//! memory, counts against no budget, is missing at no watermark, and lies idle while nobody waits for it. What a zone has is asked when
//! a turn is used: of a zone that has no frame above its low watermark by then, be it that others were quicker or that it was made
//! smaller, the turn goes back, with the rest of the cache, and the zones are asked anew. All caches together hold less than a quarter
//! of the smallest local zone's batch ([`cache_frames`]), and by no more can the shares of what threads got differ from those of the
//! policy. Remote zones, and policies without turns, are asked each time.
//!
//! Nobody has to give back what he has cached: the reclaimer empties what was not used between two of its looks, whether its thread
//! sleeps or has ended. This module must never take a frame, nor wait.

use std::sync::Mutex;

use pagoda_core::zone as turns;
use pagoda_core::zone::cache::{FrameCache, cache_frames};
use pagoda_core::zone::levels::Level;
use pagoda_core::zone::{Grant, Shortage};

use crate::engine::Engine;
use crate::frames::turn_caches::Taker;
use crate::frames::zones::ZONES_MAX;

impl Engine {
    /// The zone whose turn it is: by what was granted to `taker` before, else by what all zones have now.
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
            // What others have cached is of zones that have nothing to give.
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

    /// Empties the caches that nobody has used since this was called last.
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
