//! Takes userfaultfd, or system calls of any kind, away from the calling thread, as sandboxes do.
//!
//! All of it is for good, and children and threads of the thread inherit it: call it on a thread
//! made for it, or in a child between fork and exec. So nothing here may allocate.

use std::ffi::c_long;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use linux_raw_sys::general as raw;
use rustix::io::Errno;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::raw_syscall::{syscall3, syscall6};

/// How a sandbox answers a system call that it denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// `EPERM`: Docker's way.
    NotPermitted,
    /// `ENOSYS`: as if the kernel did not have it.
    NotImplemented,
    /// The process ends: systemd's way.
    Killed,
}

impl Denial {
    /// As a filter returns it.
    const fn answer(self) -> u32 {
        match self {
            Self::NotPermitted => FAIL_WITH | Errno::PERM.raw_os_error().cast_unsigned(),
            Self::NotImplemented => FAIL_WITH | Errno::NOSYS.raw_os_error().cast_unsigned(),
            Self::Killed => KILL_PROCESS,
        }
    }
}

/// One instruction of the kernel's classic BPF.
#[repr(C)]
struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    value: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    first: *const Instruction,
}

const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const FAIL_WITH: u32 = 0x0005_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const PR_SET_NO_NEW_PRIVS: usize = 38;

/// System calls that one filter names: more than any test does.
const CALLS_MAX: usize = 16;

/// Makes the userfaultfd system call fail in this thread, by seccomp. The device is untouched: a
/// filter does not see paths.
///
/// # Errors
/// The kernel's; with a filter that forbids filters, for example.
pub fn deny_userfaultfd(denial: Denial) -> io::Result<()> {
    filter(&[raw::__NR_userfaultfd.into()], denial.answer(), ALLOW)
}

/// From now on this thread's system calls with these numbers are denied.
///
/// # Errors
/// As for [`deny_userfaultfd`].
pub fn deny_calls(calls: &[c_long], denial: Denial) -> io::Result<()> {
    filter(calls, denial.answer(), ALLOW)
}

/// From now on all of this thread's system calls but those with these numbers are denied.
///
/// # Errors
/// As for [`deny_userfaultfd`].
pub fn allow_only(calls: &[c_long], denial: Denial) -> io::Result<()> {
    filter(calls, ALLOW, denial.answer())
}

/// Answers the system calls with these numbers with `listed`, and all others with `other`.
fn filter(calls: &[c_long], listed: u32, other: u32) -> io::Result<()> {
    assert!(calls.len() <= CALLS_MAX, "{} calls", calls.len());
    let instruction = |code, jump_true, value| Instruction { code, jump_true, jump_false: 0, value };
    // On the stack: between fork and exec nothing may be allocated.
    let mut filter =
        [const { Instruction { code: RETURN, jump_true: 0, jump_false: 0, value: 0 } }; CALLS_MAX + 3];
    // The number is the first word of the filter's input.
    filter[0] = instruction(LOAD_WORD, 0, 0);
    for (i, &call) in calls.iter().enumerate() {
        // Past the other comparisons and the answer to other calls.
        filter[1 + i] = instruction(JUMP_IF_EQUAL, (calls.len() - i) as u8, call as u32);
    }
    filter[1 + calls.len()] = instruction(RETURN, 0, other);
    filter[2 + calls.len()] = instruction(RETURN, 0, listed);
    let program = Program { length: 3 + calls.len() as u16, first: filter.as_ptr() };
    let at = (&raw const program).expose_provenance();
    // SAFETY: the first call takes numbers only; for the second the kernel reads the program and
    // its instructions, which live until it returns. Neither changes memory.
    unsafe {
        syscall6(raw::__NR_prctl, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0])?;
        syscall3(raw::__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, at)?;
    }
    Ok(())
}

/// Has `command` start where neither the device of userfaultfd nor its system call is to be had.
pub fn without_userfaultfd(command: &mut Command, denial: Denial) {
    // SAFETY: between fork and exec the closure makes system calls, allocates nothing and takes no
    // lock.
    unsafe {
        command.pre_exec(move || {
            hide_userfaultfd_device()?;
            deny_userfaultfd(denial)
        })
    };
}

/// Puts `/dev/null` in the place of `/dev/userfaultfd`, in a mount namespace of this thread's own.
/// Where the device can't be opened anyway, nothing is done.
///
/// # Errors
/// The kernel's; without privilege, in a process of several threads, it is `EINVAL` (call it after
/// a fork).
pub fn hide_userfaultfd_device() -> io::Result<()> {
    let readable_and_writable = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    if rustix::fs::access(c"/dev/userfaultfd", readable_and_writable).is_err() {
        return Ok(());
    }
    // SAFETY: only mounts and, without privilege, users get a namespace; no memory or descriptor is
    // unshared.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNS)
            .or_else(|_| unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS))?;
    }
    const MS_BIND: usize = 1 << 12;
    const MS_REC: usize = 1 << 14;
    const MS_PRIVATE: usize = 1 << 18;
    let mount = |from: &std::ffi::CStr, to: &std::ffi::CStr, flags| {
        let path = |path: &std::ffi::CStr| path.as_ptr().expose_provenance();
        // SAFETY: the kernel reads two C strings.
        unsafe { syscall6(raw::__NR_mount, [path(from), path(to), 0, flags, 0, 0]) }
    };
    mount(c"none", c"/", MS_REC | MS_PRIVATE)?;
    mount(c"/dev/null", c"/dev/userfaultfd", MS_BIND)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{Missing, Refusal, Way, can_run, open_userfaultfd};

    /// The result of `f` in a thread of its own.
    fn elsewhere<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(f).join().expect("the thread")
    }

    #[test]
    fn a_filter_is_told_from_missing_privilege() {
        for (denial, errno) in [(Denial::NotPermitted, Errno::PERM), (Denial::NotImplemented, Errno::NOSYS)] {
            let refused = elsewhere(move || {
                deny_userfaultfd(denial).expect("filter");
                open_userfaultfd(Way::UserModeOnly).map(drop)
            });
            assert_eq!(refused, Err(Refusal::Filtered(errno)));
        }
    }

    #[test]
    fn without_device_and_system_call_nothing_runs_and_the_reason_names_both() {
        let (hidden, answer) = elsewhere(|| {
            let hidden = hide_userfaultfd_device();
            deny_userfaultfd(Denial::NotPermitted).expect("filter");
            (hidden, can_run())
        });
        if hidden.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput) {
            // A user with access to the device, in a process of several threads: the filter alone
            // closes nothing.
            return assert_eq!(answer.map(|access| access.way), Ok(Way::Device));
        }
        hidden.expect("hidden");
        let Err(Missing::Userfaultfd { device, system_call }) = answer else { panic!("{answer:?}") };
        assert!(matches!(system_call, Refusal::Filtered(_) | Refusal::NotPrivileged), "{system_call:?}");
        assert!(!matches!(device, Refusal::Other(_)), "{device:?}");
    }

    #[test]
    fn the_filter_is_of_one_thread_and_the_others_go_on() {
        let before = can_run().map(|access| access.way);
        elsewhere(|| deny_userfaultfd(Denial::NotPermitted).expect("filter"));
        assert_eq!(can_run().map(|access| access.way), before);
    }
}
