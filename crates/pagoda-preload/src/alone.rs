//! A process without a thread of ours for as long as a call takes that the kernel allows to no
//! other.
//!
//! The threads end by themselves, each when it looks next, and one watches again afterwards. This
//! module must never make the call while anything is missing that only they could bring.

use std::sync::atomic::{AtomicBool, Ordering};

use pagoda::tree::Member;
use pagoda_linux::process::last_thread::threads as all_threads;
use pagoda_linux::process::lock::Lock;
use pagoda_linux::process::thread::{now_ns, sleep_us, wake};

use crate::current;
use crate::start::{HAS_FAILED, Start, WANTED, begin};

/// Whether the threads of this process are to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The member that this process is, with its number: a child has another. The lock is held for a
/// copy alone, around nothing else.
static MEMBER: Lock<Option<(u32, Member)>> = Lock::new(None);

/// How long a call waits for the ends of our threads.
const END_WAIT_NS: u64 = 2_000_000_000;

/// Whether they are.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// This process is this member.
pub fn remember(member: Member) {
    *MEMBER.lock() = Some((std::process::id(), member));
}

/// Runs `call` without a thread of ours: everything is swapped in before. An engine that there was
/// does not come again, and the process is only counted from then on.
pub fn alone<T>(call: impl FnOnce() -> T) -> T {
    let mut had_engine = false;
    ENDING.store(true, Ordering::SeqCst);
    let until = now_ns() + END_WAIT_NS;
    while all_threads().is_some_and(|threads| threads > 1) && now_ns() < until {
        WANTED.store(1, Ordering::Release);
        wake(&WANTED);
        // It may have begun just now.
        if let Some(engine) = current::engine() {
            had_engine = true;
            engine.end();
            current::deactivate();
        }
        sleep_us(100);
    }
    let are_gone = all_threads() == Some(1);
    let result = call();
    if !are_gone {
        // They go on, if they have not ended after all.
        ENDING.store(false, Ordering::SeqCst);
        return result;
    }
    if had_engine {
        HAS_FAILED.store(true, Ordering::Release);
    }
    WANTED.store(0, Ordering::Release);
    let own = MEMBER.lock().filter(|(process, _)| *process == std::process::id());
    ENDING.store(false, Ordering::SeqCst);
    if let Some(tree) = current::tree() {
        begin(*tree, own.map_or(Start::WhenGrown, |(_, member)| Start::Again(member)));
    }
    result
}
