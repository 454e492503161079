//! Short zones: which threads the engine wakes, and which zones pages are evicted from.

use std::sync::atomic::Ordering;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_core::size::Bytes;
use pagoda_core::zone::ZonePolicy;
use pagoda_linux::process::thread::now_ns;
use pagoda_linux::testing::area::Area;
use pagoda_linux::testing::skip::{skip, skip_without_moves};
use pagoda_linux::testing::wait::until;
use pagoda_linux::uffd::fault_address::FaultAddress;

use crate::frames::zones::Place;
use crate::state::pending::{Fault, Tried};
use crate::store::{Scratch, page_of};
use crate::{Manager, Region};

/// A manager of these zones, which gets nothing ready before it is asked.
fn manager(zones: &[(&str, u64, Place)], policy: ZonePolicy) -> Manager {
    with_base_page(zones, policy, BasePage::K64)
}

fn with_base_page(zones: &[(&str, u64, Place)], policy: ZonePolicy, base: BasePage) -> Manager {
    let builder = Manager::builder().user_mode_only(true).tune(|tuning| {
        // A sample would be evictions.
        tuning.clear_ahead(0).fault_around(false).tiering(false)
    });
    let builder = zones
        .iter()
        .fold(builder, |builder, (name, mib, place)| builder.zone(name, Bytes::mib(*mib), *place));
    builder.base_page(base).tune(|tuning| tuning.zone_policy(policy)).build().expect("a manager")
}

fn write(region: &Region, page: usize) {
    region.write_words(page * OS_PAGE, &page_of(OS_PAGE, 47, page as u64)).expect("written");
}

#[test]
fn a_fault_that_finds_no_frame_wakes_reclaim_once_however_often_it_is_tried() {
    if skip_without_moves("faults without a frame") {
        return;
    }
    // Turns of base pages of 4 KiB are long enough to be cached.
    [BasePage::K64, BasePage::K4].into_iter().for_each(expect_one_ring);
}

fn expect_one_ring(base: BasePage) {
    const TRIES: usize = 50;
    let zones = [("one", 32, Place::Local), ("two", 32, Place::Local)];
    let manager = with_base_page(&zones, ZonePolicy::Fair, base);
    let stuck = manager.region(Bytes::mib(40)).create().expect("a region");
    let pages = stuck.len() / OS_PAGE;
    (0..pages).for_each(|page| write(&stuck, page));
    let area = Area::of_region(stuck.as_ptr(), pages);
    if let Err(error) = area.lock(0..pages, true) {
        return skip("faults without a frame", error);
    }
    let resize = |mib| {
        for name in ["one", "two"] {
            manager.resize_zone(name, Bytes::mib(mib)).expect("within its addresses");
        }
    };
    resize(12);
    let region = manager.region(Bytes::mib(1)).create().expect("a region");
    let engine = &*manager.engine();
    until("the budget is exceeded", || engine.lacks_memory());
    let mut scratch = Scratch::new(engine.base);
    scratch.taker = engine.zones.new_taker();
    // A fault of another page is another's, and wakes for itself.
    for page in [0, 32] {
        let (rings, throttled) = (engine.bell.rings(), manager.stats().faults_throttled);
        let short = manager.stats().zones_short;
        let mut fault =
            Fault::new(FaultAddress::of_byte(region.as_ptr().addr() + page * OS_PAGE), true, now_ns());
        for _ in 0..TRIES {
            assert_eq!(
                engine.serve_alone(&mut fault, &mut scratch),
                Tried::Kept,
                "40 MiB can't leave, and 24 are allowed"
            );
        }
        assert_eq!(engine.bell.rings() - rings, 1);
        assert_eq!(manager.stats().faults_throttled - throttled, 1);
        assert!(manager.stats().zones_short - short >= TRIES as u64, "each try asked the zones");
    }
    resize(32);
    write(&region, 0);
    area.lock(0..pages, false).expect("it was locked");
}

