//! Caches of turns in a real engine: how often the zones are asked, the shares of threads, and that
//! the caches are emptied.

use std::sync::Barrier;

use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use pagoda_core::zone::ZonePolicy;
use pagoda_linux::arena::Slot;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use super::*;
use crate::Manager;
use crate::frames::zones::Place;

/// Of base pages of 4 KiB, so that turns are long enough to be cached.
fn manager(zones: &[(&str, u64, Place)], policy: ZonePolicy) -> Option<Manager> {
    if skip_without_moves("turns in caches") {
        return None;
    }
    let builder =
        Manager::builder().user_mode_only(true).tune(|tuning| tuning.clear_ahead(0)).base_page(BasePage::K4);
    let builder = zones
        .iter()
        .fold(builder, |builder, (name, mib, place)| builder.zone(name, Bytes::mib(*mib), *place));
    Some(builder.tune(|tuning| tuning.zone_policy(policy)).build().expect("a manager"))
}

fn cached(engine: &Engine) -> u32 {
    engine.zones.caches.caches.iter().filter_map(FrameCache::held).map(|grant| grant.frames).sum()
}

fn counters(engine: &Engine) -> turns::Counters {
    engine.turns(engine.zones.turns.as_ref().expect("several zones")).counters().clone()
}

fn take(engine: &Engine, taker: Taker) -> Slot {
    engine.frame_of_a_zone(false, taker).expect("there is room")
}

/// The first turn of each zone, granted before its level is known, is of one frame. This ends
/// those.
fn end_first_turns(engine: &Engine) {
    give_back(engine, [(); 2].map(|()| take(engine, Taker::ONCE)));
}

/// The slot has no frame: it was never written to.
fn give_back(engine: &Engine, slots: impl IntoIterator<Item = Slot>) {
    for slot in slots {
        engine.ledger.took(-(engine.entry_bytes() as i64));
        engine.zones.put_empty(&engine.space, slot);
    }
}

fn frames_of(engine: &Engine, zone: usize) -> f64 {
    let turns::Zone { low_frames, high_frames, .. } = engine.zone_now(zone, &engine.zone_levels()[zone]);
    (high_frames - low_frames) as f64
}

