//! The calls of the C library by which a program changes its ids and capabilities: the engine's
//! threads follow.
//!
//! A process that is about to leave the user root gets its engine before, because the kernel would
//! refuse it the descriptors that an engine opens afterwards. This module must never return from a
//! call that has dropped rights while a raw thread has them, unless that thread is held up for
//! longer than [`follow_program`] waits.

use std::ffi::{c_int, c_void};

use pagoda_linux::process::rights::{follow_program, of_this_thread};
use pagoda_linux::process::thread::{current_id, exit_process};

use crate::hooks::real;
use crate::start::{begin_engine_now, is_watched};

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

/// The function behind this library, at that place in the list of names.
fn function(place: usize) -> *mut c_void {
    let real = real(place);
    if real.is_null() {
        exit_process(125);
    }
    real
}

macro_rules! hook {
    ($place:literal, $name:ident($($argument:ident: $type:ty),*), users: [$($user:ident),*], $after:ident) => {
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
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(function($place))($($argument),*)
            };
            $after(result)
        }
    };
}

hook!(8, setuid(user: u32), users: [user], after);
hook!(9, seteuid(user: u32), users: [user], after);
hook!(10, setreuid(real: u32, effective: u32), users: [real, effective], after);
hook!(11, setresuid(real: u32, effective: u32, saved: u32), users: [real, effective, saved], after);
hook!(12, setgid(group: u32), users: [], after);
hook!(13, setegid(group: u32), users: [], after);
hook!(14, setregid(real: u32, effective: u32), users: [], after);
hook!(15, setresgid(real: u32, effective: u32, saved: u32), users: [], after);
hook!(16, capset(header: *mut c_void, data: *const c_void), users: [], after_capset);
hook!(22, setgroups(count: usize, groups: *const c_void), users: [], after);
hook!(23, initgroups(user: *const c_void, group: u32), users: [], after);
