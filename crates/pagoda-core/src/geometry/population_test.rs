use std::collections::BTreeSet;
use std::iter::once;

use proptest::prelude::*;

use super::*;
use crate::geometry::{HardwarePage, Scheme};
use crate::page::BasePage;

fn geometry(scheme: Scheme, base: BasePage) -> Geometry {
    Geometry::new(scheme, base).unwrap()
}

fn sv39() -> [Geometry; 2] {
    [BasePage::K4, BasePage::K64].map(|base| geometry(Scheme::Sv39, base))
}

/// Ranges of whole OS pages below 512 GiB. Gaps and lengths vary over 21 powers of two.
fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
    let pages = || (0u32..21, any::<u32>()).prop_map(|(bits, n)| u64::from(n) & ((1 << bits) - 1));
    prop::collection::vec((pages(), pages()), 0..40).prop_map(|steps| {
        let mut at = 0;
        let step = |(gap, length)| {
            let start = at + gap;
            at = start + length;
            start << 12..at << 12
        };
        steps.into_iter().map(step).collect()
    })
}

proptest! {
    #[test]
    fn tables_are_those_that_mapping_page_by_page_would_make(
        starts in prop::collection::vec((0u64..1 << 27, 1u64..40), 0..12),
    ) {
        let mut mapped = BTreeSet::new();
        for (start, length) in starts {
            mapped.extend((start..start + length).filter(|page| *page < 1 << 27));
        }
        let ranges = || mapped.iter().map(|page| page << 12..(page + 1) << 12);
        for base in [BasePage::K4, BasePage::K16, BasePage::K64] {
            let geometry = geometry(Scheme::Sv39, base);
            let mut tables = BTreeSet::from([(0, Vec::new())]);
            for page in &mapped {
                let path: Vec<_> = (0..3).map(|level| geometry.index(page << 12, level)).collect();
                tables.extend((1..3).map(|level| (level, path[..level].to_vec())));
            }
            let bytes: u64 = tables.iter().map(|(level, _)| geometry.table_size(*level).get()).sum();
            prop_assert_eq!(geometry.table_bytes(ranges()).get(), bytes);
        }
    }

    #[test]
    fn larger_base_pages_never_take_fewer_bytes_or_more_pages(ranges in ranges()) {
        let [small, large] = sv39();
        let ranges = || ranges.iter().cloned();
        let (few, many) = (large.pages(ranges()), small.pages(ranges()));
        prop_assert!(few <= many && many <= 16 * few);
        prop_assert!(large.resident_bytes(ranges()) >= small.resident_bytes(ranges()));
        prop_assert!(large.table_bytes(ranges()) >= small.table_bytes(ranges()));
        prop_assert!(large.software_table_bytes(ranges()) <= small.software_table_bytes(ranges()));
    }

    #[test]
    fn one_entry_for_64_kib_takes_at_most_a_fourteenth_when_dense(
        start in 0u64..1 << 20, pages in 1u64 << 18..1 << 24,
    ) {
        let [small, large] = sv39();
        let dense = || once(start << 12..(start + pages) << 12);
        let (at_4k, at_64k) = (small.software_table_bytes(dense()), large.software_table_bytes(dense()));
        prop_assert!(at_64k.get() * 14 <= at_4k.get());
    }

    #[test]
    fn how_ranges_are_cut_makes_no_difference(ranges in ranges(), at in any::<prop::sample::Index>()) {
        let [_, large] = sv39();
        let mut cut = ranges.clone();
        if !cut.is_empty() {
            let i = at.index(cut.len());
            let middle = cut[i].start + (cut[i].end - cut[i].start) / 2;
            let end = std::mem::replace(&mut cut[i].end, middle);
            cut.insert(i + 1, middle..end);
        }
        prop_assert_eq!(large.table_bytes(cut.iter().cloned()), large.table_bytes(ranges.iter().cloned()));
        prop_assert_eq!(large.pages(cut), large.pages(ranges));
    }
}

#[test]
fn one_page_takes_a_table_per_level_and_no_page_takes_the_root_alone() {
    let [small, large] = sv39();
    assert_eq!((small.table_bytes([]), large.table_bytes([])), (Bytes::kib(4), Bytes::kib(4)));
    let page = || once(0x7000..0x8000);
    assert_eq!((small.table_bytes(page()), large.table_bytes(page())), (Bytes::kib(12), Bytes::kib(132)));
}

#[test]
fn native_64_kib_pages_save_hardware_tables_too_when_much_is_mapped() {
    let small = geometry(Scheme::AArch64(HardwarePage::K4), BasePage::K4);
    let native = geometry(Scheme::AArch64(HardwarePage::K64), BasePage::K64);
    let ratio = |gib: u64| {
        let dense = || once(0..gib << 30);
        small.table_bytes(dense()).get() / native.table_bytes(dense()).get()
    };
    assert_eq!((ratio(1), ratio(16)), (10, 15));
    // A single page costs more than eight times as much.
    let page = || once(0..4096);
    assert_eq!((small.table_bytes(page()).get(), native.table_bytes(page()).get()), (16_384, 131_584));
}

#[test]
#[should_panic(expected = "not sorted")]
fn unsorted_ranges_are_refused() {
    let _ = sv39()[0].pages([0x2000..0x3000, 0..0x1000]);
}

#[test]
#[should_panic(expected = "beyond 39 bits")]
fn ranges_beyond_the_scheme_are_refused() {
    let _ = sv39()[0].pages(once(0..(1 << 39) + 1));
}
