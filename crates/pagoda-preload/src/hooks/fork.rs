//! The hooks around fork(2): before it, and after it in the parent and in the child.
//!
//! A child has all the memory of its parent from its first instruction on, or does not run; and an
//! engine begins either before a fork, which then knows of it, or after it. This module must never
//! let a child run with pages missing.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use pagoda::process::Fork;
use pagoda_core::fork::wait::{self, ForkWait};
use pagoda_linux::process::doorbell::{Answer, Doorbell};
use pagoda_linux::process::thread::{current_id, now_ns, sleep_us, yield_now};

use super::real::{errno, place, required};
use crate::current::{deactivate, engine, tree};
use crate::start::begin_in_child;

/// The threads that are within fork(2) and found no engine before it.
static FORKING: [AtomicU32; FORKING_BOUND] = [const { AtomicU32::new(0) }; FORKING_BOUND];

/// More threads than ever fork at once; beyond it one waits.
const FORKING_BOUND: usize = 64;

thread_local! {
    /// The engine's handle of the fork that this thread is within, and errno before it; None if it
    /// has none.
    static KNOWN: Cell<Option<(Fork, c_int)>> = const { Cell::new(None) };
}

/// Has the C library call the functions of this module around each fork. Handlers that run before a
/// fork do so last one first.
pub fn register() {
    let real = required(const { place("__register_atfork") });
    // SAFETY: the function has this type, and the three live as long as the process: this library
    // is never unloaded, so that no handle is passed that would say when.
    unsafe {
        std::mem::transmute::<*mut c_void, RegisterAtfork>(real)(
            before_fork,
            after_fork,
            in_child,
            std::ptr::null_mut(),
        )
    };
}

type RawFork = unsafe extern "C" fn() -> libc::pid_t;
type RegisterAtfork =
    unsafe extern "C" fn(extern "C" fn(), extern "C" fn(), extern "C" fn(), *mut c_void) -> c_int;

/// Waits until every fork is over that does not know of the engine. Bounded by the time of fork(2).
pub fn wait_for_forks() {
    fence(Ordering::SeqCst);
    while FORKING.iter().any(|thread| thread.load(Ordering::SeqCst) != 0) {
        sleep_us(50);
    }
}

/// Before a fork: the engine is told, so that the child gets its swapped-out pages; where the
/// kernel sends no event for forks, everything is swapped in first. A fork that finds no engine
/// keeps one from beginning meanwhile, and one that finds an engine without registered memory keeps
/// it from registering any.
extern "C" fn before_fork() {
    let own = current_id();
    let enter =
        |thread: &AtomicU32| thread.compare_exchange(0, own, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if engine().is_none() {
        while !FORKING.iter().any(enter) {
            yield_now();
        }
        fence(Ordering::SeqCst);
    }
    // Either this thread sees the engine here, or the thread that started it sees the fork.
    let Some(engine) = engine() else { return };
    leave_forking();
    // A hand-over takes no more room than the stored pages take.
    if engine.out_bytes() > wait::OUT_MOST && !engine.hands_over() {
        wait_for_room();
    }
    let fork = engine.begin_fork();
    if fork == Fork::Unknown {
        engine.release();
        return deactivate();
    }
    // The child inherits this thread's processors.
    engine.enter_call();
    // The C library does not tell its handlers whether the fork succeeded. Its system call sets
    // errno only if it failed.
    KNOWN.set(Some((fork, errno().replace(0))));
}

/// Waits as long as core's [`ForkWait`] says.
fn wait_for_room() {
    let Some(tree) = tree() else { return };
    let mut wait = ForkWait::new(tree.budget(), now_ns());
    while wait.goes_on(tree.claimed(), now_ns()) {
        sleep_us(1000);
    }
}

/// After a fork, in the parent, also after one that failed: its announcement ends. Returns when the
/// child has its missing pages, or has taken them over: this process may end right after this, and
/// its engine with it.
extern "C" fn after_fork() {
    leave_forking();
    let Some((fork, before)) = KNOWN.take() else { return };
    let has_forked = errno().get() == 0;
    if has_forked {
        errno().set(before);
    }
    if let Some(engine) = engine() {
        engine.leave_call();
    }
    match (engine(), fork) {
        (Some(engine), Fork::Passes) => engine.fork_passed(has_forked),
        (Some(engine), Fork::Announced) if has_forked => engine.wait_until_forks_are_served(),
        (Some(engine), Fork::Announced) => engine.take_back_announcement(),
        _ => {}
    }
}

/// Before memory is asked to be empty in children: a fork in progress has it whole, or has not
/// begun.
pub fn before_wipe_on_fork() {
    let Some(engine) = engine() else { return };
    // Bounded by the time of fork(2), and by the kernel's event of it.
    while engine.is_fork_announced() {
        sleep_us(50);
    }
}

fn leave_forking() {
    let own = current_id();
    if let Some(thread) = FORKING.iter().find(|thread| thread.load(Ordering::SeqCst) == own) {
        thread.store(0, Ordering::SeqCst);
    }
}

/// In a child, on its one thread: begins anew, and returns when it has all its memory, or an engine
/// that has it.
extern "C" fn in_child() {
    let known = KNOWN.take();
    if let Some((_, before)) = known {
        errno().set(before);
    }
    for thread in &FORKING {
        if thread.load(Ordering::SeqCst) != 0 {
            thread.store(0, Ordering::SeqCst);
        }
    }
    // Also a child of an unseen child has the pages of its grandparent, and no engine would answer
    // its faults there.
    let is_given = known.is_some_and(|(fork, _)| fork == Fork::Announced);
    begin_in_child(|| {
        if is_given {
            return Doorbell::wait_for_parent();
        }
        Doorbell::pass_by();
        Answer::Everything
    });
}

/// As _Fork(3), which runs no atfork handlers.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    before_fork();
    let real = required(const { place("_Fork") });
    // SAFETY: as in `pthread_create`.
    let child = unsafe { std::mem::transmute::<*mut c_void, RawFork>(real)() };
    if child == 0 {
        in_child();
    } else {
        after_fork();
    }
    child
}
