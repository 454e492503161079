//! A server in memory, by what its pages are: the kernel's small and huge ones, and Pagoda's.
//!
//! The same server, keys and requests on every side; every value that is read is compared. It has 1.2 times the memory that
//! it needs, so that nothing is ever out. This module must never call a side huge pages whose heap has none, nor one small pages
//! that may have others. (Under `pagoda run` no program has huge pages: `pagoda_2m` is base pages of 2 MiB, of OS pages.)

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use rustix::thread::disable_transparent_huge_pages;
use serde::Serialize;

use super::super::budget::reason;
use super::super::data::{Random, mix};
use super::super::histogram::Histogram;
use super::super::process::{Cancel, Running};
use super::super::redis_client::{self, Client, PIPELINE, name};
use super::super::scratch::Scratch;
use super::super::stats::{median_of, round};
use super::super::warm;
use super::super::worker;
use super::Setup;
use super::report::{Ratios, ratios};

const LIMIT: Duration = Duration::from_secs(120);
const VALUE_BYTES: usize = 512;
/// What the server takes for a key beside its value.
const KEY_BYTES: u64 = 150;

/// The sides, in the order in which they take turns.
const SIDES: [&str; 4] = ["kernel_4k", "kernel_thp", "pagoda_64k", "pagoda_2m"];

/// Requests a second with 64 on their way, and the time of one alone.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    pub get_ops: f64,
    pub set_ops: f64,
    pub p50_ms: f64,
}

/// All sides.
#[derive(Default, Serialize)]
pub struct Redis {
    #[serde(flatten)]
    pub sides: BTreeMap<&'static str, Option<Figures>>,
    /// GET of `pagoda_64k` over `kernel_thp`.
    pub ratio_vs_thp: Option<f64>,
    /// GET of each side over `kernel_4k`, by rounds.
    pub get_ratio_vs_4k: BTreeMap<&'static str, f64>,
    pub get_ratio_vs_4k_spread: BTreeMap<&'static str, [f64; 2]>,
    pub keys: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub why: BTreeMap<&'static str, String>,
}

/// Steps for the progress bar.
pub fn steps(rounds: usize) -> u64 {
    (SIDES.len() * (rounds + 1)) as u64
}

/// Runs everything.
pub fn measure(setup: &Setup, cancel: &Cancel) -> anyhow::Result<Redis> {
    let keys = if setup.quick { 20_000 } else { 600_000 };
    let mut redis = Redis { keys, ..Redis::default() };
    let mut samples: BTreeMap<&'static str, Vec<Figures>> = BTreeMap::new();
    let need = Bytes::new(keys * (VALUE_BYTES as u64 + KEY_BYTES));
    for number in 0..=setup.rounds {
        for side in SIDES {
            if !redis.why.contains_key(side) {
                match (Bench { setup, cancel, keys, need }).run(side) {
                    Ok(figures) if number > 0 => samples.entry(side).or_default().push(figures),
                    Ok(_) => {}
                    Err(error) => {
                        redis.why.insert(side, reason(error)?);
                    }
                }
            }
            setup.progress.inc(1);
        }
    }
    for side in SIDES {
        let of = |pick: fn(&Figures) -> f64| {
            let all = samples.get(side).filter(|_| !redis.why.contains_key(side))?;
            median_of(all, pick).map(round)
        };
        let figures = || {
            Some(Figures {
                get_ops: of(|f| f.get_ops)?,
                set_ops: of(|f| f.set_ops)?,
                p50_ms: of(|f| f.p50_ms)?,
            })
        };
        redis.sides.insert(side, figures());
    }
    samples.retain(|side, _| !redis.why.contains_key(side));
    (redis.get_ratio_vs_4k, redis.get_ratio_vs_4k_spread) = get_ratios(&samples);
    let get = |side| redis.sides[side].map(|figures| figures.get_ops);
    redis.ratio_vs_thp = get("pagoda_64k").zip(get("kernel_thp")).map(|(ours, thp)| round(ours / thp));
    Ok(redis)
}

/// What each side serves over what the kernel's small pages do in the same round.
fn get_ratios(samples: &BTreeMap<&'static str, Vec<Figures>>) -> Ratios {
    let get = |rounds: &Vec<Figures>| rounds.iter().map(|figures| figures.get_ops).collect::<Vec<_>>();
    let all: BTreeMap<_, _> = samples.iter().map(|(side, rounds)| (*side, get(rounds))).collect();
    let Some(small) = all.get("kernel_4k") else { return Ratios::default() };
    ratios(all.iter().map(|(side, ops)| (*side, ops.as_slice())), small)
}

struct Bench<'a> {
    setup: &'a Setup,
    cancel: &'a Cancel,
    keys: u64,
    need: Bytes,
}

