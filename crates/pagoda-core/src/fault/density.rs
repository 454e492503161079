//! Which base page a range should have: large where it is dense, small where it is sparse.
//!
//! A large base page takes fewer faults and entries, but its untouched OS pages are resident all
//! the same: up to 16 times too much at 64 KiB. So a range starts at the size that its use
//! suggests, and each look at the pages touched since then may move it by one size. This module
//! must never split or join anything: it says which size would be better, why, and how often.
//!
//! **Density** at a size is the touched memory, over the resident memory if everything touched is
//! there in base pages of that size. It falls as the size grows. A range grows if it would still be
//! at least [`DENSE_PERCENT`] dense, and shrinks if it is less than [`SPARSE_PERCENT`] dense.
//!
//! **A range may be dense in one place and sparse in another.** So the size of a range is an upper
//! bound for one fault. At one place, the pages touched at that place have to justify it
//! ([`borne_out`]).
//!
//! **It can't flap**, for three reasons. The band between the two leaves no density at which a size
//! is both too sparse to keep and dense enough to return to. One look is no evidence: a change
//! takes [`LOOKS_LEAST`] looks in a row that ask for it. And each change of direction doubles that
//! number for good, up to [`LOOKS_MOST`], so that the size changes ever more seldom for a program
//! that alternates.

use std::fmt;
use std::ops::Range;

use crate::geometry::population::BlockCount;
use crate::page::{BasePage, OS_PAGE};
use crate::size::Bytes;

/// A range grows if it is at least as dense at the larger size: fewer faults may cost one part in
/// eight more memory than is touched.
pub const DENSE_PERCENT: u64 = 89;

/// A range shrinks if it is less dense: more of the resident memory is idle than is used.
pub const SPARSE_PERCENT: u64 = 50;

/// So many looks in a row must ask for a change, at first.
pub const LOOKS_LEAST: u32 = 3;

/// So many at most, after five changes of direction.
pub const LOOKS_MOST: u32 = 96;

/// At least this many pages of the present size must be touched before their density is evidence.
/// With fewer, the page that is just being filled is too large a part, and the gain is below 8 MiB.
const PAGES_LEAST: u64 = 4;

/// The use of a range, as far as it is known before the first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// Filled from one end to the other: a buffer, a file's content, a guest's memory.
    Buffer,
    /// Many small objects, close together: a heap.
    Heap,
    /// Touched at one end, and left again.
    Stack,
    /// Address space that is reserved for much more than will be touched: hash tables, shadow
    /// memory.
    Reserved,
    /// Nothing is known: the first touches will show it.
    Unknown,
}

impl Use {
    /// The size to start with, for a range of `length`.
    ///
    /// Never more than `length`; and 2 MiB only for a buffer of 16 such pages, so that its last
    /// page leaves little unused.
    #[must_use]
    pub fn start(self, length: Bytes) -> BasePage {
        match self {
            Self::Buffer if length.get() >= 16 * BasePage::M2.bytes() as u64 => BasePage::M2,
            Self::Buffer | Self::Heap => largest_within(BasePage::K64, length),
            Self::Stack => largest_within(BasePage::K16, length),
            Self::Reserved | Self::Unknown => BasePage::K4,
        }
    }
}

/// The largest size up to `most` of which `length` holds one.
fn largest_within(most: BasePage, length: Bytes) -> BasePage {
    let sizes = BasePage::ALL.into_iter().rev();
    let mut fitting = sizes.filter(|size| *size <= most && size.bytes() as u64 <= length.get());
    fitting.next().unwrap_or(BasePage::K4)
}

fn at(size: BasePage) -> usize {
    BasePage::ALL.iter().position(|other| *other == size).expect("ALL has every size")
}

/// The memory of a range that was touched between two looks, counted in blocks of each size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    blocks: [u64; BasePage::ALL.len()],
}

impl Touched {
    /// This many OS pages in this many blocks of 64 KiB that are all resident: the count for large
    /// pages. Blocks in between are unknown, and count as if the touched pages were adjacent.
    #[must_use]
    pub fn of_large(os_pages: u64, blocks: u64) -> Self {
        let together = |size: BasePage| os_pages.div_ceil((size.bytes() / OS_PAGE) as u64);
        let count = |size: BasePage| if size < BasePage::K64 { together(size) } else { blocks };
        Self { blocks: BasePage::ALL.map(count) }
    }

    /// Counts ranges of byte addresses that begin and end at OS pages. Panics if they are not
    /// sorted, or overlap.
    #[must_use]
    pub fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut counts = BasePage::ALL.map(|size| BlockCount::new(size.bytes().trailing_zeros()));
        for range in ranges {
            for count in &mut counts {
                count.add(&range);
            }
        }
        Self { blocks: counts.map(|count| count.blocks()) }
    }

    /// How many blocks of `size` were touched.
    #[must_use]
    pub fn blocks(&self, size: BasePage) -> u64 {
        self.blocks[at(size)]
    }

    /// Whether so much was touched that its density says something for base pages of `size`.
    #[must_use]
    pub fn is_evidence(&self, size: BasePage) -> bool {
        self.blocks(size) >= PAGES_LEAST
    }

    /// The resident memory if everything touched is there in base pages of `size`.
    #[must_use]
    pub fn resident(&self, size: BasePage) -> Bytes {
        Bytes::new(self.blocks(size) * size.bytes() as u64)
    }

    /// The part of that which was touched, in percent, rounded down; 100 if nothing was.
    #[must_use]
    pub fn density_percent(&self, size: BasePage) -> u64 {
        let touched = self.blocks(BasePage::K4) * OS_PAGE as u64;
        (100 * touched).checked_div(self.resident(size).get()).unwrap_or(100)
    }
}

