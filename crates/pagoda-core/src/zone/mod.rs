//! From which zone the next frame is taken.
//!
//! A zone whose frames are used up sooner than another's is reclaimed sooner, and its pages are
//! evicted younger: an *age inversion*. The fair policy avoids it: each local zone has a *batch*,
//! the frames between its high watermark and its low one, and when one's batch is used up it is the
//! next one's turn. Then all of them are refilled. Remote zones have no part in this: they are a
//! spill for when no local zone has a frame to spare, and come before reclaim.
//!
//! An allocation is one pass over the zones or two. The *fair* pass looks at local zones and skips
//! those whose batch is used up; the *open* pass looks at all, whatever their batches. Both leave
//! each zone its low watermark. The [`policy`] says when each pass runs, and when batches are
//! refilled.
//!
//! **Threads.** [`Zones`] is plain state for one lock, and a [`FrameCache`](cache::FrameCache) for
//! each thread keeps threads away from it. The state is no atomics: a decision and its frame have
//! to change together, and the frames themselves are kept under a lock; a reset concerns several
//! batches at once, and two threads that reset one after the other would give the first zone more
//! than its share. Under the lock both are exact. It is held for two passes over at most
//! [`ZONES_MAX`] zones.
//!
//! This module must never allocate memory after `new` (it runs on the fault path), wait, or wake a
//! thread: an error is the request to wake reclaim, and waiting is the caller's.

pub mod cache;
pub mod cases;
pub mod dirty;
mod interleave;
pub mod levels;
pub mod policy;
pub mod reclaim;
pub mod tiering;

use std::fmt;
use std::num::NonZeroU8;

use crate::budget::watermark::Watermarks;
use crate::page::{BasePage, HUGE_FRAME};
use crate::size::Bytes;

pub use policy::ZonePolicy;

use interleave::Interleave;
use policy::Unserved;

/// The most zones of one [`Zones`]: a pass over them, a few nanoseconds for each, stays below a
/// microsecond.
pub const ZONES_MAX: usize = 64;

/// The frames that a zone can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Frames that are free.
    pub free_frames: u64,
    /// Frames that allocations leave to it.
    pub low_frames: u64,
    /// Reclaim lifts it to this: more than `low_frames`. The difference is its batch.
    pub high_frames: u64,
}

impl Zone {
    /// A zone of `base` pages of which nothing is taken.
    #[must_use]
    pub fn new(marks: &Watermarks, base: BasePage) -> Self {
        let base_bytes = base.bytes() as u64;
        let low_frames = marks.low.get().div_ceil(base_bytes);
        // At least one frame: `high` is twice `low`, and that is no less than a base page.
        let batch_frames = marks.high.saturating_sub(marks.low).get() / base_bytes;
        Self {
            free_frames: marks.budget().get() / base_bytes,
            low_frames,
            high_frames: low_frames + batch_frames,
        }
    }
}

impl Zone {
    /// The zone that is `part` of a `whole` budget, in frames of `frame_bytes`, with `free` of it
    /// free. Its watermarks are its part of the whole's, so that all zones are at theirs when the
    /// whole is; its batch is a frame at least.
    ///
    /// Panics if `whole` or `frame_bytes` is 0.
    #[must_use]
    pub fn of_part(marks: &Watermarks, part: Bytes, whole: Bytes, free: Bytes, frame_bytes: u64) -> Self {
        let frames = |mark: Bytes| {
            let bytes = u128::from(mark.get()) * u128::from(part.get()) / u128::from(whole.get());
            u64::try_from(bytes).unwrap_or(u64::MAX) / frame_bytes
        };
        let low_frames = frames(marks.low);
        Self {
            free_frames: free.get() / frame_bytes,
            low_frames,
            high_frames: frames(marks.high).max(low_frames + 1),
        }
    }
}

/// A zone's turn in huge frames is so many for the smallest of the local zones.
const HUGE_TURN: u64 = 4;

impl Zone {
    /// The zone of `bytes` for allocations of huge frames, where the smallest local one has `least`
    /// and it has `spare` bytes that a huge frame can be of. Turns are in proportion to the zones'
    /// sizes, up to rounding by an eighth at most: those of base frames may be shorter than one
    /// huge frame is long.
    ///
    /// Panics if `least` is 0.
    #[must_use]
    pub fn of_huge_frames(spare: Bytes, bytes: Bytes, least: Bytes) -> Self {
        let least = u128::from(least.get());
        let turn = (u128::from(HUGE_TURN) * u128::from(bytes.get()) + least / 2) / least;
        let high_frames = u64::try_from(turn).unwrap_or(u64::MAX).max(1);
        Self { free_frames: spare.get() / HUGE_FRAME as u64, low_frames: 0, high_frames }
    }
}

