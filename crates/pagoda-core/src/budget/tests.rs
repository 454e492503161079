use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn compressed_pages_leave_a_fifth_to_the_working_set_while_there_is_one(
        budget in 16u64 << 20..1 << 40,
        immovable in 0u64..1 << 32,
    ) {
        let marks = Watermarks::of_share(Bytes::new(budget), BasePage::K64, 2);
        let (limit, immovable) = (store_limit(&marks, Bytes::new(immovable)), Bytes::new(immovable));
        prop_assert!(limit <= store_most(Bytes::new(budget)) && limit.get() >= budget / 8);
        if limit.get() > budget / 8 {
            let left = budget - limit.get() - marks.high.get() - immovable.get();
            prop_assert!(left >= budget / 5, "{left} of {budget}");
        }
    }

    #[test]
    fn a_share_is_raised_only_to_the_working_least_and_never_above_the_full_budget(
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
fn following_begins_with_twice_the_free_memory_at_which_it_ends() {
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
fn empty_memory_counts_only_while_memory_is_followed_and_room_is_little() {
    let marks = Watermarks::of_share(Bytes::mib(64), BasePage::K64, 2);
    let all = Bytes::new(u64::MAX);
    assert_eq!(outrun_from(Bytes::mib(40), &marks, true), Bytes::mib(40));
    assert_eq!(outrun_from(Bytes::mib(40), &marks, false), all);
    assert_eq!(outrun_from(Bytes::gib(1), &marks, true), all);
    // Memory that is followed leaves more than this; a count may be newer.
    assert!(outrun_from(Bytes::ZERO, &marks, true) >= FOLLOW_LEAST);
}

#[test]
fn paying_ahead_keeps_reclaim_asleep() {
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
fn a_small_budget_leaves_a_working_set() {
    let marks = Watermarks::of_share(Bytes::mib(36), BasePage::K64, 2);
    assert_eq!(store_limit(&marks, Bytes::mib(3)), Bytes::new((36 << 20) / 4 * 3 - (7 << 20)));
}
