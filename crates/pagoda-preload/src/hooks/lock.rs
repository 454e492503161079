//! The call of the C library by which a program locks all its memory: it locks the program's, and
//! not Pagoda's.
//!
//! This module must never do less than the program asked for, nor leave memory of Pagoda's own
//! locked.

use std::ffi::c_int;

use pagoda_linux::mem::lock_all::lock_all;

use super::real::{errno, place, required};
use crate::current::is_watched;

type MlockAll = unsafe extern "C" fn(c_int) -> c_int;

/// As mlockall(2), but that nothing of Pagoda's own is locked, nor entered.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if is_watched() {
        return match lock_all(flags) {
            Ok(()) => 0,
            Err(error) => {
                errno().set(error.raw_os_error().unwrap_or(libc::EINVAL));
                -1
            }
        };
    }
    let real = required(const { place("mlockall") });
    // SAFETY: `real` found the function of this name behind this library, which has this type; it
    // takes any flags.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, MlockAll>(real)(flags) }
}
