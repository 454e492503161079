//! Threads that live inside an unmodified program without being seen by it.
//!
//! `pthread_create` is no choice there: it allocates from the program's heap, which is managed
//! memory, and the thread's control block would be adopted with its stack. So these threads are raw
//! clones on a mapping of our own, with every signal blocked and, before they open anything, a
//! descriptor table of their own ([`leave_files`]): the program can neither see nor close Pagoda's
//! descriptors, and its own stay free of ours.
//!
//! Such a thread has no thread-local storage worth the name. It must never use any: no
//! `thread_local!`, no C library function that sets `errno`, no `std::thread`, no printing.

pub use crate::process::caller::{
    cpu_ns, current_id, exit_process, is_alive, now_ns, ran_ns, sleep_us, sleep_while_zero, wake, yield_now,
};

use std::arch::asm;
use std::ffi::c_void;
use std::io;

use linux_raw_sys::general as raw;

use crate::mem::own_memory::OwnMapping;
use crate::process::{last_thread, rights};
use crate::raw_syscall::{syscall3, syscall6};

/// A stack: LZ4's table (16 KiB), a batch of messages (2 KiB) and the deepest call are well below
/// an eighth of it; parsing the deepest reply that a remote store can make up takes less than half.
const STACK_BYTES: usize = 512 << 10;
/// Room for static thread-local storage below the control block beyond `errno`, all zero. The
/// standard library's locks call `syscall`, which writes `errno` there: the C library's, or in the
/// preloaded library its own.
const TLS_SLACK_BYTES: usize = 16 << 10;
/// The control block: we set the fields that compiled code reads (self pointer, stack and pointer
/// guards).
const CONTROL_BLOCK_BYTES: usize = 4 << 10;

/// `PR_SET_NAME` of linux/prctl.h.
const PR_SET_NAME: usize = 15;

/// Of linux/close_range.h.
const CLOSE_RANGE_UNSHARE: usize = 2;

/// The body of a thread. It must not return or unwind: there is no caller to return to.
type Body = Box<dyn FnOnce() + Send>;

