//! The cost of counting in a fault: the calls alone, in a tight loop, over the time to serve a
//! fault in a managed program.
//!
//! The calls are those of the one-page fault that makes most of them, on a mapping like the
//! engine's: `Counters::count_fault`, which `pagoda`'s `handler.rs` calls for every fault, of the
//! kinds that count most, and two for the time of clearing (`clear/huge.rs`). The clock is reported
//! apart, one read for each fault: its cost is the machine's matter, and the watchdog needs the
//! time of a fault anyway. Both are processor time, which other programs move little. This module
//! must never count less than the engine does.

use std::hint::black_box;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::ProgressBar;
use pagoda::stats::counters::{Counter, Counters};
use pagoda::stats::fault_kind::FaultKind;
use pagoda_core::page::HUGE_FRAME;
use pagoda_linux::process::thread::{cpu_ns, now_ns};
use serde_json::{Value, json};

use crate::measure::process::{Cancel, run as run_child};
use crate::measure::scratch::Scratch;
use crate::measure::stats::middle;
use crate::report::json::report;
use crate::report::table::{fill, grid};
use crate::{command, worker};

/// The limit of the program, which takes a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The most threads that serve faults.
const HANDLERS_MAX: usize = 4;

/// The options of the bench.
#[derive(Args, Debug)]
pub struct CountersArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: one round
    #[arg(long)]
    quick: bool,
    /// Rounds [default: 5, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
}

/// Runs `pagoda bench counters`.
pub fn run(args: &CountersArgs) -> anyhow::Result<ExitCode> {
    let rounds = args.rounds.map_or(if args.quick { 1 } else { 5 }, usize::from);
    let progress = command::progress(rounds as u64, "round")?;
    let report = report("counters", args.quick, measure(rounds, args.quick, &progress)?);
    progress.finish_and_clear();
    command::print(&report, args.json);
    Ok(ExitCode::SUCCESS)
}

/// The figures, medians of the rounds.
fn measure(rounds: usize, quick: bool, progress: &ProgressBar) -> anyhow::Result<Value> {
    let (program, cancel) = (command::this_program()?, Cancel::on_signals()?);
    let handlers = thread::available_parallelism().map_or(1, usize::from).clamp(2, HANDLERS_MAX);
    let calls = if quick { 1 << 18 } else { 1 << 22 };
    let [mut alone, mut at_once, mut clock, mut service] = [const { Vec::new() }; 4];
    let mut faults = 0;
    for _ in 0..rounds {
        let counters = Counters::private().context("mapping counters")?;
        alone.push(each_ns(1, calls, |at| count_fault(&counters, at))?);
        at_once.push(each_ns(handlers, calls, |at| count_fault(&counters, at))?);
        clock.push(each_ns(1, calls, |_| _ = black_box(now_ns()))?);
        let (us, count) = served(&program, quick, &cancel)?;
        service.push(us);
        faults = count;
        progress.inc(1);
    }
    let over = |ns: f64, us: f64| ns / us / 10.0;
    let counting: Vec<f64> = alone.iter().zip(&service).map(|(ns, us)| over(*ns, *us)).collect();
    let timing: Vec<f64> =
        counting.iter().zip(&clock).zip(&service).map(|((part, ns), us)| part + over(*ns, *us)).collect();
    Ok(json!({
        "counting_ns": middle(&alone),
        "counting_at_once_ns": middle(&at_once),
        "clock_ns": middle(&clock),
        "service_us": middle(&service),
        "counting_percent": middle(&counting),
        "timing_percent": middle(&timing),
        "faults": faults,
        "handlers": handlers,
        "rounds": rounds,
    }))
}

/// The tables for people.
pub fn table(report: &Value) -> String {
    let rows = [
        ["counting", "a fault, one thread", "{counting_ns:1s ns}"],
        ["counting", "a fault, {handlers} threads that do nothing else", "{counting_at_once_ns:1s ns}"],
        ["clock", "a fault, one read", "{clock_ns:1s ns}"],
        ["serving", "a fault, the median", "{service_us:1s us}"],
        ["counting", "serving", "{counting_percent:2s %}"],
        ["counting and clock", "serving", "{timing_percent:2s %}"],
    ];
    let rows = rows.map(|row| row.map(|cell| fill(cell, report)).into());
    let table = grid(["what", "of", "median (least-greatest)"], 2.., rows);
    format!("\n{table}\n\n") + &fill("{rounds} rounds, {faults} faults in the last\n", report)
}

