//! Clearing huge frames in different orders, side by side: the effect of the order on the first
//! touch of the target, on writing the frame, and on processes that write much memory at once.
//!
//! `orders` and `pressure` clear frames that stay in place (`clear/orders.rs`), without and with
//! cache-thrashing threads. `choice` lets threads clear them as an engine chooses
//! (`clear/choice.rs`). `fault` takes them from Pagoda's engine and from the kernel
//! (`clear/fault.rs`), and `base` takes base pages (`clear/base.rs`). `anon_w_seq` sets processes
//! beside each other and beside the kernel's huge pages (`clear/anon_w_seq.rs`).
//!
//! All memory is touched before it is measured. This module must never change a setting of the
//! machine: a machine without transparent huge pages is an error that says so.

mod anon_w_seq;
mod base;
mod choice;
mod fault;
mod frame;
mod orders;
mod shape;
pub mod table;
mod thrash;
pub mod writer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use indicatif::ProgressBar;
use pagoda_core::clear::{FrameSize, Order};
use pagoda_core::size::Bytes;
use pagoda_linux::mem::clear::Clearer;
use pagoda_linux::mem::huge_frames::HugeFrames;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::command;
use crate::measure::machine::{available_memory_bytes, last_level_cache_bytes};
use crate::measure::process::Cancel;
use crate::report::json::report;

/// Frames are taken in turn from this many times the last-level cache: at worst a sixteenth of the
/// written memory could still be cached.
const CYCLED_PER_CACHE: u64 = 16;
/// The limit of a short run, whatever the cache: the kernel clears it in a quarter of a second.
const QUICK_BYTES: u64 = 256 << 20;
/// The size of the cache where the kernel has no figure.
const CACHE_ASSUMED: u64 = 32 << 20;

/// The part of `--help` on the keys.
pub(crate) const KEYS: &str = "\
Keys of the JSON, medians of the rounds:
  orders.ORDER, pressure.ORDER  alone, and beside threads that thrash the cache; of ascending, converge, reverse-in-page, neighbourhood,
                              streaming: clear_us, first_touch_ns, first_touch_ratio_vs_ascending, write_all_us, total_us, user_s,
                              cleared_after_target_max, extents_max, bytes_in_fault, frames, targets (first, middle, random) and perf
                              (ipc, cache_miss_percent); if that is missing perf_reason says why
  orders.prezeroed, pressure.prezeroed  frames that were cleared ahead: taken_percent, first_touch_ns, write_all_us, clearing_cpu_us,
                              bytes_in_fault, and kernel_thp_write_all_us of the kernel's huge pages; clearing has a whole idle processor here,
                              where a manager's default is a tenth
  choice                      by clearing_at_once: streaming_us, neighbourhood_us, chosen_us, chosen_streaming_percent and
                              ratio_chosen_vs_better of the rounds that count
  fault                       from touch to return of 2 MiB: kernel_4k_us of one OS page, kernel_thp_us, pagoda_us and in_thread_us
                              cleared in the fault, pagoda_prezeroed_us and in_thread_prezeroed_us ahead, and over kernel_thp_us
                              ratio_vs_thp, ratio_in_thread_vs_thp, ratio_prezeroed_vs_thp, ratio_in_thread_prezeroed_vs_thp
  base                        base pages, by busy_threads: touch_us and whole_us of kernel, pagoda and in_thread, and with a frame that
                              is ready, pagoda_ready and in_thread_ready; ratio_ready, ratio_in_thread_ready; ready_cpu_us of
                              getting one ready; ready_contiguous_percent of the base pages that got one (root)
  anon_w_seq                  by processes, each with llc_bytes_per_process and area_bytes_per_process: kernel_thp_gib_s, and
                              ascending_gib_s, converge_gib_s, reverse_in_page_gib_s, neighbourhood_gib_s, streaming_gib_s, over
                              ascending ratio_converge_vs_ascending, ratio_reverse_in_page_vs_ascending,
                              ratio_neighbourhood_vs_ascending, ratio_streaming_vs_ascending, ratio_kernel_thp_vs_ascending; best, and
                              ratio_best_vs_kernel
  published                   of anon_w_seq where the order was proposed: processors, processes, llc_bytes_per_process, gain_percent; and
                              processes_for_its_share, the processes that have as little cache each here
  processors                  of this machine
  thrashers, llc_bytes, cycled_bytes, clock_ns, cached_kernel, streaming_kernel, rounds  the size of the run, and how this processor clears";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct ClearArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: few frames, short slots, one round
    #[arg(long)]
    quick: bool,
    /// Rounds that count, after one that is discarded [default: 7, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// A number of processes of anon-w-seq; can be given more than once [default: 1, 2, 4 and 8 for
    /// each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    processes: Vec<u16>,
}

