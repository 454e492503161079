//! Regions whose owner protects parts of them by calls, or has them grow.

use pagoda::{Access, AccessError, BasePage, Bytes, Manager, ManagerBuilder, Region, RegionError};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGE: usize = 4096;
const BUDGET: Bytes = Bytes::mib(64);
const MIB: usize = 1 << 20;

fn builders() -> Vec<ManagerBuilder> {
    if skip_without_moves("regions that are changed") {
        return Vec::new();
    }
    let builder = || Manager::builder().budget(BUDGET).spill_to("/var/tmp", Bytes::gib(1));
    vec![builder().user_mode_only(true), builder().serve_in_thread(true)]
}

fn content(seed: u64, page: usize) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    let word = seed ^ (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes
}

fn place(page: usize) -> usize {
    page * PAGE + 16 * (page % 250)
}

fn fill(region: &mut Region, seed: u64, pages: std::ops::Range<usize>) {
    pages.for_each(|page| region.write_at(place(page), &content(seed, page)).expect("written"));
}

fn wrong(region: &Region, seed: u64, pages: std::ops::Range<usize>) -> usize {
    let is_wrong = |page: &usize| {
        let mut found = [0; 16];
        region.read_at(place(*page), &mut found).expect("read");
        found != content(seed, *page)
    };
    pages.filter(is_wrong).count()
}

/// The kernel's protection of the page at `offset`.
fn protection(region: &Region, offset: usize) -> String {
    let (maps, at) =
        (std::fs::read_to_string("/proc/self/maps").expect("maps"), region.as_ptr().addr() + offset);
    let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    let mut lines = maps.lines().map(|line| line.split_once(' ').expect("a range"));
    let found = lines.find(|(range, _)| {
        let (start, end) = range.split_once('-').expect("a range");
        (number(start)..number(end)).contains(&at)
    });
    found.expect("mapped").1[..4].to_owned()
}

#[test]
fn a_protected_part_allows_what_was_said_and_keeps_its_content() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let mut region = manager.region(Bytes::mib(96)).create().expect("a region");
        let pages = 96 * MIB / PAGE;
        fill(&mut region, 1, 0..pages);
        region.protect(8 * MIB, 8 * MIB, Access::Read).expect("protected");
        region.protect(32 * MIB, PAGE, Access::None).expect("protected");
        let at = [0, 8 * MIB, 16 * MIB - 1, 16 * MIB, 32 * MIB].map(|at| protection(&region, at));
        assert_eq!(at, ["rw-p", "r--p", "r--p", "rw-p", "---p"]);
        let refused = Err(AccessError::Protected);
        assert_eq!(region.write_at(8 * MIB - 1, &[0; 2]), refused);
        assert_eq!(region.write_words(16 * MIB - 8, &[0; 8]), refused);
        assert_eq!(region.try_write_at(12 * MIB, &[0]), refused);
        assert_eq!(region.read_at(32 * MIB, &mut [0]), refused);
        assert_eq!(region.read_at(32 * MIB - 8, &mut [0; 16]), refused);
        region.write_at(8 * MIB - 2, &[0; 2]).expect("beside it");
        fill(&mut region, 1, 8 * MIB / PAGE - 1..8 * MIB / PAGE);
        let closed = 32 * MIB / PAGE;
        assert_eq!(wrong(&region, 1, 0..closed) + wrong(&region, 1, closed + 1..pages), 0);
        assert!(
            region.protect(1, PAGE, Access::Read).is_err() && region.protect(0, 1, Access::Read).is_err()
        );
        region.protect(0, 96 * MIB, Access::Write).expect("all of it is open");
        assert_eq!(wrong(&region, 1, 0..pages), 0);
        fill(&mut region, 2, 0..pages);
        assert_eq!(wrong(&region, 2, 0..pages), 0);
        until("the budget holds", || manager.stats().anon_bytes <= BUDGET.get());
    }
}

#[test]
#[should_panic(expected = "all of the region can be written")]
fn words_of_a_protected_region_are_not_given_out() {
    let Some(builder) = builders().pop() else { panic!("skipped: all of the region can be written") };
    let manager = builder.build().expect("a manager");
    let mut region = manager.region(Bytes::mib(1)).create().expect("a region");
    region.protect(0, PAGE, Access::Read).expect("protected");
    region.words_mut();
}

#[test]
fn a_region_grows_within_its_reserve_and_keeps_its_address_and_content() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        for base in [None, Some(BasePage::K4), Some(BasePage::K64), Some(BasePage::M2)] {
            let builder = manager.region(Bytes::mib(4)).reserve(Bytes::mib(100));
            let builder = base.into_iter().fold(builder, |builder, base| builder.base_page(base));
            let mut region = builder.create().expect("a region");
            let (at, mut pages) = (region.as_ptr(), 4 * MIB / PAGE);
            assert_eq!((region.len(), protection(&region, 4 * MIB)), (4 * MIB, "---p".to_owned()));
            fill(&mut region, 3, 0..pages);
            for more in [Bytes::new(1), Bytes::mib(16), Bytes::mib(64)] {
                region.grow(more).expect("reserved");
                let unit = base.map_or(64 << 10, |base| base.bytes().max(64 << 10));
                let len = pages * PAGE + more.as_usize().next_multiple_of(unit);
                assert_eq!((region.len(), region.as_ptr()), (len, at), "{base:?}");
                let mut found = [1; 16];
                region.read_at(place(pages), &mut found).expect("read");
                assert_eq!(found, [0; 16], "new pages read as zero");
                fill(&mut region, 3, pages..len / PAGE);
                pages = len / PAGE;
            }
            assert_eq!(wrong(&region, 3, 0..pages), 0, "{base:?}");
            // More than the budget, so that old and new parts were evicted.
            assert!(manager.stats().evictions > 0);
            let left = Bytes::new((100 * MIB - region.len()) as u64);
            let more = Bytes::mib(32);
            assert_eq!(region.grow(more), Err(RegionError::BeyondReserve { more, left }));
            assert_eq!(region.grow(Bytes::ZERO), Err(RegionError::Empty));
            region.discard(0, region.len()).expect("all of it");
            region.close();
            until("nothing is left of it", || {
                let stats = manager.stats();
                (stats.resident_bytes, stats.staged_bytes, stats.stored_bytes) == (0, 0, 0)
            });
        }
        let mut fixed = manager.region(Bytes::mib(1)).create().expect("a region");
        assert!(matches!(fixed.grow(Bytes::mib(1)), Err(RegionError::BeyondReserve { .. })));
    }
}

#[test]
fn a_limit_holds_for_what_a_region_grew_by() {
    for builder in builders() {
        let manager = builder.build().expect("a manager");
        let builder = manager.region(Bytes::mib(4)).reserve(Bytes::mib(16)).limit(Bytes::mib(6));
        let mut region = builder.create().expect("a region");
        fill(&mut region, 4, 0..4 * MIB / PAGE);
        region.grow(Bytes::mib(12)).expect("reserved");
        let refused = (4 * MIB / PAGE..16 * MIB / PAGE)
            .find(|page| region.write_at(place(*page), &content(4, *page)) == Err(AccessError::LimitReached));
        let refused = refused.expect("the limit is less than the region");
        assert!((5 * MIB..=6 * MIB).contains(&(refused * PAGE)), "{refused}");
        assert_eq!(wrong(&region, 4, 0..refused), 0);
    }
}
