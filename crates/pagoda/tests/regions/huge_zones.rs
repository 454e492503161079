//! Huge frames of several zones, on real userfaultfd: the zone of each, that no zone exceeds its
//! size, and that nothing is lost or seen by another owner when a zone becomes smaller.

use std::sync::atomic::{AtomicBool, Ordering};

use pagoda::frames::zones::{Place, ZoneStats};
use pagoda::{BasePage, Bytes, Manager, ManagerBuilder, ZonePolicy};
use pagoda_core::page::HUGE_FRAME;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::{skip, skip_without_moves};
use pagoda_linux::testing::wait::until;

use crate::regions::support::huge::{PAGES, expect, expect_zero, huge_bytes, region, write};
use crate::regions::support::settled;

fn builder(zones: &[(&str, u64, Place)]) -> Option<ManagerBuilder> {
    if skip_without_moves("huge frames of zones") {
        return None;
    }
    let builder =
        Manager::builder().base_page(BasePage::M2).user_mode_only(true).tune(|tuning| tuning.clear_ahead(0));
    let builder = builder.spill_to("/var/tmp", Bytes::gib(1));
    Some(
        zones
            .iter()
            .fold(builder, |builder, (name, mib, place)| builder.zone(name, Bytes::mib(*mib), *place)),
    )
}

/// Two local zones.
fn two(fast: u64, slow: u64) -> Option<ManagerBuilder> {
    builder(&[("fast", fast, Place::Local), ("slow", slow, Place::Local)])
}

/// The zones, once their sum is the manager's memory: pages that the last fault's handler still
/// holds are counted a moment later.
fn zones(manager: &Manager) -> Vec<ZoneStats> {
    settled(manager);
    let mut zones: Vec<ZoneStats> = Vec::new();
    until("zones hold the manager's memory", || {
        zones = manager.zones().into_iter().map(|(_, zone)| zone).collect();
        let stats = manager.stats();
        let held: u64 = zones.iter().map(|zone| zone.held.get()).sum();
        held == stats.resident_bytes + stats.staged_bytes + stats.ready_bytes
    });
    zones
}

/// Huge frames that each zone has given and not got back. It may have given more: where the kernel
/// refused a move for a moment the frame was given back.
fn given(zones: &[ZoneStats]) -> Vec<u64> {
    zones.iter().map(|zone| zone.held.get() / HUGE_FRAME as u64).collect()
}

/// Waits until everything is out of the regions, and every byte that zones hold is of frames that
/// are ready.
fn expect_all_back(manager: &Manager) {
    until("everything is given back to its zone", || {
        let stats = manager.stats();
        let held: u64 = ZoneStats::all(&stats).iter().map(|zone| zone.held.get()).sum();
        (stats.resident_bytes, stats.staged_bytes, stats.stored_bytes) == (0, 0, 0)
            && held == stats.ready_bytes
    });
}

#[test]
fn huge_frames_come_from_zones_in_proportion_and_leave_each_its_high_watermark() {
    const FRAMES: usize = 64;
    for policy in [ZonePolicy::Fair, ZonePolicy::ResetOnFailure] {
        let Some(builder) = two(64, 192) else { return };
        let manager = builder.tune(|tuning| tuning.zone_policy(policy)).build().expect("a manager");
        let mut region = region(&manager, FRAMES);
        write(&mut region, 1, (0..FRAMES).map(|frame| frame * PAGES));
        assert_eq!(huge_bytes(&region), FRAMES * HUGE_FRAME);
        let found = zones(&manager);
        // Of 4 and of 12 frames are their turns, but for the first.
        let given = given(&found);
        assert!(given[0].abs_diff(16) <= 4 && given[0] + given[1] == 64, "{policy}: {found:?}");
        // Where the kernel refused a move for a moment the frame was given back, and another one
        // was taken.
        let again = |zone: &ZoneStats| zone.allocated.saturating_sub(zone.held) <= Bytes::mib(4);
        let is_right =
            |zone: &ZoneStats| zone.held <= zone.allocated && again(zone) && zone.free >= zone.high;
        assert!(found.iter().all(is_right), "{found:?}");
        let stats = manager.stats();
        assert_eq!((stats.evictions, stats.zones_short), (0, 0), "{stats:?}");
        expect(&region, 1, (0..FRAMES).map(|frame| frame * PAGES));
        drop(region);
        expect_all_back(&manager);
    }
}

