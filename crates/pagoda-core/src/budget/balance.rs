//! The division of a budget between pages as the program has them and compressed pages, where cold
//! ones can go to a file.
//!
//! Compressed memory holds more, and costs a fault to use; a page in the file costs ten faults. The
//! best division is where both ends are worth the same: a byte more for resident pages would save
//! the refaults of those that left last, and a byte less for compressed ones would send the coldest
//! to the file. Both rates are measured next to the boundary, by the distance of refaults as in the
//! kernel's `workingset.c`: by how much left memory since the page did. A program whose working set
//! nearly fits gets it; one that touches everything alike keeps as much compressed as there can be.
//! What a byte less is worth shows only once some of it is in the file. So the first step is small:
//! were it wrong, each page of it would cost a slow fault or two until it is back.
//! This module must never measure: the caller passes counts and sizes.

/// All of the store's limit.
pub const WHOLE: u64 = 256;

/// The least part of it: an eighth. Below that most of the store is on its way to the file.
pub const LEAST: u64 = WHOLE / 8;

/// A step is at most this part of the share.
const STEP: u64 = 8;

/// The first step down. Each one that nothing speaks against is followed by one twice as large.
const FIRST_STEP: u64 = WHOLE / 64;

/// How long a step down has to have its effect: the pages that went to the file come back, or not.
const SETTLE_NS: u64 = 200_000_000;

/// The least time of refaults that tells enough: a hundredth of the time between two looks.
const NEAR_LEAST_NS: f64 = 1_000_000.0;

/// The time of near refaults from which on the share is lowered although it is not used up: a fifth
/// of the time between two looks.
const NEAR_MUCH_NS: f64 = 20_000_000.0;

/// Faults at the edge that tell enough.
const EDGE_LEAST: u64 = 8;

/// The assumed cost of a fault from the file until one was seen.
const FILE_NS: f64 = 200_000.0;

/// The share is lowered if a resident byte is worth so many times a compressed one. A refault that
/// came soon would have been a hit if the least recently used page had left; of pages that leave in
/// the order of their coming about a third would have been. And a page that goes to the file is
/// written, by a thread whose running makes each move an interrupt.
const MARGIN: f64 = 6.0;

/// How long the share is not lowered after it had to be raised, at first and at most.
const BACKOFF_NS: u64 = 500_000_000;
const BACKOFF_MOST_NS: u64 = 64_000_000_000;

/// The faults since the last look, and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refaults {
    /// Faults on compressed pages.
    pub stored: u64,
    /// Their time, in nanoseconds.
    pub stored_ns: u64,
    /// Of them, those with at most `near_bytes` that left memory after the page.
    pub near: u64,
    /// The same of pages in the file.
    pub near_spilled: u64,
    /// See `near`.
    pub near_bytes: u64,
    /// Faults on pages in the file.
    pub spilled: u64,
    /// Their time, in nanoseconds.
    pub spilled_ns: u64,
    /// Of them, those with at most `edge_bytes` that went to the file after the page.
    pub edge: u64,
    /// See `edge`; compressed.
    pub edge_bytes: u64,
}

impl Refaults {
    /// The counts since `before`, with the distances of now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            stored: self.stored - before.stored,
            stored_ns: self.stored_ns - before.stored_ns,
            near: self.near - before.near,
            near_spilled: self.near_spilled - before.near_spilled,
            spilled: self.spilled - before.spilled,
            spilled_ns: self.spilled_ns - before.spilled_ns,
            edge: self.edge - before.edge,
            ..*self
        }
    }
}

/// The share of the compressed pages' limit that they may use now.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    parts: u64,
    /// The next step down.
    step: u64,
    backoff_ns: u64,
    not_before_ns: u64,
    settled_ns: u64,
    /// It was lowered since it was last raised.
    is_lowered: bool,
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            parts: WHOLE,
            step: FIRST_STEP,
            backoff_ns: BACKOFF_NS,
            not_before_ns: 0,
            settled_ns: 0,
            is_lowered: false,
        }
    }
}

impl Balance {
    /// Nothing can go to the file: it is full, say. The share is all of the limit, and stays so for
    /// a while.
    pub fn can_not_spill(&mut self, now_ns: u64) -> u64 {
        self.parts = WHOLE;
        self.not_before_ns = now_ns.saturating_add(BACKOFF_MOST_NS);
        self.parts
    }

    /// The share from now on, in parts of [`WHOLE`], of which compressed pages use `used` now.
    pub fn look(&mut self, seen: &Refaults, used: u64, now_ns: u64) -> u64 {
        let mean = |ns: u64, count: u64| (count > 0).then(|| ns as f64 / count as f64);
        let stored_ns = mean(seen.stored_ns, seen.stored).unwrap_or_default();
        let spilled_ns = mean(seen.spilled_ns, seen.spilled).unwrap_or(FILE_NS);
        // Nanoseconds for each byte.
        let near_ns = seen.near as f64 * stored_ns + seen.near_spilled as f64 * spilled_ns;
        let gain = near_ns / seen.near_bytes.max(1) as f64;
        let loss = seen.edge as f64 * (spilled_ns - stored_ns).max(0.0) / seen.edge_bytes.max(1) as f64;
        if seen.edge >= EDGE_LEAST && loss > gain && self.parts < WHOLE {
            self.parts = WHOLE.min(self.parts + self.parts.div_ceil(STEP));
            self.step = FIRST_STEP;
            self.not_before_ns = now_ns.saturating_add(self.backoff_ns);
            // Several steps up may answer one down.
            if std::mem::take(&mut self.is_lowered) {
                self.backoff_ns = BACKOFF_MOST_NS.min(self.backoff_ns * 2);
            }
        } else if near_ns >= NEAR_LEAST_NS
            && gain > MARGIN * loss
            && self.parts > LEAST
            && now_ns >= self.not_before_ns.max(self.settled_ns)
            && self.may_lower(seen, used, near_ns)
        {
            let parts = self.parts.min(used);
            self.parts = LEAST.max(parts - self.step.min(parts / STEP));
            self.step = (2 * self.step).min(WHOLE);
            self.settled_ns = now_ns.saturating_add(SETTLE_NS);
            self.is_lowered = true;
            // The second step in this direction that nothing spoke against.
            if now_ns >= self.not_before_ns.saturating_add(self.backoff_ns) {
                self.backoff_ns = BACKOFF_NS;
            }
        }
        self.parts
    }

    /// Whether the last step has taken effect, and there is something to gain: pages wait for the
    /// share to be less, or are in the file while colder ones are compressed, or the program hardly
    /// does anything but wait for pages that left just before.
    fn may_lower(&self, seen: &Refaults, used: u64, near_ns: f64) -> bool {
        let is_full = used > self.parts - self.parts / STEP;
        let is_worth = is_full || seen.near_spilled >= EDGE_LEAST || near_ns >= NEAR_MUCH_NS;
        used <= self.parts + self.parts / (2 * STEP) && used > LEAST && is_worth
    }
}

#[cfg(test)]
#[path = "balance_test.rs"]
mod tests;
