//! Faults of pages that are staged with holes, and of pages that lie in the file. Several threads
//! use parts of the same base pages, and each reads its last write.

use std::sync::atomic::Ordering;
use std::thread;

use pagoda_core::page::BasePage;
use pagoda_core::page_entry::{Backing, GRANULES, Granules, Word};
use pagoda_core::size::Bytes;
use pagoda_linux::procfs::pagemap::PagemapScanner;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::Manager;
use crate::engine::Engine;
use crate::store::{Scratch, page_of};
use crate::table::give;

const OS_PAGES: usize = 72 << 20 >> 12;
const THREADS: usize = 3;

/// An OS page that was written for the `version`th time: about half of them compress away.
fn content(page: usize, version: u32) -> Vec<u8> {
    page_of(4096, 43, page as u64 * 1000 + u64::from(version))
}

/// Takes the base page of `address` out of the region, and no further.
pub(crate) fn stage(engine: &Engine, address: usize) {
    let table = engine.gate_shared();
    let span = table.find(address).expect("managed");
    let mut copied = Vec::new();
    let _ = engine.stage_page(&table, span, table.page_at(span, address).index, &mut copied);
    drop(table);
    for out in copied {
        engine.settle_copied(out, &mut Scratch::new(engine.base));
    }
}

/// The entry at `address`, which must not be busy.
pub(crate) fn word_at(engine: &Engine, address: usize) -> Word {
    let table = engine.gate_exclusive();
    let span = table.find(address).expect("managed");
    let page = table.page_at(span, address);
    let word = engine.take(span.entries(), page.index);
    give(span.entry(page.index), word);
    word
}

#[test]
fn a_hole_of_a_staged_page_is_resident_when_it_was_asked_for_and_not_before() {
    const HOLE: u32 = 5;
    if skip_without_moves("holes of staged pages") {
        return;
    }
    let builder = Manager::builder()
        .budget(Bytes::mib(24))
        .user_mode_only(true)
        .tune(|tuning| tuning.fault_around(false));
    let manager = builder.build().expect("a manager");
    for (asked, writes) in [(2, false), (HOLE, false), (HOLE, true)] {
        let region = manager.region(Bytes::mib(1)).create().expect("a region");
        let (engine, start) = (&*manager.engine(), region.as_ptr().addr());
        let page_of = |page: u32| page as usize * 4096;
        (0..GRANULES)
            .for_each(|page| region.write_words(page_of(page), &content(page as usize, 1)).expect("written"));
        region.discard(page_of(HOLE), 4096).expect("discarded");
        // A handler may have the page for a moment.
        until("all of the page is staged", || {
            stage(engine, start);
            word_at(engine, start).resident().is_empty()
        });
        assert!(matches!(word_at(engine, start).backing(), Backing::Slot(_)));
        let expected = |page: u32| if page == HOLE { vec![0; 4096] } else { content(page as usize, 1) };
        let mut back = vec![0; 4096];
        if writes {
            region.write_words(page_of(asked), &content(77, 1)).expect("written");
        }
        region.read_at(page_of(asked), &mut back).expect("read");
        assert!(back == if writes { content(77, 1) } else { expected(asked) });
        let all = Granules::range(0, GRANULES);
        let hole = Granules::range(HOLE, HOLE + 1);
        let word = word_at(engine, start);
        assert_eq!(word.resident(), if asked == HOLE { all } else { all.without(hole) });
        assert_eq!(word.backing(), Backing::None, "nothing is left in the slot");
        let mut there = 0;
        let count = |run: std::ops::Range<usize>, _| there += run.len() / 4096;
        PagemapScanner::new()
            .expect("pagemap")
            .populated_runs(start, start + (64 << 10), count)
            .expect("scanned");
        assert_eq!(there, word.resident().count() as usize);
        for page in (0..GRANULES).filter(|page| *page != asked) {
            region.read_at(page_of(page), &mut back).expect("read");
            assert!(back == expected(page), "page {page}, asked for {asked}");
        }
    }
}

