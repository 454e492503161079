//! Huge frames as steps: `huge/` of the engine. A frame is ready and zero, used, or on its way. It
//! comes and goes whole; frames that the kernel split continue by base pages. This module must
//! never hand out a frame that holds anything, nor drop the content of one.

use std::cell::RefCell;

use crate::fault::Served;
use crate::kernel::{GRANULES, HUGE, HUGE_ENTRIES, REGION, Range, Stop};
use crate::table::{Block, Page, WHOLE, give, try_take};
use crate::world::{GateGuard, World, step};
use pagoda_core::page_entry::{Backing, Granules, Word};

/// Frames of one kind that are ready at most.
const READY_MOST: usize = 2;

/// The owner of each slot of the huge arena.
pub struct Huge {
    empty: RefCell<Vec<usize>>,
    zeroed: RefCell<Vec<usize>>,
    used: RefCell<Vec<usize>>,
}

impl Huge {
    pub fn new(slots: usize) -> Self {
        Self {
            empty: RefCell::new((0..slots).collect()),
            zeroed: RefCell::default(),
            used: RefCell::default(),
        }
    }
}

/// A frame that left its region, all of it or its first part. Its entries are taken, with their
/// words from before.
struct MovedOut {
    pages: Vec<Page>,
    words: Vec<Word>,
    slot: usize,
    done: usize,
}

impl MovedOut {
    fn granules_out(&self, i: usize) -> Granules {
        Granules::range(0, self.done.saturating_sub(i * GRANULES).min(GRANULES) as u32)
    }
}

/// Whether all of an entry is in the region, and nowhere else but for old copies.
fn is_whole(word: Word) -> bool {
    word.resident() == WHOLE && !matches!(word.backing(), Backing::Slot(_))
}

impl World {
    fn block_of_region(&self, address: usize) -> Option<Block> {
        self.table.borrow().block_at(address).filter(|block| block.is_of_huge_span)
    }

    /// Serves a fault by a huge frame. None if none fits there or none can be had.
    pub async fn serve_huge(&self, address: usize) -> Option<Served> {
        let gate = self.gate_shared().await;
        let seen = self.block_of_region(address)?;
        if !seen.pages.iter().all(|page| page.entry().get() == Word::EMPTY) {
            return None;
        }
        drop(gate);
        let slot = self.cleared_frame().await?;
        let _gate = self.gate_shared().await;
        let deferred = self.is_any_deferred();
        let wanted = |word: Word| word == Word::EMPTY || self.without.second_look_for_place;
        let block = self.block_of_region(address).filter(|_| !deferred);
        let Some((block, _)) = block.and_then(|block| block.take(wanted).map(|words| (block, words))) else {
            self.huge.zeroed.borrow_mut().push(slot);
            return deferred.then_some(Served::Again);
        };
        let first = self.kernel.borrow().first_of_huge(slot);
        let progress = self.fill(block.range.clone(), first, 0).await;
        let word = Word::EMPTY.with_warmth(1);
        self.note(|| format!("engine: {} pages of a huge frame to {:?}", progress.done, block.range));
        match progress.done {
            HUGE => {
                let is_huge = self.kernel.borrow().whole_huge(&block.range).is_some();
                for page in &block.pages {
                    give(page.entry(), self.came(word, WHOLE, 0).with_huge(is_huge));
                }
                self.huge.empty.borrow_mut().push(slot);
                self.note_seen(|seen| seen.huge_in += 1);
                Some(Served::Done)
            }
            0 => {
                block.give(&[Word::EMPTY; HUGE_ENTRIES]);
                self.huge.zeroed.borrow_mut().push(slot);
                (progress.stop == Some(Stop::Again)).then_some(Served::Again)
            }
            done => {
                for (i, page) in block.pages.iter().enumerate() {
                    let here = done.saturating_sub(i * GRANULES).min(GRANULES);
                    let came = Granules::range(0, here as u32);
                    give(page.entry(), if here == 0 { Word::EMPTY } else { self.came(word, came, 0) });
                }
                self.give_frame_back(slot);
                self.note_seen(|seen| seen.huge_torn_in += 1);
                None
            }
        }
    }

    /// A frame of zeroes: one that is ready, one that was used and is cleared now, or one from the
    /// kernel.
    async fn cleared_frame(&self) -> Option<usize> {
        if let Some(slot) = self.huge.zeroed.borrow_mut().pop() {
            return Some(slot);
        }
        let used = self.huge.used.borrow_mut().pop();
        if let Some(slot) = used {
            step().await;
            self.clear(slot);
            return Some(slot);
        }
        if !self.has_room_for_huge() {
            return None;
        }
        let slot = self.huge.empty.borrow_mut().pop()?;
        self.kernel.borrow_mut().populate_huge(slot);
        Some(slot)
    }

