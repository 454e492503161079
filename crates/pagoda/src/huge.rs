//! Huge frames: 2 MiB that come with one fault and go with one move.
//!
//! A region in huge frames gets one wherever a whole one fits: aligned, nothing of it there, and room in the budget. What is
//! out comes back in base pages. A frame is got ready without the gate; it moves with the gate shared, as pages do, and
//! whole or not at all: the kernel would take it apart, and what was moved out of huge pages in parts came back wrong in
//! our tests. This module must never hand out a frame that holds anything.

#[cfg(feature = "migrate")]
pub(crate) mod install;

use std::sync::Arc;
use std::sync::RwLockReadGuard;
use std::sync::atomic::Ordering;

use pagoda_core::budget;
use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::entry::{Backing, Granules, Word};
use pagoda_core::page::{BasePage, HUGE_FRAME};
use pagoda_core::size::Bytes;
use pagoda_linux::huge_arena::{GivenBack, HugeMove, HugeSlot};
use pagoda_linux::range::PageRange;
use pagoda_linux::thread::{cpu_ns, yield_now};
use pagoda_linux::uffd::Stop;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::StopReason;
use crate::fault::Served;
use crate::reclaim::Step;
use crate::store::{Handle, Put, Scratch, Store};
use crate::table::{Entries, Filler, Span, Table, give, try_take};

/// Entries of a huge frame.
const ENTRIES: usize = HUGE_FRAME / (64 << 10);

/// Bytes of an entry where there are huge frames.
const ENTRY: usize = HUGE_FRAME / ENTRIES;

/// All of an entry.
const ALL: Granules = Granules::range(0, 16);

/// How huge frames are cleared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clearing {
    /// The order within a fault.
    pub(crate) order: Order,
    /// How much of a processor clearing ahead of faults may take, in percent; 0 for none.
    pub(crate) ahead_percent: u32,
}

impl Default for Clearing {
    /// Past the cache but for what is touched next: the quickest where it was measured, with and without other work on the
    /// machine. A tenth of a processor clears 2 GB/s of frames ahead.
    fn default() -> Self {
        Self { order: Order::Streaming, ahead_percent: 10 }
    }
}

/// The slots of the huge arena: frames never hold more than the budget.
pub(crate) fn slots(budget: Bytes, base: BasePage) -> u32 {
    match base {
        BasePage::M2 => u32::try_from(budget.as_usize() / HUGE_FRAME).unwrap_or(u32::MAX),
        BasePage::K4 | BasePage::K16 | BasePage::K64 => 0,
    }
}

/// A place for a huge frame, and the first of its entries.
#[derive(Clone, Copy)]
struct Block {
    range: PageRange,
    first: usize,
}

impl Block {
    /// The one around `address`, if all of it is in the span.
    fn around(table: &Table, span: &Span, address: usize) -> Option<Self> {
        let range = PageRange::at(address & !(HUGE_FRAME - 1), HUGE_FRAME);
        if table.entry_bytes() != ENTRY || span.range().intersection(range) != Some(range) {
            return None;
        }
        let page = table.page_at(span, range.start());
        (page.granule_of(range.start()) == 0).then_some(Self { range, first: page.index })
    }

    fn indices(self) -> std::ops::Range<usize> {
        self.first..self.first + ENTRIES
    }

    /// Takes the busy bits of all its entries, if each is as it is wanted; of none otherwise.
    fn take(self, span: &Span, wanted: impl Fn(Word) -> bool) -> Option<[Word; ENTRIES]> {
        let mut taken = [Word::EMPTY; ENTRIES];
        for i in 0..ENTRIES {
            match try_take(span.entry(self.first + i)) {
                Some(word) if wanted(word) => taken[i] = word,
                other => {
                    if let Some(word) = other {
                        give(span.entry(self.first + i), word);
                    }
                    self.give(span, &taken[..i]);
                    return None;
                }
            }
        }
        Some(taken)
    }

    /// Gives its first entries back.
    fn give(self, span: &Span, words: &[Word]) {
        for (index, word) in self.indices().zip(words) {
            give(span.entry(index), *word);
        }
    }
}

/// Whether all of an entry is in the region, and nowhere else but for old copies.
fn is_whole(word: Word) -> bool {
    word.resident() == ALL && !matches!(word.backing(), Backing::Slot(_))
}

