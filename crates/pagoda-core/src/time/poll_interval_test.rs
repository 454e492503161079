use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn sleeps_stay_within_their_bounds(
        free in any::<u64>(),
        small in 0u64..1 << 30,
        growth in any::<u64>(),
        idle in any::<u32>(),
    ) {
        for free in [free, small].map(Bytes::new) {
            for growth in [Bytes::ZERO, Bytes::new(growth)] {
                let sleep = watch_interval_us(free, growth, idle);
                prop_assert!((SLEEP_LEAST_US..=SLEEP_MOST_US).contains(&sleep));
                let appears = u128::from(sleep) * u128::from(FASTEST_GROWTH_PER_S.get()) / 1_000_000;
                prop_assert!(sleep == SLEEP_LEAST_US || appears <= u128::from(free.get() / 2));
                prop_assert!(growth == Bytes::ZERO || sleep <= SLEEP_ROOMY_US);
                let is_roomy = half_gone_us(free) > 4 * SLEEP_GROWING_US;
                prop_assert!(growth == Bytes::ZERO || is_roomy || sleep <= SLEEP_GROWING_US);
            }
        }
    }

    #[test]
    fn more_free_and_more_idle_never_sleep_less(
        free in 0u64..1 << 30,
        more in 0u64..1 << 30,
        idle in 0u32..10,
    ) {
        let sleep = watch_interval_us(Bytes::new(free), Bytes::ZERO, idle);
        prop_assert!(sleep <= watch_interval_us(Bytes::new(free + more), Bytes::ZERO, idle));
        prop_assert!(sleep <= watch_interval_us(Bytes::new(free), Bytes::ZERO, idle + 1));
    }
}

/// The sleeps of a process that has no engine and does not grow.
fn small(budget: Bytes) -> impl Iterator<Item = (u32, u32)> {
    let (mut slept, mut quiet) = (SLEEP_GROWING_US, 0);
    std::iter::repeat_with(move || {
        quiet += slept;
        slept = watch_interval_of_small_us(budget, slept, quiet);
        (quiet, slept)
    })
}

#[test]
fn a_small_process_that_fills_after_a_pause_is_seen_before_it_exceeds_a_small_budget() {
    for (quiet_us, slept_us) in small(Bytes::mib(64)).take_while(|(quiet, _)| *quiet < 100_000) {
        // Two GiB/s by one thread in 4 KiB pages, and an eighth of the budget beforehand.
        let appears = u64::from(slept_us) * (2 << 30) / 1_000_000;
        assert!(appears <= Bytes::mib(32).get(), "{slept_us} after {quiet_us}");
    }
}

#[test]
fn a_small_process_sleeps_long_in_the_end_and_soon_with_a_large_budget() {
    let looks = |budget| small(budget).take_while(|(_, slept)| *slept < SLEEP_SMALL_MOST_US).count();
    assert_eq!((looks(Bytes::gib(1)), looks(Bytes::mib(64))), (4, 29));
    assert_eq!(watch_interval_of_small_us(Bytes::ZERO, 0, 0), SLEEP_GROWING_US);
    assert_eq!(watch_interval_of_small_us(Bytes::gib(1), u32::MAX, u32::MAX), SLEEP_SMALL_MOST_US);
}

#[test]
fn the_sleep_of_an_idle_process_doubles() {
    let sleeps = [0, 1, 2, 3, 4, 5, u32::MAX].map(|idle| watch_interval_us(Bytes::gib(1), Bytes::ZERO, idle));
    assert_eq!(sleeps, [2_000, 2_000, 4_000, 8_000, 16_000, 20_000, 20_000]);
}

#[test]
fn only_an_idle_member_sleeps_long_with_little_free() {
    let sleep = |growth, idle| watch_interval_of_member_us(Bytes::mib(1), Bytes::new(growth), idle);
    assert_eq!(sleep(0, IDLE_MEMBER_LOOKS), SLEEP_IDLE_MEMBER_US);
    assert_eq!(sleep(0, IDLE_MEMBER_LOOKS - 1), SLEEP_LEAST_US);
    assert_eq!(sleep(4096, u32::MAX), SLEEP_LEAST_US);
}

#[test]
fn growth_ends_the_long_sleep_at_once() {
    assert_eq!(watch_interval_us(Bytes::gib(1), Bytes::new(4096), 100), SLEEP_ROOMY_US);
    assert_eq!(watch_interval_us(Bytes::mib(64), Bytes::new(4096), 100), SLEEP_GROWING_US);
}

#[test]
fn at_any_low_watermark_the_sleep_is_at_most_two_milliseconds() {
    assert!(watch_interval_us(Bytes::mib(32), Bytes::ZERO, u32::MAX) <= SLEEP_GROWING_US);
    assert_eq!(watch_interval_us(Bytes::ZERO, Bytes::ZERO, u32::MAX), SLEEP_LEAST_US);
}
