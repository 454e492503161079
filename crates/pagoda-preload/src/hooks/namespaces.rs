//! Calls by which a program leaves its namespaces, and which the kernel refuses to a process with
//! several threads: unshare(2) and setns(2) of a user namespace.
//!
//! A program of one thread does not know of ours. So where such a call fails for them, they end,
//! and it is made again. This module must never end them for a program that would be refused by
//! itself.

use std::ffi::{c_int, c_void};

use pagoda_linux::process::last_thread::is_alone;
use pagoda_linux::process::thread::sleep_us;

use super::real::{errno, place, required};
use crate::alone::alone;
use crate::current::is_watched;

/// Looks at the count of threads, one each [`LOOK_US`].
const LOOKS: u32 = 50;
const LOOK_US: u32 = 1000;

/// Whether the program has no other thread. A thread of ours that has just been started is taken
/// for one of the program's until it runs.
fn is_soon_alone() -> bool {
    (0..LOOKS).any(|_| {
        let is_alone = is_alone();
        if !is_alone {
            sleep_us(LOOK_US);
        }
        is_alone
    })
}

/// Makes a call, and makes it again without threads of ours if they may have made it fail.
fn again_alone(may_be: bool, call: impl Fn() -> c_int) -> c_int {
    let before = errno().get();
    let result = call();
    if !may_be || result != -1 || errno().get() != libc::EINVAL || !is_watched() || !is_soon_alone() {
        return result;
    }
    let (result, error) = alone(|| (call(), errno().get()));
    errno().set(if result == 0 { before } else { error });
    result
}

/// As unshare(2), but that no thread of ours counts.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let real = required(const { place("unshare") });
    // SAFETY: `real` found the function of this name behind this library, which has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(real) };
    // SAFETY: the caller's argument.
    again_alone(flags & libc::CLONE_NEWUSER != 0, || unsafe { real(flags) })
}

/// As setns(2), but that no thread of ours counts.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(descriptor: c_int, kind: c_int) -> c_int {
    let real = required(const { place("setns") });
    // SAFETY: as in `unshare`.
    let real =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, c_int) -> c_int>(real) };
    // SAFETY: the caller's arguments.
    again_alone(kind == 0 || kind & libc::CLONE_NEWUSER != 0, || unsafe { real(descriptor, kind) })
}
