//! Whether this process may have guards in its memory (`MADV_GUARD_INSTALL`, Linux 6.13).
//!
//! An access to a guard kills the program, and no descriptor hears of it before. But to the
//! kernel's copy (`UFFDIO_COPY`) it is a missing page, so that a fill around it would put memory
//! over it; moves and the page of zeroes leave it alone. A check costs about a tenth of a copy of
//! 64 KiB, so it is made only once the program may have installed one. This module must never
//! forget that.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

/// `MADV_GUARD_INSTALL` of madvise(2): the content there is gone, and no event tells of it.
pub const INSTALL: c_int = 102;

/// `MADV_GUARD_REMOVE` of madvise(2).
pub const REMOVE: c_int = 103;

static MAY_BE: AtomicBool = AtomicBool::new(false);

/// The program is about to install one.
pub fn expect() {
    MAY_BE.store(true, Ordering::SeqCst);
}

/// Whether there may be any.
pub(crate) fn may_be() -> bool {
    MAY_BE.load(Ordering::Relaxed)
}
