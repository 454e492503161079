//! The signals that end a process with a core dump: with `--core` everything is brought back
//! before.
//!
//! Where the program left such a signal to the kernel, a handler of this library's own waits for
//! the engine, leaves the signal to the kernel again, and lets it come anew, with what the kernel
//! said of it. So the dump, the exit status and the debugger's view are those of the signal itself.
//! The program never sees that handler: sigaction(2) and signal(2) show it as the default, and
//! setting the default sets it. It runs on the stack that the signal found, so a stack overflow
//! dumps core as without it. A program that sets signals by system calls of its own (Go) is not
//! served. This module must never change a signal that the program handles or ignores.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{SIG_DFL, SIG_ERR, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGSYS, SIGTRAP};
use libc::{SIGXCPU, SIGXFSZ, sighandler_t, siginfo_t};
use pagoda_linux::process::signal_again;

use super::real::{errno, place, required};
use crate::current::engine;

/// See signal(7).
const SIGNALS: [c_int; 10] =
    [SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGXCPU, SIGXFSZ, SIGSYS];

static IS_ON: AtomicBool = AtomicBool::new(false);

type SigAction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

/// The real sigaction(2).
fn real(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let real = required(const { place("sigaction") });
    // SAFETY: `real` found the function of this name behind this library, which has this type; the
    // callers pass valid pointers or null.
    unsafe { std::mem::transmute::<*mut c_void, SigAction>(real)(signal, new, old) }
}

/// Sets an action. Returns the one before, unless that failed.
fn set(signal: c_int, new: libc::sigaction) -> Option<libc::sigaction> {
    let mut old = action(SIG_DFL, 0);
    (real(signal, &raw const new, &raw mut old) == 0).then_some(old)
}

/// The default, or this library's handler.
fn action(handler: sighandler_t, flags: c_int) -> libc::sigaction {
    // SAFETY: the struct is plain data, for which all zeroes are a value: the default, an empty
    // mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    action
}

fn own_handler() -> sighandler_t {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = caught;
    handler as sighandler_t
}

fn own() -> libc::sigaction {
    action(own_handler(), libc::SA_SIGINFO | libc::SA_ONSTACK)
}

/// From now on everything is brought back before the signals that the program leaves alone. For the
/// constructor.
pub fn turn_on() {
    IS_ON.store(true, Ordering::Release);
    for signal in SIGNALS {
        let mut now = action(SIG_DFL, 0);
        if real(signal, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == SIG_DFL {
            set(signal, own());
        }
    }
}

extern "C" fn caught(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let errno_before = errno().get();
    if let Some(engine) = engine() {
        engine.bring_back_for_core();
    }
    set(signal, action(SIG_DFL, 0));
    signal_again::send(signal, info.cast());
    errno().set(errno_before);
}

fn is_served(signal: c_int) -> bool {
    IS_ON.load(Ordering::Acquire) && SIGNALS.contains(&signal)
}

/// As sigaction(2).
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_served(signal) {
        return real(signal, new, old);
    }
    let own = own();
    // SAFETY: the caller passes a valid action, or null.
    let is_default = unsafe { new.as_ref() }.is_some_and(|new| new.sa_sigaction == SIG_DFL);
    let result = real(signal, if is_default { &raw const own } else { new }, old);
    if result != 0 {
        return result;
    }
    // SAFETY: the caller passes a place for an action, or null; the real function has written to
    // it.
    match unsafe { old.as_mut() } {
        Some(old) if old.sa_sigaction == own.sa_sigaction => *old = action(SIG_DFL, 0),
        _ => {}
    }
    0
}

/// As signal(2).
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    if handler == SIG_DFL && is_served(signal) {
        return set(signal, own()).map_or(SIG_ERR, |old| shown(old.sa_sigaction));
    }
    let real = required(const { place("signal") });
    // SAFETY: `real` found the function of this name behind this library, which has this type; the
    // caller's arguments.
    shown(unsafe { std::mem::transmute::<*mut c_void, Signal>(real)(signal, handler) })
}

/// A handler, as the program knows it.
fn shown(handler: sighandler_t) -> sighandler_t {
    if handler == own_handler() { SIG_DFL } else { handler }
}
