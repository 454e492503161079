//! Spans that are cut, moved and grow, and the table that their entries take.

use super::*;
use crate::Manager;
use pagoda_core::page::OS_PAGE;
use pagoda_core::page_entry::Granules;
use pagoda_core::size::Bytes;
use pagoda_core::space::radix::Radix;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;
use proptest::prelude::*;

const PAGE: usize = OS_PAGE;

fn range(from: usize, to: usize) -> PageRange {
    PageRange::new(from * PAGE, to * PAGE).expect("a range")
}

#[test]
fn a_heap_that_grows_stays_one_span() {
    let mut table = Table::new(BasePage::K64);
    table.insert(range(100, 133), Filler::Engine);
    table.insert(range(133, 140), Filler::Engine);
    assert_eq!(table.spans().map(|span| span.range()).collect::<Vec<_>>(), [range(100, 140)]);
}

#[test]
fn a_heap_that_grows_by_small_steps_is_some_spans_and_a_fixed_mapping_has_no_spare_room() {
    for base in [BasePage::K4, BasePage::K64] {
        let mut table = Table::new(base);
        for step in 0..1000 {
            table.insert(range(1600 + step * 33, 1633 + step * 33), Filler::Engine);
        }
        assert!(table.spans().count() <= 10, "{} spans", table.spans().count());
        let words: usize = table.spans().map(|span| span.entries.len()).sum();
        assert!(words <= 4 * 33_000 / (table.entry_bytes() / PAGE), "{words} words");
        let alone = table.insert(range(100_000, 100_016), Filler::Engine);
        assert_eq!(alone.entries.len(), 16 * PAGE / base.bytes());
    }
}

#[test]
fn a_span_that_is_put_apart_shares_no_entry_with_its_neighbour() {
    let mut table = Table::new(BasePage::K64);
    for (from, to, skipped) in [(16, 50, 0), (50, 70, 2), (70, 100, 9)] {
        table.insert_apart(range(from, to), skipped * PAGE, Filler::Engine);
    }
    let spans: Vec<_> = table.spans().map(Span::range).collect();
    assert_eq!(spans, [range(16, 50), range(50, 70), range(70, 100)]);
    let [left, right] = [49, 50].map(|page| table.find(page * PAGE).expect("managed"));
    assert!(!Arc::ptr_eq(left.entries(), right.entries()));
    assert_eq!(table.page_at(left, 49 * PAGE).granules, Granules::range(0, 2));
    assert_eq!(table.page_at(right, 50 * PAGE).granules, Granules::range(2, 16));
    let moved = table.find(70 * PAGE).expect("managed");
    assert_eq!(table.page_at(moved, 71 * PAGE).granule_of(71 * PAGE), 10);
    assert_eq!((moved.skipped_bytes(16 * PAGE), moved.entries().len()), (9 * PAGE, 3));
}

#[test]
fn a_page_cut_in_two_keeps_one_entry_with_granules_for_each_side() {
    let mut table = Table::new(BasePage::K64);
    table.insert(range(16, 64), Filler::Engine);
    let cut = table.cut(range(20, 22));
    assert_eq!(cut.len(), 1);
    let left = table.find(19 * PAGE).expect("the left part");
    let right = table.find(22 * PAGE).expect("the right part");
    let (a, b) = (table.page_at(left, 19 * PAGE), table.page_at(right, 22 * PAGE));
    assert_eq!((a.index, b.index), (0, 0));
    assert_eq!((a.granules, b.granules), (Granules::range(0, 4), Granules::range(6, 16)));
    assert!(Arc::ptr_eq(left.entries(), right.entries()));
    assert!(table.find(20 * PAGE).is_none());
    assert_eq!(table.entries_bytes(), 3 * 8, "one entry for each base page, in one array");
    // As long as a part of a span is left so is its array. Room to grow is counted with it where
    // both are in one node.
    table.cut(range(22, 64));
    table.insert(range(100, 116), Filler::Engine);
    table.insert(range(116, 148), Filler::Engine);
    assert_eq!(table.entries_bytes(), (3 + 2 + 3 + 4) * 8);
}

/// The bytes of an array of entries that are in memory.
fn in_memory(entries: &Entries) -> usize {
    let start = entries.array().as_ptr().addr();
    let end = (start + size_of_val(entries.array())).next_multiple_of(PAGE);
    let mut bytes = 0;
    let mut scanner = pagoda_linux::procfs::pagemap::PagemapScanner::new().expect("pagemap");
    scanner.populated_runs(start & !(PAGE - 1), end, |run, _| bytes += run.len()).expect("scanned");
    bytes
}

