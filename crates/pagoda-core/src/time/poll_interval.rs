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
#[path = "poll_interval_test.rs"]
mod tests;
