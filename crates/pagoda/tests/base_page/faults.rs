//! Faults, tables and memory of first touches, by count.

use pagoda::{BasePage, Bytes, Manager, Region, RegionError};
use pagoda_core::space::radix::Radix;
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::testing::skip::skip_without_moves;

use crate::pages::{PAGE_WORDS, counted};

const SMALL: [BasePage; 3] = [BasePage::K4, BasePage::K16, BasePage::K64];

fn manager(base: BasePage, around: bool, budget: Bytes) -> Manager {
    let builder = Manager::builder().budget(budget).base_page(base).user_mode_only(true);
    builder.tune(|tuning| tuning.fault_around(around)).build().expect("manager")
}

/// The bytes of the table of so many entries, all of them used.
fn dense_table(entries: u64) -> u64 {
    8 * Radix::words_for(entries as usize).expect("few") as u64
}

fn touch(region: &mut Region, pages: impl IntoIterator<Item = usize>) {
    let words = region.words_mut();
    pages.into_iter().for_each(|page| words[page * PAGE_WORDS] += page as u64 + 1);
}

#[test]
fn dense_first_touches_take_one_fault_and_one_entry_for_each_base_page() {
    if skip_without_moves("base pages") {
        return;
    }
    let len = 16 << 20;
    for base in SMALL {
        let manager = manager(base, false, Bytes::mib(128));
        let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
        touch(&mut region, 0..len / 4096);
        let stats = counted(&manager, len);
        let pages = (len / base.bytes()) as u64;
        assert_eq!((stats.faults, stats.filled_around), (pages, 0), "{base}");
        assert_eq!((stats.table_bytes, stats.resident_bytes), (dense_table(pages), len as u64), "{base}");
        drop(region);
        manager.flush_releases();
        assert_eq!(manager.stats().table_bytes, 0, "{base}");
    }
}

#[test]
fn one_page_of_each_sixteen_takes_as_much_memory_as_the_base_page_is_larger() {
    if skip_without_moves("base pages") {
        return;
    }
    let (len, blocks) = (8usize << 20, (8 << 20) / (64 << 10));
    for base in SMALL {
        for around in [false, true] {
            let manager = manager(base, around, Bytes::mib(128));
            let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
            // Downwards: no sequential access.
            touch(&mut region, (0..blocks).rev().map(|block| block * 16 + block % 16));
            let stats = counted(&manager, blocks * base.bytes());
            assert_eq!(stats.resident_bytes, (blocks * base.bytes()) as u64, "{base}, {around}");
            assert_eq!((stats.faults, stats.filled_around), (blocks as u64, 0), "{base}, {around}");
        }
    }
}

#[test]
fn sequential_access_gets_the_pages_above_and_all_of_them_are_zero() {
    if skip_without_moves("base pages") {
        return;
    }
    let len = 32 << 20;
    for base in SMALL {
        let manager = manager(base, true, Bytes::mib(256));
        let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
        touch(&mut region, 0..len / 4096);
        let stats = counted(&manager, len);
        assert_eq!(stats.faults + stats.filled_around, (len / base.bytes()) as u64, "{base}: {stats:?}");
        // Windows double up to 2 MiB; a handler that is slow serves some pages by their own faults.
        assert!(stats.faults < (len / base.bytes()) as u64 / 4, "{base}: {} faults", stats.faults);
        for (page, words) in region.words_mut().chunks(PAGE_WORDS).enumerate() {
            assert_eq!(words[0], page as u64 + 1, "{base}, page {page}");
            assert!(words[1..].iter().all(|word| *word == 0), "{base}, page {page}");
        }
    }
}