impl Engine {
    /// Serves a fault by a huge frame. None if none fits there or none can be had: then it gets a base page.
    pub(crate) fn serve_huge(&self, address: usize) -> Option<Served> {
        if !self.huge.is_on() || !self.is_place_for_huge(address) {
            return None;
        }
        let slot = self.cleared_frame(address)?;
        debug_assert!(
            self.space.huge_bytes(&slot).iter().all(|&byte| byte == 0),
            "a frame is handed out clear"
        );
        let table = self.gate_shared();
        let place = |table: &Table| {
            let span = table.find(address)?;
            let block = Block::around(table, span, address)?;
            let taken = block.take(span, |word| word == Word::EMPTY)?;
            if self.owes_any(block.range) {
                block.give(span, &taken);
                return None;
            }
            Some(block)
        };
        let deferred = table.order.deferred() > 0;
        let Some(block) = (!deferred).then(|| place(&table)).flatten() else {
            self.huge.put_zeroed(&self.space, slot);
            return deferred.then_some(Served::Again);
        };
        let span = table.find(address).expect("it was found just now, within the gate");
        let moved = self.space.fill_huge(block.range, &slot);
        let word = Word::EMPTY.with_resident(ALL).with_warmth(1);
        match moved {
            HugeMove::Done => {
                self.counters.add(Counter::FaultsHuge, 1);
                self.counters.add(Counter::FaultsZero, 1);
                self.ledger.resident(HUGE_FRAME as i64);
                // Over a table of OS pages that is left of what was there it came in small pages.
                let huge = self.is_one_huge_page(block.range);
                block.give(span, &[word.with_huge(huge); ENTRIES]);
                self.huge.put_empty(&self.space, slot);
                self.note_use();
                Some(Served::Done)
            }
            HugeMove::Nothing(stop) => {
                block.give(span, &[Word::EMPTY; ENTRIES]);
                self.huge.put_zeroed(&self.space, slot);
                (stop == Stop::Again).then_some(Served::Again)
            }
            // What the kernel took apart is there in small pages; the rest of the frame goes.
            HugeMove::Part(bytes, _) => {
                self.ledger.resident(bytes as i64);
                let words: [Word; ENTRIES] = std::array::from_fn(|i| {
                    let here = bytes.saturating_sub(i * ENTRY).min(ENTRY) / 4096;
                    if here == 0 { Word::EMPTY } else { word.with_resident(Granules::range(0, here as u32)) }
                });
                block.give(span, &words);
                drop(table);
                self.give_frame_back(slot, HUGE_FRAME - bytes);
                None
            }
        }
    }

    /// Whether a huge frame fits around `address`, as far as one sees without taking anything.
    fn is_place_for_huge(&self, address: usize) -> bool {
        if self.is_released() || !budget::takes_huge(self.free(), &self.marks()) {
            return false;
        }
        let table = self.gate_shared();
        let Some(span) = table.find(address).filter(|span| span.filler() == Filler::EngineHuge) else {
            return false;
        };
        Block::around(&table, span, address).is_some_and(|block| {
            !self.owes_any(block.range)
                && block
                    .indices()
                    .all(|index| span.entry(index).load(Ordering::Acquire) == Word::EMPTY.bits())
        })
    }

    /// A frame of zeroes: one that is ready, one that was used and is cleared now, or one from the kernel.
    fn cleared_frame(&self, address: usize) -> Option<HugeSlot> {
        self.huge.note_asked();
        if let Some(slot) = self.huge.take_zeroed(&self.space) {
            self.counters.add(Counter::TakenClearedBytes, HUGE_FRAME as u64);
            self.clear_bell.ring();
            return Some(slot);
        }
        if let Some(mut slot) = self.huge.take_used(&self.space) {
            let (_, target) = Target::of_address(address, FrameSize::HUGE);
            self.clearer.clear(self.space.huge_bytes_mut(&mut slot), self.clearing.order, target);
            self.counters.add(Counter::ClearedInFaultBytes, HUGE_FRAME as u64);
            return Some(slot);
        }
        self.frame_from_kernel()
    }

    fn frame_from_kernel(&self) -> Option<HugeSlot> {
        if self.ledger.room_bytes() < HUGE_FRAME as u64 {
            return None;
        }
        let mut slot = self.huge.take_empty(&self.space)?;
        // The ledger first: another thread may want the same room.
        self.ledger.took(HUGE_FRAME as i64);
        if self.space.populate_huge(&mut slot).is_err() {
            self.give_frame_back(slot, HUGE_FRAME);
            return None;
        }
        self.counters.add(Counter::KernelZeroedBytes, HUGE_FRAME as u64);
        Some(slot)
    }

