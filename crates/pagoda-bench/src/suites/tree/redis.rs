//! A server that saves in the background while it is used: the latency of its clients meanwhile.
//!
//! The server, the keys and the requests are the same on every side; every value that is read is
//! compared. This module must never count a request whose answer was wrong: it ends with an error
//! instead.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use pagoda_core::size::Bytes;
use redis::Commands;
use serde_json::{Value, json};

use crate::kernel::{KernelSide, Split};
use crate::load::data::{Random, mix};
use crate::load::redis_client::{self, name, saving, set_all, shut_down};
use crate::load::tools::starts;
use crate::measure::histogram::Histogram;
use crate::measure::memory::descendants_bytes;
use crate::measure::process::{Cancel, Running};
use crate::measure::scratch::Scratch;
use crate::measure::stats::{middle, middle_of, round};
use crate::measure::turns::turns;
use crate::suites::budget::noted;
use crate::{Plan, pagoda_run, warm};

const LIMIT: Duration = Duration::from_secs(300);
const VALUE_WORDS: u64 = 256;
/// The least time of the load. After a save that ends sooner the load goes on, because percentiles
/// need that many requests.
const LOAD_TIME_MIN: Duration = Duration::from_secs(1);
/// Requests between two checks whether the save has ended.
const LOOK_EVERY: u64 = 256;
/// The limit of a save: a side that thrashes past it is reported as one that did not end.
const SAVE_LIMIT: Duration = Duration::from_secs(90);
/// The compression ratio of the server's memory, for the split of the kernel's side. Its values
/// have four to one, and its own data less. A device that fills up stalls the kernel, so rather too
/// little than too much.
const RATIO: f64 = 3.0;

/// The sides, in the order of the first round: Pagoda and the kernel in half of the native peak,
/// and Pagoda where memory suffices.
const SIDES: [&str; 4] = ["native", "pagoda", "pagoda, enough memory", "kernel"];

/// One run of one side.
#[derive(Clone, Copy)]
pub struct Sample {
    ops: f64,
    p99_ms: f64,
    peak_bytes: u64,
}

/// The number of runs of `measure`, for the progress bar.
pub fn runs(pairs: usize) -> usize {
    1 + SIDES.len() * (1 + pairs)
}

/// The peak of the native run before all rounds, and the budgets derived from it, in bytes.
#[derive(Clone, Copy)]
pub struct Memory {
    native_peak: u64,
    budget: u64,
    enough: u64,
}

/// Samples by the index of [`SIDES`].
pub type Samples = [Vec<Sample>; SIDES.len()];
pub type Failed = [Option<String>; SIDES.len()];

/// Runs everything. Gives the figures, and whether Pagoda's side failed.
pub fn measure(plan: &Plan, cancel: &Cancel) -> anyhow::Result<(Value, bool)> {
    let (mut samples, mut failed) = (Samples::default(), Failed::default());
    if let Err(error) = starts("redis-server") {
        failed[0] = Some(format!("{error:#}"));
        plan.progress.inc(runs(plan.pairs) as u64);
        return Ok((figures(&samples, &failed, None), false));
    }
    let bench = Bench { plan, cancel, keys: if plan.quick { 20_000 } else { 120_000 } };
    let native_peak = bench.native()?.peak_bytes;
    let of_peak = |bytes: u64| bytes.max(32 << 20) & !4095;
    let memory = Memory {
        native_peak,
        budget: of_peak(native_peak / 2),
        enough: of_peak(native_peak + native_peak / 5),
    };
    for number in 0..=plan.pairs {
        for side in turns(number, SIDES.len()) {
            if failed[side].is_some() {
                plan.step();
                continue;
            }
            let sample = match side {
                0 => bench.native(),
                1 => bench.pagoda(Bytes::new(memory.budget)),
                2 => bench.pagoda(Bytes::new(memory.enough)),
                _ => bench.kernel(Bytes::new(memory.budget), Bytes::new(native_peak)),
            };
            samples[side].extend(noted(sample, &mut failed[side])?.filter(|_| number > 0));
        }
    }
    let is_failed = failed[1].is_some() || failed[2].is_some();
    Ok((figures(&samples, &failed, Some(memory)), is_failed))
}

/// The medians of the sides that did not fail.
pub fn figures(samples: &Samples, failed: &Failed, memory: Option<Memory>) -> Value {
    let of = |side: usize, pick: fn(&Sample) -> f64| {
        middle_of(&samples[side], pick).filter(|_| failed[side].is_none())
    };
    let ops = |side| of(side, |sample| sample.ops);
    let p99_ms = |side| of(side, |sample| sample.p99_ms);
    let both = samples[0].iter().zip(&samples[2]);
    let ratios: Vec<f64> = both.map(|(native, enough)| native.ops / enough.ops).collect();
    let budget = memory.map(|memory| memory.budget);
    let over = |sample: &Sample| {
        sample.peak_bytes.saturating_sub(budget.unwrap_or_default()) as f64 / (1u64 << 20) as f64
    };
    let most_over = samples[1].iter().map(over).max_by(f64::total_cmp).filter(|_| failed[1].is_none());
    let mut figures = json!({
        "native_ops": ops(0), "pagoda_ops": ops(1), "enough_ops": ops(2), "kernel_ops": ops(3),
        "native_p99_ms": p99_ms(0), "p99_ms": p99_ms(1), "enough_p99_ms": p99_ms(2), "kernel_p99_ms": p99_ms(3),
        "ratio": middle(&ratios).filter(|_| failed[0].is_none() && failed[2].is_none()),
        "budget_exceeded_mib": most_over.map(round),
        "native_peak_bytes": memory.map(|memory| memory.native_peak),
        "budget_bytes": budget,
        "enough_bytes": memory.map(|memory| memory.enough),
    });
    let reasons: Vec<_> =
        SIDES.iter().zip(failed).filter_map(|(side, why)| Some((side, why.as_ref()?))).collect();
    if !reasons.is_empty() {
        figures["reasons"] = json!(reasons);
    }
    figures
}

