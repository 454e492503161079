//! Serving a fault: a thread waits for an OS page of managed memory, and gets its base page.
//!
//! Who takes the entry's busy bit is the one installer of the page; whoever comes meanwhile tries again. What is in the
//! store is first fetched into a slot without the gate, so that I/O holds nobody up; everything that touches the region
//! happens with the gate shared from before the entry is looked at until its new state is published. An event that is
//! unread at that moment makes the kernel refuse, and the fault is served again after the event was applied: the fault
//! may have been read before a discard that happened earlier.
//!
//! Nothing here allocates, logs, or waits for anything but the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::entry::{Backing, Granules, Word};
use pagoda_linux::range::PageRange;
use pagoda_linux::space::Slot;
use pagoda_linux::uffd::Stop;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::store::{GetError, Handle, Scratch, Store};
use crate::table::{Entries, Page, Span, Table, give, try_take};

/// How much of a page that is staged or stored a fault brings in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of the base page: for who reads on.
    Page,
    /// The granule alone: for who jumps about, and would pay for fifteen others to come and go.
    Granule,
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Its thread runs again (or faults again, if something else is wrong there).
    Done,
    /// An event is unread: read events, then serve it again.
    Again,
    /// Someone else moves this page: serve it again in a moment.
    Busy,
    /// There is no frame: reclaim, then serve it again.
    NoMemory,
}

/// What came of moving granules into a region.
struct MovedIn {
    /// Now in the region.
    done: Granules,
    /// Of those, copied: their frames are still in the slot.
    copied: Granules,
    stop: Option<Stop>,
}

impl Engine {
    /// Serves the fault at `address`; of a page that is staged or stored, brings in as much as `extent` says.
    pub(crate) fn serve(&self, address: usize, write: bool, extent: Extent, scratch: &mut Scratch) -> Served {
        if let Some(served) = self.serve_huge(address) {
            return served;
        }
        let (mut fetched, mut tried) = (false, false);
        let mut content = [0; 4096];
        // What `content` is of, if it was read from the file.
        let mut read: Option<(u64, u64)> = None;
        loop {
            let table = self.gate_shared();
            // The kernel refuses fills as long as an event is outstanding; but of one that was read and waits only we know.
            if table.order.deferred() > 0 {
                return Served::Again;
            }
            let Some(span) = table.find(address) else {
                return self.serve_unknown(address, write);
            };
            let page = table.page_at(span, address);
            let entry = span.entry(page.index);
            let Some(word) = try_take(entry) else { return Served::Busy };
            let granule = page.granule_of(address);
            let owed = self.owed_granules(&page);
            if owed.has(granule) {
                give(entry, word);
                return self.await_owed(address);
            }
            // What is owed beside it must not be filled with it.
            let page = page.without(owed);
            if word.resident().has(granule) {
                let served = self.fill_hole(&page, granule, write);
                give(entry, word);
                return served;
            }
            match word.backing() {
                Backing::None => {
                    let (word, served) = self.fill_zero(&page, word, granule, write);
                    give(entry, word);
                    return served;
                }
                Backing::Slot(slot) => {
                    if fetched {
                        self.count_fetched(self.entry_bytes());
                    } else {
                        self.counters.add(Counter::FaultsStaged, 1);
                    }
                    let want = match extent {
                        Extent::Page => page.granules.without(word.resident()),
                        Extent::Granule => Granules::range(granule, granule + 1),
                    };
                    let (word, served) = self.install(&table, span, &page, word, slot, want, granule);
                    give(entry, word);
                    return served;
                }
                // While the file was read the page could be fetched, written and stored anew: by a digest it is still this.
                Backing::Handle(handle) if self.is_still(handle, granule, read) => {
                    let (after, served) = self.install_granule(&page, word, granule, &content);
                    self.ledger.changed(word, after);
                    give(entry, after);
                    return served;
                }
                Backing::Handle(handle)
                    if extent == Extent::Granule && self.store.is_in_memory(Handle::from_bits(handle)) =>
                {
                    let part = granule as usize * 4096;
                    if let Err(error) = self.store.get(Handle::from_bits(handle), part, &mut content, scratch)
                    {
                        self.stop(unreadable(error));
                    }
                    let (after, served) = self.install_granule(&page, word, granule, &content);
                    self.ledger.changed(word, after);
                    give(entry, after);
                    return served;
                }
                Backing::Handle(handle)
                    if self.keeps_copies_of(handle) && self.store.is_in_memory(Handle::from_bits(handle)) =>
                {
                    let (after, served) = self.install_copy(&page, word, handle, granule, scratch);
                    self.ledger.changed(word, after);
                    give(entry, after);
                    return served;
                }
                Backing::Handle(handle) => {
                    let entries = Arc::clone(span.entries());
                    drop(table);
                    let is_new = !tried && !self.store.is_in_memory(Handle::from_bits(handle));
                    tried = true;
                    // Who wants a second part of a page will want more of it.
                    if is_new && extent == Extent::Granule && word.resident().is_empty() {
                        let digest = self.read_granule(handle, granule, &mut content, scratch);
                        read = digest.map(|digest| (handle, digest));
                    }
                    if is_new && (read.is_some() || self.promote(handle, scratch)) {
                        give(&entries[page.index], word);
                        continue;
                    }
                    if !self.fetch(&entries, page.index, word, handle, false, scratch) {
                        return Served::NoMemory;
                    }
                    fetched = true;
                }
            }
        }
    }

