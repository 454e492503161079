//! Which order a fault clears a frame in if the caller gave none: by the frame's size and by
//! measured clear times.
//!
//! Clearing past the cache was the quickest in our measurements, alone and under contention, and
//! leaves the cache to other threads. This module does not assume that it is so on this machine. It
//! records how long clears take, separately for a thread that clears alone and for several at once
//! (contention for memory shows there, whatever its source). Now and then it clears a frame into
//! the cache to compare. This module must never read a clock: the caller passes the time of each
//! clear.

use super::{Order, RADIUS_PAGES};

/// One clear in this many uses the other order, to compare: at two and a half times the time it
/// costs all of them 2%.
const TRIAL: u32 = 64;

/// Clearing into the cache is preferred only if it is quicker by one part in this: only the time of
/// a fault is recorded, not the cache misses of other threads afterwards.
const GAIN_LEAST: u64 = 8;

/// A clear has one part in this of the weight of the average: the last dozen or two dominate it.
const WEIGHT: u64 = 8;

/// A clear counts for at most this many times the average: a thread that lost its processor during
/// a clear has slept, and not cleared.
const OUTLIER: u64 = 4;

/// Recent clear times, in nanoseconds for each page; 0 before the first one.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    streaming: u64,
    cached: u64,
    clears: u32,
}

/// Chooses orders by measured clear times. Frames may be of any size.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice {
    alone: Rates,
    crowded: Rates,
}

impl Choice {
    /// The order for a frame of `pages`, while `others` are clearing, too.
    ///
    /// A frame no larger than its target's neighbourhood is cleared into the cache: all of it is
    /// about to be touched.
    pub fn order(&mut self, pages: u32, others: u32) -> Order {
        if pages <= 2 * RADIUS_PAGES + 1 {
            return Order::Neighbourhood;
        }
        let rates = self.rates(others);
        rates.clears = rates.clears.wrapping_add(1);
        let usual = rates.usual();
        match (rates.clears.is_multiple_of(TRIAL), usual) {
            (false, usual) => usual,
            (true, Order::Streaming) => Order::Neighbourhood,
            (true, _) => Order::Streaming,
        }
    }

    /// A frame of `pages` was cleared in `order` within `ns`, while `others` were clearing.
    pub fn note(&mut self, order: Order, pages: u32, others: u32, ns: u64) {
        let rates = self.rates(others);
        let remembered = match order {
            Order::Streaming => &mut rates.streaming,
            Order::Neighbourhood => &mut rates.cached,
            Order::Ascending | Order::Converge | Order::ReverseInPage => return,
        };
        let took = (ns / u64::from(pages.max(1))).max(1);
        *remembered = match *remembered {
            0 => took,
            before => (before * (WEIGHT - 1) + took.min(before * OUTLIER)).div_ceil(WEIGHT),
        };
    }

    fn rates(&mut self, others: u32) -> &mut Rates {
        if others == 0 { &mut self.alone } else { &mut self.crowded }
    }
}

impl Rates {
    fn usual(self) -> Order {
        let is_known = self.cached > 0 && self.streaming > 0;
        if is_known && self.cached + self.cached / GAIN_LEAST < self.streaming {
            Order::Neighbourhood
        } else {
            Order::Streaming
        }
    }
}

#[cfg(test)]
#[path = "choice_test.rs"]
mod tests;
