//! A sequential thread, so that pages above it are filled before it touches them, beside one that
//! writes, pages out and discards just there: each reads only its own last write.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use pagoda::{BasePage, Bytes, Manager, ManagerBuilder, Region};
use pagoda_core::page::OS_PAGE;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::EndsWith;

const PAGES: usize = (16 << 20) / OS_PAGE;
/// So far above the other thread at most the second one has its pages.
const AHEAD_PAGES: usize = 600;

/// One page in 61 is the second thread's: at another place of each base page.
fn is_second(page: usize) -> bool {
    page % 61 == 7
}

fn read(region: &Region, page: usize) -> u64 {
    let mut word = [0; 8];
    region.read_at(page * OS_PAGE, &mut word).expect("read");
    u64::from_ne_bytes(word)
}

fn write(region: &Region, page: usize, word: u64) {
    region.write_words(page * OS_PAGE, &word.to_ne_bytes()).expect("written");
}

/// Goes upwards through all pages but the second thread's, and through its own writes once more;
/// then discards them and begins anew.
fn go_upwards(region: &Region, at: &AtomicUsize) {
    for round in 1..=length(4, 6u64) {
        let own = || (0..PAGES).filter(|page| !is_second(*page));
        for page in own() {
            at.store(page, Ordering::Relaxed);
            assert_eq!(read(region, page), 0, "page {page} before it is written, round {round}");
            write(region, page, round << 32 | page as u64);
        }
        for page in own() {
            assert_eq!(read(region, page), round << 32 | page as u64, "page {page}, round {round}");
        }
        for page in own() {
            region.discard(page * OS_PAGE, OS_PAGE).expect("discarded");
        }
    }
}

/// Writes, pages out and discards its pages above where the other is, until that has ended.
fn stir(region: &Region, at: &AtomicUsize, over: &AtomicBool, seed: u64) {
    let mut random = Random::new(seed, 0);
    let mut shadow = vec![0; PAGES];
    while !over.load(Ordering::Relaxed) {
        let above = at.load(Ordering::Relaxed) + random.below(AHEAD_PAGES);
        let Some(page) = (above..PAGES).find(|page| is_second(*page)) else { continue };
        assert_eq!(read(region, page), shadow[page], "page {page}");
        match random.below(4) {
            0 => region.page_out(page * OS_PAGE, OS_PAGE).expect("room"),
            1 => {
                region.discard(page * OS_PAGE, OS_PAGE).expect("discarded");
                shadow[page] = 0;
            }
            _ => {
                shadow[page] = random.stamp();
                write(region, page, shadow[page]);
            }
        }
        assert_eq!(read(region, page), shadow[page], "page {page}");
    }
    for page in (0..PAGES).filter(|page| is_second(*page)) {
        assert_eq!(read(region, page), shadow[page], "page {page} in the end");
    }
}

#[test]
fn pages_filled_above_a_stream_never_show_another_threads_discarded_content() {
    if skip_without_moves("fault-around beside discards") {
        return;
    }
    for base in [None, Some(BasePage::K64), Some(BasePage::K4)] {
        for seed in runs(1) {
            let builder = Manager::builder().budget(Bytes::mib(128)).user_mode_only(true);
            let manager =
                base.into_iter().fold(builder, ManagerBuilder::base_page).build().expect("a manager");
            let region = manager.region(Bytes::new((PAGES * OS_PAGE) as u64)).create().expect("a region");
            let (at, over) = (AtomicUsize::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                let second = scope.spawn(|| stir(&region, &at, &over, seed));
                let ends = EndsWith(&over);
                go_upwards(&region, &at);
                drop(ends);
                second.join().expect("it read its own writes");
            });
            let stats = manager.stats();
            assert!(
                stats.filled_around > 0 && stats.evictions > 0 && stats.events_remove > 0,
                "{base:?}: {stats:?}"
            );
        }
    }
}