    /// Whether the granule of what is stored now is the one that was read from the file, by its handle and digest then.
    fn is_still(&self, handle: u64, granule: u32, read: Option<(u64, u64)>) -> bool {
        let is_block = |digest| self.store.is_block(Handle::from_bits(handle), granule as usize, digest);
        read.is_some_and(|(of, digest)| of == handle && is_block(digest))
    }

    /// A fault in memory that is registered but not in the table: what a mapping grew by in place, say. Nothing was ever
    /// taken from there, so it reads as zero.
    fn serve_unknown(&self, address: usize, write: bool) -> Served {
        self.look_soon.store(true, Ordering::Relaxed);
        self.counters.add(Counter::FaultsZero, 1);
        self.fill_one(PageRange::page(address), write).1
    }

    /// A missing page that is the region's own by the table: a fault that was served meanwhile, or a hole in what
    /// was adopted or moved, which reads as zero.
    fn fill_hole(&self, page: &Page, granule: u32, write: bool) -> Served {
        self.counters.add(Counter::FaultsSpurious, 1);
        let (filled, served) = self.fill_one(page.addresses(granule, granule + 1), write);
        self.counters.add(Counter::HolesFilled, u64::from(filled));
        served
    }

    /// Fills an OS page if it is missing, and says whether it was.
    fn fill_one(&self, at: PageRange, write: bool) -> (bool, Served) {
        let progress =
            if write { self.space.fill_with_zeroes(at) } else { self.space.fill_with_zero_page(at) };
        if progress.stop.is_none() {
            self.ledger.took(progress.bytes as i64);
        }
        (progress.stop.is_none(), self.settle(progress.stop, at))
    }

    /// Turns the stop of a fill into what becomes of the fault at `at`.
    fn settle(&self, stop: Option<Stop>, at: PageRange) -> Served {
        match stop {
            None => Served::Done,
            Some(Stop::Again) => Served::Again,
            Some(Stop::NoMemory) => Served::NoMemory,
            // It is there already, or was unmapped: the thread finds out by itself.
            Some(Stop::Exists | Stop::Missing | Stop::Gone) => {
                self.space.wake(at);
                Served::Done
            }
            Some(Stop::Busy | Stop::Refused) => self.stop(StopReason::FillRefused(Errno::NONE)),
        }
    }

