//! Runs one program to its end: bounded in time, its output known by a digest.
//!
//! The program leads a process group of its own, so that its helpers end with it. This module must
//! never return while a process of the group runs.

use std::hash::Hasher;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;

use crate::measure::process::{Cancel, Reader};

const POLL: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(10);
/// How long a program may take to end once it was asked to. `pagoda run` writes its figures then.
const GRACE: Duration = Duration::from_secs(5);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// It ended by itself, with the native output.
    Ok,
    /// It ended by itself, with a failure or another output.
    Wrong,
    /// A signal ended it.
    Killed,
    /// It took longer than its limit.
    Timeout,
}

/// One run.
#[derive(Debug)]
pub struct Ran {
    pub seconds: f64,
    pub end: End,
    /// The digest of the standard output.
    pub digest: u64,
    /// The end of its standard error.
    pub errors: String,
}

/// A process group; dropping it ends the group.
struct Group(Child);

impl Group {
    fn signal(&self, signal: Signal) {
        // A group that has ended already is no error.
        let _ = kill_process_group(Pid::from_child(&self.0), signal);
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::TERM);
            let deadline = Instant::now() + GRACE;
            while self.ended().is_none() && Instant::now() < deadline {
                thread::sleep(POLL);
            }
        }
        // Child processes, too, that outlive their leader.
        self.signal(Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Runs a command for at most `limit`, and calls `tick` every ten milliseconds. The digest of
/// `expected`, if there is one, decides between right and wrong. An error is a signal to the bench,
/// or a program that does not start.
pub fn run(
    command: &[String],
    expected: Option<u64>,
    limit: Duration,
    cancel: &Cancel,
    mut tick: impl FnMut(),
) -> anyhow::Result<Ran> {
    let (program, arguments) = command.split_first().context("an empty command")?;
    let begun = Instant::now();
    let child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    let mut group = Group(child);
    let digest = group.0.stdout.take().map(|pipe| thread::spawn(move || digest(pipe)));
    let mut errors = group.0.stderr.take().map(Reader::start);
    let mut ticked = begun;
    let status = loop {
        if let Some(status) = group.ended() {
            break Some(status);
        }
        cancel.check()?;
        if begun.elapsed() > limit {
            break None;
        }
        if ticked.elapsed() > TICK {
            ticked = Instant::now();
            tick();
        }
        thread::sleep(POLL);
    };
    let seconds = begun.elapsed().min(limit).as_secs_f64();
    drop(group);
    let digest = digest.map(JoinHandle::join).and_then(Result::ok).unwrap_or_default();
    let errors = Reader::text(&mut errors);
    let errors = errors.trim().lines().last().unwrap_or_default().to_owned();
    Ok(Ran { seconds, end: end(status, expected.is_none_or(|expected| expected == digest)), digest, errors })
}

/// 128 and its number stand for a child's signal in the exit status of a shell, and of `pagoda
/// run`.
fn end(status: Option<ExitStatus>, same: bool) -> End {
    match status {
        None => End::Timeout,
        Some(status) if status.success() => {
            if same {
                End::Ok
            } else {
                End::Wrong
            }
        }
        Some(status) if status.signal().is_some() || status.code() > Some(128) => End::Killed,
        Some(_) => End::Wrong,
    }
}

/// The digest of all bytes. Not safe against an enemy: the programs are the bench's own.
fn digest(mut pipe: impl Read) -> u64 {
    let (mut hasher, mut buffer) = (std::hash::DefaultHasher::new(), vec![0; 1 << 16]);
    while let Ok(bytes @ 1..) = pipe.read(&mut buffer) {
        hasher.write(&buffer[..bytes]);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use pagoda_linux::testing::wait::until;

    use super::*;

    fn shell(script: &str, expected: Option<u64>, limit: Duration) -> Ran {
        let command = ["sh", "-c", script].map(str::to_owned);
        run(&command, expected, limit, &Cancel::default(), || ()).expect("sh starts")
    }

    #[test]
    fn an_end_is_told_by_status_output_and_time() {
        let long = Duration::from_secs(60);
        let first = shell("echo one", None, long);
        assert_eq!(first.end, End::Ok);
        assert_eq!(shell("echo one", Some(first.digest), long).end, End::Ok);
        assert_eq!(shell("echo two", Some(first.digest), long).end, End::Wrong);
        let failed = shell("echo one; echo why >&2; exit 3", Some(first.digest), long);
        assert_eq!((failed.end, failed.errors.as_str()), (End::Wrong, "why"));
        assert_eq!(shell("kill -9 $$", None, long).end, End::Killed);
        assert_eq!(shell("sh -c 'kill -9 $$'; exit $?", None, long).end, End::Killed);
    }

    #[test]
    fn a_timeout_ends_the_helpers_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let pid = directory.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        let late = shell(&script, None, Duration::from_millis(300));
        assert_eq!((late.end, late.seconds), (End::Timeout, 0.3));
        let helper = std::fs::read_to_string(&pid).expect("it was written in time");
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", helper.trim())).unwrap_or_default();
        // It was killed, which takes it a moment.
        until("the helper has ended", || state().is_empty() || state().contains(") Z "));
    }
}
