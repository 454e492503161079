//! A mark on the program that a process executes, which the kernel itself takes off when the
//! process executes another.
//!
//! A program may replace itself by one that can't be managed, and end within a millisecond: no code
//! inside the process is left to tell of it then. Exec(3) resets every signal handler, and the
//! kernel shows which signals are caught until an ended process is waited for. So the mark is a
//! handler of the one signal that a program can't set by itself: the C library keeps it for
//! cancellation, and installs its own, which is as good a mark, when a thread is first cancelled.
//!
//! The mark must never change the signal's effect: it ends the process.

use linux_raw_sys::general as raw;

use crate::raw_syscall::{syscall3, syscall6};

/// `SIGCANCEL` of the C library, which refuses it to programs.
const SIGNAL: u32 = 32;

/// As the kernel takes it: the C library's has another layout.
#[repr(C)]
struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

const SA_NODEFER: usize = 0x4000_0000;
const SA_RESTORER: usize = 0x0400_0000;
const DEFAULT: usize = 0;

fn set_action(action: &Action) {
    let at = std::ptr::from_ref(action).expose_provenance();
    // SAFETY: the kernel reads the action, of the layout and mask size that it expects, and writes
    // nothing.
    let _ = unsafe { syscall6(raw::__NR_rt_sigaction, [SIGNAL as usize, at, 0, size_of::<u64>(), 0, 0]) };
}

/// Ends the process by the signal, as if there were no handler.
extern "C" fn end_by_signal(_: i32) {
    set_action(&Action { handler: DEFAULT, flags: 0, restorer: 0, mask: 0 });
    // SAFETY: neither call takes a pointer. The signal is not blocked in its own handler, and ends
    // the process here.
    unsafe {
        let process = syscall3(raw::__NR_getpid, 0, 0, 0).unwrap_or(0);
        let thread = syscall3(raw::__NR_gettid, 0, 0, 0).unwrap_or(0);
        let _ = syscall3(raw::__NR_tgkill, process, thread, SIGNAL as usize);
        let _ = syscall3(raw::__NR_exit_group, 128 + SIGNAL as usize, 0, 0);
    }
}

/// Marks the program that this process executes.
pub fn set() {
    let handler = (end_by_signal as extern "C" fn(i32)) as usize;
    // It never returns, but x86-64 refuses a handler without a restorer.
    set_action(&Action { handler, flags: SA_NODEFER | SA_RESTORER, restorer: handler, mask: 0 });
}

/// Whether the program that process `pid` executes is marked; of one that has ended and was not
/// waited for, the last one that it did execute. None if that can't be seen.
#[must_use]
pub fn is_set(pid: u32) -> Option<bool> {
    caught(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn caught(status: &str) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()? >> (SIGNAL - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_mark_is_gone_when_another_program_is_executed_and_shows_until_the_process_is_waited_for() {
        for exits in [false, true] {
            let mut command = Command::new("true");
            let mark = move || {
                set();
                if exits {
                    // SAFETY: it ends this child, which has one thread.
                    unsafe { libc::_exit(0) };
                }
                Ok(())
            };
            // SAFETY: `mark` makes a system call on values of its own.
            let mut child = unsafe { command.pre_exec(mark) }.spawn().expect("it starts");
            crate::process::child::await_end(child.id()).expect("it ends");
            assert_eq!(is_set(child.id()), Some(exits), "one that has ended is still to be seen");
            child.wait().expect("it has ended");
            assert_eq!(is_set(child.id()), None);
        }
        assert_eq!(caught("SigIgn:\t0\nSigCgt:\t0000000080000000\n"), Some(true));
        assert_eq!(caught("SigCgt:\t000000017fffffff\n"), Some(false), "all others do not count");
        assert_eq!(caught("SigCgt:\t000000007fffffff\n"), Some(false));
        assert_eq!(caught("Name:\tx\n"), None);
    }

    #[test]
    fn the_signal_ends_a_marked_process_as_it_would_without() {
        let mut command = Command::new("true");
        let end = || {
            set();
            // SAFETY: it sends a signal to the calling process.
            unsafe { libc::kill(libc::getpid(), SIGNAL as i32) };
            Ok(())
        };
        // SAFETY: `end` makes system calls on values of its own.
        let status = unsafe { command.pre_exec(end) }.status();
        // The child has told nothing, as if it had executed its program.
        assert_eq!(status.expect("it ran").signal(), Some(SIGNAL as i32));
    }
}