#[test]
fn filling_the_first_zone_first_leaves_it_its_watermark_before_the_next_gives() {
    let Some(builder) = two(64, 64) else { return };
    let manager = builder.tune(|tuning| tuning.zone_policy(ZonePolicy::FirstFit)).build().expect("a manager");
    let mut region = region(&manager, 40);
    write(&mut region, 1, (0..40).map(|frame| frame * PAGES));
    let found = zones(&manager);
    assert_eq!(given(&found).iter().sum::<u64>(), 40);
    let one = Bytes::new(HUGE_FRAME as u64);
    // Our own memory besides may have grown since it gave its last one.
    let left = found[0].bytes.saturating_sub(found[0].held);
    assert!(left >= found[0].high && found[0].free < found[0].high.saturating_add(one), "{found:?}");
    assert_eq!(manager.stats().evictions, 0);
}

#[test]
fn a_remote_zone_gives_none_as_long_as_a_local_one_has_base_frames() {
    let Some(builder) = builder(&[("far", 128, Place::Remote), ("near", 64, Place::Local)]) else { return };
    // A page that is not used would be staged to see that, and might be evicted.
    let manager = builder.tune(|tuning| tuning.tiering(false)).build().expect("a manager");
    let mut region = region(&manager, 60);
    let mut touched = 0;
    let mut last = zones(&manager);
    while last[0].allocated == Bytes::ZERO {
        assert!(touched < 60 * PAGES, "nothing was spilled: {last:?}");
        write(&mut region, 1, touched..touched + 16);
        touched += 16;
        last = zones(&manager);
    }
    let frame = Bytes::new(64 << 10);
    assert!(last[1].free < last[1].low.saturating_add(frame), "the near one is used up first: {last:?}");
    let before = manager.stats().faults_huge;
    write(&mut region, 1, touched.next_multiple_of(PAGES)..40 * PAGES);
    assert!(settled(&manager).faults_huge > before, "then they are far");
    assert_eq!(manager.stats().evictions, 0, "spilled before reclaim");
    assert_eq!(Bytes::new(manager.stats().zones_spilled_bytes), zones(&manager)[0].allocated);
}

#[test]
fn more_than_fits_stays_within_the_budget_of_each_zone_and_all_comes_back() {
    const FRAMES: usize = 112;
    let policies = [ZonePolicy::Fair, ZonePolicy::FirstFit, ZonePolicy::GlobalList];
    for policy in policies.into_iter().take(length(2, 3)) {
        let Some(builder) = two(48, 96) else { return };
        let manager = builder.tune(|tuning| tuning.zone_policy(policy)).build().expect("a manager");
        let mut region = region(&manager, FRAMES);
        write(&mut region, 2, 0..FRAMES * PAGES);
        expect(&region, 2, 0..FRAMES * PAGES);
        write(&mut region, 3, (0..FRAMES * PAGES).step_by(7));
        expect(&region, 3, (0..FRAMES * PAGES).step_by(7));
        expect(&region, 2, (0..FRAMES * PAGES).filter(|at| at % 7 != 0));
        let found = zones(&manager);
        let stats = manager.stats();
        assert!(stats.faults_huge > 32 && stats.huge_moved_out > 16 && stats.faults_stored > 0, "{stats:?}");
        assert!(stats.anon_peak_bytes <= (144 + 16) << 20, "{} held", stats.anon_peak_bytes);
        assert!(found.iter().all(|zone| zone.evicted > Bytes::ZERO), "both are reclaimed: {found:?}");
        drop(region);
        expect_all_back(&manager);
    }
}

#[test]
fn a_zone_that_becomes_smaller_gives_its_huge_frames_back_and_loses_nothing() {
    const FRAMES: usize = 48;
    let Some(builder) = two(64, 128) else { return };
    let manager = builder.build().expect("a manager");
    let mut data = region(&manager, FRAMES);
    // Of another owner, whose frames are ready in each zone.
    let mut other = region(&manager, 30);
    write(&mut data, 4, 0..FRAMES * PAGES);
    write(&mut other, 5, 0..30 * PAGES);
    settled(&manager);
    drop(other);
    assert_eq!(huge_bytes(&data), FRAMES * HUGE_FRAME);
    for (name, mib) in [("slow", 32), ("fast", 32)] {
        manager.resize_zone(name, Bytes::mib(mib)).expect("within its addresses");
        until("it holds no more than it may", || {
            manager.zones().iter().all(|(_, zone)| zone.held <= zone.bytes)
        });
    }
    assert!(settled(&manager).huge_moved_out > 0);
    expect(&data, 4, 0..FRAMES * PAGES);
    for name in ["slow", "fast"] {
        manager.resize_zone(name, Bytes::mib(96)).expect("within its addresses");
    }
    expect(&data, 4, 0..FRAMES * PAGES);
    zones(&manager);
    let mut fresh = region(&manager, 8);
    expect_zero(&fresh, 0..8 * PAGES);
    write(&mut fresh, 6, 0..8 * PAGES);
    expect(&fresh, 6, 0..8 * PAGES);
    drop((data, fresh));
    expect_all_back(&manager);
}

