//! Threads end while the memory around their control block is being evicted: a join gets them. The
//! kernel clears a thread's ID in its control block without serving faults, so a page that is
//! swapped out there would mean a hang.

use std::time::Duration;

use pagoda_linux::testing::threads::{Dive, Diver};

use crate::pressure::Arena;
use crate::support::memory::Mapping;
use crate::support::random::Random;

/// Pages of a stack of our own making: 512 KiB.
const STACK_PAGES: usize = 128;

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 8);
    let mut stacks = Vec::new();
    for _ in 0..4 {
        let mut stack = Mapping::new(STACK_PAGES).map_err(|error| error.to_string())?;
        // As if it had been used deeply before.
        stack.words_mut(0..STACK_PAGES).fill(0xdead);
        stacks.push(stack);
    }
    arena.wait_until_managed(&stacks[0]);
    while arena.next_round() {
        let rest = Duration::from_micros(if random.one_in(16) { random.below(30_000) as u64 } else { 0 });
        // Half of the threads have a stack of our own making; stacks of ended threads are kept for
        // the next round.
        let (mut threads, mut unused) = (Vec::new(), Vec::new());
        for stack in stacks.drain(..) {
            arena.look(&stack);
            let dive = Dive { pages: random.between(1, 80), rest };
            let own = if random.one_in(2) {
                Some(stack)
            } else {
                unused.push(stack);
                None
            };
            let thread = Diver::start(own, dive).map_err(|error| format!("pthread_create: {error}"))?;
            threads.push((thread, dive.pages));
        }
        for (thread, pages) in threads {
            let (stack, right) = thread.join();
            if right != pages {
                return Err(format!("{right} of {pages} stack frames are right"));
            }
            stacks.extend(stack);
        }
        stacks.append(&mut unused);
    }
    Ok(())
}
