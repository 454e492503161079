//! The zone's huge frames: which slots of the huge arena are empty, which hold a frame of zeroes, and which one that still
//! holds what somebody had; and where frames were broken.
//!
//! A frame goes from hand to hand by its number only. The pool must never look into one, and never hand a used frame to
//! anybody who does not clear it: there is no way to take it for a cleared one.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagoda_core::clear::{Order, Target};
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::rebuild::Broken;
use pagoda_linux::huge_arena::HugeSlot;
use pagoda_linux::space::Space;

use crate::engine::HANDLERS_MAX;

/// How far a frame is cleared, by who gave way to other faults meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) order: Order,
    pub(crate) target: Target,
    /// Where to go on.
    pub(crate) step: usize,
    /// How long it took so far.
    pub(crate) took_ns: u64,
}

#[derive(Default)]
struct Hands {
    empty: Vec<u32>,
    zeroed: Vec<u32>,
    used: Vec<u32>,
    /// Used frames of which a part is cleared: no more than there are who clear at once, as each goes on with one before it begins another.
    begun: Vec<(u32, Begun)>,
    /// By address, the one that was looked at longest ago first.
    broken: VecDeque<(usize, Broken)>,
}

/// Ready and empty slots of one zone. Its lock is an innermost one: nothing is called with it held.
pub(crate) struct HugePool {
    hands: Mutex<Hands>,
    slots: u32,
    /// Frames that are kept ready at most, of each kind.
    most: usize,
    ready: AtomicU64,
    /// Whether any fault wanted a frame yet: before that none is got ready.
    asked: AtomicBool,
    /// Frames that came to their place in OS pages since the last that came whole.
    torn: AtomicU32,
}

/// The share of the budget that may lie ready as huge frames of one kind: one part in this.
const READY_SHARE: usize = 8;

/// The most of them: 64 MiB.
const READY_MOST: usize = 32;

/// Frames in a row that may come in OS pages before none is put ahead of anybody any more.
const TORN_MOST: u32 = 8;

/// Places that are remembered at most, 2 GiB of them; each frame that is broken beyond that takes the place of the oldest.
const BROKEN_MOST: usize = 1024;

impl HugePool {
    /// `slots` empty ones.
    pub(crate) fn new(slots: u32) -> Self {
        // Room for all, so that giving a frame back never allocates.
        let room = || Vec::with_capacity(slots as usize);
        let hands = Hands {
            empty: (0..slots).rev().collect(),
            zeroed: room(),
            used: room(),
            begun: Vec::with_capacity(HANDLERS_MAX),
            broken: VecDeque::new(),
        };
        let most = (slots as usize / READY_SHARE).clamp(1, READY_MOST);
        Self {
            hands: Mutex::new(hands),
            slots,
            most,
            ready: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            torn: AtomicU32::new(0),
        }
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        self.hands.lock().expect("the pool's lock is held for moments that can't panic")
    }

    /// Whether there can be huge frames at all.
    pub(crate) fn is_on(&self) -> bool {
        self.slots > 0
    }

