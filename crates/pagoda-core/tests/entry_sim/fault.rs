//! Serving a fault as steps: `fault` of the engine, one await for each of its atomic steps, around
//! the real `Word` and `Granules`. This module must never touch the region without the gate.

use crate::fill::{MovedIn, one};
use crate::kernel::{GRANULES, Stop};
use crate::table::{Page, WHOLE, give, try_take};
use crate::world::{World, step};
use pagoda_core::page_entry::{Backing, Granules, Word};

#[derive(PartialEq, Eq)]
pub enum Served {
    Done,
    Again,
    Busy,
    NoMemory,
}

impl World {
    pub async fn serve(&self, address: usize) -> Served {
        if self.setting.has_region
            && let Some(served) = self.serve_huge(address).await
        {
            return served;
        }
        loop {
            let table = self.gate_shared().await;
            // The kernel refuses while an event is unread; only the engine knows of an event that
            // was read and waits.
            if self.is_any_deferred() {
                return Served::Again;
            }
            let Some(page) = self.table.borrow().page_at(address) else {
                // Registered memory that the table does not know: nothing was ever taken from
                // there.
                return self.fill_one(address).await.1;
            };
            step().await;
            let Some(word) = try_take(page.entry()) else { return Served::Busy };
            let granule = page.granule_of(address);
            step().await;
            if word.resident().has(granule) {
                let (_, served) = self.fill_one(address).await;
                give(page.entry(), word);
                return served;
            }
            match word.backing() {
                Backing::None => {
                    let (word, served) = self.fill_zero(&page, word, granule).await;
                    give(page.entry(), word);
                    return served;
                }
                Backing::Slot(slot) => {
                    let (word, served) = self.install(&page, word, slot as usize, granule).await;
                    give(page.entry(), word);
                    return served;
                }
                // Which of these happens depends on the program's access pattern and on how full
                // the store is.
                Backing::Handle(handle) if self.below(3) == 0 => {
                    let (word, served) = self.install_part(&page, word, handle, granule).await;
                    give(page.entry(), word);
                    return served;
                }
                Backing::Handle(handle) if self.below(2) == 0 => {
                    let (word, served) = self.install_copy(&page, word, handle, granule).await;
                    give(page.entry(), word);
                    return served;
                }
                Backing::Handle(handle) => {
                    drop(table);
                    if !self.fetch(&page, word, handle, false).await {
                        return Served::NoMemory;
                    }
                }
            }
        }
    }

    pub fn settle(&self, stop: Option<Stop>, address: usize) -> Served {
        match stop {
            None => Served::Done,
            Some(Stop::Again) => Served::Again,
            Some(Stop::Exists | Stop::Missing) => {
                self.kernel.borrow_mut().wake(address..address + 1);
                Served::Done
            }
            Some(Stop::Busy | Stop::Refused) => {
                self.fail("a fill was refused".into());
                Served::Done
            }
        }
    }

