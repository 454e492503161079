//! How far who touches memory upwards gets it filled: up to the end of a place of 2 MiB, and whole places as one.
//!
//! What is touched shows only where nothing is yet. Filled up to the end of a base page, memory of which the same part of each page
//! is touched looks like memory that is touched everywhere: so a window of smaller steps ends within a base page, at another part of
//! it each time, and who goes on exactly there has shown that he touches everything. For that he gets some places whole, and
//! then has to show it again. A window never reaches into the next place, which would not be empty any more. This module must
//! never offer a place whole of which not all is in the window, nor more of them than [`WHOLE_MOST`] for one showing.

use std::ops::Range;

/// Places that come whole before it has to be shown again that everything is touched: so much, 6 MiB, a stream that becomes sparse
/// may hold too much, once; and three places in four come whole to one that stays dense.
pub const WHOLE_MOST: u32 = 3;

/// What of a window is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// These steps, the one that is touched first among them.
    Steps(Range<u64>),
    /// A whole place, which these steps are.
    Place(Range<u64>),
}

impl Cut {
    /// The first step behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        match self {
            Self::Steps(steps) | Self::Place(steps) => steps.end,
        }
    }
}

/// One stream's.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Steps of a base page: one or more.
    page_steps: u64,
    /// Steps of a place, and none if no place comes whole.
    place_steps: Option<u64>,
    /// Where who touches everything goes on.
    shown_at: Option<u64>,
    whole_left: u32,
}

impl Places {
    /// Of steps of which `page_steps` make a base page and, where places may come whole, `place_steps` a place; numbered so that
    /// the first of a place is a multiple of that.
    #[must_use]
    pub const fn new(page_steps: u64, place_steps: Option<u64>) -> Self {
        Self { page_steps, place_steps, shown_at: None, whole_left: 0 }
    }

    /// What of `window` is to be filled, which is not empty and begins where it was touched, `within` steps into a base page.
    /// `goes_on` says whether it was touched by who had the last window.
    pub fn cut(&mut self, window: Range<u64>, within: u64, goes_on: bool) -> Cut {
        match self.shown_at.take() {
            Some(at) if goes_on && at == window.start => self.whole_left = WHOLE_MOST,
            None if goes_on => {}
            _ => self.whole_left = 0,
        }
        let mut window = window;
        if let Some(place) = self.place_steps {
            let is_whole = window.start.is_multiple_of(place) && window.end - window.start >= place;
            // Steps of a base page show as much as there is to see.
            if is_whole && (self.page_steps == 1 || self.whole_left > 0) {
                self.whole_left = self.whole_left.saturating_sub(1);
                return Cut::Place(window.start..window.start + place);
            }
            window.end = window.end.min((window.start / place + 1).saturating_mul(place));
        }
        let len = window.end - window.start;
        if self.page_steps > 1 && len >= 2 * self.page_steps {
            let bound = window.end - (within + len) % self.page_steps;
            window.end = bound - 1 - bound / self.page_steps % (self.page_steps - 1);
            self.shown_at = Some(window.end);
        }
        Cut::Steps(window)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fault_around::FaultAround;
    use crate::page::BasePage;

    const PAGE: u64 = 16;
    const PLACE: u64 = 512;

    /// What is filled, and which places came whole, of who touches these OS pages upwards.
    fn touch(steps: impl Iterator<Item = u64>, places: Option<u64>) -> (BTreeSet<u64>, Vec<u64>) {
        let (mut around, mut cut) = (FaultAround::new(BasePage::K4), Places::new(PAGE, places));
        let (mut there, mut whole) = (BTreeSet::new(), Vec::new());
        for step in steps {
            if there.contains(&step) {
                continue;
            }
            let window = around.fault(step, 0..1 << 20, |step| !there.contains(&step));
            let filled = cut.cut(window.clone(), step % PAGE, around.goes_on());
            around.ends_at(filled.end());
            match filled {
                Cut::Steps(steps) => {
                    assert!(steps.start == step && steps.end <= window.end && !steps.is_empty());
                    there.extend(steps);
                }
                Cut::Place(steps) => {
                    assert!(steps.start == step && steps.end <= window.end && steps.start % PLACE == 0);
                    whole.push(steps.start / PLACE);
                    there.extend(steps);
                }
            }
        }
        (there, whole)
    }

    #[test]
    fn who_touches_everything_gets_three_places_of_four_whole() {
        let (there, whole) = touch(0..16 * PLACE, Some(PLACE));
        assert_eq!(there.len() as u64, 16 * PLACE);
        assert_eq!(whole, [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15]);
        assert_eq!(touch(0..16 * PLACE, None).1, []);
    }

    #[test]
    fn steps_of_a_base_page_have_nothing_to_show() {
        let mut places = Places::new(1, Some(32));
        assert_eq!(places.cut(60..92, 0, true), Cut::Steps(60..64));
        assert_eq!(places.cut(64..96, 0, true), Cut::Place(64..96));
        assert_eq!(places.cut(96..127, 0, true), Cut::Steps(96..127));
    }

    proptest! {
        #[test]
        fn who_touches_the_same_part_of_each_base_page_never_gets_one_whole(
            from in 0..PAGE, len in 1..PAGE, start in 0..2 * PLACE / PAGE
        ) {
            let part = |page: u64| (page * PAGE + from).min(page * PAGE + PAGE)..(page * PAGE + from + len).min(page * PAGE + PAGE);
            prop_assume!(from > 0 || len < PAGE);
            let (_, whole) = touch((start..8 * PLACE / PAGE).flat_map(part), Some(PLACE));
            prop_assert_eq!(whole, []);
        }

        #[test]
        fn who_becomes_sparse_holds_a_bounded_number_of_places_too_much(
            dense in 1..12 * PLACE, every in prop::sample::select(vec![16u64, 64, 512])
        ) {
            let sparse = (dense.next_multiple_of(every)..40 * PLACE).step_by(every as usize);
            let (_, whole) = touch((0..dense).chain(sparse), Some(PLACE));
            let after = whole.iter().filter(|place| **place * PLACE >= dense).count();
            prop_assert!(after <= WHOLE_MOST as usize, "{} after {}: {:?}", after, dense, whole);
        }

        #[test]
        fn nothing_but_the_window_is_filled(
            windows in prop::collection::vec((0u64..1 << 40, 1u64..600, any::<bool>()), 1..40)
        ) {
            let mut places = Places::new(PAGE, Some(PLACE));
            for (start, len, goes_on) in windows {
                let cut = places.cut(start..start + len, start % PAGE, goes_on);
                let (Cut::Steps(steps) | Cut::Place(steps)) = cut;
                prop_assert!(steps.start == start && steps.end <= start + len && !steps.is_empty());
            }
        }
    }
}
