//! `--progress`: one line on the terminal while the program runs.
//!
//! The terminal is the program's, too. So the line is drawn only while this process group has it,
//! and while it takes whole lines: a pager or an editor that has taken it for itself is left alone.
//! The line goes before anything else is said. This module must never write to anything but a
//! terminal.

use std::io::{IsTerminal, stderr, stdout};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagoda::stats::counters::Stats;
use pagoda_core::budget::thrashing::advice;
use pagoda_core::size::Bytes;
use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};

/// Two lines a second: rates of less say little.
const INTERVAL: Duration = Duration::from_millis(500);

/// When the line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal.
    Always,
    /// On a terminal, if the program's output goes elsewhere.
    Auto,
    /// Never.
    Never,
}

impl When {
    fn is_now(self) -> bool {
        stderr().is_terminal() && (self == Self::Always || self == Self::Auto && !stdout().is_terminal())
    }
}

/// The line.
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    before: Option<(Instant, Stats)>,
}

impl Progress {
    /// It is not drawn before the first look. None if it never is.
    pub fn new(when: When) -> Option<Self> {
        when.is_now().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_msg}");
            Self {
                bar: bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner())),
                begun: Instant::now(),
                before: None,
            }
        })
    }

    /// Draws the tree's present state, if it is time to.
    pub fn look(&mut self, now: &Stats) {
        let Some((at, before)) = &self.before else {
            self.before = Some((Instant::now(), *now));
            return;
        };
        if at.elapsed() < INTERVAL {
            return;
        }
        if is_ours() {
            self.bar.set_message(line(self.begun.elapsed(), at.elapsed(), before, now));
            self.bar.tick();
        }
        self.before = Some((Instant::now(), *now));
    }

    /// Removes the line.
    pub fn end(self) {
        if is_ours() {
            self.bar.finish_and_clear();
        }
    }
}

/// Whether a line may be drawn on the terminal now.
fn is_ours() -> bool {
    let is_in_front = tcgetpgrp(stderr()).is_ok_and(|group| group == getpgrp());
    is_in_front && tcgetattr(stderr()).is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON))
}

/// The line, between two looks that are `elapsed` apart, `since` the start.
fn line(since: Duration, elapsed: Duration, before: &Stats, now: &Stats) -> String {
    let [anon, budget, stored, lacks, held] =
        [now.anon_bytes, now.budget_bytes, now.stored_bytes, now.refault_distance_bytes, now.held_bytes]
            .map(Bytes::new);
    let faults = now.faults.saturating_sub(before.faults) as f64 / elapsed.as_secs_f64().max(f64::EPSILON);
    let waited_ns = now.refault_wait_ns.saturating_sub(before.refault_wait_ns);
    let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    let thrashing = match advice(budget, lacks, held, waited_ns, elapsed_ns) {
        Some(enough) => format!(", thrashing: {enough} would do"),
        None => String::new(),
    };
    let seconds = since.as_secs();
    format!(
        "pagoda: {anon} of {budget} resident, {stored} stored, {faults:.0} faults/s{thrashing}, {}:{:02}",
        seconds / 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_memory_faults_a_second_thrashing_and_time() {
        let at = |faults, waited_ms: u64| {
            crate::stats_with(Stats::default(), |stats| {
                stats.budget_bytes = 64 << 20;
                stats.anon_bytes = 60 << 20;
                stats.stored_bytes = 412 << 20;
                stats.held_bytes = 470 << 20;
                stats.refault_distance_bytes = 40 << 20;
                stats.faults = faults;
                stats.refault_wait_ns = waited_ms * 1_000_000;
            })
        };
        let half = Duration::from_millis(500);
        let calm = line(Duration::from_secs(7), half, &at(100, 0), &at(600, 10));
        assert_eq!(calm, "pagoda: 60 MiB of 64 MiB resident, 412 MiB stored, 1000 faults/s, 0:07");
        let thrashes = line(Duration::from_secs(613), half, &at(100, 0), &at(600, 200));
        assert!(thrashes.ends_with("faults/s, thrashing: 104 MiB would do, 10:13"), "{thrashes}");
        assert!(line(half, Duration::ZERO, &at(0, 0), &at(0, 0)).contains(" 0 faults/s"));
    }
}
