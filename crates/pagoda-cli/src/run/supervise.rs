//! Standing in for the program: it starts as if there were no supervisor, its signals reach it, and
//! its end is reported.
//!
//! The program stays in our process group and keeps the terminal. So the terminal's signals
//! (interrupt, quit, suspend, hang-up, window size) reach it without us and are not sent on; those
//! of other processes to us are. When a terminal stop has stopped the program we stop too, so that
//! the shell sees a stopped job. A stop of the program may never be complete, and then is not
//! reported: a thread that faults inside a system call stops once it is served, and the engine,
//! which would serve it, has stopped. Threads that stay stopped are enough then.
//!
//! If we are killed the program goes on, managed as before: its engine is inside it, only its table
//! is lost. This module must never delay a signal, and never end before the program has.

use std::fs;
use std::io;
use std::process::Command;
use std::time::Duration;

use pagoda_linux::process::child::{self, Change, Inherited, Received};
use pagoda_linux::process::identity::is_stopped_by_signal;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned this status.
    Exited(u8),
    /// This signal ended it.
    Killed(i32),
}

impl End {
    /// The status that a shell would show: the program's own, or 128 and the signal.
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX)),
        }
    }
}

/// A program that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// How.
    pub end: End,
    /// The largest resident set that it ever had, file-backed pages included, in bytes.
    pub resident_peak_bytes: u64,
    /// The program that it executed last was not managed.
    pub is_replaced: bool,
}

/// Why there is no end to tell.
#[derive(Debug)]
pub enum Failed {
    /// The program did not start.
    Start(io::Error),
    /// It was started, and could not be waited for.
    Wait(io::Error),
}

/// Starts the program, calls `started`, and waits until the program ends.
pub fn run(command: &mut Command, inherited: &Inherited, started: impl FnOnce()) -> Result<Ended, Failed> {
    let child = child::spawn(command, inherited).map_err(Failed::Start)?.id();
    started();
    Supervisor { child, stopped: false, stopping: None }.wait().map_err(Failed::Wait)
}

/// How often the program's threads are looked at after a signal to stop, and how far apart: a
/// handler of the program's own may take that long before it stops.
const LOOKS_MAX: u32 = 100;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A signal to stop has come, and the program has not been reported as stopped.
#[derive(Default)]
struct Stopping {
    looks: u32,
    /// The last look has seen a stopped thread.
    some_stopped: bool,
}

struct Supervisor {
    child: u32,
    stopped: bool,
    stopping: Option<Stopping>,
}

impl Supervisor {
    fn wait(&mut self) -> io::Result<Ended> {
        loop {
            let Some(received) = child::next_signal(self.stopping.as_ref().map(|_| LOOK_EVERY))? else {
                self.look_at_threads()?;
                continue;
            };
            match received.signal {
                libc::SIGCHLD => {
                    if let Some(ended) = self.look(true)? {
                        return Ok(ended);
                    }
                }
                libc::SIGCONT => {
                    self.stopping = None;
                    // A process that continued only us (a batch system, `kill -CONT`) means the
                    // program.
                    if let Some(ended) = self.look(false)? {
                        return Ok(ended);
                    }
                    if self.stopped {
                        self.pass_on(libc::SIGCONT);
                    }
                }
                signal => {
                    if is_terminal_stop(signal) {
                        self.stopping = Some(Stopping::default());
                    }
                    if !self.has_it_already(received) {
                        self.pass_on(signal);
                    }
                }
            }
        }
    }

    /// Takes every change of the program that is to be had, and stops with it if `may_stop`.
    fn look(&mut self, may_stop: bool) -> io::Result<Option<Ended>> {
        let mut stopped_by = None;
        while let Some(report) = child::poll_child(self.child)? {
            (stopped_by, self.stopping) = (None, None);
            let end = match report.change {
                Change::Exited(status) => End::Exited(u8::try_from(status).unwrap_or(u8::MAX)),
                Change::Killed(signal) => End::Killed(signal),
                Change::Continued => {
                    self.stopped = false;
                    continue;
                }
                Change::Stopped(signal) => {
                    self.stopped = true;
                    stopped_by = Some(signal);
                    continue;
                }
            };
            // An unknown mark is not held against it.
            let is_replaced = report.was_marked == Some(false);
            return Ok(Some(Ended { end, resident_peak_bytes: report.resident_peak_bytes, is_replaced }));
        }
        // SIGSTOP was meant for the program alone: its sender will continue the program and not us.
        if may_stop && stopped_by.is_some_and(is_terminal_stop) {
            child::stop_self()?;
        }
        Ok(None)
    }

    /// Stops as well if threads of the program have been stopped for a while: the stop of the
    /// others waits for the engine, whose threads are stopped.
    fn look_at_threads(&mut self) -> io::Result<()> {
        let Some(Stopping { looks, some_stopped }) = self.stopping.take() else { return Ok(()) };
        let stopped_now = some_thread_is_stopped(self.child);
        if some_stopped && stopped_now {
            self.stopped = true;
            return child::stop_self();
        }
        if looks < LOOKS_MAX {
            self.stopping = Some(Stopping { looks: looks + 1, some_stopped: stopped_now });
        }
        Ok(())
    }

    fn pass_on(&self, signal: i32) {
        // The program may have ended just now, or may run as a user whom we may not signal: its
        // affair.
        let _ = child::send(self.child, signal);
    }

    /// True for signals to the whole process group: a terminal's doing, or the program's own
    /// (`kill(0, …)`).
    fn has_it_already(&self, received: Received) -> bool {
        let of_a_terminal = matches!(
            received.signal,
            libc::SIGINT
                | libc::SIGQUIT
                | libc::SIGHUP
                | libc::SIGTSTP
                | libc::SIGTTIN
                | libc::SIGTTOU
                | libc::SIGWINCH
        );
        match received.sender {
            None => of_a_terminal && received.by_kernel,
            Some(sender) => descends_from(sender, self.child),
        }
    }
}

fn is_terminal_stop(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

fn some_thread_is_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    numbers.any(is_stopped_by_signal)
}

/// Far deeper than process trees are; it only bounds the walk.
const ANCESTORS_MAX: usize = 64;

/// True if `pid` is `ancestor` or a descendant that still runs.
fn descends_from(pid: u32, ancestor: u32) -> bool {
    let parent = |&pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    std::iter::successors(Some(pid), parent).take(ANCESTORS_MAX).any(|pid| pid == ancestor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_the_programs_or_that_of_its_signal() {
        assert_eq!(End::Exited(3).status(), 3);
        assert_eq!(End::Killed(libc::SIGTERM).status(), 143);
        assert_eq!(End::Killed(libc::SIGKILL).status(), 137);
    }

    #[test]
    fn a_terminals_signal_is_not_sent_twice() {
        let supervisor = Supervisor { child: std::process::id(), stopped: false, stopping: None };
        let by = |signal, by_kernel, sender| Received { signal, by_kernel, sender };
        assert!(supervisor.has_it_already(by(libc::SIGINT, true, None)));
        assert!(
            !supervisor.has_it_already(by(libc::SIGALRM, true, None)),
            "a timer that was set before exec"
        );
        assert!(!supervisor.has_it_already(by(libc::SIGINT, false, Some(1))), "a process meant the program");
        assert!(
            supervisor.has_it_already(by(libc::SIGTERM, false, Some(std::process::id()))),
            "its own doing"
        );
    }

    #[test]
    fn a_process_descends_from_its_parent_and_not_the_other_way() {
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        assert!(descends_from(own, parent));
        assert!(!descends_from(parent, own));
    }
}
