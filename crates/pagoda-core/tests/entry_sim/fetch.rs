//! Swapping in as steps: `fetch` and `ahead` of the engine. A fetch must never touch a region.

use crate::kernel::GRANULES;
use crate::table::{Page, WHOLE, give, try_take};
use crate::world::{World, step};
use pagoda_core::page_entry::{Backing, Granules, Word};

/// Pages that are fetched ahead at once, at most.
const AHEAD_PAGES: usize = 2;

impl World {
    pub fn stored(&self, handle: u64) -> Option<[u64; GRANULES]> {
        let content = self.store.borrow().get(&handle).copied();
        if content.is_none() {
            self.fail(format!("handle {handle} is read after it was freed"));
        }
        content
    }

    /// Swaps a stored page in to a slot, and gives the entry back as staged; the thread that
    /// installs it, or discards a part of it, queues it.
    pub async fn fetch(&self, page: &Page, word: Word, handle: u64, regardless: bool) -> bool {
        let fresh = || if regardless || self.has_room() { self.take_empty() } else { None };
        let Some(slot) = self.take_ready().or_else(fresh) else {
            give(page.entry(), word);
            return false;
        };
        step().await;
        let content = self.store.borrow_mut().remove(&handle);
        let Some(content) = content else {
            self.fail(format!("handle {handle} is read after it was freed"));
            return false;
        };
        self.kernel.borrow_mut().slots[slot] = content.map(Some);
        step().await;
        self.staged(slot, 1);
        give(page.entry(), word.with_backing(Backing::Slot(self.release_slot(slot) as u32)));
        true
    }

    /// Brings in the stored pages from `address` on, with ready frames, as far as they are wholly
    /// stored and wholly of one span.
    pub async fn fetch_ahead(&self, address: usize) {
        let _gate = self.gate_shared().await;
        if self.is_any_deferred() {
            return;
        }
        let pages: Vec<Page> = {
            let table = self.table.borrow();
            let Some(first) = table.page_at(address).map(|page| page.index) else { return };
            let span = table.find(address).expect("a page lies in a span");
            let pages = span.pages(&span.range).into_iter().skip_while(|page| page.index < first);
            pages.take_while(|page| page.granules == WHOLE).take(AHEAD_PAGES).collect()
        };
        let mut taken = Vec::new();
        for page in pages {
            step().await;
            let Some(word) = try_take(page.entry()) else { break };
            let slot = match word.backing() {
                Backing::Handle(_) if word.resident().is_empty() => self.take_ready(),
                _ => None,
            };
            let Some(slot) = slot else {
                give(page.entry(), word);
                break;
            };
            let Backing::Handle(handle) = word.backing() else { return };
            let Some(content) = self.stored(handle) else { return };
            self.kernel.borrow_mut().slots[slot] = content.map(Some);
            taken.push((page, word, slot));
        }
        let mut is_stopped = false;
        for (page, word, slot) in taken {
            let mut at = 0;
            while !is_stopped && at < GRANULES as u32 {
                let to = page.addresses(at, GRANULES as u32);
                let progress = self.fill(to, slot, at as usize).await;
                at += progress.done as u32;
                is_stopped = progress.stop.is_some();
            }
            self.note(|| format!("engine: {at} granules ahead of {page:?}"));
            let here = Granules::range(0, at);
            self.put_pieces(slot, WHOLE.without(here));
            give(page.entry(), self.came(word, here, self.zone_of(slot)).with_warmth(1));
        }
    }
}
