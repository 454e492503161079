//! A fault that gets a huge frame.
//!
//! The place is checked before a frame is made ready. It is checked again, with the entries taken,
//! before the frame is moved in. This module must never put a frame over a page that is present,
//! stored or owed.

use std::sync::atomic::Ordering;

use pagoda_core::budget;
use pagoda_core::page::HUGE_FRAME;
use pagoda_core::page_entry::Word;
use pagoda_linux::arena::huge_arena::{HugeMove, HugeSlot};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::process::thread::{now_ns, sleep_us, yield_now};
use pagoda_linux::uffd::Stop;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::clear::huge::Cleared;
use crate::clear::huge_state::{Block, ENTRIES};
use crate::engine::Engine;
use crate::state::pending::{Fault, Served};
use crate::store::Scratch;
use crate::table::{Filler, Table};

/// Yields to the thread that frees a page table, after which its asker sleeps in between.
const YIELDS: u32 = 64;

/// How long it sleeps.
const SLEEP_US: u32 = 20;

/// The outcome of a move of a huge frame into a region.
struct CameIn {
    served: Option<Served>,
    /// A slot of which only a part moved, and the bytes of the rest.
    rest: Option<(HugeSlot, usize)>,
}

impl Engine {
    /// Serves a fault by a huge frame in a region of them. None if no frame fits there or none can
    /// be had: the fault then gets a base page.
    pub(crate) fn serve_huge(&self, at: FaultAddress, scratch: &mut Scratch) -> Option<Served> {
        let may_be = self.has_huge.load(Ordering::Acquire);
        // The first touches of a region with a limit are counted page by page.
        let may_be = may_be && self.limits.at(at.page()).is_none();
        if may_be { self.put_huge_frame(at, Filler::EngineHuge, Some(scratch)) } else { None }
    }

    /// Puts a huge frame around `at`, which is its hottest byte, in a span with this filler. None
    /// if no frame fits there or none can be had. For a fault, which has made a table of OS pages
    /// there, with the working memory of its thread.
    pub(crate) fn put_huge_frame(
        &self,
        at: FaultAddress,
        filler: Filler,
        fault: Option<&mut Scratch>,
    ) -> Option<Served> {
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
        let fault = fault.filter(|scratch| self.table_drop.is_on() && scratch.beside.is_some());
        let came = match fault {
            Some(scratch) => {
                let mut table = self.gate_exclusive();
                if let Some(block) = self.empty_block(&table, address, filler) {
                    self.free_page_table(&mut table, block.range, scratch);
                }
                self.move_huge_in(&table, address, filler, slot)
            }
            None => self.move_huge_in(&self.gate_shared(), address, filler, slot),
        };
        if let Some((slot, bytes)) = came.rest {
            self.give_frame_back(slot, bytes);
        }
        came.served
    }

    /// Has the table of OS pages freed that a fault made at `place`, where nothing is. The thread
    /// that does it waits for its event, which is read here with all others that have come.
    fn free_page_table(&self, table: &mut Table, place: PageRange, scratch: &mut Scratch) {
        let mut beside = scratch.beside.take().unwrap_or_default();
        let mut rounds = 0;
        self.space.be_quiet(|| {
            self.table_drop.ask(place.start());
            while !self.table_drop.is_done() {
                if self.handlers_may_end() {
                    self.table_drop.take_back(place.start());
                }
                let read = self.space.read(|message| {
                    if let Some((at, write, thread)) = self.apply(table, message, scratch) {
                        beside.push(Fault { thread, ..Fault::new(at, write, now_ns()) });
                    }
                });
                if let Err(errno) = read {
                    self.stop_unread(errno);
                }
                rounds += 1;
                // A thread of a higher class yields to none of the usual one.
                if rounds < YIELDS { yield_now() } else { sleep_us(SLEEP_US) }
            }
        });
        self.events_wait.store(table.order.deferred() > 0, Ordering::Relaxed);
        scratch.beside = Some(beside);
    }

    /// Moves a zeroed frame to its place around `address`, if that is still empty.
    fn move_huge_in(&self, table: &Table, address: usize, filler: Filler, slot: HugeSlot) -> CameIn {
        let place = || {
            let span = table.find(address).filter(|span| span.filler() == filler)?;
            let block = Block::around(table, span, address)?;
            let taken = block.take(span, |word| word == Word::EMPTY)?;
            if self.owes_any(block.range) {
                block.give(span, &taken);
                return None;
            }
            Some((span, block))
        };
        let deferred = table.order.deferred() > 0;
        let Some((span, block)) = (!deferred).then(place).flatten() else {
            self.huge.put_zeroed(&self.space, slot);
            return CameIn { served: deferred.then_some(Served::Again), rest: None };
        };
        let zone = self.huge.zone_of(&slot);
        let moved = self.space.fill_huge(block.range, &slot);
        let word = Word::EMPTY.with_warmth(1);
        match moved {
            HugeMove::Done => {
                let words = self.huge_came_in(word, HUGE_FRAME, zone);
                let huge = self.is_one_huge_page(block.range);
                self.huge.note_came(huge);
                if !huge {
                    self.note_torn(block);
                }
                block.give(span, &words.map(|word| word.with_huge(huge)));
                self.huge.put_empty(&self.space, slot);
                self.note_use();
                CameIn { served: Some(Served::Done), rest: None }
            }
            HugeMove::Nothing(stop) => {
                block.give(span, &[Word::EMPTY; ENTRIES]);
                self.huge.put_zeroed(&self.space, slot);
                CameIn { served: (stop == Stop::Again).then_some(Served::Again), rest: None }
            }
            // The kernel split the frame: a part is there in small pages, and the rest of the frame
            // is freed.
            HugeMove::Part(bytes, _) => {
                self.note_torn(block);
                let words = self.huge_came_in(word, bytes, zone);
                block.give(
                    span,
                    &words.map(|word| if word.resident().is_empty() { Word::EMPTY } else { word }),
                );
                CameIn { served: None, rest: Some((slot, HUGE_FRAME - bytes)) }
            }
        }
    }

    /// Whether a huge frame fits around `address`, as far as one sees without taking anything.
    fn is_place_for_huge(&self, address: usize, filler: Filler) -> bool {
        if self.is_released() || !budget::takes_huge(self.free(), &self.marks()) {
            return false;
        }
        self.empty_block(&self.gate_shared(), address, filler).is_some()
    }

    /// The place of a huge frame around `address`, if nothing is there, in the region or elsewhere,
    /// and no thread is about to bring anything.
    fn empty_block(&self, table: &Table, address: usize, filler: Filler) -> Option<Block> {
        let span = table.find(address).filter(|span| span.filler() == filler)?;
        let block = Block::around(table, span, address)?;
        let is_empty = block.indices().all(|index| span.word(index) == Word::EMPTY);
        (is_empty && !self.owes_any(block.range)).then_some(block)
    }
}