#[test]
fn nothing_is_filled_where_something_was_or_beyond_a_hole_or_near_the_budget() {
    if skip_without_moves("base pages") {
        return;
    }
    let len = 8 << 20;
    for base in SMALL {
        let manager = manager(base, true, Bytes::mib(128));
        let mut memory = PlainMemory::map(len, Pages::Small).expect("memory");
        let region = manager.adopt(memory.foreign()).expect("adopted");
        let last = len / 4096 - 1;
        memory.set_word(last * PAGE_WORDS, 7);
        memory.unmap(1024..1025).expect("unmap");
        for page in 0..1024 {
            memory.set_word(page * PAGE_WORDS, 1);
        }
        // The page that was cut in two is not filled by guess, nor the pages above the hole.
        let below = 1024 * 4096;
        let stats = counted(&manager, below);
        assert!(stats.filled_around > 0, "{base}");
        assert!(
            stats.resident_bytes <= (below + 2 * base.bytes()) as u64,
            "{base}: {}",
            stats.resident_bytes
        );
        assert_eq!(memory.word(last * PAGE_WORDS), 7);
        // Discarded pages read zero, and are filled again like fresh ones.
        memory.discard(0..1024).expect("discard");
        for page in 0..1024 {
            assert_eq!(memory.word(page * PAGE_WORDS), 0, "{base}, page {page}");
        }
        drop(memory);
        drop(region);
    }
    // Far more is touched than the budget of 64 MiB: once little of it is left a fault brings in
    // only its own page.
    let manager = manager(BasePage::K64, true, Bytes::mib(64));
    let mut region = manager.region(Bytes::mib(160)).create().expect("region");
    let mut filled_with_room = 0;
    for page in 0..region.len() / 4096 {
        region.words_mut()[page * PAGE_WORDS] = page as u64;
        if page == 60 << 8 {
            filled_with_room = manager.stats().filled_around;
        }
    }
    let stats = counted(&manager, 0);
    assert!(filled_with_room > 0 && stats.filled_around == filled_with_room, "{filled_with_room}, {stats:?}");
    let held = stats.resident_bytes + stats.staged_bytes;
    assert!(held <= stats.budget_bytes, "{held} held, {stats:?}");
    for page in 0..region.len() / 4096 {
        assert_eq!(region.words_mut()[page * PAGE_WORDS], page as u64);
    }
}

#[test]
fn a_region_whose_entries_take_more_than_all_memory_is_refused_and_others_are_not() {
    if skip_without_moves("base pages") {
        return;
    }
    let manager = manager(BasePage::K4, false, Bytes::mib(64));
    let len = Bytes::gib(64 << 10);
    // 128 GiB for its entries, which a kernel may promise to a process that never writes them.
    match manager.region(len).create() {
        Ok(mut region) => region.write_at(region.len() - 1, &[1]).expect("written"),
        Err(error) => {
            assert_eq!(error, RegionError::Entries { len, base: BasePage::K4 });
            assert!(error.to_string().contains("choose a larger base page"), "{error}");
        }
    }
    let mut other = manager.region(Bytes::mib(1)).create().expect("region");
    touch(&mut other, 0..256);
    assert_eq!(counted(&manager, 1 << 20).table_bytes, dense_table(256));
}

#[test]
fn one_page_of_each_two_mebibytes_takes_an_eighth_of_itself_for_its_entry() {
    if skip_without_moves("base pages") {
        return;
    }
    let (len, touched) = (256usize << 20, 128);
    let manager = manager(BasePage::K4, true, Bytes::mib(256));
    let mut region = manager.region(Bytes::new(len as u64)).create().expect("region");
    touch(&mut region, (0..len / 4096).step_by(512));
    let stats = counted(&manager, touched * 4096);
    assert_eq!(stats.resident_bytes, (touched * 4096) as u64);
    // A node of entries for each, a node for each eight of these, and the root.
    assert_eq!(stats.table_bytes, 512 * (128 + 16 + 1));
    assert!(stats.table_bytes * 4 <= stats.resident_bytes);
    // Nor does paging out all of it take more.
    region.page_out(0, len).expect("stored");
    assert_eq!(counted(&manager, 0).table_bytes, stats.table_bytes);
    assert!(
        (0..len / 4096).step_by(512).all(|page| region.words_mut()[page * PAGE_WORDS] == page as u64 + 1)
    );
}
