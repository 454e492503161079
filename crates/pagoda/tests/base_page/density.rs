//! Regions whose first touches go by density: what comes in is what is used, and every byte is right.

use pagoda::counters::Snapshot;
use pagoda::{BasePage, Bytes, Manager, Purpose, Region};
use pagoda_linux::plain_memory::{Pages, PlainMemory};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGE_WORDS: usize = 512;
const BLOCK_PAGES: usize = 16;

fn manager(budget: Bytes) -> Manager {
    Manager::builder().budget(budget).user_mode_only(true).build().expect("manager")
}

/// The stats once so much is resident, and every fault is counted: a handler counts what came in after it woke who waits.
fn counted(manager: &Manager, resident: u64) -> Snapshot {
    let mut stats = manager.stats();
    until("what came in is counted", || {
        stats = manager.stats();
        stats.resident_bytes >= resident && stats.faults_in_service == 0
    });
    stats
}

fn region(manager: &Manager, len: usize, purpose: Purpose) -> Region {
    manager.region(Bytes::new(len as u64)).purpose(purpose).create().expect("region")
}

fn write(region: &mut Region, pages: impl IntoIterator<Item = usize>) {
    let words = region.words_mut();
    pages.into_iter().for_each(|page| words[page * PAGE_WORDS + page % PAGE_WORDS] += page as u64 + 1);
}

/// Each page says its number where it was written, and the rest of it is zero.
fn check(region: &mut Region, pages: impl IntoIterator<Item = usize>) {
    let words = region.words_mut();
    for page in pages {
        let content = &words[page * PAGE_WORDS..][..PAGE_WORDS];
        let told: Vec<_> = content.iter().enumerate().filter(|(_, word)| **word != 0).collect();
        assert_eq!(told, [(page % PAGE_WORDS, &(page as u64 + 1))], "page {page}");
    }
}

#[test]
fn what_is_touched_sparsely_holds_what_is_touched_and_nothing_beside_it() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let len = 64 << 20;
    let manager = manager(Bytes::mib(256));
    let mut region = region(&manager, len, Purpose::Unknown);
    // In another place of each block, and none right above the one before.
    let pages =
        || (0..len / 4096).step_by(BLOCK_PAGES).map(|page| page + page / BLOCK_PAGES * 7 % BLOCK_PAGES);
    write(&mut region, pages());
    check(&mut region, pages());
    let touched = pages().count() as u64;
    let stats = counted(&manager, touched * 4096);
    assert_eq!((stats.resident_bytes, stats.filled_around), (touched * 4096, 0));
    let fill = region.fill().expect("no base page was chosen");
    assert_eq!((fill.size, fill.looks.grown, stats.fills_grown), (BasePage::K4, 0, 0), "{fill:?}");
    assert!(fill.looks.settled > 0, "it was looked at: {fill:?}");
}

#[test]
fn memory_that_is_adopted_goes_by_density_too() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let len = 16 << 20;
    let manager = manager(Bytes::mib(128));
    let mut memory = PlainMemory::map(len, Pages::Small).expect("memory");
    let pages = || (0..len / 4096).step_by(BLOCK_PAGES);
    let (before, after): (Vec<_>, Vec<_>) = pages().partition(|page| *page < len / 8192);
    before.iter().for_each(|page| memory.set_word(page * PAGE_WORDS, *page as u64 + 1));
    let region = manager.adopt(memory.foreign()).expect("adopted");
    after.iter().for_each(|page| memory.set_word(page * PAGE_WORDS, *page as u64 + 1));
    assert!(pages().all(|page| memory.word(page * PAGE_WORDS) == page as u64 + 1), "all is there");
    let touched = pages().count() as u64 * 4096;
    assert_eq!(counted(&manager, touched).resident_bytes, touched);
    assert_eq!(region.fill().map(|fill| fill.size), Some(BasePage::K4));
    region.close();
}

#[test]
fn what_is_touched_densely_comes_in_whole_base_pages_before_long() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let len = 64 << 20;
    let manager = manager(Bytes::mib(256));
    let mut region = region(&manager, len, Purpose::Unknown);
    // Downwards: nobody goes on upwards.
    write(&mut region, (0..len / 4096).rev());
    check(&mut region, 0..len / 4096);
    let stats = counted(&manager, len as u64);
    let fill = region.fill().expect("no base page was chosen");
    assert_eq!((fill.size, fill.looks.grown, stats.fills_grown), (BasePage::K64, 2, 2), "{fill:?}");
    assert!(stats.faults_zero < (len / 4096 / 4) as u64, "{} faults", stats.faults_zero);
}

