//! Eviction as steps: `reclaim` of the engine, one await for each of its atomic steps.

use std::rc::Rc;

use crate::kernel::{GRANULES, REGION, Stop};
use crate::table::{Page, WHOLE, give, try_take};
use crate::world::{GateGuard, Staged, World, step};
use pagoda_core::page_entry::{Backing, Granules, Word};

/// Rounds after which every evictable page has left: one cools a page by one of three.
const ROUNDS_TO_LEAVE: usize = 16;

/// Base pages that go by one move, at most.
const RUN_MOST: usize = 4;

/// Granules that were moved out and may have a copy in the store: an entry whose busy bit is held.
struct Copied {
    page: Page,
    /// As it was before they went.
    before: Word,
    handle: u64,
    slot: usize,
    out: Granules,
}

/// How many of these pages follow each other in one span, are whole, cold and of one zone.
fn run_len(pages: &[Page], of_any_zone: bool) -> usize {
    let first = pages[0].entry().get();
    let mut len = 0;
    for page in pages {
        let word = page.entry().get();
        let follows = Rc::ptr_eq(&page.entries, &pages[0].entries)
            && page.index == pages[0].index + len
            && page.base == pages[0].base + (len * GRANULES) as isize;
        let may_go = word.warmth() == 0 && !word.is_busy() && !word.is_huge();
        let is_whole = page.granules == WHOLE && word.resident() == WHOLE;
        if !follows || !may_go || !is_whole || word.zone() != first.zone() && !of_any_zone {
            break;
        }
        len += 1;
    }
    len
}

impl World {
    /// Moves pages out: the hand of reclaim, which falls where the seed says.
    pub async fn stage_next(&self) {
        let gate = self.gate_shared().await;
        let pages: Vec<Page> = self.table.borrow().spans().flat_map(|span| span.pages(&span.range)).collect();
        if pages.is_empty() || self.is_any_deferred() {
            return;
        }
        let first = self.below(pages.len());
        let is_to_run = self.below(4) > 0;
        self.stage_at(gate, pages[first..].to_vec(), is_to_run).await;
    }

    /// Stages the first of these pages, or several, or the huge frame that it lies in.
    async fn stage_at(&self, gate: GateGuard<'_>, mut pages: Vec<Page>, is_to_run: bool) {
        let page = pages[0].clone();
        let word = page.entry().get();
        let is_candidate = !word.resident().is_empty() || self.without.resident_mask;
        if word.is_busy() || !is_candidate {
            return;
        }
        if word.warmth() > 0 {
            return page.entry().set(word.with_warmth(word.warmth() - 1));
        }
        if self.setting.has_region && page.granules == WHOLE && self.leaves_huge(&page).await {
            self.evict_huge(gate, page.addresses(0, 1).start).await;
            return;
        }
        step().await;
        let mut copied = Vec::new();
        pages.truncate(RUN_MOST);
        pages.truncate(run_len(&pages, self.without.zones_of_runs));
        if pages.len() < 2 || !is_to_run || !self.stage_run(&pages, &mut copied).await {
            self.stage_page(&page, &mut copied).await;
        }
        drop(gate);
        for Copied { page, before, handle, slot, out } in copied {
            self.settle_copied(&page, before, handle, slot, out).await;
        }
    }

    /// When the programs have ended: all of the region can leave.
    pub async fn empty_region(&self) {
        let pages = || -> Vec<Page> {
            let table = self.table.borrow();
            table.find(REGION.start).map(|span| span.pages(&span.range)).unwrap_or_default()
        };
        for _ in 0..ROUNDS_TO_LEAVE {
            for page in pages() {
                let gate = self.gate_shared().await;
                self.stage_at(gate, vec![page], false).await;
                self.store_oldest().await;
            }
        }
        if let Some(page) = pages().iter().find(|page| !page.entry().get().resident().is_empty()) {
            self.fail(format!("{page:?} can never leave: {:?}", page.entry().get()));
        }
    }

