//! Adding up the counters of all places to those of a tree.
//!
//! A place without an owner has totals and peaks of its earlier owners, and its gauges count for
//! none. This module must never count a gauge of a place whose owner has not cleared it.

use pagoda_core::size::Bytes;

use crate::stats::counters::{COUNT, Counter, Kind, Stats, Status};

/// The sums of [`Tree::totals`](super::Tree::totals), place by place.
pub(super) struct Sums {
    values: [u64; COUNT],
    unmanaged: u64,
}

impl Default for Sums {
    fn default() -> Self {
        Self { values: [0; COUNT], unmanaged: 0 }
    }
}

impl Sums {
    /// Adds a place; `ready`: it has an owner, which has cleared its gauges.
    pub(super) fn add(&mut self, ready: bool, value: impl Fn(Counter) -> u64) {
        for counter in Counter::ALL {
            let (sum, value) = (&mut self.values[counter as usize], value(counter));
            match counter.kind() {
                Kind::Total => *sum = sum.saturating_add(value),
                Kind::Gauge if ready => *sum = sum.saturating_add(value),
                Kind::Peak => *sum = (*sum).max(value),
                Kind::Gauge | Kind::Own => {}
            }
        }
        self.unmanaged += u64::from(ready && value(Counter::Status) == Status::Unmanaged as u64);
    }

    /// With the counters that only the header knows, `unmanaged_before` of which have ended or
    /// never joined.
    pub(super) fn of_tree(
        self,
        first: &Stats,
        budget: Bytes,
        base_page_bytes: u64,
        unmanaged_before: u64,
    ) -> Stats {
        let first = first.fields();
        let mut totals = Stats::of(|counter| match counter {
            Counter::BudgetBytes => budget.get(),
            Counter::BasePageBytes => base_page_bytes,
            own if own.kind() == Kind::Own => first[own as usize].1,
            counter => self.values[counter as usize],
        });
        let unmanaged = unmanaged_before.saturating_add(self.unmanaged);
        totals.children_unmanaged = totals.children_unmanaged.saturating_add(unmanaged);
        totals
    }
}
