//! Regions of one manager, each with a base page of its own: the pages of a touch, the pages of a
//! swap-in, and that every byte is right.

use std::thread;

use pagoda::frames::zones::Place;
use pagoda::{BasePage, Bytes, Managed, Manager, Region, RegionError};
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::{Random, runs};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::pages::{PAGE_WORDS, check, counted, write};

const OS_PAGE: usize = 4096;
/// OS pages of 64 KiB.
const BLOCK_PAGES: usize = 16;
/// Managers whose regions may have any base page: of none, of 64 KiB, of 2 MiB.
const MANAGERS: [Option<BasePage>; 3] = [None, Some(BasePage::K64), Some(BasePage::M2)];

fn manager(base: Option<BasePage>, around: bool, budget: Bytes) -> Manager {
    let builder = Manager::builder()
        .budget(budget)
        .user_mode_only(true)
        .tune(|tuning| tuning.fault_around(around).clear_ahead(0));
    base.into_iter().fold(builder, pagoda::ManagerBuilder::base_page).build().expect("manager")
}

fn region(manager: &Manager, base: BasePage, len: usize) -> Region {
    let region = manager.region(Bytes::new(len as u64)).base_page(base).create().expect("region");
    assert_eq!((region.base_page(), region.fill()), (base, None));
    region
}

/// Pages all of it out: pages that the last fault's handler still holds go at the next try.
fn page_out_all(manager: &Manager, region: &Managed, rest: u64) {
    until("all of it is out", || {
        region.page_out(0, region.len()).expect("room");
        manager.stats().resident_bytes == rest
    });
}

#[test]
fn a_touch_brings_the_base_page_of_its_region_and_nothing_else() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let (len, blocks) = (8usize << 20, (8 << 20) / (64 << 10));
    for of_manager in MANAGERS {
        let manager = manager(of_manager, false, Bytes::mib(256));
        let mut before = counted(&manager, 0);
        let mut regions = Vec::new();
        // The largest first, so that its effects are not taken for theirs.
        for base in BasePage::ALL.into_iter().rev() {
            for is_dense in [true, false] {
                let which = format!("{base} of {of_manager:?}, dense: {is_dense}");
                let mut region = region(&manager, base, len);
                let pages: Vec<usize> = match is_dense {
                    true => (0..len / OS_PAGE).collect(),
                    false => {
                        (0..blocks).rev().map(|block| block * BLOCK_PAGES + block % BLOCK_PAGES).collect()
                    }
                };
                let touched = match is_dense || base == BasePage::M2 {
                    true => len / base.bytes(),
                    false => blocks,
                };
                write(&mut region, pages.iter().copied());
                let resident = before.resident_bytes as usize + touched * base.bytes();
                let stats = counted(&manager, resident);
                assert_eq!(stats.resident_bytes, resident as u64, "{which}");
                let faults = [stats.faults - before.faults, stats.filled_around - before.filled_around];
                assert_eq!(faults, [touched as u64, 0], "{which}");
                let huge = (stats.faults_huge - before.faults_huge) as usize;
                assert_eq!(huge, if base == BasePage::M2 { touched } else { 0 }, "{which}");
                check(&mut region, pages.iter().copied());
                before = stats;
                regions.push((region, pages));
            }
        }
        for (region, pages) in &mut regions {
            check(region, pages.iter().copied());
        }
    }
}

#[test]
fn sequential_access_gets_base_pages_of_the_region_ahead_and_no_huge_frames() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let len = 16 << 20;
    for base in [BasePage::K4, BasePage::K16] {
        let manager = manager(None, true, Bytes::mib(128));
        let mut region = region(&manager, base, len);
        write(&mut region, 0..len / OS_PAGE);
        check(&mut region, 0..len / OS_PAGE);
        let stats = counted(&manager, len);
        assert_eq!(stats.faults + stats.filled_around, (len / base.bytes()) as u64, "{base}: {stats:?}");
        assert!(stats.faults < (len / base.bytes()) as u64 / 4, "{base}: {} faults", stats.faults);
        let (start, mut scanner) = (region.as_ptr().addr(), PagemapScanner::new().expect("pagemap"));
        assert_eq!(scanner.huge_bytes(start, start + len).expect("PAGEMAP_SCAN"), 0, "{base}");
    }
}