/// The processor time of one call, with so many threads at once.
fn each_ns(threads: usize, calls: u64, call: impl Fn(u64) + Sync) -> anyhow::Result<f64> {
    let one = || {
        let begun = cpu_ns();
        (0..calls).for_each(&call);
        cpu_ns() - begun
    };
    let taken_ns = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        // All threads are joined before an error is returned: the scope panics for one that was
        // not.
        let ended: Vec<_> = started.into_iter().map(thread::ScopedJoinHandle::join).collect();
        ended.into_iter().sum::<Result<u64, _>>()
    });
    let taken_ns = taken_ns.map_err(|_| anyhow!("a thread that counted panicked"))?;
    Ok(taken_ns as f64 / (calls * threads as u64) as f64)
}

/// Counts as for a huge frame cleared in the fault, past the cache: no other one-page fault counts
/// more. It alternates with another kind that counts as much, so that not one histogram alone is in
/// the cache.
fn count_fault(counters: &Counters, at: u64) {
    let kind = if at.is_multiple_of(2) { FaultKind::Huge } else { FaultKind::Spilled };
    // Latencies as in a real run, from one to a hundred microseconds.
    let took_ns = 1000 + at * 997 % 99_000;
    counters.count_fault(kind, took_ns);
    counters.add(Counter::ClearedInFaultBytes, HUGE_FRAME as u64);
    counters.add(Counter::ClearedStreamingBytes, HUGE_FRAME as u64);
}

/// The median time of a fault of a program over its budget, in microseconds, and the number of
/// faults.
fn served(program: &str, quick: bool, cancel: &Cancel) -> anyhow::Result<(f64, u64)> {
    let scratch = Scratch::new()?;
    let file = scratch.file("stats.json");
    let touches = if quick { "5000" } else { "50000" };
    let stats = file.display().to_string();
    let run = [&command::pagoda(program), "run", "--memory", "64M", "--quiet", "--stats", &stats, "--"]
        .map(str::to_owned);
    let data =
        ["--data", "134217728", "--ratio", "3", "--passes", "1", "--zipf", touches, "--random", touches];
    let words = run.into_iter().chain(worker::words(program, "patterns"));
    let words: Vec<String> = words.chain(data.map(str::to_owned)).collect();
    run_child(&words, LIMIT, cancel, || ())?;
    let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
    let stats: Value = serde_json::from_slice(&text).context("the counters of the run")?;
    let median = stats.pointer("/latency_us/all/p50").and_then(Value::as_f64);
    let faults = stats.pointer("/counters/faults").and_then(Value::as_u64);
    let (Some(median), Some(faults)) = (median, faults) else {
        bail!("the program had no faults that were served; `pagoda doctor` says what this machine lacks");
    };
    Ok((median, faults))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed_counts_as_a_fault_does() {
        let counters = Counters::private().expect("a mapping");
        assert!(each_ns(2, 1000, |at| count_fault(&counters, at)).is_ok_and(|ns| ns > 0.0));
        let by_kind =
            [Counter::FaultsZero, Counter::FaultsHuge, Counter::FaultsStored, Counter::FaultsSpilled];
        assert_eq!(by_kind.map(|counter| counters.get(counter)), [1000; 4]);
        assert_eq!(counters.get(Counter::Faults), 2000);
        let bytes = [Counter::ClearedInFaultBytes, Counter::ClearedStreamingBytes];
        assert_eq!(bytes.map(|counter| counters.get(counter)), [2000 << 21; 2]);
        assert_eq!(counters.latencies().of_all().iter().sum::<u64>(), 2000);
        assert!(counters.get(Counter::FaultServiceNs) >= 2_000_000);
    }

    #[test]
    fn no_kind_of_fault_counts_more_than_what_is_timed() {
        let counts = |kind| {
            let counters = Counters::private().expect("a mapping");
            counters.count_fault(kind, 1);
            let fields = counters.snapshot().fields();
            fields.into_iter().filter(|(_, count)| *count > 0).count()
        };
        let timed = counts(FaultKind::Huge);
        assert_eq!(timed, counts(FaultKind::Spilled));
        assert!(FaultKind::ALL.into_iter().all(|kind| counts(kind) <= timed));
    }

    #[test]
    fn a_thread_that_panics_is_an_error_and_not_fast() {
        let error = each_ns(2, 10, |at| assert!(at < 5, "a bug")).expect_err("both have panicked");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