    /// Gives a frame, of which the slot holds `bytes`, back to the kernel. False if it has to stay: somebody who reads all of the
    /// process has pinned it, say.
    fn give_frame_back(&self, mut slot: HugeSlot, bytes: usize) -> bool {
        loop {
            match self.space.give_back_huge(&slot) {
                GivenBack::All => break,
                // It is done in a moment.
                GivenBack::Busy => yield_now(),
                GivenBack::PartStays => {
                    // It is whole again, or becomes so when it is cleared: counted like any that was used. It may be one more than
                    // are kept ready; the slots of the arena bound them.
                    let _ = self.space.populate_huge(&mut slot);
                    self.ledger.took((HUGE_FRAME - bytes) as i64);
                    self.huge.put_used(&self.space, slot);
                    return false;
                }
            }
        }
        self.ledger.took(-(bytes as i64));
        self.counters.add(Counter::ReleasedBytes, bytes as u64);
        self.huge.put_empty(&self.space, slot);
        true
    }

    /// Gives a huge frame that is ready back to the kernel, so that base pages find room. False if there is none that can go.
    pub(crate) fn give_back_a_huge_frame(&self) -> bool {
        let ready = self.huge.take_used(&self.space).or_else(|| self.huge.take_zeroed(&self.space));
        ready.is_some_and(|slot| self.give_frame_back(slot, HUGE_FRAME))
    }

    /// Whether the base page at `address` lies in a huge page, which the kernel may have made of OS pages meanwhile: then it only
    /// leaves with all of that.
    pub(crate) fn leaves_huge(&self, table: &Table, span: &Span, address: usize) -> bool {
        span.filler() == Filler::EngineHuge
            && Block::around(table, span, address).is_some_and(|block| self.is_one_huge_page(block.range))
    }

    /// Moves the huge frame around `address` out of its region and stores what it held, base page by base page, without the
    /// gate. What the store does not take is staged.
    pub(crate) fn evict_huge(
        &self,
        table: RwLockReadGuard<'_, Table>,
        address: usize,
        scratch: &mut Scratch,
    ) -> Step {
        let (entries, first, words, slot) = match self.move_huge_out(&table, address) {
            Ok(moved) => moved,
            Err(step) => return step,
        };
        drop(table);
        let mut full = None;
        for (i, piece) in self.space.huge_bytes(&slot).chunks_exact(ENTRY).enumerate() {
            let entry = &entries[first + i];
            self.counters.add(Counter::Evictions, 1);
            if let Backing::Handle(handle) = words[i].backing() {
                self.store.free(Handle::from_bits(handle));
                self.ledger.changed(words[i], Word::EMPTY);
            }
            match self.store.put(piece, scratch) {
                Ok(put) => {
                    self.count_put(&put);
                    self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
                    give(
                        entry,
                        match put {
                            Put::Zero => Word::EMPTY,
                            Put::Stored(handle) => {
                                Word::EMPTY.with_backing(Backing::Handle(Handle::to_bits(handle)))
                            }
                        },
                    );
                }
                Err(error) => {
                    full = Some(error);
                    self.stage_copy(&entries, first + i, piece);
                }
            }
        }
        if self.huge.may_keep_used() {
            self.huge.put_used(&self.space, slot);
        } else {
            self.give_frame_back(slot, HUGE_FRAME);
        }
        full.map_or(Step::FrameReady, Step::Full)
    }

    /// Stages a copy of `content`, whatever the budget says: there is no other place for it.
    fn stage_copy(&self, entries: &Entries, index: usize, content: &[u8]) {
        let Some(mut slot) = self.frame_for_fetch(true) else {
            // No address is left in the arena, though there are twice as many as frames.
            self.stop(StopReason::EngineBroken)
        };
        self.space.bytes_mut(&mut slot).copy_from_slice(content);
        self.publish_staged(entries, index, Word::EMPTY, slot);
    }

    /// Moves the huge frame around `address` into a slot. Its entries stay taken, and nothing is resident of them any more.
    fn move_huge_out(
        &self,
        table: &Table,
        address: usize,
    ) -> Result<(Entries, usize, [Word; ENTRIES], HugeSlot), Step> {
        let span = table.find(address).ok_or(Step::Looking)?;
        let block = Block::around(table, span, address).ok_or(Step::Looking)?;
        let words = block.take(span, is_whole).ok_or(Step::Looking)?;
        let stays = |warmth: u8| block.give(span, &words.map(|word| word.with_warmth(warmth)));
        let moving = self.pins.moving();
        let slot = (!moving.overlaps(block.range)).then(|| self.huge.take_empty(&self.space)).flatten();
        let Some(slot) = slot else {
            stays(3);
            return Err(Step::Looking);
        };
        let moved = match self.is_one_huge_page(block.range) {
            true => self.space.evict_huge(block.range, &slot),
            // Somebody changed the protection of a part, say: the kernel would take it apart.
            false => HugeMove::Nothing(Stop::Refused),
        };
        match moved {
            HugeMove::Done => {
                self.ledger.resident(-(HUGE_FRAME as i64));
                self.counters.add(Counter::HugeMovedOut, 1);
                Ok((Arc::clone(span.entries()), block.first, words, slot))
            }
            HugeMove::Nothing(stop) => {
                self.huge.put_empty(&self.space, slot);
                stays(if stop == Stop::Again { words[0].warmth() } else { 3 });
                Err(if stop == Stop::Again { Step::Again } else { Step::Looking })
            }
            // It was one page a moment ago, within the gate.
            HugeMove::Part(..) => self.stop(StopReason::EngineBroken),
        }
    }

