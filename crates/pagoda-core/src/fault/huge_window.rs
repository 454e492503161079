//! How far a sequential first touch is filled ahead: up to the end of a place of 2 MiB, and then
//! whole places.
//!
//! A touch shows only where nothing is present yet. Suppose that a program touches the same part of
//! each base page: filled by whole base pages, its faults look the same as those of a dense one. So
//! a window of smaller steps ends within a base page, at another part of it each time, and a fault
//! exactly there shows that the stream touches everything. A window never reaches into the next
//! place, and a long one has two such ends before it: a sparse stream does not meet both by chance.
//!
//! A stream that has shown density at the end of its place gets the next places whole, before it
//! touches them: a touch would leave a page there, and no frame could be moved in whole. Behind
//! them it shows density anew, by windows of two base pages and of eight. So a stream that becomes
//! sparse holds at most [`WHOLE_LEAST`] places and half a place too much. A stream that was dense
//! for [`LONG`] places may hold more, by an eighth of the memory filled since then: that many
//! places come whole, and windows behind them are long again. This module must never offer a place
//! that the caller did not call free, nor more than [`WHOLE_MOST`] for one showing.

use std::ops::Range;

/// Places that come whole at once to a stream that was not dense for long. A stream that ends or
/// becomes sparse may hold this much (6 MiB) too much, once; a stream that stays dense gets three
/// places in four whole. Getting three frames takes about as long as filling one place by OS pages.
pub const WHOLE_LEAST: u32 = 3;

/// The most for a stream that was dense for long: 16 MiB, and the faulting thread waits for all of
/// it.
pub const WHOLE_MOST: u32 = 8;

/// Places (64 MiB of them) that a stream fills before it may hold an eighth of later ones too much:
/// the bound for any stream is about an eighth of these.
pub const LONG: u64 = 32;

/// A stream may hold one part in this of later memory too much.
const SHARE: u64 = 8;

/// The part of a window that is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// These steps, including the touched one.
    pub steps: Range<u64>,
    /// So many places right behind them, whole.
    pub whole: u32,
}

/// One stream's.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Steps of a base page: one or more.
    page_steps: u64,
    /// Steps of a place, and none if no place comes whole.
    place_steps: Option<u64>,
    /// Where a stream that touches everything faults next.
    shown_at: Option<u64>,
    /// The longest window. It is short first behind places that came whole, whose touches are not
    /// seen.
    most_steps: u64,
    /// Filled since the stream began.
    filled_steps: u64,
}

impl Places {
    /// `page_steps` steps make a base page and, where places may come whole, `place_steps` make a
    /// place. Steps are numbered so that the first of a place is a multiple of that.
    #[must_use]
    pub const fn new(page_steps: u64, place_steps: Option<u64>) -> Self {
        Self { page_steps, place_steps, shown_at: None, most_steps: u64::MAX, filled_steps: 0 }
    }

    /// How many places may come whole, and how long the first window behind them may be.
    fn allowed(&self, place_steps: u64) -> (u32, u64) {
        match self.filled_steps.saturating_sub(LONG * place_steps) / SHARE / place_steps {
            0 => (WHOLE_LEAST, 2 * self.page_steps),
            // One of them is for that window.
            more => (WHOLE_MOST.min(WHOLE_LEAST + (more - 1) as u32), u64::MAX),
        }
    }

    /// The part of `window` to fill. The window is not empty and begins at the touched step,
    /// `within` steps into a base page. `goes_on` says whether the stream of the last window
    /// touched it, and `free` how many places from this number on may come whole.
    pub fn cut(
        &mut self,
        window: Range<u64>,
        within: u64,
        goes_on: bool,
        free: impl FnOnce(u64) -> u32,
    ) -> Cut {
        // Steps of a base page show as much as there is to see.
        let is_shown = goes_on && (self.page_steps == 1 || self.shown_at == Some(window.start));
        self.shown_at = None;
        if !goes_on {
            self.filled_steps = 0;
        }
        if is_shown {
            self.most_steps = self.most_steps.saturating_mul(4);
        }
        let (mut steps, mut whole) = (window, 0);
        steps.end = steps.end.min(steps.start.saturating_add(self.most_steps));
        if let Some(place) = self.place_steps {
            let is_large = steps.end - steps.start >= place;
            let next = (steps.start / place + 1).saturating_mul(place);
            steps.end = steps.end.min(next);
            if is_large && is_shown {
                whole = free(next / place).min(self.allowed(place).0);
            }
        }
        let len = steps.end - steps.start;
        let bound = steps.end.saturating_sub((within + len) % self.page_steps);
        if self.page_steps > 1 && bound.saturating_sub(steps.start) > self.page_steps {
            let bound = if len >= 4 * self.page_steps { bound - self.page_steps } else { bound };
            steps.end = bound - 1 - bound / self.page_steps % (self.page_steps - 1);
            self.shown_at = Some(steps.end);
            whole = 0;
        }
        if let Some(place) = self.place_steps {
            if whole > 0 && self.page_steps > 1 {
                self.most_steps = self.allowed(place).1;
            }
            self.filled_steps += (steps.end - steps.start) + place * u64::from(whole);
        }
        Cut { steps, whole }
    }

    /// The step behind all of it: where sequential access faults next.
    #[must_use]
    pub fn end(&self, cut: &Cut) -> u64 {
        cut.steps.end + self.place_steps.unwrap_or(0) * u64::from(cut.whole)
    }
}

#[cfg(test)]
#[path = "huge_window_test.rs"]
mod tests;
