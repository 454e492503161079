//! Children of every kind: forked, vforked, spawned; and every way in which they end.
//!
//! A child reports wrong data by its exit status and a line on standard error. Nothing here may use
//! a lock that another thread of the parent can hold at the moment of the fork.

use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagoda_linux::testing::process::{self, Executable, wait};
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::plots::Plots;
use crate::support::managed::ROLE;
use crate::support::memory::Mapping;
use crate::support::random::Random;

/// The exit status of a process that found wrong data.
pub const WRONG: i32 = 9;

/// How a child ends that found everything right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// exit(3), which runs its registered handlers.
    Exit,
    /// _exit(2).
    AtOnce,
    /// It kills itself.
    Killed,
    /// Its parent kills it at any moment, unless it has ended before.
    Murdered,
    /// It becomes this executable anew, by exec with all that it holds, and ends well.
    Executes,
}

impl End {
    pub fn any(random: &mut Random) -> Self {
        match random.below(10) {
            0..3 => Self::Exit,
            3..5 => Self::AtOnce,
            5..7 => Self::Killed,
            7..9 => Self::Executes,
            _ => Self::Murdered,
        }
    }
}

/// A child that runs.
pub struct Child {
    pid: Pid,
    end: End,
}

/// Says something on standard error, with no lock.
pub fn complain(what: &str) {
    let line = format!("process {}: {what}\n", std::process::id());
    let _ = rustix::io::write(std::io::stderr(), line.as_bytes());
}

/// Forks. The child runs `body` and ends as it should.
pub fn fork(end: End, body: impl FnOnce() -> Result<(), String>) -> Child {
    let child = || {
        let wrong = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => return end.end(),
            Ok(Err(wrong)) => wrong,
            Err(_) => return WRONG,
        };
        complain(&wrong);
        WRONG
    };
    let pid = process::fork(child).unwrap_or_else(|error| panic!("fork: {error}"));
    Child { pid, end }
}

impl End {
    /// The end of a child; the status for _exit(2) if it gets that far.
    fn end(self) -> i32 {
        match self {
            Self::Exit => std::process::exit(0),
            Self::AtOnce | Self::Murdered => 0,
            Self::Executes => {
                let error = executed_words(u64::from(std::process::id())).map(|mut command| command.exec());
                complain(&format!("exec: {error:?}"));
                WRONG
            }
            Self::Killed => {
                let _ = kill_process(getpid(), Signal::KILL);
                unreachable!("SIGKILL can't be blocked")
            }
        }
    }
}

impl Child {
    /// Waits for its end, which has to be the one that was agreed on. One that is to be murdered
    /// is, after a while.
    pub fn join(self, random: &mut Random) -> Result<(), String> {
        if self.end == End::Murdered {
            std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
            // It was not waited for yet, so that its number is still its own.
            let _ = kill_process(self.pid, Signal::KILL);
        }
        let status = wait(self.pid).map_err(|error| format!("waitpid of {}: {error}", self.pid))?;
        let exited = status.exit_status() == Some(0);
        let killed = status.terminating_signal() == Some(libc::SIGKILL);
        let right = match self.end {
            End::Exit | End::AtOnce | End::Executes => exited,
            End::Killed => killed,
            End::Murdered => exited || killed,
        };
        if right {
            Ok(())
        } else {
            Err(format!("child {} ({:?}) has status {:#x}", self.pid, self.end, status.as_raw()))
        }
    }
}

/// Memory that a program holds which was executed anew: worth an engine of its own.
const EXECUTED_PAGES: usize = (20 << 20) / 4096;

/// The work of this executable when a child of the test executes it.
pub fn executed(seed: u64) -> Result<String, String> {
    let plots = Plots::new(seed, 1, EXECUTED_PAGES);
    let mut all = plots.lock_all();
    for _ in 0..20 {
        all[0].operate(1)?;
    }
    all[0].check_all()?;
    Ok(format!("executed {seed}"))
}

/// This executable, to be executed, which then says nothing.
fn executed_words(seed: u64) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command.args([ROLE, "executed", &seed.to_string()]).stdout(Stdio::null());
    Ok(command)
}

/// posix_spawn(3) of this executable, which the standard library uses where it can.
pub fn spawn(seed: u64) -> Result<(), String> {
    let output = executed_words(seed)?
        .stdout(Stdio::piped())
        .output()
        .map_err(|error| format!("posix_spawn: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said == format!("executed {seed}\n") {
        return Ok(());
    }
    Err(format!("spawned: {}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// A vfork child: it runs in this process's own memory, while the calling thread waits. It reads
/// all of `still`, whose words add up to `sum`, and ends with _exit(2).
pub fn vfork(still: &Mapping, sum: u64) -> Result<(), String> {
    let mut stack = Mapping::new(64).map_err(|error| error.to_string())?;
    // Used before, so that it can be swapped out when the child starts on it.
    stack.words_mut(0..64).fill(1);
    let mut read = 0;
    let pid = process::vfork(stack.words_mut(0..64), &mut || read = crate::borrow::sum(still))
        .map_err(|error| format!("clone(CLONE_VFORK): {error}"))?;
    Child { pid, end: End::AtOnce }.join(&mut Random::new(0, 0))?;
    if read == sum { Ok(()) } else { Err(format!("a vfork child read {read:#x}, not {sum:#x}")) }
}

/// A vfork child that becomes this executable anew: until then it runs in this process's memory.
pub fn vfork_and_execute(seed: u64) -> Result<(), String> {
    let mut stack = Mapping::new(64).map_err(|error| error.to_string())?;
    stack.words_mut(0..64).fill(1);
    let program =
        Executable::this([ROLE, "executed", &seed.to_string()]).map_err(|error| error.to_string())?;
    let pid = process::vfork(stack.words_mut(0..64), &mut || program.execute())
        .map_err(|error| format!("clone(CLONE_VFORK) to exec: {error}"))?;
    Child { pid, end: End::Executes }.join(&mut Random::new(0, 0))
}

/// Waits until a part of `mapping`, all of it written, is swapped out. False if that does not
/// happen for long.
pub fn wait_until_out(
    mapping: &Mapping,
    mut press: impl FnMut() -> Result<(), String>,
) -> Result<bool, String> {
    let begin = Instant::now();
    while !mapping.is_any_out() {
        if begin.elapsed() > Duration::from_secs(60) {
            return Ok(false);
        }
        press()?;
    }
    Ok(true)
}
