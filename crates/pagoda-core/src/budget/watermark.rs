//! How much of a zone's budget is kept free, and when reclaim starts and stops.
//!
//! ```text
//!   0 ......... min ......... low ............... high ................ budget     free memory
//!   | faults wait | reclaim runs  | runs on if it ran |  nothing to do    |
//! ```
//! Reclaim starts below `low` and runs until `high`, so that it works in batches and not page by
//! page. Below `min` only a fault that is already being served may take a frame. This module must
//! never act: it names amounts, others move pages.

use std::fmt;

use crate::page::BasePage;
use crate::size::Bytes;

/// The most threads that serve faults of one zone, and so the most frames that faults hold in
/// flight. The cost of a fault is a wake-up rather than computing, and each handler reads many at
/// once: eight serve more than one address space can take.
pub const HANDLERS_MAX: u32 = 8;

/// The least `min`: a frame for each of eight handlers at 64 KiB base pages, and as much again
/// because the kernel's count of anonymous memory lags by 32 OS pages or more for each processor.
const MIN_LEAST: Bytes = Bytes::mib(1);

/// `low` as a share of the budget: from 128 MiB on, a program at its budget leaves 1/64 to 1/32 of
/// it idle.
const LOW_SHARE: u64 = 64;

/// The least `low`: a program that fills at 1 GiB/s takes this much between two looks, 2 ms apart.
const LOW_LEAST: Bytes = Bytes::mib(2);

/// The most `low`: at 8 GiB/s (first touch with huge pages, the fastest there is) 4 ms, two looks.
/// More only lies idle.
const LOW_MOST: Bytes = Bytes::mib(32);

/// Free memory may cost a budget no more than this share of it.
const HIGH_SHARE_MOST: u64 = 4;

/// Amounts of free memory in a zone. Always `min <= low <= high <= budget / 4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it, only faults in flight may take frames.
    pub min: Bytes,
    /// Below it, reclaim starts.
    pub low: Bytes,
    /// At it, reclaim stops.
    pub high: Bytes,
    budget: Bytes,
}

/// A budget without room for faults in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetTooSmall {
    /// The requested budget.
    pub budget: Bytes,
    /// The least that would do.
    pub least: Bytes,
}

impl fmt::Display for BudgetTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, least } = self;
        write!(f, "a budget of {budget} is below what serving faults needs; give at least {least}")
    }
}

impl std::error::Error for BudgetTooSmall {}

impl Watermarks {
    /// The watermarks of a zone with `budget` bytes in `base` pages, whose faults `handlers`
    /// threads serve.
    ///
    /// Fails if the budget is below [`Watermarks::least_budget`]. Panics if `handlers` is 0 or
    /// above [`HANDLERS_MAX`].
    pub fn new(budget: Bytes, base: BasePage, handlers: u32) -> Result<Self, BudgetTooSmall> {
        let least = Self::least_budget(base, handlers);
        if budget < least {
            return Err(BudgetTooSmall { budget, least });
        }
        let min = Self::min_of(base, handlers);
        let low = Bytes::new(budget.get() / LOW_SHARE).clamp(LOW_LEAST, LOW_MOST).max(min);
        Ok(Self { min, low, high: low.saturating_add(low), budget })
    }

    /// The watermarks of a part of a budget, which may be less than [`Watermarks::least_budget`]:
    /// an idle process's, or one of many processes in a small budget. A share below
    /// [`Watermarks::least_share`] is raised to it. The smaller the share, the more often faults
    /// wait for reclaim. Panics if `handlers` is 0 or above [`HANDLERS_MAX`].
    #[must_use]
    pub fn of_share(share: Bytes, base: BasePage, handlers: u32) -> Self {
        if let Ok(marks) = Self::new(share, base, handlers) {
            return marks;
        }
        let budget = share.max(Self::least_share(base, handlers));
        let high = Bytes::new(budget.get() / HIGH_SHARE_MOST);
        let low = Bytes::new(high.get() / 2);
        Self { min: Self::min_of(base, handlers).min(low), low, high, budget }
    }

