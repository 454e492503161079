//! The limit of address space (`RLIMIT_AS`) as the program knows it: of its own addresses alone.
//!
//! The kernel counts the engine's arenas in it, several times the budget. So the limit that the
//! program sets is raised by that, and the limit it reads is lowered. Programs that it executes
//! inherit the raised limit, and know it in the same way. Where a limit was set before the tree
//! began, which one a process inherits can't be told, and all limits stay as they are.
//!
//! This module must never change another limit, nor that of another process, nor let a limit that
//! is set by these calls be read back as another.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{RLIM_INFINITY, rlimit};
use pagoda_core::budget::addresses_most;
use pagoda_core::size::Bytes;

use super::real::{place, required};

/// The address space of an engine; 0 in a process whose limits stay as they are. Children have the
/// same.
static ENGINE_BYTES: AtomicU64 = AtomicU64::new(0);

/// From now on limits of address space are those of the program.
pub fn allow(budget: Bytes) {
    ENGINE_BYTES.store(addresses_most(budget).get(), Ordering::Release);
}

fn change(limit: rlimit, by: impl Fn(u64, u64) -> u64) -> rlimit {
    let engine = ENGINE_BYTES.load(Ordering::Acquire);
    let changed = |value| if value == RLIM_INFINITY { value } else { by(value, engine) };
    rlimit { rlim_cur: changed(limit.rlim_cur), rlim_max: changed(limit.rlim_max) }
}

/// The limit for the kernel. One that is no limit to the kernel stays one.
fn raised(limit: rlimit) -> rlimit {
    change(limit, |value, engine| value.saturating_add(engine).min(RLIM_INFINITY - 1))
}

/// The limit for the program.
fn lowered(limit: rlimit) -> rlimit {
    change(limit, u64::saturating_sub)
}

fn is_of_addresses(resource: c_int) -> bool {
    resource == libc::RLIMIT_AS as c_int
}

type Set = unsafe extern "C" fn(c_int, *const rlimit) -> c_int;
type Get = unsafe extern "C" fn(c_int, *mut rlimit) -> c_int;
type Both = unsafe extern "C" fn(libc::pid_t, c_int, *const rlimit, *mut rlimit) -> c_int;

macro_rules! hooks {
    ($($set:ident, $get:ident, $both:ident;)+) => {$(
        /// As setrlimit(2).
        ///
        /// # Safety
        /// As for the real function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(resource: c_int, limit: *const rlimit) -> c_int {
            // SAFETY: `real` found the function of this name behind this library, which has this
            // type.
            let set = unsafe { std::mem::transmute::<*mut c_void, Set>(required(const { place(stringify!($set)) })) };
            if !is_of_addresses(resource) || limit.is_null() {
                // SAFETY: the caller's arguments.
                return unsafe { set(resource, limit) };
            }
            // SAFETY: the caller passes a limit, of which this is a copy.
            unsafe { set(resource, &raised(limit.read())) }
        }

        /// As getrlimit(2).
        ///
        /// # Safety
        /// As for the real function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(resource: c_int, limit: *mut rlimit) -> c_int {
            // SAFETY: as in the function that sets it; the caller's arguments.
            let result = unsafe {
                std::mem::transmute::<*mut c_void, Get>(required(const { place(stringify!($get)) }))(resource, limit)
            };
            if result == 0 && is_of_addresses(resource) {
                // SAFETY: the kernel has just written it.
                unsafe { limit.write(lowered(limit.read())) };
            }
            result
        }

        /// As prlimit(2).
        ///
        /// # Safety
        /// As for the real function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $both(
            process: libc::pid_t,
            resource: c_int,
            new: *const rlimit,
            old: *mut rlimit,
        ) -> c_int {
            // SAFETY: as in the function that sets it.
            let both = unsafe { std::mem::transmute::<*mut c_void, Both>(required(const { place(stringify!($both)) })) };
            let is_own = process == 0 || process.cast_unsigned() == std::process::id();
            if !is_own || !is_of_addresses(resource) {
                // SAFETY: the caller's arguments.
                return unsafe { both(process, resource, new, old) };
            }
            // SAFETY: the caller passes a limit or null.
            let raised = unsafe { new.as_ref() }.map(|limit| raised(*limit));
            let new = raised.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: a copy of the caller's limit, and its other arguments.
            let result = unsafe { both(process, resource, new, old) };
            if result == 0 && !old.is_null() {
                // SAFETY: the kernel has just written it.
                unsafe { old.write(lowered(old.read())) };
            }
            result
        }
    )+};
}

hooks! {
    setrlimit, getrlimit, prlimit;
    setrlimit64, getrlimit64, prlimit64;
}
