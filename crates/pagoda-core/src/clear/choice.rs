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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HUGE: u32 = 512;

    /// How many of `clears` went past the cache, on a machine where a page takes so long each way.
    fn streamed(choice: &mut Choice, others: u32, clears: u32, streaming_ns: u64, cached_ns: u64) -> u32 {
        let one = |_| {
            let order = choice.order(HUGE, others);
            let page_ns = if order == Order::Streaming { streaming_ns } else { cached_ns };
            choice.note(order, HUGE, others, page_ns * u64::from(HUGE));
            u32::from(order == Order::Streaming)
        };
        (0..clears).map(one).sum()
    }

    #[test]
    fn past_the_cache_unless_that_is_slower_here() {
        let clears = 40 * TRIAL;
        assert_eq!(streamed(&mut Choice::default(), 0, clears, 60, 150), clears - 40);
        // A small loss does not justify evicting other threads' cache lines.
        assert_eq!(streamed(&mut Choice::default(), 0, clears, 160, 150), clears - 40);
        let few = streamed(&mut Choice::default(), 0, clears, 300, 150);
        assert!(few < 2 * TRIAL + 40, "{few} of {clears}");
    }

    #[test]
    fn a_crowd_is_judged_by_itself_and_the_judgement_follows_the_measurements() {
        let mut choice = Choice::default();
        streamed(&mut choice, 3, 3 * TRIAL, 500, 100);
        assert_eq!(choice.crowded.usual(), Order::Neighbourhood);
        streamed(&mut choice, 0, 3 * TRIAL, 60, 150);
        assert_eq!((choice.alone.usual(), choice.crowded.usual()), (Order::Streaming, Order::Neighbourhood));
        // The cause of the slowness is over, and each trial shows it.
        streamed(&mut choice, 1, 24 * TRIAL, 60, 100);
        assert_eq!(choice.crowded.usual(), Order::Streaming);
    }

    #[test]
    fn a_frame_of_a_neighbourhood_is_cleared_into_the_cache() {
        let mut choice = Choice::default();
        for pages in [1, 4, 16, 2 * RADIUS_PAGES + 1] {
            assert_eq!(choice.order(pages, 0), Order::Neighbourhood);
        }
        assert_eq!(choice.order(2 * RADIUS_PAGES + 2, 0), Order::Streaming);
    }

    #[test]
    fn a_thread_that_lost_its_processor_within_a_clear_is_not_taken_for_slow() {
        let mut choice = Choice::default();
        streamed(&mut choice, 0, 2 * TRIAL, 60, 150);
        choice.note(Order::Streaming, HUGE, 0, 40_000_000);
        assert_eq!(choice.order(HUGE, 0), Order::Streaming);
    }

    proptest! {
        #[test]
        fn any_times_leave_both_ways_tried(
            times in prop::collection::vec((0u64..1 << 40, 0u32..5, 1u32..1 << 18), 2 * TRIAL as usize..600)
        ) {
            let mut choice = Choice::default();
            let mut seen = [0; 2];
            for (ns, others, pages) in times.into_iter().map(|(ns, others, pages)| (ns, others.min(1), pages + 17)) {
                let order = choice.order(pages, others);
                prop_assert!(matches!(order, Order::Streaming | Order::Neighbourhood));
                choice.note(order, pages, others, ns);
                seen[usize::from(order == Order::Streaming)] += 1;
            }
            prop_assert!(seen[0] > 0 && seen[1] > 0);
        }
    }
}
