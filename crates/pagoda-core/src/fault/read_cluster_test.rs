use proptest::prelude::*;

use super::*;
use crate::space::extents::UNIT;

const PER_SLOT: u32 = (SLOT / UNIT) as u32;

fn slots(first: u32, count: u32) -> Units {
    Units { first: first * PER_SLOT, units: count * PER_SLOT }
}

#[test]
fn it_grows_over_small_gaps_and_ends_at_its_bound() {
    let mut stretch = Stretch::of(slots(100, 8), 40).expect("short enough");
    assert!(stretch.take(slots(108, 8)), "the next");
    assert!(!stretch.take(slots(116 + GAP_SLOTS + 1, 1)), "too far");
    assert!(!stretch.take(slots(100 - GAP_SLOTS - 2, 1)), "too far before");
    assert!(stretch.take(slots(124, 8)) && stretch.take(slots(116, 8)), "out of turn");
    assert_eq!(stretch.run(), Run { first: 100, slots: 32 });
    assert!(!stretch.take(slots(132, 9)), "too much");
    assert!(stretch.take(slots(132, 8)));
    assert_eq!(stretch.run(), Run { first: 100, slots: 40 });
    let mut stretch = Stretch::of(slots(100, 8), 40).expect("short enough");
    assert!(stretch.take(slots(92, 8)) && stretch.take(slots(70, 8)), "before it");
    assert_eq!(stretch.run(), Run { first: 70, slots: 38 });
    assert!(!stretch.take(slots(67, 8)), "too much");
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

#[test]
fn a_distant_object_is_a_stretch_of_its_own_if_that_is_allowed() {
    let mut all = Stretches::of(slots(100, 8), 40).expect("short enough");
    let far = slots(1000, 8);
    assert!(all.take(slots(108, 8)) && !all.take(far) && !all.take(slots(20, 8)), "one stretch");
    assert_eq!(all.offset_of(far), None);
    all.allow(3);
    assert!(all.take(far) && all.take(slots(20, 8)) && all.take(slots(1008, 4)));
    assert!(all.take(slots(108, 8)), "it is read already");
    assert!(!all.take(slots(500, 1)), "a fourth");
    assert!(!all.take(slots(116, 5)), "too much in all");
    let runs: Vec<Run> = all.runs().collect();
    assert_eq!(runs, [(100, 16), (1000, 12), (20, 8)].map(|(first, slots)| Run { first, slots }));
    let offsets =
        [slots(108, 8), slots(1008, 4), slots(20, 8), slots(500, 1)].map(|units| all.offset_of(units));
    assert_eq!(offsets, [Some(8 * SLOT), Some(24 * SLOT), Some(28 * SLOT), None]);
    assert!(Stretches::of(slots(0, 41), 40).is_none());
}

proptest! {
    #[test]
    fn several_never_pass_their_bound_nor_overlap_in_the_buffer(
        most in 1u32..120, count in 1usize..6, others in prop::collection::vec((0u32..9000, 1u32..260), 1..30),
    ) {
        let units = Units { first: 4000, units: 17 };
        let Some(mut all) = Stretches::of(units, most) else { return Ok(()) };
        all.allow(count);
        let mut taken = vec![units];
        for (first, units) in others {
            let units = Units { first, units };
            if all.take(units) {
                taken.push(units);
            }
            prop_assert!(all.runs().len() <= count);
            prop_assert!(all.runs().map(|run| run.slots).sum::<u32>() <= most);
            for units in &taken {
                let offset = all.offset_of(*units).expect("it was taken");
                let (mut before, mut slot) = (0, None);
                for run in all.runs() {
                    let slots = run.slots as usize * SLOT;
                    if (before..before + slots).contains(&offset) {
                        slot = Some(run.first as usize + (offset - before) / SLOT);
                    }
                    before += slots;
                }
                prop_assert_eq!(slot, Some(units.slots().first as usize));
            }
        }
    }

    #[test]
    fn it_never_passes_its_bound_and_holds_the_objects_it_took(
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