/// Starts a raw thread with all signals blocked and the descriptors of its maker. It ends when
/// `body` returns; its stack (512 KiB of address space, the touched part of it memory) is kept for
/// good, because no other thread can tell when its last instruction has run.
///
/// # Errors
/// Those of mmap(2) and clone(2): limits on memory, mappings or threads.
pub fn spawn_raw(name: &'static std::ffi::CStr, body: Body) -> io::Result<()> {
    let tls_bytes = (errno_distance_bytes() + TLS_SLACK_BYTES).next_multiple_of(4096);
    let mapping = OwnMapping::reserve(STACK_BYTES + tls_bytes + CONTROL_BLOCK_BYTES, 4096, false)?;
    let control_block = mapping.range().end() - CONTROL_BLOCK_BYTES;
    let stack_top = mapping.range().start() + STACK_BYTES;
    let start = Box::into_raw(Box::new(Start { name, body }));
    // SAFETY: all addresses lie in the fresh mapping, aligned; `fs` has a valid control block on
    // this thread.
    unsafe {
        let block = std::ptr::with_exposed_provenance_mut::<usize>(control_block);
        let (mut canary, mut pointer_guard): (usize, usize);
        asm!("mov {}, fs:0x28", "mov {}, fs:0x30", out(reg) canary, out(reg) pointer_guard,
             options(nostack, readonly, preserves_flags));
        block.write(control_block);
        block.add(2).write(control_block);
        block.add(5).write(canary);
        block.add(6).write(pointer_guard);
        let top = std::ptr::with_exposed_provenance_mut::<usize>(stack_top);
        top.sub(2).write(run as *const () as usize);
        top.sub(1).write(start.expose_provenance());
    }
    // Without CLONE_FS: a program may enter another mount namespace only if it shares its directory
    // and root with no other thread.
    let flags = raw::CLONE_VM
        | raw::CLONE_SIGHAND
        | raw::CLONE_THREAD
        | raw::CLONE_SYSVSEM
        | raw::CLONE_SETTLS
        | raw::CLONE_FILES;
    let before = block_all_signals();
    rights::thread_is_made();
    let result: isize;
    // SAFETY: the child runs on its own fresh stack, whose top two words are the function and its
    // argument; it never returns into this frame (`run` ends in an exit of the thread). The parent
    // goes on behind the block with only rax, rcx and r11 changed.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rax",
            "pop rdi",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") raw::__NR_clone as isize => result,
            in("rdi") flags as usize,
            in("rsi") stack_top - 16,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") control_block,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    restore_signals(before);
    if result < 0 {
        rights::thread_was_made();
        // SAFETY: the child does not exist, so the box is still ours alone.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    mapping.leak();
    Ok(())
}

/// How far below the thread pointer `errno` lies: the same in every thread, because it is in static
/// storage, but further the more the program itself has there.
fn errno_distance_bytes() -> usize {
    let thread_pointer: usize;
    // SAFETY: the first word of a control block is its own address; `__errno_location` only
    // computes an address.
    let errno = unsafe {
        asm!("mov {}, fs:0", out(reg) thread_pointer, options(nostack, readonly, preserves_flags));
        libc::__errno_location().addr()
    };
    thread_pointer.saturating_sub(errno)
}

struct Start {
    name: &'static std::ffi::CStr,
    body: Body,
}

extern "C" fn run(start: *mut c_void) -> ! {
    last_thread::thread_begins();
    rights::thread_begins();
    // SAFETY: the pointer is the box that `spawn_raw` leaked for this thread alone.
    let Start { name, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: prctl reads the name, a C string.
    let _ = unsafe { syscall6(raw::__NR_prctl, [PR_SET_NAME, name.as_ptr().addr(), 0, 0, 0, 0]) };
    body();
    rights::thread_ends();
    last_thread::thread_ends();
    loop {
        // SAFETY: it ends this thread only; its stack stays mapped.
        unsafe {
            let _ = syscall3(raw::__NR_exit, 0, 0, 0);
        }
    }
}

/// Gives the calling raw thread, and those that it starts from now on, an empty table of
/// descriptors of their own: the program can neither see nor close their descriptors, and nothing
/// of the program's stays open by them.
///
/// # Errors
/// The kernel has no memory for it, or is older than 5.9: the thread still has the program's, and
/// must open nothing.
pub fn leave_files() -> io::Result<()> {
    // SAFETY: of a table of its own, which the call makes, the thread uses nothing yet.
    let left = unsafe { syscall3(raw::__NR_close_range, 0, u32::MAX as usize, CLOSE_RANGE_UNSHARE) };
    left.map(drop).map_err(Into::into)
}

fn set_signal_mask(how: u32, mask: &u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both masks are eight bytes, the size the kernel is told.
    let done = unsafe {
        syscall6(
            raw::__NR_rt_sigprocmask,
            [
                how as usize,
                std::ptr::from_ref(mask).addr(),
                std::ptr::from_mut(&mut before).expose_provenance(),
                8,
                0,
                0,
            ],
        )
    };
    debug_assert!(done.is_ok());
    before
}

/// Blocks every signal that can be blocked in this thread and returns the mask before.
fn block_all_signals() -> u64 {
    set_signal_mask(raw::SIG_BLOCK, &u64::MAX)
}

fn restore_signals(mask: u64) {
    set_signal_mask(raw::SIG_SETMASK, &mask);
}

/// Blocks every signal in the calling thread for good: a thread that serves faults never runs the
/// program's handlers.
pub fn block_signals_for_good() {
    block_all_signals();
}

/// `SCHED_IDLE` of linux/sched.h.
const SCHED_IDLE: usize = 5;

/// Lets the calling thread run only when no other thread wants its processor, from now on.
pub fn run_when_idle() {
    let priority = 0u32;
    // SAFETY: the kernel reads a `struct sched_param`, one int, and changes how this thread is
    // scheduled alone.
    let _ = unsafe {
        syscall3(
            raw::__NR_sched_setscheduler,
            0,
            SCHED_IDLE,
            std::ptr::from_ref(&priority).expose_provenance(),
        )
    };
}

/// The nice value of a thread that others wait for: between the usual one and the most urgent.
const URGENT_NICE: i32 = -10;

/// Lets the calling thread go before others, where this process may do that; elsewhere it stays as
/// it is.
pub fn raise_priority() {
    // The system call takes a thread's number, and 0 for the calling one.
    let _ = rustix::process::setpriority_process(None, URGENT_NICE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::wait::until;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_raw_thread_leaves_its_makers_files_and_ends() {
        let seen = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&seen);
        let body = Box::new(move || {
            // Descriptor 0 is open in the test's own table, and must not be here.
            let is_open = || rustix::io::fcntl_getfd(std::io::stdin()).is_ok();
            let (before, left) = (is_open(), leave_files().is_ok());
            shared.store(1 + u64::from(!before || !left || is_open()), Ordering::Release);
        });
        spawn_raw(c"pagoda-test", body).expect("spawn");
        until("it has run", || seen.load(Ordering::Acquire) != 0);
        assert_eq!(seen.load(Ordering::Acquire), 1, "stdin was open there until it left");
        assert!(rustix::io::fcntl_getfd(std::io::stdin()).is_ok(), "ours is still open");
    }
}
