//! A model check of threads that allocate from the same zones, each through a cache of its own.
//!
//! The threads here are shuttle's: it chooses which thread runs at each lock, and finds the
//! interleaving that breaks an assertion. The real zones and caches are between them. As in
//! `entry_model`, each rule that keeps them consistent is also left out once, and the check must
//! fail: a decision and its frames share one hold of the lock; and a cache's word that another
//! thread has changed meanwhile is read again.

use super::support::{fails, holds};
use pagoda_core::zone::cache::{Cell, FrameCache};
use pagoda_core::zone::{Grant, Shortage, Zone, ZonePolicy, Zones};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

const THREADS: usize = 3;
/// Fewer than threads.
const CACHES: usize = 2;
/// More than can be had, for all threads together.
const ALLOCATIONS: usize = 5;
const LOCAL: [Zone; 2] = [zone(6, 1, 3), zone(4, 1, 1)];
const REMOTE: [Zone; 1] = [zone(3, 1, 1)];

const fn zone(free_frames: u64, low_frames: u64, batch_frames: u64) -> Zone {
    Zone { free_frames, low_frames, high_frames: low_frames + batch_frames }
}

/// A cache's word: each access of it is a point at which another thread may go on.
struct Word(AtomicU64);

impl Cell for Word {
    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn change(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// The wrong way: frames that another thread takes or keeps between the load and the store are
/// granted twice, or lost.
struct Torn(AtomicU64);

impl Cell for Torn {
    fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn change(&self, _: u64, to: u64) -> bool {
        self.0.store(to, Ordering::SeqCst);
        true
    }
}

type Allocate = fn(&Mutex<Zones>) -> Result<Grant, Shortage>;

/// The engine's way.
fn in_one_hold(zones: &Mutex<Zones>) -> Result<Grant, Shortage> {
    zones.lock().expect("no panic").allocate(2)
}

/// The wrong way: decides on the state it saw, and takes later.
fn in_two_holds(zones: &Mutex<Zones>) -> Result<Grant, Shortage> {
    let mut seen = zones.lock().expect("no panic").clone();
    let result = seen.allocate(2);
    *zones.lock().expect("no panic") = seen;
    result
}

fn free_frames(zones: &Zones) -> Vec<u64> {
    zones.ids().map(|id| zones.free_frames(id)).collect()
}

/// The cached frames go back.
fn drain<C: Cell>(zones: &Mutex<Zones>, caches: &[FrameCache<C>]) {
    for unused in caches.iter().filter_map(FrameCache::drain) {
        zones.lock().expect("no panic").take_back(unused);
    }
}

/// Each thread allocates, gives every other frame back, and in the end all of them. Of the caches,
/// each of a `word`, two share one, and another thread empties all of them meanwhile, as if their
/// threads had ended.
fn allocate_and_give_back<C: Cell + Send + Sync + 'static>(
    policy: ZonePolicy,
    word: fn(AtomicU64) -> C,
    allocate: Allocate,
) {
    let zones = Arc::new(Mutex::new(Zones::new(policy, &LOCAL, &REMOTE)));
    let caches: Arc<[FrameCache<C>; CACHES]> =
        Arc::new(std::array::from_fn(|_| FrameCache::new(word(AtomicU64::new(0)))));
    let drainer = {
        let (zones, caches) = (Arc::clone(&zones), Arc::clone(&caches));
        thread::spawn(move || drain(&zones, &*caches))
    };
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (zones, caches) = (Arc::clone(&zones), Arc::clone(&caches));
            thread::spawn(move || {
                let (cache, mut held, mut failures) = (&caches[number % CACHES], Vec::new(), 0);
                for round in 0..ALLOCATIONS {
                    let give_back = |rest| zones.lock().expect("no panic").take_back(rest);
                    match cache.allocate(|| allocate(&zones), give_back) {
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
                held.into_iter().for_each(|grant| zones.give_back(grant));
                failures
            })
        })
        .collect();
    let failures: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    drainer.join().expect("no panic");
    drain(&zones, &*caches);
    assert!(
        caches.iter().all(|cache| cache.held().is_none()),
        "{}: nothing is left in a cache",
        policy.name()
    );
    let zones = zones.lock().expect("no panic");
    let whole: Vec<u64> = LOCAL.iter().chain(&REMOTE).map(|zone| zone.free_frames).collect();
    assert_eq!(free_frames(&zones), whole, "{}: no frame is lost, none is had twice", policy.name());
    assert_eq!(zones.counters().wake_ups, failures, "{}: a wake-up for each failure", policy.name());
}

#[test]
fn frames_are_conserved_in_every_interleaving() {
    for policy in ZonePolicy::ALL {
        holds(move || allocate_and_give_back(policy, Word, in_one_hold));
    }
}

#[test]
fn deciding_in_one_hold_of_the_lock_and_taking_in_another_loses_frames() {
    fails(|| allocate_and_give_back(ZonePolicy::Fair, Word, in_two_holds));
}

#[test]
fn a_cache_that_is_written_back_blindly_grants_frames_twice() {
    fails(|| allocate_and_give_back(ZonePolicy::Fair, Torn, in_one_hold));
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
