//! Threads that end by being unwound, as pthread_exit(3) and pthread_cancel(3) do it: all frames of
//! their stacks, from the last to the first.

use std::ffi::c_void;

/// The result of a thread that was cancelled.
const PTHREAD_CANCELED: usize = usize::MAX;

type Body = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

extern "C-unwind" fn leaves(_: *mut c_void) -> *mut c_void {
    // SAFETY: the calling thread is one that pthread_create made, and has nothing to drop.
    unsafe { libc::pthread_exit(std::ptr::without_provenance_mut(7)) }
}

extern "C-unwind" fn waits(_: *mut c_void) -> *mut c_void {
    loop {
        // SAFETY: it only waits, and is where the thread is cancelled.
        unsafe { libc::pause() };
    }
}

fn end_of(body: Body, cancel: bool) -> usize {
    let (mut thread, mut end) = (0, std::ptr::null_mut());
    // SAFETY: the C library calls `body` as the C function it is, and unwinds it where that is its
    // end, which it may be. All else is a thread of our own that is joined once.
    unsafe {
        let body = std::mem::transmute::<Body, extern "C" fn(*mut c_void) -> *mut c_void>(body);
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), body, std::ptr::null_mut()), 0);
        assert!(!cancel || libc::pthread_cancel(thread) == 0);
        assert_eq!(libc::pthread_join(thread, &raw mut end), 0);
    }
    end.addr()
}

/// Whether a thread that leaves with a number, and one that is cancelled, ended with the right
/// results.
///
/// # Panics
/// If there is no thread to be had.
#[must_use]
pub fn threads_end_as_they_should() -> bool {
    end_of(leaves, false) == 7 && end_of(waits, true) == PTHREAD_CANCELED
}
