//! A model check of concurrent threads on one release queue: a closing owner, the worker, a
//! flusher, an owner that needs room, and one that finds the worker stalled.
//!
//! The threads are shuttle's, as in `entry_model`; the real `Queue` is between them, behind a lock.
//! Rules are also left out and the check must fail.

use super::queue_model::{Queued, start};
use super::support::{fails, holds};
use pagoda_core::release::batch::{Batch, Run};
use pagoda_core::release::queue::{Piece, Queue, STALL_US, Taker};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread::yield_now;

const ENTRIES: u64 = 6;

/// The rule of the protocol that is left out.
#[derive(Clone, Copy, Default)]
struct Without {
    /// A flush waits until nothing is queued, but not for pieces in others' hands.
    waiting_for_hands: bool,
    /// A batch is taken, and put back as empty, in two steps.
    one_step_taking: bool,
}

struct World {
    without: Without,
    queue: Mutex<Queue<()>>,
    /// How often each entry was freed.
    freed: [AtomicU64; 2 * ENTRIES as usize],
    queued: AtomicU64,
    inline: AtomicU64,
    quit: AtomicBool,
}

impl World {
    fn new(without: Without) -> Arc<Self> {
        Arc::new(Self {
            without,
            queue: Mutex::new(Queue::new(ENTRIES + 2)),
            freed: std::array::from_fn(|_| AtomicU64::new(0)),
            queued: AtomicU64::new(0),
            inline: AtomicU64::new(0),
            quit: AtomicBool::new(false),
        })
    }
    fn queue(&self) -> shuttle::sync::MutexGuard<'_, Queue<()>> {
        self.queue.lock().expect("no panic")
    }
    fn free(&self, run: Run) {
        for entry in run.first..run.first + run.entries {
            assert_eq!(self.freed[entry as usize].fetch_add(1, Ordering::SeqCst), 0, "{entry} is freed once");
        }
    }
    fn free_inline(&self, batch: &mut Batch) {
        self.inline.fetch_add(batch.entries(), Ordering::SeqCst);
        while let Some(run) = batch.take(u64::MAX) {
            self.free(run);
        }
    }

    /// Owner `owner` closes.
    fn close(&self, owner: u64) {
        let handles = owner * ENTRIES..(owner + 1) * ENTRIES;
        let spare = self.queue().spare();
        let Some(mut batch) = spare else {
            self.inline.fetch_add(ENTRIES, Ordering::SeqCst);
            self.free(Run { first: handles.start, entries: ENTRIES });
            return;
        };
        assert!(handles.into_iter().all(|handle| batch.push(handle)));
        let mut queue = self.queue();
        match queue.hand_over((), batch, 0) {
            Ok(()) => _ = self.queued.fetch_add(ENTRIES, Ordering::SeqCst),
            Err(mut batch) => {
                drop(queue);
                self.free_inline(&mut batch);
                self.queue().put_spare(batch);
            }
        }
    }

    fn take(&self, taker: Taker) -> Option<Piece<()>> {
        if self.without.one_step_taking {
            // Looks first, and takes the piece that it saw without the lock in between.
            let idle = self.queue().is_idle();
            yield_now();
            return (!idle).then(|| self.queue().take(taker, 0).expect("it was there"));
        }
        self.queue().take(taker, 0)
    }

    fn assert_balanced(&self) {
        let freed: u64 = self.freed.iter().map(|freed| freed.load(Ordering::SeqCst)).sum();
        let [queued, inline] = [&self.queued, &self.inline].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(queued + inline, freed, "queued and inline together are freed");
        self.queue().assert_whole(0);
    }
}

impl Queued for World {
    fn step(&self, taker: Taker) -> bool {
        let Some(piece) = self.take(taker) else { return false };
        piece.runs().iter().for_each(|run| self.free(*run));
        self.queue().freed(taker, &piece, 0);
        true
    }
    fn is_idle(&self) -> bool {
        self.queue().is_idle()
    }
    fn waits_for_hands(&self) -> bool {
        !self.without.waiting_for_hands
    }
    fn is_ending(&self) -> bool {
        self.quit.load(Ordering::SeqCst)
    }
}

/// Two owners close beside a worker; one of them waits for its own, then all.
fn closing(without: Without) {
    let world = World::new(without);
    let worker = start(&world, World::work);
    let other = start(&world, |world| world.close(1));
    world.close(0);
    world.flush();
    for entry in 0..ENTRIES {
        assert_eq!(world.freed[entry as usize].load(Ordering::SeqCst), 1, "{entry} is back after a flush");
    }
    other.join().expect("no panic");
    world.flush();
    world.assert_balanced();
    world.quit.store(true, Ordering::SeqCst);
    worker.join().expect("no panic");
    assert!(world.queue().is_idle());
}

#[test]
fn everything_is_freed_once_and_a_flush_waits_for_it() {
    holds(|| closing(Without::default()));
}

#[test]
fn a_flush_that_does_not_wait_for_pieces_in_others_hands_is_missed() {
    fails(|| closing(Without { waiting_for_hands: true, ..Without::default() }));
}

#[test]
fn looking_and_taking_in_two_steps_is_missed() {
    fails(|| closing(Without { one_step_taking: true, ..Without::default() }));
}

/// A worker is found stalled while it has a piece in its hands and others close.
fn stalling() {
    let world = World::new(Without::default());
    let slow = start(&world, |world| {
        let piece = world.queue().take(Taker::Worker, 0);
        yield_now();
        if let Some(piece) = piece {
            piece.runs().iter().for_each(|run| world.free(*run));
            world.queue().freed(Taker::Worker, &piece, 2 * STALL_US);
        }
    });
    let finder = start(&world, |world| {
        if world.queue().look(STALL_US) {
            while world.step(Taker::Helper) {}
            assert!(world.queue().spare().is_none(), "inline from then on");
        }
    });
    world.close(0);
    world.close(1);
    [slow, finder].into_iter().for_each(|thread| thread.join().expect("no panic"));
    world.flush();
    world.assert_balanced();
    assert!(world.freed.iter().all(|freed| freed.load(Ordering::SeqCst) == 1), "nothing is leaked");
}

#[test]
fn a_stalled_worker_loses_nothing_and_frees_nothing_twice() {
    holds(stalling);
}
