//! The invariants of each moment of the simulation, and those of its end. This module must never
//! change anything.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::kernel::GRANULES;
use crate::setting::ZONES_MAX;
use crate::world::{Staged, World};
use pagoda_core::page_entry::{Backing, Word};

impl World {
    /// Content is in one place only, and each slot in one hand.
    pub fn check(&self) {
        let (kernel, table) = (self.kernel.borrow(), self.table.borrow());
        let claimed = self.claimed.borrow();
        let mut hands = vec![0u32; claimed.len()];
        for &slot in self.empty.borrow().iter().chain(self.ready.borrow().iter()) {
            hands[slot] += 1 + u32::from(claimed[slot]);
        }
        let mut places: HashMap<u64, usize> = HashMap::new();
        let mut seen: Vec<*const Cell<Word>> = Vec::new();
        for page in kernel.pages.iter().filter_map(|page| page.content).filter(|&content| content != 0) {
            *places.entry(page).or_default() += 1;
        }
        for page in table.spans().flat_map(|span| span.pages(&span.range)) {
            let word = page.entry().get();
            let known = seen.contains(&(page.entry() as *const _));
            seen.push(page.entry());
            if word.is_busy() {
                continue;
            }
            let out = page.granules.without(word.resident());
            let content = match word.backing() {
                Backing::None => continue,
                Backing::Slot(slot) => {
                    hands[slot as usize] += u32::from(!known) + u32::from(claimed[slot as usize]);
                    kernel.slots[slot as usize].map(Option::unwrap_or_default)
                }
                Backing::Handle(handle) => match self.store.borrow().get(&handle) {
                    Some(content) => *content,
                    None => return self.fail(format!("handle {handle} was freed and is still in use")),
                },
            };
            for granule in (0..GRANULES).filter(|&i| out.has(i as u32) && content[i] != 0) {
                *places.entry(content[granule]).or_default() += 1;
            }
        }
        if let Some(slot) = hands.iter().position(|&hands| hands > 1) {
            self.fail(format!("slot {slot} is in two hands"));
        }
        if let Some((content, _)) = places.iter().find(|&(_, &count)| count > 1) {
            self.fail(format!("content {content} is in two places"));
        }
    }

    /// Pages that count as in the region are there, unless a discard took them after its event was
    /// read. Present pages count, unless a discard is about to take them.
    pub fn check_residents(&self) {
        let (kernel, table) = (self.kernel.borrow(), self.table.borrow());
        // The table learns of changes from events.
        if kernel.changing > 0 || self.is_any_deferred() || self.is_gate_exclusive() {
            return;
        }
        for page in table.spans().flat_map(|span| span.pages(&span.range)) {
            let word = page.entry().get();
            if word.is_busy() {
                continue;
            }
            for i in (0..GRANULES as u32).filter(|&i| page.granules.has(i)) {
                let memory = &kernel.pages[page.addresses(i, i + 1).start];
                match (word.resident().has(i), memory.content.is_some()) {
                    (true, false) if !memory.discarded => {
                        self.fail(format!(
                            "granule {i} of {page:?} counts as in the region and is not there"
                        ));
                    }
                    (false, true) if !memory.leaving => {
                        self.fail(format!("granule {i} of {page:?} is in the region and does not count"));
                    }
                    _ => {}
                }
            }
        }
    }

    /// The invariants while no thread is in the middle of a step.
    pub fn check_end(&self) -> Result<(), String> {
        self.check_queue().and_then(|()| self.check_store()).and_then(|()| self.check_zones())
    }

    /// At the end: the counts of each zone are those of the entries that a thread can find.
    fn check_zones(&self) -> Result<(), String> {
        let (table, queue) = (self.table.borrow(), self.queue.borrow());
        let (mut in_regions, mut staged) = ([0; ZONES_MAX], [0; ZONES_MAX]);
        let mut seen: Vec<*const Vec<Cell<Word>>> = Vec::new();
        let arrays =
            table.spans().map(|span| &span.entries).chain(queue.iter().map(|staged| &staged.entries));
        for entries in arrays {
            if seen.contains(&Rc::as_ptr(entries)) {
                continue;
            }
            seen.push(Rc::as_ptr(entries));
            for word in entries.iter().map(Cell::get) {
                in_regions[word.zone()] += word.resident().count() as isize;
                if let Backing::Slot(slot) = word.backing() {
                    staged[self.zone_of(slot as usize)] += 1;
                }
            }
        }
        let counted = (self.in_regions.get(), self.staged.get());
        let is = (in_regions, staged);
        if counted == is {
            Ok(())
        } else {
            Err(format!("zones: {counted:?} is counted where there is {is:?}"))
        }
    }

    /// At the end: each object of the store has an entry that a thread can find.
    pub fn check_store(&self) -> Result<(), String> {
        let (table, queue) = (self.table.borrow(), self.queue.borrow());
        let arrays =
            table.spans().map(|span| &span.entries).chain(queue.iter().map(|staged| &staged.entries));
        let words: Vec<Backing> =
            arrays.flat_map(|entries| entries.iter().map(|entry| entry.get().backing())).collect();
        match self.store.borrow().keys().find(|&&handle| !words.contains(&Backing::Handle(handle))) {
            Some(handle) => Err(format!("handle {handle} has no entry and was not freed")),
            None => Ok(()),
        }
    }

    /// At the end, with no thread in the middle of a step: reclaim can find all staged pages.
    pub fn check_queue(&self) -> Result<(), String> {
        let (table, queue) = (self.table.borrow(), self.queue.borrow());
        for page in table.spans().flat_map(|span| span.pages(&span.range)) {
            let Backing::Slot(slot) = page.entry().get().backing() else { continue };
            let is_it = |staged: &Staged| {
                Rc::ptr_eq(&staged.entries, &page.entries)
                    && (staged.index, staged.slot) == (page.index, slot as usize)
            };
            if !queue.iter().any(is_it) {
                return Err(format!("slot {slot} is held for good: {page:?} is not queued"));
            }
        }
        Ok(())
    }
}