#[test]
fn what_is_touched_sparsely_after_much_that_was_dense_holds_little_more_than_that() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let (len, dense) = (512 << 20, (64 << 20) / 4096);
    // Always at the same place of each block, or at another.
    let sparse = |step: usize| {
        let pages = (dense..len / 4096).step_by(BLOCK_PAGES);
        pages.map(move |page| page + page / BLOCK_PAGES * step % BLOCK_PAGES)
    };
    for (downwards, step) in [(true, 0), (true, 7), (false, 0), (false, 7)] {
        let manager = manager(Bytes::mib(768));
        let mut region = region(&manager, len, Purpose::Unknown);
        if downwards {
            write(&mut region, (0..dense).rev());
            let stats = counted(&manager, dense as u64 * 4096);
            assert_eq!(region.fill().map(|fill| fill.size), Some(BasePage::K64), "{stats:?}");
        } else {
            write(&mut region, 0..dense);
        }
        write(&mut region, sparse(step));
        let (dense_bytes, touched) = (dense as u64 * 4096, sparse(step).count() as u64 * 4096);
        let stats = counted(&manager, dense_bytes + touched);
        let most = dense_bytes + touched * 5 / 4;
        assert!(stats.resident_bytes <= most, "{downwards}, {step}: {} of {most}", stats.resident_bytes);
        // That it was dense once is forgotten.
        let fill = region.fill().expect("no base page was chosen");
        assert_eq!((fill.size, fill.looks.shrunk > 0), (BasePage::K4, downwards), "{fill:?}");
        check(&mut region, (0..dense).chain(sparse(step)));
    }
}

#[test]
fn who_goes_on_upwards_gets_more_with_each_fault_from_the_first_os_page_on() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let len = 16 << 20;
    let manager = manager(Bytes::mib(256));
    // Not at the beginning of a base page, and with one hole in the way that is there already.
    let mut region = region(&manager, len, Purpose::Unknown);
    write(&mut region, [1000]);
    write(&mut region, (5..len / 4096).filter(|page| *page != 1000));
    check(&mut region, 5..len / 4096);
    let touched = (len - 5 * 4096) as u64;
    let stats = counted(&manager, touched);
    assert!(stats.filled_around > 0 && stats.faults_zero < 64, "{} faults", stats.faults_zero);
    // The pages below were never touched, and nothing brought them.
    assert_eq!(stats.resident_bytes, touched);
    assert!(region.words_mut()[..5 * PAGE_WORDS].iter().all(|word| *word == 0));
}

#[test]
fn a_buffer_that_is_used_sparsely_shrinks_as_its_pages_are_stored() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let len = 256 << 20;
    let manager = manager(Bytes::mib(32));
    // A part of it, or it would begin with 2 MiB, which is more than it may.
    let mut region = region(&manager, len, Purpose::Heap);
    assert_eq!(region.fill().map(|fill| fill.size), Some(BasePage::K64));
    let pages = || (0..len / 4096).step_by(BLOCK_PAGES);
    write(&mut region, pages());
    let stats = counted(&manager, 0);
    let fill = region.fill().expect("no base page was chosen");
    assert!(fill.size < BasePage::K64 && fill.looks.shrunk > 0, "{fill:?}");
    assert!(stats.fills_shrunk > 0 && stats.stored_bytes > 0, "{stats:?}");
    check(&mut region, pages());
}

#[test]
fn regions_that_close_take_their_density_with_them_and_a_chosen_base_page_has_none() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let manager = manager(Bytes::mib(64));
    for round in 0..200 {
        let mut one = region(&manager, 1 << 20, Purpose::Heap);
        let two = region(&manager, 1 << 20, Purpose::Unknown);
        write(&mut one, 0..256);
        check(&mut one, 0..256);
        let sizes = [&one, &two].map(|region| region.fill().expect("no base page was chosen").size);
        assert_eq!(sizes, [BasePage::K64, BasePage::K4], "round {round}");
    }
    let chosen = Manager::builder().base_page(BasePage::K64).user_mode_only(true).build().expect("manager");
    assert_eq!(chosen.region(Bytes::mib(1)).create().expect("region").fill(), None);
}
