//! How much a touch brings in a region: its base page, which was chosen for it, or goes by density: 4, 16 or 64 KiB.
//!
//! A region may have a base page that is less than an entry: then a touch brings that aligned block of it, from nowhere and from the store.
//! Of density [`pagoda_core::fault::density`] decides; this counts for it. A region begins as small as its purpose suggests, and grows as what was
//! touched lies densely. However dense it is on the whole, each place of 2 MiB begins small again, and grows by what was touched there:
//! so who leaves a dense part for a sparse one pays for one place at most, and is seen. Where a base page is filled whole nothing shows
//! what of it is used but its content, so that pages on their way to the store are asked how much of them is still zero. The entries
//! stay those of the base page: a smaller fill is a partial one. This module must never fill, and never look at more than a bounded
//! part of a region.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::fault::density::{Touched, Use};
use pagoda_core::page::{BasePage, HUGE_FRAME, OS_PAGE};
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;

use crate::engine::Engine;
use crate::region::RegionError;
use crate::state::pending::Extent;
use crate::table::filling::{AHEAD_PAGES, Density, Filling, granules, of_entry};
use crate::table::{Entries, Page, Span};

/// First touches between two looks at what was touched: 256 KiB of them at 4 KiB. Three looks in a row have to agree.
const FAULTS_BETWEEN_LOOKS: u32 = 64;

/// Entries on each side of the last first touch that a look counts, 16 MiB: some µs for 64 faults.
const LOOK_ENTRIES: usize = 256;

/// Pages on their way to the store between two looks at how much of them was used.
const STORED_BETWEEN_LOOKS: u64 = 64;

/// What a place is: so much that what a window of first touches brings too much is of the next one at most.
const PLACE_BYTES: usize = HUGE_FRAME;

/// The base page of a region to be: what a touch brings, which shows in how its entries are filled and by whom.
#[derive(Clone, Debug)]
pub(crate) struct RegionBase {
    pub(crate) size: BasePage,
    pub(crate) filling: Filling,
}

/// What of an entry comes back with one touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// What was touched: the block, or the granule.
    pub(crate) wanted: Granules,
    /// That, and what comes ahead.
    pub(crate) all: Granules,
}

/// How far apart the touches of who goes on upwards are at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) bytes: usize,
    /// If that is less than an entry: so many more come back with the one that is touched. None else, where whole entries follow.
    pub(crate) more: Option<usize>,
}

impl Engine {
    /// The base page of a new region, as it was chosen, or else as its manager has it. Where entries are of 64 KiB it may be any; but with
    /// several zones there is no density.
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
            // From now on who serves faults asks how large they are.
            self.has_blocks.store(true, Ordering::Release);
            Ok(RegionBase { size, filling: Filling::Blocks(size) })
        } else {
            Err(RegionError::BasePage { asked: size, manager })
        }
    }

    /// How far apart the touches of who goes on upwards from `address` are.
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
        Unit { bytes: size.bytes(), more: Some(above.min(AHEAD_PAGES)) }
    }

    /// What of a page that is staged or stored a touch of `granule` brings back; None for all of it. In blocks that is one, and for who
    /// goes on upwards as many more as there are pages fetched ahead elsewhere, as long as there is room.
    pub(crate) fn comes_back(&self, span: &Span, granule: u32, extent: Extent) -> Option<Part> {
        let count = match span.entries().filling() {
            Filling::Blocks(size) => granules(*size),
            _ => {
                let alone = Granules::range(granule, granule + 1);
                return (extent == Extent::Granule).then_some(Part { wanted: alone, all: alone });
            }
        };
        if extent == Extent::Whole {
            return None;
        }
        let goes_on = extent == Extent::Onwards && self.fetches_ahead;
        let more = goes_on && self.may_use_frames() && self.free() >= self.marks().low;
        let from = granule / count * count;
        let end = from + count * if more { 1 + AHEAD_PAGES as u32 } else { 1 };
        let all = Granules::range(from, end.min((self.entry_bytes() / OS_PAGE) as u32));
        Some(Part { wanted: Granules::range(from, from + count), all })
    }

    /// What of a page may be filled for a first touch of `granule`.
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

    /// What who goes on upwards is followed by there: by OS pages where that shows whether all of them are touched.
    pub(crate) fn size_of_steps(&self, span: &Span) -> BasePage {
        match span.entries().filling() {
            Filling::Whole => of_entry(self.entry_bytes()),
            Filling::ByDensity(_) => BasePage::K4,
            Filling::Blocks(size) => *size,
        }
    }

    /// How many of these steps are looked at together, as an entry that shows which part of it is touched: one, where nothing goes by that.
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

    /// What is in the region of so many entries.
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
            // What is there with all of its page says nothing.
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

    /// A whole page goes to the store with this content.
    pub(crate) fn note_stored(&self, entries: &Entries, content: &[u8]) {
        let Some(density) = entries.density() else { return };
        let used = content.chunks(OS_PAGE).filter(|page| page.iter().any(|byte| *byte != 0)).count();
        density.used.fetch_add(used as u64, Ordering::Relaxed);
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
