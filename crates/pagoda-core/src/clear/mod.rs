//! In which order the OS pages of a frame are cleared, so that the page that is touched next is the
//! hottest in the cache.
//!
//! A huge frame is larger than a processor's own cache. Cleared from its beginning to its end, the
//! beginning has left the cache when the last byte is zero, and the program, which waits to touch
//! some page, reads that page from further away. So the awaited page, the *target*, is cleared
//! last, and its neighbours just before. A caller that doesn't know the address of the next touch
//! loses nothing: its target is the frame's beginning.
//!
//! Each [`Order`] is an iterator of [`Extent`]s, runs of pages for a processor to clear in one go.
//! [`Order::Converge`] and [`Order::ReverseInPage`] are from the discussion of Linux'
//! `clear_huge_page` (Huang Ying and its reviewers, 2017), [`Order::Neighbourhood`] follows Linux'
//! `folio_zero_user` as of 2026, with the target last of all. This module must never allocate (it
//! runs on the fault path), and must never leave a page out or name it twice: a page that is left
//! out shows one program's data to another.

mod choice;

use std::fmt;
use std::ops::Range;

use crate::page::{HUGE_FRAME, OS_PAGE};
use crate::size::Bytes;

pub use choice::Choice;

/// On each side of the target, this many pages (32 KiB) are its neighbourhood. Both sides together
/// and the target are 68 KiB, which any processor's second-level cache holds and has room left.
pub const RADIUS_PAGES: u32 = 8;

/// A clearing thread may yield after this many pages: 256 KiB, an eighth of a huge frame.
pub const STEP_PAGES: u32 = 64;

/// The OS pages of the largest frame.
const PAGES_MOST: u32 = (FrameSize::MOST.get() / OS_PAGE as u64) as u32;

/// The size of a frame: a power of two from 64 KiB to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSize {
    pages: u32,
}

impl FrameSize {
    /// 64 KiB.
    pub const LEAST: Bytes = Bytes::kib(64);
    /// 1 GiB.
    pub const MOST: Bytes = Bytes::gib(1);
    /// 2 MiB.
    pub const HUGE: Self = Self { pages: (HUGE_FRAME / OS_PAGE) as u32 };

    /// The frame size of `size` bytes.
    ///
    /// # Errors
    /// If it is not a power of two from [`LEAST`](Self::LEAST) to [`MOST`](Self::MOST).
    pub fn new(size: Bytes) -> Result<Self, NotAFrameSize> {
        if !size.get().is_power_of_two() || !(Self::LEAST..=Self::MOST).contains(&size) {
            return Err(NotAFrameSize(size));
        }
        Ok(Self { pages: (size.get() / OS_PAGE as u64) as u32 })
    }

    /// In OS pages.
    #[must_use]
    pub const fn pages(self) -> u32 {
        self.pages
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.pages as usize * OS_PAGE
    }
}

/// A size that no frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAFrameSize(pub Bytes);

impl fmt::Display for NotAFrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no frame has {}: give a power of two from {} to {}",
            self.0,
            FrameSize::LEAST,
            FrameSize::MOST
        )
    }
}

impl std::error::Error for NotAFrameSize {}

/// The OS page of a frame that will be touched next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    page: u32,
    /// Of the frame. `page < pages`.
    pages: u32,
}

/// A hint that names no page of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintBeyondEnd {
    /// The page that was named.
    pub hint: u32,
    /// How many pages the frame has: the first number that is no page of it.
    pub pages: u32,
}

impl fmt::Display for HintBeyondEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hint, pages } = self;
        write!(f, "page {hint} lies beyond a frame of {pages} pages; give one below {pages}, or none")
    }
}

impl std::error::Error for HintBeyondEnd {}

impl Target {
    /// The start address of the frame around `address`, and the page of it that contains `address`.
    ///
    /// Takes the exact address of the touch. An address that was rounded down to its frame names
    /// the frame's beginning.
    #[must_use]
    pub const fn of_address(address: usize, size: FrameSize) -> (usize, Self) {
        let base = address & !(size.bytes() - 1);
        (base, Self { page: ((address - base) / OS_PAGE) as u32, pages: size.pages })
    }

    /// Page `hint` of a frame of `pages`; its beginning without a hint.
    ///
    /// # Errors
    /// If there is no such page. The page just behind the last one is none either: a kernel's check
    /// once accepted it.
    ///
    /// # Panics
    /// If there are no pages, or more than 1 GiB of them.
    pub fn in_frame(pages: u32, hint: Option<u32>) -> Result<Self, HintBeyondEnd> {
        assert!((1..=PAGES_MOST).contains(&pages), "a frame has 1 to {PAGES_MOST} pages, not {pages}");
        match hint.unwrap_or(0) {
            page if page < pages => Ok(Self { page, pages }),
            hint => Err(HintBeyondEnd { hint, pages }),
        }
    }

    /// Its number in the frame.
    #[must_use]
    pub const fn page(self) -> u32 {
        self.page
    }

    /// How many pages the frame has.
    #[must_use]
    pub const fn pages(self) -> u32 {
        self.pages
    }
}

