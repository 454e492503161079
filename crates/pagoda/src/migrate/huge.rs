//! Content from another host that comes in huge frames.
//!
//! A frame is filled without the gate and moved in whole, where all of one comes at once, or most
//! of one if the region's base page is 2 MiB: sparse content would hold 2 MiB for a few pages. It
//! is wanted for content, so that one that was used needs no clearing but around it. What comes in
//! pieces and is dense in the end is collapsed later, as a frame that was split. This module must
//! never put a frame over anything, nor over a page that is owed.

use std::ops::Range;

use pagoda_core::budget;
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::page_entry::Word;
use pagoda_linux::arena::huge_arena::{HugeMove, HugeSlot};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::yield_now;
use pagoda_linux::uffd::Stop;

use crate::clear::huge_state::Block;
use crate::engine::Engine;
use crate::stats::counters::Counter;
use crate::table::{Filler, Span, Table};

/// The least bytes that come together where the base page is 2 MiB and the rest is zero: then at
/// most as much again is resident as there is content. Elsewhere all of a frame is content, or it
/// comes in base pages.
const LEAST: usize = HUGE_FRAME / 2;

/// A huge frame for arriving content, in its slot, where it is not visible. One that is dropped is
/// lost: it is landed, or put back.
#[must_use]
pub(crate) struct HugeLanding {
    slot: HugeSlot,
    place: PageRange,
    /// The part of the frame for content, and after a landing in OS pages the part still to be
    /// placed.
    part: Range<usize>,
    /// So many of its first bytes are in the slot no more.
    gone: usize,
}

impl HugeLanding {
    /// The place of the part still to be placed, if there is one.
    pub(crate) fn rest(&self) -> Option<PageRange> {
        PageRange::new(self.place.start() + self.part.start, self.place.start() + self.part.end)
    }
}

impl Engine {
    /// A frame for `range`, if that is to come in a huge one. It is zero but for that part.
    pub(crate) fn huge_landing(&self, range: PageRange) -> Option<HugeLanding> {
        let place = PageRange::at(range.start() & !(HUGE_FRAME - 1), HUGE_FRAME);
        let part = range.start() - place.start()..range.end() - place.start();
        if part.len() < LEAST || part.end > HUGE_FRAME || !self.may_place_huge(place, part.len()) {
            return None;
        }
        let slot = self.frame_for_content(&part)?;
        self.receiving(self.huge.zone_of(&slot), HUGE_FRAME as i64);
        let landing = HugeLanding { slot, place, part, gone: 0 };
        // Other channels may have taken theirs at the same time, and a sender may take its time.
        if self.free() < self.marks().high {
            self.put_back(landing);
            return None;
        }
        Some(landing)
    }

    /// The bytes of the frame that are to be content; all of them are to be written before it
    /// lands.
    pub(crate) fn landing_bytes<'a>(&'a self, landing: &'a mut HugeLanding) -> &'a mut [u8] {
        &mut self.space.huge_bytes_mut(&mut landing.slot)[landing.part.clone()]
    }

    /// Moves the frame to its place. Returns it if its content, or a part of that, is to come in
    /// base pages.
    pub(crate) fn land_huge(&self, mut landing: HugeLanding) -> Result<(), HugeLanding> {
        let (place, zone) = (landing.place, self.huge.zone_of(&landing.slot));
        let (moved, here) = loop {
            let table = self.gate_shared();
            if table.order.deferred() > 0 {
                drop(table);
                yield_now();
                continue;
            }
            let Some((span, block)) = self.take_place(&table, place) else { return Err(landing) };
            let moved = self.space.fill_huge(place, &landing.slot);
            let here = match moved {
                HugeMove::Done => HUGE_FRAME,
                HugeMove::Part(bytes, _) => bytes,
                HugeMove::Nothing(_) => 0,
            };
            let words = self.huge_came_in(block, Word::EMPTY, here, zone);
            let huge = here == HUGE_FRAME && self.is_one_huge_page(place);
            if here > 0 {
                self.huge.note_came(huge);
            }
            if here > 0 && !huge {
                self.note_torn(block);
            }
            block.give(span, &words.map(|word| word.with_huge(huge)));
            if moved != HugeMove::Nothing(Stop::Again) {
                break (moved, here);
            }
            drop(table);
            yield_now();
        };
        let filled = here.saturating_sub(landing.part.start).min(landing.part.len());
        self.counters.add(Counter::ArrivedMovedBytes, filled as u64);
        if moved == HugeMove::Done {
            self.counters.add(Counter::HugeArrived, 1);
            self.huge.put_empty(&self.space, landing.slot);
            self.receiving(zone, -(HUGE_FRAME as i64));
            return Ok(());
        }
        self.receiving(zone, -(here as i64));
        landing.gone = here;
        landing.part.start += filled;
        Err(landing)
    }

    /// Gives a frame that has not landed as a whole back, whatever it holds.
    pub(crate) fn put_back(&self, landing: HugeLanding) {
        let (zone, left) = (self.huge.zone_of(&landing.slot), HUGE_FRAME - landing.gone);
        // The kernel split the frame: a part is there in small pages, and the rest of the frame is
        // freed.
        if landing.gone == 0 && self.huge.may_keep_used(zone) {
            self.huge.put_used(&self.space, landing.slot);
        } else {
            self.give_frame_back(landing.slot, left);
        }
        self.receiving(zone, -(left as i64));
    }

    /// Whether it is worth filling a frame for this place with so much content, as far as one sees
    /// without taking anything.
    fn may_place_huge(&self, place: PageRange, content: usize) -> bool {
        if !self.huge.is_on() || self.is_released() || !budget::takes_huge(self.free(), &self.marks()) {
            return false;
        }
        let table = self.gate_shared();
        let Some((span, block)) = self.take_place(&table, place) else { return false };
        block.give(span, &block.each(Word::EMPTY));
        span.filler() == Filler::EngineHuge || content == HUGE_FRAME && self.huge.come_whole()
    }

    /// Takes the entries of a place for a huge frame, if it is free for that.
    fn take_place<'a>(&self, table: &'a Table, place: PageRange) -> Option<(&'a Span, Block)> {
        let (span, block) = self.place_for_huge(table, place.start())?;
        let taken = block.take(span, |word| word == Word::EMPTY)?;
        if self.owes_any(place) {
            block.give(span, &taken);
            return None;
        }
        Some((span, block))
    }

    /// The place of a huge frame around `address`, where there may be one.
    fn place_for_huge<'a>(&self, table: &'a Table, address: usize) -> Option<(&'a Span, Block)> {
        let may_be = |span: &&Span| match span.filler() {
            Filler::EngineHuge | Filler::EngineOnwards => true,
            Filler::Engine => self.comes_whole,
            Filler::File => false,
        };
        let span = table.find(address).filter(may_be)?;
        Some((span, Block::around(table, span, address)?))
    }

    /// Content of `range` has come in base pages. Places of which all is here now are collapsed,
    /// once that is worth it: also what came to them before, or by another channel, since each of
    /// them looks after its own.
    pub(super) fn note_arrived(&self, range: PageRange) {
        if !self.huge.come_whole() {
            return;
        }
        let table = self.gate_shared();
        let first = range.start() & !(HUGE_FRAME - 1);
        for address in (first..range.end()).step_by(HUGE_FRAME) {
            let Some((span, block)) = self.place_for_huge(&table, address) else { continue };
            let words = block.words(span);
            let is_dense = words.iter().all(|word| block.is_whole(*word));
            if is_dense && !words[0].is_huge() {
                self.huge.note_broken(block.range.start());
            }
        }
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
}
