use proptest::prelude::*;

use super::*;

/// The same promises kept the slow way: a flag for each slot.
struct Model(Vec<bool>);

impl Model {
    fn alloc(&mut self, order: u32) -> Option<u32> {
        let length = 1usize << order;
        let start = (0..self.0.len())
            .step_by(length)
            .find(|&at| at + length <= self.0.len() && self.0[at..at + length].iter().all(|used| !used))?;
        self.0[start..start + length].fill(true);
        Some(start as u32)
    }
    fn free(&mut self, slot: u32, order: u32) {
        self.0[slot as usize..][..1 << order].fill(false);
    }
    fn free_slots(&self) -> u32 {
        self.0.iter().filter(|used| !**used).count() as u32
    }
    fn largest_order(&self) -> Option<u32> {
        (0..16).rev().find(|order| Model(self.0.clone()).alloc(*order).is_some())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u32),
    Free(prop::sample::Index),
    FreeInHalves(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..7).prop_map(Step::Alloc),
        2 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => any::<prop::sample::Index>().prop_map(Step::FreeInHalves),
    ]
}

proptest! {
    #[test]
    fn gives_what_a_flag_for_each_slot_would_give(
        slots in 1u32..700,
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let (mut buddy, mut model) = (Buddy::new(slots), Model(vec![false; slots as usize]));
        let whole = buddy.largest_order();
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Alloc(order) => {
                    let got = buddy.alloc(order);
                    prop_assert_eq!(got, model.alloc(order));
                    held.extend(got.map(|slot| (slot, order)));
                }
                Step::Free(which) if !held.is_empty() => {
                    let (slot, order) = held.swap_remove(which.index(held.len()));
                    buddy.free(slot, order);
                    model.free(slot, order);
                }
                Step::FreeInHalves(which) if !held.is_empty() => {
                    let (slot, order) = held.swap_remove(which.index(held.len()));
                    let half = order.saturating_sub(1);
                    buddy.free(slot, half);
                    model.free(slot, half);
                    held.extend((half < order).then_some((slot + (1 << half), half)));
                }
                Step::Free(_) | Step::FreeInHalves(_) => {}
            }
            prop_assert_eq!(buddy.free_slots(), model.free_slots());
            prop_assert_eq!(buddy.largest_order(), model.largest_order());
        }
        for (slot, order) in held {
            buddy.free(slot, order);
        }
        prop_assert_eq!((buddy.free_slots(), buddy.largest_order()), (slots, whole));
    }

    #[test]
    fn whatever_overlaps_a_free_slot_is_refused_and_nothing_changes(
        slots in 1u32..200,
        orders in prop::collection::vec(0u32..4, 0..60),
        slot in 0u32..200,
        order in 0u32..8,
    ) {
        let (mut buddy, mut model) = (Buddy::new(slots), Model(vec![false; slots as usize]));
        for order in orders {
            prop_assert_eq!(buddy.alloc(order), model.alloc(order));
        }
        let end = slot + (1 << order);
        let right = slot % (1 << order) == 0
            && end <= slots
            && model.0[slot as usize..end as usize].iter().all(|used| *used);
        let before = (buddy.free_slots(), buddy.largest_order());
        let freed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| buddy.free(slot, order)));
        prop_assert_eq!(freed.is_ok(), right);
        if right {
            model.free(slot, order);
        } else {
            prop_assert_eq!((buddy.free_slots(), buddy.largest_order()), before);
        }
        for _ in 0..=slots {
            prop_assert_eq!(buddy.alloc(0), model.alloc(0));
        }
    }
}

#[test]
fn no_slots_give_nothing() {
    let mut buddy = Buddy::new(0);
    assert_eq!((buddy.alloc(0), buddy.largest_order(), buddy.free_slots()), (None, None, 0));
}

#[test]
fn an_order_larger_than_the_arena_gives_nothing() {
    let mut buddy = Buddy::new(100);
    assert_eq!(buddy.alloc(7), None);
    assert_eq!(buddy.alloc(u32::MAX), None);
    assert_eq!(buddy.alloc(6), Some(0));
}

#[test]
fn the_largest_arena_fills_and_comes_back_whole() {
    let mut buddy = Buddy::new(1 << 26);
    assert_eq!(buddy.largest_order(), Some(26));
    for slot in 0..10_000 {
        assert_eq!(buddy.alloc(0), Some(slot));
    }
    assert_eq!(buddy.alloc(25), Some(1 << 25));
    buddy.free(1 << 25, 25);
    for slot in (0..10_000).rev() {
        buddy.free(slot, 0);
    }
    assert_eq!((buddy.largest_order(), buddy.free_slots()), (Some(26), 1 << 26));
}

#[test]
fn a_hole_is_filled_before_anything_above_it() {
    let mut buddy = Buddy::new(64);
    for _ in 0..48 {
        buddy.alloc(0);
    }
    buddy.free(8, 3);
    assert_eq!((buddy.alloc(0), buddy.alloc(2), buddy.alloc(4)), (Some(8), Some(12), Some(48)));
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_slot_inside_a_free_block_is_not_freed_again() {
    Buddy::new(64).free(5, 0);
}

#[test]
#[should_panic(expected = "does not start a block")]
fn a_misaligned_block_is_not_freed() {
    let mut buddy = Buddy::new(64);
    buddy.alloc(6);
    buddy.free(1, 1);
}

#[test]
#[should_panic(expected = "beyond the arena")]
fn a_block_of_another_arena_is_not_freed() {
    let mut buddy = Buddy::new(6);
    buddy.alloc(2);
    buddy.alloc(1);
    buddy.free(4, 2);
}
