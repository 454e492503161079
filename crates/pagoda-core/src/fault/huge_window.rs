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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fault::fault_around::FaultAround;
    use crate::page::BasePage;

    const PAGE: u64 = 16;
    const PLACE: u64 = 512;

    /// The filled steps, and the places that came whole, of a stream that touches these OS pages
    /// upwards.
    fn touch(steps: impl Iterator<Item = u64>, places: Option<u64>) -> (BTreeSet<u64>, Vec<u64>) {
        let (mut around, mut cut) = (FaultAround::new(BasePage::K4), Places::new(PAGE, places));
        let (mut there, mut whole) = (BTreeSet::new(), Vec::new());
        for step in steps {
            if there.contains(&step) {
                continue;
            }
            let window = around.fault(step, 0..1 << 20, |step| !there.contains(&step));
            let filled = cut.cut(window.clone(), step % PAGE, around.goes_on(), |_| u32::MAX);
            around.ends_at(cut.end(&filled));
            assert!(filled.steps.start == step && filled.steps.end <= window.end && !filled.steps.is_empty());
            if filled.whole > 0 {
                assert!(filled.steps.end.is_multiple_of(PLACE) && filled.whole <= WHOLE_MOST);
                let first = filled.steps.end / PLACE;
                whole.extend(first..first + u64::from(filled.whole));
            }
            there.extend(filled.steps.start..cut.end(&filled));
        }
        (there, whole)
    }

    #[test]
    fn a_dense_stream_gets_three_places_of_four_whole_at_first() {
        let (there, whole) = touch(0..16 * PLACE, Some(PLACE));
        assert_eq!(there.len() as u64, 16 * PLACE);
        assert_eq!(whole, [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]);
        assert_eq!(touch(0..16 * PLACE, None).1, []);
    }

    #[test]
    fn a_stream_that_was_dense_for_long_gets_more_of_them_at_once() {
        let (there, whole) = touch(0..256 * PLACE, Some(PLACE));
        assert!((0..256 * PLACE).all(|step| there.contains(&step)));
        // Places that did not come whole, and so many places come behind each.
        let shown: Vec<u64> = (0..256).filter(|place| !whole.contains(place)).collect();
        let behind: Vec<u64> = shown.windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
        assert!(behind.is_sorted(), "{behind:?}");
        assert_eq!(behind.iter().take_while(|count| **count == u64::from(WHOLE_LEAST)).count(), 12);
        assert_eq!(behind.last(), Some(&u64::from(WHOLE_MOST)));
        // A jump starts a new stream.
        let (_, whole) = touch((0..64 * PLACE).chain(100 * PLACE..112 * PLACE), Some(PLACE));
        assert_eq!(
            whole.iter().filter(|place| **place > 100).take(4).collect::<Vec<_>>(),
            [&101, &102, &103, &105]
        );
    }

    #[test]
    fn steps_of_a_base_page_have_nothing_to_show() {
        let mut places = Places::new(1, Some(32));
        let mut cut = |window, goes_on, free| {
            let cut = places.cut(window, 0, goes_on, |place| {
                assert_eq!(place, 2);
                free
            });
            (places.end(&cut), cut.steps, cut.whole)
        };
        assert_eq!(cut(60..92, true, 9), (160, 60..64, 3));
        assert_eq!(cut(60..92, true, 1), (96, 60..64, 1));
        assert_eq!(cut(32..64, true, 0), (64, 32..64, 0));
        assert_eq!(cut(60..91, true, 9), (64, 60..64, 0));
        assert_eq!(cut(60..92, false, 9), (64, 60..64, 0));
    }

    proptest! {
        #[test]
        fn touching_the_same_part_of_each_base_page_never_gets_one_whole(
            from in 0..PAGE, len in 1..PAGE, start in 0..2 * PLACE / PAGE
        ) {
            let part = |page: u64| page * PAGE + from..page * PAGE + PAGE.min(from + len);
            let (_, whole) = touch((start..8 * PLACE / PAGE).flat_map(part), Some(PLACE));
            prop_assert_eq!(whole, []);
        }

        #[test]
        fn a_stream_that_becomes_sparse_holds_a_bounded_number_too_much(
            dense in 1..120 * PLACE, every in prop::sample::select(vec![16u64, 64, 512]), other in 0..PAGE
        ) {
            // Always the same part of a base page, or another in each.
            let sparse = (dense.next_multiple_of(every)..160 * PLACE)
                .step_by(every as usize)
                .map(|page| page + page / every * other % PAGE);
            let (there, whole) = touch((0..dense).chain(sparse.clone()), Some(PLACE));
            let after = whole.iter().filter(|place| **place * PLACE >= dense).count();
            let more = dense.saturating_sub(LONG * PLACE) / SHARE;
            prop_assert!(after as u64 <= u64::from(WHOLE_LEAST) + more / PLACE, "{} after {}: {:?}", after, dense, whole);
            // Nor are the windows by OS pages behind the last of them more than half a place: a
            // stream that touches the next part in each base page meets several ends of them.
            let too_much = there.range(dense..).count() - sparse.count();
            let most = u64::from(WHOLE_LEAST) * PLACE + PLACE / 2 + more;
            prop_assert!(too_much as u64 <= most, "{} after {}, every {}", too_much, dense, every);
        }

        #[test]
        fn nothing_but_the_window_is_filled(
            windows in prop::collection::vec((0u64..1 << 40, 1u64..600, any::<bool>()), 1..40)
        ) {
            let mut places = Places::new(PAGE, Some(PLACE));
            for (start, len, goes_on) in windows {
                let cut = places.cut(start..start + len, start % PAGE, goes_on, |_| 1);
                prop_assert!(cut.steps.start == start && cut.steps.end <= start + len && !cut.steps.is_empty());
                prop_assert!(cut.whole == 0 || cut.steps.end.is_multiple_of(PLACE));
            }
        }
    }
}