#[test]
fn threads_with_caches_share_a_hundred_thousand_frames_by_the_batches_and_ask_seldom() {
    const THREADS: usize = 8;
    const KEPT: usize = 64;
    for count in [2, 3] {
        let zones = [("one", 128, Place::Local), ("two", 384, Place::Local), ("three", 256, Place::Local)];
        let Some(manager) = manager(&zones[..count], ZonePolicy::Fair) else { return };
        let engine = &*manager.engine();
        // Whole rounds of turns: within one the zones give one after the other.
        let round: usize = (0..count).map(|zone| frames_of(engine, zone) as usize).sum();
        let each = 100_000usize.next_multiple_of(round) / THREADS;
        let start = Barrier::new(THREADS);
        let work = || {
            let (taker, mut kept, mut got) = (engine.zones.new_taker(), Vec::new(), [0; ZONES_MAX]);
            start.wait();
            for _ in 0..each {
                let slot = take(engine, taker);
                got[engine.zones.of_slot(slot.index())] += 1;
                kept.push(slot);
                if kept.len() == KEPT {
                    give_back(engine, kept.drain(..));
                }
            }
            give_back(engine, kept);
            got
        };
        let got = std::thread::scope(|scope| {
            // More of them than caches: some share one.
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        let total = (THREADS * each) as f64;
        let batches: f64 = (0..count).map(|zone| frames_of(engine, zone)).sum();
        for zone in 0..count {
            let got: usize = got.iter().map(|got| got[zone]).sum();
            let ideal = total * frames_of(engine, zone) / batches;
            assert!((got as f64 - ideal).abs() <= 0.01 * ideal, "{got} of zone {zone} for {ideal}");
        }
        let asked = counters(engine).scans;
        assert!(asked < (THREADS * each) as u64 / 8, "the zones were asked {asked} times");
        until("the cached turns of ended threads have gone back", || cached(engine) == 0);
        assert_eq!(counters(engine).allocated_frames.iter().sum::<u64>(), (THREADS * each) as u64);
        // Each slot is empty, and once.
        let slots: Vec<Vec<Slot>> = (0..count)
            .map(|zone| std::iter::from_fn(|| engine.zones.take_empty(&engine.space, zone)).collect())
            .collect();
        for (zone, slots) in slots.into_iter().enumerate() {
            assert_eq!(slots.len(), engine.zones.hands(zone).slots() as usize, "of zone {zone}");
            slots.into_iter().for_each(|slot| engine.zones.put_empty(&engine.space, slot));
        }
    }
}

#[test]
fn a_cached_turn_of_a_zone_that_has_nothing_to_give_any_more_is_not_used() {
    let zones = [("one", 64, Place::Local), ("two", 64, Place::Local)];
    let Some(manager) = manager(&zones, ZonePolicy::Fair) else { return };
    let engine = &*manager.engine();
    end_first_turns(engine);
    let taker = engine.zones.new_taker();
    let first = take(engine, taker);
    assert!(cached(engine) > 0 && engine.zones.of_slot(first.index()) == 0);
    // Others were quicker.
    let all = engine.zones.size(0).get() as i64;
    engine.zones.in_regions(0, all);
    let second = take(engine, taker);
    engine.zones.in_regions(0, -all);
    assert_eq!(engine.zones.of_slot(second.index()), 1);
    until("turns went back", || cached(engine) == 0);
    assert_eq!(counters(engine).allocated_frames, [2, 2]);
    give_back(engine, [first, second]);
}

#[test]
fn turns_of_resized_zones_go_back_and_so_do_those_of_a_thread_that_finds_no_frame() {
    let zones = [("one", 64, Place::Local), ("two", 64, Place::Local)];
    let Some(manager) = manager(&zones, ZonePolicy::Fair) else { return };
    let engine = &*manager.engine();
    end_first_turns(engine);
    let taker = engine.zones.new_taker();
    let slot = take(engine, taker);
    assert!(cached(engine) > 0);
    manager.resize_zone("two", Bytes::mib(32)).expect("within its addresses");
    assert_eq!(cached(engine), 0);
    let other = take(engine, taker);
    assert!(cached(engine) > 0);
    // As if all of both were in the regions.
    let sizes = [0, 1].map(|zone| engine.zones.size(zone).get() as i64);
    (0..2).for_each(|zone| engine.zones.in_regions(zone, sizes[zone]));
    assert!(engine.zones_in_turn(Taker::ONCE).first.is_none());
    assert_eq!(cached(engine), 0, "a thread that finds nothing leaves no turns to others");
    (0..2).for_each(|zone| engine.zones.in_regions(zone, -sizes[zone]));
    give_back(engine, [slot, other]);
}

#[test]
fn remote_zones_and_policies_without_turns_are_asked_each_time() {
    let local = [("one", 64, Place::Local), ("two", 64, Place::Local)];
    let remote = [("one", 64, Place::Local), ("far", 64, Place::Remote)];
    for (zones, policy) in
        [(local, ZonePolicy::FirstFit), (local, ZonePolicy::GlobalList), (remote, ZonePolicy::Fair)]
    {
        let Some(manager) = manager(&zones, policy) else { return };
        let engine = &*manager.engine();
        let is_far = zones[1].2 == Place::Remote;
        let near = engine.zones.size(0).get() as i64 * i64::from(is_far);
        engine.zones.in_regions(0, near);
        let slots = [(); 3].map(|()| take(engine, Taker::handler(0)));
        engine.zones.in_regions(0, -near);
        assert!(
            slots.iter().all(|slot| engine.zones.of_slot(slot.index()) == usize::from(is_far)),
            "{policy}"
        );
        assert_eq!(cached(engine), 0, "{policy}");
        give_back(engine, slots);
    }
}
