//! A library's budget that is exhausted: it is passed, and the host is told.
//!
//! One tenant's full store, or memory that it keeps from being moved, must not end a process with
//! others in it. So once nothing could be moved out for a second while a fault waits, the budget is
//! passed by one high watermark, and by twice as much each further time. From then on the reclaimer
//! tries once a second to move pages out again, and takes back memory not needed. This module must
//! never pass the budget of a managed program.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagoda_core::budget;
use pagoda_core::size::Bytes;
use pagoda_linux::process::joinable::JoinableThread;
use pagoda_linux::process::thread::ran_ns;

use crate::engine::Engine;
use crate::error::StopReason;
use crate::state::hand::Step;
use crate::stats::counters::Counter;
use crate::store::Scratch;

/// How long a fault waits before the budget is passed, and how often it is tried to return to it.
const PASS_NS: u64 = 1_000_000_000;

/// How long a fault waits while pages come and go. Well below the watchdog's patience.
const OLD_NS: u64 = 5 * PASS_NS;

/// Steps of one such try.
const STEPS: u32 = 256;

/// A budget that was passed, because nothing of it could be moved out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exhausted {
    /// Why nothing could be moved out. A managed program would be ended for it.
    pub reason: StopReason,
    /// By how much the budget is passed now.
    pub passed: Bytes,
}

/// What the host does about it.
#[derive(Clone)]
pub(crate) struct OnExhausted(Arc<dyn Fn(Exhausted) + Send + Sync>);

impl OnExhausted {
    pub(crate) fn new(told: impl Fn(Exhausted) + Send + Sync + 'static) -> Self {
        let told = Arc::new(told);
        // On a thread of its own: it may touch managed memory, or wait for one that does. Started
        // here, where no managed program gets: the preload library must not import threads.
        Self(Arc::new(move |exhausted| {
            let told = Arc::clone(&told);
            // Without a thread it is told the next time.
            drop(JoinableThread::start("pagoda-exceeds", move || told(exhausted)));
        }))
    }
}

impl fmt::Debug for OnExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnExhausted")
    }
}

/// How often the budget was passed since it was last kept, and when.
#[derive(Default)]
pub(crate) struct Passes {
    times: u32,
    last_ns: u64,
}

impl Engine {
    /// A fault has waited since `since_ns` for memory that nothing makes free. True if the budget
    /// is passed for it now.
    pub(crate) fn pass_budget(&self, reason: StopReason, since_ns: u64, passes: &mut Passes) -> bool {
        let now = ran_ns();
        if now.saturating_sub(since_ns) < PASS_NS {
            return false;
        }
        let excess = self.ledger.excess_bytes() + self.ledger.passed_bytes();
        let passed = budget::passed(Bytes::new(excess), self.marks().high, passes.times);
        *passes = Passes { times: passes.times + 1, last_ns: now };
        self.set_passed(passed.get());
        if let Some(OnExhausted(tell)) = &self.on_exhausted {
            tell(Exhausted { reason, passed });
        }
        true
    }

    /// The same for a fault that has waited for long although some pages could be moved: they
    /// are touched again all the while.
    pub(crate) fn pass_budget_for_the_oldest(&self, passes: &mut Passes) {
        let all = self.serving_since_ns.iter().chain([&self.own_fault_since_ns]);
        let since = all.map(|since| since.load(Ordering::Relaxed));
        let Some(since) = since.filter(|since| *since != 0).min() else { return };
        let is_old = ran_ns().saturating_sub(since) > OLD_NS;
        if is_old && self.lacks_memory() {
            self.pass_budget(self.nothing_evictable(), since.max(passes.last_ns), passes);
        }
    }

    /// Once a second, while the budget is passed: moves pages out, and takes back what then is
    /// free beyond the high watermark.
    pub(crate) fn return_to_budget(&self, passes: &mut Passes, scratch: &mut Scratch) {
        let passed = self.ledger.passed_bytes();
        if passed == 0 || ran_ns().saturating_sub(passes.last_ns) < PASS_NS {
            return;
        }
        passes.last_ns = ran_ns();
        let gains = |step| matches!(step, Step::FrameReady | Step::Staged | Step::Looking);
        (0..STEPS).take_while(|_| gains(self.reclaim_step(scratch))).for_each(drop);
        let unused = self.free().get().saturating_sub(self.marks().high.get());
        self.set_passed(passed.saturating_sub(unused));
        if unused >= passed {
            passes.times = 0;
        }
        self.keep_budget();
    }

    fn set_passed(&self, bytes: u64) {
        self.ledger.pass(bytes);
        self.counters.set(Counter::PassedBudgetBytes, bytes);
    }
}

#[cfg(test)]
mod tests {
    use pagoda_linux::testing::skip::skip_without_moves;

    use super::*;
    use crate::assemble::without_threads;

    /// Its pages come and go all the while, so that reclaim never sees that they are not enough.
    #[test]
    fn the_budget_is_passed_for_a_thread_that_has_waited_for_its_own_fault() {
        if skip_without_moves("a budget that is passed") {
            return;
        }
        let engine = without_threads(Bytes::mib(64));
        let passed_after = |since_ns: u64| {
            engine.own_fault_since_ns.store(since_ns, Ordering::Relaxed);
            engine.pass_budget_for_the_oldest(&mut Passes::default());
            engine.ledger.passed_bytes()
        };
        assert_eq!(passed_after(1), 0, "there is room");
        engine.ledger.took(engine.ledger.room_bytes() as i64);
        assert_eq!(passed_after(ran_ns()), 0, "it has just begun");
        assert_eq!(passed_after(0), 0, "none waits");
        assert!(passed_after(1) > 0);
    }
}
