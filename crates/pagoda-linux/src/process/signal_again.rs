//! A caught signal that is sent to its thread anew, as it was.
//!
//! It must never be sent to another process: what the kernel says of a signal is believed there.

use std::ffi::c_void;

use linux_raw_sys::general as raw;

use crate::raw_syscall::{syscall3, syscall6};

/// Sends `signal` to the calling thread with `info`, a `siginfo_t` as the kernel passed it to the
/// signal's handler. It comes once the thread does not block it. Async-signal-safe.
pub fn send(signal: i32, info: *const c_void) {
    // SAFETY: the first two calls take no pointer; the third reads a `siginfo_t`, and where that is
    // none it fails. A signal changes nothing that safe code relies on.
    unsafe {
        let process = syscall3(raw::__NR_getpid, 0, 0, 0).unwrap_or(0);
        let thread = syscall3(raw::__NR_gettid, 0, 0, 0).unwrap_or(0);
        let info = info.expose_provenance();
        let call = [process, thread, signal as usize, info, 0, 0];
        if syscall6(raw::__NR_rt_tgsigqueueinfo, call).is_err() {
            let _ = syscall3(raw::__NR_tgkill, process, thread, signal as usize);
        }
    }
}
