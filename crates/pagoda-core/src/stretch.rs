//! Which objects of the spill file come with one read.
//!
//! What went to the file together lies there together, mostly in the order of addresses. A *stretch* begins with one object, and
//! grows by others that lie within it or close behind it. What it passes over is read for nothing, so both that and all of it are
//! bounded. This module must never know the file, nor take for read what lies outside of the stretch.

use crate::extents::{Run, SLOT, Units};

/// What is passed over between two objects, at most: the longest page, which was stored out of turn, or belongs to someone else.
const GAP_SLOTS: u32 = 64 << 10 >> SLOT.trailing_zeros();

/// Slots that are read at once, the first of them those of one object.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    run: Run,
    slots_most: u32,
}

impl Stretch {
    /// Of one object, to grow to `slots_most` slots. `None`: it is longer than that.
    #[must_use]
    pub fn of(units: Units, slots_most: u32) -> Option<Self> {
        let run = units.slots();
        (run.slots <= slots_most).then_some(Self { run, slots_most })
    }

    /// The slots to read.
    #[must_use]
    pub fn run(&self) -> Run {
        self.run
    }

    /// Whether all of an object is read.
    #[must_use]
    pub fn holds(&self, units: Units) -> bool {
        let run = units.slots();
        self.run.first <= run.first && run.first + run.slots <= self.run.first + self.run.slots
    }

    /// Grows by an object, if it lies close enough. Whether it is read.
    pub fn take(&mut self, units: Units) -> bool {
        let (own, run) = (self.run, units.slots());
        let is_close = own.first <= run.first && run.first <= own.first + own.slots + GAP_SLOTS;
        let slots = (run.first + run.slots).saturating_sub(own.first).max(own.slots);
        let taken = is_close && slots <= self.slots_most;
        if taken {
            self.run.slots = slots;
        }
        taken
    }

    /// Where an object's bytes begin among those that are read.
    #[must_use]
    pub fn offset_of(&self, units: Units) -> usize {
        debug_assert!(self.holds(units), "it is read");
        (units.slots().first - self.run.first) as usize * SLOT + units.offset_in_slots()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extents::UNIT;

    const PER_SLOT: u32 = (SLOT / UNIT) as u32;

    fn slots(first: u32, count: u32) -> Units {
        Units { first: first * PER_SLOT, units: count * PER_SLOT }
    }

    #[test]
    fn it_grows_upwards_over_small_gaps_and_ends_at_its_bound() {
        let mut stretch = Stretch::of(slots(100, 8), 40).expect("short enough");
        assert!(stretch.take(slots(108, 8)), "the next");
        assert!(!stretch.take(slots(92, 8)), "what lies below was there before");
        assert!(!stretch.take(slots(116 + GAP_SLOTS + 1, 1)), "too far");
        assert!(stretch.take(slots(124, 8)) && stretch.take(slots(116, 8)), "out of turn");
        assert_eq!(stretch.run(), Run { first: 100, slots: 32 });
        assert!(!stretch.take(slots(132, 9)), "too much");
        assert!(stretch.take(slots(132, 8)));
        assert_eq!(stretch.run(), Run { first: 100, slots: 40 });
        assert!(Stretch::of(slots(0, 41), 40).is_none());
    }

    #[test]
    fn objects_that_share_a_slot_come_together() {
        let (one, two) = (Units { first: 20, units: 3 }, Units { first: 23, units: 30 });
        let mut stretch = Stretch::of(one, 8).expect("short enough");
        assert_eq!(stretch.run(), Run { first: 1, slots: 1 });
        assert!(!stretch.holds(two) && stretch.take(two) && stretch.holds(two));
        assert_eq!(stretch.run(), Run { first: 1, slots: 3 });
        assert_eq!([one, two].map(|units| stretch.offset_of(units)), [4 * UNIT, 7 * UNIT]);
    }

    proptest! {
        #[test]
        fn it_never_passes_its_bound_and_holds_what_it_took(
            first in 0u32..1000, most in 1u32..120, others in prop::collection::vec((0u32..3000, 1u32..260), 1..20),
        ) {
            let units = Units { first, units: 17 };
            let Some(mut stretch) = Stretch::of(units, most) else {
                prop_assert!(units.slots().slots > most);
                return Ok(());
            };
            let mut taken = vec![units];
            let mut wanted = units.slots().slots;
            for (first, units) in others {
                let units = Units { first, units };
                if stretch.take(units) {
                    taken.push(units);
                    wanted += units.slots().slots;
                }
                let run = stretch.run();
                prop_assert!(run.slots <= most && taken.iter().all(|units| stretch.holds(*units)));
                prop_assert!(run.slots <= wanted + GAP_SLOTS * (taken.len() as u32 - 1));
                prop_assert!(taken.iter().all(|units| stretch.offset_of(*units) < run.slots as usize * SLOT));
            }
        }
    }
}
