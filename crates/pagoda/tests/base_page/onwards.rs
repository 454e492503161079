//! Regions in base pages of 64 KiB whose places of 2 MiB come as huge frames to a stream that
//! touches everything.

use pagoda::{BasePage, Bytes, Manager, ManagerBuilder, Region};
use pagoda_core::page::{HUGE_FRAME, OS_PAGE};
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PLACE_PAGES: usize = HUGE_FRAME / OS_PAGE;
const PAGE_WORDS: usize = OS_PAGE / 8;
const PLACES: usize = 16;

fn builder(budget: Bytes) -> ManagerBuilder {
    Manager::builder().budget(budget).user_mode_only(true)
}

fn region(manager: &Manager, places: usize) -> Region {
    manager.region(Bytes::new((places * HUGE_FRAME) as u64)).create().expect("a region")
}

/// The places that are huge pages.
fn huge_places(region: &Region) -> Vec<usize> {
    let start = region.as_ptr().addr();
    let mut scanner = PagemapScanner::new().expect("pagemap");
    let is_huge = |place: &usize| {
        let at = start + place * HUGE_FRAME;
        scanner.huge_bytes(at, at + HUGE_FRAME).expect("PAGEMAP_SCAN") == HUGE_FRAME
    };
    (0..region.len() / HUGE_FRAME).filter(is_huge).collect()
}

/// Writes a word of each page, which says which one it is.
fn write(region: &mut Region, pages: impl Iterator<Item = usize>, seed: usize) {
    let words = region.words_mut();
    pages.for_each(|page| words[page * PAGE_WORDS + page % PAGE_WORDS] = (page * 2 + seed) as u64 + 1);
}

/// That the pages are as they were written, and zero but for that.
fn check(region: &mut Region, pages: impl Iterator<Item = usize>, seed: usize) {
    let words = region.words_mut();
    for page in pages {
        let content = &words[page * PAGE_WORDS..][..PAGE_WORDS];
        let told: Vec<_> = content.iter().enumerate().filter(|(_, word)| **word != 0).collect();
        assert_eq!(told, [(page % PAGE_WORDS, &((page * 2 + seed) as u64 + 1))], "page {page}");
    }
}

#[test]
fn a_dense_stream_gets_most_places_whole_and_they_stay_right() {
    if skip_without_moves("huge frames around faults") {
        return;
    }
    // By density, and of a base page that was chosen.
    for base in [None, Some(BasePage::K64)] {
        let builder = base.into_iter().fold(builder(Bytes::mib(256)), ManagerBuilder::base_page);
        let manager = builder.build().expect("a manager");
        let mut region = region(&manager, PLACES);
        let all = || 0..PLACES * PLACE_PAGES;
        write(&mut region, all(), 0);
        let whole = [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15];
        assert_eq!(huge_places(&region), whole, "{base:?} {:?}", manager.stats());
        if base.is_some() {
            // The first place takes 1, 2, 4, 8 and 16 base pages and one, and behind its last come
            // three whole; so they do behind each fourth one, which is one fault.
            until("each fault is counted", || manager.stats().faults >= 6 + 3);
            assert_eq!((manager.stats().faults, manager.stats().faults_huge), (6 + 3, 0));
        }
        until("all is counted", || manager.stats().resident_bytes == region.len() as u64);
        check(&mut region, all(), 0);
        // A part of each is discarded, and all goes and comes back.
        for place in 0..PLACES {
            region.discard(place * HUGE_FRAME + 5 * OS_PAGE, 3 * OS_PAGE).expect("discarded");
        }
        let is_kept = |page: &usize| !(5..8).contains(&(page % PLACE_PAGES));
        until("all is out", || {
            region.page_out(0, region.len()).expect("room");
            manager.stats().resident_bytes == 0
        });
        check(&mut region, all().filter(is_kept), 0);
        let words = region.words_mut();
        for page in all().filter(|page| !is_kept(page)) {
            assert!(words[page * PAGE_WORDS..][..PAGE_WORDS].iter().all(|word| *word == 0), "page {page}");
        }
        let stats = manager.stats();
        assert!(stats.faults_stored > 0 && stats.huge_broken > 0, "{stats:?}");
        // A closed region keeps nothing.
        drop(region);
        until("all is given back", || manager.stats().resident_bytes == 0);
    }
}

