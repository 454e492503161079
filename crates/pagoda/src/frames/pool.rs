//! The frames of one kind: which slots of the arena are empty, and which hold a frame that is ready
//! to be used.
//!
//! A slot is in one of five hands: *empty* (an address without a frame, in the buddy), *ready* (its
//! frame is unused, but may still hold old bytes: it is cleared or overwritten before it goes
//! anywhere), *zeroed* (ready, and all of it was cleared), backing an entry, or held by a mover.
//! The zone must never look into a slot, never hand one to two takers, and never hand a frame that
//! is only ready to a taker of zeroes: there is no way to take it for a zeroed one.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Granules;
use pagoda_core::space::buddy::Buddy;
use pagoda_linux::arena::{Slot, Space};

/// Base pages that one batch of reclaim moves out together: one system call for 512 KiB of 64 KiB
/// pages costs 10 µs, eight calls cost 34 µs.
pub(crate) const BATCH_ORDER: u32 = 3;

/// OS pages in parts of frames that are given back together: a system call for them costs as much
/// as ten moves.
const GATHERED_PIECES: u64 = 64;

struct Hands {
    empty: Buddy,
    ready: Vec<u32>,
    zeroed: Vec<u32>,
    pieces: Vec<Pieces>,
}

impl Hands {
    /// A whole frame with any content: preferably one that is not cleared.
    fn take_whole(&mut self) -> Option<u32> {
        self.ready.pop().or_else(|| self.zeroed.pop())
    }
}

/// The content of a frame for a zero page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Zeroes.
    Zeroes,
    /// Old content in these OS pages. The frame lacks the others.
    Used { there: Granules },
    /// Nothing: the slot has no frame yet.
    Nothing,
}

impl Holds {
    /// Which OS pages of a slot have a frame, if `all` are all of them.
    pub(crate) fn there(self, all: Granules) -> Granules {
        match self {
            Self::Zeroes => all,
            Self::Used { there } => there,
            Self::Nothing => Granules::NONE,
        }
    }
}

/// All OS pages of a slot.
pub(crate) fn all_of_slot(space: &Space) -> Granules {
    Granules::range(0, (space.slot_bytes() / OS_PAGE) as u32)
}

/// A slot of which only some OS pages hold a ready frame: granules that were evicted alone, to be
/// handed out one by one.
struct Pieces {
    slot: u32,
    frames: Granules,
}

/// A zone's slots, consecutive numbers of the arena. Its lock is the innermost of the engine:
/// nothing is called with it held.
pub(crate) struct Zone {
    /// The number of its first slot. A number below is another zone's.
    first: u32,
    slots: u32,
    hands: Mutex<Hands>,
    /// Whole frames that are ready, zeroed ones included.
    ready: AtomicU64,
    pieces: AtomicU64,
}

impl Zone {
    /// `slots` empty ones, from number `first` on.
    pub(crate) fn new(first: u32, slots: u32) -> Self {
        // Room for every slot, so that giving a frame back never allocates. The kernel gives memory
        // as it fills.
        let [ready, zeroed] = [0; 2].map(|_| Vec::with_capacity(slots as usize));
        Self {
            first,
            slots,
            hands: Mutex::new(Hands { empty: Buddy::new(slots), ready, zeroed, pieces: Vec::new() }),
            ready: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
        }
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        self.hands.lock().expect("the zone's lock is held for moments that can't panic")
    }

    /// The number of its first slot.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// How many slots it has.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Frames that are ready, all of each.
    pub(crate) fn whole_ready(&self) -> u64 {
        self.ready.load(Ordering::Relaxed)
    }

    /// Bytes of frames that are ready, whole ones and parts.
    pub(crate) fn ready_bytes(&self, space: &Space) -> u64 {
        self.ready.load(Ordering::Relaxed) * space.slot_bytes() as u64
            + self.pieces.load(Ordering::Relaxed) * OS_PAGE as u64
    }

    /// A frame that is ready.
    pub(crate) fn take_ready(&self, space: &Space) -> Option<Slot> {
        if let Some(slot) = self.take_whole_ready(space) {
            return Some(slot);
        }
        // A part of a frame does as well: the kernel fills the missing granules when they are
        // written.
        self.take_part_ready(space).map(|(slot, _)| slot)
    }

    /// A part of a frame, and its present granules: the kernel fills the others when they are
    /// written.
    pub(crate) fn take_part_ready(&self, space: &Space) -> Option<(Slot, Granules)> {
        let Pieces { slot, frames } = self.take_pieces(space, false)?;
        Some((space.claim_slot(slot), frames))
    }

    /// Writes one OS page of `content` to fresh memory in an empty slot, and lets `place` move it
    /// into a region. None if there is no empty slot.
    pub(crate) fn place_fresh_page<T>(
        &self,
        space: &Space,
        content: &[u8],
        place: impl FnOnce(&Slot, usize) -> (bool, T),
    ) -> Option<T> {
        let mut slot = self.take_empty(space)?;
        space.bytes_mut(&mut slot)[..content.len()].copy_from_slice(content);
        let (placed, result) = place(&slot, 0);
        self.put_pieces(space, slot, if placed { Granules::NONE } else { Granules::range(0, 1) });
        Some(result)
    }

    /// A frame that is ready, all of it.
    pub(crate) fn take_whole_ready(&self, space: &Space) -> Option<Slot> {
        if self.whole_ready() == 0 {
            return None;
        }
        let index = self.hands().take_whole()?;
        self.ready.fetch_sub(1, Ordering::Relaxed);
        Some(space.claim_slot(index))
    }

