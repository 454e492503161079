use super::*;
use proptest::prelude::*;

#[test]
fn freed_neighbours_are_one_run_again() {
    let mut extents = Extents::new(8);
    let runs: Vec<Run> = (0..4).map(|_| extents.take(2, 2).expect("room")).collect();
    assert_eq!(extents.take(1, 2), None);
    extents.settle(runs[1]);
    extents.settle(runs[2]);
    assert_eq!(extents.take(5, 8), None);
    assert_eq!(extents.take(1, 8), Some(Run { first: 2, slots: 4 }));
}

#[test]
fn a_slot_stays_taken_until_its_last_object_is_gone() {
    let mut extents = Extents::new(4);
    let run = extents.take(4, 4).expect("room");
    let (a, b) = (Units::of_bytes(run.first_unit(), 5000), Units::of_bytes(run.first_unit() + 20, 3000));
    assert_eq!((a.slots(), b.slots()), (Run { first: 0, slots: 2 }, Run { first: 1, slots: 1 }));
    assert_eq!((a.offset_in_slots(), b.offset_in_slots()), (0, 1024));
    extents.place(a);
    extents.place(b);
    extents.settle(run);
    assert_eq!(extents.taken_slots(), 2);
    extents.release(a);
    assert_eq!(extents.take(1, 4), Some(Run { first: 2, slots: 2 }));
    extents.release(b);
    assert_eq!(extents.take(1, 4), Some(Run { first: 0, slots: 2 }));
}

#[test]
fn the_last_eighth_is_for_content_with_no_other_place() {
    let mut extents = Extents::new(16);
    let _ = extents.take(13, 13).expect("room");
    assert!(extents.has_room_for_copies());
    let _ = extents.take(1, 1).expect("room");
    assert!(!extents.has_room_for_copies());
    assert!(extents.take(2, 2).is_some(), "it is there for others");
}

#[test]
fn free_slots_are_given_back_once_and_can_be_taken_again() {
    let mut extents = Extents::new(100);
    let whole = extents.take(100, 100).expect("room");
    let kept = Units::of_bytes(40 * UNITS_PER_SLOT, 2 * SLOT);
    extents.place(kept);
    extents.settle(whole);
    assert_eq!(extents.take_unused(41, 99), Some(Run { first: 42, slots: 58 }));
    assert_eq!(extents.take(41, 41), None, "it is not free meanwhile");
    extents.settle(Run { first: 42, slots: 58 });
    assert_eq!(extents.take_unused(8, 30), Some(Run { first: 0, slots: 30 }));
    extents.settle(Run { first: 0, slots: 30 });
    assert_eq!(extents.take_unused(8, 30), Some(Run { first: 30, slots: 10 }));
    extents.settle(Run { first: 30, slots: 10 });
    assert_eq!((extents.take_unused(1, 100), extents.taken_slots()), (None, 2));
    assert_eq!(extents.take(58, 58), Some(Run { first: 42, slots: 58 }));
    extents.settle(Run { first: 42, slots: 58 });
    assert_eq!(extents.take_unused(1, 100), Some(Run { first: 42, slots: 58 }), "it was written again");
}

#[test]
fn a_limit_that_is_raised_and_lowered_bounds_the_taken_slots() {
    let mut extents = Extents::new(8);
    let runs: Vec<Run> = (0..4).map(|_| extents.take(2, 2).expect("room")).collect();
    extents.limit_to(10);
    let more = extents.take(1, 4).expect("two more");
    assert_eq!(more.slots, 2);
    extents.limit_to(8);
    extents.settle(more);
    assert_eq!(extents.take(1, 4), None, "as many as before are taken");
    extents.settle(runs[0]);
    assert_eq!(extents.take(1, 4).map(|run| run.slots), Some(2));
}

proptest! {
    /// Runs never overlap taken slots, lie within the file, and are refused only when none is
    /// long enough. All freed slots can be taken again as one run.
    #[test]
    fn runs_are_disjoint_conserved_and_coalesce(
        steps in proptest::collection::vec((any::<u16>(), 1u32..90, any::<bool>()), 1..300),
    ) {
        let slots_max = 512;
        let mut extents = Extents::new(slots_max);
        let mut owner = vec![false; slots_max as usize];
        let mut live: Vec<Run> = Vec::new();
        for (pick, most, take) in steps {
            let least = 1 + u32::from(pick) % most;
            if take {
                match extents.take(least, most) {
                    Some(run) => {
                        prop_assert!(run.slots >= least && run.slots <= most && run.first + run.slots <= slots_max);
                        for slot in run.first..run.first + run.slots {
                            prop_assert!(!std::mem::replace(&mut owner[slot as usize], true));
                        }
                        extents.place(Units::of_bytes(run.first_unit(), run.slots as usize * SLOT));
                        live.push(run);
                    }
                    None => {
                        let high = extents.high() as usize;
                        let longest = owner[..high].split(|taken| *taken).map(<[bool]>::len).max();
                        prop_assert!(longest.unwrap_or(0) < least as usize);
                        prop_assert!(slots_max - (high as u32) < least);
                    }
                }
            } else if !live.is_empty() {
                let run = live.swap_remove(usize::from(pick) % live.len());
                extents.release(Units::of_bytes(run.first_unit(), run.slots as usize * SLOT));
                owner[run.first as usize..(run.first + run.slots) as usize].fill(false);
            }
            prop_assert_eq!(extents.taken_slots() as usize, owner.iter().filter(|taken| **taken).count());
        }
        for run in live {
            extents.release(Units::of_bytes(run.first_unit(), run.slots as usize * SLOT));
        }
        let high = extents.high();
        let everything = Run { first: 0, slots: high };
        prop_assert!(high == 0 || extents.take(high, high) == Some(everything));
    }
}