#[test]
fn none_comes_without_fault_around_nor_to_a_reader_nor_to_a_sparse_stream() {
    if skip_without_moves("huge frames around faults") {
        return;
    }
    let alone =
        builder(Bytes::mib(256)).tune(|tuning| tuning.fault_around(false)).build().expect("a manager");
    let around = builder(Bytes::mib(256)).build().expect("a manager");
    let mut alone = (region(&alone, 8), alone);
    write(&mut alone.0, 0..8 * PLACE_PAGES, 0);
    assert_eq!(huge_places(&alone.0), []);

    let mut read = region(&around, 8);
    assert!(read.words_mut().iter().step_by(PAGE_WORDS).all(|word| *word == 0));
    assert_eq!(huge_places(&read), []);

    let mut part = region(&around, 8);
    write(&mut part, (0..8 * PLACE_PAGES).filter(|page| page % 16 < 4), 0);
    assert_eq!(huge_places(&part), []);
}

#[test]
fn beyond_the_budget_it_goes_and_comes_back_right() {
    if skip_without_moves("huge frames around faults") {
        return;
    }
    for seed in runs(3) {
        let budget = Bytes::mib(64);
        let manager = builder(budget).spill_to("/var/tmp", Bytes::mib(256)).build().expect("a manager");
        let mut region = region(&manager, 3 * 32);
        let all = || 0..3 * 32 * PLACE_PAGES;
        write(&mut region, all(), 0);
        check(&mut region, all(), 0);
        // Pages that are written again hold the last write, the rest is as before.
        let mut random = Random::new(seed, 0);
        let again: Vec<_> = all().map(|_| random.one_in(5)).collect();
        write(&mut region, all().filter(|page| again[*page]), 1);
        check(&mut region, all().filter(|page| again[*page]), 1);
        check(&mut region, all().filter(|page| !again[*page]), 0);
        let stats = manager.stats();
        assert!(stats.huge_moved_out > 8 && stats.faults_stored > 0, "{stats:?}");
        assert!(stats.anon_peak_bytes <= budget.get() + (16 << 20), "{} held", stats.anon_peak_bytes);
    }
}

#[test]
fn a_part_goes_alone_and_the_pages_around_it_stay() {
    if skip_without_moves("huge frames around faults") {
        return;
    }
    let manager = builder(Bytes::mib(64)).build().expect("a manager");
    let mut region = region(&manager, 4);
    let all = || 0..4 * PLACE_PAGES;
    write(&mut region, all(), 0);
    assert_eq!(huge_places(&region), [1, 2, 3]);
    until("all is counted", || manager.stats().resident_bytes == region.len() as u64);
    // From the last base page of one frame to the first of the next.
    let (from, len) = (2 * HUGE_FRAME - 20 * OS_PAGE, 30 * OS_PAGE);
    region.page_out(from, len).expect("room");
    let out = 3 * BasePage::K64.bytes();
    assert_eq!(manager.stats().resident_bytes, (region.len() - out) as u64);
    assert_eq!((huge_places(&region), manager.stats().stores), (vec![3], 3));
    region.discard(3 * HUGE_FRAME + OS_PAGE, OS_PAGE).expect("discarded");
    until("the discard is counted", || {
        manager.stats().resident_bytes <= (region.len() - out - OS_PAGE) as u64
    });
    let is_kept = |page: &usize| *page != 3 * PLACE_PAGES + 1;
    check(&mut region, all().filter(is_kept), 0);
    assert!(
        region.words_mut()[(3 * PLACE_PAGES + 1) * PAGE_WORDS..][..PAGE_WORDS].iter().all(|word| *word == 0)
    );
}
