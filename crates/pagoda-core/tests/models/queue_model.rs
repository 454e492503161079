//! The threads that the models of the release queues have in common: a worker and a flush.

use pagoda_core::release::queue::Taker;
use shuttle::sync::Arc;
use shuttle::thread::{self, JoinHandle, yield_now};

/// A queue between threads.
pub trait Queued: Send + Sync + 'static {
    /// Takes a piece and does its work. False if there is none.
    fn step(&self, taker: Taker) -> bool;
    /// Whether nothing is queued, nor in any thread's hands.
    fn is_idle(&self) -> bool;
    /// The rule that a flush waits for pieces in others' hands.
    fn waits_for_hands(&self) -> bool;
    /// Whether the worker is to end.
    fn is_ending(&self) -> bool;

    /// The worker.
    fn work(&self) {
        loop {
            while self.step(Taker::Worker) {}
            if self.is_ending() {
                return;
            }
            yield_now();
        }
    }

    /// Returns when everything is released.
    fn flush(&self) {
        loop {
            while self.step(Taker::Helper) {}
            if !self.waits_for_hands() || self.is_idle() {
                return;
            }
            yield_now();
        }
    }
}

/// Starts a thread on a queue.
pub fn start<W: Queued>(world: &Arc<W>, body: fn(&W)) -> JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}
