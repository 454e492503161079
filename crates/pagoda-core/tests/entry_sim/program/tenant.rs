//! A tenant: a thread with a library's region in huge frames, which it closes and makes anew.
//!
//! Its pages are at a place of their own. It discards through the library, which splits huge frames
//! before, or by itself. Now and then the kernel splits one for a reason of its own.

use std::rc::Rc;

use super::{Block, OPERATIONS, Program};
use crate::kernel::{HUGE, Message, REGION};
use crate::world::{World, step};

pub async fn tenant(world: Rc<World>, thread: usize) {
    let mut tenant = Program { world: Rc::clone(&world), thread, blocks: Vec::new() };
    tenant.open().await;
    for _ in 0..OPERATIONS {
        step().await;
        match world.below(16) {
            0..6 => tenant.write(0, 0).await,
            6..9 => tenant.read_all(0).await,
            9..11 => tenant.discard(0, 0, true).await,
            11 => tenant.discard(0, 0, false).await,
            12 => tenant.pin_for_a_while(0).await,
            13 => tenant.protect_for_a_while().await,
            14 => {
                let place = REGION.start / HUGE + world.below(REGION.len() / HUGE);
                world.note(|| format!("kernel: takes place {place} apart"));
                world.kernel.borrow_mut().split(place);
            }
            _ => {
                tenant.close().await;
                tenant.open().await;
            }
        }
    }
    tenant.read_all(0).await;
    world.programs_left.set(world.programs_left.get() - 1);
}

impl Program {
    async fn open(&mut self) {
        let world = Rc::clone(&self.world);
        let _gate = world.gate_exclusive().await;
        let mut kernel = world.kernel.borrow_mut();
        kernel.map(REGION);
        kernel.register(REGION);
        world.table.borrow_mut().insert_region(REGION);
        self.blocks = vec![Block { at: REGION.start, content: vec![0; REGION.len()], read_only: false }];
    }

    async fn close(&mut self) {
        self.world.keep_huge_frames().await;
        self.world.note(|| format!("thread {}: close", self.thread));
        self.world.kernel.borrow_mut().begin_change();
        self.world.kernel.borrow_mut().unmap(REGION);
        self.tell(Message::Unmap(REGION)).await;
    }

    /// mprotect of a part, which takes a huge page apart that it cuts.
    async fn protect_for_a_while(&self) {
        let from = REGION.start + self.world.below(REGION.len());
        let part = from..from + 1 + self.world.below(REGION.end - from);
        self.world.kernel.borrow_mut().protect(part.clone(), true);
        for _ in 0..self.world.below(200) {
            step().await;
        }
        self.world.kernel.borrow_mut().protect(part, false);
    }
}