    /// The smallest share of a budget that faults can be served in: 1 MiB for two handlers of 64
    /// KiB base pages. Panics if `handlers` is 0 or above [`HANDLERS_MAX`].
    #[must_use]
    pub fn least_share(base: BasePage, handlers: u32) -> Bytes {
        Bytes::new(Self::frames_in_flight(base, handlers) * 2 * HIGH_SHARE_MOST)
    }

    /// The smallest budget whose `high` is no more than a quarter of it: 16 MiB, or 128 MiB for
    /// eight handlers of 2 MiB base pages. Panics if `handlers` is 0 or above [`HANDLERS_MAX`].
    #[must_use]
    pub fn least_budget(base: BasePage, handlers: u32) -> Bytes {
        // `high` is twice `low`, and `low` is never below `min` or its own least.
        let low = Self::min_of(base, handlers).max(LOW_LEAST);
        Bytes::new(low.get() * 2 * HIGH_SHARE_MOST)
    }

    fn min_of(base: BasePage, handlers: u32) -> Bytes {
        Bytes::new(Self::frames_in_flight(base, handlers)).max(MIN_LEAST)
    }

    /// A frame for each handler: it elects one installer for a page and serves one page at a time.
    fn frames_in_flight(base: BasePage, handlers: u32) -> u64 {
        assert!(
            (1..=HANDLERS_MAX).contains(&handlers),
            "{handlers} handlers are not within 1..={HANDLERS_MAX}"
        );
        u64::from(handlers) * base.bytes() as u64
    }

    /// The most that the zone may hold.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// The free memory while `held` bytes are in use; zero if they exceed the budget.
    #[must_use]
    pub fn free(&self, held: Bytes) -> Bytes {
        self.budget.saturating_sub(held)
    }

    /// How `free` bytes are to be judged.
    #[must_use]
    pub fn level(&self, free: Bytes) -> Level {
        match free {
            free if free < self.min => Level::BelowMin,
            free if free < self.low => Level::Low,
            _ => Level::Plenty,
        }
    }

    /// The memory that reclaim has to take to lift `free` to `high`; zero if it is there.
    ///
    /// `free` can't say by how much a budget is exceeded: where that can be, ask
    /// [`Watermarks::reclaim_target_held`].
    #[must_use]
    pub fn reclaim_target(&self, free: Bytes) -> Bytes {
        self.high.saturating_sub(free)
    }

    /// The memory that reclaim has to take from `held` to leave `high` free; it counts the excess
    /// over the budget as well.
    #[must_use]
    pub fn reclaim_target_held(&self, held: Bytes) -> Bytes {
        held.saturating_sub(self.budget.saturating_sub(self.high))
    }
}

/// How much is free, seen from the watermarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Less than `min`: only faults in flight may take frames.
    BelowMin,
    /// Less than `low`: reclaim has to run.
    Low,
    /// `low` or more.
    Plenty,
}

/// Whether reclaim is to run: from the moment free memory is below `low` until it has reached
/// `high`.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    watermarks: Watermarks,
    on: bool,
}

impl Pressure {
    /// No pressure yet.
    #[must_use]
    pub fn new(watermarks: Watermarks) -> Self {
        Self { watermarks, on: false }
    }

    /// Goes by other watermarks from now on: the budget changed.
    pub fn adjust(&mut self, watermarks: Watermarks) {
        self.watermarks = watermarks;
    }

    /// Takes note of the free memory now. Returns whether reclaim is to run.
    pub fn update(&mut self, free: Bytes) -> bool {
        self.on = free < if self.on { self.watermarks.high } else { self.watermarks.low };
        self.on
    }

    /// The result of the last update.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }
}

#[cfg(test)]
#[path = "watermark_test.rs"]
mod tests;
