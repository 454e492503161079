use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const PAGE: Bytes = Bytes::kib(64);

#[test]
fn a_stream_grows_up_to_two_mebibytes_and_ends_with_the_file() {
    let mut ahead = ReadAhead::new(PAGE, 100);
    let mut windows = Vec::new();
    let mut page = 0;
    loop {
        let window = ahead.fault(page);
        if window.is_empty() {
            break;
        }
        page = window.start;
        windows.push((window.start, window.end - window.start));
    }
    assert_eq!(windows, [(1, 2), (3, 4), (7, 8), (15, 16), (31, 32), (63, 32), (95, 5)]);
}

#[test]
fn a_jump_gets_nothing_until_it_goes_on() {
    let mut ahead = ReadAhead::new(PAGE, 1000);
    assert!(ahead.fault(500).is_empty() && ahead.fault(200).is_empty() && ahead.fault(502).is_empty());
    assert_eq!(ahead.fault(501), 502..504);
    assert_eq!(ahead.fault(502), 504..508);
    // Another place begins anew, and the first goes on.
    assert!(ahead.fault(200).is_empty());
    assert_eq!((ahead.fault(201), ahead.fault(504)), (202..204, 508..516));
}

#[test]
fn a_reader_faster_than_the_disk_orders_nothing_twice() {
    let mut ahead = ReadAhead::new(PAGE, 1000);
    assert_eq!(ahead.fault(0), 1..3);
    assert!(ahead.fault(2).is_empty(), "it is on its way");
    assert_eq!(ahead.fault(3), 4..8);
}

#[test]
fn a_reader_is_known_by_where_it_began() {
    let mut ahead = ReadAhead::new(PAGE, 1000);
    let mut window = ahead.fault(0);
    assert!(ahead.fault(500).is_empty());
    let mut other = ahead.fault(501);
    for _ in 0..4 {
        assert_eq!((ahead.begin_of(&window), ahead.begin_of(&other)), (Some(0), Some(501)));
        window = ahead.fault(window.start);
        other = ahead.fault(other.start);
    }
    assert_eq!(ahead.begin_of(&(700..732)), None);
}

#[test]
fn a_file_that_fits_is_kept_and_so_is_the_beginning_of_one_that_does_not() {
    let memory = Bytes::mib(64);
    let behind = |part: Range<u64>, pages| left_behind(&part, 0, (pages, PAGE), memory);
    assert!(behind(1000..1008, 1024).is_empty(), "it fits");
    // A quarter is 256 pages, and a page is left behind 128 pages later.
    assert!(behind(376..384, 1025).is_empty(), "{:?}", behind(376..384, 1025));
    assert_eq!((behind(380..388, 1025), behind(1000..1008, 1025)), (256..260, 872..880));
    assert!(left_behind(&(1000..1008), 0, (1025, PAGE), Bytes::mib(31)).is_empty(), "too little memory");
}

/// A reader by calls reports each page. The rest of the window that it is in was taken for the
/// beginning of another reader, with small windows of its own.
#[test]
fn a_reader_that_reports_each_page_is_one_reader() {
    let mut ahead = ReadAhead::new(PAGE, 1000);
    let windows: Vec<_> =
        (0..1000).map(|page| ahead.fault(page)).filter(|window| !window.is_empty()).collect();
    assert!(windows.windows(2).all(|two| two[0].end == two[1].start), "{windows:?}");
    assert_eq!((windows[0].start, windows.last().map(|window| window.end)), (1, Some(1000)));
    assert!(windows.len() < 40, "{windows:?}");
}

#[test]
fn random_readers_do_not_end_a_stream() {
    let mut ahead = ReadAhead::new(Bytes::kib(4), 1 << 20);
    let mut window = ahead.fault(0);
    for round in 0..100 {
        for i in 0..200u64 {
            assert!(ahead.fault(500_000 + (round * 200 + i) * 7).is_empty());
        }
        window = ahead.fault(window.start);
        assert!(!window.is_empty(), "round {round}");
    }
    assert_eq!(window.end - window.start, 512);
}

proptest! {
    #[test]
    fn nothing_is_ordered_beyond_the_end_nor_more_than_a_window(
        pages in 1u64..2000,
        kib in prop::sample::select(vec![4u64, 16, 64, 2048]),
        faults in prop::collection::vec((0u64..2000, any::<bool>()), 1..200)
    ) {
        let mut ahead = ReadAhead::new(Bytes::kib(kib), pages);
        let mut last = 0;
        for (page, goes_on) in faults {
            let page = if goes_on { last + 1 } else { page } % pages;
            let window = ahead.fault(page);
            prop_assert!(window.end <= pages && window.end - window.start <= (2048 / kib).max(1));
            prop_assert!(window.is_empty() || window.start > page);
            last = page;
        }
    }

    /// A reader of a file larger than memory holds its share and a ring of pages, and each page
    /// that is dropped was read.
    #[test]
    fn a_reader_never_has_more_than_its_share_nor_loses_a_page_before_it_is_read(
        kib in prop::sample::select(vec![4u64, 16, 64, 2048]),
        memory in prop::sample::select(vec![32u64, 64, 100, 256]),
        begin in 0u64..50
    ) {
        let (page, memory) = (Bytes::kib(kib), Bytes::mib(memory));
        let pages = 3 * memory.get() / page.get();
        let mut ahead = ReadAhead::new(page, pages);
        let mut there = BTreeSet::new();
        // The reader, on the page after the one that begins its stream.
        let mut at = begin;
        let mut marker = None;
        while at < pages {
            let is_missing = !there.contains(&at);
            if is_missing {
                there.insert(at);
            }
            if is_missing || marker == Some(at) {
                let window = ahead.fault(at);
                if let Some(begin) = ahead.begin_of(&window).filter(|_| !window.is_empty()) {
                    marker = Some(window.start);
                    for dropped in left_behind(&window, begin, (pages, page), memory) {
                        prop_assert!(dropped < at, "{dropped} is dropped and {at} is read");
                        there.remove(&dropped);
                    }
                    there.extend(window);
                }
            }
            let most = memory.get() / KEPT_SHARE + BEHIND.get() + WINDOW_MOST.get();
            prop_assert!(there.len() as u64 * page.get() <= most + 64 * page.get());
            at += 1;
        }
    }

    #[test]
    fn readers_side_by_side_get_each_page_once(count in 1usize..STREAMS, kib in prop::sample::select(vec![4u64, 64])) {
        // Far from each other: none is ever in another's way.
        let apart = 10_000;
        let pages = apart * count as u64;
        let mut ahead = ReadAhead::new(Bytes::kib(kib), pages);
        let (mut there, mut asked) = (BTreeSet::new(), 0);
        for step in 0..200 {
            for reader in 0..count as u64 {
                let page = reader * apart + step;
                let marks = ahead.streams.iter().any(|stream| stream.start == page);
                if there.contains(&page) && !marks {
                    continue;
                }
                asked += u64::from(!there.contains(&page));
                for page in ahead.fault(page) {
                    prop_assert!(there.insert(page), "page {page} was ordered before");
                }
            }
        }
        prop_assert!(asked <= 4 * count as u64, "{asked} pages were waited for");
    }
}
