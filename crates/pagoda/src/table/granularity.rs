//! How much a touch fills in a region: its base page, either chosen, or adapted to density: 4, 16
//! or 64 KiB.
//!
//! A region may have a base page that is less than an entry: then a touch fills or swaps in that
//! aligned block. [`pagoda_core::fault::density`] decides on density; this module counts for it. A
//! region begins as small as its purpose suggests, and grows if it is touched densely. Each place
//! of 2 MiB begins small again, however dense the region, and grows by its own touches. So a
//! program that goes from a dense part to a sparse one pays for one place at most. A base page that
//! is filled whole shows only by its content how much of it is used, so pages that are stored are
//! checked for zero OS pages. The entries stay those of the base page: a smaller fill is a partial
//! one. This module must never fill, and never look at more than a bounded part of a region.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::fault::density::{Touched, Use};
use pagoda_core::fault::swap_in::Extent;
use pagoda_core::page::{BasePage, HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::region::adoptable::RegionError;
use crate::store::Put;
use crate::table::filling::{AHEAD_BLOCKS, Density, Filling, granules, of_entry};
use crate::table::{Entries, Page, Span, Table};

/// First touches between two looks at the density: 256 KiB of them at 4 KiB. Three looks in a row
/// have to agree.
const FAULTS_BETWEEN_LOOKS: u32 = 64;

/// Entries on each side of the last first touch that a look counts, 16 MiB: some µs for 64 faults.
const LOOK_ENTRIES: usize = 256;

/// Pages on their way to the store between two looks at how much of them was used.
const STORED_BETWEEN_LOOKS: u64 = 64;

/// The bytes of a place: so many that a window of first touches overfills at most the next place.
const PLACE_BYTES: usize = HUGE_FRAME;

/// The base page of a new region: the size of a touch, the filling of its entries, and their
/// filler.
#[derive(Clone, Debug)]
pub(crate) struct RegionBase {
    pub(crate) size: BasePage,
    pub(crate) filling: Filling,
}

/// The part of an entry that one touch swaps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The touched part: the block, or the granule.
    pub(crate) wanted: Granules,
    /// The touched part and the prefetched ones.
    pub(crate) all: Granules,
}

/// The distance of the touches of a sequential reader at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) bytes: usize,
    /// If `bytes` is less than an entry: the number of blocks that are prefetched with the touched
    /// one. None where readahead takes whole entries.
    pub(crate) more: Option<usize>,
}

impl Engine {
    /// The base page of a new region: the chosen one, or else its manager's. Where entries are of
    /// 64 KiB it may be any. With several zones there is no density.
    pub(crate) fn region_base(
        &self,
        chosen: Option<BasePage>,
        purpose: Use,
        len: Bytes,
    ) -> Result<RegionBase, RegionError> {
        let manager = self.base;
        let whole = RegionBase { size: chosen.unwrap_or(manager), filling: Filling::Whole };
        let Some(size) = chosen else {
            if !self.by_density || self.zones.are_several() {
                return Ok(whole);
            }
            let density = Arc::new(Density::new(purpose, len, manager));
            return Ok(RegionBase { size: manager, filling: Filling::ByDensity(density) });
        };
        if size == manager || size >= BasePage::K64 && manager >= BasePage::K64 {
            Ok(whole)
        } else if manager >= BasePage::K64 {
            // From now on handlers ask for the size of blocks.
            self.has_blocks.store(true, Ordering::Release);
            Ok(RegionBase { size, filling: Filling::Blocks(size) })
        } else {
            Err(RegionError::BasePage { asked: size, manager })
        }
    }

    /// The distance of the touches of a sequential reader from `address` on.
    pub(crate) fn unit_at(&self, address: usize) -> Unit {
        let entry = Unit { bytes: self.entry_bytes(), more: None };
        if !self.has_blocks.load(Ordering::Acquire) {
            return entry;
        }
        let table = self.gate_shared();
        let Some(span) = table.find(address) else { return entry };
        let Filling::Blocks(size) = span.entries().filling() else { return entry };
        let granule = table.page_at(span, address).granule_of(address);
        let above = (self.entry_bytes() / OS_PAGE - 1 - granule as usize) / granules(*size) as usize;
        Unit { bytes: size.bytes(), more: Some(above.min(AHEAD_BLOCKS)) }
    }

    /// The part of a staged or stored page that a touch of `granule` swaps in; None for all of it.
    /// With blocks it is one block. Sequential access gets as many more as pages are prefetched
    /// elsewhere, as long as there is room.
    pub(crate) fn comes_back(&self, span: &Span, granule: u32, extent: Extent) -> Option<Part> {
        let count = match span.entries().filling() {
            Filling::Blocks(size) => granules(*size),
            _ => {
                let Extent::Granules(order) = extent else { return None };
                let (first, count) = (granule >> order << order, 1 << order);
                let all = Granules::range(first, (first + count).min((self.entry_bytes() / OS_PAGE) as u32));
                return Some(Part { wanted: Granules::range(granule, granule + 1), all });
            }
        };
        if extent == Extent::Whole {
            return None;
        }
        let goes_on = extent == Extent::Onwards && self.fetches_ahead;
        let more = goes_on && self.may_use_frames() && self.free() >= self.marks().low;
        let from = granule / count * count;
        let end = from + count * if more { 1 + AHEAD_BLOCKS as u32 } else { 1 };
        let all = Granules::range(from, end.min((self.entry_bytes() / OS_PAGE) as u32));
        Some(Part { wanted: Granules::range(from, from + count), all })
    }

