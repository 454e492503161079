//! The calls of the C library by which a program looks at the processors of a thread, or changes
//! them, or makes something that inherits them. A thread that is held on one processor for a streak
//! of faults gets its own back before.
//!
//! Each hook lets the calling thread go and jumps to the real function with all registers and the
//! stack as they were, so that it may have any arguments, and may return twice as vfork(2) does.
//! This module must never wait for the engine longer than it takes to change one thread's mask.

use std::ffi::{c_int, c_void};

use super::real::{place, required};
use crate::current::engine;

/// Lets the calling thread go. Returns the real function of that place in the list of hooks.
extern "C" fn let_go(place: usize) -> *mut c_void {
    if let Some(engine) = engine() {
        engine.let_go_of_processor();
    }
    required(place)
}

/// The same before sysconf(3), if `name` asks for a number of processors.
extern "C" fn let_go_for(place: usize, name: c_int) -> *mut c_void {
    if matches!(name, libc::_SC_NPROCESSORS_ONLN | libc::_SC_NPROCESSORS_CONF) {
        let_go(place)
    } else {
        required(place)
    }
}

macro_rules! hook {
    ($name:ident, $before:ident) => {
        #[doc = concat!("As ", stringify!($name), " of the C library, on the thread's own processors.")]
        ///
        /// # Safety
        /// As for the real function, whose arguments it passes on.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                // With the return address these are eight words: the stack is aligned for a call.
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "mov esi, edi",
                "mov edi, {place}",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                place = const place(stringify!($name)),
                before = sym $before,
            )
        }
    };
}

hook!(sched_getaffinity, let_go);
hook!(sched_setaffinity, let_go);
hook!(pthread_getaffinity_np, let_go);
hook!(pthread_setaffinity_np, let_go);
hook!(get_nprocs, let_go);
hook!(sysconf, let_go_for);
hook!(vfork, let_go);
hook!(posix_spawn, let_go);
hook!(posix_spawnp, let_go);
hook!(system, let_go);
hook!(popen, let_go);
hook!(execve, let_go);
hook!(execv, let_go);
hook!(execvp, let_go);
hook!(execvpe, let_go);
hook!(execl, let_go);
hook!(execlp, let_go);
hook!(execle, let_go);
hook!(fexecve, let_go);
