//! The peaks of a whole tree: how much its processes held together, sampled from outside many times
//! a second.
//!
//! Each process keeps its own peaks, but those of several come at different times and have no sum.
//! So a thread of `pagoda run` adds up their memory at the moment. A peak between two looks is
//! missed, except that of a single process, which that one saw itself; a process holds its memory
//! for longer than that as a rule. The same thread draws the line of `--progress`, frees the places
//! of processes that have ended, and sees whether the program was replaced by one that can't be
//! managed. It must never hold up the end of a run.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use pagoda::stats::counters::{Counter, Kind, Stats};
use pagoda::tree::Tree;

use super::progress::Progress;

/// Forty looks a second, some microseconds each: as often as the processes themselves look when
/// nothing happens.
const INTERVAL: Duration = Duration::from_millis(25);

/// Every so many looks it checks of each process whether it is still there, and samples the memory
/// of processes that don't publish theirs.
const LOOKS_BETWEEN_SWEEPS: u32 = 8;

/// The executable of the first process, as of when it last became a member of the tree: a program
/// that can't be managed never does.
#[derive(Default)]
struct Executable {
    execs: u64,
    joined_as: Option<PathBuf>,
    now: Option<PathBuf>,
}

impl Executable {
    /// Looks at process `pid`, which has joined `execs` times more. One that has ended has none,
    /// and the last known holds.
    fn look(&mut self, pid: u64, execs: u64) {
        let Ok(now) = std::fs::read_link(format!("/proc/{pid}/exe")) else { return };
        if self.execs != execs || self.joined_as.is_none() {
            (self.execs, self.joined_as) = (execs, Some(now.clone()));
        }
        self.now = Some(now);
    }

    fn is_replaced(&self) -> bool {
        self.now != self.joined_as
    }
}

/// The peaks of the tree so far.
#[derive(Default)]
pub struct Peaks {
    /// Whether the first process executed another program, which never said that it is managed,
    /// when it was last seen.
    pub replaced: bool,
    anon_bytes: u64,
    stored_bytes: u64,
    store_memory_bytes: u64,
    spilled_bytes: u64,
    remote_bytes: u64,
    copied_on_write_bytes: u64,
    /// All gauges at the moment when most was held.
    at_peak: Stats,
}

impl Peaks {
    fn look(&mut self, now: &Stats) {
        self.anon_bytes = self.anon_bytes.max(now.anon_bytes);
        self.stored_bytes = self.stored_bytes.max(now.stored_bytes);
        self.store_memory_bytes = self.store_memory_bytes.max(now.store_memory_bytes);
        self.spilled_bytes = self.spilled_bytes.max(now.spilled_bytes);
        self.remote_bytes = self.remote_bytes.max(now.remote_bytes);
        self.copied_on_write_bytes = self.copied_on_write_bytes.max(now.copied_on_write_bytes);
        if now.held_bytes >= self.at_peak.held_bytes {
            self.at_peak = *now;
        }
    }

    /// The tree's totals with the tree's peaks, and whether its gauges are those of the peak: at
    /// the end of a single process its own last ones say more.
    pub fn complete(&self, mut totals: Stats) -> (Stats, bool) {
        totals.anon_peak_bytes = totals.anon_peak_bytes.max(self.anon_bytes);
        totals.stored_peak_bytes = totals.stored_peak_bytes.max(self.stored_bytes);
        totals.store_memory_peak_bytes = totals.store_memory_peak_bytes.max(self.store_memory_bytes);
        totals.spilled_peak_bytes = totals.spilled_peak_bytes.max(self.spilled_bytes);
        totals.remote_peak_bytes = totals.remote_peak_bytes.max(self.remote_bytes);
        totals.copied_on_write_peak_bytes = totals.copied_on_write_peak_bytes.max(self.copied_on_write_bytes);
        if self.at_peak.held_bytes > totals.held_peak_bytes {
            totals.held_peak_bytes = self.at_peak.held_bytes;
            totals.unmanaged_at_peak_bytes = self.at_peak.unmanaged_bytes;
        }
        if totals.processes <= 1 {
            return (totals, false);
        }
        let (last, at_peak) = (totals.fields(), self.at_peak.fields());
        let of = |counter: Counter| match counter.kind() {
            Kind::Gauge => at_peak[counter as usize].1,
            _ => last[counter as usize].1,
        };
        (Stats::of(of), true)
    }
}

/// The thread that looks.
pub struct Sampler {
    end: Sender<()>,
    thread: JoinHandle<Peaks>,
}

impl Sampler {
    /// Starts it; `None` if there can be no thread, and then the peaks are those of single
    /// processes. It takes no signal: its maker has blocked them all.
    pub fn start(tree: Tree, mut progress: Option<Progress>) -> Option<Self> {
        let (end, ended) = mpsc::channel();
        let body = move || {
            let mut peaks = Peaks::default();
            let mut executable = Executable::default();
            let mut looks = 0u32;
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(LOOKS_BETWEEN_SWEEPS) {
                    tree.sweep();
                    tree.watch_unmanaged();
                } else {
                    tree.sweep_quickly();
                    tree.watch_first_unmanaged();
                }
                let totals = tree.totals();
                peaks.look(&totals);
                progress.iter_mut().for_each(|line| line.look(&totals));
                if let Some(first) = tree.first() {
                    executable.look(first.owner_pid, first.execs);
                }
            }
            peaks.replaced = executable.is_replaced();
            progress.into_iter().for_each(Progress::end);
            peaks
        };
        let thread = std::thread::Builder::new().name("pagoda-sample".to_owned()).spawn(body).ok()?;
        Some(Self { end, thread })
    }

    /// Ends it, and returns its peaks.
    pub fn finish(self) -> Peaks {
        drop(self.end);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_those_of_the_sum_or_of_one_process_whichever_is_more() {
        let mut peaks = Peaks::default();
        let held = |held_bytes, anon_bytes, unmanaged_bytes| {
            crate::stats_with(Stats::default(), |stats| {
                stats.held_bytes = held_bytes;
                stats.anon_bytes = anon_bytes;
                stats.unmanaged_bytes = unmanaged_bytes;
                stats.own_bytes = held_bytes / 10;
                stats.copied_on_write_bytes = held_bytes / 20;
                stats.remote_bytes = held_bytes / 30;
            })
        };
        for look in [held(100, 50, 1), held(300, 60, 2), held(200, 80, 3)] {
            peaks.look(&look);
        }
        let own = crate::stats_with(held(1, 1, 1), |stats| {
            stats.processes = 2;
            stats.held_peak_bytes = 250;
            stats.anon_peak_bytes = 90;
            stats.faults = 7;
        });
        let (several, at_peak) = peaks.complete(own);
        assert!(at_peak);
        assert_eq!((several.held_peak_bytes, several.unmanaged_at_peak_bytes), (300, 2));
        assert_eq!((several.anon_peak_bytes, several.own_bytes, several.faults), (90, 30, 7));
        assert_eq!((several.copied_on_write_peak_bytes, several.remote_peak_bytes), (15, 10));
        let (one, at_peak) = peaks.complete(crate::stats_with(own, |stats| {
            stats.processes = 1;
            stats.held_peak_bytes = 400;
        }));
        assert!(!at_peak);
        assert_eq!((one.held_peak_bytes, one.own_bytes), (400, 0));
    }
}
