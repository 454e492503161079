//! Regions whose first touches go by density: only used memory comes in, and every byte is right.

use pagoda::{BasePage, Bytes, Manager, Purpose, Region};
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::pages::{PAGE_WORDS, check, counted, write};

const BLOCK_PAGES: usize = 16;

fn manager(budget: Bytes) -> Manager {
    Manager::builder().budget(budget).user_mode_only(true).build().expect("manager")
}

fn region(manager: &Manager, len: usize, purpose: Purpose) -> Region {
    manager.region(Bytes::new(len as u64)).purpose(purpose).create().expect("region")
}

#[test]
fn sparse_touches_hold_their_pages_and_nothing_beside_them() {
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
    let stats = counted(&manager, touched as usize * 4096);
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
    assert_eq!(counted(&manager, touched as usize).resident_bytes, touched);
    assert_eq!(region.fill().map(|fill| fill.size), Some(BasePage::K4));
    region.close();
}

#[test]
fn dense_touches_come_in_whole_base_pages_before_long() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let len = 64 << 20;
    let manager = manager(Bytes::mib(256));
    let mut region = region(&manager, len, Purpose::Unknown);
    // Downwards: no sequential access.
    write(&mut region, (0..len / 4096).rev());
    check(&mut region, 0..len / 4096);
    let stats = counted(&manager, len);
    let fill = region.fill().expect("no base page was chosen");
    assert_eq!((fill.size, fill.looks.grown, stats.fills_grown), (BasePage::K64, 2, 2), "{fill:?}");
    assert!(stats.faults_zero < (len / 4096 / 4) as u64, "{} faults", stats.faults_zero);
}

#[test]
fn sparse_touches_after_many_dense_ones_hold_little_more_than_their_pages() {
    if skip_without_moves("first touches by density") {
        return;
    }
    let len = 512 << 20;
    // Always at the same place of each block, or at another.
    let sparse = |dense: usize, step: usize| {
        let pages = (dense..len / 4096).step_by(BLOCK_PAGES);
        pages.map(move |page| page + page / BLOCK_PAGES * step % BLOCK_PAGES)
    };
    let long = Bytes::mib(64).get();
    for (dense_mib, downwards, step) in
        [(64, true, 0), (64, true, 7), (64, false, 0), (64, false, 7), (200, false, 0), (200, false, 7)]
    {
        let dense = (dense_mib << 20) / 4096;
        let sparse = |step| sparse(dense, step);
        let manager = manager(Bytes::mib(768));
        let mut region = region(&manager, len, Purpose::Unknown);
        if downwards {
            write(&mut region, (0..dense).rev());
            let stats = counted(&manager, dense * 4096);
            assert_eq!(region.fill().map(|fill| fill.size), Some(BasePage::K64), "{stats:?}");
        } else {
            write(&mut region, 0..dense);
        }
        write(&mut region, sparse(step));
        let (dense_bytes, touched) = (dense as u64 * 4096, sparse(step).count() as u64 * 4096);
        let stats = counted(&manager, (dense_bytes + touched) as usize);
        // A long sequential stream may hold an eighth of that too much.
        let most = dense_bytes + touched * 5 / 4 + (dense_bytes - long) / 8;
        let held = stats.resident_bytes;
        assert!(held <= most, "{dense_mib} MiB, {downwards}, {step}: {held} of {most}");
        // That it was dense once is forgotten.
        let fill = region.fill().expect("no base page was chosen");
        assert_eq!(fill.size, BasePage::K4, "{fill:?}");
        // A stream shows its touches by OS pages; whole places of a long one may be taken for dense
        // once more.
        assert!(fill.looks.shrunk > 0 || !downwards, "{fill:?}");
        assert!(fill.looks.shrunk == 0 || downwards || dense_bytes > long, "{fill:?}");
        check(&mut region, (0..dense).chain(sparse(step)));
    }
}

#[test]
fn sequential_access_gets_more_with_each_fault_from_the_first_os_page_on() {
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
    let stats = counted(&manager, touched as usize);
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
