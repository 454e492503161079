//! Robust mutexes in managed memory, held by threads when they end: the next to lock one is told
//! that its owner died. The kernel marks them without serving faults, so with a page that is
//! swapped out there all waiters would wait for good.

use std::time::Duration;

use pagoda_linux::testing::robust::RobustMutexes;

use crate::pressure::Arena;
use crate::support::memory::Mapping;
use crate::support::random::Random;

/// Pages of mutexes: 1 MiB, with one mutex in every eighth.
const PAGES: usize = 256;

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 9);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    mapping.words_mut(0..PAGES).fill(0);
    let mut mutexes = RobustMutexes::new(mapping, 8);
    arena.wait_until_managed(mutexes.mapping());
    while arena.next_round() {
        arena.look(mutexes.mapping());
        let from = random.below(mutexes.len());
        let held: Vec<_> = (0..random.between(1, 6)).map(|i| (from + i * 5) % mutexes.len()).collect();
        let rest_us = if random.one_in(8) { random.below(20_000) as u64 } else { 0 };
        let taken = mutexes.end_holding(&held, Duration::from_micros(rest_us));
        if taken != held.len() {
            return Err(format!("{taken} mutexes taken of {}", held.len()));
        }
        for i in held {
            let results = mutexes.recover(i);
            if results != (libc::EOWNERDEAD, 0, 0) {
                return Err(format!("lock, consistent and unlock after the owner's end: {results:?}"));
            }
        }
        if random.one_in(4) {
            // One is destroyed and made again: its place is no more and once more one that must
            // stay.
            mutexes.remake(random.below(mutexes.len()));
        }
    }
    Ok(())
}
