//! The calls of the C library by which a program changes its ids and capabilities: the engine's
//! threads follow.
//!
//! A process that is about to leave the user root gets its engine before, because the kernel would
//! refuse it the descriptors that an engine opens afterwards. This module must never return from a
//! call that has dropped rights while a raw thread has them, unless that thread is held up for
//! longer than [`follow_program`] waits.

use std::ffi::{c_int, c_void};

use pagoda_linux::process::rights::{follow_program, of_this_thread};
use pagoda_linux::process::thread::current_id;

use super::real::{place, required};
use crate::current::is_watched;
use crate::start::begin_engine_now;

/// Before a user id is changed to one of `ids`; -1 is none.
fn before(ids: &[u32]) {
    let leaves_root = ids.iter().any(|id| *id != 0 && *id != u32::MAX);
    if leaves_root && is_watched() && is_root() {
        begin_engine_now();
    }
}

fn is_root() -> bool {
    // SAFETY: it has no precondition.
    unsafe { libc::geteuid() == 0 }
}

/// After a call that returned `result`.
fn after(result: c_int) -> c_int {
    // In a child of vfork nothing is watched: the engine is its parent's.
    if result == 0
        && is_watched()
        && let Ok(rights) = of_this_thread()
    {
        follow_program(rights);
    }
    result
}

/// After capset(2), which concerns the calling thread alone: the main thread's capabilities count
/// as the program's.
fn after_capset(result: c_int) -> c_int {
    if current_id() == std::process::id() { after(result) } else { result }
}

macro_rules! hook {
    ($name:ident($($argument:ident: $type:ty),*), users: [$($user:ident),*], $after:ident) => {
        #[doc = concat!("As ", stringify!($name), "(2), for the engine's threads, too.")]
        ///
        /// # Safety
        /// As for the real function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            before(&[$($user),*]);
            // SAFETY: `real` found the function of this name behind this library, which has this
            // type; the caller's arguments.
            let result = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(required(const { place(stringify!($name)) }))($($argument),*)
            };
            $after(result)
        }
    };
}

hook!(setuid(user: u32), users: [user], after);
hook!(seteuid(user: u32), users: [user], after);
hook!(setreuid(real: u32, effective: u32), users: [real, effective], after);
hook!(setresuid(real: u32, effective: u32, saved: u32), users: [real, effective, saved], after);
hook!(setgid(group: u32), users: [], after);
hook!(setegid(group: u32), users: [], after);
hook!(setregid(real: u32, effective: u32), users: [], after);
hook!(setresgid(real: u32, effective: u32, saved: u32), users: [], after);
hook!(capset(header: *mut c_void, data: *const c_void), users: [], after_capset);
hook!(setgroups(count: usize, groups: *const c_void), users: [], after);
hook!(initgroups(user: *const c_void, group: u32), users: [], after);
