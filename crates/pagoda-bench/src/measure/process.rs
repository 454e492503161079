//! Runs a child to its end: bounded in time, ended together with this process, its anonymous memory
//! sampled from outside.
//!
//! This module must never leave a child behind: however the wait ends, the child is gone when it
//! returns.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::measure::memory::status_bytes;

/// The pause between polls, short beside the seconds of a run.
const POLL: Duration = Duration::from_millis(1);
/// The pause between polls of a whole bench, which measures meanwhile.
const RARE_POLL: Duration = Duration::from_millis(20);
/// The time between samples of the child's memory: often enough for its peak, rarely enough not to
/// disturb.
const SAMPLE: Duration = Duration::from_millis(10);
/// The time that a child has to end before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// The most that is kept of a child's output; the JSON of a bench has some ten KiB.
pub const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// The most that an error quotes of a child's standard error.
const ERROR_BYTES_MAX: usize = 2000;

/// The number of the signal that asked the benchmark to end, once there is one.
#[derive(Clone, Default)]
pub struct Cancel(Arc<AtomicUsize>);

/// The benchmark was asked to end.
#[derive(Debug, thiserror::Error)]
#[error("ended by signal {0}")]
pub struct Cancelled(pub u8);

impl Cancel {
    /// Remembers the signals that ask a program to end, instead of ending by them, so that
    /// everything set up is undone on the way out.
    pub fn on_signals() -> anyhow::Result<Self> {
        let cancel = Self::default();
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let number = signal.as_raw();
            signal_hook::flag::register_usize(number, Arc::clone(&cancel.0), number as usize)
                .context("installing a signal handler")?;
        }
        Ok(cancel)
    }

    /// Fails once a signal has arrived.
    pub fn check(&self) -> Result<(), Cancelled> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Cancelled(signal as u8)),
        }
    }
}

/// Observations of a child that ended well.
#[derive(Debug)]
pub struct Finished {
    /// Its standard output.
    pub output: String,
    /// From start to end.
    pub seconds: f64,
    /// The sampled peak of anonymous memory of the child, or of its first descendant under `pagoda
    /// run`.
    pub anonymous_bytes_peak: u64,
}

impl Finished {
    /// The output of a worker: one line of JSON.
    pub fn printed<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_str(&self.output).context("reading what the worker printed")
    }
}

/// A child that ended by itself, well or not.
pub struct Ended {
    pub status: ExitStatus,
    pub output: String,
    pub errors: String,
}

/// A running child. Dropping this ends it.
pub struct Running {
    child: Child,
    started: Instant,
    output: Option<Reader>,
    errors: Option<Reader>,
    managed: bool,
    anonymous_bytes_peak: u64,
    sampled: Instant,
    grace: Duration,
}

/// Runs a command to its end; see [`Running::wait`].
pub fn run(
    command: &[String],
    limit: Duration,
    cancel: &Cancel,
    tick: impl FnMut(),
) -> anyhow::Result<Finished> {
    Running::start(command)?.wait(limit, cancel, tick)
}

impl Running {
    /// Starts a command, with an empty standard input.
    pub fn start(command: &[String]) -> anyhow::Result<Self> {
        Self::start_with(command, Stdio::null())
    }

    /// Starts a command whose standard input stays open as long as this is held. A child that waits
    /// for its end also ends if this process is killed.
    pub fn start_held(command: &[String]) -> anyhow::Result<Self> {
        Self::start_with(command, Stdio::piped())
    }

    fn start_with(command: &[String], input: Stdio) -> anyhow::Result<Self> {
        let (program, arguments) = command.split_first().context("an empty command")?;
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        let output = child.stdout.take().map(Reader::start);
        let errors = child.stderr.take().map(Reader::start);
        let managed = arguments.first().is_some_and(|first| first == "run");
        Ok(Self {
            child,
            started,
            output,
            errors,
            managed,
            anonymous_bytes_peak: 0,
            sampled: started,
            grace: GRACE,
        })
    }

    /// Waits at most `limit` for the child to end, and calls `tick` every ten milliseconds. A child
    /// that fails, takes longer or is interrupted is an error, and gone.
    pub fn wait(
        mut self,
        limit: Duration,
        cancel: &Cancel,
        mut tick: impl FnMut(),
    ) -> anyhow::Result<Finished> {
        let status = self.until_ended(limit, cancel, POLL, |child| {
            if child.sample() {
                tick();
            }
        })?;
        let seconds = self.started.elapsed().as_secs_f64();
        let output = Reader::text(&mut self.output);
        cancel.check()?;
        if !status.success() {
            bail!("{status}: {}", self.errors());
        }
        Ok(Finished { output, seconds, anonymous_bytes_peak: self.anonymous_bytes_peak })
    }

