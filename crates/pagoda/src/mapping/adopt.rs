//! Taking ranges under management, and giving them up.
//!
//! Adoption registers a range, asks for its present pages and marks them as the region's own, all
//! with the gate held exclusively. No event is read meanwhile, so that no marked page can be the
//! rest of a discard that was applied before. Giving up swaps everything in first; a range is never
//! left with content elsewhere.
//!
//! A discard that the program began before its range was registered has ended when the registration
//! returns: the mapping's own lock in the kernel keeps them apart. One that begins later is an
//! event.

use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockWriteGuard};

use pagoda_core::fault::density::Touched;
use pagoda_core::fault::swap_in::Extent;
use pagoda_core::page::BasePage;
use pagoda_core::page_entry::{Backing, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::own_memory::{is_own, not_own};
use pagoda_linux::mem::range::PageRange;
use pagoda_linux::mem::unforked::{Calls, UnforkedReader};
use pagoda_linux::process::spare_descriptor::has_room;
use pagoda_linux::process::thread::yield_now;
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::uffd::Errno as KernelErrno;
use pagoda_linux::uffd::coverage::Coverage;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::engine::Engine;
use crate::error::Errno;
use crate::file::PageFile;
use crate::region::RegionError;
use crate::state::pending::Served;
use crate::stats::counters::{Counter, Status};
use crate::stats::fault_kind::FaultKind;
use crate::store::Scratch;
use crate::table::filling::{Density, Filling};
use crate::table::granularity::RegionBase;
use crate::table::{Filler, Page, Span, Table, give};

/// How much of a mapping is scanned and marked at once, with the gate closed for faults meanwhile:
/// about 200 µs for the scan of 64 MiB.
const ADOPT_BYTES: usize = 64 << 20;

/// The least part of a program's mapping that is filled by density. What touches bring too much of
/// a smaller one is little.
const DENSITY_LEAST: usize = 4 << 20;

/// Bytes of address space that could not be adopted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NotAdopted {
    /// The program has registered them itself.
    pub(crate) registered_bytes: u64,
    /// The kernel has no room for another mapping now.
    pub(crate) refused_bytes: u64,
}

impl Engine {
    /// Takes `range`, which may be most of a mapping, under management, with its present pages.
    /// Returns the parts that it could not take.
    ///
    /// `calls`, where the kernel does not tell of forks: the calls that keep memory out of
    /// children, when the caller looked at that. If there was one since, the range may be
    /// concerned, and is left for the next look.
    pub(crate) fn adopt(
        &self,
        present: &mut PagemapScanner,
        range: PageRange,
        calls: Option<Option<Calls>>,
    ) -> NotAdopted {
        let mut start = range.start();
        let mut adopted = 0;
        let mut not = NotAdopted::default();
        let mut touched = Touched::default();
        if !self.open_to_forks() {
            not.refused_bytes = range.len() as u64;
            return not;
        }
        while let Some(rest) = PageRange::new(start, range.end()) {
            let mut table = self.gate_exclusive();
            // The maps were read without the gate. Skips ranges that are managed meanwhile, or hold
            // memory of our own.
            let Some(gap) = table.first_gap(rest) else { break };
            let mut free = None;
            not_own(gap, |part| {
                free.get_or_insert(part);
            });
            let Some(gap) = free else {
                start = gap.end();
                continue;
            };
            start = gap.end();
            if !self.register_gap(&table, gap, calls, &mut not) {
                continue;
            }
            let chunk = PageRange::at(gap.start(), ADOPT_BYTES.min(gap.len()));
            start = chunk.end();
            if !self.fork_events {
                self.space.set_forked(chunk, false);
            }
            adopted += chunk.len();
            if chunk.len() < DENSITY_LEAST || !self.adopts_by_density() {
                table.insert(chunk, Filler::Engine);
                self.mark_present(&table, present, chunk);
                continue;
            }
            let density = Arc::new(Density::in_use(Bytes::new(chunk.len() as u64)));
            table.insert_by_density(chunk, Filler::Engine, &density);
            self.mark_present(&table, present, chunk);
            self.begin_density(&table, chunk, &density, &mut touched);
        }
        if adopted > 0 {
            if self.has_forked.load(Ordering::Acquire) {
                self.hold_writes_after(0);
            }
            self.counters.add(Counter::AdoptedRanges, 1);
            self.counters.add(Counter::AdoptedBytes, adopted as u64);
        }
        not
    }