    fn clear(&self, slot: usize) {
        if self.without.clearing_of_used_frames {
            return;
        }
        let mut kernel = self.kernel.borrow_mut();
        let first = kernel.first_of_huge(slot);
        kernel.slots[first..first + HUGE_ENTRIES].fill([Some(0); GRANULES]);
    }

    /// Gets a frame of zeroes ready, of one that was used.
    pub async fn clear_ahead(&self) {
        let used = self.huge.used.borrow_mut().pop();
        if let Some(slot) = used {
            step().await;
            self.clear(slot);
            self.huge.zeroed.borrow_mut().push(slot);
        }
    }

    fn give_frame_back(&self, slot: usize) {
        self.kernel.borrow_mut().empty_huge(slot);
        self.huge.empty.borrow_mut().push(slot);
    }

    /// Gives a frame that is ready back to the kernel. False if there is none.
    pub fn give_back_a_huge_frame(&self) -> bool {
        let used = self.huge.used.borrow_mut().pop();
        let ready = used.or_else(|| self.huge.zeroed.borrow_mut().pop());
        ready.inspect(|&slot| self.give_frame_back(slot)).is_some()
    }

    /// Whether a base page lies in a huge page: then it only leaves with all of that. Where the
    /// kernel has split it, its entries know it from now on.
    pub async fn leaves_huge(&self, page: &Page) -> bool {
        let block = self.block_of_region(page.addresses(0, 1).start);
        let is_huge = |block: &Block| self.kernel.borrow().whole_huge(&block.range).is_some();
        if self.without.whole_huge_pages || block.as_ref().is_some_and(is_huge) {
            return !self.without.whole_huge_pages;
        }
        step().await;
        if let Some(block) =
            block.filter(|_| page.entry().get().is_huge() && !self.without.forgetting_of_huge)
        {
            self.forget_huge(&block).await;
        }
        false
    }

    async fn forget_huge(&self, block: &Block) {
        let mut taken = Vec::new();
        for page in block.pages.iter().filter(|page| page.entry().get().is_huge()) {
            taken.extend(try_take(page.entry()).map(|word| (page, word)));
            step().await;
        }
        let is_huge = self.kernel.borrow().whole_huge(&block.range).is_some();
        self.note(|| format!("engine: {:?} was taken apart: {}", block.range, !is_huge));
        self.note_seen(|seen| seen.huge_forgotten += usize::from(!is_huge && !taken.is_empty()));
        for (page, word) in taken {
            give(page.entry(), word.with_huge(word.is_huge() && is_huge));
        }
    }

    /// Moves the huge frame around `address` out of its region and stores its content, without the
    /// gate. False if it has to be tried again.
    pub async fn evict_huge(&self, gate: GateGuard<'_>, address: usize) -> bool {
        match self.move_huge_out(address).await {
            Ok(out) => {
                drop(gate);
                self.store_moved_out(out).await;
                true
            }
            Err(stop) => stop != Some(Stop::Again),
        }
    }

    async fn move_huge_out(&self, address: usize) -> Result<MovedOut, Option<Stop>> {
        let block = self.block_of_region(address).ok_or(None)?;
        let words = block.take(is_whole).ok_or(None)?;
        step().await;
        let with_warmth =
            |warmth| -> Vec<Word> { words.iter().map(|word| word.with_warmth(warmth)).collect() };
        let Some(slot) = self.huge.empty.borrow_mut().pop() else {
            block.give(&with_warmth(3));
            return Err(None);
        };
        let is_huge = self.kernel.borrow().whole_huge(&block.range).is_some();
        let first = self.kernel.borrow().first_of_huge(slot);
        let (done, stop) = if is_huge {
            // The kernel may take it apart at this very moment.
            if self.below(8) == 0 {
                self.kernel.borrow_mut().split(block.range.start / HUGE);
            }
            let progress = self.move_out(block.range.clone(), first, 0).await;
            (progress.done, progress.stop)
        } else {
            (0, Some(Stop::Refused))
        };
        self.note(|| format!("engine: {done} pages of the huge frame at {:?} go", block.range));
        if done == 0 {
            self.huge.empty.borrow_mut().push(slot);
            block.give(&with_warmth(if stop == Some(Stop::Again) { words[0].warmth() } else { 3 }));
            return Err(stop);
        }
        self.note_seen(|seen| if done == HUGE { seen.huge_out += 1 } else { seen.huge_torn_out += 1 });
        self.in_regions(0, -(done as isize));
        let done = if self.without.parts_of_huge_frames { HUGE } else { done };
        Ok(MovedOut { pages: block.pages, words, slot, done })
    }

