//! Regions with parts that their owner protects, as garbage collectors and JITs do: these parts are
//! evicted like others, nothing is lost, and the protection is as its owner set it.

use std::thread;

use pagoda::{BasePage, Bytes, Manager, Region};
use pagoda_linux::testing::area::{Area, Rights};
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGE: usize = 4096;
const BUDGET: Bytes = Bytes::mib(40);
/// One of them is more than the budget.
const REGION: Bytes = Bytes::mib(48);

/// The ways to serve faults, and the sizes of base pages that differ in how they are evicted.
const KINDS: [(bool, BasePage); 4] =
    [(false, BasePage::K64), (true, BasePage::K64), (false, BasePage::K4), (false, BasePage::M2)];

fn manager(in_thread: bool, base: BasePage) -> Option<Manager> {
    if skip_without_moves("protected memory") {
        return None;
    }
    let builder = Manager::builder().budget(BUDGET).user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1));
    Some(builder.serve_in_thread(in_thread).base_page(base).build().expect("a manager"))
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

/// A protected region is evicted like any other, and comes back with its protection.
fn is_evicted(rights: Rights, may_be_read: bool) {
    for (in_thread, base) in KINDS {
        let Some(manager) = manager(in_thread, base) else { return };
        loses_nothing(&manager, rights, may_be_read, true);
    }
}

/// A protected region keeps its content and its protection beside another one, and both go on
/// afterwards. Where it `is_lifted` the budget holds all the while.
fn loses_nothing(manager: &Manager, rights: Rights, may_be_read: bool, is_lifted: bool) {
    let keeps_budget = || manager.stats().anon_bytes <= BUDGET.get();
    let [mut protected, mut other] = [(); 2].map(|()| manager.region(REGION).create().expect("a region"));
    fill(&mut protected, 1);
    let pages = protected.len() / PAGE;
    let area = Area::of_region(protected.as_ptr(), pages);
    area.protect(0..pages, rights).expect("protected");
    if may_be_read {
        for _ in 0..2 {
            assert_eq!(wrong(&protected, 1), 0, "read as it is protected");
        }
        if is_lifted {
            until("the budget holds", keeps_budget);
        } else {
            // More of it than the budget holds has come back, and stays.
            assert!(!keeps_budget());
        }
    }
    fill(&mut other, 2);
    assert_eq!(wrong(&other, 2), 0, "beside the protected part");
    if is_lifted {
        until("the budget holds beside another region", keeps_budget);
    }
    assert!(area.allows(0..pages, rights), "its protection is its owner's");
    area.protect(0..pages, Rights::Write).expect("writable again");
    assert_eq!((wrong(&protected, 1), wrong(&other, 2)), (0, 0), "all of it came back");
    until("the budget holds again", keeps_budget);
    fill(&mut protected, 3);
    assert_eq!((wrong(&protected, 3), wrong(&other, 2)), (0, 0));
}

#[test]
fn a_read_only_region_is_evicted_and_comes_back_read_only() {
    is_evicted(Rights::Read, true);
}

#[test]
fn a_region_without_access_is_evicted_and_stays_without() {
    is_evicted(Rights::None, false);
}

/// Where nothing is lifted, protected memory is held beyond the budget, and all goes on.
#[test]
fn beside_adopted_memory_a_protected_region_stays_and_ends_nothing() {
    let Some(manager) = manager(false, BasePage::K64) else { return };
    let foreign = Area::new(16, 0).expect("memory");
    let adopted = manager.adopt(foreign.foreign()).expect("adopted");
    for (rights, may_be_read) in [(Rights::Read, true), (Rights::None, false)] {
        loses_nothing(&manager, rights, may_be_read, false);
    }
    drop(adopted);
}

/// Parts are protected in turn, as by a collector that has not scanned them yet.
#[test]
fn parts_that_are_protected_in_turn_keep_every_write() {
    let Some(manager) = manager(false, BasePage::K64) else { return };
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

/// What one thread does with a region of its own.
fn stir(mut region: Region, seed: u64, rounds: u64) {
    let pages = region.len() / PAGE;
    let area = Area::of_region(region.as_ptr(), pages);
    let mut random = Random::new(seed, 0);
    let mut content = vec![[0; 16]; pages];
    let mut rights = vec![Rights::Write; pages];
    let at = |page: usize| page * PAGE + 8 * (page % 500);
    for round in 1..=rounds {
        let from = random.below(pages);
        let some = from..(from + 1 + random.below(64)).min(pages);
        match random.below(8) {
            0..3 => {
                for page in some.filter(|page| rights[*page] == Rights::Write) {
                    content[page] = self::content(seed << 32 | round, page);
                    region.write_at(at(page), &content[page]).expect("written");
                }
            }
            3..5 => {
                for page in some.filter(|page| rights[*page] != Rights::None) {
                    let mut found = [0; 16];
                    region.read_at(at(page), &mut found).expect("read");
                    assert_eq!(found, content[page], "seed {seed}, round {round}, page {page}");
                }
            }
            5 => {
                area.discard(some.clone()).expect("discarded");
                content[some].fill([0; 16]);
            }
            kind => {
                let some = if kind == 7 { 0..pages } else { some };
                let now = [Rights::Read, Rights::None, Rights::Write][random.below(3)];
                area.protect(some.clone(), now).expect("protected");
                rights[some].fill(now);
            }
        }
    }
    area.protect(0..pages, Rights::Write).expect("writable");
    for (page, content) in content.into_iter().enumerate() {
        let mut found = [0; 16];
        region.read_at(at(page), &mut found).expect("read");
        assert_eq!(found, content, "seed {seed}, page {page}");
    }
}

#[test]
fn threads_that_protect_discard_and_write_lose_nothing_to_a_lift() {
    let rounds = length(1_000, 20_000);
    for (in_thread, base) in KINDS {
        let Some(manager) = manager(in_thread, base) else { return };
        thread::scope(|threads| {
            for seed in 1..=3 {
                let region = manager.region(Bytes::mib(24)).create().expect("a region");
                threads.spawn(move || stir(region, seed, rounds));
            }
        });
    }
}
