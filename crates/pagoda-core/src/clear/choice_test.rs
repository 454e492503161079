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
