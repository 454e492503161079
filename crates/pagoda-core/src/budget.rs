//! What a process's share of a budget is spent on: compressed pages, what can't be moved, and what is left for use.
//!
//! Whoever shrinks a share below what can't be moved stops the process, so that there is a least that each works with; and
//! compressed pages never take the part of what is in use, or a small budget has none of that. This module must never
//! measure: it is told what there is.

use crate::page::{BasePage, HUGE_FRAME};
use crate::size::Bytes;
use crate::watermark::Watermarks;

/// The share of the budget that compressed pages may take, in percent: at 3:1 this holds twice the budget and more, and a
/// quarter of the budget is left for what is in use.
const STORE_SHARE_PERCENT: u64 = 75;

/// The least part of a budget that compressed pages may take, as one in so many: what can't be moved may be most of it.
const STORE_SHARE_LEAST: u64 = 8;

/// What an engine works with at least: the first MiB that the store commits to, as much for what reclaim takes out at once
/// and keeps ready, and the rest for what is in use.
const WORKING_LEAST: Bytes = Bytes::mib(4);

/// The most that compressed pages may ever take of `budget`.
#[must_use]
pub fn store_most(budget: Bytes) -> Bytes {
    Bytes::new(budget.get() / 100 * STORE_SHARE_PERCENT)
}

/// What compressed pages may take of a budget now, of which `marks` keep some free and `immovable` bytes (our own tables, and
/// what is not managed) can't be moved: these come out of the compressed pages' part, and not out of the quarter that is
/// left for what is in use. Never more than [`store_most`].
#[must_use]
pub fn store_limit(marks: &Watermarks, immovable: Bytes) -> Bytes {
    let beside = marks.high.saturating_add(immovable);
    let least = Bytes::new(marks.budget().get() / STORE_SHARE_LEAST);
    store_most(marks.budget()).saturating_sub(beside).max(least)
}

/// The budget that a process with this `share` of `full` goes by. A share that leaves nothing beside what is `immovable` is
/// taken for the least with which faults are served: where many share too little each goes on, slowly, and what that takes
/// is claimed from the others. Never more than `full`.
#[must_use]
pub fn working(share: Bytes, full: Bytes, immovable: Bytes, base: BasePage, handlers: u32) -> Bytes {
    let least = Watermarks::least_share(base, handlers).max(WORKING_LEAST).saturating_add(immovable);
    share.max(least.min(full))
}

/// What is free above the high watermark when memory stops being left to the kernel: two processors that do nothing else
/// take 4 GiB/s in 4 KiB pages, which is this much in 4 ms. Between two looks is less.
const FOLLOW_LEAST: Bytes = Bytes::mib(16);

/// Whether memory is only *followed* while `free` bytes are: it is counted and looked at, and all else is the kernel's, who serves
/// first touches faster than anybody who has to be woken, and has nobody to tell what is unmapped. Nothing more is adopted
/// then. `follows` says whether it is so now; it takes twice as much to begin again.
#[must_use]
pub fn follows(free: Bytes, marks: &Watermarks, follows: bool) -> bool {
    let least = marks.high.saturating_add(FOLLOW_LEAST);
    free >= if follows { least } else { least.saturating_add(least) }
}

/// What is free beyond that when the kernel may give no more huge pages: they were touched at 7 to 22 GiB/s
/// (docs/figures.md), which is this much in 6 ms or more. Looks at a process that grows are 5 ms apart at most.
const HUGE_LEAST: Bytes = Bytes::mib(128);

/// Whether the kernel may go on giving huge pages to a process whose memory is only followed, while `free` bytes are. Parts of
/// them leave by a split, so that none should come any more when the first part has to; and they come too fast for who looks at the count
/// of small ones.
#[must_use]
pub fn keeps_huge(free: Bytes, marks: &Watermarks) -> bool {
    free >= marks.high.saturating_add(FOLLOW_LEAST).saturating_add(HUGE_LEAST)
}

/// Whether who serves a fault of a thread that jumps about reclaims first, to make up for what it will take, while `free` bytes
/// are: as long as reclaim in the background would not be done.
#[must_use]
pub fn pays_ahead(free: Bytes, marks: &Watermarks) -> bool {
    free < marks.high
}

/// Whether a fault may take a huge frame while `free` bytes are: as long as reclaim does not run for it.
#[must_use]
pub fn takes_huge(free: Bytes, marks: &Watermarks) -> bool {
    free >= marks.high.saturating_add(Bytes::new(HUGE_FRAME as u64))
}

