//! The watchdog: a fault that is in service for too long ends the process, and says why it could
//! not be served.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagoda_linux::testing::skip::skip_without_moves;

use super::*;
use crate::assemble::without_threads;
use crate::error::Immovable;
use crate::state::pending::HANDLERS_MAX;

const BUDGET: Bytes = Bytes::mib(64);

/// The reason for which the watchdog ends the process, if it does.
fn verdict(engine: &Engine) -> Option<StopReason> {
    let ended = catch_unwind(AssertUnwindSafe(|| engine.watch_handlers())).err()?;
    Some(*ended.downcast::<StopReason>().expect("a reason"))
}

#[test]
fn a_fault_that_is_in_service_for_too_long_ends_the_process_with_the_reason() {
    if skip_without_moves("the watchdog") {
        return;
    }
    let engine = without_threads(BUDGET);
    assert_eq!(verdict(&engine), None, "no fault is served");
    let serve_since = |ns| engine.serving_since_ns[HANDLERS_MAX - 1].store(ns, Ordering::Relaxed);
    serve_since(ran_ns());
    assert_eq!(verdict(&engine), None, "it has just begun");
    serve_since(1);
    assert_eq!(verdict(&engine), Some(StopReason::HandlerStuck));
    serve_since(0);
    engine.own_fault_since_ns.store(1, Ordering::Relaxed);
    assert_eq!(verdict(&engine), Some(StopReason::HandlerStuck), "a thread waits for its own fault");
    assert_eq!(engine.counters.get(Counter::ErrorCode), StopReason::HandlerStuck.code());
    engine.ledger.reconcile(BUDGET.get(), 0);
    assert_eq!(
        verdict(&engine),
        Some(StopReason::NothingEvictable(Immovable::IN_USE)),
        "there is no memory to serve it with"
    );
    *engine.refusal.lock().expect("a lock") = Some((ran_ns(), StopReason::StoreFull));
    assert_eq!(verdict(&engine), Some(StopReason::StoreFull), "the store has refused what could leave");
    engine.note_fork_goes_on();
    assert_eq!(verdict(&engine), None, "it waits for a fork, which gets on");
}
