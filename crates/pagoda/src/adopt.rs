//! Taking ranges under management, and giving them up.
//!
//! Adoption registers a range, asks what is present in it and marks that as the region's own, all with the gate held
//! exclusively: no event is read meanwhile, so nothing that is marked can be the rest of a discard that was applied
//! before. Giving up brings everything back first; a range is never left with content elsewhere.
//!
//! As long as there is plenty of room a range is only *followed*: it is registered for its events, and the kernel fills it.
//! When room gets short it is registered for its faults, too, and only then is marked what is present, in the same way.
//! A range of which anything is discarded stops being followed before the kernel drops it, so that what the kernel fills
//! is never confused with what it is about to drop.

use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLockWriteGuard};

use pagoda_core::entry::{Backing, Word};
use pagoda_linux::pagemap::PagemapScanner;
use pagoda_linux::range::PageRange;
use pagoda_linux::thread::yield_now;
use pagoda_linux::uffd::Errno as KernelErrno;

use crate::counters::{Counter, Status};
use crate::engine::Engine;
use crate::error::Errno;
use crate::fault::{Extent, Served};
use crate::fault_kind::FaultKind;
use crate::file_region::PageFile;
use crate::fill::Density;
use crate::region::RegionError;
use crate::store::Scratch;
use crate::table::{Filler, Span, Table, give};

/// How much of a mapping is registered, scanned and marked at once, with the gate closed for faults meanwhile: about
/// 200 µs for the scan of 64 MiB.
const ADOPT_BYTES: usize = 64 << 20;

/// Bytes of address space that could not be adopted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NotAdopted {
    /// The program has registered them itself.
    pub(crate) registered_bytes: u64,
    /// The kernel has no room for another mapping now.
    pub(crate) refused_bytes: u64,
}

impl Engine {
    /// Takes `range` under management, with what is present in it. Returns what it could not.
    pub(crate) fn adopt(&self, present: &mut PagemapScanner, range: PageRange, filler: Filler) -> NotAdopted {
        let mut start = range.start();
        let mut adopted = 0;
        let mut not = NotAdopted::default();
        let mut most = ADOPT_BYTES;
        while start < range.end() {
            let chunk = PageRange::at(start, most.min(range.end() - start));
            start = chunk.end();
            let mut table = self.gate_exclusive();
            // The maps were read without the gate: what is managed meanwhile is not touched again.
            let mut free = Vec::new();
            table.gaps(chunk, |gap| free.push(gap));
            for gap in free {
                let registered_now = match filler {
                    Filler::Engine | Filler::EngineHuge | Filler::File => self.space.register(gap),
                    Filler::Kernel => self.space.follow(gap),
                };
                match registered_now {
                    Ok(()) => {}
                    Err(errno) if errno == KernelErrno::BUSY => {
                        not.registered_bytes += gap.len() as u64;
                        continue;
                    }
                    // The process may not have one mapping more, which a part of one would be. All of it is none.
                    Err(errno) if errno == KernelErrno::NOMEM && chunk.end() < range.end() => {
                        (start, most) = (gap.start(), usize::MAX);
                        break;
                    }
                    Err(errno) if errno == KernelErrno::NOMEM => {
                        not.refused_bytes += gap.len() as u64;
                        continue;
                    }
                    // Gone or changed since the maps were read: the next look sees what is there then. What the table knows must be
                    // there: a mapping that moves to a place that it takes for occupied waits for it to be left.
                    Err(_) => continue,
                }
                // While a mapping is changing, this may be the target of a move whose event is still to come: the next look
                // finds it again.
                if !self.space.is_quiet() || table.order.deferred() > 0 {
                    self.look_soon.store(true, Ordering::Relaxed);
                    continue;
                }
                if !self.fork_events {
                    self.space.set_forked(gap, false);
                }
                table.insert(gap, filler);
                adopted += gap.len();
                match filler {
                    Filler::Engine | Filler::EngineHuge | Filler::File => {
                        self.mark_present(&table, present, gap);
                    }
                    Filler::Kernel => self.follows.store(true, Ordering::Relaxed),
                }
            }
        }
        if adopted > 0 {
            self.counters.add(Counter::AdoptedRanges, 1);
            self.counters.add(Counter::AdoptedBytes, adopted as u64);
        }
        not
    }

    /// Ends the following of all ranges: what is missing in them is ours to fill from now on, and what is present may be
    /// evicted. A range that is changing just now, or where the kernel has no room for another mapping, is left for the
    /// next time. Holds the gate for a range at a time, 1.6 ms for each GiB that is present.
    pub(crate) fn end_all_following(&self, present: &mut PagemapScanner) {
        let followed: Vec<PageRange> = {
            let table = self.gate_shared();
            let followed = table.spans().filter(|span| span.filler() == Filler::Kernel);
            followed.map(Span::range).collect()
        };
        let mut left = false;
        for range in followed {
            let mut table = self.gate_exclusive();
            // It may have been cut or moved since: what is there now is found the next time.
            if table.find(range.start()).is_none_or(|span| span.range() != range) {
                left = true;
                continue;
            }
            // While a mapping is changing, what is registered here may be another's: asked after it was.
            let registered = matches!(self.space.register(range), Ok(()) | Err(KernelErrno::FAULT));
            if !registered || !self.space.is_quiet() || table.order.deferred() > 0 {
                left = true;
                continue;
            }
            table.fill_by_engine(range);
            self.mark_present(&table, present, range);
        }
        self.follows.store(left, Ordering::Relaxed);
    }