#[test]
fn a_sparse_region_that_was_out_comes_back_as_small_as_it_was() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let blocks = 512;
    for base in [BasePage::K4, BasePage::K16] {
        for in_file in [false, true] {
            let builder = Manager::builder()
                .budget(Bytes::mib(64))
                .user_mode_only(true)
                .tune(|tuning| tuning.clear_ahead(0));
            let builder = if in_file { builder.spill_to("/var/tmp", Bytes::mib(256)) } else { builder };
            let manager = builder.build().expect("manager");
            let mut region = region(&manager, base, blocks * (64 << 10));
            // One OS page of each 64 KiB, in turn.
            let pages = || (0..blocks).map(|block| block * BLOCK_PAGES + block * 5 % BLOCK_PAGES);
            write(&mut region, pages().rev());
            let held = blocks * base.bytes();
            assert_eq!(counted(&manager, held).resident_bytes, held as u64, "{base}, in file: {in_file}");
            for is_upwards in [true, false] {
                page_out_all(&manager, &region, 0);
                match is_upwards {
                    true => check(&mut region, pages()),
                    false => check(&mut region, pages().rev()),
                }
                let resident = counted(&manager, held).resident_bytes;
                assert_eq!(resident, held as u64, "{base}, in file: {in_file}, upwards: {is_upwards}");
            }
        }
    }
}

#[test]
fn sequential_swap_in_takes_fewer_faults_than_there_are_pages() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let len = 4 << 20;
    for base in [BasePage::K4, BasePage::K16] {
        let manager = manager(None, false, Bytes::mib(64));
        let mut region = region(&manager, base, len);
        write(&mut region, 0..len / OS_PAGE);
        page_out_all(&manager, &region, 0);
        let before = counted(&manager, 0).faults;
        check(&mut region, 0..len / OS_PAGE);
        let stats = counted(&manager, len);
        let (faults, pages) = (stats.faults - before, (len / base.bytes()) as u64);
        assert_eq!(stats.resident_bytes, len as u64, "{base}");
        assert!(faults < pages * 2 / 3, "{base}: {faults} faults for {pages} pages");
    }
}

#[test]
fn memory_that_is_adopted_has_the_base_page_that_is_chosen_for_it() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let len = 8 << 20;
    let manager = manager(None, true, Bytes::mib(128));
    for base in BasePage::ALL {
        let mut memory = PlainMemory::map(len, Pages::Small).expect("memory");
        let pages = || (0..len / OS_PAGE).step_by(BLOCK_PAGES).rev();
        let region = manager.adopt_with(memory.foreign(), base).expect("adopted");
        // Whether a mapping has huge pages is for its owner to say.
        let holds = base.min(BasePage::K64);
        assert_eq!((region.base_page(), region.fill()), (holds, None));
        pages().for_each(|page| memory.set_word(page * PAGE_WORDS, page as u64 + 1));
        let held = pages().count() * holds.bytes();
        assert_eq!(counted(&manager, held).resident_bytes, held as u64, "{base}");
        page_out_all(&manager, &region, 0);
        region.close();
        // All swapped-out pages are back, and unmanaged.
        assert!(pages().all(|page| memory.word(page * PAGE_WORDS) == page as u64 + 1), "{base}");
        assert_eq!(manager.stats().resident_bytes, 0, "{base}");
    }
}

#[test]
fn a_base_page_that_the_manager_can_not_have_is_refused_and_says_why() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let refused = |manager: &Manager, asked| {
        let error = manager.region(Bytes::mib(1)).base_page(asked).create().err().expect("refused");
        let memory = PlainMemory::map(1 << 20, Pages::Small).expect("memory");
        assert_eq!(manager.adopt_with(memory.foreign(), asked).err(), Some(error), "{asked}");
        error
    };
    for base in [BasePage::K4, BasePage::K16] {
        let manager = manager(Some(base), true, Bytes::mib(64));
        region(&manager, base, 1 << 20);
        for asked in BasePage::ALL.into_iter().filter(|asked| *asked != base) {
            let error = refused(&manager, asked);
            assert_eq!(error, RegionError::BasePage { asked, manager: base });
            assert!(error.to_string().contains("another manager"), "{error}");
        }
    }
}

fn of_two_zones() -> Manager {
    let builder = Manager::builder().user_mode_only(true).tune(|tuning| tuning.clear_ahead(0));
    let builder = builder.zone("one", Bytes::mib(64), Place::Local).zone("two", Bytes::mib(64), Place::Local);
    builder.build().expect("manager")
}

