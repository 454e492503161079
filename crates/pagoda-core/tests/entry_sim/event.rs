//! Applying events as steps: `event` of the engine. It must never happen while a page moves.

use crate::kernel::{GRANULES, Message, Range, overlap};
use crate::table::{Page, WHOLE, give, try_take};
use crate::world::{World, step};
use pagoda_core::page_entry::{Backing, Word};

impl World {
    /// Reads all messages and applies the events. Returns the faults.
    pub async fn read_messages(&self, faults: &mut Vec<usize>) {
        let early = self.without.gate_around_reading.then(|| self.kernel.borrow_mut().read(8));
        let _gate = self.gate_exclusive().await;
        // Before the read: afterwards an unmapping may be in the batch.
        if self.kernel.borrow().changing == 0 && early.is_none() {
            self.settle_events().await;
        }
        step().await;
        let most = 1 + self.below(8);
        let batch = early.unwrap_or_else(|| self.kernel.borrow_mut().read(most));
        for message in batch {
            step().await;
            match message {
                Message::Fault { address } => faults.push(address),
                event => self.apply(event).await,
            }
        }
    }

    /// Applies an event, and those that waited for it.
    async fn apply(&self, event: Message) {
        self.apply_or_defer(event).await;
        self.apply_deferred().await;
    }

    /// Nothing is outstanding in the kernel, so no announcement is still to come.
    async fn settle_events(&self) {
        self.leaving.borrow_mut().clear();
        self.apply_deferred().await;
        for event in self.deferred.take() {
            self.apply_now(event).await;
        }
    }

    async fn apply_deferred(&self) {
        loop {
            let waiting = self.deferred.take();
            let before = waiting.len();
            for event in waiting {
                self.apply_or_defer(event).await;
            }
            if self.deferred.borrow().len() == before {
                return;
            }
        }
    }

    pub fn is_any_deferred(&self) -> bool {
        !self.deferred.borrow().is_empty()
    }

    /// Whether `event` must wait for one of another thread that is not read yet, or behind one that
    /// waits.
    fn must_wait(&self, event: &Message) -> bool {
        let behind = self.deferred.borrow().iter().any(|waiting| {
            let Message::Remap { from, to } = waiting else { return false };
            let target = *to..*to + from.len();
            match event {
                // The waiting move waits for memory to leave its target; memory that leaves its
                // source is its own doing.
                Message::Unmap(range) => overlap(range, from),
                Message::Remove(range) => overlap(range, from) || overlap(range, &target),
                Message::Remap { from: other, .. } => overlap(other, from),
                Message::Fault { .. } => false,
            }
        });
        let Message::Remap { from, to } = event else { return behind };
        let target = *to..*to + from.len();
        behind
            || !self.table.borrow().is_free(&target)
            || self.leaving.borrow().iter().any(|range| overlap(range, &target))
    }

    async fn apply_or_defer(&self, event: Message) {
        if !self.without.order_of_moves && self.must_wait(&event) {
            self.note(|| format!("engine: defer {event:?}"));
            self.deferred.borrow_mut().push(event);
        } else {
            self.apply_now(event).await;
        }
    }

    async fn apply_now(&self, event: Message) {
        self.note(|| format!("engine: apply {event:?}"));
        match event {
            Message::Remove(range) => {
                self.discard(&range).await;
                if !self.without.discards_of_unknown {
                    // Pages present there go soon: adoption must not take them for content.
                    let mut table = self.table.borrow_mut();
                    for gap in table.gaps(range) {
                        table.insert(gap, |entries| self.is_queued(entries));
                    }
                }
            }
            Message::Unmap(range) => {
                self.discard(&range).await;
                self.table.borrow_mut().cut(&range);
                self.leaving.borrow_mut().retain(|leaving| *leaving != range);
            }
            Message::Remap { from, to } => {
                let moved = self.table.borrow_mut().cut(&from);
                let target = to..to + from.len();
                self.discard(&target).await;
                self.table.borrow_mut().cut(&target);
                for span in moved {
                    self.table.borrow_mut().put_moved(span, from.start, to);
                }
                if !self.without.order_of_moves {
                    self.leaving.borrow_mut().push(from);
                }
            }
            Message::Fault { .. } => {}
        }
    }

    async fn discard(&self, range: &Range) {
        let pages: Vec<Page> = self.table.borrow().spans().flat_map(|span| span.pages(range)).collect();
        for page in pages {
            self.discard_page(&page).await;
        }
    }

    pub async fn take(&self, page: &Page) -> Word {
        loop {
            if let Some(word) = try_take(page.entry()) {
                return word;
            }
            step().await;
        }
    }

    async fn discard_page(&self, page: &Page) {
        let mut word = self.take(page).await;
        let mut is_fetched = false;
        step().await;
        let whole = self.table.borrow().granules_of_entry(page, self.is_queued(&page.entries));
        let outside_before = whole.without(word.resident());
        let outside = outside_before.without(page.granules);
        self.in_regions(word.zone(), -(word.resident().and(page.granules).count() as isize));
        let resident = word.resident().without(page.granules);
        word = word.with_resident(resident).with_huge(word.is_huge() && !resident.is_empty());
        loop {
            match word.backing() {
                Backing::None => break,
                Backing::Slot(slot) if outside.is_empty() => {
                    self.staged(slot as usize, -1);
                    self.put_ready(self.claim_slot(slot as usize));
                    word = word.with_backing(Backing::None);
                }
                Backing::Slot(slot) => {
                    let slot = self.claim_slot(slot as usize);
                    step().await;
                    // Also granules in the region: there may be an old copy at their place.
                    let zeroed = if self.without.discards_of_old_copies { outside_before } else { WHOLE };
                    for i in (0..GRANULES).filter(|&i| zeroed.and(page.granules).has(i as u32)) {
                        self.kernel.borrow_mut().slots[slot][i] = Some(0);
                    }
                    self.release_slot(slot);
                    if is_fetched {
                        self.queue_staged(page, slot);
                    }
                    break;
                }
                Backing::Handle(handle) if outside.is_empty() => {
                    self.store.borrow_mut().remove(&handle);
                    word = word.with_backing(Backing::None);
                }
                Backing::Handle(handle) => {
                    if !self.fetch(page, word, handle, true).await {
                        return self.fail("no slot for a discard in part".into());
                    }
                    is_fetched = true;
                    // A thread that takes the entry in between may store it again: look again.
                    word = self.take(page).await;
                }
            }
        }
        // Where nothing is, nothing is warm.
        let is_empty = word.resident().is_empty() && word.backing() == Backing::None;
        give(page.entry(), if is_empty { word.with_warmth(0) } else { word });
    }
}
