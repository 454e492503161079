//! What leaves, as steps: `reclaim` of the engine, one await for each of its atomic steps.

use std::rc::Rc;

use crate::kernel::{GRANULES, Stop};
use crate::table::{Page, WHOLE, give, try_take};
use crate::world::{Staged, World, step};
use pagoda_core::entry::{Backing, Granules, Word};

impl World {
    /// Moves pages out: the hand of reclaim, which falls where the seed says.
    pub async fn stage_next(&self) {
        let gate = self.gate_shared().await;
        if self.is_any_deferred() {
            return;
        }
        let page = {
            let table = self.table.borrow();
            let pages: Vec<Page> = table.spans().flat_map(|span| span.pages(&span.range)).collect();
            if pages.is_empty() {
                return;
            }
            pages[self.below(pages.len())].clone()
        };
        let word = page.entry().get();
        let is_candidate = !word.resident().is_empty() || self.without.resident_mask;
        if word.is_busy() || !is_candidate {
            return;
        }
        if word.warmth() > 0 {
            return page.entry().set(word.with_warmth(word.warmth() - 1));
        }
        step().await;
        let Some(word) = try_take(page.entry()) else { return };
        let slot = match word.backing() {
            Backing::None | Backing::Handle(_) => self.take_empty(),
            Backing::Slot(slot) => Some(self.claim_slot(slot as usize)),
        };
        let Some(slot) = slot else { return give(page.entry(), word) };
        // What came in by a copy has left one there, which is stored before it goes out again.
        let taken = match word.backing() {
            Backing::Slot(_) if !self.without.places_taken_in_slots => self.pages_of(slot),
            _ => Granules::NONE,
        };
        let candidates = if self.without.resident_mask { WHOLE } else { word.resident().without(taken) };
        let out = self.evict_granules(&page, page.granules.and(candidates), slot).await;
        step().await;
        self.note(|| format!("engine: evict {out:?} of {page:?} to slot {slot}"));
        let before = word;
        let word = word.with_resident(word.resident().without(out));
        match word.backing() {
            Backing::None | Backing::Handle(_) if out.is_empty() => {
                self.put_empty(slot);
                give(page.entry(), word);
            }
            Backing::Handle(handle) => {
                drop(gate);
                self.settle_copied(&page, before, handle, slot, out).await;
            }
            Backing::None => {
                self.release_slot(slot);
                give(page.entry(), word.with_backing(Backing::Slot(slot as u32)));
                step().await;
                self.queue_staged(&page, slot);
            }
            Backing::Slot(_) => {
                // It has been in the queue since it was staged.
                self.release_slot(slot);
                give(page.entry(), word);
            }
        }
    }

    /// Moves granules out into a slot, and returns those that went.
    async fn evict_granules(&self, page: &Page, granules: Granules, slot: usize) -> Granules {
        let mut out = Granules::NONE;
        for (from, to) in granules.runs() {
            let (mut at, mut end) = (from, to);
            while at < to {
                let progress = self.evict(page.addresses(at, end), slot, at as usize).await;
                let reached = at + progress.done as u32;
                out = out.or(Granules::range(at, reached));
                at = reached;
                match progress.stop {
                    None => {}
                    Some(Stop::Again) => return out,
                    Some(Stop::Refused | Stop::Missing) if end > at + 1 => {
                        end = at + 1;
                        continue;
                    }
                    Some(_) => at += 1,
                }
                end = if end == to { to } else { (at + 1).min(to) };
            }
        }
        out
    }

    /// Finishes what went out and has a stored copy, as it was `before`: a drop if nothing was written, else a part is stored
    /// anew with the rest, and all of a page is staged.
    async fn settle_copied(&self, page: &Page, before: Word, handle: u64, slot: usize, out: Granules) {
        step().await;
        let after = before.with_resident(before.resident().without(out));
        let Some(stored) = self.store.borrow().get(&handle).copied() else {
            return self.fail(format!("handle {handle} is compared after it was freed"));
        };
        let went = self.kernel.borrow().slots[slot].map(Option::unwrap_or_default);
        let goes_by = |i: usize| if out.has(i as u32) { went[i] } else { stored[i] };
        let content: [u64; GRANULES] = std::array::from_fn(goes_by);
        // A part of what is on the disk is not compared.
        let may_compare = out == WHOLE || self.below(8) > 0;
        if self.without.comparison_of_copies || may_compare && content == stored {
            self.note(|| format!("engine: drop {out:?} of {page:?}"));
            step().await;
            self.put_pieces(slot, out);
            return give(page.entry(), after);
        }
        let rest = WHOLE.without(out).without(after.resident());
        // Not if it is on the disk, or if there is no room.
        if !rest.is_empty() && self.below(4) > 0 {
            let anew = self.put(content);
            step().await;
            if !self.without.freeing_of_old_copies {
                self.store.borrow_mut().remove(&handle);
            }
            self.note(|| format!("engine: store {out:?} of {page:?} anew"));
            self.put_pieces(slot, out);
            return give(page.entry(), after.with_backing(Backing::Handle(anew)));
        }
        for i in (0..GRANULES).filter(|&i| rest.has(i as u32)) {
            self.kernel.borrow_mut().slots[slot][i] = Some(stored[i]);
            step().await;
        }
        self.store.borrow_mut().remove(&handle);
        self.note(|| format!("engine: stage {out:?} of {page:?} with {rest:?} of its copy"));
        self.release_slot(slot);
        give(page.entry(), after.with_backing(Backing::Slot(slot as u32)));
        step().await;
        self.queue_staged(page, slot);
    }

    fn put(&self, content: [u64; GRANULES]) -> u64 {
        let handle = self.next_handle.replace(self.next_handle.get() + 1);
        self.store.borrow_mut().insert(handle, content);
        handle
    }

    /// Stores the page that has been staged for longest.
    pub async fn store_oldest(&self) {
        let looks = self.queue.borrow().len();
        for _ in 0..looks {
            step().await;
            let Some(Staged { entries, index, slot }) = self.queue.borrow_mut().pop_front() else { return };
            let entry = &entries[index];
            step().await;
            let Some(word) = try_take(entry) else {
                // It may stay staged: somebody must still find it.
                if !self.without.queueing_again {
                    self.queue.borrow_mut().push_back(Staged { entries: Rc::clone(&entries), index, slot });
                }
                continue;
            };
            if word.backing() != Backing::Slot(slot as u32) {
                give(entry, word);
                continue;
            }
            let slot = self.claim_slot(slot);
            step().await;
            let content = self.kernel.borrow().slots[slot].map(Option::unwrap_or_default);
            let backing =
                if content == [0; GRANULES] { Backing::None } else { Backing::Handle(self.put(content)) };
            step().await;
            self.note(|| format!("engine: store entry {index} from slot {slot} as {content:?}"));
            give(entry, word.with_backing(backing).with_warmth(0));
            step().await;
            return self.put_ready(slot);
        }
    }
}