#[test]
fn a_part_of_an_entry_is_of_the_zone_that_the_rest_is_of() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    for (base, pages) in [(BasePage::K4, 1), (BasePage::K16, 4)] {
        let manager = of_two_zones();
        let mut blocks = region(&manager, base, 16 << 20);
        // The first block of each entry, then the second of each: a zone has given the touched
        // pages, and each has its part.
        for block in 0..BLOCK_PAGES / pages {
            for entry in 0..256 {
                let from = entry * BLOCK_PAGES + block * pages;
                write(&mut blocks, from..from + pages);
            }
            let touched = (block + 1) * pages * 256 * OS_PAGE;
            assert_eq!(counted(&manager, touched).resident_bytes, touched as u64, "{base}, block {block}");
            let given: Vec<_> = manager.zones().iter().map(|(_, zone)| zone.allocated.get()).collect();
            assert_eq!(given.iter().sum::<u64>(), touched as u64, "{base}, block {block}: {given:?}");
            assert!(given[0].abs_diff(given[1]) <= touched as u64 / 8, "{base}, block {block}: {given:?}");
        }
        check(&mut blocks, 0..4096);
        // Swapped-out pages come back by blocks, as they were.
        page_out_all(&manager, &blocks, 0);
        check(&mut blocks, [5]);
        assert_eq!(counted(&manager, base.bytes()).resident_bytes, base.bytes() as u64, "{base}");
        check(&mut blocks, 0..4096);
    }
}

#[test]
fn huge_frames_are_had_with_several_zones() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let manager = of_two_zones();
    let mut huge = region(&manager, BasePage::M2, 4 << 20);
    write(&mut huge, 0..1024);
    let stats = counted(&manager, 4 << 20);
    assert_eq!((stats.faults, stats.faults_huge), (2, 2), "{stats:?}");
    check(&mut huge, 0..1024);
}

#[test]
fn under_pressure_regions_of_all_base_pages_hold_their_threads_writes() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    // Four times as much, of which 40 MiB may be in memory.
    let pages = (length(16, 24) << 20) / OS_PAGE;
    for (in_file, several) in [(false, false), (true, false), (false, true), (true, true)] {
        for seed in runs(1) {
            let builder = Manager::builder().user_mode_only(true);
            let builder = if several {
                builder.zone("one", Bytes::mib(24), Place::Local).zone("two", Bytes::mib(16), Place::Remote)
            } else {
                builder.budget(Bytes::mib(40))
            };
            let builder = if in_file { builder.spill_to("/var/tmp", Bytes::mib(512)) } else { builder };
            let manager = builder.build().expect("manager");
            let regions = BasePage::ALL.map(|base| region(&manager, base, pages * OS_PAGE));
            thread::scope(|scope| {
                for (at, mut region) in regions.into_iter().enumerate() {
                    scope.spawn(move || {
                        let mut random = Random::new(seed, at as u64);
                        use_and_compare(&mut region, &mut random, pages);
                    });
                }
            });
            let stats = manager.stats();
            let counts = [stats.faults_staged, stats.faults_stored, stats.stores, stats.events_remove];
            let which = format!("in file: {in_file}, several zones: {several}, seed {seed}");
            assert!(counts.iter().all(|count| *count > 0), "{which}: {counts:?}");
        }
    }
}

/// Writes, discards and pages out runs here and there, and compares with its own writes.
fn use_and_compare(region: &mut Region, random: &mut Random, pages: usize) {
    let base = region.base_page();
    // One word of each page, at a place that goes by the page.
    let mut shadow = vec![0u64; pages];
    let at = |page: usize| page * PAGE_WORDS + page * 7 % PAGE_WORDS;
    for step in 0..length(800, 1500) {
        let from = random.below(pages);
        // Mostly some pages, now and then a long run upwards.
        let run = from..pages.min(from + 1 + if random.one_in(8) { 700 } else { random.below(24) });
        match random.below(12) {
            0 => {
                region.discard(run.start * OS_PAGE, run.len() * OS_PAGE).expect("discarded");
                shadow[run].fill(0);
            }
            1 => region.page_out(run.start * OS_PAGE, run.len() * OS_PAGE).expect("stored"),
            2..=6 => {
                for page in run {
                    let value = random.next();
                    region.words_mut()[at(page)] = value;
                    shadow[page] = value;
                }
            }
            _ => {
                for page in run {
                    assert_eq!(
                        region.words_mut()[at(page)],
                        shadow[page],
                        "{base}, step {step}, page {page}"
                    );
                }
            }
        }
    }
    for (page, content) in region.words_mut().chunks(PAGE_WORDS).enumerate() {
        for (word, value) in content.iter().enumerate() {
            let wanted = if page * PAGE_WORDS + word == at(page) { shadow[page] } else { 0 };
            assert_eq!(*value, wanted, "{base}, page {page}, word {word}");
        }
    }
}
