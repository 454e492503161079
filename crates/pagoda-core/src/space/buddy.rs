//! Which slots of an arena are free: a buddy allocator of slot numbers.
//!
//! A slot is one base page of an arena's address space; a block of order `k` is `2^k` slots,
//! aligned to its length. Two free halves of a block always become the block (so an aligned run of
//! free slots can always be had as one block), and an allocation always gets the lowest address
//! there is, so that an arena stays dense at its start and its end can be given back. This module
//! must never allocate memory after `new` (it runs on the fault path), and must never go on after a
//! wrong `free`: one slot in two hands would be two pages of a program in one frame.
//!
//! **Encoding.** For each order a set of the blocks that are free *and not part of a larger free
//! block*. An arena that is all free has a bit or a few in the topmost sets and zeroes everywhere
//! else: 2^26 slots take 16 MiB of zeroed address space, of which only the words around slots in
//! use are ever touched.

use crate::space::bitset::BitSet;

/// The most slots of one allocator: 128 TiB of 64 KiB base pages, all the address space there is.
pub const SLOTS_MAX: u32 = 1 << 31;

/// The free blocks of one order.
#[derive(Debug)]
struct Order {
    /// By block number: the first slot shifted right by the order.
    blocks: BitSet,
    /// The first slot of the lowest of them, so that an allocation compares a number for each order
    /// and searches once.
    lowest: Option<u32>,
}

/// Free and used slots of one arena.
#[derive(Debug)]
pub struct Buddy {
    slots: u32,
    free_slots: u32,
    /// As many orders as a block of them fits into `slots`.
    orders: Vec<Order>,
}

impl Buddy {
    /// `slots` slots, all free. Their number need not be a power of two.
    ///
    /// Takes two bits of zeroed memory for a slot. Panics if there are more than [`SLOTS_MAX`].
    #[must_use]
    pub fn new(slots: u32) -> Self {
        assert!(slots <= SLOTS_MAX, "{slots} slots are more than one allocator's {SLOTS_MAX}");
        let order_count = slots.checked_ilog2().map_or(0, |largest| largest + 1);
        let orders = (0..order_count)
            .map(|order| Order { blocks: BitSet::new((slots >> order) as usize), lowest: None })
            .collect();
        let mut buddy = Self { slots, free_slots: slots, orders };
        // The binary digits of the number, largest first, are aligned blocks that cover 0..slots.
        let mut start = 0;
        for order in (0..order_count).rev().filter(|order| slots >> order & 1 == 1) {
            buddy.put(start, order);
            start += 1 << order;
        }
        buddy
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// How many of them are free.
    #[must_use]
    pub fn free_slots(&self) -> u32 {
        self.free_slots
    }

    /// The order of the largest block that `alloc` could give now; none if every slot is in use.
    #[must_use]
    pub fn largest_order(&self) -> Option<u32> {
        self.orders.iter().rposition(|blocks| blocks.lowest.is_some()).map(|order| order as u32)
    }

    /// Takes the block of `2^order` slots with the lowest address. Returns its first slot, or none
    /// if no such block is free.
    pub fn alloc(&mut self, order: u32) -> Option<u32> {
        let larger = (0..).zip(&self.orders).skip(order as usize);
        let (slot, found) = larger.filter_map(|(found, blocks)| Some((blocks.lowest?, found))).min()?;
        self.take(slot, found);
        // The rest is the upper halves, down to the requested order.
        for half in order..found {
            self.put(slot + (1 << half), half);
        }
        self.free_slots -= 1 << order;
        Some(slot)
    }

    /// Gives back the `2^order` slots from `slot` on.
    ///
    /// A block may come back in aligned parts, and neighbours that make up an aligned block may
    /// come back as one, as long as every slot was in use.
    ///
    /// Panics, before anything changes, if `slot` is not aligned to the block, if the block reaches
    /// beyond the arena, or if any part of it is free already.
    pub fn free(&mut self, slot: u32, order: u32) {
        assert!(
            (order as usize) < self.orders.len() && slot.trailing_zeros() >= order,
            "slot {slot} does not start a block of order {order}: freed with another order than it was taken with?"
        );
        let length = 1 << order;
        assert!(
            slot < self.slots && length <= self.slots - slot,
            "slots {slot}..{slot}+{length} are beyond the arena's {}: freed to another arena?",
            self.slots
        );
        assert!(
            !self.any_free(slot, order),
            "slots {slot}..{slot}+{length} are freed twice: someone else may hold them by now"
        );
        self.free_slots += length;
        let (mut slot, mut order) = (slot, order);
        // A buddy that lies beyond the arena is in no set, so this ends at the largest order by
        // itself.
        while self.is_block(slot ^ (1 << order), order) {
            self.take(slot ^ (1 << order), order);
            slot &= !(1 << order);
            order += 1;
        }
        self.put(slot, order);
    }

    /// Whether any of the `2^order` slots from `slot` on is free.
    fn any_free(&self, slot: u32, order: u32) -> bool {
        (0..).zip(&self.orders).filter(|(_, blocks)| blocks.lowest.is_some()).any(|(of, blocks)| {
            // A larger block covers it, or smaller ones lie inside.
            let first = (slot >> of) as usize;
            let count = if of >= order { 1 } else { 1 << (order - of) };
            blocks.blocks.any_in(first, first + count)
        })
    }

    fn is_block(&self, slot: u32, order: u32) -> bool {
        self.orders[order as usize].blocks.contains((slot >> order) as usize)
    }

    /// Notes a free block.
    fn put(&mut self, slot: u32, order: u32) {
        let Order { blocks, lowest } = &mut self.orders[order as usize];
        blocks.insert((slot >> order) as usize);
        *lowest = Some(lowest.map_or(slot, |lowest| lowest.min(slot)));
    }

    /// Strikes a free block out.
    fn take(&mut self, slot: u32, order: u32) {
        let Order { blocks, lowest } = &mut self.orders[order as usize];
        let number = (slot >> order) as usize;
        blocks.remove(number);
        if *lowest == Some(slot) {
            *lowest = blocks.first_from(number + 1).map(|number| (number as u32) << order);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same promises kept the slow way: a flag for each slot.
    struct Model(Vec<bool>);

    impl Model {
        fn alloc(&mut self, order: u32) -> Option<u32> {
            let length = 1usize << order;
            let start = (0..self.0.len()).step_by(length).find(|&at| {
                at + length <= self.0.len() && self.0[at..at + length].iter().all(|used| !used)
            })?;
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
}