/// The largest size from `start` to `most` that the touched pages at one place of a range justify:
/// enough of them, and dense. The density of a whole range says nothing about a place that was
/// never touched; that place starts small again.
#[must_use]
pub fn borne_out(start: BasePage, most: BasePage, here: &Touched) -> BasePage {
    let is_dense = |size: BasePage| here.is_evidence(size) && here.density_percent(size) >= DENSE_PERCENT;
    let larger = BasePage::ALL.into_iter().rev().filter(|size| (start..=most).contains(size));
    larger.into_iter().find(|size| is_dense(*size)).unwrap_or(start.min(most))
}

/// Why a look ended as it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It grew: it is dense enough at the larger size.
    Dense,
    /// It shrank: it is too sparse at the present size.
    Sparse,
    /// It would grow or shrink, but not enough looks in a row have asked for it.
    Unconfirmed,
    /// It is neither dense enough to grow nor sparse enough to shrink, or there is no such size.
    Settled,
    /// Too little was touched to tell.
    TooLittle,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dense => "dense enough for the larger size",
            Self::Sparse => "too sparse for the present size",
            Self::Unconfirmed => "a change is not confirmed yet",
            Self::Settled => "right as it is",
            Self::TooLittle => "too little was touched",
        })
    }
}

/// How looks ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// With the next larger size.
    pub grown: u64,
    /// With the next smaller size.
    pub shrunk: u64,
    /// With [`Reason::Unconfirmed`].
    pub unconfirmed: u64,
    /// With [`Reason::Settled`].
    pub settled: u64,
    /// With [`Reason::TooLittle`].
    pub too_little: u64,
    /// Changes in the other direction than the one before; also counted as grown or shrunk.
    pub reversed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Grow,
    Shrink,
}

/// The base page of one range.
#[derive(Clone, Copy, Debug)]
pub struct Chooser {
    size: BasePage,
    most: BasePage,
    /// The step that the last looks asked for, and how many of them in a row.
    asked: Option<(Step, u32)>,
    last: Option<Step>,
    looks_needed: u32,
    counters: Counters,
}

impl Chooser {
    /// A range of `length` that is about to be used.
    #[must_use]
    pub fn new(of: Use, length: Bytes) -> Self {
        Self {
            size: of.start(length),
            most: largest_within(BasePage::M2, length),
            asked: None,
            last: None,
            looks_needed: LOOKS_LEAST,
            counters: Counters::default(),
        }
    }

    /// A range of `length` that was in use before it is looked at: at most a base page of 64 KiB,
    /// and as much smaller as its touched pages are sparse. Too few of them say nothing.
    #[must_use]
    pub fn in_use(length: Bytes, touched: &Touched) -> Self {
        let mut chooser = Self::new(Use::Buffer, length).up_to(BasePage::K64);
        while touched.is_evidence(chooser.size) && chooser.wanted(touched) == Some(Step::Shrink) {
            chooser.size = BasePage::ALL[at(chooser.size) - 1];
        }
        chooser
    }

    /// The same for a range whose base page can't be larger than `most`.
    #[must_use]
    pub fn up_to(self, most: BasePage) -> Self {
        Self { size: self.size.min(most), most: self.most.min(most), ..self }
    }

    /// The base page now.
    #[must_use]
    pub fn size(&self) -> BasePage {
        self.size
    }

    /// How all looks so far ended.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes note of the pages touched since the last look. Returns whether the size changed, by
    /// one step, and why or why not.
    pub fn look(&mut self, touched: &Touched) -> Reason {
        let reason = self.judge(touched);
        let counter = match reason {
            Reason::Dense => &mut self.counters.grown,
            Reason::Sparse => &mut self.counters.shrunk,
            Reason::Unconfirmed => &mut self.counters.unconfirmed,
            Reason::Settled => &mut self.counters.settled,
            Reason::TooLittle => &mut self.counters.too_little,
        };
        *counter += 1;
        reason
    }

    fn judge(&mut self, touched: &Touched) -> Reason {
        if !touched.is_evidence(self.size) {
            // It says nothing for a change, and nothing against one that other looks asked for.
            return Reason::TooLittle;
        }
        let Some(step) = self.wanted(touched) else {
            self.asked = None;
            return Reason::Settled;
        };
        let looks = match self.asked {
            Some((before, looks)) if before == step => looks + 1,
            _ => 1,
        };
        if looks < self.looks_needed {
            self.asked = Some((step, looks));
            return Reason::Unconfirmed;
        }
        self.change(step)
    }

    fn wanted(&self, touched: &Touched) -> Option<Step> {
        let larger = BasePage::ALL.get(at(self.size) + 1).filter(|size| **size <= self.most);
        if larger.is_some_and(|size| touched.density_percent(*size) >= DENSE_PERCENT) {
            return Some(Step::Grow);
        }
        // The smallest size is always wholly touched.
        (touched.density_percent(self.size) < SPARSE_PERCENT).then_some(Step::Shrink)
    }

    fn change(&mut self, step: Step) -> Reason {
        let reversed = self.last.is_some_and(|last| last != step);
        if reversed {
            self.looks_needed = (2 * self.looks_needed).min(LOOKS_MOST);
            self.counters.reversed += 1;
        }
        (self.last, self.asked) = (Some(step), None);
        let (to, reason) = match step {
            Step::Grow => (at(self.size) + 1, Reason::Dense),
            Step::Shrink => (at(self.size) - 1, Reason::Sparse),
        };
        self.size = BasePage::ALL[to];
        reason
    }
}

#[cfg(test)]
#[path = "density_test.rs"]
mod tests;