#[test]
fn a_fault_that_the_engine_waits_for_itself_gets_a_frame_though_every_zone_is_full() {
    if skip_without_moves("faults that are served whatever the budget says") {
        return;
    }
    let manager = with_base_page(
        &[("one", 32, Place::Local), ("two", 32, Place::Local)],
        ZonePolicy::Fair,
        BasePage::K64,
    );
    let stored = manager.region(Bytes::mib(1)).create().expect("a region");
    (0..stored.len() / OS_PAGE).for_each(|page| write(&stored, page));
    stored.page_out(0, stored.len()).expect("room in the store");
    let untouched = manager.region(Bytes::mib(1)).create().expect("a region");
    let stuck = manager.region(Bytes::mib(40)).create().expect("a region");
    let pages = stuck.len() / OS_PAGE;
    (0..pages).for_each(|page| write(&stuck, page));
    let area = Area::of_region(stuck.as_ptr(), pages);
    if let Err(error) = area.lock(0..pages, true) {
        return skip("faults that are served whatever the budget says", error);
    }
    for name in ["one", "two"] {
        manager.resize_zone(name, Bytes::mib(12)).expect("within its addresses");
    }
    let engine = &*manager.engine();
    until("the budget is exceeded", || engine.lacks_memory());
    // A staged page comes back without another frame.
    until("the paged-out page is stored", || manager.stats().staged_bytes == 0);
    let mut scratch = Scratch::new(engine.base);
    scratch.taker = engine.zones.new_taker();
    let mut serve = |region: &Region, page: usize| {
        let at = FaultAddress::of_byte(region.as_ptr().addr() + page * OS_PAGE);
        engine.serve_alone(&mut Fault::new(at, true, now_ns()), &mut scratch)
    };
    for region in [&stored, &untouched] {
        // OS pages that are left of a frame are used up first.
        let kept = (48..80).find(|page| serve(region, *page) == Tried::Kept);
        assert!(kept.is_some(), "40 MiB can't leave, and 24 are allowed");
        let [start, end] = &engine.making_own;
        start.store(region.as_ptr().addr(), Ordering::Release);
        end.store(region.as_ptr().addr() + region.len(), Ordering::Release);
        // The next one of a page and of a hole, and again.
        for page in [40, 3, 41, 200] {
            assert_eq!(serve(region, page), Tried::Served, "no other thread makes frames ready meanwhile");
        }
        end.store(0, Ordering::Release);
        let kept = (112..144).find(|page| serve(region, *page) == Tried::Kept);
        assert!(kept.is_some(), "the budget is kept again");
        for page in [176, 6, 225] {
            engine.pins.awaited.store(region.as_ptr().addr() + page * OS_PAGE, Ordering::Release);
            assert_eq!(serve(region, page), Tried::Served, "the watcher asks for no larger share meanwhile");
            engine.pins.awaited.store(0, Ordering::Release);
        }
        // Those of the frame that it got, too.
        let kept = (80..112).find(|page| serve(region, *page) == Tried::Kept);
        assert!(kept.is_some(), "the budget is kept again");
    }
    area.lock(0..pages, false).expect("it was locked");
}

#[test]
fn on_one_list_pages_of_local_zones_go_together_and_those_of_a_remote_zone_by_its_own_marks() {
    if skip_without_moves("one list for local zones") {
        return;
    }
    let zones = [("one", 16, Place::Local), ("two", 16, Place::Local), ("far", 32, Place::Remote)];
    let manager = manager(&zones, ZonePolicy::GlobalList);
    let region = manager.region(Bytes::mib(36)).create().expect("a region");
    let engine = &*manager.engine();
    let pages = region.len() / OS_PAGE;
    // From the end on, so that the hand comes to the pages of the remote zone first.
    let mib = (1 << 20) / OS_PAGE;
    let fill = |from: usize, to: usize| {
        (pages - to * mib..pages - from * mib).rev().for_each(|page| write(&region, page));
    };
    fill(0, 16);
    assert_eq!(engine.short_zones(), u64::MAX, "one is used up, and with two there is enough");
    fill(16, 36);
    assert_eq!(manager.stats().zones_spilled_bytes >> 20, 5, "the rest is far");
    assert_eq!(engine.short_zones(), 0b011);
    // Less than makes them enough again.
    let mut scratch = Scratch::new(engine.base);
    for _ in 0..8 {
        engine.reclaim_step(&mut scratch);
    }
    let stats = manager.stats();
    assert!(stats.zone0_evicted_bytes + stats.zone1_evicted_bytes > 0, "{stats:?}");
    assert_eq!(stats.zone2_evicted_bytes, 0, "there is room in it: {stats:?}");
}

#[test]
fn a_local_zone_at_its_low_watermark_wakes_no_thread_as_long_as_another_has_more() {
    if skip_without_moves("zones at their low watermarks") {
        return;
    }
    // Interleaved, the remote zone has half of all pages.
    let is_filled = |policy: &ZonePolicy| *policy != ZonePolicy::WeightedInterleave;
    for policy in ZonePolicy::ALL.into_iter().filter(is_filled) {
        let manager = manager(&[("near", 16, Place::Local), ("far", 32, Place::Remote)], policy);
        let region = manager.region(Bytes::mib(24)).create().expect("a region");
        let engine = &*manager.engine();
        (0..region.len() / OS_PAGE).for_each(|page| write(&region, page));
        // Heard twice, it has looked at the zones in between.
        for _ in 0..2 {
            engine.bell.ring();
            until("the reclaimer has woken", || !engine.bell.is_rung());
        }
        let zones = manager.zones();
        let (near, far) = (zones[0].1, zones[1].1);
        let one_more = near.low.saturating_add(Bytes::new(BasePage::K64.bytes() as u64));
        assert!(near.free < one_more && far.free > far.high, "{policy}: {zones:?}");
        assert_eq!(manager.stats().evictions, 0, "{policy} evicts, and there is room: {zones:?}");
    }
}
