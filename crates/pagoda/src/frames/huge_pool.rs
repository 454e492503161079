//! The huge frames of each zone: empty slots of the huge arena, slots with a zeroed frame, slots
//! with a used one; and the places where huge frames were split.
//!
//! A frame is of the zone in whose slots it began, and goes only into those. It goes from hand to
//! hand by its number only. The pool must never look into a frame. It never hands out a used frame
//! as a cleared one: there is no way to take it for one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use pagoda_core::clear::{Order, Target};
use pagoda_core::collapse::Broken;
use pagoda_core::page::HUGE_FRAME;
use pagoda_linux::arena::Space;
use pagoda_linux::arena::huge_arena::HugeSlot;

use crate::state::pending::HANDLERS_MAX;

/// How far a frame is cleared, by a clear that yielded to other faults.
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
    /// Used frames of which a part is cleared. There are no more than concurrent clears, as each
    /// continues one before it begins another.
    begun: Vec<(u32, Begun)>,
}

/// Ready and empty slots of one zone. Its lock is an innermost one: nothing is called with it held.
struct Part {
    /// The number of its first slot. A number below is another zone's.
    first: u32,
    slots: u32,
    hands: Mutex<Hands>,
    /// Frames that are kept ready at most, of each kind.
    most: usize,
    ready: AtomicU64,
}

impl Part {
    /// `slots` empty ones, from number `first` on.
    fn new(first: u32, slots: u32) -> Self {
        // Room for all, so that giving a frame back never allocates.
        let room = || Vec::with_capacity(slots as usize);
        let hands = Hands {
            empty: (first..first + slots).rev().collect(),
            zeroed: room(),
            used: room(),
            begun: Vec::with_capacity(HANDLERS_MAX),
        };
        let most = (slots as usize / READY_SHARE).clamp(1, READY_MOST);
        Self { first, slots, hands: Mutex::new(hands), most, ready: AtomicU64::new(0) }
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().expect(UNPOISONED)
    }

    fn taken(&self, space: &Space, index: Option<u32>) -> Option<HugeSlot> {
        let index = index?;
        self.ready.fetch_sub(1, Ordering::Relaxed);
        Some(space.claim_huge(index))
    }

    /// Gives a frame that is ready to `put`, by its number.
    fn put(&self, space: &Space, slot: HugeSlot, put: impl FnOnce(&mut Hands, u32)) {
        let index = space.release_huge(slot);
        // Counted first: a thread that takes it at once subtracts it.
        self.ready.fetch_add(1, Ordering::Relaxed);
        put(&mut self.hands(), index);
    }
}

/// The huge frames of all zones.
pub(crate) struct HugePool {
    /// One for each zone, in the order of the zones.
    parts: Box<[Part]>,
    /// By address, the one that was looked at longest ago first. A lock like those of the zones.
    broken: Mutex<VecDeque<(usize, Broken)>>,
    /// Whether any fault wanted a frame yet: before that none is got ready.
    asked: AtomicBool,
    /// Frames that came to their place in OS pages since the last that came whole.
    torn: AtomicU32,
}

/// The share of a zone that may lie ready as huge frames of one kind: one part in this.
const READY_SHARE: usize = 8;

/// The most of them: 64 MiB.
const READY_MOST: usize = 32;

/// Frames in a row that may come as OS pages before prefetching huge frames stops.
const TORN_MOST: u32 = 8;

/// The most split places that are remembered, 2 GiB of them. One more takes the place of the
/// oldest.
const BROKEN_MOST: usize = 1024;

const UNPOISONED: &str = "the pool's locks are held for moments that can't panic";

impl HugePool {
    /// So many empty slots for each zone: some for all of them, or none.
    pub(crate) fn new(slots: impl Iterator<Item = u32>) -> Self {
        let mut first = 0;
        let part = |slots: u32| {
            let part = Part::new(first, slots);
            first += slots;
            part
        };
        Self {
            parts: slots.map(part).collect(),
            broken: Mutex::new(VecDeque::new()),
            asked: AtomicBool::new(false),
            torn: AtomicU32::new(0),
        }
    }