    /// Stages whole pages by one move. False if they are not all whole and free to go.
    async fn stage_run(&self, pages: &[Page], copied: &mut Vec<Copied>) -> bool {
        let order = pages.len().ilog2();
        let pages = &pages[..1 << order];
        let zone = pages[0].entry().get().zone();
        let is_whole = |word: Word| {
            word.resident() == WHOLE
                && (word.zone() == zone || self.without.zones_of_runs)
                && !word.is_huge()
                && !matches!(word.backing(), Backing::Slot(_))
        };
        let mut taken = Vec::new();
        for page in pages {
            let Some(word) = try_take(page.entry()) else { break };
            if !is_whole(word) {
                give(page.entry(), word);
                break;
            }
            taken.push(word);
            step().await;
        }
        let give_all = |taken: &[Word]| {
            for (page, &word) in pages.iter().zip(taken) {
                give(page.entry(), word);
            }
        };
        let run = if taken.len() == pages.len() { self.take_empty_run(zone, order) } else { None };
        let Some(first) = run else {
            give_all(&taken);
            return false;
        };
        let start = pages[0].addresses(0, 1).start;
        let end = start + pages.len() * GRANULES;
        let mut moved = 0;
        let stop = loop {
            let progress = self.evict(start + moved..end, first + moved / GRANULES, moved % GRANULES).await;
            moved += progress.done;
            if start + moved == end {
                break None;
            }
            if progress.stop.is_some() {
                break progress.stop;
            }
        };
        if moved == 0 && matches!(stop, Some(Stop::Refused | Stop::Missing)) {
            (first..first + pages.len()).for_each(|slot| self.put_empty(slot));
            give_all(&taken);
            return false;
        }
        self.note(|| format!("engine: {moved} pages of a run at {start} go to slot {first}"));
        self.note_seen(|seen| {
            seen.runs += 1;
            seen.runs_in_part += usize::from(moved % GRANULES > 0);
        });
        self.in_regions(zone, -(moved as isize));
        for (i, page) in pages.iter().enumerate() {
            let (slot, before) = (first + i, taken[i]);
            let of_page = moved.saturating_sub(i * GRANULES).min(GRANULES);
            let of_page = if self.without.end_of_runs && of_page > 0 { GRANULES } else { of_page };
            let out = Granules::range(0, of_page as u32);
            if out.is_empty() {
                self.put_empty(slot);
                give(page.entry(), before);
            } else if let Backing::Handle(handle) = before.backing() {
                copied.push(Copied { page: page.clone(), before, handle, slot, out });
            } else {
                self.publish_staged(page, before.with_resident(WHOLE.without(out)), slot).await;
            }
        }
        true
    }

    /// Stages the evictable part of one page.
    async fn stage_page(&self, page: &Page, copied: &mut Vec<Copied>) {
        let Some(word) = try_take(page.entry()) else { return };
        if word.is_huge() && !self.without.whole_huge_pages {
            return give(page.entry(), word.with_warmth(3));
        }
        let slot = match word.backing() {
            Backing::None | Backing::Handle(_) => self.take_empty_of(word.zone(), 1),
            Backing::Slot(slot) => Some(self.claim_slot(slot as usize)),
        };
        let Some(slot) = slot else { return give(page.entry(), word) };
        // A granule that came in by a copy has left one in the slot, which is stored before the
        // page moves out again.
        let taken = match word.backing() {
            Backing::Slot(_) if !self.without.places_taken_in_slots => self.pages_of(slot),
            _ => Granules::NONE,
        };
        let candidates = if self.without.resident_mask { WHOLE } else { word.resident().without(taken) };
        let out = self.evict_granules(page, page.granules.and(candidates), slot).await;
        step().await;
        self.note(|| format!("engine: evict {out:?} of {page:?} to slot {slot}"));
        self.in_regions(word.zone(), -(out.count() as isize));
        let before = word;
        let word = word.with_resident(word.resident().without(out));
        match word.backing() {
            Backing::None | Backing::Handle(_) if out.is_empty() => {
                self.put_empty(slot);
                give(page.entry(), word);
            }
            Backing::Handle(handle) => {
                copied.push(Copied { page: page.clone(), before, handle, slot, out });
            }
            Backing::None => self.publish_staged(page, word, slot).await,
            Backing::Slot(_) => {
                // It has been in the queue since it was staged.
                self.release_slot(slot);
                give(page.entry(), word);
            }
        }
    }

    /// Enters a page that is now in `slot` as staged.
    pub async fn publish_staged(&self, page: &Page, word: Word, slot: usize) {
        self.release_slot(slot);
        self.staged(slot, 1);
        give(page.entry(), word.with_backing(Backing::Slot(slot as u32)));
        step().await;
        self.queue_staged(page, slot);
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

    /// Finishes granules that moved out and have a stored copy, as it was `before`: a clean copy is
    /// dropped, a dirty part is stored anew with the rest, and a whole page is staged.
    async fn settle_copied(&self, page: &Page, before: Word, handle: u64, slot: usize, out: Granules) {
        step().await;
        let after = before.with_resident(before.resident().without(out));
        let Some(stored) = self.store.borrow().get(&handle).copied() else {
            return self.fail(format!("handle {handle} is compared after it was freed"));
        };
        let went = self.kernel.borrow().slots[slot].map(Option::unwrap_or_default);
        let goes_by = |i: usize| if out.has(i as u32) { went[i] } else { stored[i] };
        let content: [u64; GRANULES] = std::array::from_fn(goes_by);
        // A part of a page on the disk is not compared.
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
        self.publish_staged(page, after, slot).await;
    }

    pub fn put(&self, content: [u64; GRANULES]) -> u64 {
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
                // It may stay staged: a thread must still find it.
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
            self.staged(slot, -1);
            give(entry, word.with_backing(backing).with_warmth(0));
            step().await;
            return self.put_ready(slot);
        }
    }
}