    async fn fill_zero(&self, page: &Page, word: Word, granule: u32) -> (Word, Served) {
        let run = page.granules.without(word.resident()).run_around(granule);
        let Some((from, to)) = run.runs().next() else { return (word, Served::Again) };
        let room = self.has_room();
        let several = self.setting.zones > 1;
        let frame = if self.below(2) == 0 || !room { self.take_ready() } else { None };
        // With several zones every frame begins in a slot.
        let frame = frame.or_else(|| if room && several { self.take_empty() } else { None });
        let mut zone = self.zone_of_kernel_memory(word);
        let moved = if let Some(slot) = frame {
            zone = self.zone_of(slot);
            step().await;
            self.kernel.borrow_mut().slots[slot] = [Some(0); GRANULES];
            let moved = self.move_in(page, slot, run).await;
            self.put_pieces(slot, WHOLE.without(moved.done).or(moved.copied));
            moved
        } else if !room || several {
            return (word, Served::NoMemory);
        } else {
            self.fill_fresh(page, from, to).await
        };
        self.note(|| format!("engine: zero {:?} of {page:?}", moved.done));
        let word = self.came(word, moved.done, zone);
        if moved.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(moved.stop, page.addresses(granule, granule + 1).start))
    }

    /// Puts the content of a staged page into the region. A granule without a page in the slot
    /// reads as zero, and comes in when a fault asks for it.
    async fn install(&self, page: &Page, word: Word, slot: usize, granule: u32) -> (Word, Served) {
        let slot = self.claim_slot(slot);
        let there = self.pages_of(slot);
        // All of it, or the granule alone: that depends on how the program reads, too.
        let want = if self.below(3) > 0 { page.granules } else { one(granule) };
        let moved = self.move_in(page, slot, want.and(there).without(word.resident())).await;
        self.note(|| format!("engine: install {:?} of {page:?} from slot {slot}", moved.done));
        let holes = if self.without.holes_of_slots { page.granules.without(there) } else { Granules::NONE };
        let word =
            self.came(word, moved.done.or(holes.without(word.resident())), self.zone_of(slot)).with_warmth(2);
        let whole = self.table.borrow().granules_of_entry(page, self.is_queued(&page.entries));
        let word = if whole.and(there).without(word.resident()).is_empty() {
            self.staged(slot, -1);
            self.put_pieces(slot, there.without(moved.done).or(moved.copied));
            word.with_backing(Backing::None)
        } else {
            self.release_slot(slot);
            // It may have come here by a fetch just now, and reclaim must know of it.
            if !self.without.queueing_again {
                self.queue_staged(page, slot);
            }
            word
        };
        if moved.done.has(granule) {
            return (word, Served::Done);
        }
        let here = page.addresses(granule, granule + 1).start;
        if there.has(granule) {
            return (word, self.settle(moved.stop, here));
        }
        let (filled, served) = self.fill_one(here).await;
        (if filled { self.came(word, one(granule), self.zone_of_kernel_memory(word)) } else { word }, served)
    }

    /// Copies one granule of a stored page into the region; the page stays stored.
    async fn install_part(&self, page: &Page, word: Word, handle: u64, granule: u32) -> (Word, Served) {
        step().await;
        let Some(content) = self.stored(handle) else { return (word, Served::Busy) };
        let content = content[granule as usize];
        let here = page.addresses(granule, granule + 1);
        step().await;
        let mut zone = self.zone_of_kernel_memory(word);
        let stop = if self.has_room() {
            self.kernel.borrow_mut().copy(here.start, content)
        } else if let Some(slot) = self.take_ready() {
            zone = self.zone_of(slot);
            // A part of a frame, at any place: the rest comes from the kernel.
            let at = self.below(GRANULES);
            self.kernel.borrow_mut().slots[slot][at] = Some(content);
            let there = self.pages_of(slot);
            let progress = self.fill(here.clone(), slot, at).await;
            let moved = if progress.done > 0 { one(at as u32) } else { Granules::NONE };
            self.put_pieces(slot, there.without(moved));
            match progress.stop {
                Some(Stop::Refused | Stop::Busy) => self.kernel.borrow_mut().copy(here.start, content),
                stop => stop,
            }
        } else {
            return (word, Served::NoMemory);
        };
        if stop.is_some() {
            return (word, self.settle(stop, here.start));
        }
        self.note(|| format!("engine: copy granule {granule} of {page:?}"));
        (self.came(word, one(granule), zone).with_warmth(1), Served::Done)
    }

    /// Puts a stored page into the region; it stays stored, too.
    async fn install_copy(&self, page: &Page, word: Word, handle: u64, granule: u32) -> (Word, Served) {
        let fresh = || if self.has_room() { self.take_empty() } else { None };
        let Some(slot) = self.take_ready().or_else(fresh) else { return (word, Served::NoMemory) };
        step().await;
        let Some(content) = self.stored(handle) else { return (word, Served::Busy) };
        self.kernel.borrow_mut().slots[slot] = content.map(Some);
        let want = page.granules.without(word.resident());
        let MovedIn { done, copied, stop } = self.move_in(page, slot, want).await;
        self.put_pieces(slot, WHOLE.without(done).or(copied));
        self.note(|| format!("engine: copy {done:?} of {page:?}"));
        let word = self.came(word, done, self.zone_of(slot)).with_warmth(2);
        if done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(stop, page.addresses(granule, granule + 1).start))
    }
}
