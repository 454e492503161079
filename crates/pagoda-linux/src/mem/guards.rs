//! Whether this process may have guards in its memory (`MADV_GUARD_INSTALL`, Linux 6.13).
//!
//! An access to a guard kills the program, and no descriptor hears of it before. But to the
//! kernel's copy (`UFFDIO_COPY`) it is a missing page, so that a fill around it would put memory
//! over it; moves and the page of zeroes leave it alone. A check costs about a tenth of a copy of
//! 64 KiB. It is made in a program that is managed whole, on a kernel that has guards: a raw system
//! call, and a C library that guards the stacks of threads, tell nothing. This module must never
//! forget that there may be a guard.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use linux_raw_sys::general::__NR_madvise;
use pagoda_core::page::OS_PAGE;

use crate::raw_syscall::syscall3;

/// `MADV_GUARD_INSTALL` of madvise(2): the content there is gone, and no event tells of it.
pub const INSTALL: c_int = 102;

/// `MADV_GUARD_REMOVE` of madvise(2).
pub const REMOVE: c_int = 103;

static MAY_BE: AtomicBool = AtomicBool::new(false);

/// The program may install guards at any time from now on, if the kernel has them.
pub fn expect() {
    let here = 0u8;
    let page = (&raw const here).addr() & !(OS_PAGE - 1);
    // SAFETY: it removes guards from a page of this thread's stack, which has none.
    let has_guards = unsafe { syscall3(__NR_madvise, page, OS_PAGE, REMOVE as usize) }.is_ok();
    MAY_BE.store(has_guards, Ordering::SeqCst);
}

/// Whether there may be any.
#[must_use]
pub fn may_be() -> bool {
    MAY_BE.load(Ordering::Relaxed)
}