    /// Fills what nobody ever wrote, or what was discarded: as much of the base page around the fault as is missing.
    fn fill_zero(&self, page: &Page, word: Word, granule: u32, write: bool) -> (Word, Served) {
        let run = page.granules.without(word.resident()).run_around(granule);
        let Some((from, to)) = run.runs().next() else {
            // The fault lies in the entry's memory but not in the span: cut off meanwhile, its event comes.
            return (word, Served::Again);
        };
        let room = self.has_room();
        // A read gets the zero page as long as there is room for the page that a write would bring.
        let several = self.zone.are_several();
        let frame = match several {
            // Each of them is a zone's from the beginning.
            true => self.frame_of_a_zone(false),
            false if write || !room => self.take_frame(),
            false => None,
        };
        let mut zone = 0;
        let progress = match frame {
            Some(mut slot) => {
                zone = self.zone.of_slot(slot.index());
                self.space.bytes_mut(&mut slot).fill(0);
                let moved = self.move_in(page, &slot, run);
                if moved.done.count() as usize * 4096 == self.entry_bytes() && moved.copied.is_empty() {
                    self.zone.put_empty(&self.space, slot);
                } else {
                    self.zone.put_ready(&self.space, slot);
                }
                moved
            }
            None if !room || several => return (word, Served::NoMemory),
            None => self.fill_fresh(page, from, to, write),
        };
        self.note_use();
        self.counters.add(Counter::FaultsZero, 1);
        let word = self.came_in(word, progress.done, zone);
        let here = page.addresses(granule, granule + 1);
        if progress.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(progress.stop, here))
    }

    /// Fills granules `from..to` from the kernel's memory: with zeroes for a write, with the zero page for a read.
    fn fill_fresh(&self, page: &Page, from: u32, to: u32, write: bool) -> MovedIn {
        let mut at = from;
        let mut end = to;
        let mut done = Granules::NONE;
        let mut stop = None;
        while at < to {
            let rest = page.addresses(at, end);
            let progress =
                if write { self.space.fill_with_zeroes(rest) } else { self.space.fill_with_zero_page(rest) };
            let filled = at + (progress.bytes / 4096) as u32;
            done = done.or(Granules::range(at, filled));
            at = filled;
            // The zero page costs nothing until it is written; but then nobody asks us.
            self.ledger.took(progress.bytes as i64);
            match progress.stop {
                // A boundary of mappings lies within: one by one.
                Some(Stop::Missing | Stop::Refused) if end > at + 1 => {
                    end = at + 1;
                    continue;
                }
                None => {}
                // A page whose discard is announced but not carried out yet, or one that is not mapped any more: it is
                // not ours, and the next may be.
                Some(other @ (Stop::Exists | Stop::Missing)) => {
                    self.space.wake(page.addresses(at, at + 1));
                    stop = Some(other);
                    at += 1;
                }
                other => {
                    stop = other;
                    break;
                }
            }
            end = if end == to { to } else { (at + 1).min(to) };
        }
        MovedIn { done, copied: Granules::NONE, stop }
    }

    /// Puts the content of a staged page into the region.
    #[expect(clippy::too_many_arguments, reason = "the state of one page, taken apart once")]
    fn install(
        &self,
        table: &Table,
        span: &Span,
        page: &Page,
        word: Word,
        slot: u32,
        want: Granules,
        granule: u32,
    ) -> (Word, Served) {
        let zone = self.zone.of_slot(slot);
        let slot = self.space.claim_slot(slot);
        let moved = self.move_in(page, &slot, want);
        // Granules outside the span are somebody's only if its array is shared with another part of the same mapping.
        let whole = self.granules_of_entry(table, span, page);
        let word = self.came_in(word, moved.done, zone).with_warmth(2);
        let word = if whole.without(word.resident()).is_empty() {
            self.left_staging(slot.index());
            if moved.done.count() * 4096 == self.entry_bytes() as u32 && moved.copied.is_empty() {
                self.zone.put_empty(&self.space, slot);
            } else {
                self.zone.put_ready(&self.space, slot);
            }
            word.with_backing(Backing::None)
        } else {
            // It may have come here by a fetch just now, and reclaim must know of it.
            let slot = self.space.release_slot(slot);
            self.queue_staged(span.entries(), page.index, slot);
            word
        };
        if moved.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(moved.stop, page.addresses(granule, granule + 1)))
    }

    /// Copies one granule of a stored page into the region. The rest stays stored, and so does the granule's old copy,
    /// which is worth nothing from now on.
    fn install_granule(&self, page: &Page, word: Word, granule: u32, content: &[u8; 4096]) -> (Word, Served) {
        let here = page.addresses(granule, granule + 1);
        let place = |slot: &Slot, offset| {
            let progress = self.space.fill(here, slot, offset);
            (progress.stop.is_none(), progress)
        };
        // While the thread that wants it waits, moving an OS page that is ready takes less than a fresh one.
        let may_open = !self.has_room() && self.may_use_frame();
        let mut zone = 0;
        let progress = if self.zone.are_several() {
            let Some(placed) = self.place_page_of_a_zone(word, content, may_open, place) else {
                return (word, Served::NoMemory);
            };
            zone = placed.0;
            placed.1
        } else if let Some(progress) = self.zone.place_page(&self.space, content, may_open, place) {
            progress
        } else if self.has_room() {
            let progress = self.space.fill_with(here, content);
            self.ledger.took(progress.bytes as i64);
            progress
        } else {
            return (word, Served::NoMemory);
        };
        let progress = match progress.stop {
            // Where the mapping does not allow a move, a copy does.
            Some(Stop::Refused | Stop::Busy) => self.space.fill_with(here, content),
            _ => progress,
        };
        if progress.stop.is_some() {
            return (word, self.settle(progress.stop, here));
        }
        self.count_fetched(4096);
        self.note_use();
        let word = self.came_in(word, Granules::range(granule, granule + 1), zone);
        (word.with_warmth((word.warmth() + 1).min(3)), Served::Done)
    }

    fn count_fetched(&self, bytes: usize) {
        self.counters.add(Counter::FaultsStored, 1);
        self.ledger.fetched(bytes as u64);
    }

    /// Whether the store keeps its copy of a page that is brought in: evicting it again is a drop then, if it was not
    /// written. Not once the store is nearly full, which is the bound of what is held twice.
    pub(crate) fn keeps_copies(&self) -> bool {
        let limit = self.store_memory_limit().get();
        self.ledger.store_bytes() < limit - limit / 32 && !self.is_released()
    }

    /// The same of this page: one that is in the file, too, need not be in memory for it.
    fn keeps_copies_of(&self, handle: u64) -> bool {
        self.keeps_copies() || self.store.is_kept(Handle::from_bits(handle)) && !self.is_released()
    }

    /// Reads one granule of a page that is in the file, whose entry's busy bit the caller has taken. Returns its digest, if it
    /// could be read alone.
    fn read_granule(
        &self,
        handle: u64,
        granule: u32,
        content: &mut [u8; 4096],
        scratch: &mut Scratch,
    ) -> Option<u64> {
        match self.store.read_block(Handle::from_bits(handle), granule as usize, content, scratch) {
            Ok(digest) => digest,
            Err(error) => self.stop(unreadable(error)),
        }
    }

    /// Brings a page that is in the file into memory, whose entry's busy bit the caller has taken. Whether that could be done.
    pub(crate) fn promote(&self, handle: u64, scratch: &mut Scratch) -> bool {
        match self.store.promote(Handle::from_bits(handle), scratch) {
            Ok(true) => {
                self.ledger.store_has(self.store.usage().memory_committed_bytes.get());
                true
            }
            Ok(false) => false,
            Err(error) => self.stop(unreadable(error)),
        }
    }

    /// Puts the content of a stored page into the region, and leaves it in the store, too.
    fn install_copy(
        &self,
        page: &Page,
        word: Word,
        handle: u64,
        granule: u32,
        scratch: &mut Scratch,
    ) -> (Word, Served) {
        let Some(mut slot) = self.frame_for_fetch(false) else { return (word, Served::NoMemory) };
        let handle = Handle::from_bits(handle);
        if let Err(error) = self.store.get(handle, 0, self.space.bytes_mut(&mut slot), scratch) {
            self.stop(unreadable(error));
        }
        // All of it is in the region in a moment: of the two copies the one in the file is enough.
        self.store.demote(handle);
        let zone = self.zone.of_slot(slot.index());
        let moved = self.move_in(page, &slot, page.granules.without(word.resident()));
        let all = Granules::range(0, (self.entry_bytes() / 4096) as u32);
        self.zone.put_pieces(&self.space, slot, all.without(moved.done).or(moved.copied));
        self.count_fetched(self.entry_bytes());
        self.note_use();
        let word = self.came_in(word, moved.done, zone).with_warmth(2);
        if moved.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(moved.stop, page.addresses(granule, granule + 1)))
    }

    /// A frame to unpack a page into, ready or fresh; `regardless` of the budget if that is said.
    pub(crate) fn frame_for_fetch(&self, regardless: bool) -> Option<Slot> {
        if self.zone.are_several() {
            return self.frame_of_a_zone(regardless);
        }
        let frame = if regardless { self.zone.take_ready(&self.space) } else { self.take_frame() };
        frame.or_else(|| {
            let fresh =
                if regardless || self.has_room() { self.zone.take_empty(&self.space, 0) } else { None };
            if fresh.is_some() {
                self.ledger.took(self.entry_bytes() as i64);
            }
            fresh
        })
    }

    /// The granules of an entry that may be somebody's.
    pub(crate) fn granules_of_entry(&self, table: &Table, span: &Span, page: &Page) -> Granules {
        if Arc::strong_count(span.entries()) > 1 {
            Granules::range(0, (table.entry_bytes() / 4096) as u32)
        } else {
            page.granules
        }
    }

    /// Moves the granules `want` of `slot` into the region, by copy where the mapping does not allow a move.
    fn move_in(&self, page: &Page, slot: &Slot, want: Granules) -> MovedIn {
        let mut result = MovedIn { done: Granules::NONE, copied: Granules::NONE, stop: None };
        for (from, to) in want.runs() {
            let mut at = from;
            // A refusal may concern one granule (a boundary of protections in the page): then go one by one.
            let mut step = to;
            while at < to {
                let end = step.min(to);
                let progress = self.space.fill(page.addresses(at, end), slot, at as usize * 4096);
                let filled = at + (progress.bytes / 4096) as u32;
                result.done = result.done.or(Granules::range(at, filled));
                at = filled;
                match progress.stop {
                    None => step = if step == to { to } else { at + 1 },
                    Some(Stop::Refused | Stop::Busy | Stop::Missing) if end > at + 1 => step = at + 1,
                    Some(Stop::Refused | Stop::Busy) => {
                        let one = page.addresses(at, at + 1);
                        let copied = self.space.fill_by_copy(one, slot, at as usize * 4096);
                        if let Some(stop) = copied.stop {
                            result.stop = Some(stop);
                            // Of a range that was adopted a part may be unmapped, and mapped anew, unregistered: what
                            // the fault is about lies further on.
                            if !matches!(stop, Stop::Exists | Stop::Missing) {
                                return result;
                            }
                        } else {
                            self.ledger.took(4096);
                            let granule = Granules::range(at, at + 1);
                            result.done = result.done.or(granule);
                            result.copied = result.copied.or(granule);
                        }
                        at += 1;
                        step = at + 1;
                    }
                    Some(other @ (Stop::Exists | Stop::Missing)) => {
                        self.space.wake(page.addresses(at, at + 1));
                        result.stop = Some(other);
                        at += 1;
                        step = to;
                    }
                    Some(stop) => {
                        result.stop = Some(stop);
                        return result;
                    }
                }
            }
        }
        result
    }

    /// A ready frame, if the budget allows to use one. While it is exceeded, by compressed pages that took more, say,
    /// ready frames belong to the kernel.
    fn take_frame(&self) -> Option<Slot> {
        if self.may_use_frame() { self.zone.take_ready(&self.space) } else { None }
    }

    /// Whether ready frames are for faults, as long as the budget is not exceeded by much.
    pub(crate) fn may_use_frames(&self) -> bool {
        self.ledger.excess_bytes() <= self.marks().min.get()
    }

    /// Whether one frame may be used: as all may, or because a handler made it ready for that.
    pub(crate) fn may_use_frame(&self) -> bool {
        self.may_use_frames() || self.use_earned()
    }

    /// Uses up the right to one frame, if there is one.
    pub(crate) fn use_earned(&self) -> bool {
        self.earned.fetch_update(Ordering::AcqRel, Ordering::Acquire, |rights| rights.checked_sub(1)).is_ok()
    }

    /// Brings the content of a stored page, whose busy bit the caller has taken, into a slot, and gives the entry back
    /// as staged. Without a frame, and unless `regardless` of the budget, the entry is given back as it was: false.
    pub(crate) fn fetch(
        &self,
        entries: &Entries,
        index: usize,
        word: Word,
        handle: u64,
        regardless: bool,
        scratch: &mut Scratch,
    ) -> bool {
        let entry = &entries[index];
        let Some(mut slot) = self.frame_for_fetch(regardless) else {
            give(entry, word);
            return false;
        };
        let handle = Handle::from_bits(handle);
        match self.store.get(handle, 0, self.space.bytes_mut(&mut slot), scratch) {
            Ok(()) => {}
            Err(error) => self.stop(unreadable(error)),
        }
        self.store.free(handle);
        self.note_use();
        let slot = self.space.release_slot(slot);
        self.went_into_staging(slot);
        let after = word.with_backing(Backing::Slot(slot));
        self.ledger.changed(word, after);
        give(entry, after);
        true
    }
}

/// What a fetch that failed means: there is no other copy, so the process can't go on.
pub(crate) fn unreadable(error: GetError) -> StopReason {
    match error {
        GetError::Corrupt => StopReason::ContentCorrupt,
        error => StopReason::ContentUnreadable(Errno(error.errno())),
    }
}

#[cfg(test)]
#[path = "fault_test.rs"]
mod fault_test;
