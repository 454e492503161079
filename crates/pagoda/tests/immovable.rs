//! Regions whose owner protects or locks parts of them, as garbage collectors and JITs do: nothing
//! is lost, nothing ends the process, and the budget holds again once the parts can be moved.

use pagoda::{Bytes, Manager, Region};
use pagoda_linux::testing::area::{Area, Rights};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGE: usize = 4096;
const BUDGET: Bytes = Bytes::mib(40);
const REGION: Bytes = Bytes::mib(64);

fn manager() -> Option<Manager> {
    if skip_without_moves("immovable memory") {
        return None;
    }
    let builder = Manager::builder().budget(BUDGET).user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1));
    Some(builder.build().expect("a manager"))
}

/// Of a page: two words that differ from page to page, so that each page is stored.
fn content(seed: u64, page: usize) -> [u8; 16] {
    let words = [seed ^ (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), !(page as u64)];
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
    bytes[8..].copy_from_slice(&words[1].to_le_bytes());
    bytes
}

fn fill(region: &mut Region, seed: u64) {
    for page in 0..region.len() / PAGE {
        region.write_at(page * PAGE + 8 * (page % 500), &content(seed, page)).expect("written");
    }
}

fn wrong(region: &Region, seed: u64) -> usize {
    let is_wrong = |page: &usize| {
        let mut found = [0; 16];
        region.read_at(page * PAGE + 8 * (page % 500), &mut found).expect("read");
        found != content(seed, *page)
    };
    (0..region.len() / PAGE).filter(is_wrong).count()
}

/// The memory of a protected region is held beyond the budget, which other regions keep to
/// themselves.
fn survives(rights: Rights, may_be_read: bool) {
    let Some(manager) = manager() else { return };
    let [mut protected, mut other] = [(); 2].map(|()| manager.region(REGION).create().expect("a region"));
    fill(&mut protected, 1);
    let pages = protected.len() / PAGE;
    let area = Area::of_region(protected.as_ptr(), pages);
    area.protect(0..pages, rights).expect("protected");
    if may_be_read {
        // More of it than the budget holds comes back, and stays.
        assert_eq!(wrong(&protected, 1), 0, "read as it is protected");
    }
    fill(&mut other, 2);
    assert_eq!(wrong(&other, 2), 0, "beside the protected part");
    area.protect(0..pages, Rights::Write).expect("writable again");
    assert_eq!((wrong(&protected, 1), wrong(&other, 2)), (0, 0), "all of it can be moved again");
    until("the budget holds again", || manager.stats().anon_bytes <= BUDGET.get());
    fill(&mut protected, 3);
    assert_eq!((wrong(&protected, 3), wrong(&other, 2)), (0, 0));
}

#[test]
fn a_read_only_region_larger_than_the_budget_does_not_end_its_process() {
    survives(Rights::Read, true);
}

#[test]
fn a_region_without_access_does_not_end_its_process() {
    survives(Rights::None, false);
}

/// Parts are protected in turn, as by a collector that has not scanned them yet.
#[test]
fn parts_that_are_protected_in_turn_keep_every_write() {
    let Some(manager) = manager() else { return };
    let mut region = manager.region(REGION).create().expect("a region");
    let pages = region.len() / PAGE;
    fill(&mut region, 0);
    let area = Area::of_region(region.as_ptr(), pages);
    let part = pages / 8;
    for round in 1..=16u64 {
        let at = (round as usize % 8) * part;
        area.protect(at..at + part, if round % 2 == 0 { Rights::Read } else { Rights::None })
            .expect("protected");
        for page in (0..pages).filter(|page| !(at..at + part).contains(page)) {
            region.write_at(page * PAGE + 8 * (page % 500), &content(round, page)).expect("written");
        }
        area.protect(at..at + part, Rights::Write).expect("writable again");
        for page in at..at + part {
            let mut found = [0; 16];
            region.read_at(page * PAGE + 8 * (page % 500), &mut found).expect("read");
            assert_eq!(found, content(round - 1, page), "round {round}, page {page}");
            region.write_at(page * PAGE + 8 * (page % 500), &content(round, page)).expect("written");
        }
    }
    assert_eq!(wrong(&region, 16), 0);
}
