//! A fault that gets a huge frame.
//!
//! The place is checked before a frame is made ready. It is checked again, with the entries taken,
//! before the frame is moved in. This module must never put a frame over a page that is present,
//! stored or owed.

use std::sync::atomic::Ordering;

use pagoda_core::budget;
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::page_entry::Word;
use pagoda_linux::arena::huge_arena::HugeMove;
use pagoda_linux::uffd::Stop;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::clear::huge::Cleared;
use crate::clear::huge_state::Block;
use crate::engine::Engine;
use crate::state::pending::Served;
use crate::table::{Filler, Table};

impl Engine {
    /// Serves a fault by a huge frame in a region of them. None if no frame fits there or none can
    /// be had: the fault then gets a base page.
    pub(crate) fn serve_huge(&self, at: FaultAddress) -> Option<Served> {
        let may_be = self.has_huge.load(Ordering::Acquire);
        // The first touches of a region with a limit are counted page by page.
        let may_be = may_be && self.limits.at(at.page()).is_none();
        if may_be { self.put_huge_frame(at, Filler::EngineHuge) } else { None }
    }

    /// Puts a huge frame around `at`, which is its hottest byte, in a span with this filler. None
    /// if no frame fits there or none can be had.
    pub(crate) fn put_huge_frame(&self, at: FaultAddress, filler: Filler) -> Option<Served> {
        let address = at.page();
        if !self.huge.is_on() || !self.is_place_for_huge(address, filler) {
            return None;
        }
        let slot = match self.cleared_frame(at) {
            Cleared::Frame(slot) => slot,
            Cleared::Later => return Some(Served::GaveWay),
            Cleared::Nothing => return None,
        };
        debug_assert!(
            self.space.huge_bytes(&slot).iter().all(|&byte| byte == 0),
            "a frame is handed out clear"
        );
        let table = self.gate_shared();
        let place = |table: &Table| {
            let span = table.find(address).filter(|span| span.filler() == filler)?;
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
        let zone = self.huge.zone_of(&slot);
        let moved = self.space.fill_huge(block.range, &slot);
        let word = Word::EMPTY.with_warmth(1);
        match moved {
            HugeMove::Done => {
                let words = self.huge_came_in(block, word, HUGE_FRAME, zone);
                let huge = self.is_one_huge_page(block.range);
                self.huge.note_came(huge);
                if !huge {
                    self.note_torn(block);
                }
                block.give(span, &words.map(|word| word.with_huge(huge)));
                self.huge.put_empty(&self.space, slot);
                self.note_use();
                Some(Served::Done)
            }
            HugeMove::Nothing(stop) => {
                block.give(span, &block.each(Word::EMPTY));
                self.huge.put_zeroed(&self.space, slot);
                (stop == Stop::Again).then_some(Served::Again)
            }
            // The kernel split the frame: a part is there in small pages, and the rest of the frame
            // is freed.
            HugeMove::Part(bytes, _) => {
                self.note_torn(block);
                let words = self.huge_came_in(block, word, bytes, zone);
                block.give(
                    span,
                    &words.map(|word| if word.resident().is_empty() { Word::EMPTY } else { word }),
                );
                drop(table);
                self.give_frame_back(slot, HUGE_FRAME - bytes);
                None
            }
        }
    }

    /// Whether a huge frame fits around `address`, as far as one sees without taking anything.
    fn is_place_for_huge(&self, address: usize, filler: Filler) -> bool {
        if self.is_released() || !budget::takes_huge(self.free(), &self.marks()) {
            return false;
        }
        let table = self.gate_shared();
        let Some(span) = table.find(address).filter(|span| span.filler() == filler) else {
            return false;
        };
        Block::around(&table, span, address).is_some_and(|block| {
            !self.owes_any(block.range) && block.indices().all(|index| span.word(index) == Word::EMPTY)
        })
    }
}