#[test]
fn parts_of_pages_from_the_file_hold_the_last_write() {
    if skip_without_moves("parts of pages") {
        return;
    }
    for (base, in_thread) in [(BasePage::K64, false), (BasePage::K64, true), (BasePage::K16, false)] {
        let builder = Manager::builder().budget(Bytes::mib(24)).base_page(base).user_mode_only(true);
        let builder = builder.serve_in_thread(in_thread).spill_to("/var/tmp", Bytes::mib(512));
        let manager = builder.build().expect("a manager");
        let region = manager.region(Bytes::new(OS_PAGES as u64 * 4096)).create().expect("a region");
        thread::scope(|scope| {
            for id in 0..THREADS {
                let region = &region;
                scope.spawn(move || {
                    let mut random = Random::new(7, id as u64);
                    let mut versions = [0; OS_PAGES / THREADS];
                    let mut back = vec![0; 4096];
                    // As many again are more of the same.
                    let more = length(versions.len() / 3, versions.len());
                    for step in 0..versions.len() + more {
                        // First each one, then any: a base page has parts of all threads.
                        let own = if step < versions.len() { step } else { random.below(versions.len()) };
                        let page = own * THREADS + id;
                        if versions[own] > 0 {
                            region.read_at(page * 4096, &mut back).expect("read");
                            assert!(back == content(page, versions[own]), "page {page} at step {step}");
                        }
                        if versions[own] == 0 || random.one_in(4) {
                            versions[own] += 1;
                            region.write_words(page * 4096, &content(page, versions[own])).expect("written");
                        }
                    }
                });
            }
        });
        let store = &manager.engine().store;
        let (usage, parts) = (store.usage(), store.parts_read.load(Ordering::Relaxed));
        println!("{base}, in thread {in_thread}: {parts} parts from a file of {}", usage.file_bytes);
        assert!(usage.file_bytes > Bytes::mib(8) && parts > 1000, "{parts} parts, {usage:?}");
    }
}

#[test]
fn sequential_faults_read_several_pages_of_the_file_at_once_and_random_ones_a_part_of_one() {
    if skip_without_moves("reads of the file") {
        return;
    }
    for base in [BasePage::K64, BasePage::K4] {
        let builder = Manager::builder().budget(Bytes::mib(24)).base_page(base).user_mode_only(true);
        let manager = builder.spill_to("/var/tmp", Bytes::mib(512)).build().expect("a manager");
        let region = manager.region(Bytes::new(OS_PAGES as u64 * 4096)).create().expect("a region");
        (0..OS_PAGES).for_each(|page| region.write_words(page * 4096, &content(page, 1)).expect("written"));
        let store = &manager.engine().store;
        let counts = || [store.file_reads(), store.parts_read.load(Ordering::Relaxed)];
        let mut back = vec![0; 4096];
        let mut read = |page: usize| {
            region.read_at(page * 4096, &mut back).expect("read");
            assert!(back == content(page, 1), "page {page}");
        };
        let before = counts();
        (0..OS_PAGES).for_each(&mut read);
        let after = counts();
        let (reads, pages) = (after[0] - before[0], (OS_PAGES * 4096 / base.bytes()) as u64);
        println!(
            "{base}: {reads} reads for {pages} pages in order, {} of the file",
            store.usage().file_bytes
        );
        assert!((pages / 50..pages / 3).contains(&reads), "{reads} reads for {pages} pages");
        // Each base page of the first third once, none beside the last ones. Most of the rest has
        // left since: those of the middle may have left lately.
        let (third, half) = (pages as usize / 3, pages as usize / 2);
        let before = counts();
        (0..third).for_each(|step| read((step * 1021 % third) * base.bytes() / 4096));
        let after = counts();
        let [reads, parts] = [after[0] - before[0], after[1] - before[1]];
        // One that was compressed again is read as a whole: where all of this takes longer than 30
        // seconds, on a busy machine, that is one in thousands.
        let whole = reads - parts;
        assert!(reads > pages / 8 && whole <= reads / 100, "{reads} reads, {parts} of them of a part");
        // Some of those that left memory lately come back to compressed memory as a whole.
        let before = counts();
        (half..pages as usize).rev().for_each(|page| read(page * base.bytes() / 4096));
        let after = counts();
        let [reads, parts] = [after[0] - before[0], after[1] - before[1]];
        assert!(reads > parts || base == BasePage::K4, "{reads} reads, all of a part");
    }
}
