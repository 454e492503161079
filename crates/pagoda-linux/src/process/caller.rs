//! Calls of one thread to the kernel: its number, a sleep, the clocks, its end.
//!
//! Threads without thread-local storage use them, so all are system calls made by hand. This module
//! must never call the C library.

use std::sync::atomic::AtomicU32;

use linux_raw_sys::general as raw;
use pagoda_core::time::ran_clock::RanClock;
use rustix::thread::{NanosleepRelativeResult, futex};

use crate::raw_syscall::syscall3;

/// Ends the process at once, with every thread, running nothing of the program's.
pub fn exit_process(status: u8) -> ! {
    loop {
        // SAFETY: it takes a number and does not return.
        unsafe {
            let _ = syscall3(raw::__NR_exit_group, usize::from(status), 0, 0);
        }
    }
}

/// The calling thread's number.
#[must_use]
pub fn current_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Whether a thread of this process with this number exists, be it about to end.
#[must_use]
pub fn is_alive(id: u32) -> bool {
    let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
    // SAFETY: signal 0 is none; the kernel only looks the thread up.
    unsafe { syscall3(raw::__NR_tgkill, process, id as usize, 0).is_ok() }
}

/// Sleeps for `us` microseconds, or less if interrupted. Where a filter of system calls forbids
/// that, only gives the processor away.
pub fn sleep_us(us: u32) {
    let time = rustix::thread::Timespec {
        tv_sec: i64::from(us / 1_000_000),
        tv_nsec: i64::from(us % 1_000_000) * 1000,
    };
    if let NanosleepRelativeResult::Err(_) = rustix::thread::nanosleep(&time) {
        yield_now();
    }
}

/// Sleeps for `us` microseconds, or less if `word` is not 0 or [`wake`] is called for it.
pub fn sleep_while_zero(word: &AtomicU32, us: u32) {
    let time = rustix::thread::Timespec {
        tv_sec: i64::from(us / 1_000_000),
        tv_nsec: i64::from(us % 1_000_000) * 1000,
    };
    // Any outcome means: look again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, 0, Some(&time));
}

/// Wakes a thread in [`sleep_while_zero`].
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// Gives the processor to another thread that can run.
pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Time since some fixed point, in nanoseconds; never goes back.
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The time that this process ran, in nanoseconds: as [`now_ns`], but without the time in which it
/// was stopped. Patience is measured by it.
#[must_use]
pub fn ran_ns() -> u64 {
    static RAN: RanClock = RanClock::new();
    RAN.look(now_ns())
}

/// Processor time that the calling thread has used, in nanoseconds.
#[must_use]
pub fn cpu_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}