/// One zone of a [`Zones`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneId(usize);

impl ZoneId {
    /// Its place in order of preference, from 0: local zones, then remote ones.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// Frames of one zone that are the caller's now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The zone of the frames.
    pub zone: ZoneId,
    /// How many.
    pub frames: u32,
}

/// No zone has a frame above its low watermark. The caller that gets this wakes reclaim, once, and
/// may wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage;

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no zone, local or remote, has a frame above its low watermark: reclaim has to run")
    }
}

impl std::error::Error for Shortage {}

/// Counts of events so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that each zone gave, by [`ZoneId::index`]. Frames in a thread's cache are among them.
    pub allocated_frames: Vec<u64>,
    /// Times the local zones' batches were refilled.
    pub resets: u64,
    /// Passes over the zones.
    pub scans: u64,
    /// Zones that passes looked at.
    pub zone_visits: u64,
    /// Local zones that fair passes passed over because their batch was used up.
    pub skips: u64,
    /// Frames that remote zones gave.
    pub spilled_frames: u64,
    /// Allocations that failed, each of which wakes reclaim.
    pub wake_ups: u64,
}

/// A zone's part of the state.
#[derive(Clone, Copy, Debug)]
struct State {
    free: u64,
    low: u64,
    /// The rest of its turn. Used up if 0 or less: an open pass takes on below 0.
    batch: i64,
    /// A reset sets `batch` to this.
    full_batch: i64,
    /// Frames that were given and have not come back.
    held: u64,
}

impl State {
    fn new(zone: &Zone) -> Self {
        let Zone { free_frames, low_frames, high_frames } = *zone;
        assert!(low_frames < high_frames, "a zone with low {low_frames} and high {high_frames} has no batch");
        let full_batch = i64::try_from(high_frames - low_frames).expect("less than 2^63 frames");
        Self { free: free_frames, low: low_frames, batch: full_batch, full_batch, held: 0 }
    }

    fn is_used_up(&self) -> bool {
        self.batch <= 0
    }

    /// Whether it keeps its low watermark without the next frame.
    fn has_to_spare(&self) -> bool {
        self.free > self.low
    }
}

/// The zones that one allocator chooses from, and the rest of their turns.
#[derive(Clone, Debug)]
pub struct Zones {
    policy: ZonePolicy,
    /// Local ones first, in order of preference.
    zones: Vec<State>,
    local: usize,
    /// The turns of [`ZonePolicy::WeightedInterleave`].
    interleave: Interleave,
    counters: Counters,
}

impl Zones {
    /// Local and remote zones, each in order of preference, with full batches.
    ///
    /// Panics if there is no local zone, if there are more than [`ZONES_MAX`] in all, or if one's
    /// high watermark is not above its low one.
    #[must_use]
    pub fn new(policy: ZonePolicy, local: &[Zone], remote: &[Zone]) -> Self {
        let count = local.len() + remote.len();
        assert!(!local.is_empty() && count <= ZONES_MAX, "{count} zones, {} of them local", local.len());
        Self {
            policy,
            zones: local.iter().chain(remote).map(State::new).collect(),
            local: local.len(),
            interleave: Interleave::new(count),
            counters: Counters { allocated_frames: vec![0; count], ..Counters::default() },
        }
    }

    /// The same with weights for [`ZonePolicy::WeightedInterleave`], one of each zone; it is 1 if
    /// it is not said. No other policy uses them.
    ///
    /// Panics unless there are as many as zones.
    #[must_use]
    pub fn with_weights(mut self, weights: &[NonZeroU8]) -> Self {
        self.interleave.set(weights);
        self
    }

    /// Takes 1 to `most` frames of one zone: fewer than `most` where its batch or its low watermark
    /// end before, so that taking many at once changes no share. Out of turn it is one: the order
    /// of zones, and whether a local one has a frame to spare, may differ at the next.
    ///
    /// Panics if `most` is 0.
    pub fn allocate(&mut self, most: u32) -> Result<Grant, Shortage> {
        assert!(most > 0, "an allocation of no frames");
        let Some(index) = self.choose() else {
            self.counters.wake_ups += 1;
            return Err(Shortage);
        };
        let has_turn = self.policy.has_turns() && index < self.local;
        let zone = &mut self.zones[index];
        let turn = if has_turn && !zone.is_used_up() { zone.batch.unsigned_abs() } else { 1 };
        let frames = u64::from(most).min(zone.free - zone.low).min(turn);
        zone.free -= frames;
        zone.held += frames;
        zone.batch -= frames as i64;
        self.counters.allocated_frames[index] += frames;
        if index >= self.local {
            self.counters.spilled_frames += frames;
        }
        Ok(Grant { zone: ZoneId(index), frames: frames as u32 })
    }