#[test]
fn a_touched_page_of_a_large_region_takes_one_os_page_of_table() {
    if skip_without_moves("the table's memory") {
        return;
    }
    // As it is if nothing is said, and one fault for each base page.
    for builder in [
        Manager::builder(),
        Manager::builder().base_page(BasePage::K4).tune(|tuning| tuning.fault_around(false)),
    ] {
        let manager = builder.budget(Bytes::mib(256)).user_mode_only(true).build().expect("a manager");
        let engine = manager.engine();
        // An array so large that the C library maps it afresh: 32 MiB is the most that it keeps.
        let region = (64 << 20) / size_of::<AtomicU64>() * engine.entry_bytes();
        let region = manager.region(Bytes::new(region as u64)).create().expect("a region");
        let entries = {
            let table = engine.gate_shared();
            Arc::clone(table.find(region.as_ptr().addr()).expect("managed").entries())
        };
        let before = in_memory(&entries);
        region.write_words(region.len() / 2, &[1; 8]).expect("written");
        until("the fault is counted", || manager.stats().faults > 0);
        let taken = in_memory(&entries) - before;
        // The C library's own words lie before the first entry, and on the kernel's page behind the
        // last.
        assert!(before <= 2 * PAGE && taken <= PAGE, "{before} and {taken} more");
        // And where all is touched it is as much as there are entries, and the nodes above them.
        let dense = manager.region(Bytes::mib(64)).create().expect("a region");
        (0..dense.len() / PAGE).for_each(|page| dense.write_words(page * PAGE, &[1; 8]).expect("written"));
        let table = engine.gate_shared();
        let entries = table.find(dense.as_ptr().addr()).expect("managed").entries();
        let formula = 8 * Radix::words_for(dense.len() / table.entry_bytes()).expect("few");
        assert_eq!((size_of_val(entries.array()), entries.used_bytes()), (formula, formula as u64));
        assert!(
            (formula..=formula + 2 * PAGE).contains(&in_memory(entries)),
            "{} of {formula}",
            in_memory(entries)
        );
    }
}

#[test]
fn a_moved_span_keeps_its_entries_at_any_address() {
    let mut table = Table::new(BasePage::K64);
    table.insert(range(1003, 1100), Filler::Engine);
    let page = table.page_at(table.find(1050 * PAGE).expect("managed"), 1050 * PAGE);
    let mut cut = table.cut(range(1003, 1100));
    table.put_moved(cut.pop().expect("one"), 1003 * PAGE, 2 * PAGE);
    let span = table.find(49 * PAGE).expect("managed");
    let moved = table.page_at(span, 49 * PAGE);
    assert_eq!((moved.index, moved.granules), (page.index, page.granules));
    assert_eq!(moved.granule_of(49 * PAGE), page.granule_of(1050 * PAGE));
    assert_eq!(span.range(), range(2, 99));
}

proptest! {
    /// For any inserts, cuts and moves: spans never overlap, and an address is managed if and only
    /// if a plain array of addresses says so.
    #[test]
    fn the_table_agrees_with_an_array(
        steps in proptest::collection::vec((0u8..3, 0usize..200, 1usize..40, 0usize..200), 1..40)
    ) {
        let mut table = Table::new(BasePage::K64);
        let mut model = [false; 300];
        for (kind, from, len, to) in steps {
            let whole = range(from, from + len);
            match kind {
                0 => {
                    let mut gaps = Vec::new();
                    table.gaps(whole, |gap| gaps.push(gap));
                    for gap in gaps { table.insert(gap, Filler::Engine); }
                    model[from..from + len].fill(true);
                }
                1 => { table.cut(whole); model[from..from + len].fill(false); }
                _ => {
                    let target = range(to, to + len);
                    if whole.intersection(target).is_some() { continue; }
                    let moved = table.cut(whole);
                    table.cut(target);
                    for span in moved { table.put_moved(span, whole.start(), target.start()); }
                    let source: Vec<bool> = model[from..from + len].to_vec();
                    model[from..from + len].fill(false);
                    model[to..to + len].copy_from_slice(&source);
                }
            }
            for (page, managed) in model.iter().enumerate() {
                prop_assert_eq!(table.find(page * PAGE).is_some(), *managed, "page {}", page);
            }
            for (a, b) in table.spans().zip(table.spans().skip(1)) {
                prop_assert!(a.range().end() <= b.range().start());
            }
        }
    }
}
