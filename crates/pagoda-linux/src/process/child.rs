//! A supervisor's means to stand in for the program that it starts: signals taken one by one, a
//! child that starts as if there were no supervisor, and every change of that child.
//!
//! A supervisor has one thread and blocks every signal, so that each waits in its queue until
//! [`next_signal`] takes it: no handler runs, none is lost before the child is there, and one that
//! the supervisor's parent told it to ignore is still seen. This module must never decide what a
//! signal means.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use linux_raw_sys::general::__NR_rt_sigaction;

use crate::process::image_mark;
use crate::raw_syscall::syscall6;

/// Whether SIGPIPE was ignored when this process began. Rust's runtime ignores it before `main`, so
/// nothing later can tell the parent's wish for its program.
static PIPE_IGNORED_AT_START: AtomicBool = AtomicBool::new(false);

/// Runs before `main` and so before Rust's runtime. It reads one disposition and changes nothing.
extern "C" fn remember_pipe_disposition() {
    PIPE_IGNORED_AT_START.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

// SAFETY: the section is an array of `extern "C"` functions that the loader calls; this one takes
// no arguments (it may ignore those it gets), allocates nothing, and makes one system call.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember_pipe_disposition;

/// The wishes of this process's parent for the program: the signals blocked and ignored before any
/// were blocked here.
pub struct Inherited {
    mask: libc::sigset_t,
    ignores_pipe: bool,
    ignores_child: bool,
}

/// A signal that was waiting for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// True if the kernel itself sent it: a terminal's keys, its hang-up or a timer.
    pub by_kernel: bool,
    /// The process that sent it, if one did.
    pub sender: Option<u32>,
}

/// How a child has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended with this status.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// This signal stopped it.
    Stopped(i32),
    /// It goes on.
    Continued,
}

/// A child's change, and its use of resources so far (complete once it ended).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The change.
    pub change: Change,
    /// The largest resident set that it or a descendant it waited for ever had, file-backed pages
    /// included, in bytes.
    pub resident_peak_bytes: u64,
    /// Of one that has ended: whether the program that it executed last was marked (`image_mark`),
    /// if that could be seen.
    pub was_marked: Option<bool>,
}

fn is_ignored(signal: i32) -> bool {
    // The kernel's `struct sigaction`: the handler, flags, a restorer where there is one, and a
    // mask of 8 bytes.
    let mut old = [0usize; 4];
    let old_at = (&raw mut old).expose_provenance();
    // SAFETY: no new disposition is given, and `old` is ours to write. Not by the C library: the
    // preloaded library carries this code into programs that may have a `sigaction` of their own.
    let got = unsafe { syscall6(__NR_rt_sigaction, [signal as usize, 0, old_at, 8, 0, 0]) };
    got.is_ok() && old[0] == libc::SIG_IGN
}

