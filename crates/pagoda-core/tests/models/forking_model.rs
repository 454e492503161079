//! A model check of forks beside the first registration: none passes while memory is registered,
//! and each that is announced finds a doorbell for its child.
//!
//! The threads are shuttle's, the real word is between them. An opener that does not wait for
//! passing forks is checked, too, and must be caught.

use super::support::{fails, holds};
use pagoda_core::fork::in_progress::{Begin, Forking};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::thread;

#[derive(Default)]
struct Process {
    forking: AtomicU64,
    has_doorbell: AtomicBool,
    is_registered: AtomicBool,
}

impl Process {
    fn word(&self) -> Forking {
        Forking::from_bits(self.forking.load(Ordering::SeqCst))
    }

    fn update(&self, update: impl Fn(Forking) -> Forking) {
        loop {
            let word = self.word();
            let (old, new) = (word.bits(), update(word).bits());
            if self.forking.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return;
            }
        }
    }

    fn fork(&self) {
        loop {
            let word = self.word();
            let (next, passes) = match word.begin() {
                Begin::Passes(next) => (next, true),
                Begin::Announced(next) => (next, false),
                Begin::Waits => {
                    thread::yield_now();
                    continue;
                }
            };
            let swapped =
                self.forking.compare_exchange(word.bits(), next.bits(), Ordering::SeqCst, Ordering::SeqCst);
            if swapped.is_err() {
                continue;
            }
            if passes {
                assert!(!self.is_registered.load(Ordering::SeqCst), "its child would lack swapped-out pages");
                self.update(Forking::passed);
            } else {
                assert!(
                    self.has_doorbell.load(Ordering::SeqCst),
                    "the kernel sends no event, and its child waits for nothing"
                );
                self.update(|word| word.heard().expect("it was announced"));
            }
            return;
        }
    }

    fn register(&self, waits: bool) {
        self.update(Forking::opening);
        while waits && self.word().is_any_passing() {
            thread::yield_now();
        }
        self.has_doorbell.store(true, Ordering::SeqCst);
        self.update(|word| word.opened(true));
        self.is_registered.store(true, Ordering::SeqCst);
    }
}

fn forks_beside_an_opener(waits: bool) {
    let process = Arc::new(Process::default());
    let forkers: Vec<_> = (0..2)
        .map(|_| {
            let process = Arc::clone(&process);
            thread::spawn(move || (0..2).for_each(|_| process.fork()))
        })
        .collect();
    process.register(waits);
    for forker in forkers {
        forker.join().expect("no assertion failed");
    }
    assert!(
        process.word().is_open() && !process.word().is_any_passing() && !process.word().is_any_announced()
    );
}

#[test]
fn no_fork_passes_beside_registered_memory_and_an_announced_one_has_a_doorbell() {
    holds(|| forks_beside_an_opener(true));
}

#[test]
fn an_opener_that_does_not_wait_is_caught() {
    fails(|| forks_beside_an_opener(false));
}