impl Bench<'_> {
    fn run(&self, side: &str) -> anyhow::Result<Figures> {
        let scratch = Scratch::new()?;
        let socket = scratch.file("redis.sock");
        let command = self.command(side, &scratch, &socket);
        warm(self.need);
        let mut server = Running::start(&command)?;
        let figures = self.load(side, &socket, &mut server)?;
        server.wait(LIMIT, self.cancel, || ())?;
        Ok(figures)
    }

    fn command(&self, side: &str, scratch: &Scratch, socket: &Path) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let base = match side {
            "pagoda_64k" => Some(BasePage::K64),
            "pagoda_2m" => Some(BasePage::M2),
            _ => None,
        };
        if let Some(base) = base {
            let budget = Bytes::new(self.need.get() * 6 / 5).max(Bytes::mib(64)).get().to_string();
            let base = base.to_string();
            let run =
                [&self.setup.program, "run", "--memory", &budget, "--base-page", &base, "--quiet", "--"];
            words.extend(run.map(str::to_owned));
        }
        match side {
            // The kernel may give 64 KiB pages to who doesn't ask.
            "kernel_4k" => words.extend(worker::words(&self.setup.program, "small-pages")),
            // Its allocator asks for huge pages.
            "kernel_thp" => words.extend(["env", "MALLOC_CONF=thp:always"].map(str::to_owned)),
            _ => {}
        }
        if side == "kernel_4k" {
            words.push("--".to_owned());
        }
        words.extend(redis_client::server(scratch.path(), socket));
        if side == "kernel_thp" {
            // Where everybody gets huge pages the server forbids them to itself, if nothing is said.
            words.extend(["--disable-thp", "no"].map(str::to_owned));
        }
        words
    }

    fn load(&self, side: &str, socket: &Path, server: &mut Running) -> anyhow::Result<Figures> {
        let mut client = Client::connect(socket, LIMIT, server, self.cancel)?;
        client.set_all((0..self.keys).map(pair), self.cancel)?;
        let pid = server.program().context("the server has ended")?;
        if side == "kernel_thp" {
            ensure_huge(pid, self.need)?;
        }
        if side == "kernel_4k" {
            ensure_small(pid)?;
        }
        let mut random = Random::new(3);
        let requests = self.keys / 2;
        let begin = Instant::now();
        client.set_all((0..requests).map(|_| pair(random.below(self.keys))), self.cancel)?;
        let set_ops = requests as f64 / begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        for first in (0..requests).step_by(PIPELINE) {
            self.cancel.check()?;
            let keys: Vec<u64> =
                (first..(first + PIPELINE as u64).min(requests)).map(|_| random.below(self.keys)).collect();
            for key in &keys {
                client.send(&[b"GET", &name(*key)])?;
            }
            client.flush()?;
            for key in keys {
                ensure!(client.bulk()? == value(key), "wrong data: key {key}");
            }
        }
        let get_ops = requests as f64 / begin.elapsed().as_secs_f64();
        let mut times = Histogram::new();
        for _ in 0..requests.min(20_000) {
            let key = random.below(self.keys);
            let begin = Instant::now();
            client.ask(&[b"GET", &name(key)])?;
            let content = client.bulk()?;
            times.add(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
            ensure!(content == value(key), "wrong data: key {key}");
        }
        client.ask(&[b"SHUTDOWN", b"NOSAVE"])?;
        Ok(Figures { get_ops, set_ops, p50_ms: times.percentiles().p50 / 1000.0 })
    }
}

/// Hidden: the bench starts the server by this, so that all its pages are small whatever the machine's setting.
#[derive(Args, Debug)]
pub struct SmallPagesArgs {
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Becomes the program, which gets OS pages alone.
pub fn become_small(args: &SmallPagesArgs) -> anyhow::Error {
    if let Err(error) = disable_transparent_huge_pages(true) {
        return anyhow::Error::new(error).context("forbidding large pages");
    }
    let [program, arguments @ ..] = args.command.as_slice() else { return anyhow!("an empty command") };
    let error = Command::new(program).args(arguments).exec();
    anyhow::Error::new(error).context(format!("starting {program}"))
}

/// Checks that the kernel gives it OS pages alone.
fn ensure_small(pid: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    ensure!(!may_have_large(&text), "the server may have pages larger than 4 KiB");
    Ok(())
}

/// By the status of a process.
fn may_have_large(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("THP_enabled:")).any(|value| value.trim() == "1")
}

/// Checks that half of what the server holds is in huge pages.
fn ensure_huge(pid: u32, need: Bytes) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    if kib << 10 < need.get() / 2 {
        bail!(
            "the server has {} in huge pages of {need}: nobody asked for them, or there were none",
            Bytes::new(kib << 10)
        );
    }
    Ok(())
}

fn pair(key: u64) -> (u64, Vec<u8>) {
    (key, value(key))
}

fn value(key: u64) -> Vec<u8> {
    let words = (0..VALUE_BYTES / 8).map(|word| mix(key << 8 | word as u64));
    words.flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_compared_with_those_of_the_same_round() {
        let figures = |get_ops| Figures { get_ops, set_ops: 1.0, p50_ms: 1.0 };
        let mut samples = BTreeMap::from([
            ("kernel_4k", vec![figures(100.0), figures(50.0), figures(80.0)]),
            ("pagoda_64k", vec![figures(150.0), figures(100.0), figures(80.0)]),
        ]);
        let (ratios, spreads) = get_ratios(&samples);
        assert_eq!((ratios["pagoda_64k"], spreads["pagoda_64k"]), (1.5, [1.0, 2.0]));
        samples.remove("kernel_4k");
        assert_eq!(get_ratios(&samples), Ratios::default());
    }

    #[test]
    fn only_who_was_forbidden_large_pages_is_called_small() {
        assert!(may_have_large("Threads:\t1\nTHP_enabled:\t1\n"));
        assert!(!may_have_large("Threads:\t1\nTHP_enabled:\t0\n") && !may_have_large("Threads:\t1\n"));
    }
}