struct Bench<'a> {
    plan: &'a Plan,
    cancel: &'a Cancel,
    keys: u64,
}

impl Bench<'_> {
    fn native(&self) -> anyhow::Result<Sample> {
        self.run(|server, _| server)
    }

    fn pagoda(&self, budget: Bytes) -> anyhow::Result<Sample> {
        self.run(|server, scratch| {
            pagoda_run(&self.plan.program, budget, &scratch.file("stats.json"), server)
        })
    }

    fn kernel(&self, budget: Bytes, data: Bytes) -> anyhow::Result<Sample> {
        let side =
            KernelSide::set_up(&Split::fitting(budget, data, RATIO)).inspect_err(|_| self.plan.step())?;
        let procs = side.procs().display().to_string();
        self.run(|server, _| {
            let join = ["sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", &procs];
            join.into_iter().map(str::to_owned).chain(server).collect()
        })
    }

    /// One server from its start to its end.
    fn run(&self, wrap: impl FnOnce(Vec<String>, &Scratch) -> Vec<String>) -> anyhow::Result<Sample> {
        let scratch = Scratch::new()?;
        let socket = scratch.file("redis.sock");
        let server = redis_client::server(scratch.path(), &socket);
        warm(Bytes::new(self.keys * VALUE_WORDS * 8 * 2));
        let mut server = Running::start(&wrap(server, &scratch))?;
        let sample = self.load(&socket, &mut server);
        self.plan.step();
        let sample = sample?;
        server.wait(LIMIT, self.cancel, || ())?;
        Ok(sample)
    }

    fn load(&self, socket: &Path, server: &mut Running) -> anyhow::Result<Sample> {
        let mut client = redis_client::connect_at(socket, LIMIT, server, self.cancel)?;
        let mut versions = vec![0u32; self.keys as usize];
        set_all(&mut client, (0..self.keys).map(|key| (key, value(key, 0))), self.cancel)?;
        let mut peak_bytes = descendants_bytes();
        let started: String = redis::cmd("BGSAVE").query(&mut client)?;
        if !started.starts_with("Background saving started") {
            bail!("the server does not save in the background");
        }
        let (mut random, mut times, begin) = (Random::new(5), Histogram::new(), Instant::now());
        let mut done = 0;
        loop {
            let key = random.below(self.keys);
            let version = &mut versions[key as usize];
            let start = Instant::now();
            if random.below(2) == 0 {
                *version += 1;
                client.set::<_, _, ()>(name(key), value(key, *version))?;
            } else if client.get::<_, Vec<u8>>(name(key))? != value(key, *version) {
                bail!("wrong data: key {key} is not its version {version}");
            }
            times.add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            done += 1;
            if done % LOOK_EVERY == 0 {
                self.cancel.check()?;
                peak_bytes = peak_bytes.max(descendants_bytes());
                let (saving, right) = saving(&mut client)?;
                if !saving && begin.elapsed() > LOAD_TIME_MIN {
                    if !right {
                        bail!("the save failed");
                    }
                    break;
                }
                if begin.elapsed() > SAVE_LIMIT {
                    bail!("the save did not end within {} s", SAVE_LIMIT.as_secs());
                }
            }
        }
        let ops = done as f64 / begin.elapsed().as_secs_f64();
        shut_down(client)?;
        Ok(Sample { ops, p99_ms: times.percentiles().p99 / 1000.0, peak_bytes })
    }
}

/// The first quarter is random, the rest repeats one word.
fn value(key: u64, version: u32) -> Vec<u8> {
    let mut random = Random::new(key << 32 | u64::from(version));
    let word = |i| if i < VALUE_WORDS / 4 { random.next() } else { mix(key) };
    (0..VALUE_WORDS).map(word).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::plain;

    fn samples(ops: [f64; 3]) -> Vec<Sample> {
        ops.map(|ops| Sample { ops, p99_ms: 1000.0 / ops, peak_bytes: 34 << 20 }).to_vec()
    }

    #[test]
    fn where_memory_suffices_requests_are_compared_with_native_ones_of_the_same_round() {
        let all = [
            samples([100.0, 10.0, 200.0]),
            samples([50.0, 50.0, 50.0]),
            samples([80.0, 10.0, 160.0]),
            samples([40.0, 40.0, 40.0]),
        ];
        let memory = Some(Memory { native_peak: 64 << 20, budget: 32 << 20, enough: 72 << 20 });
        let told = plain(figures(&all, &Failed::default(), memory));
        assert_eq!([&told["ratio"], &told["ratio_least"], &told["ratio_most"]], [1.25, 1.0, 1.25]);
        assert_eq!(
            [&told["enough_ops"], &told["enough_ops_least"], &told["enough_ops_most"]],
            [80.0, 10.0, 160.0]
        );
        assert_eq!([&told["enough_p99_ms"], &told["kernel_p99_ms"]], [12.5, 25.0]);
        assert_eq!([&told["pagoda_ops"], &told["kernel_ops"], &told["native_ops"]], [50.0, 40.0, 100.0]);
        assert_eq!(told["budget_exceeded_mib"], 2.0);
        let failed = [None, None, Some("it ended".to_owned()), None];
        let told = plain(figures(&all, &failed, memory));
        assert!(told["ratio"].is_null() && told["enough_ops"].is_null() && told["pagoda_ops"] == 50.0);
        assert_eq!(told["reasons"], json!([[SIDES[2], "it ended"]]));
    }
}
