//! When the base pages of a huge frame that was split are collapsed to one again.
//!
//! A huge frame is split when it is evicted: its content is stored by base pages, and swapped in by
//! base pages. Once all of them are resident they may be collapsed. That copies 2 MiB and needs as
//! much room meanwhile, so it is worth it only for pages that stay: all of it has to be there at
//! several looks, with reclaim asleep. This module must never collapse pages: it decides from the
//! looks that the caller reports.

use crate::budget::watermark::Watermarks;
use crate::page::HUGE_FRAME;
use crate::size::Bytes;

/// Looks in a row that have to find all of it there: under pressure, pages that were swapped in to
/// be read once are evicted by then.
pub const LOOKS_LEAST: u32 = 2;

/// After each refusal of the kernel twice as many looks are left out, up to two to this power: 64
/// looks.
const REFUSALS_MOST: u32 = 6;

/// The state that a look found at the place of a huge frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing is there any more, or one huge page is: the next first touch brings a huge frame by
    /// itself.
    Gone,
    /// A part of it is there, or all of it, but not in a state to be collapsed.
    Part,
    /// All of its base pages are there.
    All,
}

/// The action for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Join it now.
    Join,
    /// Look again later.
    Wait,
    /// Never look again.
    Forget,
}

/// A place where a huge frame was split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    looks: u32,
    refusals: u32,
    left_out: u32,
}

impl Broken {
    /// Takes note of a look, while `free` bytes are.
    pub fn look(&mut self, seen: Seen, free: Bytes, marks: &Watermarks) -> Verdict {
        match seen {
            Seen::Gone => return Verdict::Forget,
            Seen::Part => self.looks = 0,
            Seen::All if self.left_out > 0 => self.left_out -= 1,
            Seen::All => self.looks = self.looks.saturating_add(1),
        }
        if self.looks >= LOOKS_LEAST && has_room(free, marks) { Verdict::Join } else { Verdict::Wait }
    }

    /// The kernel did not collapse it: a page of it is shared, read-only or the page of zeroes, or
    /// there is no free huge page.
    pub fn refused(&mut self) {
        self.refusals = (self.refusals + 1).min(REFUSALS_MOST);
        self.left_out = 1 << self.refusals;
        self.looks = 0;
    }
}

/// Whether `free` bytes are enough to hold a huge frame twice for a moment, and reclaim stays
/// asleep with one frame more in use.
fn has_room(free: Bytes, marks: &Watermarks) -> bool {
    free >= marks.high.saturating_add(Bytes::new(2 * HUGE_FRAME as u64))
}

#[cfg(test)]
#[path = "collapse_test.rs"]
mod tests;