    /// Waits at most `limit` for the child to end by itself, with rare polls. Past that it is asked
    /// to end, and has `grace` to undo its set-up.
    pub fn ended_within(
        mut self,
        limit: Duration,
        grace: Duration,
        cancel: &Cancel,
    ) -> anyhow::Result<Ended> {
        self.grace = grace;
        let status = self.until_ended(limit, cancel, RARE_POLL, |_| ())?;
        cancel.check()?;
        Ok(Ended { status, output: Reader::text(&mut self.output), errors: self.errors() })
    }

    fn until_ended(
        &mut self,
        limit: Duration,
        cancel: &Cancel,
        poll: Duration,
        mut look: impl FnMut(&mut Self),
    ) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            cancel.check()?;
            if self.started.elapsed() > limit {
                bail!("it did not end within {} s", limit.as_secs());
            }
            look(self);
            thread::sleep(poll);
        }
    }

    /// Whether the child has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The child's standard error. Blocks until the child has closed it.
    pub fn errors(&mut self) -> String {
        let errors: String = Reader::text(&mut self.errors).chars().take(ERROR_BYTES_MAX).collect();
        errors.trim().to_owned()
    }

    /// Kills the program. Returns the time until the child was reaped, and blocks that long.
    pub fn kill(mut self) -> anyhow::Result<Duration> {
        let program = self.program().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let begin = Instant::now();
        kill_process(program.context("the program has ended already")?, Signal::KILL)?;
        self.child.wait()?;
        Ok(begin.elapsed())
    }

    /// The program's memory that the kernel has swapped out, in bytes.
    pub fn swapped_bytes(&self) -> u64 {
        self.program().and_then(|pid| status_bytes(pid, "VmSwap:")).unwrap_or(0)
    }

    /// The process that is measured: the child, or the program below it under `pagoda run`.
    pub fn program(&self) -> Option<u32> {
        let pid = self.child.id();
        if self.managed { first_child(pid) } else { Some(pid) }
    }

    /// Samples the child's memory if a sample is due.
    pub fn sample(&mut self) -> bool {
        if self.sampled.elapsed() < SAMPLE {
            return false;
        }
        self.sampled = Instant::now();
        let bytes = self.program().and_then(|pid| status_bytes(pid, "RssAnon:")).unwrap_or(0);
        self.anonymous_bytes_peak = self.anonymous_bytes_peak.max(bytes);
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Asked first: `pagoda run` passes the signal on, but a program under it would outlive a
        // kill.
        if self.ended() {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + self.grace;
        while !self.ended() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A thread that reads a pipe to its end.
pub struct Reader(thread::JoinHandle<String>);

impl Reader {
    pub fn start(pipe: impl Read + Send + 'static) -> Self {
        Self(thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut pipe = pipe.take(OUTPUT_BYTES_MAX);
            let _ = pipe.read_to_end(&mut bytes);
            // A child that prints more is drained, so that it never blocks on the pipe.
            let _ = std::io::copy(&mut pipe.into_inner(), &mut std::io::sink());
            String::from_utf8_lossy(&bytes).into_owned()
        }))
    }

    /// The text read, empty the second time. Blocks until the other end is closed.
    pub fn text(reader: &mut Option<Self>) -> String {
        reader.take().and_then(|Self(thread)| thread.join().ok()).unwrap_or_default()
    }
}

fn first_child(pid: u32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn gone(finished: anyhow::Result<Finished>) -> String {
        finished.expect_err("it must not end well").to_string()
    }

    #[test]
    fn output_and_errors_are_told_apart() {
        let (second, cancel) = (Duration::from_secs(20), Cancel::default());
        let finished = run(&command(&["sh", "-c", "echo out; echo err >&2"]), second, &cancel, || ());
        assert_eq!(finished.expect("ended well").output, "out\n");
        let failed = gone(run(&command(&["sh", "-c", "echo why >&2; exit 3"]), second, &cancel, || ()));
        assert!(failed.contains("3") && failed.contains("why"), "{failed}");
        assert!(gone(run(&command(&["/nonexistent"]), second, &cancel, || ())).contains("/nonexistent"));
    }

    #[test]
    fn what_is_held_waits_for_the_end_of_its_input_and_is_killed() {
        let held = Running::start_held(&command(&["cat"])).expect("cat starts");
        thread::sleep(Duration::from_millis(20));
        assert!(held.swapped_bytes() < 1 << 30 && held.program() == Some(held.child.id()));
        let pid = held.child.id();
        held.kill().expect("it had not ended");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_child_that_takes_too_long_or_outlives_a_signal_is_ended() {
        let long = command(&["sleep", "60"]);
        let cancel = Cancel::default();
        assert!(gone(run(&long, Duration::from_millis(30), &cancel, || ())).contains("did not end"));
        cancel.0.store(15, Ordering::Relaxed);
        let error = run(&long, Duration::from_secs(60), &cancel, || ()).expect_err("cancelled");
        assert_eq!(error.downcast::<Cancelled>().expect("cancelled").0, 15);
    }
}
