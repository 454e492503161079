//! The engine's threads: fault handlers that also read events, reclaimers, and the one that looks
//! for new mappings. Their steps are elsewhere, and they must never depend on time.

use std::rc::Rc;

use crate::fault::Served;
use crate::kernel::GRANULES;
use crate::world::{World, step};

pub async fn handler(world: Rc<World>) {
    let mut faults = Vec::new();
    while !world.is_over() {
        step().await;
        if world.kernel.borrow().is_readable() || world.is_any_deferred() {
            world.read_messages(&mut faults).await;
        }
        for address in std::mem::take(&mut faults) {
            match world.serve(address).await {
                Served::Done if world.below(4) == 0 => {
                    world.fetch_ahead(address - address % GRANULES + GRANULES).await;
                }
                Served::Done => {}
                Served::NoMemory => {
                    // A frame that is ready and too large is room for small ones.
                    world.give_back_a_huge_frame();
                    world.stage_next().await;
                    world.store_oldest().await;
                    faults.push(address);
                }
                Served::Again | Served::Busy => faults.push(address),
            }
        }
    }
}

pub async fn reclaimer(world: Rc<World>) {
    while !world.is_over() {
        step().await;
        if world.below(2) == 0 {
            world.stage_next().await;
        } else {
            world.store_oldest().await;
        }
        if world.setting.has_region {
            match world.below(8) {
                0 => world.clear_ahead().await,
                1..4 => world.rebuild().await,
                4 => drop(world.give_back_a_huge_frame()),
                _ => {}
            }
        }
        // Frames go back to the kernel.
        if world.below(8) == 0
            && let Some(slot) = world.take_ready()
        {
            world.kernel.borrow_mut().slots[slot] = [None; GRANULES];
            world.put_empty(slot);
        }
    }
}

pub async fn watcher(world: Rc<World>) {
    while !world.is_over() {
        for _ in 0..world.below(60) {
            step().await;
        }
        world.adopt().await;
    }
}
