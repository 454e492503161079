//! The kernel's transparent huge pages in a process that is managed.
//!
//! The kernel may give them as long as memory is plenty. A part that is moved out of one has the
//! kernel split it first, so that no more may come once parts are evicted. This module must never
//! allow what the user has forbidden: it only forbids, and for good.

use linux_raw_sys::general as raw;

use crate::probe::version_in;
use crate::raw_syscall::syscall6;

/// The first kernel on which parts of huge pages were moved in our tests, beside threads that
/// write, and every byte compared. No older one was tried.
const SPLIT_RIGHT_SINCE: (u32, u32) = (6, 18);

/// `PR_SET_THP_DISABLE` of linux/prctl.h.
const PR_SET_THP_DISABLE: usize = 41;

/// Its flag of Linux 6.18: not where huge pages were advised.
const PR_THP_DISABLE_EXCEPT_ADVISED: usize = 1 << 1;

/// Whether parts of huge pages can be moved with their content on this kernel.
#[must_use]
pub fn are_split_right() -> bool {
    rustix::system::uname().release().to_str().is_ok_and(|release| version_in(release) >= SPLIT_RIGHT_SINCE)
}

/// Keeps further huge pages out of this process, and of the processes that it forks and executes.
/// Present ones stay. Memory for which they were advised may have them, where the kernel can tell:
/// the compressed store is read at random, and in small pages each of its blocks is a miss of the
/// TLB. Managed memory has the contrary advice.
pub fn forbid() {
    // SAFETY: it changes how later faults are served, and no content.
    let forbid = |flags| unsafe { syscall6(raw::__NR_prctl, [PR_SET_THP_DISABLE, 1, flags, 0, 0, 0]) };
    if forbid(PR_THP_DISABLE_EXCEPT_ADVISED).is_err() {
        let _ = forbid(0);
    }
}