/// How the bytes of an extent are to be cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// From the first to the last, into the cache.
    Cached,
    /// From the last to the first, into the cache.
    Backwards,
    /// From the first to the last, past the cache: pages that are not read soon would evict useful
    /// cache lines.
    Streaming,
}

/// A run of pages to clear in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first page.
    pub first: u32,
    /// How many; at least one.
    pub pages: u32,
    /// How.
    pub manner: Manner,
}

impl Extent {
    const fn page(page: u32, manner: Manner) -> Self {
        Self { first: page, pages: 1, manner }
    }

    /// Its bytes, as offsets in the frame.
    #[must_use]
    pub const fn bytes(self) -> Range<usize> {
        let start = self.first as usize * OS_PAGE;
        start..start + self.pages as usize * OS_PAGE
    }

    /// The same extent in parts of at most [`STEP_PAGES`], in clearing order. Other threads may run
    /// between two of them.
    pub fn steps(self) -> impl Iterator<Item = Self> {
        let count = self.pages.div_ceil(STEP_PAGES);
        (0..count).map(move |step| {
            let number = if self.manner == Manner::Backwards { count - 1 - step } else { step };
            let skipped = number * STEP_PAGES;
            let pages = STEP_PAGES.min(self.pages - skipped);
            Self { first: self.first + skipped, pages, manner: self.manner }
        })
    }
}

/// An order to clear a frame in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// From the beginning to the end, wherever the target is: the baseline for the others.
    Ascending,
    /// Page by page from both ends towards the target, the further one first.
    Converge,
    /// The same pages in the same order, and each page to the right of the target from its last
    /// byte to its first: so the way to the target never jumps back. That matters because a
    /// hardware prefetcher follows a direction, and a page that is cleared upwards below the last
    /// one starts a new stream each time.
    ReverseInPage,
    /// The pages far to the right, those far to the left, the neighbours, the target: few extents
    /// and long ones. The long ones are cleared upwards on both sides, the fastest direction for
    /// processors; the neighbours towards the target.
    Neighbourhood,
    /// The same extents, the far ones past the cache.
    Streaming,
}

impl Order {
    /// All there are.
    pub const ALL: [Self; 5] =
        [Self::Ascending, Self::Converge, Self::ReverseInPage, Self::Neighbourhood, Self::Streaming];

    /// The extents of a frame in this order: each page exactly once, the target in the last one and
    /// as the last page of it ([`Ascending`](Self::Ascending) apart).
    #[must_use]
    pub const fn extents(self, target: Target) -> Extents {
        Extents { order: self, target, next: 0 }
    }
}

/// The extents of one frame. Holds nothing but numbers.
#[derive(Clone, Debug)]
pub struct Extents {
    order: Order,
    target: Target,
    /// The number of the next one to look at.
    next: u32,
}

impl Iterator for Extents {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let Target { page, pages } = self.target;
        let number = self.next;
        let extent = match self.order {
            Order::Ascending => (number == 0).then_some(Extent { first: 0, pages, manner: Manner::Cached }),
            Order::Converge => {
                (number < pages).then(|| Extent::page(converging(page, pages, number), Manner::Cached))
            }
            Order::ReverseInPage => (number < pages).then(|| {
                let next = converging(page, pages, number);
                Extent::page(next, if next > page { Manner::Backwards } else { Manner::Cached })
            }),
            Order::Neighbourhood => return self.next_around(Manner::Cached),
            Order::Streaming => return self.next_around(Manner::Streaming),
        };
        self.next += u32::from(extent.is_some());
        extent
    }
}

impl Extents {
    /// The next extent around the target. Its neighbours go towards it; `far` is the manner for the
    /// pages beyond them.
    fn next_around(&mut self, far: Manner) -> Option<Extent> {
        let Target { page, pages } = self.target;
        let left = page.saturating_sub(RADIUS_PAGES);
        let right = (page + 1 + RADIUS_PAGES).min(pages);
        let all = [
            (right..pages, far),
            (0..left, far),
            (page + 1..right, Manner::Backwards),
            (left..page + 1, Manner::Cached),
        ];
        loop {
            let (run, manner) = all.get(self.next as usize)?.clone();
            self.next += 1;
            if !run.is_empty() {
                return Some(Extent { first: run.start, pages: run.end - run.start, manner });
            }
        }
    }
}

/// Which page is cleared as the one of this number, counted from 0, on the way towards `target`.
///
/// First comes what lies beyond the target's mirror image, all on one side, from the outside in: to
/// the right of it if the target is in the first half of the frame (that is what doubling the
/// target and comparing it with the number of pages tells), to the left otherwise. What remains is
/// as long to the left as to the right of the target, but for the target itself, and is taken from
/// both ends in turn, the left one first, which is further away by one page. So no page is cleared
/// after one that is nearer to the target.
const fn converging(target: u32, pages: u32, number: u32) -> u32 {
    let (beyond, base, half) = if 2 * target <= pages {
        (pages - 2 * target, 0, target)
    } else {
        (2 * target - pages, 2 * target - pages, pages - target)
    };
    if number < beyond {
        return if base == 0 { pages - 1 - number } else { number };
    }
    let (pair, second) = ((number - beyond) / 2, (number - beyond) % 2 == 1);
    if second { base + 2 * half - 1 - pair } else { base + pair }
}

#[cfg(test)]
mod tests;
