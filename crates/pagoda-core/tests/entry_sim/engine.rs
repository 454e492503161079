//! The engine's threads as steps: `fault`, `ahead`, `event` and `adopt` of the engine, one await for each of their atomic
//! steps, around the real `Word` and `Granules`. What leaves is in `reclaim.rs`.

use std::rc::Rc;

use crate::kernel::{GRANULES, Message, Range, Stop, overlap};
use crate::table::{Page, WHOLE, give, try_take};
use crate::world::{Staged, World, step};
use pagoda_core::entry::{Backing, Granules, Word};

/// Pages that are fetched ahead at once, at most.
const AHEAD_PAGES: usize = 2;

#[derive(PartialEq, Eq)]
enum Served {
    Done,
    Again,
    Busy,
    NoMemory,
}

fn one(granule: u32) -> Granules {
    Granules::range(granule, granule + 1)
}

impl World {
    async fn serve(&self, address: usize) -> Served {
        loop {
            let table = self.gate_shared().await;
            let Some(page) = self.table.borrow().page_at(address) else {
                // Registered memory that the table does not know: nothing was ever taken from there.
                let stop = self.kernel.borrow_mut().copy(address, 0);
                return self.settle(stop, address);
            };
            step().await;
            let Some(word) = try_take(page.entry()) else { return Served::Busy };
            let granule = page.granule_of(address);
            step().await;
            if word.resident().has(granule) {
                let stop = self.kernel.borrow_mut().copy(address, 0);
                let served = self.settle(stop, address);
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
                // Which of these it is depends on how the program reads and on how full the store is.
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

    fn settle(&self, stop: Option<Stop>, address: usize) -> Served {
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
        if run.is_empty() {
            return (word, Served::Again);
        }
        let mut done = Granules::NONE;
        let mut stop = None;
        let room = self.has_room();
        let frame = if self.below(2) == 0 || !room { self.take_ready() } else { None };
        if let Some(slot) = frame {
            step().await;
            self.kernel.borrow_mut().slots[slot] = [Some(0); GRANULES];
            (done, stop) = self.move_in(page, slot, run).await;
            self.put_back(slot);
        } else if !room {
            return (word, Served::NoMemory);
        } else {
            for (from, to) in run.runs() {
                for i in from..to {
                    step().await;
                    let address = page.addresses(i, i + 1);
                    match self.kernel.borrow_mut().copy(address.start, 0) {
                        None => done = done.or(one(i)),
                        Some(other) => stop = Some(other),
                    }
                    if stop == Some(Stop::Exists) {
                        self.kernel.borrow_mut().wake(address);
                    }
                }
            }
        }
        self.note(|| format!("engine: zero {done:?} of {page:?}"));
        let word = word.with_resident(word.resident().or(done));
        if done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(stop, page.addresses(granule, granule + 1).start))
    }

    /// A frame whose content nobody wants: its slot is empty if all of it has gone elsewhere.
    pub fn put_back(&self, slot: usize) {
        let is_empty = self.kernel.borrow().slots[slot] == [None; GRANULES];
        if is_empty { self.put_empty(slot) } else { self.put_ready(slot) }
    }

    async fn install(&self, page: &Page, word: Word, slot: usize, granule: u32) -> (Word, Served) {
        let want = page.granules.without(word.resident());
        let slot = self.claim_slot(slot);
        let (done, stop) = self.move_in(page, slot, want).await;
        let resident = word.resident().or(done);
        self.note(|| format!("engine: install {done:?} of {page:?} from slot {slot}"));
        let whole = self.table.borrow().granules_of_entry(page, self.is_queued(&page.entries));
        let mut word = word.with_resident(resident).with_warmth(2);
        if whole.without(resident).is_empty() {
            word = word.with_backing(Backing::None);
            self.put_back(slot);
        } else {
            self.release_slot(slot);
        }
        if done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(stop, page.addresses(granule, granule + 1).start))
    }

    /// Copies one granule of a stored page into the region; the page stays stored.
    async fn install_part(&self, page: &Page, word: Word, handle: u64, granule: u32) -> (Word, Served) {
        step().await;
        let Some(content) = self.stored(handle) else { return (word, Served::Busy) };
        let content = content[granule as usize];
        let here = page.addresses(granule, granule + 1);
        step().await;
        let stop = if self.has_room() {
            self.kernel.borrow_mut().copy(here.start, content)
        } else if let Some(slot) = self.take_ready() {
            // A part of a frame, at whatever place: what it lacks comes from the kernel.
            let at = self.below(GRANULES);
            self.kernel.borrow_mut().slots[slot][at] = Some(content);
            step().await;
            let progress = self.kernel.borrow_mut().fill(here.clone(), slot, at, 1);
            self.put_back(slot);
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
        (word.with_resident(word.resident().or(one(granule))).with_warmth(1), Served::Done)
    }

    /// Puts a stored page into the region; it stays stored, too.
    async fn install_copy(&self, page: &Page, word: Word, handle: u64, granule: u32) -> (Word, Served) {
        let fresh = || if self.has_room() { self.take_empty() } else { None };
        let Some(slot) = self.take_ready().or_else(fresh) else { return (word, Served::NoMemory) };
        step().await;
        let Some(content) = self.stored(handle) else { return (word, Served::Busy) };
        self.kernel.borrow_mut().slots[slot] = content.map(Some);
        let want = page.granules.without(word.resident());
        let (done, stop) = self.move_in(page, slot, want).await;
        self.put_back(slot);
        self.note(|| format!("engine: copy {done:?} of {page:?}"));
        let word = word.with_resident(word.resident().or(done)).with_warmth(2);
        if done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(stop, page.addresses(granule, granule + 1).start))
    }

    fn stored(&self, handle: u64) -> Option<[u64; GRANULES]> {
        let content = self.store.borrow().get(&handle).copied();
        if content.is_none() {
            self.fail(format!("handle {handle} is read after it was freed"));
        }
        content
    }

    /// Brings in the stored pages from `address` on, with frames that are ready, as far as they are wholly stored and wholly of
    /// one span.
    async fn fetch_ahead(&self, address: usize) {
        let _gate = self.gate_shared().await;
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
                step().await;
                let to = page.addresses(at, GRANULES as u32);
                let most = self.most();
                let progress = self.kernel.borrow_mut().fill(to, slot, at as usize, most);
                at += progress.done as u32;
                is_stopped = progress.stop.is_some();
            }
            self.note(|| format!("engine: {at} granules ahead of {page:?}"));
            self.put_back(slot);
            give(page.entry(), word.with_resident(Granules::range(0, at)).with_warmth(1));
        }
    }

    async fn move_in(&self, page: &Page, slot: usize, want: Granules) -> (Granules, Option<Stop>) {
        let (mut done, mut stop) = (Granules::NONE, None);
        for (from, to) in want.runs() {
            let mut at = from;
            while at < to {
                step().await;
                let most = self.most();
                let progress = self.kernel.borrow_mut().fill(page.addresses(at, to), slot, at as usize, most);
                let filled = at + progress.done as u32;
                done = done.or(Granules::range(at, filled));
                at = filled;
                let here = page.addresses(at.min(to - 1), at.min(to - 1) + 1);
                match progress.stop {
                    None => {}
                    Some(Stop::Refused | Stop::Busy) => {
                        step().await;
                        let content = self.kernel.borrow().slots[slot][at as usize].unwrap_or(0);
                        match self.kernel.borrow_mut().copy(here.start, content) {
                            None => done = done.or(one(at)),
                            other => stop = other,
                        }
                        if stop.is_some_and(|stop| stop != Stop::Exists) {
                            return (done, stop);
                        }
                        at += 1;
                    }
                    Some(Stop::Exists) => {
                        self.kernel.borrow_mut().wake(here);
                        stop = Some(Stop::Exists);
                        at += 1;
                    }
                    other => return (done, other),
                }
            }
        }
        (done, stop)
    }

    /// Where the kernel cuts a move short.
    pub fn most(&self) -> usize {
        if self.below(6) == 0 { 1 + self.below(GRANULES) } else { GRANULES }
    }

    async fn fetch(&self, page: &Page, word: Word, handle: u64, regardless: bool) -> bool {
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
        give(page.entry(), word.with_backing(Backing::Slot(self.release_slot(slot) as u32)));
        if !self.without.queueing_again {
            self.queue_staged(page, slot);
        }
        true
    }

    pub fn queue_staged(&self, page: &Page, slot: usize) {
        let staged = Staged { entries: Rc::clone(&page.entries), index: page.index, slot };
        self.queue.borrow_mut().push_back(staged);
    }

    /// Reads what there is and applies the events. Returns the faults.
    async fn read_messages(&self, faults: &mut Vec<usize>) {
        let early = self.without.gate_around_reading.then(|| self.kernel.borrow_mut().read(8));
        let _gate = self.gate_exclusive().await;
        // Before the read: afterwards an unmapping may be in the batch.
        if self.kernel.borrow().changing == 0 && early.is_none() {
            self.leaving.borrow_mut().clear();
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
        loop {
            let waiting = std::mem::take(&mut *self.deferred.borrow_mut());
            let before = waiting.len();
            for event in waiting {
                self.apply_or_defer(event).await;
            }
            if self.deferred.borrow().len() == before {
                return;
            }
        }
    }

    /// Whether `event` must wait for one of another thread that is not read yet, or behind one that waits.
    fn must_wait(&self, event: &Message) -> bool {
        let behind = self.deferred.borrow().iter().any(|waiting| {
            let Message::Remap { from, to } = waiting else { return false };
            let target = *to..*to + from.len();
            match event {
                // What leaves the target is what the waiting move waits for; of the source it is the move's own.
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
            return;
        }
        self.note(|| format!("engine: apply {event:?}"));
        match event {
            Message::Remove(range) => {
                self.discard(&range).await;
                if !self.without.discards_of_unknown {
                    // What is present there goes soon: adoption must not take it for content.
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

    async fn take(&self, page: &Page) -> Word {
        loop {
            if let Some(word) = try_take(page.entry()) {
                return word;
            }
            step().await;
        }
    }

    async fn discard_page(&self, page: &Page) {
        let mut word = self.take(page).await;
        step().await;
        let whole = self.table.borrow().granules_of_entry(page, self.is_queued(&page.entries));
        let outside_before = whole.without(word.resident());
        let outside = outside_before.without(page.granules);
        word = word.with_resident(word.resident().without(page.granules));
        loop {
            match word.backing() {
                Backing::None => break,
                Backing::Slot(slot) if outside.is_empty() => {
                    self.put_ready(self.claim_slot(slot as usize));
                    word = word.with_backing(Backing::None);
                }
                Backing::Slot(slot) => {
                    let slot = self.claim_slot(slot as usize);
                    step().await;
                    // Also what is in the region: at its place there may be an old copy.
                    let zeroed = if self.without.discards_of_old_copies { outside_before } else { WHOLE };
                    for i in (0..GRANULES).filter(|&i| zeroed.and(page.granules).has(i as u32)) {
                        self.kernel.borrow_mut().slots[slot][i] = Some(0);
                    }
                    self.release_slot(slot);
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
                    // Whoever takes the entry in between may store it again: look again.
                    word = self.take(page).await;
                }
            }
        }
        give(page.entry(), word);
    }

    /// Takes what the maps showed, some time ago, under management.
    async fn adopt(&self) {
        let maps: Vec<bool> = self.kernel.borrow().pages.iter().map(|page| page.mapped).collect();
        step().await;
        let _gate = self.gate_exclusive().await;
        let gaps = self.table.borrow().gaps(0..maps.len());
        for address in gaps.into_iter().flatten() {
            // One OS page at a time is the finest that the engine's chunks can be.
            if !maps[address] {
                continue;
            }
            step().await;
            if !self.kernel.borrow_mut().register(address..address + 1) {
                continue;
            }
            step().await;
            // Asked after it is registered: while a mapping is changing, this may be the target of a move whose event
            // is still to come.
            if self.kernel.borrow().changing > 0 && !self.without.quiet_adoption {
                return;
            }
            self.table.borrow_mut().insert(address..address + 1, |entries| self.is_queued(entries));
            self.note(|| format!("engine: adopt {address}"));
            let is_present = self.kernel.borrow().pages[address].content.is_some();
            let page = self.table.borrow().page_at(address).expect("just inserted");
            if is_present {
                let word = self.take(&page).await;
                let marked = word.resident().or(one(page.granule_of(address)));
                give(page.entry(), word.with_resident(marked));
            }
        }
    }
}

pub async fn handler(world: Rc<World>) {
    let mut faults = Vec::new();
    while !world.is_over() {
        step().await;
        if world.kernel.borrow().is_readable() {
            world.read_messages(&mut faults).await;
        }
        for address in std::mem::take(&mut faults) {
            match world.serve(address).await {
                Served::Done if world.below(4) == 0 => {
                    world.fetch_ahead(address - address % GRANULES + GRANULES).await;
                }
                Served::Done => {}
                Served::NoMemory => {
                    world.stage_next().await;
                    world.store_oldest().await;
                    faults.push(address);
                }
                Served::Again | Served::Busy => faults.push(address),
            }
        }
    }
}

pub async fn reclaimer(world: Rc<World>) {
    while !world.is_over() {
        step().await;
        if world.below(2) == 0 {
            world.stage_next().await;
        } else {
            world.store_oldest().await;
        }
        // Frames go back to the kernel.
        if world.below(8) == 0
            && let Some(slot) = world.take_ready()
        {
            world.kernel.borrow_mut().slots[slot] = [None; GRANULES];
            world.put_empty(slot);
        }
    }
}

pub async fn watcher(world: Rc<World>) {
    while !world.is_over() {
        for _ in 0..world.below(60) {
            step().await;
        }
        world.adopt().await;
    }
}

/// The whole of a base page is what an entry has: the masks of the simulation are those of the engine.
#[test]
fn a_simulated_base_page_is_four_granules() {
    assert_eq!(WHOLE.count() as usize, GRANULES);
}
