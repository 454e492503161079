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
#[path = "buddy_test.rs"]
mod tests;