    /// Ends the following of what of `range` is followed, before the kernel drops what is present there: what comes after that
    /// is filled by us. The rest of its span is followed on.
    pub(crate) fn end_following(&self, table: &mut Table, range: PageRange) {
        let mut followed = Vec::new();
        let mut at = range.start();
        while let Some(span) = table.next_from(at).filter(|span| span.range().start() < range.end()) {
            at = span.range().end();
            if span.filler() == Filler::Kernel {
                followed.extend(span.range().intersection(range));
            }
        }
        for part in followed {
            // Where that fails the kernel goes on to fill it: without a mark, so that it is never evicted.
            let _ = self.space.register(part);
            table.fill_by_engine(part);
        }
    }

    /// Marks what is present in `range`, which was just registered, as the region's own.
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
        // What could not be asked about stays unmarked: never evicted, and served as a hole if it is missing.
        drop(marked);
    }

    /// Takes a library's range under management; what is present in it, if somebody tells. What is managed already is refused:
    /// its entries would be lost. Waits until the event of what was mapped there before is applied.
    pub(crate) fn manage(
        &self,
        range: PageRange,
        present: Option<&mut PagemapScanner>,
        density: Option<Arc<Density>>,
    ) -> Result<(), RegionError> {
        let mut table = self.register_new(range)?;
        // What a region's owner does to its mapping is known only of our own.
        let huge = present.is_none() && self.huge.is_on();
        if huge {
            self.space.allow_huge(range);
        }
        match density {
            Some(density) => table.insert_by_density(range, density),
            None => {
                table.insert(range, if huge { Filler::EngineHuge } else { Filler::Engine });
            }
        }
        if let Some(present) = present {
            self.mark_present(&table, present, range);
        }
        Ok(())
    }

    /// Takes `range` under management as the pages of `file`.
    pub(crate) fn manage_file(&self, range: PageRange, file: &Arc<PageFile>) -> Result<(), RegionError> {
        self.register_new(range)?.insert_file(range, Arc::downgrade(file));
        Ok(())
    }

    /// Registers `range`, of which nothing is managed, and leaves the gate closed for who enters it.
    fn register_new(&self, range: PageRange) -> Result<RwLockWriteGuard<'_, Table>, RegionError> {
        let mut table = self.gate_exclusive();
        // The kernel gives the addresses of a region that is being unmapped away before anybody has read of it: that event
        // would be taken for one of the new region.
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

    /// Returns when the event of an unmapping that has returned is applied: a handler reads it and applies it within the gate, and
    /// the unmapping returns when it is read. The range may be another region's by now.
    pub(crate) fn await_unmapped(&self) {
        drop(self.gate_exclusive());
    }

    /// Brings all of `range` back and ends its management. The budget is not kept meanwhile: what came back would be
    /// evicted again, without end.
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
            // It is all in the range: what goes is our account of it, and stored copies that are out of date.
            self.discard(&table, range, &mut Scratch::new(self.base));
            table.cut(range);
            break;
        }
        self.bringing_back.fetch_sub(1, Ordering::AcqRel);
        self.bell.ring();
    }

    /// Brings everything back and ends the management: what a fork gets, as long as children are not managed. The
    /// budget is not kept any more.
    pub(crate) fn release_all(&self) {
        self.released.store(true, Ordering::Release);
        let everything = PageRange::new(0, usize::MAX & !4095).expect("the whole address space");
        loop {
            while self.bring_some_back(everything) {}
            let table = self.gate_exclusive();
            if self.is_any_out(&table, everything) {
                continue;
            }
            for span in table.spans() {
                if !self.fork_events {
                    self.space.set_forked(span.range(), true);
                }
                // A range that is gone meanwhile is not registered any more either.
                let _ = self.space.unregister(span.range());
            }
            break;
        }
        self.counters.add(Counter::Forks, 1);
        self.counters.set(Counter::Status, Status::Released as u64);
        self.release_done.store(true, Ordering::Release);
    }

    fn is_any_out(&self, table: &Table, range: PageRange) -> bool {
        table.spans().any(|span| {
            let Some(within) = span.range().intersection(range) else { return false };
            span.indices(within, table.entry_bytes()).any(|index| {
                let word = Word::from_bits(span.entry(index).load(Ordering::Acquire));
                let page = span.page(index, within, table.entry_bytes());
                let out = page.granules.without(word.resident());
                word.is_busy() || word.backing() != Backing::None && !out.is_empty()
            })
        })
    }

    /// Makes one pass over the entries of `whole` and brings back what is out. True if an entry was busy or an event in the way.
    fn bring_some_back(&self, whole: PageRange) -> bool {
        let mut scratch = Scratch::new(self.base);
        let mut again = false;
        let mut at = whole.start();
        loop {
            let table = self.gate_shared();
            let Some(span) = table.next_from(at) else { return again };
            let Some(range) = span.range().intersection(whole) else { return again };
            let entry_bytes = table.entry_bytes();
            let from = PageRange::new(at.max(range.start()), range.end()).unwrap_or(range);
            let mut found = None;
            for index in span.indices(from, entry_bytes) {
                let word = Word::from_bits(span.entry(index).load(Ordering::Acquire));
                let page = span.page(index, from, entry_bytes);
                let out = page.granules.without(word.resident());
                if word.is_busy() {
                    again = true;
                } else if word.backing() != Backing::None && !out.is_empty() {
                    found = out.runs().next().map(|(first, to)| page.addresses(first, to));
                    break;
                }
            }
            drop(table);
            match found {
                None => at = range.end(),
                Some(missing) => {
                    at = missing.end();
                    let mut kind = FaultKind::Zero;
                    let served = self.serve(missing.start(), true, Extent::Page, &mut kind, &mut scratch);
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