    /// A frame came to its place, as one huge page or not.
    pub(crate) fn note_came(&self, whole: bool) {
        if whole {
            self.torn.store(0, Ordering::Relaxed);
        } else {
            self.torn.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether frames come as huge pages: not where the kernel makes none, which is not asked again once it is clear.
    pub(crate) fn come_whole(&self) -> bool {
        self.is_on() && self.torn.load(Ordering::Relaxed) < TORN_MOST
    }

    /// A fault wants a frame.
    pub(crate) fn note_asked(&self) {
        // Most find it noted, and leave the line to all who read it.
        if !self.was_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Bytes of frames that are ready, cleared or not.
    pub(crate) fn ready_bytes(&self) -> u64 {
        self.ready.load(Ordering::Relaxed) * HUGE_FRAME as u64
    }

    fn taken(&self, space: &Space, index: Option<u32>) -> Option<HugeSlot> {
        let index = index?;
        self.ready.fetch_sub(1, Ordering::Relaxed);
        Some(space.claim_huge(index))
    }

    /// A frame of zeroes.
    pub(crate) fn take_zeroed(&self, space: &Space) -> Option<HugeSlot> {
        let index = self.hands().zeroed.pop();
        self.taken(space, index)
    }

    /// A frame that must be cleared before anybody gets it, and what of that is done: one that somebody began with, if there is any.
    pub(crate) fn take_used(&self, space: &Space) -> Option<(HugeSlot, Option<Begun>)> {
        let mut hands = self.hands();
        let begun = hands.begun.pop();
        let index = match begun {
            Some((index, _)) => Some(index),
            None => hands.used.pop(),
        };
        drop(hands);
        Some((self.taken(space, index)?, begun.map(|(_, begun)| begun)))
    }

    /// A part of the frame of `slot` is cleared.
    pub(crate) fn put_begun(&self, space: &Space, slot: HugeSlot, begun: Begun) {
        let index = space.release_huge(slot);
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.hands().begun.push((index, begun));
    }

    /// A slot without a frame.
    pub(crate) fn take_empty(&self, space: &Space) -> Option<HugeSlot> {
        let index = self.hands().empty.pop()?;
        Some(space.claim_huge(index))
    }

    /// The frame of `slot` is all zero.
    pub(crate) fn put_zeroed(&self, space: &Space, slot: HugeSlot) {
        let index = space.release_huge(slot);
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.hands().zeroed.push(index);
    }

    /// The frame of `slot` holds what nobody wants any more.
    pub(crate) fn put_used(&self, space: &Space, slot: HugeSlot) {
        let index = space.release_huge(slot);
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.hands().used.push(index);
    }

    /// The frame of `slot` has gone elsewhere.
    pub(crate) fn put_empty(&self, space: &Space, slot: HugeSlot) {
        let index = space.release_huge(slot);
        self.hands().empty.push(index);
    }

    /// Whether another used frame is worth keeping.
    pub(crate) fn may_keep_used(&self) -> bool {
        let hands = self.hands();
        hands.used.len() + hands.begun.len() < self.most
    }

    /// Whether half of the frames that may be cleared ahead are gone. Who clears looks by itself ten times a second, and a move interrupts
    /// the processor that it clears on: it is woken when the other half may not last until then, and not for each frame.
    pub(crate) fn is_low(&self) -> bool {
        self.hands().zeroed.len() <= self.most / 2
    }

    /// Whether another frame is to be cleared ahead.
    pub(crate) fn wants_zeroed(&self) -> bool {
        self.is_on() && self.hands().zeroed.len() < self.most
    }

    /// The most frames that are cleared ahead.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The frame at `address` was broken.
    pub(crate) fn note_broken(&self, address: usize) {
        let mut hands = self.hands();
        if hands.broken.iter().any(|(known, _)| *known == address) {
            return;
        }
        if hands.broken.len() == BROKEN_MOST {
            hands.broken.pop_front();
        }
        hands.broken.push_back((address, Broken::default()));
    }

    /// Of how many places it is known that a frame was broken there.
    pub(crate) fn broken(&self) -> usize {
        self.hands().broken.len()
    }

    /// The one that was looked at longest ago.
    pub(crate) fn take_broken(&self) -> Option<(usize, Broken)> {
        self.hands().broken.pop_front()
    }

    /// It is to be looked at again.
    pub(crate) fn put_broken(&self, address: usize, broken: Broken) {
        let mut hands = self.hands();
        // It may have been broken again meanwhile.
        hands.broken.retain(|(known, _)| *known != address);
        if hands.broken.len() < BROKEN_MOST {
            hands.broken.push_back((address, broken));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_put_ahead_until_so_many_in_a_row_came_in_os_pages() {
        assert!(!HugePool::new(0).come_whole(), "there are none");
        let pool = HugePool::new(1);
        let torn = |frames| (0..frames).for_each(|_| pool.note_came(false));
        torn(TORN_MOST - 1);
        assert!(pool.come_whole());
        pool.note_came(true);
        torn(TORN_MOST - 1);
        assert!(pool.come_whole(), "one was whole in between");
        torn(1);
        assert!(!pool.come_whole());
    }
}
