//! The killed side: processes with as much stored memory are killed at once while another one
//! starts, under the kernel's zram and under `pagoda run`.
//!
//! Their memory is that of a trial's owners, page by page. The time of a process ends when it is
//! reaped; the time of all ends when their charges and their part of zram are freed. This module
//! must never leave a process, a group or swap behind.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;

use super::starter::{start_and_work, warm_for};
use super::trial::{RATIO, Trial};
use crate::command::pagoda;
use crate::kernel::{KernelSide, Split};
use crate::measure::process::{Cancel, Running};
use crate::measure::scratch::Scratch;
use crate::measure::stats::median;
use crate::worker;

/// The limit of filling and reclaiming.
const FILL_LIMIT: Duration = Duration::from_secs(120);
/// The limit until all memory is freed.
const BACK_LIMIT: Duration = Duration::from_secs(10);
/// All memory counts as freed when all but one in so many bytes is: the kernel charges in batches.
const BACK_SHARE: u64 = 64;

/// 64 pages: the kernel's `MEMCG_CHARGE_BATCH`.
const CHARGED_AHEAD_BYTES: u64 = 256 << 10;
/// The least data: with less, no budget of `pagoda run` is small enough.
const LEAST: Bytes = Bytes::mib(64);
/// The memory of a process beside its data: page tables by the data's size, and its own.
const TABLES_SHARE: u64 = 512;
const OWN: Bytes = Bytes::mib(1);

/// The side that holds the stored pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The kernel stores them in zram, by the limit of a memory group.
    Zram,
    /// No side stores: the same resident pages, and none swapped out.
    NeverSwapped,
    /// Pagoda stores them: each process under a `pagoda run` of its own.
    PagodaRun,
}

impl How {
    pub const ALL: [Self; 3] = [Self::Zram, Self::NeverSwapped, Self::PagodaRun];

    pub fn name(self) -> &'static str {
        match self {
            Self::Zram => "killed, zram",
            Self::NeverSwapped => "killed, never swapped",
            Self::PagodaRun => "killed, pagoda run",
        }
    }

    /// The base page, the unit that is stored or not.
    fn base(self) -> BasePage {
        if self == Self::PagodaRun { BasePage::default() } else { BasePage::K4 }
    }
}

/// The figures of killing them. Times count from when all killers were released.
pub struct Killed {
    /// The time of each process until it was reaped; under Pagoda `pagoda run` included.
    pub gone_ms: Vec<f64>,
    /// The time until all of their memory and their slots in zram were freed.
    pub back_ms: f64,
    /// The swapped-out part of their data when they were killed; under Pagoda its maximum.
    pub stored_percent: f64,
    pub starter_start_ms: f64,
    pub starter_work_ms: f64,
}

impl Killed {
    /// The median of the processes.
    pub fn gone_p50_ms(&self) -> f64 {
        median(&self.gone_ms).unwrap_or(0.0)
    }
}

/// As many processes as a trial has owners, each with as much memory.
pub struct Killing<'a> {
    pub trial: Trial,
    /// The path of this program.
    pub program: &'a str,
    pub cancel: &'a Cancel,
}

