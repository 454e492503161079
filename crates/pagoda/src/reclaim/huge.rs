//! Evicting a huge frame: whole, into the huge arena, and from there into the store by base pages.
//!
//! Where only a part is to go, the rest is put back as base pages. Where the kernel splits the
//! frame on the way, the part that left goes on by base pages, and the rest stays as base pages.
//! This module must never drop the content of a part of a frame, nor stage a part of one that moves
//! whole.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLockReadGuard};

use pagoda_core::fault::swap_in::Extent;
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::huge_arena::{HugeMove, HugeSlot};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{now_ns, yield_now};
use pagoda_linux::uffd::Stop;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::clear::huge_state::{Block, OfEntries, Words, marked};
use crate::engine::Engine;
use crate::error::StopReason;
use crate::frames::zones::Taker;
use crate::state::hand::Step;
use crate::state::pending::Served;
use crate::stats::counters::Counter;
use crate::stats::fault_kind::FaultKind;
use crate::store::{Handle, Put, PutError, Scratch, Store};
use crate::table::{Entries, Span, Table, give};

/// A frame that left its region, all of it or its first part. Its entries are taken, and hold their
/// state from before.
pub(crate) struct MovedOut {
    entries: Entries,
    block: Block,
    words: Words,
    slot: HugeSlot,
    bytes: usize,
    /// The granules of each entry that were put back since. An entry that is back whole is given
    /// back, too.
    back: OfEntries<Granules>,
}

impl MovedOut {
    /// The granules of entry `i` that are in the slot alone.
    fn granules_out(&self, i: usize) -> Granules {
        self.block.granules_within(self.bytes, i).without(self.back[i])
    }

    fn entry(&self, i: usize) -> &AtomicU64 {
        &self.entries[self.block.first + i]
    }
}

impl Engine {
    /// Moves the huge frame around `address` out of its region and stores it base page by base
    /// page, without the gate. A page that the store refuses is staged.
    pub(crate) fn evict_huge(
        &self,
        table: RwLockReadGuard<'_, Table>,
        address: usize,
        scratch: &mut Scratch,
    ) -> Step {
        self.evict_of_huge(table, address, PageRange::at(address & !(HUGE_FRAME - 1), HUGE_FRAME), scratch)
    }

    /// As `evict_huge`, but evicts only `part`. The rest stays as base pages if there is room for
    /// it beside the frame.
    pub(crate) fn evict_of_huge(
        &self,
        table: RwLockReadGuard<'_, Table>,
        address: usize,
        part: PageRange,
        scratch: &mut Scratch,
    ) -> Step {
        let begin_ns = now_ns();
        // The kernel refuses moves as long as an event is unread. It does not know of one that was
        // read and is deferred.
        if table.order.deferred() > 0 {
            return Step::Again;
        }
        let mut out = match self.move_huge_out(&table, address) {
            Ok(out) => out,
            Err(step) => return step,
        };
        for (i, word) in out.words.iter().enumerate() {
            self.count_evicted(word.zone(), u64::from(out.granules_out(i).count()) * OS_PAGE as u64);
        }
        let may_fill = self.ledger.room_bytes() >= HUGE_FRAME as u64;
        let late = if may_fill { self.put_back_around(&mut out, part) } else { Vec::new() };
        drop(table);
        let step = self.store_moved_out(out, scratch);
        self.counters.add(Counter::HugeBroken, 1);
        self.counters.add(Counter::HugeBreakNs, now_ns() - begin_ns);
        late.into_iter().for_each(|address| self.fetch_back(address, scratch));
        step
    }

    /// Puts copies of the entries outside of `part` back in place, within the gate, like any fill.
    /// Returns the addresses that the kernel refused for now, because of an unread event for
    /// example.
    fn put_back_around(&self, out: &mut MovedOut, part: PageRange) -> Vec<usize> {
        let mut late = Vec::new();
        let len = out.block.entry_bytes();
        for i in 0..out.words.len() {
            let at = PageRange::at(out.block.range.start() + i * len, len);
            if at.intersection(part).is_some() || out.granules_out(i) != out.block.all() {
                continue;
            }
            // With several zones each frame begins in a slot, and a page that the kernel fills here
            // does not. It is swapped in later, like a page that the kernel refuses.
            if !late.is_empty() || self.zones.are_several() {
                late.push(at.start());
                continue;
            }
            let piece = &self.space.huge_bytes(&out.slot)[i * len..][..len];
            let filled = self.space.fill_with(at, piece).bytes;
            self.ledger.took(filled as i64);
            self.ledger.resident(filled as i64);
            out.back[i] = Granules::range(0, (filled / OS_PAGE) as u32);
            if filled == len {
                give(out.entry(i), out.words[i].with_huge(false));
            } else {
                late.push(at.start());
            }
        }
        late
    }