/// Whether frames may be taken from the kernel for nobody yet, with `room` left in a zone, where `most` bytes of them are kept and
/// reclaim stops at `high`: as long as so much stays free beside them that it never runs for what nobody asked for.
#[must_use]
pub fn takes_ahead(room: Bytes, most: Bytes, high: Bytes) -> bool {
    room >= high.saturating_add(most)
}

/// The share of a zone that may lie ready as base frames of zeroes: one part in this.
const READY_BASE_SHARE: u64 = 64;

/// The most of them: what 10 ms of first touches take at 1.6 GiB/s, a base page of 64 KiB each 40 µs.
const READY_BASE_MOST: Bytes = Bytes::mib(16);

/// How much of a zone may lie ready as base frames of zeroes.
#[must_use]
pub fn ready_base_most(zone: Bytes) -> Bytes {
    Bytes::new(zone.get() / READY_BASE_SHARE).min(READY_BASE_MOST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn compressed_pages_leave_the_rest_its_quarter_as_long_as_there_is_one(
            budget in 16u64 << 20..1 << 40,
            immovable in 0u64..1 << 32,
        ) {
            let marks = Watermarks::of_share(Bytes::new(budget), BasePage::K64, 2);
            let (limit, immovable) = (store_limit(&marks, Bytes::new(immovable)), Bytes::new(immovable));
            prop_assert!(limit <= store_most(Bytes::new(budget)) && limit.get() >= budget / 8);
            if limit.get() > budget / 8 {
                let left = budget - limit.get() - marks.high.get() - immovable.get();
                prop_assert!(left >= budget / 4, "{left} of {budget}");
            }
        }

        #[test]
        fn a_share_is_kept_unless_nothing_can_be_done_with_it_and_no_process_gets_more_than_all(
            share in 0u64..1 << 34,
            full in 16u64 << 20..1 << 34,
            immovable in 0u64..1 << 34,
        ) {
            let (share, full) = (share.min(full), Bytes::new(full));
            let works = working(Bytes::new(share), full, Bytes::new(immovable), BasePage::K64, 2);
            prop_assert!(works.get() >= share && works <= full);
            prop_assert!(works.get() == share || works == full || works.get() == immovable + (4 << 20));
        }
    }

    #[test]
    fn memory_is_followed_from_twice_what_is_free_when_that_ends() {
        let marks = Watermarks::of_share(Bytes::mib(256), BasePage::K64, 2);
        let least = marks.high.saturating_add(Bytes::mib(16));
        let (less, twice) = (least.saturating_sub(Bytes::new(1)), least.saturating_add(least));
        assert!(follows(least, &marks, true) && !follows(less, &marks, true));
        assert!(follows(twice, &marks, false) && !follows(least, &marks, false));
        // Reclaim never begins while anything is followed.
        assert!(!follows(marks.high, &marks, true));
    }

    #[test]
    fn huge_pages_end_long_before_memory_is_adopted() {
        let marks = Watermarks::of_share(Bytes::gib(1), BasePage::K64, 2);
        let least = marks.high.saturating_add(Bytes::mib(144));
        let less = least.saturating_sub(Bytes::new(1));
        assert!(keeps_huge(least, &marks) && !keeps_huge(less, &marks));
        assert!(follows(less, &marks, true));
    }

    #[test]
    fn who_pays_ahead_keeps_reclaim_asleep() {
        let marks = Watermarks::of_share(Bytes::mib(256), BasePage::K64, 2);
        assert!(pays_ahead(marks.low, &marks) && !pays_ahead(marks.high, &marks));
    }

    #[test]
    fn huge_frames_never_make_reclaim_run() {
        let marks = Watermarks::of_share(Bytes::mib(256), BasePage::M2, 2);
        let (one, one_less) = (Bytes::mib(2), Bytes::new((2 << 20) - 1));
        assert!(takes_huge(marks.high.saturating_add(one), &marks));
        assert!(!takes_huge(marks.high.saturating_add(one_less), &marks));
        let most = Bytes::mib(16);
        assert!(takes_ahead(marks.high.saturating_add(most), most, marks.high));
        assert!(!takes_ahead(marks.high.saturating_add(Bytes::mib(15)), most, marks.high));
    }

    #[test]
    fn base_frames_that_are_ready_are_a_small_part_of_a_zone() {
        for (zone, most) in [(16, 256), (256, 4 << 10), (1024, 16 << 10), (1 << 20, 16 << 10)] {
            assert_eq!(ready_base_most(Bytes::mib(zone)), Bytes::kib(most));
        }
    }

    #[test]
    fn a_small_budget_has_some_in_use() {
        let marks = Watermarks::of_share(Bytes::mib(36), BasePage::K64, 2);
        assert_eq!(store_limit(&marks, Bytes::mib(3)), Bytes::new((36 << 20) / 100 * 75 - (7 << 20)));
    }
}