    /// The granules of a page that may be filled for a first touch of `granule`.
    pub(crate) fn fill_for(&self, span: &Span, page: &Page, granule: u32) -> Granules {
        let count = match span.entries().filling() {
            Filling::Whole => return Granules::range(0, (self.entry_bytes() / OS_PAGE) as u32),
            Filling::Blocks(size) => granules(*size),
            Filling::ByDensity(density) => {
                let entries = PLACE_BYTES / self.entry_bytes();
                let first = page.index / entries * entries;
                granules(density.size_at(|| self.touched(span.entries(), first, entries)))
            }
        };
        let from = granule / count * count;
        Granules::range(from, from + count)
    }

    /// The step by which a stream is followed there: OS pages where that shows whether all of them
    /// are touched.
    pub(crate) fn size_of_steps(&self, span: &Span) -> BasePage {
        match span.entries().filling() {
            Filling::Whole => of_entry(self.entry_bytes()),
            Filling::ByDensity(_) => BasePage::K4,
            Filling::Blocks(size) => *size,
        }
    }

    /// The number of these steps in one entry that shows which of its parts are touched; one
    /// without density.
    pub(crate) fn steps_of_entry(&self, span: &Span, step: BasePage) -> u64 {
        if span.entries().density().is_some() { (self.entry_bytes() / step.bytes()) as u64 } else { 1 }
    }

    /// How many first touches these granules of one entry, filled ahead, stand for.
    pub(crate) fn touches_saved(&self, span: &Span, filled: Granules) -> u64 {
        match span.entries().filling() {
            Filling::Whole | Filling::ByDensity(_) => 1,
            Filling::Blocks(size) => u64::from(filled.count() / granules(*size)),
        }
    }

    /// Whether a program's adopted memory is filled by density.
    pub(crate) fn adopts_by_density(&self) -> bool {
        !self.is_library && !self.zones.are_several() && self.base == BasePage::K64
    }

    /// Begins with the size that the present pages of `range`, which was just adopted, bear out.
    /// Where too few are there, those `before` it of the same mapping speak for it.
    pub(crate) fn begin_density(
        &self,
        table: &Table,
        range: PageRange,
        density: &Density,
        before: &mut Touched,
    ) {
        let Some(span) = table.find(range.start()) else { return };
        let touched = self.touched(span.entries(), 0, span.entries().len());
        if touched.is_evidence(BasePage::K64) {
            *before = touched;
        }
        density.begin(Bytes::new(range.len() as u64), before);
    }

    /// The touches that so many entries show.
    fn touched(&self, entries: &Entries, first: usize, count: usize) -> Touched {
        let last = (first + count).min(entries.len());
        Touched::of(entries.used(first..last).flat_map(|index| {
            let start = (index * self.entry_bytes()) as u64;
            let resident = entries.word(index).resident();
            let at = move |granule: u32| start + u64::from(granule) * OS_PAGE as u64;
            resident.runs().map(move |(from, to)| at(from)..at(to))
        }))
    }

    /// A first touch of this page was served, which might fill so much.
    pub(crate) fn note_first_touch(&self, span: &Span, page: &Page, within: Granules) {
        let Some(density) = span.entries().density() else { return };
        if within.count() as usize * OS_PAGE >= self.entry_bytes() {
            // A page that is resident in whole tells nothing of its touches.
            return;
        }
        if !(density.faults.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(FAULTS_BETWEEN_LOOKS) {
            return;
        }
        let first = page.index.saturating_sub(LOOK_ENTRIES);
        let count = page.index - first + LOOK_ENTRIES;
        let counter = density.look(&self.touched(span.entries(), first, count));
        counter.into_iter().for_each(|counter| self.counters.add(counter, 1));
    }

    /// A page of which so much was `there` went to the store.
    pub(crate) fn note_stored(&self, entries: &Entries, there: Granules, put: Put) {
        let Some(density) = entries.density() else { return };
        // A page that is all zero may have been written so.
        let Put::Stored(handle) = put else { return };
        let content = self.store.content_of(handle).and(there);
        density.used.fetch_add(u64::from(content.count()), Ordering::Relaxed);
        if !(density.stored.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(STORED_BETWEEN_LOOKS) {
            return;
        }
        let used = density.used.swap(0, Ordering::Relaxed);
        if density.granules.load(Ordering::Relaxed) as usize * OS_PAGE < self.entry_bytes() {
            return;
        }
        let counter = density.look(&Touched::of_large(used, STORED_BETWEEN_LOOKS));
        counter.into_iter().for_each(|counter| self.counters.add(counter, 1));
    }
}
