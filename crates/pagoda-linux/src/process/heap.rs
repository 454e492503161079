//! The heap of the C library, as far as it takes address space.
//!
//! This module must never be used in a program that is managed: its heap is the program's.

/// Has all threads allocate from one heap. glibc reserves 64 MiB of addresses for each thread that
/// allocates; under `ulimit -v` there may be none left for the message that says so.
pub fn share_between_threads() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call takes any values, and locks the heap that it changes.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}
