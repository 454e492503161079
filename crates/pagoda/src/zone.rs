//! The frames of one kind: which slots of the arena are empty, and which hold a frame that is ready to be used.
//!
//! A slot is in one of four hands: *empty* (an address without a frame, in the buddy), *ready* (its frame holds nobody's
//! content any more, but may still hold the bytes: it is cleared or overwritten before it goes anywhere), backing an
//! entry, or held by a mover. The zone must never look into a slot, and never hand one to two.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::buddy::Buddy;
use pagoda_linux::space::{Slot, Space};

/// Base pages that one batch of reclaim moves out together: one trip to the kernel for 512 KiB of 64 KiB pages costs
/// 10 µs, eight trips cost 34 µs.
pub(crate) const BATCH_ORDER: u32 = 3;

struct Hands {
    empty: Buddy,
    ready: Vec<u32>,
}

/// A zone's slots. Its lock is the innermost of the engine: nothing is called with it held.
pub(crate) struct Zone {
    hands: Mutex<Hands>,
    ready: AtomicU64,
}

impl Zone {
    /// `slots` empty ones.
    pub(crate) fn new(slots: u32) -> Self {
        // Room for every slot, so that giving a frame back never allocates; memory is taken as it fills.
        let ready = Vec::with_capacity(slots as usize);
        Self { hands: Mutex::new(Hands { empty: Buddy::new(slots), ready }), ready: AtomicU64::new(0) }
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        self.hands.lock().expect("the zone's lock is held for moments that can't panic")
    }

    /// How many frames are ready.
    pub(crate) fn ready_frames(&self) -> u64 {
        self.ready.load(Ordering::Relaxed)
    }

    /// A frame that is ready.
    pub(crate) fn take_ready(&self, space: &Space) -> Option<Slot> {
        let index = self.hands().ready.pop()?;
        self.ready.fetch_sub(1, Ordering::Relaxed);
        Some(space.claim_slot(index))
    }

    /// An empty slot: writing to it takes fresh memory from the kernel.
    pub(crate) fn take_empty(&self, space: &Space) -> Option<Slot> {
        self.hands().empty.alloc(0).map(|index| space.claim_slot(index))
    }

    /// `1 << order` empty slots that follow each other.
    pub(crate) fn take_empty_run(&self, space: &Space, order: u32) -> Option<Vec<Slot>> {
        let first = self.hands().empty.alloc(order)?;
        Some((first..first + (1 << order)).map(|index| space.claim_slot(index)).collect())
    }

    /// The frame of `slot` holds nobody's content any more.
    pub(crate) fn put_ready(&self, space: &Space, slot: Slot) {
        let index = space.release_slot(slot);
        self.hands().ready.push(index);
        self.ready.fetch_add(1, Ordering::Relaxed);
    }

    /// The frame of `slot` has gone elsewhere.
    pub(crate) fn put_empty(&self, space: &Space, slot: Slot) {
        let index = space.release_slot(slot);
        self.hands().empty.free(index, 0);
    }
}