/// The settings that all parts of a run share.
struct Setup {
    /// The path of this program.
    program: String,
    rounds: usize,
    /// Frames of each order and place of the target.
    frames_per_round: usize,
    /// The length of one slot of each side of anon-w-seq.
    slot: Duration,
    /// The numbers of processes of anon-w-seq.
    processes: Vec<usize>,
    /// The last-level cache of all processors.
    llc_bytes: u64,
    /// The frames that are cleared in turn.
    cycled_bytes: Bytes,
    /// The cost of reading the clock.
    clock_ns: f64,
    progress: ProgressBar,
}

/// Runs `pagoda bench clear`.
pub fn run(args: &ClearArgs) -> anyhow::Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rounds = args.rounds.map_or(if args.quick { 1 } else { 7 }, usize::from);
    let llc_bytes = last_level_cache_bytes().unwrap_or(CACHE_ASSUMED);
    let processes = anon_w_seq::processes(&args.processes, cores);
    let steps = (4 + choice::CROWDS + 2) * (rounds + 1) + processes.len();
    let setup = Setup {
        program: command::this_program()?,
        rounds,
        frames_per_round: if args.quick { 10 } else { 300 },
        slot: Duration::from_millis(if args.quick { 30 } else { 120 }),
        processes,
        llc_bytes,
        // At most a quarter of the available memory: the thrashers take some, too.
        cycled_bytes: Bytes::new((llc_bytes * CYCLED_PER_CACHE).min(if args.quick {
            QUICK_BYTES
        } else {
            available_memory_bytes() / 4
        })),
        clock_ns: orders::clock_ns(),
        progress: command::progress(steps as u64, "step")?,
    };
    let figures = setup.measure(cores, &Cancel::on_signals()?)?;
    setup.progress.finish_and_clear();
    command::print(&report("clear", args.quick, figures), args.json);
    Ok(ExitCode::SUCCESS)
}

/// The name of an order in the figures.
const fn name(order: Order) -> &'static str {
    match order {
        Order::Ascending => "ascending",
        Order::Converge => "converge",
        Order::ReverseInPage => "reverse-in-page",
        Order::Neighbourhood => "neighbourhood",
        Order::Streaming => "streaming",
    }
}

/// The processor time of this thread, system calls and faults included.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Frames of `bytes` in memory, each a huge page.
fn huge_frames(bytes: Bytes) -> anyhow::Result<HugeFrames> {
    let count = (bytes.as_usize() / FrameSize::HUGE.bytes()).max(2);
    let frames = HugeFrames::new(count).context("mapping huge frames")?;
    if !frames.are_huge().context("asking the page tables for huge pages")? {
        bail!(
            "the kernel gave OS pages for huge ones: /sys/kernel/mm/transparent_hugepage/enabled has to be madvise or \
             always, and memory not be too fragmented (/proc/sys/vm/compact_memory)"
        );
    }
    Ok(frames)
}

impl Setup {
    fn measure(&self, cores: usize, cancel: &Cancel) -> anyhow::Result<Value> {
        let part = |name: &'static str| self.progress.set_message(name);
        // One processor is left to the measured thread, if there is more than one.
        let thrashers = (cores - 1).max(1);
        part("orders");
        let (mut orders, perf_reason) = orders::measure(self, 0, cancel)?;
        part("pressure");
        let (mut pressure, _) = orders::measure(self, thrashers, cancel)?;
        pressure.insert("prezeroed", fault::prezeroed(self, thrashers, cancel)?);
        part("choice");
        let choice = choice::measure(self, cores, cancel)?;
        part("base");
        let base = base::measure(self, cancel)?;
        part("fault");
        let (fault, prezeroed) = fault::measure(self, cancel)?;
        orders.insert("prezeroed", prezeroed);
        part("anon-w-seq");
        let anon_w_seq = anon_w_seq::measure(self, cores, cancel)?;
        let clearer = Clearer::for_this_processor();
        let mut figures = json!({
            "orders": orders, "pressure": pressure, "choice": choice, "fault": fault, "base": base,
            "anon_w_seq": anon_w_seq, "published": anon_w_seq::published(self.llc_bytes), "processors": cores,
            "thrashers": thrashers,
            "llc_bytes": self.llc_bytes,
            "cycled_bytes": self.cycled_bytes.get(),
            "clock_ns": crate::measure::stats::round(self.clock_ns),
            "cached_kernel": format!("{:?}", clearer.cached()),
            "streaming_kernel": format!("{:?}", clearer.streaming()),
            "rounds": self.rounds,
        });
        if let Some(reason) = perf_reason {
            figures["perf_reason"] = reason.into();
        }
        Ok(figures)
    }
}

#[cfg(test)]
impl Setup {
    fn for_tests() -> Self {
        Self {
            program: String::new(),
            rounds: 1,
            frames_per_round: 2,
            slot: Duration::from_millis(30),
            processes: Vec::new(),
            llc_bytes: 1 << 20,
            cycled_bytes: Bytes::mib(8),
            clock_ns: 0.0,
            progress: ProgressBar::hidden(),
        }
    }
}
