//! Which memory a manager adopts, and which it refuses without a trace.

use libc::{PROT_NONE, PROT_READ, PROT_WRITE};
use pagoda::{AdoptedRegion, Bytes, Manager, RegionError, Stats};
use pagoda_linux::mem::plain_memory::{Pages, PlainMemory};
use pagoda_linux::testing::area::Area;
use pagoda_linux::testing::foreign::Foreign;
use pagoda_linux::testing::mapping::PAGE;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGES: usize = 1024;
const BUDGET: Bytes = Bytes::mib(64);

fn private() -> Foreign {
    Foreign::private(PAGES).expect("room")
}

fn adopt(
    memory: &Foreign,
    manager: &Manager,
    first: usize,
    pages: usize,
) -> Result<AdoptedRegion, RegionError> {
    manager.adopt(memory.give(first..first + pages))
}

fn manager() -> Option<Manager> {
    if skip_without_moves("adoption") {
        return None;
    }
    Some(Manager::builder().budget(BUDGET).user_mode_only(true).build().expect("manager"))
}

#[test]
fn a_range_with_a_hole_is_refused_and_its_parts_are_adopted() {
    let Some(manager) = manager() else { return };
    let mut memory = private();
    for page in 0..PAGES {
        memory.write(page, page as u8);
    }
    memory.unmap(100..128).expect("unmapped");
    let hole = |page: usize, from: usize| {
        let offset = Bytes::new(((page - from) * PAGE) as u64);
        Some(RegionError::Hole { at: memory.address(page), offset })
    };
    assert_eq!(adopt(&memory, &manager, 0, PAGES).err(), hole(100, 0), "in the middle");
    assert_eq!(adopt(&memory, &manager, 0, 128).err(), hole(100, 0), "at the end");
    assert_eq!(adopt(&memory, &manager, 100, 100).err(), hole(100, 100), "at the start");
    assert_eq!(adopt(&memory, &manager, 110, 10).err(), hole(110, 110), "all of it");
    // Refused memory is registered nowhere: the parts can be adopted, by two managers too.
    let other = self::manager().expect("as above");
    let parts = [
        adopt(&memory, &manager, 0, 100).expect("a part"),
        adopt(&memory, &other, 128, 400).expect("a part"),
    ];
    for page in (0..100).chain(128..PAGES) {
        assert_eq!(memory.read(page), page as u8);
    }
    drop(parts);
}

/// Swapped in, it would take four times the budget.
#[test]
fn forgotten_memory_is_empty_and_never_comes_back() {
    const LEN: usize = 256 << 20;
    let Some(manager) = manager() else { return };
    let mut memory = PlainMemory::map(LEN, Pages::Small).expect("room");
    let region = manager.adopt(memory.foreign()).expect("adopted");
    memory.words_mut().iter_mut().enumerate().for_each(|(at, word)| *word = at as u64 >> 3);
    let before = manager.stats();
    assert!(before.stored_bytes > (LEN / 2) as u64, "most of it is swapped out: {before:?}");
    region.forget().expect("forgotten");
    manager.flush_releases();
    let after = manager.stats();
    assert_eq!((after.brought_back_bytes, after.faults_stored), (0, before.faults_stored));
    assert_eq!((after.resident_bytes, after.staged_bytes), (0, 0), "{after:?}");
    until("its stored pages are freed", || manager.stats().stored_bytes == 0);
    let held = |stats: Stats| stats.store_memory_bytes + stats.ready_bytes;
    until("what it holds is within the budget", || held(manager.stats()) <= BUDGET.get());
    assert!(memory.words_mut().iter().all(|word| *word == 0));
    // It is its owner's: no fault there is the manager's any more, and it can be adopted again.
    memory.words_mut().fill(7);
    assert_eq!(manager.stats().faults, after.faults);
    let again = manager.adopt(memory.foreign()).expect("adopted");
    again.page_out(0, LEN).expect("room in the store");
    assert!(memory.words_mut().iter().all(|word| *word == 7));
    again.forget().expect("forgotten");
}

#[test]
fn forgetting_leaves_memory_alone_that_was_mapped_since() {
    let Some(manager) = manager() else { return };
    let memory = private();
    (0..PAGES).for_each(|page| memory.write(page, page as u8 | 1));
    let region = adopt(&memory, &manager, 0, PAGES).expect("adopted");
    region.page_out(0, PAGES / 2 * PAGE).expect("room in the store");
    let other = Area::of_region(region.as_ptr(), PAGES);
    other.unmap(100..128).expect("unmapped");
    other.map(100..128).expect("mapped");
    (100..128).for_each(|page| memory.write(page, 9));
    region.forget().expect("forgotten");
    for page in 0..PAGES {
        let expected = if (100..128).contains(&page) { 9 } else { 0 };
        assert_eq!(memory.read(page), expected, "page {page}");
    }
}

#[test]
fn several_mappings_without_a_hole_are_adopted() {
    let Some(manager) = manager() else { return };
    let mut memory = private();
    memory.write(600, 7);
    // Afterwards it is as before, in three pieces or one.
    memory.protect(512..576, PROT_READ).expect("protected");
    memory.protect(512..576, PROT_READ | PROT_WRITE).expect("protected");
    let region = adopt(&memory, &manager, 0, PAGES).expect("adopted");
    assert_eq!((memory.read(600), memory.read(0)), (7, 0));
    region.close();
    assert_eq!((memory.read(600), memory.read(0)), (7, 0));
}

#[test]
fn memory_of_another_kind_is_refused() {
    let Some(manager) = manager() else { return };
    let shared = Foreign::shared(PAGES).expect("room");
    let kind = |memory: &Foreign, page: usize| {
        Some(RegionError::Kind { at: memory.address(page), offset: Bytes::new((page * PAGE) as u64) })
    };
    assert_eq!(adopt(&shared, &manager, 0, PAGES).err(), kind(&shared, 0));
    for protection in [PROT_READ, PROT_NONE] {
        let mut memory = private();
        memory.protect(512..513, protection).expect("protected");
        let refused = adopt(&memory, &manager, 0, PAGES).err();
        assert_eq!(refused, kind(&memory, 512));
        let said = refused.expect("an error").to_string();
        assert!(
            said.contains("2 MiB into") && said.contains("private anonymous") && !said.contains('\n'),
            "{said}"
        );
    }
}

#[test]
fn memory_that_is_managed_already_is_refused_and_stays_managed() {
    let Some(manager) = manager() else { return };
    let memory = private();
    for page in 0..PAGES {
        memory.write(page, page as u8);
    }
    let region = adopt(&memory, &manager, 16, PAGES - 32).expect("adopted");
    region.page_out(0, region.len()).expect("room in the store");
    for (first, pages) in [(16, PAGES - 32), (16, 16), (0, PAGES), (0, 17), (PAGES - 17, 17), (512, 1)] {
        let refused = adopt(&memory, &manager, first, pages).err();
        assert!(matches!(refused, Some(RegionError::Register { .. })), "{first}: {refused:?}");
    }
    for page in 0..PAGES {
        assert_eq!(memory.read(page), page as u8, "page {page}");
    }
    region.close();
    let again = adopt(&memory, &manager, 0, PAGES).expect("adopted");
    again.close();
    for page in 0..PAGES {
        assert_eq!(memory.read(page), page as u8, "page {page}");
    }
}