    /// Registers `gap`, of which nothing is managed. Returns whether it may enter the table; if
    /// not,
    /// `not` has the reason, or another look finds it anew.
    fn register_gap(
        &self,
        table: &Table,
        gap: PageRange,
        calls: Option<Option<Calls>>,
        not: &mut NotAdopted,
    ) -> bool {
        // All of it each time: the program could not change the size of a mapping of which only a
        // part is registered, and where it may not have one mapping more, a part could not be.
        let registered = self.space.register(gap);
        if is_own(gap) {
            // Mapped by another thread of ours in a hole. It must not wait for itself; the next
            // look leaves it out.
            let _ = self.space.unregister(gap);
            self.look_soon.store(true, Ordering::Relaxed);
            return false;
        }
        // After it was registered: later calls of the program find it managed.
        if registered.is_ok() && calls.is_some_and(|calls| !calls.is_some_and(Calls::is_current)) {
            let _ = self.space.unregister(gap);
            not.refused_bytes += gap.len() as u64;
            self.look_soon.store(true, Ordering::Relaxed);
            return false;
        }
        match registered {
            Ok(()) => {}
            Err(KernelErrno::BUSY) => {
                not.registered_bytes += gap.len() as u64;
                return false;
            }
            Err(KernelErrno::NOMEM) => {
                not.refused_bytes += gap.len() as u64;
                return false;
            }
            // Gone or changed since the maps were read: the next look sees the new state. A range
            // in the table must exist: a mapping that moves to an occupied place waits until it is
            // left.
            Err(_) => return false,
        }
        // While a mapping is changing, this may be the target of a move whose event is still to
        // come. And a mapping that is new since the maps were read may not be registered: its
        // missing pages would make no fault of ours. The next look finds it again.
        if self.space.coverage(gap) != Coverage::Whole || table.order.deferred() > 0 {
            self.look_soon.store(true, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Marks the present pages of `range`, which was just registered, as the region's own.
    pub(crate) fn mark_present(&self, table: &Table, present: &mut PagemapScanner, range: PageRange) {
        let entry_bytes = table.entry_bytes();
        let marked = present.populated_runs(range.start(), range.end(), |run, _| {
            let Some(run) = PageRange::new(run.start, run.end) else { return };
            let Some(span) = table.find(run.start()) else { return };
            for index in span.indices(run, entry_bytes) {
                let page = span.page(index, run, entry_bytes);
                let word = self.take(span.entries(), index);
                let new = page.granules.without(word.resident());
                let zone = self.zone_of_kernel_memory(word);
                give(span.entry(index), self.came_in(word, new, zone));
            }
        });
        // Pages that could not be asked about stay unmarked: never evicted, and served as a hole if
        // they are missing.
        drop(marked);
    }

    /// Takes a library's range under management, with its present pages if `present` can find them.
    /// Refuses a range of which a part is managed already: its entries would be lost. Waits until
    /// the event of an earlier mapping there is applied.
    pub(crate) fn manage(
        &self,
        range: PageRange,
        present: Option<&mut PagemapScanner>,
        base: RegionBase,
    ) -> Result<(), RegionError> {
        let mut table = self.register_new(range)?;
        let filler = match base.size {
            // Whether a mapping may have huge pages by the kernel is for its owner to say.
            BasePage::M2 if self.huge.is_on() && present.is_none() => Filler::EngineHuge,
            BasePage::K64 if self.comes_whole => Filler::EngineOnwards,
            _ => Filler::Engine,
        };
        // Otherwise the fault itself makes a table of OS pages there, and a huge frame that is
        // moved to it is taken apart. It has its price: the kernel gets and clears a huge page of
        // its own at each fault, before it asks.
        if filler == Filler::EngineHuge {
            self.has_huge.store(true, Ordering::Release);
            self.space.allow_huge(range);
        }
        let span = match base.filling {
            Filling::Whole if present.is_none() => table.try_insert(range, filler),
            filling => table.insert_filled(range, filling, filler),
        };
        if span.is_none() {
            let _ = self.space.unregister(range);
            return Err(RegionError::Entries { len: Bytes::new(range.len() as u64), base: self.base });
        }
        if let Some(present) = present {
            self.lift.turn_off();
            self.mark_present(&table, present, range);
        }
        Ok(())
    }

    /// Takes `range` under management as the pages of `file`.
    pub(crate) fn manage_file(&self, range: PageRange, file: &Arc<PageFile>) -> Result<(), RegionError> {
        self.register_new(range)?.insert_file(range, Arc::downgrade(file));
        Ok(())
    }

    /// Registers `range`, of which nothing is managed, and returns the gate, closed, for the caller
    /// that enters it.
    fn register_new(&self, range: PageRange) -> Result<RwLockWriteGuard<'_, Table>, RegionError> {
        let mut table = self.gate_exclusive();
        // The kernel gives away the addresses of a region that is being unmapped before its event
        // is read: that event would be taken for one of the new region.
        while !table.is_free(range) {
            if self.space.is_quiet() && table.order.deferred() == 0 {
                let errno = Errno(KernelErrno::BUSY.raw_os_error());
                return Err(RegionError::Register { errno });
            }
            drop(table);
            yield_now();
            table = self.gate_exclusive();
        }
        self.space
            .register(range)
            .map_err(|errno| RegionError::Register { errno: Errno(errno.raw_os_error()) })?;
        if !self.fork_events {
            self.space.set_forked(range, false);
        }
        Ok(table)
    }

    /// Returns when the event of an unmapping that has returned is applied: a handler reads it and
    /// applies it within the gate, and the unmapping returns when it is read. The range may be
    /// another region's by now.
    pub(crate) fn await_unmapped(&self) {
        drop(self.gate_exclusive());
    }

    /// Swaps in all of `range` and ends its management. The budget is not enforced meanwhile:
    /// swapped-in pages would be evicted again, without end.
    pub(crate) fn bring_back(&self, range: PageRange) {
        self.bringing_back.fetch_add(1, Ordering::AcqRel);
        loop {
            while self.bring_some_back(range) {}
            let mut table = self.gate_exclusive();
            if self.is_any_out(&table, range) {
                continue;
            }
            // A range that is gone meanwhile is not registered any more either.
            let _ = self.space.unregister(range);
            if !self.fork_events {
                self.space.set_forked(range, true);
            }
            // It is all in the range: this drops our account of it, and old stored copies.
            self.discard(&table, range, &mut Scratch::new(self.base));
            table.cut(range);
            break;
        }
        self.bringing_back.fetch_sub(1, Ordering::AcqRel);
        self.bell.ring();
    }

    /// Swaps in everything and ends the management: for a core dump, and for a fork as long as
    /// children are not managed. The budget is not enforced any more.
    ///
    /// Memory that this engine keeps out of children is given to them again, by the kernel's own
    /// list: a mapping may have grown, moved or been split since it was entered in the table. Where
    /// the kernel does not tell, a child lacks such memory: it ends with SIGSEGV there, and never
    /// reads wrong data.
    pub(crate) fn release_all(&self, unforked: Option<&mut UnforkedReader>) {
        self.released.store(true, Ordering::Release);
        let everything = PageRange::new(0, usize::MAX & !4095).expect("the whole address space");
        loop {
            while self.bring_some_back(everything) {}
            let table = self.gate_exclusive();
            if self.is_any_out(&table, everything) {
                continue;
            }
            let mut ranges: Vec<PageRange> = table.spans().map(Span::range).collect();
            if let Some(unforked) = unforked {
                let _ = unforked.of_engine(|mapping| {
                    if let Some(range) = PageRange::new(mapping.start, mapping.end) {
                        not_own(range, |part| ranges.push(part));
                    }
                });
            }
            for range in ranges {
                if !self.fork_events {
                    self.space.set_forked(range, true);
                }
                // A range that is gone meanwhile is not registered any more either.
                let _ = self.space.unregister(range);
            }
            // A fork would wait for good for its event to be read.
            if self.fork_events && !has_room() {
                self.space.remove_doorbell();
            }
            break;
        }
        self.counters.set(Counter::Status, Status::Released as u64);
        self.release_done.store(true, Ordering::Release);
    }

    fn is_any_out(&self, table: &Table, range: PageRange) -> bool {
        table.spans().any(|span| {
            let Some(within) = span.range().intersection(range) else { return false };
            span.used(within, table.entry_bytes()).any(|index| {
                let word = span.word(index);
                let page = span.page(index, within, table.entry_bytes());
                word.is_busy() || self.first_out(&page, word).is_some()
            })
        })
    }

    /// The first run of a page's granules that are swapped out. A present granule without a bit was
    /// given to the kernel to free when it likes (`MADV_FREE`), or is a guard. Its backing is worth
    /// nothing, and it can't be filled.
    fn first_out(&self, page: &Page, word: Word) -> Option<PageRange> {
        if word.backing() == Backing::None {
            return None;
        }
        let out = page.granules.without(word.resident());
        out.runs().find_map(|(from, to)| {
            let missing = self.space.missing_pages(page.addresses(from, to));
            let (first, end) = missing.runs().next()?;
            Some(page.addresses(from + first, from + end))
        })
    }

    /// Makes one pass over the entries of `whole` and swaps in their pages. True if an entry was
    /// busy or an event in the way.
    fn bring_some_back(&self, whole: PageRange) -> bool {
        let mut scratch = Scratch::new(self.base);
        let mut again = false;
        let mut at = whole.start();
        loop {
            // A span may go on beyond the end.
            let Some(rest) = PageRange::new(at, whole.end()) else { return again };
            let table = self.gate_shared();
            let Some(span) = table.next_from(at) else { return again };
            let Some(from) = span.range().intersection(rest) else { return again };
            let entry_bytes = table.entry_bytes();
            let mut found = None;
            for index in span.used(from, entry_bytes) {
                let word = span.word(index);
                if word.is_busy() {
                    again = true;
                    continue;
                }
                found = self.first_out(&span.page(index, from, entry_bytes), word);
                if found.is_some() {
                    break;
                }
            }
            drop(table);
            match found {
                None => at = from.end(),
                Some(missing) => {
                    at = missing.end();
                    let mut kind = FaultKind::Zero;
                    let served = self.serve(
                        FaultAddress::of_byte(missing.start()),
                        true,
                        Extent::Whole,
                        &mut kind,
                        &mut scratch,
                    );
                    if served == Served::Done {
                        self.counters.add(Counter::BroughtBackBytes, missing.len() as u64);
                    } else {
                        again = true;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "adopt_test.rs"]
mod tests;
