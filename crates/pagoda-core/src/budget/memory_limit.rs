//! How much of a group's memory limit a budget may take.
//!
//! The kernel counts more against the limit than a budget does: page tables, kernel stacks,
//! sockets, and memory that a program takes between two looks. If a budget leaves no room for
//! these, the kernel kills the program. This module must never measure: the caller passes the limit
//! and its use.

use crate::size::Bytes;

/// The memory that stays free beside a budget of any size: 20 ms at 1 GiB/s, the longest time
/// between two looks, and the kernel's memory of some processes.
const BESIDE_LEAST: Bytes = Bytes::mib(24);

/// The part of a limit that stays free beside the budget, as one in so many. Page tables take a
/// 512th of the memory that a program has touched, in memory or swapped out: this is enough for
/// thirty times the budget.
const BESIDE_PART: u64 = 16;

/// The part of `limit` that stays free beside a budget.
#[must_use]
pub fn beside(limit: Bytes) -> Bytes {
    Bytes::new(limit.get() / BESIDE_PART).saturating_add(BESIDE_LEAST)
}

/// The largest budget that fits into `limit`, of which `used` bytes are taken already, in whole
/// MiB.
#[must_use]
pub fn largest_budget(limit: Bytes, used: Bytes) -> Bytes {
    Bytes::mib(limit.saturating_sub(used).saturating_sub(beside(limit)).get() >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_leaves_room_for_the_kernels_other_memory() {
        assert_eq!(largest_budget(Bytes::mib(96), Bytes::ZERO), Bytes::mib(66));
        assert_eq!(largest_budget(Bytes::gib(1), Bytes::mib(100)), Bytes::mib(836));
        assert_eq!(largest_budget(Bytes::mib(96), Bytes::new(1)), Bytes::mib(65), "in whole MiB");
    }

    #[test]
    fn a_limit_that_leaves_nothing_has_no_budget() {
        assert_eq!(largest_budget(Bytes::mib(20), Bytes::ZERO), Bytes::ZERO);
        assert_eq!(largest_budget(Bytes::gib(1), Bytes::gib(2)), Bytes::ZERO);
        assert!(largest_budget(Bytes::new(u64::MAX), Bytes::ZERO) > Bytes::gib(1 << 30));
    }
}
