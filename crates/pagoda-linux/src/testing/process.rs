//! Processes made in every way that a program can make them, and ended at once.
//!
//! A child of this module must never return into its parent's code: it runs its closure and ends
//! there.

use std::ffi::{CString, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use linux_raw_sys::general::__NR_clone;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use crate::raw_syscall::syscall6;

/// The exit status of a child that panicked: that of any Rust program.
const PANICKED: i32 = 101;

/// The least stack of a vfork child: far more than the few frames that it may use.
const VFORK_STACK_BYTES_MIN: usize = 64 << 10;

/// _exit(2): nothing is torn down, and no other thread does anything more.
pub fn end_at_once(status: i32) -> ! {
    // SAFETY: it takes a number, has no precondition and does not return.
    unsafe { libc::_exit(status) }
}

/// mlockall(3) of the C library, or of a library that stands in for it; no flags are munlockall(3).
pub fn lock_all(flags: c_int) -> io::Result<()> {
    // SAFETY: they change what stays in memory, and no content.
    let result = unsafe { if flags == 0 { libc::munlockall() } else { libc::mlockall(flags) } };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// fork(3). The child runs `child`, with this thread alone, and ends by _exit(2) with the status
/// that it returns.
///
/// A lock that another thread holds at this moment stays held in the child for good, except for
/// those of the C library's allocator: `child` must not wait for one.
///
/// # Errors
/// The kernel's.
pub fn fork(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: the child has a copy of all memory. State that another thread was changing at this
    // moment is behind locks that stay held, so that no thread sees it half done: the child would
    // hang at such a lock. The child never leaves this call.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        live(child);
    }
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)
}

/// The body of a child that only has to exist: it sleeps until it is [ended](end).
pub fn sleep_until_killed() -> i32 {
    loop {
        // SAFETY: it takes no argument and waits for a signal.
        unsafe { libc::pause() };
    }
}

/// Kills a child and waits until it is gone.
///
/// # Errors
/// The kernel's.
pub fn end(child: Pid) -> io::Result<WaitStatus> {
    rustix::process::kill_process(child, rustix::process::Signal::KILL)?;
    wait(child)
}

/// As [`fork`], but past the C library: no hook of it hears of this, and its allocator is not made
/// usable.
///
/// # Errors
/// The kernel's.
pub fn raw_fork(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    let flags = libc::SIGCHLD as usize;
    // SAFETY: without flags to share anything this is fork(2), on every architecture; for the rest
    // as in `fork`. That the C library's idea of the thread's number is out of date in the child
    // concerns nothing that ends by _exit.
    let pid = unsafe { syscall6(__NR_clone, [flags, 0, 0, 0, 0, 0]) }?;
    if pid == 0 {
        live(child);
    }
    Ok(Pid::from_raw(pid as i32).expect("a parent is given the number of its child"))
}

/// The life of a forked child. A panic must not unwind into the parent's code with its other
/// threads.
fn live(child: impl FnOnce() -> i32) -> ! {
    end_at_once(catch_unwind(AssertUnwindSafe(child)).unwrap_or(PANICKED))
}

/// As vfork(2): the child runs `child` on `stack` in this process's own memory, while the calling
/// thread sleeps, and ends by _exit(2) with status 0. It has the calling thread's identity, so
/// `child` must not take locks or start threads.
///
/// # Errors
/// The kernel's.
///
/// # Panics
/// If the stack has less than 64 KiB, or its end is not aligned to 16 bytes.
pub fn vfork(stack: &mut [u64], mut child: &mut dyn FnMut()) -> io::Result<Pid> {
    extern "C" fn begin(child: *mut c_void) -> c_int {
        // SAFETY: it is the reference below, whose owner sleeps until this child has ended.
        let child = unsafe { &mut *child.cast::<&mut dyn FnMut()>() };
        // A panic can't unwind out of an `extern "C"` function: it ends the child.
        child();
        end_at_once(0)
    }
    assert!(size_of_val(stack) >= VFORK_STACK_BYTES_MIN, "a stack of {} words", stack.len());
    let top: *mut c_void = stack.as_mut_ptr_range().end.cast();
    assert!(top.addr().is_multiple_of(16), "a stack that ends at {top:?}");
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is borrowed exclusively, aligned, and large enough for a `child` that keeps
    // its contract. The child shares memory and thread pointer with this thread, which sleeps until
    // the child has ended: only one of them runs at any time.
    let pid = unsafe { libc::clone(begin, top, flags, (&raw mut child).cast()) };
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)
}

/// A program with its words, made ready: to execute it takes no memory and no lock.
#[derive(Debug)]
pub struct Executable {
    words: Vec<CString>,
}

impl Executable {
    /// This process's own executable, with these words behind its name.
    ///
    /// # Errors
    /// If it can't be found, or a word has a zero byte in it.
    pub fn this<'a>(words: impl IntoIterator<Item = &'a str>) -> io::Result<Self> {
        let own = std::env::current_exe()?.into_os_string().into_vec();
        let rest = words.into_iter().map(|word| word.as_bytes().to_vec());
        let words = std::iter::once(own).chain(rest).map(CString::new).collect::<Result<_, _>>()?;
        Ok(Self { words })
    }

    /// execv(3), with the environment as it is, and standard output to where standard error goes.
    /// If that fails the process ends at once, as one that panicked.
    ///
    /// # Panics
    /// If there are more than 7 words.
    pub fn execute(&self) -> ! {
        const WORDS_MOST: usize = 8;
        let mut words = [std::ptr::null(); WORDS_MOST];
        assert!(self.words.len() < WORDS_MOST, "too many words");
        words.iter_mut().zip(&self.words).for_each(|(at, word)| *at = word.as_ptr());
        // SAFETY: the words end in zero bytes, their list in a null pointer, and both outlive the
        // call. If it succeeds nothing of this process is left, or only memory that another process
        // shares with it.
        unsafe {
            libc::dup2(2, 1);
            libc::execv(words[0], words.as_ptr());
        }
        end_at_once(PANICKED)
    }
}

/// Waits for the end of a child.
///
/// # Errors
/// The kernel's; `ECHILD` if it is no child, or was waited for before.
pub fn wait(pid: Pid) -> io::Result<WaitStatus> {
    let ended = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))?;
    let (_, status) = ended.expect("waitpid without WNOHANG waits");
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_every_kind_end_with_the_status_they_return() {
        let forked = [fork(|| 7).expect("fork"), raw_fork(|| 7).expect("raw fork")];
        for child in forked {
            assert_eq!(wait(child).expect("waited for").exit_status(), Some(7));
        }
        let mut stack = vec![0; 1 << 16];
        let end = stack.as_ptr_range().end.addr();
        let unaligned = end % 16 / size_of::<u64>();
        let words = stack.len() - unaligned;
        let mut seen = 0;
        let child = vfork(&mut stack[..words], &mut || seen = 9).expect("vfork");
        assert_eq!((wait(child).expect("waited for").exit_status(), seen), (Some(0), 9));
    }
}