    fn is_one_huge_page(&self, range: PageRange) -> bool {
        let mut scanner = self.huge_scan.lock().unwrap_or_else(|_| self.stop(StopReason::EngineBroken));
        let huge = scanner.as_mut().and_then(|scanner| scanner.huge_bytes(range.start(), range.end()).ok());
        huge == Some(HUGE_FRAME)
    }

    /// Stores the huge frames of which `range` covers a part: that part is about to be discarded, and the rest could not leave
    /// by itself any more.
    pub(crate) fn take_huge_apart(&self, range: PageRange) {
        let mut scratch = Scratch::new(self.base);
        for end in [range.start(), range.end()] {
            if end.is_multiple_of(HUGE_FRAME) {
                continue;
            }
            while self.is_huge(end) && self.evict_huge(self.gate_shared(), end, &mut scratch) == Step::Again {
                yield_now();
            }
        }
    }

    /// Whether `address` is in a huge frame.
    pub(crate) fn is_huge(&self, address: usize) -> bool {
        let table = self.gate_shared();
        table.find(address).is_some_and(|span| {
            let page = table.page_at(span, address);
            Word::from_bits(span.entry(page.index).load(Ordering::Acquire)).is_huge()
        })
    }

    /// Keeps huge frames of `range`, which nobody needs any more, for others: as many as may be ready.
    pub(crate) fn keep_huge_frames(&self, range: PageRange) {
        let mut at = range.start().next_multiple_of(HUGE_FRAME);
        while at < range.end() && self.huge.is_on() && self.huge.may_keep_used() {
            let table = self.gate_shared();
            if table.order.deferred() == 0
                && let Ok((entries, first, words, slot)) = self.move_huge_out(&table, at)
            {
                for (entry, word) in entries[first..first + ENTRIES].iter().zip(words) {
                    let after = word.with_resident(Granules::NONE).with_huge(false);
                    self.ledger.changed(word, after);
                    give(entry, after);
                }
                self.huge.put_used(&self.space, slot);
            }
            at += HUGE_FRAME;
        }
    }

    /// Clears frames ahead of faults until the engine ends: those that were used first, then fresh ones, as long as there is
    /// plenty of room. Takes as much of a processor as it may, and only when nobody else wants it.
    pub(crate) fn clear_ahead(&self) {
        pagoda_linux::thread::run_when_idle();
        let percent = u64::from(self.clearing.ahead_percent.clamp(1, 100));
        while !self.is_quitting() {
            let begin = cpu_ns();
            if !self.clear_one_ahead() {
                self.clear_bell.sleep(IDLE_US);
                continue;
            }
            let used_ns = cpu_ns() - begin;
            self.counters.add(Counter::ClearingAheadNs, used_ns);
            let rest_us = used_ns * (100 - percent) / percent / 1000;
            if rest_us > 0 {
                pagoda_linux::thread::sleep_us(u32::try_from(rest_us).unwrap_or(IDLE_US));
            }
        }
    }

    fn clear_one_ahead(&self) -> bool {
        if !self.huge.wants_zeroed() || self.is_released() {
            return false;
        }
        if let Some(mut slot) = self.huge.take_used(&self.space) {
            let target = Target::of_address(0, FrameSize::HUGE).1;
            self.clearer.clear(self.space.huge_bytes_mut(&mut slot), Order::Streaming, target);
            self.counters.add(Counter::ClearedAheadBytes, HUGE_FRAME as u64);
            self.huge.put_zeroed(&self.space, slot);
            return true;
        }
        let room = Bytes::new(self.ledger.room_bytes());
        if !self.huge.was_asked() || !budget::takes_huge_ahead(room, self.huge.most(), &self.marks()) {
            return false;
        }
        self.frame_from_kernel().map(|slot| self.huge.put_zeroed(&self.space, slot)).is_some()
    }
}

/// How long clearing ahead sleeps when there is nothing to do.
const IDLE_US: u32 = 100_000;
