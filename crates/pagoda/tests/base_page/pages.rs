//! Shared by tests of base pages: pages that hold their number, and stats in which all pages that
//! came in are counted.

use pagoda::stats::counters::Stats;
use pagoda::{Manager, Region};
use pagoda_linux::testing::wait::until;

pub const PAGE_WORDS: usize = 512;

/// The stats once so much is resident, and every fault is counted: a handler counts its pages after
/// it woke the faulting thread.
pub fn counted(manager: &Manager, resident_bytes: usize) -> Stats {
    let mut stats = manager.stats();
    until("all pages that came in are counted", || {
        stats = manager.stats();
        stats.resident_bytes >= resident_bytes as u64 && stats.faults_in_service == 0
    });
    stats
}

/// Adds its number to a word of each page.
pub fn write(region: &mut Region, pages: impl IntoIterator<Item = usize>) {
    let words = region.words_mut();
    pages.into_iter().for_each(|page| words[page * PAGE_WORDS + page % PAGE_WORDS] += page as u64 + 1);
}

/// Each page says its number where it was written, and the rest of it is zero.
pub fn check(region: &mut Region, pages: impl IntoIterator<Item = usize>) {
    let words = region.words_mut();
    for page in pages {
        let content = &words[page * PAGE_WORDS..][..PAGE_WORDS];
        let told: Vec<_> = content.iter().enumerate().filter(|(_, word)| **word != 0).collect();
        assert_eq!(told, [(page % PAGE_WORDS, &(page as u64 + 1))], "page {page}");
    }
}