impl Killing<'_> {
    /// The data of each process.
    fn data(&self, how: How) -> Bytes {
        if how == How::PagodaRun { self.trial.owner.max(LEAST) } else { self.trial.owner }
    }

    /// Sets up, fills, kills and cleans up.
    pub fn run(&self, how: How) -> anyhow::Result<Killed> {
        // Dropped in the reverse order: the processes first.
        let scratch = Scratch::new()?;
        let side = match how {
            How::Zram | How::NeverSwapped => Some(KernelSide::set_up(&self.split(how))?),
            How::PagodaRun => None,
        };
        let empty = side.as_ref().map_or(Ok(0), KernelSide::held_bytes)?;
        let mut processes = Vec::new();
        for owner in 0..self.trial.owners {
            let command = self.command(how, owner, side.as_ref(), &scratch);
            processes.push(Running::start_held(&command)?);
        }
        for (owner, process) in processes.iter_mut().enumerate() {
            self.await_ready(process, &ready(&scratch, owner))?;
        }
        let swapped: u64 = processes.iter().map(Running::swapped_bytes).sum();
        let full = side.as_ref().map_or(Ok(0), KernelSide::held_bytes)?;
        warm_for(self.trial.owner);

        let barrier = &Barrier::new(processes.len() + 2);
        let (gone, back, starter) = thread::scope(|scope| {
            let killers: Vec<_> = processes
                .into_iter()
                .map(|process| {
                    scope.spawn(move || {
                        barrier.wait();
                        process.kill()
                    })
                })
                .collect();
            let starter = scope.spawn(|| {
                barrier.wait();
                start_and_work(self.trial.owner, || Ok(vec![0u64; self.trial.owner.as_usize() / 8]))
            });
            barrier.wait();
            let begin = Instant::now();
            let gone =
                killers.into_iter().map(|killer| killer.join().map_err(|_| anyhow!("a killer panicked"))?);
            let gone: anyhow::Result<Vec<Duration>> = gone.collect();
            let back = side.as_ref().map_or(Ok(()), |side| all_back(side, back_at(empty, full)));
            let back = back.map(|()| begin.elapsed());
            (gone, back, starter.join())
        });
        let (starter_start_ms, starter_work_ms) = starter.map_err(|_| anyhow!("the starter panicked"))??;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let stored = if how == How::PagodaRun { self.stored_at_most(&scratch)? } else { swapped };
        Ok(Killed {
            gone_ms: gone?.into_iter().map(ms).collect(),
            back_ms: ms(back?),
            stored_percent: 100.0 * stored as f64 / (self.data(how).get() * self.trial.owners as u64) as f64,
            starter_start_ms,
            starter_work_ms,
        })
    }

    /// A group limit that excludes the pages to be stored, and no limit of zram.
    fn split(&self, how: How) -> Split {
        let (data, owners) = (self.data(how).get(), self.trial.owners as u64);
        let stored = if how == How::Zram { self.stored_bytes(how) } else { 0 };
        let each = data - stored + data / TABLES_SHARE + OWN.get();
        Split::uncharged(Bytes::new(each * owners), Bytes::new(data * owners))
    }

    fn stored_bytes(&self, how: How) -> u64 {
        (self.data(how).get() as f64 * self.trial.stored_percent / 100.0) as u64
    }

    /// The budget of `pagoda run` by which about that much is stored: the resident pages, the
    /// packed rest, and a little for pages in eviction. The report has the resulting amount.
    fn budget(&self) -> Bytes {
        let stored = self.stored_bytes(How::PagodaRun);
        let takes = self.data(How::PagodaRun).get() - stored + (stored as f64 / RATIO) as u64;
        Bytes::new(takes + takes / 64 + (2 << 20))
    }

    fn command(&self, how: How, owner: usize, side: Option<&KernelSide>, scratch: &Scratch) -> Vec<String> {
        let mut command = Vec::new();
        let mut add = |words: &[&str]| command.extend(words.iter().map(|&word| word.to_owned()));
        if how == How::PagodaRun {
            let (budget, stats) = (self.budget().get().to_string(), stats(scratch, owner));
            let stats = stats.display().to_string();
            add(&[&pagoda(self.program), "run", "--memory", &budget, "--quiet", "--stats", &stats, "--"]);
        }
        add(&worker::words(self.program, "hold").each_ref().map(String::as_str));
        add(&["--data", &self.data(how).get().to_string(), "--owner", &owner.to_string()]);
        add(&[
            "--base-page",
            &how.base().to_string(),
            "--ready",
            &ready(scratch, owner).display().to_string(),
        ]);
        add(&["--stored-percent", &self.trial.stored_percent.to_string()]);
        if how == How::NeverSwapped {
            add(&["--never-stored"]);
        }
        if let Some(side) = side {
            add(&["--join", &side.procs().display().to_string()]);
        }
        command
    }

    fn await_ready(&self, process: &mut Running, ready: &Path) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !ready.exists() {
            self.cancel.check()?;
            if process.ended() {
                bail!("a process that was to be killed ended by itself: {}", process.errors());
            }
            ensure!(begin.elapsed() < FILL_LIMIT, "a process did not fill its memory within {FILL_LIMIT:?}");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The maximum that the stores of all processes held, by the files of `pagoda run`.
    fn stored_at_most(&self, scratch: &Scratch) -> anyhow::Result<u64> {
        let of = |owner| {
            let text =
                std::fs::read_to_string(stats(scratch, owner)).context("reading what pagoda run wrote")?;
            let stats: serde_json::Value = serde_json::from_str(&text)?;
            let stored = stats.pointer("/counters/stored_peak_bytes").and_then(serde_json::Value::as_u64);
            stored.context("pagoda run wrote no counters")
        };
        (0..self.trial.owners).map(of).sum()
    }
}

fn ready(scratch: &Scratch, owner: usize) -> PathBuf {
    scratch.file(&format!("ready-{owner}"))
}

fn stats(scratch: &Scratch, owner: usize) -> PathBuf {
    scratch.file(&format!("stats-{owner}.json"))
}

/// The charge that may remain once all is freed. The batch that each processor keeps for the next
/// charge stays the group's until another group needs it there.
fn back_at(empty: u64, full: u64) -> u64 {
    let processors = thread::available_parallelism().map_or(1, usize::from) as u64;
    empty + full.saturating_sub(empty) / BACK_SHARE + processors * CHARGED_AHEAD_BYTES
}

/// Waits until no more than `most` bytes are held.
fn all_back(side: &KernelSide, most: u64) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let held = side.held_bytes()?;
        if held <= most {
            return Ok(());
        }
        ensure!(begin.elapsed() < BACK_LIMIT, "{held} bytes of killed processes are not back");
        thread::sleep(Duration::from_micros(200));
    }
}
