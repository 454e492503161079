//! Frames that one thread has taken in advance, so that most of its allocations take no lock.
//!
//! A cache is refilled with frames of one zone at a time, and never beyond that zone's turn, so that caches change no
//! share by more than what they hold. What they hold, nobody else can use, and no watermark sees: that is why they are
//! small ([`cache_frames`]). A thread that ends, or has nothing to do for long, gives back what [`FrameCache::drain`]
//! says. This module must never take a lock or give frames back by itself: the caller's zones do.

use super::{Grant, Zone, ZoneId};

/// The most frames of one refill: a lock and a pass for every 16th allocation cost about a nanosecond for each.
pub const CACHE_FRAMES_MAX: u32 = 16;

/// The caches of all threads together may take this part of the smallest local batch.
const BATCH_SHARE: u64 = 4;

/// How many frames each of `threads` threads may take at once: 1, which caches nothing, to [`CACHE_FRAMES_MAX`].
///
/// One of them is handed out at once, so that the caches hold at most `threads * (cache_frames - 1)` frames: less than a
/// quarter of the smallest batch of the `local` zones. That is how far what threads got can be from what the zones gave,
/// and how much can lie idle in caches while others find no frame.
#[must_use]
pub fn cache_frames(local: &[Zone], threads: u32) -> u32 {
    let smallest = local.iter().map(|zone| zone.high_frames - zone.low_frames).min().unwrap_or(0);
    let each = smallest / BATCH_SHARE / u64::from(threads.max(1));
    each.clamp(1, u64::from(CACHE_FRAMES_MAX)) as u32
}

/// One thread's frames.
#[derive(Debug, Default)]
pub struct FrameCache {
    held: Option<Grant>,
}

impl FrameCache {
    /// A frame of the zone that is returned. If there is none left, `refill` takes some from the zones; it is called at
    /// most once, and its error is this one's.
    ///
    /// Panics if `refill` grants no frames.
    pub fn allocate<E>(&mut self, refill: impl FnOnce() -> Result<Grant, E>) -> Result<ZoneId, E> {
        let Grant { zone, frames } = match self.held.take() {
            Some(held) => held,
            None => refill()?,
        };
        assert!(frames > 0, "a refill of no frames");
        self.held = (frames > 1).then_some(Grant { zone, frames: frames - 1 });
        Ok(zone)
    }

    /// All it holds, to be given back.
    pub fn drain(&mut self) -> Option<Grant> {
        self.held.take()
    }
}

#[cfg(test)]
#[path = "cache_test.rs"]
mod tests;
