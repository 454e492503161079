//! The content of staged pages that change zones, one by one.

use std::sync::Arc;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::page_entry::Backing;
use pagoda_core::size::Bytes;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::frames::zones::Place;
use crate::store::page_of;
use crate::table::Entries;
use crate::{Manager, Region};

const BASE: usize = 64 << 10;

/// A local zone and a remote one, between which nothing moves by itself.
fn manager(tiering: bool) -> Manager {
    let builder = Manager::builder().user_mode_only(true).zone("near", Bytes::mib(32), Place::Local).zone(
        "far",
        Bytes::mib(32),
        if tiering { Place::Remote } else { Place::Local },
    );
    builder.tune(|tuning| tuning.clear_ahead(0).fault_around(false)).build().expect("a manager")
}

fn words(page: usize) -> Vec<u8> {
    page_of(OS_PAGE, 31, page as u64)
}

fn fill(region: &Region, pages: std::ops::Range<usize>) {
    pages.for_each(|page| region.write_words(page * OS_PAGE, &words(page)).expect("written"));
}

fn expect(region: &Region, pages: std::ops::Range<usize>) {
    for page in pages {
        let mut back = [0; OS_PAGE];
        region.read_at(page * OS_PAGE, &mut back).expect("read");
        let expected = words(page);
        assert!(back[..] == expected[..], "page {page}");
    }
}

/// Stages the first base page, and returns its entry and slot.
fn stage(manager: &Manager, region: &Region) -> (Entries, usize, u32) {
    let (engine, at) = (manager.engine(), region.as_ptr().addr());
    let mut staged = None;
    until("the page is staged", || {
        let table = engine.gate_shared();
        let span = table.find(at).expect("a span");
        let index = table.page_at(span, at).index;
        engine.stage_page(&table, span, index, &mut Vec::new());
        let Backing::Slot(slot) = span.word(index).backing() else { return false };
        staged = Some((Arc::clone(span.entries()), index, slot));
        !span.word(index).is_busy()
    });
    staged.expect("it is staged")
}

fn far(region: &Region) -> u64 {
    let zones = region.zones(0, BASE);
    assert_eq!(zones[1].0, "far");
    zones[1].1.get()
}

#[test]
fn a_staged_page_is_read_from_the_zone_that_it_was_demoted_to() {
    if skip_without_moves("pages that change zones") {
        return;
    }
    let manager = manager(true);
    let region = manager.region(Bytes::mib(8)).create().expect("a region");
    let pages = 0..BASE / OS_PAGE;
    fill(&region, pages.clone());
    let (entries, index, slot) = stage(&manager, &region);
    assert_eq!(far(&region), 0);
    assert!(manager.engine().demote(&entries, index, slot));
    assert_eq!(far(&region), BASE as u64);
    assert!(!manager.engine().demote(&entries, index, slot), "it is elsewhere");
    expect(&region, pages.clone());
    assert_eq!(far(&region), BASE as u64, "one touch of a demoted page shows nothing");
    // Staged, and back at once: it is hot. Another tick may begin before it is back.
    manager.engine().zones.tiers().expect("tiers").may_promote(u32::MAX);
    until("it is promoted", || {
        stage(&manager, &region);
        expect(&region, pages.clone());
        far(&region) == 0
    });
    let stats = manager.stats();
    assert!(stats.zones_demoted_bytes >= BASE as u64 && stats.zones_promoted_bytes >= BASE as u64);
}

#[test]
fn a_page_with_holes_stays_in_its_zone_and_reads_zero_there() {
    if skip_without_moves("pages that change zones") {
        return;
    }
    let manager = manager(true);
    let region = manager.region(Bytes::mib(8)).base_page(BasePage::K4).create().expect("a region");
    fill(&region, 0..3);
    let (entries, index, slot) = stage(&manager, &region);
    assert!(!manager.engine().demote(&entries, index, slot));
    assert_eq!(far(&region), 0);
    expect(&region, 0..3);
    for page in 3..BASE / OS_PAGE {
        let mut back = [1; OS_PAGE];
        region.read_at(page * OS_PAGE, &mut back).expect("read");
        assert_eq!(back, [0; OS_PAGE], "page {page}");
    }
}

#[test]
fn without_a_remote_zone_there_are_no_tiers() {
    if skip_without_moves("zones") {
        return;
    }
    assert!(manager(false).engine().zones.tiers().is_none());
    let one = Manager::builder().user_mode_only(true).budget(Bytes::mib(32)).build().expect("a manager");
    assert!(one.engine().zones.tiers().is_none());
    assert!(manager(true).engine().zones.tiers().is_some());
}
