//! Children of every kind: forked, vforked, spawned; and every way in which they end.
//!
//! What a child found wrong is its exit status and a line on standard error. Nothing here may use a lock that another
//! thread of the parent can hold at the moment of the fork.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::plots::Plots;
use crate::support::managed::ROLE;
use crate::support::memory::Mapping;
use crate::support::random::Random;

/// The exit status of whoever found wrong data.
pub const WRONG: i32 = 9;

/// How a child ends that found everything right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// exit(3), which runs what was registered for it.
    Exit,
    /// _exit(2).
    AtOnce,
    /// It kills itself.
    Killed,
    /// Its parent kills it at any moment, unless it has ended before.
    Murdered,
}

impl End {
    pub fn any(random: &mut Random) -> Self {
        match random.below(8) {
            0..3 => Self::Exit,
            3..5 => Self::AtOnce,
            5..7 => Self::Killed,
            _ => Self::Murdered,
        }
    }
}

/// A child that runs.
pub struct Child {
    pid: i32,
    end: End,
}

/// Says something on standard error, with no lock.
pub fn complain(what: &str) {
    let line = format!("process {}: {what}\n", std::process::id());
    // SAFETY: the kernel reads this many bytes of the line.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// _exit(2).
pub fn end_at_once(status: i32) -> ! {
    // SAFETY: it has no precondition.
    unsafe { libc::_exit(status) }
}

/// Forks. The child runs `body` and ends as it should.
pub fn fork(end: End, body: impl FnOnce() -> Result<(), String>) -> Child {
    // SAFETY: the child goes on with this thread alone; it takes no lock of Rust's own that another thread can have
    // held, and the C library makes its allocator usable in the child.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid > 0 {
        return Child { pid, end };
    }
    // A panic must not unwind into what the parent does with its other threads, which the child does not have.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {}
        Ok(Err(wrong)) => {
            complain(&wrong);
            end_at_once(WRONG)
        }
        Err(_) => end_at_once(WRONG),
    }
    match end {
        // SAFETY: only this thread is left, so nobody else runs what exit(3) tears down.
        End::Exit => unsafe { libc::exit(0) },
        End::AtOnce | End::Murdered => end_at_once(0),
        End::Killed => {
            // SAFETY: it takes numbers only.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            unreachable!("SIGKILL can't be blocked")
        }
    }
}

impl Child {
    /// Waits for its end, which has to be the one that was agreed on. One that is to be murdered is, after a while.
    pub fn join(self, random: &mut Random) -> Result<(), String> {
        if self.end == End::Murdered {
            std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
            // SAFETY: it takes numbers only; the child was not waited for yet, so that its number is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: `status` is ours to write.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        if waited != self.pid {
            return Err(format!("waitpid of {}: {}", self.pid, std::io::Error::last_os_error()));
        }
        let exited = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        let right = match self.end {
            End::Exit | End::AtOnce => exited,
            End::Killed => killed,
            End::Murdered => exited || killed,
        };
        if right {
            Ok(())
        } else {
            Err(format!("child {} ({:?}) has status {status:#x}", self.pid, self.end))
        }
    }
}

/// Memory that a program holds which was executed anew: worth an engine of its own.
const EXECUTED_PAGES: usize = (20 << 20) / 4096;

/// What this executable does when a child of the test executes it.
pub fn executed(seed: u64) -> Result<String, String> {
    let plots = Plots::new(seed, 1, EXECUTED_PAGES);
    let mut all = plots.lock_all();
    for _ in 0..20 {
        all[0].operate(1)?;
    }
    all[0].check_all()?;
    Ok(format!("executed {seed}"))
}

/// posix_spawn(3) of this executable, which is what the standard library uses where it can.
pub fn spawn(seed: u64) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(own)
        .args([ROLE, "executed", &seed.to_string()])
        .output()
        .map_err(|error| format!("posix_spawn: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said == format!("executed {seed}\n") {
        return Ok(());
    }
    Err(format!("spawned: {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// What a vfork child is given, and what it found: page numbers and words that it adds up.
struct Borrowed<'a> {
    still: &'a Mapping,
    sum: u64,
}

/// A vfork child: it runs in this process's own memory, while the calling thread waits. It reads all of `still`, whose
/// words add up to `sum`, and ends with _exit(2).
pub fn vfork(still: &Mapping, sum: u64) -> Result<(), String> {
    extern "C" fn borrow(argument: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it is the `Borrowed` below, whose owner waits until this child has ended.
        let borrowed = unsafe { &mut *argument.cast::<Borrowed<'_>>() };
        borrowed.sum = crate::borrow::sum(borrowed.still);
        end_at_once(0)
    }
    let mut borrowed = Borrowed { still, sum: 0 };
    let mut stack = Mapping::new(64).map_err(|error| error.to_string())?;
    // Used before, so that it can be out of memory when the child starts on it.
    stack.words_mut(0..64).fill(1);
    let top: *mut libc::c_void =
        std::ptr::with_exposed_provenance_mut(stack.start() + stack.pages() * crate::support::memory::PAGE);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is large enough for a sum and nobody else uses it; the child shares memory and thread pointer
    // with this thread, which sleeps until the child has ended.
    let pid = unsafe { libc::clone(borrow, top, flags, (&raw mut borrowed).cast()) };
    if pid < 0 {
        return Err(format!("clone(CLONE_VFORK): {}", std::io::Error::last_os_error()));
    }
    Child { pid, end: End::AtOnce }.join(&mut Random::new(0, 0))?;
    if borrowed.sum == sum {
        Ok(())
    } else {
        Err(format!("a vfork child read {:#x}, not {sum:#x}", borrowed.sum))
    }
}

/// Waits until a part of `mapping`, all of it written, is out of memory. False if that does not happen for long.
pub fn wait_until_out(
    mapping: &Mapping,
    mut press: impl FnMut() -> Result<(), String>,
) -> Result<bool, String> {
    let begin = Instant::now();
    while !mapping.is_any_out() {
        if begin.elapsed() > Duration::from_secs(20) {
            return Ok(false);
        }
        press()?;
    }
    Ok(true)
}
