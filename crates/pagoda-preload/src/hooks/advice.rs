//! The hook of madvise(2), for the advice whose effect the kernel does not tell.
//!
//! This module must never change what a program reads: only content that is worth nothing is freed.

use std::ffi::{c_int, c_void};

use pagoda::process::ProcessEngine;
use pagoda_linux::mem::{guards, unforked};

use super::fork::before_wipe_on_fork;
use super::real::{place, required};
use crate::current::engine;

type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// As madvise(2), except that memory that the kernel may free later (`MADV_FREE`) is freed at once
/// in a managed process.
///
/// # Safety
/// As for the real function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    match advice {
        libc::MADV_WIPEONFORK => before_wipe_on_fork(),
        libc::MADV_DONTFORK => unforked::asks(),
        _ => {}
    }
    let real = required(const { place("madvise") });
    // SAFETY: as in `pthread_create`.
    let real = unsafe { std::mem::transmute::<*mut c_void, Madvise>(real) };
    // SAFETY: the caller's arguments.
    let result = unsafe { real(address, length, advice) };
    if advice == libc::MADV_DONTFORK {
        unforked::has_asked();
    }
    let is_to_be_told = matches!(advice, libc::MADV_FREE | guards::INSTALL);
    // Memory that is registered later is scanned then: present pages count as content.
    if result != 0 || !is_to_be_told || !engine().is_some_and(ProcessEngine::has_registered) {
        return result;
    }
    // Only after the kernel has taken the advice: where it refuses, everything stays. Memory that
    // it may free later is freed at once, because a later write there would not be known as
    // content, and never be evicted. And a guard sends no event. SAFETY: the content of the range
    // is worth nothing any more.
    unsafe { real(address, length, libc::MADV_DONTNEED) };
    if advice != guards::INSTALL {
        return 0;
    }
    // Once more: a thread that filled around it meanwhile may have looked before it was there.
    // SAFETY: the caller's arguments.
    unsafe { real(address, length, advice) }
}