    /// A whole frame for a zero page, and its content: a zeroed frame if there is one.
    pub(crate) fn take_for_zeroes(&self, space: &Space) -> Option<(Slot, Holds)> {
        if self.whole_ready() == 0 {
            return None;
        }
        let mut hands = self.hands();
        let zeroed = hands.zeroed.pop().map(|index| (index, Holds::Zeroes));
        let (index, holds) =
            zeroed.or_else(|| Some((hands.ready.pop()?, Holds::Used { there: all_of_slot(space) })))?;
        drop(hands);
        self.ready.fetch_sub(1, Ordering::Relaxed);
        Some((space.claim_slot(index), holds))
    }

    /// Whole frames that are not cleared, `most` of them at most.
    pub(crate) fn take_used(&self, space: &Space, most: usize) -> Vec<Slot> {
        let mut indices = Vec::with_capacity(most);
        let mut hands = self.hands();
        let rest = hands.ready.len().saturating_sub(most);
        indices.extend(hands.ready.drain(rest..));
        drop(hands);
        self.ready.fetch_sub(indices.len() as u64, Ordering::Relaxed);
        indices.into_iter().map(|index| space.claim_slot(index)).collect()
    }

    /// As many empty slots, or fewer.
    pub(crate) fn take_empties(&self, space: &Space, most: usize) -> Vec<Slot> {
        let mut indices = Vec::with_capacity(most);
        let mut hands = self.hands();
        indices.extend((0..most).map_while(|_| hands.empty.alloc(0)));
        drop(hands);
        indices.into_iter().map(|at| space.claim_slot(self.first + at)).collect()
    }

    /// All of the frames of `slots` is zero.
    pub(crate) fn put_zeroed(&self, space: &Space, slots: impl IntoIterator<Item = Slot>) {
        let mut hands = self.hands();
        for slot in slots {
            hands.zeroed.push(space.release_slot(slot));
            self.ready.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many frames of zeroes there are.
    pub(crate) fn zeroed(&self) -> usize {
        self.hands().zeroed.len()
    }

    /// An empty slot: writing to it takes fresh memory from the kernel.
    pub(crate) fn take_empty(&self, space: &Space) -> Option<Slot> {
        self.hands().empty.alloc(0).map(|at| space.claim_slot(self.first + at))
    }

    /// `1 << order` empty slots that follow each other.
    pub(crate) fn take_empty_run(&self, space: &Space, order: u32) -> Option<Vec<Slot>> {
        let first = self.first + self.hands().empty.alloc(order)?;
        Some((first..first + (1 << order)).map(|index| space.claim_slot(index)).collect())
    }

    /// Writes one OS page of `content` to a slot, and lets `place` move it into a region from an
    /// offset of it. `place` returns the bytes that it moved. A whole frame is opened if `may_open`
    /// and there is no part of one. None if there is neither.
    pub(crate) fn place_page<T>(
        &self,
        space: &Space,
        content: &[u8],
        may_open: bool,
        place: impl FnOnce(&Slot, usize) -> (bool, T),
    ) -> Option<T> {
        let Pieces { slot, frames } = self.take_pieces(space, may_open)?;
        let (from, _) = frames.runs().next().expect("a slot among the pieces has a frame");
        let mut slot = space.claim_slot(slot);
        let at = from as usize * OS_PAGE;
        space.bytes_mut(&mut slot)[at..at + content.len()].copy_from_slice(content);
        let (placed, result) = place(&slot, at);
        let rest = if placed { frames.without(Granules::range(from, from + 1)) } else { frames };
        self.put_pieces(space, slot, rest);
        Some(result)
    }

    fn take_pieces(&self, space: &Space, may_open: bool) -> Option<Pieces> {
        let mut hands = self.hands();
        if let Some(pieces) = hands.pieces.pop() {
            self.pieces.fetch_sub(u64::from(pieces.frames.count()), Ordering::Relaxed);
            return Some(pieces);
        }
        let slot = if may_open { hands.take_whole()? } else { return None };
        self.ready.fetch_sub(1, Ordering::Relaxed);
        Some(Pieces { slot, frames: all_of_slot(space) })
    }

    /// All parts of frames, in the order of their slots, and their bytes. None as long as there are
    /// few.
    pub(crate) fn take_gathered_pieces(&self, space: &Space) -> Option<(Vec<Slot>, u64)> {
        if self.pieces.load(Ordering::Relaxed) < GATHERED_PIECES {
            return None;
        }
        let pieces = std::mem::take(&mut self.hands().pieces);
        let frames: u64 = pieces.iter().map(|piece| u64::from(piece.frames.count())).sum();
        self.pieces.fetch_sub(frames, Ordering::Relaxed);
        let mut slots: Vec<Slot> = pieces.into_iter().map(|piece| space.claim_slot(piece.slot)).collect();
        slots.sort_by_key(Slot::index);
        Some((slots, frames * OS_PAGE as u64))
    }

    /// These OS pages of `slot` hold unused frames now, and no others do.
    pub(crate) fn put_pieces(&self, space: &Space, slot: Slot, frames: Granules) {
        if frames.is_empty() {
            return self.put_empty(space, slot);
        }
        if frames == all_of_slot(space) {
            return self.put_ready(space, slot);
        }
        let slot = space.release_slot(slot);
        self.pieces.fetch_add(u64::from(frames.count()), Ordering::Relaxed);
        self.hands().pieces.push(Pieces { slot, frames });
    }

    /// The frame of `slot` is unused now.
    pub(crate) fn put_ready(&self, space: &Space, slot: Slot) {
        let index = space.release_slot(slot);
        // Counted first: a thread that takes it at once subtracts it.
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.hands().ready.push(index);
    }

    /// The frame of `slot` has gone elsewhere.
    pub(crate) fn put_empty(&self, space: &Space, slot: Slot) {
        let index = space.release_slot(slot);
        self.hands().empty.free(index - self.first, 0);
    }
}