/// Async-signal-safe.
fn set_disposition(signal: i32, disposition: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: only SIG_DFL and SIG_IGN are ever given here: no handler, so nothing of ours runs.
    match unsafe { libc::signal(signal, disposition) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Async-signal-safe.
fn set_mask(mask: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: `mask` is a valid set; the old one is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn full_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, for which all zeroes are a value, and sigfillset writes only
    // to it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

/// Blocks every signal of the calling thread, which has to be the only one, and returns the signals
/// blocked before.
///
/// A SIGCHLD that the parent had ignored is set to its default here: the kernel would reap the
/// child unseen.
pub fn block_signals() -> io::Result<Inherited> {
    let all = full_set();
    // SAFETY: as in `full_set`.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are valid, and `mask` is ours to write.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut mask) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let ignores_child = is_ignored(libc::SIGCHLD);
    set_disposition(libc::SIGCHLD, libc::SIG_DFL)?;
    Ok(Inherited { mask, ignores_pipe: PIPE_IGNORED_AT_START.load(Ordering::Relaxed), ignores_child })
}

/// Starts `command` with the signal mask and dispositions that this process inherited.
///
/// # Errors
/// That of fork or exec; the number of the latter tells a program that is not there from one that
/// can't be run.
pub fn spawn(command: &mut Command, inherited: &Inherited) -> io::Result<Child> {
    let mask = inherited.mask;
    let pipe = if inherited.ignores_pipe { libc::SIG_IGN } else { libc::SIG_DFL };
    let child = if inherited.ignores_child { libc::SIG_IGN } else { libc::SIG_DFL };
    let prepare = move || {
        set_disposition(libc::SIGPIPE, pipe)?;
        set_disposition(libc::SIGCHLD, child)?;
        set_mask(&mask)
    };
    // SAFETY: between fork and exec `prepare` makes three async-signal-safe calls on values that it
    // owns: it allocates nothing (an error of the system's number does not either) and takes no
    // lock. The mask comes last, so that a signal that waits acts as the program's parent has
    // wished.
    unsafe { command.pre_exec(prepare) }.spawn()
}

/// Has `command` join the control groups with these `cgroup.procs` files before it executes
/// anything, and end with the calling thread, by SIGKILL. A program that changes its rights as it
/// executes (setuid) outlives it.
pub fn join_before_exec(command: &mut Command, procs: [std::fs::File; 2]) {
    let join = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // It stands for the process that writes it.
        procs.iter().try_for_each(|procs| rustix::io::write(procs, b"0").map(drop).map_err(io::Error::from))
    };
    // SAFETY: between fork and exec `join` makes three system calls on values that it owns. It
    // allocates nothing (an error of the system's number does not either) and takes no lock. The
    // files are open until `command` is dropped, and close in the program as it is executed.
    unsafe { command.pre_exec(join) };
}

/// Waits for a signal and takes it. All signals have to be blocked ([`block_signals`]). Blocks for
/// `at_most` and returns `None` then, or without a limit.
pub fn next_signal(at_most: Option<Duration>) -> io::Result<Option<Received>> {
    let all = full_set();
    let at_most = at_most.map(|time| libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let limit = at_most.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    loop {
        // SAFETY: siginfo_t is plain data, for which all zeroes are a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid, and `info` is ours to write. The limit is null, which means
        // none, or lives as long as this call.
        let signal = unsafe { libc::sigtimedwait(&raw const all, &raw mut info, limit) };
        if signal > 0 {
            let by_process = matches!(info.si_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
            // SAFETY: for these three codes the kernel fills in the sender.
            let sender = if by_process { unsafe { info.si_pid() } } else { 0 };
            let sender = u32::try_from(sender).ok().filter(|&pid| pid != 0);
            return Ok(Some(Received { signal, by_kernel: info.si_code == libc::SI_KERNEL, sender }));
        }
        // A stop and a continue interrupt the wait, although nothing was delivered.
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}

/// Waits until a child has ended, and leaves it to be waited for.
///
/// # Errors
/// Those of waitid(2).
#[cfg(test)]
pub(crate) fn await_end(pid: u32) -> io::Result<()> {
    ended(pid, 0).map(drop)
}

/// Whether a child has ended that was not waited for yet.
fn ended(pid: u32, options: i32) -> io::Result<bool> {
    // SAFETY: siginfo_t is plain data, for which all zeroes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = options | libc::WEXITED | libc::WNOWAIT;
    // SAFETY: `info` is ours to write.
    match unsafe { libc::waitid(libc::P_PID, pid, &raw mut info, options) } {
        // SAFETY: of a child that has ended the kernel fills the number in; else it is zero.
        0 => Ok(unsafe { info.si_pid() } != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next change of a child that was not reported yet, or `None` if there is none. Never blocks.
pub fn poll_child(pid: u32) -> io::Result<Option<Report>> {
    // Before it is waited for: nothing of it is left to be seen then.
    let was_marked = if ended(pid, libc::WNOHANG)? { image_mark::is_set(pid) } else { None };
    let pid = pid_of(pid)?;
    let mut status = 0;
    // SAFETY: rusage is plain data, for which all zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    // SAFETY: `status` and `usage` are ours to write.
    let got = unsafe { libc::wait4(pid, &raw mut status, options, &raw mut usage) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    if got == 0 {
        return Ok(None);
    }
    let change = if libc::WIFEXITED(status) {
        Change::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else {
        Change::Continued
    };
    let resident_peak_bytes = u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10;
    Ok(Some(Report { change, resident_peak_bytes, was_marked }))
}

/// Sends a signal. A process that is gone is an error ([`io::ErrorKind::NotFound`] does not cover
/// it: ESRCH).
pub fn send(pid: u32, signal: i32) -> io::Result<()> {
    let pid = pid_of(pid)?;
    // SAFETY: kill takes numbers only.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Stops this process until it gets SIGCONT.
pub fn stop_self() -> io::Result<()> {
    send(std::process::id(), libc::SIGSTOP)
}

/// Numbers that would mean a group or all processes to the kernel are refused.
fn pid_of(pid: u32) -> io::Result<libc::pid_t> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0);
    pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the number of a process"))
}

/// An unguessable number; early after boot, where the kernel has none to give yet, the time.
#[must_use]
pub fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::NONBLOCK) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => crate::process::caller::now_ns(),
    }
}

/// Unguessable bytes, for secrets. Blocks until the kernel has some, early after its boot.
///
/// # Errors
/// Those of getrandom(2); on no kernel that has the call, as far as is known.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ() {
        let (first, second): ([u8; 300], [u8; 300]) =
            (random_bytes().expect("bytes"), random_bytes().expect("bytes"));
        assert_ne!(first, second);
    }

    #[test]
    fn a_number_that_means_a_group_is_refused() {
        for pid in [0, u32::MAX, 1 << 31] {
            assert_eq!(send(pid, 0).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidInput));
        }
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "it is waited for, by poll_child")]
    fn the_end_of_a_child_is_reported_with_its_signal() {
        let child = Command::new("sh").args(["-c", "kill -TERM $$"]).spawn().expect("sh starts");
        let report = loop {
            if let Some(report) = poll_child(child.id()).expect("it is our child") {
                break report;
            }
            std::thread::yield_now();
        };
        assert_eq!(report.change, Change::Killed(libc::SIGTERM));
        assert!(report.resident_peak_bytes > 0);
    }
}