    /// Frames come back to their zone. The rest of its turn stays as it is: the turn was taken.
    ///
    /// Panics, before anything changes, if the zone has not given as many.
    pub fn give_back(&mut self, grant: Grant) {
        let zone = &mut self.zones[grant.zone.0];
        let frames = u64::from(grant.frames);
        assert!(
            frames <= zone.held,
            "{frames} frames come back to a zone that has given {}: given back twice, or to another zone?",
            zone.held
        );
        zone.held -= frames;
        zone.free += frames;
    }

    /// Takes unused frames of a grant back, as if they had not been granted. Their zone has so much
    /// more of its turn, but no more than a whole one: another may have begun since.
    ///
    /// Panics, before anything changes, if the zone has not given as many.
    pub fn take_back(&mut self, unused: Grant) {
        self.give_back(unused);
        let Grant { zone: ZoneId(index), frames } = unused;
        let zone = &mut self.zones[index];
        zone.batch = (zone.batch + i64::from(frames)).min(zone.full_batch.max(zone.batch));
        self.counters.allocated_frames[index] -= u64::from(frames);
        if index >= self.local {
            self.counters.spilled_frames -= u64::from(frames);
        }
    }

    /// Updates the frames that `zone` can give, where that changes by more than allocation and
    /// giving back: a part of its memory has another use, its frames are reclaimed, or there is
    /// less of it. Its turn goes on; the next one is of the new length. Frames of such a zone need
    /// not be given back.
    ///
    /// Panics if its high watermark is not above its low one.
    pub fn observe(&mut self, zone: ZoneId, now: &Zone) {
        let state = &mut self.zones[zone.0];
        let State { free, low, full_batch, .. } = State::new(now);
        *state = State { free, low, full_batch, ..*state };
    }

    /// How many frames of a zone are free.
    #[must_use]
    pub fn free_frames(&self, zone: ZoneId) -> u64 {
        self.zones[zone.0].free
    }

    /// Every zone, local ones first, in order of preference.
    pub fn ids(&self) -> impl Iterator<Item = ZoneId> + use<> {
        (0..self.zones.len()).map(ZoneId)
    }

    /// The zone on whose second-chance list the pages in frames of `zone` age: its own, but one for
    /// all local zones under [`ZonePolicy::GlobalList`].
    #[must_use]
    pub fn list_of(&self, zone: ZoneId) -> ZoneId {
        if self.policy == ZonePolicy::GlobalList && zone.0 < self.local { ZoneId(0) } else { zone }
    }

    /// Counts of events so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The zone that gives the next frame.
    fn choose(&mut self) -> Option<usize> {
        if self.policy == ZonePolicy::WeightedInterleave {
            let preferred = self.interleave.next();
            if self.zones[preferred].has_to_spare() {
                (self.counters.scans, self.counters.zone_visits) =
                    (self.counters.scans + 1, self.counters.zone_visits + 1);
                return Some(preferred);
            }
        }
        if !self.policy.has_turns() {
            return self.open_pass();
        }
        let unserved = match self.fair_pass() {
            Ok(index) => return Some(index),
            Err(unserved) => unserved,
        };
        if self.policy.resets_after(unserved) {
            self.reset();
        } else if self.policy == ZonePolicy::Fair && self.local == self.zones.len() {
            // Without a reset or a remote zone an open pass would find the same.
            return None;
        }
        self.open_pass()
    }

    /// The first local zone with a turn left and a frame to spare. The baselines continue past the
    /// local zones, to no avail: remote zones are only looked at.
    fn fair_pass(&mut self) -> Result<usize, Unserved> {
        let Self { policy, zones, local, counters, .. } = self;
        counters.scans += 1;
        let end = if *policy == ZonePolicy::Fair { *local } else { zones.len() };
        let mut unserved = Unserved { skipped: false, any_batch_left: false };
        for (index, zone) in zones[..end].iter().enumerate() {
            counters.zone_visits += 1;
            let is_local = index < *local;
            if zone.is_used_up() {
                counters.skips += u64::from(is_local);
                unserved.skipped |= is_local;
                continue;
            }
            unserved.any_batch_left = true;
            if is_local && zone.has_to_spare() {
                return Ok(index);
            }
        }
        Err(unserved)
    }

    /// The first zone with a frame to spare.
    fn open_pass(&mut self) -> Option<usize> {
        self.counters.scans += 1;
        let found = self.zones.iter().position(State::has_to_spare);
        self.counters.zone_visits += found.map_or(self.zones.len(), |index| index + 1) as u64;
        found
    }

    /// A new turn for every local zone; the rest of the last one is dropped.
    fn reset(&mut self) {
        self.counters.resets += 1;
        for zone in &mut self.zones[..self.local] {
            zone.batch = zone.full_batch;
        }
    }
}

#[cfg(test)]
mod tests;
