//! A program under `pagoda run` with most of its memory stored: others' faults while one of its
//! threads unmaps a large range, and its exit.
//!
//! The program measures itself; the bench only takes the time of its end. This module must never
//! count a fault that was over before the unmapping began.

use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use pagoda_core::size::Bytes;
use pagoda_linux::process::thread::now_ns;
use serde::{Deserialize, Serialize};

use super::trial::RATIO;
use crate::command::pagoda;
use crate::load::data::{PAGE_BYTES, PAGE_WORDS, Pages};
use crate::measure::process::{Cancel, Running};
use crate::measure::scratch::Scratch;
use crate::worker;

/// The limit of the program's run.
const LIMIT: Duration = Duration::from_secs(180);
/// The least data: with less, no budget of `pagoda run` is small enough.
const LEAST: Bytes = Bytes::mib(64);
/// The time for which faults are measured with nothing beside them, and the most beside.
const ALONE_NS: u64 = 50_000_000;
/// The part of the data that those faults touch at most, one in so many bytes.
const TOUCHED_SHARE: usize = 4;

/// The options of the program.
#[derive(Args, Debug)]
pub struct UnmapperArgs {
    /// Bytes of memory that it fills.
    #[arg(long)]
    data: u64,
    /// The file to write the figures to, right before it exits.
    #[arg(long)]
    report: PathBuf,
}

/// The program's own figures.
#[derive(Serialize, Deserialize)]
struct Told {
    unmapped_ms: f64,
    longest_beside_us: f64,
    longest_alone_us: f64,
    /// By the monotonic clock.
    exits_at_ns: u64,
}

/// The figures of one run.
pub struct Unmapping {
    pub unmapped_ms: f64,
    pub longest_beside_us: f64,
    pub longest_alone_us: f64,
    pub exit_ms: f64,
}

fn filled(pages: &Pages, bytes: u64) -> Vec<u64> {
    let count = bytes as usize / PAGE_BYTES;
    let mut memory = vec![0u64; count * PAGE_WORDS];
    let (data, _) = memory.as_chunks_mut::<PAGE_WORDS>();
    data.iter_mut().zip(0..).for_each(|(page, number)| pages.write(number, 0, page));
    memory
}

/// Touches fresh pages until told to stop or all are touched, and keeps the longest touch that
/// ended after `since`, in nanoseconds.
fn touch(memory: &mut [u64], stop: &AtomicBool, since: &AtomicU64) -> u64 {
    let mut longest = 0;
    for word in memory.iter_mut().step_by(PAGE_WORDS) {
        let begin = now_ns();
        *word = 1;
        let end = now_ns();
        if end >= since.load(Ordering::Acquire) {
            longest = longest.max(end - begin);
        }
        if stop.load(Ordering::Acquire) {
            break;
        }
    }
    longest
}

/// Measures faults beside `work`. Returns the longest in nanoseconds.
fn beside(words: usize, work: impl FnOnce()) -> u64 {
    let mut memory = vec![0u64; words];
    let (stop, since) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
    thread::scope(|scope| {
        let toucher = scope.spawn(|| touch(&mut memory, &stop, &since));
        // It runs by then.
        thread::sleep(Duration::from_millis(1));
        since.store(now_ns(), Ordering::Release);
        work();
        stop.store(true, Ordering::Release);
        toucher.join().unwrap_or(0)
    })
}

/// The program: unmaps beside faults, fills again, and exits.
pub fn run(args: &UnmapperArgs) -> anyhow::Result<ExitCode> {
    let pages = Pages::new(1, RATIO);
    let words = args.data as usize / 8 / TOUCHED_SHARE;
    let memory = filled(&pages, args.data);
    let alone = beside(words, || thread::sleep(Duration::from_nanos(ALONE_NS)));
    let mut unmapped_ns = 0;
    let longest = beside(words, || {
        let begin = now_ns();
        // So large that the allocator maps it by itself, and unmaps it now.
        drop(black_box(memory));
        unmapped_ns = now_ns() - begin;
    });
    let memory = filled(&pages, args.data);
    let us = |ns: u64| ns as f64 / 1e3;
    let told = Told {
        unmapped_ms: us(unmapped_ns) / 1e3,
        longest_beside_us: us(longest),
        longest_alone_us: us(alone),
        exits_at_ns: now_ns(),
    };
    let writing = || format!("writing {}", args.report.display());
    fs::write(&args.report, serde_json::to_string(&told)?).with_context(writing)?;
    // Its memory goes with the process.
    std::mem::forget(black_box(memory));
    Ok(ExitCode::SUCCESS)
}

/// Runs the program under `pagoda run`, with a budget that leaves `stored_percent` of its data
/// stored.
pub fn measure(
    program: &str,
    data: Bytes,
    stored_percent: f64,
    cancel: &Cancel,
) -> anyhow::Result<Unmapping> {
    let scratch = Scratch::new()?;
    let (report, data) = (scratch.file("unmapper.json"), data.max(LEAST));
    let stored = (data.get() as f64 * stored_percent / 100.0) as u64;
    let budget = data.get() - stored + (stored as f64 / RATIO) as u64 + data.get() / TOUCHED_SHARE as u64;
    let mut command: Vec<String> =
        [&pagoda(program), "run", "--memory", &budget.to_string(), "--quiet", "--"].map(str::to_owned).into();
    command.extend(worker::command(
        program,
        "unmap",
        [("--data", data.get().to_string()), ("--report", report.display().to_string())],
    ));
    Running::start(&command)?.wait(LIMIT, cancel, || ())?;
    let ended_ns = now_ns();
    let told = fs::read_to_string(&report).context("reading the figures of the program that unmaps")?;
    let Told { unmapped_ms, longest_beside_us, longest_alone_us, exits_at_ns } = serde_json::from_str(&told)?;
    let exit_ms = ended_ns.saturating_sub(exits_at_ns) as f64 / 1e6;
    Ok(Unmapping { unmapped_ms, longest_beside_us, longest_alone_us, exit_ms })
}
