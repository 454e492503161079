//! Caches beside the zones, with threads.

use std::sync::{Barrier, Mutex};
use std::thread;

use proptest::prelude::*;

use super::super::cases::Case;
use super::super::{Shortage, ZonePolicy, Zones};
use super::*;

const THREADS: u32 = 8;

fn zone(free_frames: u64, low_frames: u64, batch_frames: u64) -> Zone {
    Zone { free_frames, low_frames, high_frames: low_frames + batch_frames }
}

/// No other thread refills a thread's own cache.
fn own(grant: Grant) {
    panic!("{grant:?} finds no room in a cache that was empty");
}

/// Each of eight threads runs `work` with a cache of its own, all at once.
fn in_threads<R: Send>(work: impl Fn(&FrameCache) -> R + Sync) -> Vec<R> {
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (work, start) = (&work, &start);
                scope.spawn(move || {
                    start.wait();
                    work(&FrameCache::default())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn eight_threads_at_their_low_watermarks_reset_nothing() {
    let zones = Mutex::new(Case::A.zones(ZonePolicy::Fair));
    in_threads(|cache| {
        for _ in 0..Case::A.tries() {
            assert_eq!(cache.allocate(|| zones.lock().expect("no panic").allocate(16), own), Err(Shortage));
        }
    });
    let zones = zones.into_inner().expect("no panic");
    let tries = u64::from(THREADS * Case::A.tries());
    let counters = zones.counters();
    assert_eq!((counters.resets, counters.scans, counters.wake_ups), (0, tries, tries));
}

#[test]
fn shares_of_eight_threads_with_caches_are_within_one_percent() {
    let local = [zone(1 << 20, 100, 384), zone(1 << 20, 100, 128)];
    let most = cache_frames(&local, THREADS);
    assert!(most > 1, "caches are on");
    let zones = Mutex::new(Zones::new(ZonePolicy::Fair, &local, &[zone(1 << 20, 100, 50)]));
    let each = 100_000 / THREADS;
    let by_thread = in_threads(|cache| {
        let mut got = [0u64; 3];
        for _ in 0..each {
            let zone = cache.allocate(|| zones.lock().expect("no panic").allocate(most), own);
            got[zone.expect("plenty").index()] += 1;
        }
        got
    });
    let got = by_thread.iter().fold([0; 3], |sum, got| [sum[0] + got[0], sum[1] + got[1], sum[2] + got[2]]);
    let total = f64::from(each * THREADS);
    assert!((got[0] as f64 / (total * 0.75) - 1.0).abs() <= 0.01, "{got:?}");
    assert!((got[1] as f64 / (total * 0.25) - 1.0).abs() <= 0.01, "{got:?}");
    assert_eq!(got[2], 0, "nothing is spilled");
    let zones = zones.into_inner().expect("no panic");
    let given: u64 = zones.counters().allocated_frames.iter().sum();
    let cached = given - got.iter().sum::<u64>();
    assert!(cached <= u64::from(THREADS * (most - 1)), "{cached} frames in caches");
}

#[test]
fn eight_threads_at_the_watermarks_lose_no_frame() {
    let (local, remote) = ([zone(120, 10, 30), zone(60, 5, 10)], [zone(50, 8, 9)]);
    let zones = Mutex::new(Zones::new(ZonePolicy::Fair, &local, &remote));
    let shortages = in_threads(|cache| {
        let (mut held, mut shortages) = (Vec::new(), 0u64);
        for _ in 0..20_000 {
            let result = cache.allocate(|| zones.lock().expect("no panic").allocate(4), own);
            held.extend(result);
            shortages += u64::from(result.is_err());
            // Of the 207 frames that can be had, eight threads would hold 512.
            if held.len() == 64 || result.is_err() {
                let mut zones = zones.lock().expect("no panic");
                for zone in held.drain(..) {
                    zones.give_back(Grant { zone, frames: 1 });
                }
            }
        }
        let mut zones = zones.lock().expect("no panic");
        for zone in held {
            zones.give_back(Grant { zone, frames: 1 });
        }
        if let Some(rest) = cache.drain() {
            zones.give_back(rest);
        }
        shortages
    });
    let zones = zones.into_inner().expect("no panic");
    let free: Vec<u64> = zones.ids().map(|id| zones.free_frames(id)).collect();
    assert_eq!(free, [120, 60, 50]);
    assert_eq!(zones.counters().wake_ups, shortages.iter().sum::<u64>(), "each shortage is reported once");
}

#[test]
fn a_cache_hands_out_its_grant_and_then_asks_again() {
    let mut zones = Zones::new(ZonePolicy::Fair, &[zone(100, 10, 3), zone(100, 10, 2)], &[]);
    let cache = FrameCache::default();
    let mut refills = 0;
    let got: Vec<usize> = (0..7)
        .map(|_| {
            let zone = cache.allocate(
                || {
                    refills += 1;
                    zones.allocate(16)
                },
                own,
            );
            zone.expect("plenty").index()
        })
        .collect();
    assert_eq!((got, refills), (vec![0, 0, 0, 1, 1, 0, 0], 3), "refills end where a turn ends");
    let rest = cache.drain().expect("one of three is left");
    assert_eq!((rest.zone.index(), rest.frames, cache.drain()), (0, 1, None));
}

#[test]
fn a_cache_that_is_unused_between_two_looks_is_emptied_by_the_second() {
    let cache = FrameCache::default();
    assert_eq!((cache.take(), cache.drain(), cache.drain_if_idle()), (None, None, None));
    let grant = |zone, frames| Grant { zone: ZoneId(zone), frames };
    assert_eq!(cache.keep(grant(63, 3)), None);
    assert_eq!(cache.keep(grant(1, 2)), Some(grant(1, 2)), "it is full");
    assert_eq!(cache.drain_if_idle(), None, "it was filled just now");
    assert_eq!(cache.take(), Some(ZoneId(63)));
    assert_eq!(cache.drain_if_idle(), None, "it was used just now");
    assert_eq!((cache.drain_if_idle(), cache.take()), (Some(grant(63, 2)), None));
    assert_eq!((cache.keep(grant(1, 2)), cache.drain()), (None, Some(grant(1, 2))));
}

proptest! {
    #[test]
    fn all_caches_hold_less_than_a_quarter_of_the_smallest_batch(
        batches in prop::collection::vec(1u64..100_000, 1..5), threads in 1u32..100,
    ) {
        let local: Vec<Zone> = batches.iter().map(|&batch| zone(0, 0, batch)).collect();
        let each = cache_frames(&local, threads);
        let smallest = *batches.iter().min().expect("one at least");
        prop_assert!((1..=CACHE_FRAMES_MAX).contains(&each));
        prop_assert!(u64::from(threads * (each - 1)) * 4 < smallest);
    }
}
