//! The abort hook: told why the process is about to be ended.
//!
//! This module must never let a hook keep the process from ending: memory would read wrong.

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;

use crate::error::{Code, Error, Failure, call};

/// Called once with the number of the reason, a line that says why, and the value that was given
/// with the hook. The process is aborted when it returns.
pub type AbortHook = Option<unsafe extern "C" fn(reason: u64, message: *const c_char, user: *mut c_void)>;

struct Hook {
    call: unsafe extern "C" fn(u64, *const c_char, *mut c_void),
    user: *mut c_void,
}

// SAFETY: the value is only handed back to the hook, and the caller of `pagoda_set_abort_hook` has
// vouched that it may be used by any thread.
unsafe impl Send for Hook {}
// SAFETY: as above.
unsafe impl Sync for Hook {}

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Has `hook` called before the library ends the process, which it does where content can't be
/// brought back: going on would be a hang or wrong data. For logs. It may be set once in a process.
/// It is called on any thread, a touch of a region there may wait for good, and it must not unwind
/// or jump out. With pagoda_builder_serve_in_thread it may only do what a signal handler may.
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
        if pagoda::error::set_abort_hook(told) { Ok(()) } else { Err(already()) }
    };
    // SAFETY: the caller vouches for `error`.
    unsafe { call(error, body) }
}

fn told(reason: pagoda::StopReason) {
    let Some(hook) = HOOK.get() else { return };
    let message = CString::new(reason.to_string()).unwrap_or_default();
    // SAFETY: its setter has vouched for the function and the value.
    unsafe { (hook.call)(reason.code(), message.as_ptr(), hook.user) };
}
