//! Publishing a library's manager for `pagoda top`: a thread looks at the manager ten times a
//! second and writes its figures into the manager's tree file.
//!
//! Reading that file costs the manager nothing. The sizes of a region are counted by walking its
//! entries, a bounded part with each look. So the sizes of a large region are as old as the walk.
//! Nothing here may ever decide anything.

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::page_entry::Backing;
use pagoda_core::size::Bytes;
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::stats::counters::Counter;
use crate::table::Filler;
use crate::table::filling::{Fill, Filling};
use crate::tree::{BaseView, LibraryFile, REGIONS_SHOWN_MOST, RegionView};

/// The shortest interval of `pagoda top`.
const INTERVAL_US: u32 = 100_000;

/// Entries looked at with the gate closed to events: some microseconds.
const ENTRIES_AT_ONCE: usize = 4096;

/// Entries looked at with one look: well below a millisecond, for 4 GiB of base pages of 64 KiB.
const ENTRIES_MOST: usize = 1 << 16;

/// The sizes of a region, as of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    resident: usize,
    staged: usize,
    stored: usize,
}

/// A region that is being walked.
struct Walk {
    range: PageRange,
    /// Where it goes on.
    at: usize,
    /// The sizes so far in this walk, and those of the last complete walk.
    found: Sizes,
    whole: Option<Sizes>,
}

/// The walks of all regions that are shown.
#[derive(Default)]
pub(crate) struct Walks {
    walks: Vec<Walk>,
    /// The region to walk next.
    next: usize,
}

impl Walks {
    /// From now on follows these regions, and keeps the sizes that are known of them.
    fn follow(&mut self, ranges: impl Iterator<Item = PageRange>) {
        let mut known = std::mem::take(&mut self.walks);
        let walk = |range: PageRange| {
            let at = known.iter().position(|walk| walk.range == range);
            at.map_or(Walk { range, at: range.start(), found: Sizes::default(), whole: None }, |at| {
                known.swap_remove(at)
            })
        };
        self.walks = ranges.map(walk).collect();
    }

    /// Goes on for `most` entries, or until each region was walked once.
    fn go_on(&mut self, engine: &Engine, most: usize) {
        let mut left = most;
        for _ in 0..self.walks.len() {
            self.next %= self.walks.len();
            let walk = &mut self.walks[self.next];
            while left > 0 && walk.at < walk.range.end() {
                left = left.saturating_sub(walk.step(engine));
            }
            if walk.at < walk.range.end() {
                return;
            }
            (walk.whole, walk.found, walk.at) = (Some(walk.found), Sizes::default(), walk.range.start());
            self.next += 1;
        }
    }
}

impl Walk {
    /// Looks at the next entries, and returns how many those were.
    fn step(&mut self, engine: &Engine) -> usize {
        let entry_bytes = engine.entry_bytes();
        let table = engine.gate_shared();
        let most = (self.at + ENTRIES_AT_ONCE * entry_bytes).min(self.range.end());
        let Some((span, within)) = table
            .next_from(self.at)
            .and_then(|span| Some((span, span.range().intersection(PageRange::new(self.at, most)?)?)))
        else {
            self.at = most;
            return 1;
        };
        let indices = span.indices(within, entry_bytes);
        let count = indices.len();
        for index in span.entries().used(indices) {
            let granules = span.page(index, within, entry_bytes).granules;
            let word = span.word(index);
            let resident = granules.and(word.resident());
            let out = granules.without(resident).count() as usize * OS_PAGE;
            self.found.resident += resident.count() as usize * OS_PAGE;
            match word.backing() {
                Backing::None => {}
                Backing::Slot(_) => self.found.staged += out,
                Backing::Handle(_) => self.found.stored += out,
            }
        }
        self.at = within.end();
        count
    }

    /// The known sizes: of the last complete walk, or of the entries seen so far.
    fn sizes(&self) -> Sizes {
        self.whole.unwrap_or(self.found)
    }
}

impl Engine {
    /// Publishes until the manager ends.
    pub(crate) fn publish(&self, file: &LibraryFile) {
        let mut walks = Walks::default();
        while !self.is_quitting() {
            self.publish_once(file, &mut walks);
            self.publish_bell.sleep(INTERVAL_US);
        }
    }

    /// The base page of a region as it is shown. None for one that is all unmapped.
    fn shown_base(&self, region: PageRange) -> BaseView {
        let table = self.gate_shared();
        let span = table.next_from(region.start()).filter(|span| span.range().start() < region.end());
        let Some(span) = span else { return BaseView::default() };
        let chosen =
            |size: BasePage| BaseView { size: Bytes::new(size.bytes() as u64), ..BaseView::default() };
        match span.entries().filling() {
            Filling::ByDensity(density) => {
                let Fill { size, looks } = density.fill();
                BaseView { by_density: true, grown: looks.grown, shrunk: looks.shrunk, ..chosen(size) }
            }
            Filling::Blocks(size) => chosen(*size),
            Filling::Whole if span.filler() == Filler::EngineHuge => chosen(BasePage::M2),
            Filling::Whole => chosen(self.base.min(BasePage::K64)),
        }
    }

    fn publish_once(&self, file: &LibraryFile, walks: &mut Walks) {
        self.publish_library_gauges();
        let (largest, all) = self.owners.largest(REGIONS_SHOWN_MOST);
        walks.follow(largest.iter().map(|(range, _)| *range));
        walks.go_on(self, ENTRIES_MOST);
        let views = largest.iter().zip(&walks.walks).map(|((range, account), walk)| {
            let sizes = walk.sizes();
            let bytes = |count: usize| Bytes::new(count as u64);
            RegionView {
                start: range.start() as u64,
                len: bytes(range.len()),
                resident: bytes(sizes.resident),
                staged: bytes(sizes.staged),
                stored: bytes(sizes.stored),
                base: self.shown_base(*range),
                migration: account.moving().and_then(|moving| moving.view()),
            }
        });
        let views: Vec<_> = views.collect();
        let budget = self.counters.get(Counter::BudgetBytes);
        self.counters.set(Counter::ShareBytes, budget);
        let held = self.counters.get(Counter::AnonBytes);
        file.show(Bytes::new(budget), Bytes::new(held), all as u64, &views);
    }
}

#[cfg(test)]
#[path = "publisher_test.rs"]
mod tests;
