//! Huge frames with two zones: the ready frames of each, and the resident bytes that each counts.

use std::sync::atomic::Ordering;

use pagoda_core::page::{BasePage, OS_PAGE};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use super::*;
use crate::frames::zones::Place;
use crate::store::page_of;
use crate::{Manager, Region};

const FRAMES: usize = 6;
const PAGES: usize = HUGE_FRAME / OS_PAGE;

/// A manager of two zones whose turns in base frames are no multiple of a huge frame. It gets no
/// frame ready ahead.
fn manager() -> Option<Manager> {
    if skip_without_moves("huge frames of zones") {
        return None;
    }
    let builder =
        Manager::builder().base_page(BasePage::M2).user_mode_only(true).tune(|tuning| tuning.clear_ahead(0));
    let builder = builder.zone("one", Bytes::mib(48), Place::Local).zone("two", Bytes::mib(80), Place::Local);
    Some(builder.build().expect("a manager"))
}

fn region(manager: &Manager) -> Region {
    manager.region(Bytes::new((FRAMES * HUGE_FRAME) as u64)).create().expect("a region")
}

fn write(region: &Region) {
    (0..FRAMES * PAGES).for_each(|page| {
        region.write_words(page * OS_PAGE, &page_of(OS_PAGE, 61, page as u64)).expect("written");
    });
}

fn expect(region: &Region) {
    let mut is = [0; OS_PAGE];
    for page in 0..FRAMES * PAGES {
        region.read_at(page * OS_PAGE, &mut is).expect("read");
        assert!(is[..] == page_of(OS_PAGE, 61, page as u64), "page {page}");
    }
}

/// The entries of the region, once no fault is in service.
fn words(manager: &Manager, region: &Region) -> Vec<Word> {
    until("every fault is over", || manager.stats().faults_in_service == 0);
    let engine = manager.engine();
    let table = engine.gate_shared();
    let span = table.find(region.as_ptr().addr()).expect("managed");
    let indices = span.indices(span.range(), table.entry_bytes());
    indices.map(|index| span.word(index)).collect()
}

/// The resident frames are of the zones that the entries tell.
fn expect_true(manager: &Manager, region: &Region) {
    let words = words(manager, region);
    for (zone, part) in manager.engine().zones.parts.iter().enumerate() {
        let pages = |word: &Word| i64::from(word.resident().count());
        let here: i64 = words.iter().filter(|word| word.zone() == zone).map(pages).sum();
        assert_eq!(part.in_regions.load(Ordering::Relaxed), here * OS_PAGE as i64, "of zone {zone}");
    }
}

#[test]
fn base_frames_of_several_zones_are_joined_to_one_of_the_zone_of_most_of_them() {
    let Some(manager) = manager() else { return };
    let engine = manager.engine();
    let region = region(&manager);
    let frames = || -> Vec<Vec<Word>> { words(&manager, &region).chunks(32).map(<[Word]>::to_vec).collect() };
    let is_of_one = |frame: &Vec<Word>| frame.iter().all(|word| word.zone() == frame[0].zone());
    write(&region);
    assert!(frames().iter().all(is_of_one));
    expect_true(&manager, &region);
    for turn in 1..=2 {
        until("all of it is out", || {
            region.page_out(0, region.len()).expect("room");
            manager.stats().resident_bytes == 0
        });
        expect_true(&manager, &region);
        expect(&region);
        expect_true(&manager, &region);
        let before = frames();
        assert!(!before.iter().all(is_of_one), "turns of base frames end within one");
        until("all of them are joined", || {
            engine.rebuild_one();
            manager.stats().huge_rebuilt == (turn * FRAMES) as u64
        });
        for (before, after) in before.iter().zip(frames()) {
            assert!(is_of_one(&after) && after[0].is_huge());
            let of = |zone: usize| before.iter().filter(|word| word.zone() == zone).count();
            assert!(of(after[0].zone()) >= 16, "most of it was of that zone");
        }
        expect_true(&manager, &region);
        expect(&region);
    }
    // A part of each leaves, and the rest comes back.
    for frame in 0..FRAMES {
        region.page_out(frame * HUGE_FRAME + (64 << 10), 64 << 10).expect("room");
    }
    expect_true(&manager, &region);
    expect(&region);
    region.discard(OS_PAGE, region.len() - 3 * OS_PAGE).expect("discarded");
    expect_true(&manager, &region);
    region.close();
    until("nothing is in a region", || {
        engine.zones.parts.iter().all(|part| part.in_regions.load(Ordering::Relaxed) == 0)
    });
}

#[test]
fn each_zone_has_its_own_frames_ready_and_few_of_them() {
    let Some(manager) = manager() else { return };
    let engine = manager.engine();
    engine.huge.note_asked();
    while engine.clear_one_ahead() {}
    let ready = |zone: usize| engine.huge.ready_bytes_of(zone) / HUGE_FRAME as u64;
    assert_eq!([ready(0), ready(1)], [3, 5], "an eighth of each");
    assert_eq!(manager.zones().iter().map(|(_, zone)| zone.held.get() >> 21).collect::<Vec<_>>(), [3, 5]);
    // They are used, and none is cleared again.
    let region = region(&manager);
    write(&region);
    let stats = manager.stats();
    // The zone in turn gives fresh frames once it has no others.
    assert!(stats.taken_cleared_bytes >= 3 * HUGE_FRAME as u64, "{stats:?}");
    let again = (stats.cleared_in_fault_bytes, stats.cleared_ahead_bytes, stats.cleared_twice_bytes);
    assert_eq!(again, (0, 0, 0), "{stats:?}");
    // A zone that shrinks below its holdings gives its ready frames back first.
    let more = manager.region(Bytes::mib(32)).create().expect("a region");
    (0..16).for_each(|frame| more.write_words(frame * HUGE_FRAME, &[1; 8]).expect("written"));
    while engine.clear_one_ahead() {}
    until("every fault is over", || manager.stats().faults_in_service == 0);
    let held = manager.zones()[1].1.held;
    assert!(held > Bytes::mib(32), "{held} are held");
    let before = manager.stats().evictions;
    manager.resize_zone("two", Bytes::mib(32)).expect("large enough");
    until("each holds no more than it may", || {
        manager.zones().iter().all(|(_, zone)| zone.held <= zone.bytes)
    });
    assert_eq!(manager.stats().evictions, before, "it fits");
    expect(&region);
}
