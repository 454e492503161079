use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;

use super::*;

const PAGE: usize = 64 << 10;
const START: usize = 1 << 30;

/// The last faults, as a handler keeps them.
struct History(VecDeque<Window>);

impl History {
    fn new() -> Self {
        Self((0..32).map(|_| Window::of_word(0)).collect())
    }

    fn fault(&mut self, address: usize, came_whole: bool) -> Extent {
        let at = GranuleAt::new(address, PAGE);
        let extent = extent(at, self.0.make_contiguous());
        self.0.pop_back();
        self.0.push_front(Window::new(at, extent, came_whole));
        extent
    }
}

fn extents(addresses: impl IntoIterator<Item = usize>) -> Vec<Extent> {
    let mut history = History::new();
    addresses.into_iter().map(|address| history.fault(address, false)).collect()
}

/// The faults of a reader of each granule, which faults where one is missing.
fn of_reader(granules: impl Iterator<Item = usize>) -> Vec<Extent> {
    let (mut history, mut there, mut seen) = (History::new(), HashSet::new(), Vec::new());
    for granule in granules {
        if there.contains(&granule) {
            continue;
        }
        let extent = history.fault(granule * OS_PAGE, false);
        let order = if let Extent::Granules(order) = extent { order } else { WHOLE_ORDER };
        let first = granule >> order << order;
        there.extend(first..first + (1 << order));
        seen.push(extent);
    }
    seen
}

/// The extents of faults on or beside one page.
const GROWS: [Extent; 5] =
    [Extent::Granules(0), Extent::Granules(1), Extent::Granules(2), Extent::Granules(3), Extent::Page];

#[test]
fn a_sequential_reader_gets_more_each_time_and_then_readahead() {
    for (seen, then) in
        [(of_reader(1600..1664), Extent::Onwards), (of_reader((1600..1664).rev()), Extent::Downwards)]
    {
        let (first, rest) = seen.split_at(GROWS.len());
        assert_eq!(first, GROWS);
        assert!(!rest.is_empty() && rest.iter().all(|extent| *extent == then), "{rest:?}");
    }
}

#[test]
fn walks_down_columns_get_a_granule_a_row() {
    for row_bytes in [16 << 10, 20 << 10, 24_000, 40_000, 63 << 10, 100_000] {
        for walks in 1..=3 {
            let place = |walk: usize, row: usize| START + (walk << 26) + row * row_bytes;
            let rows = (0..300).flat_map(|row| (0..walks).map(move |walk| place(walk, row)));
            for seen in [extents(rows.clone()), extents(rows.rev())] {
                let alone = seen[3 * walks..].iter().all(|extent| *extent == Extent::Granules(0));
                assert!(alone, "{walks} of {row_bytes}: {seen:?}");
            }
        }
    }
}

#[test]
fn a_page_that_is_used_all_over_comes_with_few_faults() {
    assert_eq!(extents([2, 13, 6, 10, 0].map(|granule| START + granule * OS_PAGE)), GROWS);
}

#[test]
fn first_touches_of_whole_pages_lead_to_readahead() {
    let mut history = History::new();
    let seen = [0, 1, 2, 3, 4, 5].map(|page| history.fault(START + page * PAGE, true));
    assert_eq!(seen[..5], GROWS);
    assert_eq!(seen[5], Extent::Onwards);
}

proptest! {
    #[test]
    fn a_window_comes_back_from_its_word(
        address in 0usize..1 << 47, page in 12u32..22, order in 0u32..4, came_whole: bool
    ) {
        let at = GranuleAt::new(address, 1 << page);
        for extent in [Extent::Granules(order), Extent::Page] {
            let window = Window::new(at, extent, came_whole);
            prop_assert_eq!(Window::of_word(window.word()), window);
        }
    }
}