#[test]
fn no_owner_sees_content_of_another_in_a_zone() {
    for ahead in [0, 100] {
        let Some(builder) = two(64, 64) else { return };
        let manager = builder.tune(|tuning| tuning.clear_ahead(ahead)).build().expect("a manager");
        let mut owners = 0;
        while owners < 8 || ahead > 0 && manager.stats().taken_cleared_bytes == 0 && owners < 600 {
            if owners >= 8 {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            let mut region = region(&manager, 12);
            let first = owners * 107 % (12 * PAGES);
            expect_zero(&region, (first..12 * PAGES).chain(0..first).step_by(3));
            expect_zero(&region, 0..12 * PAGES);
            write(&mut region, owners, 0..12 * PAGES);
            region.page_out(HUGE_FRAME / 2, 3 * HUGE_FRAME).expect("room");
            expect(&region, owners, 0..12 * PAGES);
            owners += 1;
            settled(&manager);
        }
        let stats = manager.stats();
        assert!(stats.cleared_in_fault_bytes + stats.cleared_ahead_bytes > 0, "{stats:?}");
        assert_eq!(stats.cleared_twice_bytes, 0, "{stats:?}");
        assert_eq!(ahead > 0, stats.taken_cleared_bytes > 0, "{stats:?}");
        assert!(zones(&manager).iter().all(|zone| zone.allocated > Bytes::ZERO));
    }
}

#[test]
fn zones_with_huge_frames_change_their_sizes_while_they_are_used() {
    const THREADS: usize = 2;
    const FRAMES: usize = 40;
    let Some(builder) = two(64, 96) else { return };
    let manager = builder.tune(|tuning| tuning.clear_ahead(20)).build().expect("a manager");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let manager = &manager;
                scope.spawn(move || {
                    let mut random = Random::new(13, thread as u64);
                    for round in 0..length(2, 6) {
                        let seed = thread * 100 + round;
                        let mut region = region(manager, FRAMES);
                        expect_zero(&region, (thread..FRAMES * PAGES).step_by(61));
                        write(&mut region, seed, 0..FRAMES * PAGES);
                        expect(&region, seed, (0..4000).map(|_| random.below(FRAMES * PAGES)));
                        region.page_out(random.below(FRAMES / 2) * HUGE_FRAME + 4096, 5 << 20).expect("room");
                        expect(&region, seed, 0..FRAMES * PAGES);
                    }
                })
            })
            .collect();
        let is_over = &is_over;
        let manager = &manager;
        scope.spawn(move || {
            let sizes = [("fast", 32), ("slow", 128), ("fast", 96), ("slow", 40), ("fast", 64), ("slow", 96)];
            for (name, mib) in sizes.into_iter().cycle() {
                manager.resize_zone(name, Bytes::mib(mib)).expect("within its addresses");
                std::thread::sleep(std::time::Duration::from_millis(40));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        workers.into_iter().for_each(|worker| worker.join().expect("as written"));
        is_over.store(true, Ordering::Relaxed);
    });
    let stats = manager.stats();
    assert!(stats.faults_huge > 0 && stats.huge_moved_out > 0, "{stats:?}");
    until("each holds no more than it may", || {
        manager.zones().iter().all(|(_, zone)| zone.held <= zone.bytes)
    });
    expect_all_back(&manager);
}

#[test]
fn huge_frames_of_a_zone_are_on_its_node() {
    use pagoda::error::StartError;

    let here = Place::Node(pagoda_linux::mem::node::current());
    let Some(builder) = builder(&[("here", 64, here), ("rest", 64, Place::Local)]) else { return };
    match builder.build() {
        Ok(manager) => {
            let mut region = region(&manager, 16);
            write(&mut region, 1, 0..16 * PAGES);
            assert_eq!(huge_bytes(&region), 16 * HUGE_FRAME);
            assert!(zones(&manager)[0].allocated > Bytes::ZERO);
        }
        Err(StartError::ZoneNode(errno)) => skip("binding to a node", errno),
        Err(error) => panic!("{error}"),
    }
}