    /// Swaps in a base page that is stored only because the kernel refused it for a moment, unless
    /// it was changed since. Waits for a reader of events, and for the holder of the busy bit.
    fn fetch_back(&self, address: usize, scratch: &mut Scratch) {
        let mut kind = FaultKind::Stored;
        while let Served::Again | Served::Busy | Served::GaveWay =
            self.serve(FaultAddress::of_byte(address), false, Extent::Page, &mut kind, scratch)
        {
            yield_now();
        }
    }

    /// Stores the evicted pages of a frame, gives its entries back and keeps the frame for another
    /// fault.
    pub(crate) fn store_moved_out(&self, out: MovedOut, scratch: &mut Scratch) -> Step {
        let (mut full, all) = (None, out.block.all());
        for (i, piece) in self.space.huge_bytes(&out.slot).chunks_exact(out.block.entry_bytes()).enumerate() {
            if out.back[i] == all {
                continue;
            }
            let gone = out.granules_out(i);
            if gone.is_empty() {
                // The kernel has refused it once.
                give(out.entry(i), out.words[i].with_huge(false).with_warmth(3));
                continue;
            }
            // All of it was resident: the stored object is an old copy.
            if let Backing::Handle(handle) = out.words[i].backing() {
                self.store.free(Handle::from_bits(handle));
                self.ledger.changed(out.words[i], Word::EMPTY);
            }
            if gone != all {
                self.stage_copy(&out, i, piece);
                continue;
            }
            self.counters.add(Counter::Evictions, 1);
            match self.store_piece(&out, piece, scratch) {
                Ok(word) => {
                    self.ledger.changed(Word::EMPTY, word);
                    give(out.entry(i), word);
                }
                Err(error) => {
                    full = Some(error);
                    self.stage_copy(&out, i, piece);
                }
            }
        }
        self.huge.note_broken(out.block.range.start());
        if out.bytes == HUGE_FRAME && self.huge.may_keep_used(self.huge.zone_of(&out.slot)) {
            self.huge.put_used(&self.space, out.slot);
        } else {
            // A frame that the kernel split is no huge frame any more.
            self.give_frame_back(out.slot, out.bytes);
        }
        full.map_or(Step::FrameReady, Step::Full)
    }

    fn store_piece(&self, out: &MovedOut, piece: &[u8], scratch: &mut Scratch) -> Result<Word, PutError> {
        let put = self.store.put(piece, scratch)?;
        self.count_put(&put);
        self.note_stored(&out.entries, out.block.all(), put);
        self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
        Ok(match put {
            Put::Zero => Word::EMPTY,
            Put::Stored(handle) => Word::EMPTY.with_backing(Backing::Handle(Handle::to_bits(handle))),
        })
    }

    /// Stages a copy of the evicted part of entry `i`, whatever the budget says: there is no other
    /// place for it.
    fn stage_copy(&self, out: &MovedOut, i: usize, piece: &[u8]) {
        let Some(mut slot) = self.frame_for_fetch(true, Taker::ONCE) else {
            // No address is left in the arena, though there are twice as many as frames.
            self.stop(StopReason::EngineBroken)
        };
        let (gone, all) = (out.granules_out(i), out.block.all());
        let bytes = self.space.bytes_mut(&mut slot);
        let bytes_in = |(from, to): (u32, u32)| from as usize * OS_PAGE..to as usize * OS_PAGE;
        for run in gone.runs().map(bytes_in) {
            bytes[run.clone()].copy_from_slice(&piece[run]);
        }
        // A ready frame may hold old content.
        all.without(gone).runs().for_each(|run| bytes[bytes_in(run)].fill(0));
        let word = Word::EMPTY.with_resident(all.without(gone)).with_zone(out.words[i].zone());
        self.publish_staged(&out.entries, out.block.first + i, word, (slot, all));
    }

