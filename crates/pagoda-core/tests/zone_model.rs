//! A model check of threads that allocate from the same zones, each through a cache of its own.
//!
//! The threads here are shuttle's: it chooses who goes on at each lock, and finds the interleaving that breaks an
//! assertion. The real zones and caches are between them. As in `entry_model`, the rule that holds them together is also
//! left out once, and must be missed: that a decision and what it takes share one hold of the lock.

mod support;

use pagoda_core::zone::cache::FrameCache;
use pagoda_core::zone::{Grant, Shortage, Zone, ZonePolicy, Zones};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use support::{fails, holds};

const THREADS: usize = 3;
/// More than can be had, for all threads together.
const ALLOCATIONS: usize = 5;
const LOCAL: [Zone; 2] = [zone(6, 1, 3), zone(4, 1, 1)];
const REMOTE: [Zone; 1] = [zone(3, 1, 1)];

const fn zone(free_frames: u64, low_frames: u64, batch_frames: u64) -> Zone {
    Zone { free_frames, low_frames, high_frames: low_frames + batch_frames }
}

type Allocate = fn(&Mutex<Zones>) -> Result<Grant, Shortage>;

/// What the engine does.
fn in_one_hold(zones: &Mutex<Zones>) -> Result<Grant, Shortage> {
    zones.lock().expect("no panic").allocate(2)
}

/// What it must not do: decide on what it saw, and take later.
fn in_two_holds(zones: &Mutex<Zones>) -> Result<Grant, Shortage> {
    let mut seen = zones.lock().expect("no panic").clone();
    let result = seen.allocate(2);
    *zones.lock().expect("no panic") = seen;
    result
}

fn free_frames(zones: &Zones) -> Vec<u64> {
    zones.ids().map(|id| zones.free_frames(id)).collect()
}

/// Each thread allocates, gives every other frame back, and in the end all of them and its cache.
fn allocate_and_give_back(policy: ZonePolicy, allocate: Allocate) {
    let zones = Arc::new(Mutex::new(Zones::new(policy, &LOCAL, &REMOTE)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let zones = Arc::clone(&zones);
            thread::spawn(move || {
                let (mut cache, mut held, mut failures) = (FrameCache::default(), Vec::new(), 0);
                for round in 0..ALLOCATIONS {
                    match cache.allocate(|| allocate(&zones)) {
                        Ok(zone) => held.push(Grant { zone, frames: 1 }),
                        Err(Shortage) => failures += 1,
                    }
                    let given_back = if round % 2 == 1 { held.pop() } else { None };
                    let mut zones = zones.lock().expect("no panic");
                    given_back.into_iter().for_each(|grant| zones.give_back(grant));
                    let lows = LOCAL.iter().chain(&REMOTE).map(|zone| zone.low_frames);
                    assert!(
                        free_frames(&zones).into_iter().zip(lows).all(|(free, low)| free >= low),
                        "{}",
                        policy.name()
                    );
                }
                let mut zones = zones.lock().expect("no panic");
                held.into_iter().chain(cache.drain()).for_each(|grant| zones.give_back(grant));
                failures
            })
        })
        .collect();
    let failures: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    let zones = zones.lock().expect("no panic");
    let whole: Vec<u64> = LOCAL.iter().chain(&REMOTE).map(|zone| zone.free_frames).collect();
    assert_eq!(free_frames(&zones), whole, "{}: no frame is lost, none is had twice", policy.name());
    assert_eq!(zones.counters().wake_ups, failures, "{}: a wake-up for each failure", policy.name());
}

#[test]
fn frames_are_conserved_whatever_the_interleaving() {
    for policy in ZonePolicy::ALL {
        holds(move || allocate_and_give_back(policy, in_one_hold));
    }
}

#[test]
fn deciding_in_one_hold_of_the_lock_and_taking_in_another_loses_frames() {
    fails(|| allocate_and_give_back(ZonePolicy::Fair, in_two_holds));
}

/// Threads that end their turns together: each turn of each zone ends once.
#[test]
fn threads_that_find_the_batches_used_up_reset_them_once() {
    holds(|| {
        let plenty = [zone(1000, 1, 3), zone(1000, 1, 1)];
        let zones = Arc::new(Mutex::new(Zones::new(ZonePolicy::Fair, &plenty, &[])));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let zones = Arc::clone(&zones);
                thread::spawn(move || {
                    for _ in 0..8 {
                        zones.lock().expect("no panic").allocate(1).expect("plenty");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let counters = zones.lock().expect("no panic").counters().clone();
        assert_eq!((counters.allocated_frames, counters.resets), (vec![18, 6], 5));
    });
}
