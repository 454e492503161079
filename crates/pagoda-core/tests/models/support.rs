//! The harness of the model checks: shuttle's threads, under each of its schedulers that suits us.
//!
//! Shuttle chooses which thread runs at each atomic operation and lock. This module must never
//! write a schedule to a file: one that fails is shown, and can be replayed from that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Interleavings tried by each scheduler.
const TRIES: usize = 1000;
/// Interleavings tried by each scheduler, at most, until one fails. With a twentieth of it none was
/// found in one run of many.
const TRIES_TO_FAIL: usize = 200 * TRIES;
/// Steps after which an interleaving is a livelock; right ones take a few hundred.
const STEPS_MAX: usize = 20_000;
/// Changes of priority that the second scheduler makes: bugs that take more are rare.
const PCT_DEPTH: usize = 3;

fn run(scheduler: impl Scheduler + 'static, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.failure_persistence = FailurePersistence::None;
    Runner::new(scheduler, config).run(model);
}

/// No interleaving that is tried fails an assertion of `model`, deadlocks or livelocks.
///
/// # Panics
/// As `model` does.
pub fn holds(model: impl Fn() + Clone + Send + Sync + 'static) {
    run(RandomScheduler::new(TRIES), model.clone());
    run(PctScheduler::new(PCT_DEPTH, TRIES), model);
}

/// Some interleaving of `model` fails.
///
/// # Panics
/// If none is found.
pub fn fails(model: impl Fn() + Clone + Send + Sync + 'static) {
    let random = || run(RandomScheduler::new(TRIES_TO_FAIL), model.clone());
    let pct = || run(PctScheduler::new(PCT_DEPTH, TRIES_TO_FAIL), model.clone());
    let failed =
        catch_unwind(AssertUnwindSafe(random)).is_err() || catch_unwind(AssertUnwindSafe(pct)).is_err();
    assert!(failed, "no interleaving fails");
}