    /// Moves the huge frame around `address` into a slot. Its entries stay taken.
    fn move_huge_out(&self, table: &Table, address: usize) -> Result<MovedOut, Step> {
        let span = table.find(address).ok_or(Step::Looking)?;
        let block = Block::around(table, span, address).ok_or(Step::Looking)?;
        let words = block.take(span, |word| block.is_whole(word)).ok_or(Step::Looking)?;
        let zone = self.zone_of_huge(&words);
        let moving = self.pins.moving();
        let slot = (!moving.overlaps(block.range)).then(|| self.huge.take_empty(&self.space, zone)).flatten();
        let Some(slot) = slot else {
            block.give(span, &words.map(|word| word.with_warmth(3)));
            return Err(Step::Looking);
        };
        let moved = match self.is_one_huge_page(block.range) {
            true => self.space.evict_huge(block.range, &slot),
            // The protection of a part was changed, for example: the kernel would split the frame.
            false => HugeMove::Nothing(Stop::Refused),
        };
        self.settle_huge_move(span, block, words, slot, moved)
    }

    /// Settles the frame of `block` after a move. Its entries are taken and had the states `words`.
    pub(crate) fn settle_huge_move(
        &self,
        span: &Span,
        block: Block,
        words: Words,
        slot: HugeSlot,
        moved: HugeMove,
    ) -> Result<MovedOut, Step> {
        let bytes = match moved {
            HugeMove::Done => HUGE_FRAME,
            // It was one huge page a moment ago, with the gate held, and has been split since.
            HugeMove::Part(bytes, _) => bytes,
            HugeMove::Nothing(stop) => {
                self.huge.put_empty(&self.space, slot);
                if stop == Stop::Refused && self.lift.works() {
                    // Its owner has protected it. It is lifted by base pages.
                    self.huge.note_broken(block.range.start());
                    block.give(span, &words.map(|word| word.with_huge(false)));
                    return Err(Step::Looking);
                }
                let warmth = if stop == Stop::Again { words[0].warmth() } else { 3 };
                block.give(span, &words.map(|word| word.with_warmth(warmth)));
                return Err(if stop == Stop::Again { Step::Again } else { Step::Looking });
            }
        };
        self.ledger.resident(-(bytes as i64));
        if self.zones.are_several() {
            for (i, word) in words.iter().enumerate() {
                self.zones.in_regions(
                    word.zone(),
                    -(i64::from(block.granules_within(bytes, i).count()) * OS_PAGE as i64),
                );
            }
        }
        self.counters.add(Counter::HugeMovedOut, u64::from(bytes == HUGE_FRAME));
        Ok(MovedOut {
            entries: Arc::clone(span.entries()),
            block,
            words,
            slot,
            bytes,
            back: block.each(Granules::NONE),
        })
    }

    /// Splits the huge frames that `range` covers in part. That part is about to be discarded, and
    /// the rest could not leave by itself any more.
    pub(crate) fn take_huge_apart(&self, range: PageRange) {
        let mut scratch = Scratch::new(self.base);
        for end in [range.start(), range.end()] {
            if end.is_multiple_of(HUGE_FRAME) {
                continue;
            }
            while self.is_huge(end)
                && self.evict_of_huge(self.gate_shared(), end, range, &mut scratch) == Step::Again
            {
                yield_now();
            }
        }
    }

    /// Keeps unused huge frames of `range` for other faults, up to the bound of ready frames.
    pub(crate) fn keep_huge_frames(&self, range: PageRange) {
        let mut at = range.start().next_multiple_of(HUGE_FRAME);
        while at < range.end() && self.huge.may_keep_any_used() {
            let table = self.gate_shared();
            if table.order.deferred() == 0
                && marked(&table, at).is_some_and(|word| self.huge.may_keep_used(word.zone()))
                && let Ok(out) = self.move_huge_out(&table, at)
            {
                for (i, word) in out.words.iter().enumerate() {
                    let rest = word.resident().without(out.granules_out(i));
                    let after = word.with_resident(rest).with_huge(false);
                    self.ledger.changed(*word, after);
                    give(out.entry(i), after);
                }
                if out.bytes == HUGE_FRAME {
                    self.huge.put_used(&self.space, out.slot);
                } else {
                    drop(table);
                    self.give_frame_back(out.slot, out.bytes);
                }
            }
            at += HUGE_FRAME;
        }
    }
}

#[cfg(test)]
#[path = "huge_test.rs"]
mod tests;
