//! The functions of the C library behind the hooks, and the program's `errno`.
//!
//! They are found once, before the program can call a hook on purpose. This module must never
//! return one of this library's own.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use pagoda_linux::process::thread::exit_process;

use crate::current::OWN_FAILURE;

/// The real functions: found once, before the program can call a hook on purpose.
static REAL: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];
const NAMES: [&CStr; 57] = [
    c"pthread_create",
    c"pthread_mutex_init",
    c"pthread_mutex_destroy",
    c"_Fork",
    c"madvise",
    c"vmsplice",
    c"setsockopt",
    c"mlockall",
    c"setuid",
    c"seteuid",
    c"setreuid",
    c"setresuid",
    c"setgid",
    c"setegid",
    c"setregid",
    c"setresgid",
    c"capset",
    c"clone",
    c"ioctl",
    c"unshare",
    c"setns",
    c"__libc_start_main",
    c"__lsan_do_leak_check",
    c"__lsan_do_recoverable_leak_check",
    c"setgroups",
    c"initgroups",
    // These have no hook: program threads call them.
    c"pthread_mutexattr_getrobust",
    c"__errno_location",
    c"__register_atfork",
    c"__cxa_atexit",
    // Of `core_dump`.
    c"sigaction",
    c"signal",
    // Of `limits`.
    c"setrlimit",
    c"setrlimit64",
    c"getrlimit",
    c"getrlimit64",
    c"prlimit",
    c"prlimit64",
    // Of `processors`.
    c"sched_getaffinity",
    c"sched_setaffinity",
    c"pthread_getaffinity_np",
    c"pthread_setaffinity_np",
    c"get_nprocs",
    c"sysconf",
    c"vfork",
    c"posix_spawn",
    c"posix_spawnp",
    c"system",
    c"popen",
    c"execve",
    c"execv",
    c"execvp",
    c"execvpe",
    c"execl",
    c"execlp",
    c"execle",
    c"fexecve",
];

/// The place of a function in [`NAMES`]. The compiler finds it: a wrong place would have a hook
/// call another function.
pub const fn place(name: &str) -> usize {
    let mut at = 0;
    while at < NAMES.len() {
        if is_same(NAMES[at].to_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("the list of hooks lacks this name")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Finds the real functions.
pub fn resolve() {
    for i in 0..NAMES.len() {
        real(i);
    }
}

/// The real function of that place in [`NAMES`]; null if there is none.
pub fn real(i: usize) -> *mut c_void {
    let known = REAL[i].load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let found = crate::c_library::next(NAMES[i]);
    REAL[i].store(found, Ordering::Release);
    found
}

/// The real function of that place, which this library can't do without.
pub fn required(i: usize) -> *mut c_void {
    let real = real(i);
    if real.is_null() {
        exit_process(OWN_FAILURE);
    }
    real
}

/// The program's `errno` in the calling thread. This library's own calls set another one
/// ([`own_errno`]).
pub fn errno() -> &'static Cell<c_int> {
    let location = real(const { place("__errno_location") });
    if location.is_null() {
        exit_process(OWN_FAILURE);
    }
    // SAFETY: the function has this type. It returns the calling thread's own word, which is there
    // as long as the thread, and which no other thread uses; the reference is used at once.
    unsafe { &*std::mem::transmute::<*mut c_void, ErrnoLocation>(location)().cast::<Cell<c_int>>() }
}

type ErrnoLocation = unsafe extern "C" fn() -> *mut c_int;

/// The error of the last system call of this library's own that failed in the calling thread.
pub fn own_errno() -> c_int {
    // SAFETY: the word of the calling thread.
    unsafe { libc::__errno_location().read() }
}
