use pagoda_core::page::BasePage;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use super::*;
use crate::{Manager, Region};

const ENTRY: usize = 64 << 10;

fn sizes(walks: &Walks) -> Vec<Sizes> {
    walks.walks.iter().map(Walk::sizes).collect()
}

#[test]
fn a_walk_counts_the_states_of_a_region_a_part_at_a_time() {
    if skip_without_moves("the walk of a region's entries") {
        return;
    }
    let builder = Manager::builder().budget(Bytes::mib(64)).base_page(BasePage::K64).user_mode_only(true);
    let manager = builder.tune(|tuning| tuning.fault_around(false)).build().expect("a manager");
    // The faulting thread runs on as soon as the page is there, perhaps before its entry shows it.
    // And a page that the kernel has only just collapsed may be busy. Both stay then.
    let page_out = |region: &Region, entries: usize| {
        until("so many are stored", || {
            region.page_out(0, entries * ENTRY).expect("stored");
            let stats = manager.stats();
            stats.faults_in_service == 0 && stats.stored_bytes == (entries * ENTRY) as u64
        });
    };
    let mut region = manager.region(Bytes::mib(512)).create().expect("a region");
    let other = manager.region(Bytes::mib(2)).create().expect("a region");
    for at in (0..16).map(|page| page * ENTRY) {
        region.write_at(at, &[7; ENTRY]).expect("written");
        region.write_at(at, &at.to_le_bytes()).expect("written");
    }
    page_out(&region, 4);
    let engine = manager.engine();
    let (largest, all) = engine.owners.largest(1);
    assert_eq!((largest.len(), all, largest[0].0.len()), (1, 2, 512 << 20), "the largest");
    let mut walks = Walks::default();
    let (largest, _) = engine.owners.largest(REGIONS_SHOWN_MOST);
    walks.follow(largest.iter().map(|(range, _)| *range));
    walks.go_on(&engine, usize::MAX);
    let [first, second] = sizes(&walks)[..] else { panic!("two regions") };
    assert_eq!(first.resident + first.staged + first.stored, 16 * ENTRY, "{first:?}");
    assert_eq!((first.stored, second), (4 * ENTRY, Sizes::default()));
    // The sizes of a walk are shown until the next one is complete.
    page_out(&region, 8);
    walks.go_on(&engine, 1);
    assert_eq!(sizes(&walks)[0].stored, 4 * ENTRY);
    drop(other);
    let (largest, _) = engine.owners.largest(REGIONS_SHOWN_MOST);
    walks.follow(largest.iter().map(|(range, _)| *range));
    assert_eq!(walks.walks.len(), 1, "a closed region is not followed");
    walks.go_on(&engine, usize::MAX);
    assert_eq!(sizes(&walks)[0].stored, 8 * ENTRY);
}

#[test]
fn the_size_of_a_touch_is_shown_for_each_region() {
    if skip_without_moves("base pages of regions") {
        return;
    }
    let manager = Manager::builder().budget(Bytes::mib(64)).user_mode_only(true).build().expect("a manager");
    let engine = manager.engine();
    // There is one at a time.
    let shown = || engine.shown_base(engine.owners.largest(1).0[0].0);
    for base in BasePage::ALL {
        let _region = manager.region(Bytes::mib(4)).base_page(base).create().expect("a region");
        let size = Bytes::new(base.bytes() as u64);
        assert_eq!(shown(), BaseView { size, ..BaseView::default() });
    }
    // One that is touched downwards, all of it, grows.
    let mut region = manager.region(Bytes::mib(16)).create().expect("a region");
    let begun = shown();
    assert!(begun.by_density && begun.grown == 0, "{begun:?}");
    for at in (0..region.len()).step_by(OS_PAGE).rev() {
        region.write_at(at, &[1]).expect("written");
    }
    let fill = region.fill().expect("by density");
    let (grown, shrunk) = (fill.looks.grown, fill.looks.shrunk);
    let size = Bytes::new(fill.size.bytes() as u64);
    assert_eq!(shown(), BaseView { size, by_density: true, grown, shrunk });
    assert!(grown > 0 && size > begun.size, "{grown}, {size}");
}