    async fn store_moved_out(&self, out: MovedOut) {
        let first = self.kernel.borrow().first_of_huge(out.slot);
        for (i, page) in out.pages.iter().enumerate() {
            step().await;
            let gone = out.granules_out(i);
            if gone.is_empty() {
                give(page.entry(), out.words[i].with_huge(false).with_warmth(3));
                continue;
            }
            if let Backing::Handle(handle) = out.words[i].backing()
                && !self.without.freeing_of_huge_copies
            {
                self.store.borrow_mut().remove(&handle);
            }
            let content = self.kernel.borrow().slots[first + i].map(Option::unwrap_or_default);
            // If the frame went in part, or the store is full, a copy is staged.
            if gone != WHOLE || self.below(6) == 0 {
                self.stage_copy(page, gone, content).await;
                continue;
            }
            let backing =
                if content == [0; GRANULES] { Backing::None } else { Backing::Handle(self.put(content)) };
            give(page.entry(), Word::EMPTY.with_backing(backing));
        }
        if out.done == HUGE && self.huge.used.borrow().len() < READY_MOST {
            self.huge.used.borrow_mut().push(out.slot);
        } else {
            self.give_frame_back(out.slot);
        }
    }

    async fn stage_copy(&self, page: &Page, gone: Granules, content: [u64; GRANULES]) {
        let Some(slot) = self.take_ready().or_else(|| self.take_empty()) else {
            return self.fail("no slot for a part of a huge frame".into());
        };
        step().await;
        let copied = |i: usize| Some(if gone.has(i as u32) { content[i] } else { 0 });
        self.kernel.borrow_mut().slots[slot] = std::array::from_fn(copied);
        self.publish_staged(page, Word::EMPTY.with_resident(WHOLE.without(gone)), slot).await;
    }

    /// Stores the huge frames of which `range` covers a part: that part is about to be discarded.
    pub async fn take_huge_apart(&self, range: &Range) {
        for end in [range.start, range.end].into_iter().filter(|end| end % HUGE != 0) {
            loop {
                let gate = self.gate_shared().await;
                let is_huge =
                    self.table.borrow().page_at(end).is_some_and(|page| page.entry().get().is_huge());
                if !is_huge || self.evict_huge(gate, end).await {
                    break;
                }
            }
        }
    }

    /// Keeps the huge frames of the region, which is no longer used, for others.
    pub async fn keep_huge_frames(&self) {
        for at in REGION.step_by(HUGE) {
            let _gate = self.gate_shared().await;
            if self.is_any_deferred() || self.huge.used.borrow().len() >= READY_MOST {
                continue;
            }
            let Ok(out) = self.move_huge_out(at).await else { continue };
            for (i, page) in out.pages.iter().enumerate() {
                let word = out.words[i];
                give(
                    page.entry(),
                    word.with_resident(word.resident().without(out.granules_out(i))).with_huge(false),
                );
            }
            if out.done == HUGE {
                self.huge.used.borrow_mut().push(out.slot);
                self.note_seen(|seen| seen.huge_kept += 1);
            } else {
                self.give_frame_back(out.slot);
            }
        }
    }

    /// Has the kernel join the base pages of the place of a huge frame, if all of them are there.
    pub async fn rebuild(&self) {
        let _gate = self.gate_shared().await;
        let places = REGION.len() / HUGE;
        let block = self.block_of_region(REGION.start + self.below(places) * HUGE);
        let Some(block) = block.filter(|_| !self.is_any_deferred() && self.has_room_for_huge()) else {
            return;
        };
        if block.pages.iter().all(|page| page.entry().get().is_huge()) {
            return;
        }
        let Some(words) = block.take(is_whole) else { return };
        step().await;
        let is_joined = self.kernel.borrow_mut().join(block.range.start / HUGE);
        step().await;
        let is_huge = is_joined && self.kernel.borrow().whole_huge(&block.range).is_some();
        self.note_seen(|seen| seen.joined += usize::from(is_huge));
        self.note(|| format!("engine: {:?} is joined: {is_huge}", block.range));
        block.give(&words.iter().map(|word| word.with_huge(is_huge)).collect::<Vec<Word>>());
    }

    fn has_room_for_huge(&self) -> bool {
        self.has_room_for(HUGE)
    }
}
