//! Content from another host that comes in huge frames.
//!
//! A frame is filled without the gate and moved in whole, where most of one comes at once: sparse content would hold 2 MiB for
//! a few pages. It is wanted for content, so that one that was used needs no clearing but around it. This module must never
//! put a frame over anything, nor over a page that is owed.

use std::ops::Range;

use pagoda_core::entry::Word;
use pagoda_core::page::HUGE_FRAME;
use pagoda_linux::huge_arena::{HugeMove, HugeSlot};
use pagoda_linux::range::PageRange;
use pagoda_linux::uffd::Stop;

use super::{Block, ENTRIES};
use crate::counters::Counter;
use crate::engine::Engine;
use crate::table::{Filler, Span, Table};

/// What comes together at least, where the rest is zero: then at most as much again is resident as there is content.
const LEAST: usize = HUGE_FRAME / 2;

/// What came of putting content in place by a huge frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugePlaced {
    /// So many bytes of it are there.
    Filled(usize),
    /// An event is unread: again in a moment.
    Again,
    /// It is to come in base pages.
    No,
}

impl Engine {
    /// Puts the first of `content`, which is for `range`, in place by one huge frame, and zeroes around it.
    pub(crate) fn place_huge(&self, range: PageRange, content: &[u8]) -> HugePlaced {
        let place = PageRange::at(range.start() & !(HUGE_FRAME - 1), HUGE_FRAME);
        let from = range.start() - place.start();
        let part = from..HUGE_FRAME.min(from + range.len());
        if !self.huge.is_on() || part.len() < LEAST || !self.may_place_huge(place) {
            return HugePlaced::No;
        }
        let Some(mut slot) = self.frame_for_content(&part) else { return HugePlaced::No };
        self.space.huge_bytes_mut(&mut slot)[part.clone()].copy_from_slice(&content[..part.len()]);
        let table = self.gate_shared();
        let is_deferred = table.order.deferred() > 0;
        let taken = (!is_deferred).then(|| self.take_place(&table, place)).flatten();
        let Some((span, block)) = taken else {
            drop(table);
            self.put_unused(slot);
            return if is_deferred { HugePlaced::Again } else { HugePlaced::No };
        };
        let zone = self.huge.zone_of(&slot);
        let moved = self.space.fill_huge(place, &slot);
        let here = match moved {
            HugeMove::Done => HUGE_FRAME,
            HugeMove::Part(bytes, _) => bytes,
            HugeMove::Nothing(_) => 0,
        };
        let words = self.huge_came_in(Word::EMPTY, here, zone);
        let huge = here == HUGE_FRAME && self.is_one_huge_page(place);
        if here > 0 && !huge {
            self.note_torn(block);
        }
        block.give(span, &words.map(|word| word.with_huge(huge)));
        drop(table);
        match moved {
            HugeMove::Done => {
                self.counters.add(Counter::HugeArrived, 1);
                self.huge.put_empty(&self.space, slot);
            }
            HugeMove::Nothing(stop) => {
                self.put_unused(slot);
                return if stop == Stop::Again { HugePlaced::Again } else { HugePlaced::No };
            }
            // What the kernel took apart is there in small pages; the rest of the frame goes.
            HugeMove::Part(bytes, _) => {
                self.give_frame_back(slot, HUGE_FRAME - bytes);
            }
        }
        let filled = here.saturating_sub(part.start).min(part.len());
        self.counters.add(Counter::ArrivedMovedBytes, filled as u64);
        HugePlaced::Filled(filled)
    }

    /// Whether it is worth filling a frame for this place, as far as one sees without taking anything.
    fn may_place_huge(&self, place: PageRange) -> bool {
        if self.is_released() || !pagoda_core::budget::takes_huge(self.free(), &self.marks()) {
            return false;
        }
        let table = self.gate_shared();
        self.take_place(&table, place)
            .map(|(span, block)| block.give(span, &[Word::EMPTY; ENTRIES]))
            .is_some()
    }

    /// Takes the entries of a place for a huge frame, if it is free for that.
    fn take_place<'a>(&self, table: &'a Table, place: PageRange) -> Option<(&'a Span, Block)> {
        let span = table.find(place.start()).filter(|span| span.filler() == Filler::EngineHuge)?;
        let block = Block::around(table, span, place.start())?;
        let taken = block.take(span, |word| word == Word::EMPTY)?;
        if self.owes_any(place) {
            block.give(span, &taken);
            return None;
        }
        Some((span, block))
    }

    /// A frame that is zero but for `part`, which holds anything.
    fn frame_for_content(&self, part: &Range<usize>) -> Option<HugeSlot> {
        self.huge.note_asked();
        let zone = self.zone_for_huge()?;
        let used = self.huge.take_used(&self.space, zone).map(|(mut slot, _)| {
            let bytes = self.space.huge_bytes_mut(&mut slot);
            bytes[..part.start].fill(0);
            bytes[part.end..].fill(0);
            slot
        });
        let slot = used.or_else(|| self.ready_frame(zone)).or_else(|| self.frame_from_kernel(zone))?;
        self.gave_huge(zone);
        Some(slot)
    }

    /// A frame that was filled and did not get to its place.
    fn put_unused(&self, slot: HugeSlot) {
        if self.huge.may_keep_used(self.huge.zone_of(&slot)) {
            self.huge.put_used(&self.space, slot);
        } else {
            self.give_frame_back(slot, HUGE_FRAME);
        }
    }
}