    fn broken_places(&self) -> MutexGuard<'_, VecDeque<(usize, Broken)>> {
        self.broken.lock().expect(UNPOISONED)
    }

    /// How many slots there are.
    pub(crate) fn slots(&self) -> u32 {
        self.parts.iter().map(|part| part.slots).sum()
    }

    /// The slots of a zone.
    pub(crate) fn slots_of(&self, zone: usize) -> Range<u32> {
        let Part { first, slots, .. } = self.parts[zone];
        first..first + slots
    }

    /// The zone that the frame of `slot` is of.
    pub(crate) fn zone_of(&self, slot: &HugeSlot) -> usize {
        self.parts.iter().rposition(|part| part.first <= slot.index()).unwrap_or(0)
    }

    fn part_of(&self, slot: &HugeSlot) -> &Part {
        &self.parts[self.zone_of(slot)]
    }

    /// Whether there can be huge frames at all.
    pub(crate) fn is_on(&self) -> bool {
        self.parts.iter().any(|part| part.slots > 0)
    }

    /// A frame came to its place, as one huge page or not.
    pub(crate) fn note_came(&self, whole: bool) {
        if whole {
            self.torn.store(0, Ordering::Relaxed);
        } else {
            self.torn.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether frames come as huge pages. False once the kernel has shown that it makes none.
    pub(crate) fn come_whole(&self) -> bool {
        self.is_on() && self.torn.load(Ordering::Relaxed) < TORN_MOST
    }

    /// A fault wants a frame.
    pub(crate) fn note_asked(&self) {
        // It is mostly set; the load keeps the cache line shared among all readers.
        if !self.was_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Bytes of frames that are ready, cleared or not.
    pub(crate) fn ready_bytes(&self) -> u64 {
        (0..self.parts.len()).map(|zone| self.ready_bytes_of(zone)).sum()
    }

    /// The same of one zone.
    pub(crate) fn ready_bytes_of(&self, zone: usize) -> u64 {
        self.parts[zone].ready.load(Ordering::Relaxed) * HUGE_FRAME as u64
    }

    /// The zone that has most frames ready.
    pub(crate) fn fullest(&self) -> usize {
        (0..self.parts.len()).max_by_key(|zone| self.ready_bytes_of(*zone)).unwrap_or(0)
    }

    /// A frame of zeroes.
    pub(crate) fn take_zeroed(&self, space: &Space, zone: usize) -> Option<HugeSlot> {
        let part = &self.parts[zone];
        let index = part.hands().zeroed.pop();
        part.taken(space, index)
    }

    /// A frame that must be cleared before its use, and how much of it is cleared: one whose clear
    /// has begun, if there is any.
    pub(crate) fn take_used(&self, space: &Space, zone: usize) -> Option<(HugeSlot, Option<Begun>)> {
        let part = &self.parts[zone];
        let mut hands = part.hands();
        let begun = hands.begun.pop();
        let index = match begun {
            Some((index, _)) => Some(index),
            None => hands.used.pop(),
        };
        drop(hands);
        Some((part.taken(space, index)?, begun.map(|(_, begun)| begun)))
    }

    /// A slot without a frame.
    pub(crate) fn take_empty(&self, space: &Space, zone: usize) -> Option<HugeSlot> {
        let index = self.parts[zone].hands().empty.pop()?;
        Some(space.claim_huge(index))
    }

    /// A part of the frame of `slot` is cleared.
    pub(crate) fn put_begun(&self, space: &Space, slot: HugeSlot, begun: Begun) {
        self.part_of(&slot).put(space, slot, |hands, index| hands.begun.push((index, begun)));
    }

    /// The frame of `slot` is all zero.
    pub(crate) fn put_zeroed(&self, space: &Space, slot: HugeSlot) {
        self.part_of(&slot).put(space, slot, |hands, index| hands.zeroed.push(index));
    }

    /// The frame of `slot` is unused now.
    pub(crate) fn put_used(&self, space: &Space, slot: HugeSlot) {
        self.part_of(&slot).put(space, slot, |hands, index| hands.used.push(index));
    }

    /// The frame of `slot` has gone elsewhere.
    pub(crate) fn put_empty(&self, space: &Space, slot: HugeSlot) {
        let part = self.part_of(&slot);
        let index = space.release_huge(slot);
        part.hands().empty.push(index);
    }

    /// Whether another used frame of a zone is worth keeping.
    pub(crate) fn may_keep_used(&self, zone: usize) -> bool {
        let Part { slots, most, .. } = self.parts[zone];
        let hands = self.parts[zone].hands();
        slots > 0 && hands.used.len() + hands.begun.len() < most
    }

    /// The same of any zone.
    pub(crate) fn may_keep_any_used(&self) -> bool {
        (0..self.parts.len()).any(|zone| self.may_keep_used(zone))
    }

    /// Whether half of the frames that may be cleared ahead are gone. The clearing thread looks by
    /// itself ten times a second, and each move interrupts its processor. It is woken when the
    /// other half may not last until its next look, and not for each frame.
    pub(crate) fn is_low(&self, zone: usize) -> bool {
        self.parts[zone].hands().zeroed.len() <= self.parts[zone].most / 2
    }

    /// Whether another frame is to be cleared ahead.
    pub(crate) fn wants_zeroed(&self, zone: usize) -> bool {
        let Part { slots, most, .. } = self.parts[zone];
        slots > 0 && self.parts[zone].hands().zeroed.len() < most
    }

    /// The most frames that are cleared ahead.
    pub(crate) fn most(&self, zone: usize) -> usize {
        self.parts[zone].most
    }

    /// The frame at `address` was broken.
    pub(crate) fn note_broken(&self, address: usize) {
        let mut broken = self.broken_places();
        if broken.iter().any(|(known, _)| *known == address) {
            return;
        }
        if broken.len() == BROKEN_MOST {
            broken.pop_front();
        }
        broken.push_back((address, Broken::default()));
    }

    /// Of how many places it is known that a frame was broken there.
    pub(crate) fn broken(&self) -> usize {
        self.broken_places().len()
    }

    /// The one that was looked at longest ago.
    pub(crate) fn take_broken(&self) -> Option<(usize, Broken)> {
        self.broken_places().pop_front()
    }

    /// It is to be looked at again.
    pub(crate) fn put_broken(&self, address: usize, broken: Broken) {
        let mut places = self.broken_places();
        // It may have been broken again meanwhile.
        places.retain(|(known, _)| *known != address);
        if places.len() < BROKEN_MOST {
            places.push_back((address, broken));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_put_ahead_until_so_many_in_a_row_came_in_os_pages() {
        assert!(!HugePool::new([0].into_iter()).come_whole(), "there are none");
        let pool = HugePool::new([1].into_iter());
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
