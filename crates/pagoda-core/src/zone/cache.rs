//! Frames that one thread has been granted in advance, so that most of its allocations take no
//! lock.
//!
//! A cache is refilled with frames of one zone at a time, and never beyond that zone's turn, so
//! that caches change no share by more than the frames in them. Frames in a cache are granted:
//! [`Zones`](super::Zones) can't grant them to another thread. So caches are small
//! ([`cache_frames`]). A cache is one word, changed by compare-and-swap, so that any thread can
//! empty it ([`FrameCache::drain`]): its own thread may have ended, or have nothing to do. This
//! module must never take a lock or give frames back by itself: the caller's zones do.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Grant, Zone, ZoneId};

/// The most frames of one refill: a lock and a pass for every 16th allocation cost about a
/// nanosecond for each.
pub const CACHE_FRAMES_MAX: u32 = 16;

/// The caches of all threads together may take this part of the smallest local batch.
const BATCH_SHARE: u64 = 4;

/// How many frames each of `threads` threads may take at once: 1, which caches nothing, to
/// [`CACHE_FRAMES_MAX`].
///
/// One of them is handed out at once, so that the caches hold at most
/// `threads * (cache_frames - 1)` frames: less than a quarter of the smallest batch of the `local`
/// zones. That bounds how far the threads' frames can differ from the zones' shares, and how much
/// can lie idle in caches while others find no frame.
#[must_use]
pub fn cache_frames(local: &[Zone], threads: u32) -> u32 {
    let smallest = local.iter().map(|zone| zone.high_frames - zone.low_frames).min().unwrap_or(0);
    let each = smallest / BATCH_SHARE / u64::from(threads.max(1));
    each.clamp(1, u64::from(CACHE_FRAMES_MAX)) as u32
}

/// The word that a cache is: an atomic of the standard library or of a model checker.
pub trait Cell {
    /// The word.
    fn get(&self) -> u64;
    /// Replaces it, if it is `from`. The word is all the state there is, so that it need not order
    /// other memory.
    fn change(&self, from: u64, to: u64) -> bool;
}

impl Cell for AtomicU64 {
    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
    fn change(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A thread took from it, or refilled it, since it was last checked for being idle.
const USED: u64 = 1 << 63;
/// How many frames it holds, below the bits of their zone.
const FRAMES_BITS: u32 = 32;

fn word_of(grant: Grant) -> u64 {
    USED | (grant.zone.0 as u64) << FRAMES_BITS | u64::from(grant.frames)
}

fn grant_of(word: u64) -> Option<Grant> {
    let (zone, frames) = ((word & !USED) >> FRAMES_BITS, word as u32);
    (frames > 0).then_some(Grant { zone: ZoneId(zone as usize), frames })
}

/// One thread's frames, in one word: another thread may share it, or take all that is in it away.
#[derive(Debug)]
// On a line of its own: no false sharing with other threads' caches.
#[repr(align(64))]
pub struct FrameCache<C = AtomicU64> {
    word: C,
}

/// An empty one.
impl Default for FrameCache {
    fn default() -> Self {
        Self::new(AtomicU64::new(0))
    }
}

impl<C: Cell> FrameCache<C> {
    /// An empty cache, of a word that is 0.
    pub const fn new(word: C) -> Self {
        Self { word }
    }

    /// Changes the word to `to` of its grant.
    fn update(&self, to: impl Fn(u64, Grant) -> Option<u64>) -> Option<Grant> {
        loop {
            let word = self.word.get();
            let grant = grant_of(word)?;
            if self.word.change(word, to(word, grant)?) {
                return Some(grant);
            }
        }
    }

    /// The frames in it just now.
    pub fn held(&self) -> Option<Grant> {
        grant_of(self.word.get())
    }

    /// A frame of the zone that is returned. None if there is none left.
    pub fn take(&self) -> Option<ZoneId> {
        self.update(|word, _| Some((word | USED) - 1)).map(|grant| grant.zone)
    }

    /// Keeps `grant` for later. A grant that it can't keep, because it holds one already, is
    /// returned: the caller gives it back.
    #[must_use]
    pub fn keep(&self, grant: Grant) -> Option<Grant> {
        if grant.frames == 0 {
            return None;
        }
        loop {
            let word = self.word.get();
            if grant_of(word).is_some() {
                return Some(grant);
            }
            if self.word.change(word, word_of(grant)) {
                return None;
            }
        }
    }

    /// A frame of the zone that is returned. If there is none left, `refill` takes some from the
    /// zones; it is called at most once, and its error is this one's. Frames that can't be kept are
    /// given to `give_back`.
    ///
    /// Panics if `refill` grants no frames.
    pub fn allocate<E>(
        &self,
        refill: impl FnOnce() -> Result<Grant, E>,
        give_back: impl FnOnce(Grant),
    ) -> Result<ZoneId, E> {
        if let Some(zone) = self.take() {
            return Ok(zone);
        }
        let Grant { zone, frames } = refill()?;
        assert!(frames > 0, "a refill of no frames");
        if let Some(rest) = self.keep(Grant { zone, frames: frames - 1 }) {
            give_back(rest);
        }
        Ok(zone)
    }

    /// All it holds, to be given back.
    pub fn drain(&self) -> Option<Grant> {
        self.update(|_, _| Some(0))
    }

    /// The same if no thread has used it since the last call of this.
    pub fn drain_if_idle(&self) -> Option<Grant> {
        let word = self.word.get();
        if word & USED != 0 {
            // A thread that changes it meanwhile has used it, and leaves the bit set.
            self.word.change(word, word & !USED);
            return None;
        }
        self.update(|word, _| (word & USED == 0).then_some(0))
    }
}

#[cfg(test)]
#[path = "cache_test.rs"]
mod tests;
