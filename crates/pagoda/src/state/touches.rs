//! The order in which the blocks of an image were touched first.
//!
//! Any number of threads note touches, without a lock: each block is noted once. There is room for
//! as many as a recorded working set may have; later touches are left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use pagoda_image::{TOUCHES_MOST, Touch};
use pagoda_linux::mem::words::zeroed_words;

/// Bits of a block's number in a note; the time is above them.
const BLOCK_BITS: u32 = 32;

/// The touches of one image.
pub(crate) struct Touches {
    since: Instant,
    blocks: u64,
    /// A bit for each block: it was noted.
    noted: Arc<[AtomicU64]>,
    /// A bit for each block: the image itself gave its content. A prefetched block may be damaged
    /// there.
    read: Arc<[AtomicU64]>,
    /// The notes in their order: time and block. 0 where one is being written.
    notes: Arc<[AtomicU64]>,
    count: AtomicUsize,
}

impl Touches {
    /// None yet, of an image of so many blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        let words = |count: u64| zeroed_words(count as usize);
        Self {
            since: Instant::now(),
            blocks,
            noted: words(blocks.div_ceil(64)),
            read: words(blocks.div_ceil(64)),
            notes: words(blocks.min(TOUCHES_MOST as u64)),
            count: AtomicUsize::new(0),
        }
    }

    /// Notes the touch of a block, if it is the first.
    pub(crate) fn note(&self, block: u64) {
        if block >= self.blocks || !set(&self.noted, block) {
            return;
        }
        let Ok(block) = u32::try_from(block) else { return };
        let at_us = u32::try_from(self.since.elapsed().as_micros()).unwrap_or(u32::MAX).max(1);
        if let Some(note) = self.notes.get(self.count.fetch_add(1, Ordering::Relaxed)) {
            note.store(u64::from(at_us) << BLOCK_BITS | u64::from(block), Ordering::Release);
        }
    }

    /// Notes the touch of a block that was read from the image.
    pub(crate) fn note_read(&self, block: u64) {
        if block < self.blocks {
            set(&self.read, block);
            self.note(block);
        }
    }

    /// Whether the block was read from the image.
    pub(crate) fn was_read(&self, block: u64) -> bool {
        let word = self.read.get((block / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (block % 64) & 1 == 1)
    }

    /// All touches so far, in their order.
    pub(crate) fn all(&self) -> Vec<Touch> {
        let count = self.count.load(Ordering::Relaxed).min(self.notes.len());
        let notes = self.notes[..count].iter().map(|note| note.load(Ordering::Acquire));
        let touch = |note: u64| Touch { block: u64::from(note as u32), at_us: (note >> BLOCK_BITS) as u32 };
        notes.filter(|note| *note != 0).map(touch).collect()
    }
}

/// Sets the bit of a block, which there is. False if it was set.
fn set(bits: &[AtomicU64], block: u64) -> bool {
    let (word, bit) = (&bits[(block / 64) as usize], 1 << (block % 64));
    // Most touches of a warm image are not the first, and change nothing.
    word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_touch_of_each_block_is_noted_in_order() {
        let touches = Touches::new(100);
        for block in [7, 99, 7, 0, 99, 100, 1 << 40, 42] {
            touches.note(block);
        }
        let blocks: Vec<_> = touches.all().iter().map(|touch| touch.block).collect();
        assert_eq!(blocks, [7, 99, 0, 42]);
        assert!(touches.all().is_sorted_by_key(|touch| touch.at_us));
        touches.note_read(99);
        touches.note_read(100);
        let read: Vec<_> = (0..200).filter(|block| touches.was_read(*block)).collect();
        assert_eq!((read, touches.all().len()), (vec![99], 4));
    }
}
