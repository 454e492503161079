//! The abort hook: a function of the caller's that is called before the process is aborted.
//!
//! This module must never let a hook keep the process from ending: memory would read wrong. Nor may
//! it allocate before the hook is called, which may happen in a signal handler.

use std::ffi::{c_char, c_void};
use std::io::Write;
use std::sync::OnceLock;

use crate::error::{Code, Error, Failure, MESSAGE_BYTES, call};

/// Called with the number of the reason, a line that says why, and the value that was given with
/// the hook. The process is aborted when it returns. Threads that fail together each call it.
pub type AbortHook = Option<unsafe extern "C" fn(reason: u64, message: *const c_char, user: *mut c_void)>;

struct Hook {
    call: unsafe extern "C" fn(u64, *const c_char, *mut c_void),
    user: *mut c_void,
}

// SAFETY: the value is only passed back to the hook, and the caller of `pagoda_set_abort_hook` has
// vouched that the hook may be called with it on any thread.
unsafe impl Send for Hook {}
// SAFETY: as above; a shared hook is only copied from.
unsafe impl Sync for Hook {}

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Sets a function that is called before the library aborts the process, for logs. The library
/// aborts where content can't be brought back: going on would be a hang or wrong data. It may be
/// set once in a process. It is called on any thread, a touch of a region there may wait for good,
/// and it must not unwind or jump out. With pagoda_builder_serve_in_thread it may only do what a
/// signal handler may.
///
/// # Safety
/// `hook` may be called on any thread with `user`, for as long as the process lives. `error` is
/// null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagoda_set_abort_hook(
    hook: AbortHook,
    user: *mut c_void,
    error: *mut Error,
) -> Code {
    let body = || {
        let call = hook.ok_or_else(|| Failure::argument("hook", "is null; give a function"))?;
        let already = || Failure::argument("hook", "was set before; it may be set once in a process");
        HOOK.set(Hook { call, user }).map_err(|_| already())?;
        if pagoda::error::set_abort_hook(call_hook) { Ok(()) } else { Err(already()) }
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

fn call_hook(reason: pagoda::StopReason) {
    let Some(hook) = HOOK.get() else { return };
    let mut message = [0; MESSAGE_BYTES];
    // The last byte stays 0. A longer line is cut off.
    let _ = write!(&mut message[..MESSAGE_BYTES - 1], "{reason}");
    // SAFETY: the caller of `pagoda_set_abort_hook` has vouched for the function and the value. The
    // message ends with a 0, and lives until the function returns.
    unsafe { (hook.call)(reason.code(), message.as_ptr().cast(), hook.user) };
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};

    use super::*;

    unsafe extern "C" fn keep(reason: u64, message: *const c_char, user: *mut c_void) {
        // SAFETY: the message ends with a 0 and lives until this function returns.
        let message = unsafe { CStr::from_ptr(message) }.to_owned();
        // SAFETY: the test has given the address of its local value, which nothing else uses now.
        unsafe { *user.cast::<Option<(u64, CString)>>() = Some((reason, message)) };
    }

    #[test]
    fn a_hook_is_called_with_the_reason_its_line_and_the_value() {
        let mut told: Option<(u64, CString)> = None;
        let user = (&raw mut told).cast();
        // SAFETY: no manager is made here, so that only this test calls the hook, below.
        assert_eq!(unsafe { pagoda_set_abort_hook(Some(keep), user, std::ptr::null_mut()) }, Code::Ok);
        let reason = pagoda::StopReason::StoreFull;
        call_hook(reason);
        let (code, message) = told.expect("the hook was called");
        assert_eq!((code, message.to_str()), (reason.code(), Ok(reason.to_string().as_str())));
        // SAFETY: the call is refused.
        let again = unsafe { pagoda_set_abort_hook(Some(keep), user, std::ptr::null_mut()) };
        assert_eq!(again, Code::Argument);
    }
}
