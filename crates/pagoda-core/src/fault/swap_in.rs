//! How much of a swapped-out page one fault brings in, by the faults before it.
//!
//! Each further fault on or beside a page that was served lately brings twice as much, up to
//! readahead. So a sequential reader waits seldom, and random access pays for no granule that it
//! does not use. A walk down the columns of a table also faults on page after page, but a row's
//! length apart, and uses one granule of each row: with whole pages its working set would be many
//! times the pages it touches. So steps of equal length that pass over granules are told apart, and
//! get a granule alone. This module must never decide which pages may be brought in.

use crate::page::OS_PAGE;

/// How much of a staged or stored page a fault brings in. In a region whose base page is less than
/// an entry that is its block, and a few more for sequential access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The whole base page: several faults on a page predict more.
    Page,
    /// As `Page`, after a fault on the page below: also reads the content behind it in the file
    /// into memory.
    Onwards,
    /// The same after a fault on the page above, of the content before it.
    Downwards,
    /// Two to the power of this granules, with the missing one among them. Random access would pay
    /// for fifteen others to be swapped in and evicted.
    Granules(u32),
    /// The whole entry, also in a region with a smaller base page: for a caller that ends its
    /// management.
    Whole,
}

/// The order of all granules of a page of 64 KiB.
const WHOLE_ORDER: u32 = 4;

/// The windows among which the last step of a walk is looked for, and as many for the step before
/// it: a few threads walk at once.
const STEPS_BACK: usize = 4;

/// The orders in a window's word have so many bits each; a page has 512 granules at most.
const ORDER_BITS: u32 = 4;

/// A granule by its number, and the order of the number of granules in a base page there.
#[derive(Clone, Copy, Debug)]
pub struct GranuleAt {
    number: usize,
    page_order: u32,
}

impl GranuleAt {
    /// Of an address, in base pages of so many bytes, a power of two.
    #[must_use]
    pub fn new(address: usize, page_bytes: usize) -> Self {
        Self { number: address / OS_PAGE, page_order: (page_bytes / OS_PAGE).max(1).ilog2() }
    }
}

/// Granules that came together for one fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The number of the granule that was missed.
    missed: usize,
    /// The order of the number of granules that came.
    len_order: u32,
    /// The order of the fault's extent: less than what came, if a page came whole anyway.
    order: u32,
}

impl Window {
    /// Of a fault of this extent. Of a page that `came_whole` all granules did, whatever the
    /// extent: a first touch fills its page.
    #[must_use]
    pub fn new(at: GranuleAt, extent: Extent, came_whole: bool) -> Self {
        let (order, len_order) = match extent {
            Extent::Granules(order) => (order, order.min(at.page_order)),
            _ => (WHOLE_ORDER, at.page_order),
        };
        let len_order = if came_whole { at.page_order } else { len_order };
        Self { missed: at.number, len_order, order }
    }

    /// As a word, so that it can be kept in an atomic.
    #[must_use]
    pub fn word(self) -> usize {
        (self.missed << ORDER_BITS | self.len_order as usize) << ORDER_BITS | self.order as usize
    }

    /// The window of a word.
    #[must_use]
    pub fn of_word(word: usize) -> Self {
        let order = |word: usize| word as u32 & ((1 << ORDER_BITS) - 1);
        Self { missed: word >> (2 * ORDER_BITS), len_order: order(word >> ORDER_BITS), order: order(word) }
    }

    /// Whether two granules or more lie between the window and this one.
    fn is_apart(self, granule: usize) -> bool {
        let first = self.missed >> self.len_order << self.len_order;
        granule + 2 < first || granule > first + (1 << self.len_order) + 1
    }

    /// Whether a step from here to `granule` is as long as the one from `before` to here. Rows of
    /// no whole number of granules differ by one.
    fn is_step(self, before: Self, granule: usize) -> bool {
        let (step, last) = (granule.wrapping_sub(self.missed), self.missed.wrapping_sub(before.missed));
        (step.wrapping_sub(last) as isize).unsigned_abs() <= 1
    }
}

/// How much a fault on this granule brings in, after these windows, the last one first.
///
/// # Panics
/// If there are fewer than 8 windows.
#[must_use]
pub fn extent(at: GranuleAt, windows: &[Window]) -> Extent {
    if is_walk(at.number, windows) {
        return Extent::Granules(0);
    }
    let page = at.number >> at.page_order;
    let mut order = None;
    let (mut is_onwards, mut is_downwards) = (false, false);
    for known in windows {
        let place = known.missed >> at.page_order;
        if place.abs_diff(page) <= 1 {
            order = order.max(Some(known.order));
            is_onwards |= place.wrapping_add(1) == page && known.order >= WHOLE_ORDER;
            is_downwards |= place == page.wrapping_add(1) && known.order >= WHOLE_ORDER;
        }
    }
    match order.map_or(0, |order| order + 1) {
        _ if is_onwards => Extent::Onwards,
        _ if is_downwards => Extent::Downwards,
        order if order >= WHOLE_ORDER => Extent::Page,
        order => Extent::Granules(order),
    }
}

/// Whether one of several walks goes on here by equal steps. A sequential reader's steps are equal,
/// too, but each begins where the last window ends.
fn is_walk(granule: usize, windows: &[Window]) -> bool {
    let is_far = windows[..STEPS_BACK].iter().all(|window| window.is_apart(granule));
    let goes_on = |last: usize| {
        windows[last + 1..=last + STEPS_BACK].iter().any(|before| windows[last].is_step(*before, granule))
    };
    is_far && (0..STEPS_BACK).any(goes_on)
}

#[cfg(test)]
#[path = "swap_in_test.rs"]
mod tests;
