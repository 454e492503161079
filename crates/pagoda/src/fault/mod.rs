//! Serving a fault: a thread waits for an OS page of managed memory, and gets its base page.
//!
//! Who takes the entry's busy bit is the one installer of the page; whoever comes meanwhile tries again. What is in the
//! store is first fetched into a slot without the gate, so that I/O holds nobody up; everything that touches the region
//! happens with the gate shared from before the entry is looked at until its new state is published. An event that is
//! unread at that moment makes the kernel refuse, and the fault is served again after the event was applied: the fault
//! may have been read before a discard that happened earlier.
//!
//! Nothing here logs, or waits for anything but the store; nor does it allocate, but for the store and for a place in the queue of what
//! is staged, and that from a heap that nothing managed lies in.

pub(crate) mod around;
pub(crate) mod huge;
mod install;
#[cfg_attr(not(feature = "migrate"), path = "owed_none.rs")]
pub(crate) mod owed;
pub(crate) mod readahead;
mod swap_in;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::{Backing, Granules, Word};
use pagoda_linux::arena::Slot;
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::uffd::Stop;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::engine::Engine;
use crate::error::{Errno, StopReason};
use crate::file::is_unasked;
use crate::frames::zones::Taker;
use crate::state::pending::{Extent, Served};
use crate::stats::counters::Counter;
use crate::stats::fault_kind::FaultKind;
use crate::store::{Handle, Scratch, Store};
use crate::table::granularity::Part;
use crate::table::{Page, Span, Table, give, try_take};

pub(crate) use swap_in::unreadable;

