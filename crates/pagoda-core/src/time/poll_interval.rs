//! Watch interval: how long the watcher of a process may sleep before its next look.
//!
//! Between two looks the watcher does not see the memory that a program takes natively. So the
//! sleep is bounded: at the fastest growth rate, half of the free memory must be left at the next
//! look. Within that bound the sleep grows with idleness, so that an idle program costs few
//! wake-ups. This module must never read a clock: the caller passes the findings of the last look.

use crate::size::Bytes;

/// The fastest assumed growth: first touch with huge pages by a program that does nothing else.
/// Measured at 7 to 8 GB/s, and at 11.5 on a quiet machine. At 11.5, a third of the free memory is
/// left at the next look instead of half.
pub const FASTEST_GROWTH_PER_S: Bytes = Bytes::gib(8);

/// The shortest sleep. A look costs 22 to 28 µs of processor time on a 2-core virtual machine, 20
/// of them for the wake-up: 2.5% of a processor at this pace. With nothing free, 8 MiB can appear
/// between two looks.
pub const SLEEP_LEAST_US: u32 = 1_000;

/// The longest sleep while the process grows and room gets short. Heaps and malloc's own mappings
/// grew by 8 to 40 MB in 20 ms. At this pace looks take 1.3% of a processor.
pub const SLEEP_GROWING_US: u32 = 2_000;

/// The same with so much room that half of it would last more than four times as long. Fewer looks
/// leave more processor time to the growing process.
pub const SLEEP_ROOMY_US: u32 = 5_000;

/// The longest sleep. Fifty looks a second, each 45 to 70 µs because the caches are cold, take 0.2
/// to 0.4% of a processor.
pub const SLEEP_MOST_US: u32 = 20_000;

/// The sleep before the next look, in µs, between [`SLEEP_LEAST_US`] and [`SLEEP_MOST_US`].
///
/// `free` is the rest of the budget, and `growth` the memory that the process took since the last
/// look. `idle_looks` counts consecutive looks without growth, including this one: from the second
/// on each doubles the sleep. Pressure needs no parameter: with 32 MiB free or less, the largest
/// low watermark, the bound by `free` is 2 ms or less.
#[must_use]
pub fn watch_interval_us(free: Bytes, growth: Bytes, idle_looks: u32) -> u32 {
    let wanted = if growth > Bytes::ZERO {
        (half_gone_us(free) / 4).clamp(SLEEP_GROWING_US, SLEEP_ROOMY_US)
    } else {
        // Four doublings are past the longest sleep already; the bound keeps the shift in its type.
        (SLEEP_GROWING_US << idle_looks.saturating_sub(1).min(4)).min(SLEEP_MOST_US)
    };
    wanted.min(half_gone_us(free)).max(SLEEP_LEAST_US)
}

/// The longest sleep of an idle member. Its small share does not tell how much room the tree has.
pub const SLEEP_IDLE_MEMBER_US: u32 = 10_000;

/// Consecutive looks without growth and without a fault after which a member of a tree is idle.
pub const IDLE_MEMBER_LOOKS: u32 = 32;

/// Like [`watch_interval_us`], for one process of several that share a budget.
///
/// An idle member keeps only a small share, which alone would demand a look every millisecond. With
/// the longer sleep, only its own speed bounds the memory it takes natively before the next look:
/// 10 to 20 MiB in 10 ms, as measured with heaps.
#[must_use]
pub fn watch_interval_of_member_us(free: Bytes, growth: Bytes, idle_looks: u32) -> u32 {
    if growth == Bytes::ZERO && idle_looks >= IDLE_MEMBER_LOOKS {
        return SLEEP_IDLE_MEMBER_US;
    }
    watch_interval_us(free, growth, idle_looks)
}

/// The longest sleep of a process that has no engine yet: twenty looks a second cost a twentieth of
/// a percent of a processor.
pub const SLEEP_SMALL_MOST_US: u32 = 48_000;

/// The sleep after that of `slept_us` in a process that has no engine yet, and has not grown for
/// `quiet_us`.
///
/// It doubles up to the time in which half of the budget can be gone. Beyond, up to
/// [`SLEEP_SMALL_MOST_US`], it is an eighth of the quiet time: a program that fills its memory does
/// so soon after its start, or goes on after a short pause.
#[must_use]
pub fn watch_interval_of_small_us(budget: Bytes, slept_us: u32, quiet_us: u32) -> u32 {
    let most = half_gone_us(budget).max(quiet_us / 8).min(SLEEP_SMALL_MOST_US);
    slept_us.saturating_mul(2).min(most).max(SLEEP_GROWING_US)
}

/// The time in which the fastest program uses up half of `free`.
fn half_gone_us(free: Bytes) -> u32 {
    let us = u128::from(free.get() / 2) * 1_000_000 / u128::from(FASTEST_GROWTH_PER_S.get());
    u32::try_from(us).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
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
        let sleeps =
            [0, 1, 2, 3, 4, 5, u32::MAX].map(|idle| watch_interval_us(Bytes::gib(1), Bytes::ZERO, idle));
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
}