impl Engine {
    /// Serves the fault `at` this place; of a page that is staged or stored, brings in as much as `extent` says. Where the page was
    /// found is left in `kind`.
    pub(crate) fn serve(
        &self,
        at: FaultAddress,
        write: bool,
        extent: Extent,
        kind: &mut FaultKind,
        scratch: &mut Scratch,
    ) -> Served {
        *kind = FaultKind::Huge;
        if let Some(served) = self.serve_huge(at) {
            return served;
        }
        *kind = FaultKind::Zero;
        let (mut fetched, mut tried, mut from_file) = (false, false, false);
        // From here on all is about pages.
        let address = at.page();
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
                *kind = FaultKind::Spurious;
                give(entry, word);
                return self.await_owed(address);
            }
            // What is owed beside it must not be filled with it.
            let page = page.without(owed);
            let file = span.entries().file();
            let lost = file.as_ref().map_or(Granules::NONE, |file| file.lost_granules(page.index));
            let page = page.without(lost);
            if let Some(file) = &file {
                if lost.has(granule) {
                    *kind = FaultKind::Spurious;
                    give(entry, word);
                    return self.refuse_lost(&page, granule);
                }
                if word.resident().has(granule) {
                    *kind = FaultKind::Spurious;
                    let after = self.look_for_hole(&page, word, granule);
                    give(entry, after);
                    if after == word {
                        return Served::Done;
                    }
                    continue;
                }
                if word.backing() == Backing::None {
                    let entries = Arc::clone(span.entries());
                    drop(table);
                    if !self.fetch_from_file(file, &entries, page.index, word, scratch.taker) {
                        return Served::NoMemory;
                    }
                    from_file = true;
                    *kind = FaultKind::Spilled;
                    continue;
                }
            }
            if word.resident().has(granule) {
                *kind = FaultKind::Spurious;
                let served = self.fill_hole(&page, granule, write);
                give(entry, word);
                return served;
            }
            // What was fetched for this fault is in memory by now.
            if !tried && !from_file {
                *kind = self.kind_of(word.backing());
            }
            // None for all of it.
            let part = self.comes_back(span, granule, extent);
            match word.backing() {
                Backing::None => {
                    let within = self.fill_for(span, &page, granule);
                    let comes = page.granules.and(within).without(word.resident());
                    let bytes = u64::from(comes.count()) * OS_PAGE as u64;
                    let Some(touch) = self.admit_touch(&table, address, bytes) else {
                        *kind = FaultKind::Spurious;
                        give(entry, word);
                        return self.refuse_lost(&page, granule);
                    };
                    let (word, served) = self.fill_zero(&page, word, (granule, within), write, scratch.taker);
                    give(entry, word);
                    drop(touch);
                    if served == Served::Done {
                        self.note_first_touch(span, &page, within);
                    }
                    return served;
                }
                Backing::Slot(slot) => {
                    if fetched {
                        self.ledger.fetched(self.entry_bytes() as u64);
                    }
                    let want = match part {
                        Some(part) if file.is_none() => page.granules.and(part.all),
                        // What of a file stays behind would be read again.
                        _ => page.granules,
                    };
                    let is_first = from_file || (file.is_some() && is_unasked(word));
                    let (word, served) =
                        self.install(&table, span, &page, word, slot, want, (granule, write));
                    // What was not there before was not missed.
                    give(entry, if is_first { word.with_warmth(1) } else { word });
                    return served;
                }
                // While the file was read the page could be fetched, written and stored anew: by a digest it is still this.
                Backing::Handle(handle) if self.is_still(handle, granule, read) => {
                    let (after, served) = self.install_granule(&page, word, granule, &content, scratch.taker);
                    self.ledger.changed(word, after);
                    give(entry, after);
                    return served;
                }
                Backing::Handle(handle)
                    if let Some(part) = part
                        && self.store.is_in_memory(Handle::from_bits(handle)) =>
                {
                    let (after, served) =
                        self.install_part(&page, word, handle, (granule, part), &mut content, scratch);
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
                    let is_new = !tried && !self.store.is_in_memory(Handle::from_bits(handle));
                    tried = true;
                    if is_new && extent == Extent::Onwards {
                        let behind = self.take_behind(&table, span, page.index, handle);
                        drop(table);
                        self.promote_with(handle, &entries, behind);
                    } else {
                        drop(table);
                    }
                    // Who wants a second part of a page will want more of it.
                    if is_new
                        && part.is_some_and(|part| part.wanted.count() == 1)
                        && word.resident().is_empty()
                    {
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

    /// What a fault is on a page whose content lies there.
    fn kind_of(&self, backing: Backing) -> FaultKind {
        match backing {
            Backing::None => FaultKind::Zero,
            Backing::Slot(_) => FaultKind::Staged,
            Backing::Handle(handle) if self.store.is_in_memory(Handle::from_bits(handle)) => {
                FaultKind::Stored
            }
            Backing::Handle(_) => FaultKind::Spilled,
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
        self.fill_one(PageRange::page(address), write).1
    }

    /// The same, for who can't tell by the fault that it is registered: None if it is not, so that it is nobody's.
    pub(crate) fn try_unknown(&self, address: usize, write: bool) -> Option<Served> {
        let at = PageRange::page(address);
        let progress =
            if write { self.space.fill_with_zeroes(at) } else { self.space.fill_with_zero_page(at) };
        match progress.stop {
            None => self.ledger.took(progress.bytes as i64),
            Some(Stop::Exists) => {}
            Some(Stop::Again) => return Some(Served::Again),
            Some(Stop::NoMemory) => return Some(Served::NoMemory),
            Some(Stop::Missing | Stop::Gone | Stop::Busy | Stop::Refused) => return None,
        }
        self.look_soon.store(true, Ordering::Relaxed);
        Some(Served::Done)
    }

    /// A missing page that is the region's own by the table: a fault that was served meanwhile, or a page that a discard took
    /// after its event was applied, which reads as zero.
    fn fill_hole(&self, page: &Page, granule: u32, write: bool) -> Served {
        let (filled, served) = self.fill_one(page.addresses(granule, granule + 1), write);
        self.counters.add(Counter::HolesFilled, u64::from(filled));
        served
    }

    /// Turns the stop of a fill into what becomes of the fault at `at`.
    pub(crate) fn settle(&self, stop: Option<Stop>, at: PageRange) -> Served {
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
    fn fill_zero(
        &self,
        page: &Page,
        word: Word,
        (granule, within): (u32, Granules),
        write: bool,
        taker: Taker,
    ) -> (Word, Served) {
        let run = page.granules.and(within).without(word.resident()).run_around(granule);
        let Some((from, to)) = run.runs().next() else {
            // The fault lies in the entry's memory but not in the span: cut off meanwhile, its event comes.
            return (word, Served::Again);
        };
        let room = self.has_room();
        // A read gets the zero page as long as there is room for the page that a write would bring.
        let several = self.zones.are_several();
        // A part of a page comes from the kernel as long as there is room; of several zones each of them is a zone's from the beginning.
        let is_whole = run.count() as usize * 4096 >= self.entry_bytes();
        let frame = if several || !room || write && is_whole {
            self.zeroed_frame(word, run, granule, taker)
        } else {
            None
        };
        let mut zone = 0;
        let progress = match frame {
            Some((slot, there)) => {
                zone = self.zones.of_slot(slot.index());
                let moved = self.move_in(page, &slot, run);
                if moved.done.is_empty() && is_whole {
                    // An event in the way, say: it is zero still, and so need not be cleared for the next try.
                    self.zones.put_zeroed(&self.space, slot);
                } else {
                    self.zones.put_pieces(&self.space, slot, there.without(moved.done).or(moved.copied));
                }
                moved
            }
            None if !room || several => return (word, Served::NoMemory),
            None => self.fill_fresh(page, from, to, write),
        };
        self.note_use();
        let word = self.came_in(word, progress.done, zone);
        let here = page.addresses(granule, granule + 1);
        if progress.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(progress.stop, here))
    }

    /// Puts the content of a staged page into the region. What has no page in the slot reads as zero, and comes in when it is
    /// asked for: nothing counts as in the region that is not there.
    #[expect(clippy::too_many_arguments, reason = "the state of one page, taken apart once")]
    pub(crate) fn install(
        &self,
        table: &Table,
        span: &Span,
        page: &Page,
        word: Word,
        slot: u32,
        want: Granules,
        (granule, write): (u32, bool),
    ) -> (Word, Served) {
        let zone = self.zones.of_slot(slot);
        let slot = self.space.claim_slot(slot);
        let there = self.space.pages_of(&slot);
        let moved = self.move_in(page, &slot, want.and(there).without(word.resident()));
        let word = self.came_in(word, moved.done, zone).with_warmth(2);
        // Granules outside the span are somebody's only if its array is shared with another part of the same mapping.
        let whole = granules_of_entry(span, page, table.entry_bytes());
        let word = if whole.and(there).without(word.resident()).is_empty() {
            self.left_staging(slot.index());
            self.zones.put_pieces(&self.space, slot, there.without(moved.done).or(moved.copied));
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
        let here = page.addresses(granule, granule + 1);
        if there.has(granule) {
            return (word, self.settle(moved.stop, here));
        }
        // Whatever room there is: without it the page would be stored and fetched again and again for a page of zeroes.
        let (filled, served) = self.fill_one(here, write);
        if !filled {
            return (word, served);
        }
        let zone = self.zone_of_kernel_memory(word);
        (self.came_in(word, Granules::range(granule, granule + 1), zone), served)
    }

    /// Copies a part of a page that is stored in memory into the region: what lies around `granule` first, as far as ready frames may
    /// be used for what nobody waits for.
    fn install_part(
        &self,
        page: &Page,
        word: Word,
        handle: u64,
        (granule, part): (u32, Part),
        content: &mut [u8; 4096],
        scratch: &mut Scratch,
    ) -> (Word, Served) {
        let taker = scratch.taker;
        let mut get = |granule: u32, content: &mut [u8; 4096]| {
            let at = granule as usize * OS_PAGE;
            if let Err(error) = self.store.get(Handle::from_bits(handle), at, content, scratch) {
                self.stop(unreadable(error));
            }
        };
        let others = page.granules.and(part.all).without(word.resident());
        let others = others.without(Granules::range(granule, granule + 1));
        let mut after = word;
        for other in others.runs().flat_map(|(from, to)| from..to) {
            if !self.may_use_frames() {
                break;
            }
            get(other, content);
            // Most likely it never was there: ahead of anybody it would only take room.
            if !part.wanted.has(other) && content.iter().all(|byte| *byte == 0) {
                continue;
            }
            // What can't be placed has a fault of its own.
            match self.place_granule(page, after, other, content, taker) {
                Ok(placed) => after = placed.with_warmth(word.warmth()),
                Err(_) => break,
            }
        }
        get(granule, content);
        self.install_granule(page, after, granule, content, taker)
    }

    /// Copies one granule of a stored page into the region. The rest stays stored, and so does the granule's old copy,
    /// which is worth nothing from now on.
    fn install_granule(
        &self,
        page: &Page,
        word: Word,
        granule: u32,
        content: &[u8; 4096],
        taker: Taker,
    ) -> (Word, Served) {
        match self.place_granule(page, word, granule, content, taker) {
            Ok(word) => (word, Served::Done),
            Err(None) => (word, Served::NoMemory),
            Err(stop) => (word, self.settle(stop, page.addresses(granule, granule + 1))),
        }
    }

    /// The same, and says what kept it out: the kernel, or that there is no frame.
    fn place_granule(
        &self,
        page: &Page,
        word: Word,
        granule: u32,
        content: &[u8; 4096],
        taker: Taker,
    ) -> Result<Word, Option<Stop>> {
        let here = page.addresses(granule, granule + 1);
        let place = |slot: &Slot, offset| {
            let progress = self.space.fill(here, slot, offset);
            (progress.stop.is_none(), progress)
        };
        // While the thread that wants it waits, moving an OS page that is ready takes less than a fresh one.
        let may_open = !self.has_room() && self.may_use_frame();
        let mut zone = 0;
        let progress = if self.zones.are_several() {
            let Some(placed) = self.place_page_of_a_zone(word, content, may_open, taker, place) else {
                return Err(None);
            };
            zone = placed.0;
            placed.1
        } else if let Some(progress) = self.zones.place_page(&self.space, content, may_open, place) {
            progress
        } else if self.has_room() {
            let progress = self.space.fill_with(here, content);
            self.ledger.took(progress.bytes as i64);
            progress
        } else {
            return Err(None);
        };
        let progress = match progress.stop {
            // Where the mapping does not allow a move, a copy does.
            Some(Stop::Refused | Stop::Busy) => self.space.fill_with(here, content),
            _ => progress,
        };
        if progress.stop.is_some() {
            return Err(progress.stop);
        }
        self.ledger.fetched(OS_PAGE as u64);
        self.note_use();
        let word = self.came_in(word, Granules::range(granule, granule + 1), zone);
        Ok(word.with_warmth((word.warmth() + 1).min(3)))
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
        let Some(mut slot) = self.frame_for_fetch(false, scratch.taker) else {
            return (word, Served::NoMemory);
        };
        let handle = Handle::from_bits(handle);
        if let Err(error) = self.store.get(handle, 0, self.space.bytes_mut(&mut slot), scratch) {
            self.stop(unreadable(error));
        }
        // All of it is in the region in a moment: of the two copies the one in the file is enough.
        self.store.demote(handle);
        let zone = self.zones.of_slot(slot.index());
        let moved = self.move_in(page, &slot, page.granules.without(word.resident()));
        let all = Granules::range(0, (self.entry_bytes() / 4096) as u32);
        self.zones.put_pieces(&self.space, slot, all.without(moved.done).or(moved.copied));
        self.ledger.fetched(self.entry_bytes() as u64);
        self.note_use();
        let word = self.came_in(word, moved.done, zone).with_warmth(2);
        if moved.done.has(granule) {
            return (word, Served::Done);
        }
        (word, self.settle(moved.stop, page.addresses(granule, granule + 1)))
    }
}

/// The granules of an entry that may be somebody's.
pub(crate) fn granules_of_entry(span: &Span, page: &Page, entry_bytes: usize) -> Granules {
    if Arc::strong_count(span.entries()) > 1 {
        Granules::range(0, (entry_bytes / 4096) as u32)
    } else {
        page.granules
    }
}

#[cfg(test)]
pub(crate) mod tests;
