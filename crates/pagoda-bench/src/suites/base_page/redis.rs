//! A server in memory, by the kind of its pages: the kernel's small and huge ones, and Pagoda's.
//!
//! The server, keys and requests are the same on every side. The timed requests are
//! redis-benchmark's, over TCP on loopback. Before it writes its own values, a client of ours reads
//! values and compares each. All sides but one ask the kernel for huge pages. Under Pagoda the
//! server has so much room that no page is ever swapped out and huge pages are never forbidden.
//! This module must never call a side huge pages if its heap has none, nor one small pages if it
//! may have others.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use rustix::thread::disable_transparent_huge_pages;
use serde::Serialize;
use serde_json::{Value, json};

use super::Setup;
use super::report::{Ratios, ratios};
use crate::command::pagoda;
use crate::load::data::{Random, mix};
use crate::load::redis_client::{self, PIPELINE, name, set_all};
use crate::measure::memory::bytes_of;
use crate::measure::process::{self, Cancel, Running};
use crate::measure::scratch::Scratch;
use crate::measure::stats::{median_of, round};
use crate::suites::budget::reason;
use crate::warm;
use crate::worker;

const LIMIT: Duration = Duration::from_secs(120);
const VALUE_BYTES: usize = 512;
/// The server's room under Pagoda beyond one and a half times its need, so that huge pages are
/// never forbidden.
const ROOM: Bytes = Bytes::mib(256);
/// The server's memory for a key beside its value.
const KEY_BYTES: u64 = 150;

/// The sides, in the order in which they take turns.
const SIDES: [&str; 4] = ["kernel_4k", "kernel_thp", "pagoda_64k", "pagoda_2m"];

/// Connections of redis-benchmark, and requests in flight on each: [`PIPELINE`] in all.
const CONNECTIONS: usize = 4;

/// Requests sent one at a time.
const ALONE: u64 = 20_000;

/// Requests a second with 64 in flight, and the median time of a GET sent alone.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    pub get_ops: f64,
    pub set_ops: f64,
    pub p50_ms: f64,
}

/// The number of steps for the progress bar.
pub fn steps(rounds: usize) -> u64 {
    (SIDES.len() * (rounds + 1)) as u64
}

/// Runs everything. A side that failed is null, and `why` has its reason.
pub fn measure(setup: &Setup, cancel: &Cancel) -> anyhow::Result<Value> {
    let keys = if setup.quick { 20_000 } else { 600_000 };
    let mut samples: BTreeMap<&'static str, Vec<Figures>> = BTreeMap::new();
    let mut why = BTreeMap::new();
    let need = Bytes::new(keys * (VALUE_BYTES as u64 + KEY_BYTES));
    for number in 0..=setup.rounds {
        for side in SIDES {
            if !why.contains_key(side) {
                match (Bench { setup, cancel, keys, need }).run(side) {
                    Ok(figures) if number > 0 => samples.entry(side).or_default().push(figures),
                    Ok(_) => {}
                    Err(error) => drop(why.insert(side, reason(error)?)),
                }
            }
            setup.progress.inc(1);
        }
    }
    samples.retain(|side, _| !why.contains_key(side));
    let of = |side: &str, pick: fn(&Figures) -> f64| median_of(samples.get(side)?, pick).map(round);
    let get = |side| of(side, |figures| figures.get_ops);
    let mut redis = json!({
        "keys": keys,
        "get_ratio_vs_4k": get_ratios(&samples),
        "ratio_vs_thp": get("pagoda_64k").zip(get("kernel_thp")).map(|(ours, thp)| round(ours / thp)),
    });
    for side in SIDES {
        let figures = || {
            let (set_ops, p50_ms) =
                (of(side, |figures| figures.set_ops)?, of(side, |figures| figures.p50_ms)?);
            Some(Figures { get_ops: get(side)?, set_ops, p50_ms })
        };
        redis[side] = json!(figures());
    }
    if !why.is_empty() {
        redis["why"] = json!(why);
    }
    Ok(redis)
}

/// The throughput of each side over that of the kernel's small pages in the same round.
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
        // The kernel gives a port that was just freed to no other program for a good while.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let command = self.command(side, &scratch, &socket, port);
        warm(self.need);
        let mut server = Running::start(&command)?;
        let figures = self.load(side, &socket, port, &mut server)?;
        server.wait(LIMIT, self.cancel, || ())?;
        Ok(figures)
    }

    fn command(&self, side: &str, scratch: &Scratch, socket: &Path, port: u16) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let asks = side != "kernel_4k";
        let base = match side {
            "pagoda_64k" => Some(BasePage::K64),
            "pagoda_2m" => Some(BasePage::M2),
            _ => None,
        };
        if let Some(base) = base {
            let budget = Bytes::new(self.need.get() * 3 / 2).saturating_add(ROOM).get().to_string();
            let base = base.to_string();
            let run = [
                &pagoda(&self.setup.program),
                "run",
                "--memory",
                &budget,
                "--base-page",
                &base,
                "--quiet",
                "--",
            ];
            words.extend(run.map(str::to_owned));
        }
        if asks {
            // The server's allocator asks for huge pages.
            words.extend(["env", "MALLOC_CONF=thp:always"].map(str::to_owned));
        } else {
            // The kernel may give 64 KiB pages to unadvised mappings.
            words.extend(worker::words(&self.setup.program, "small-pages"));
            words.push("--".to_owned());
        }
        words.extend(redis_client::server(scratch.path(), socket));
        // Of two ports on the command line the server takes the last.
        words.extend(["--bind", "127.0.0.1", "--port", &port.to_string()].map(str::to_owned));
        if asks {
            // Where all mappings get huge pages, the server disables them for itself by default.
            words.extend(["--disable-thp", "no"].map(str::to_owned));
        }
        words
    }

    fn load(&self, side: &str, socket: &Path, port: u16, server: &mut Running) -> anyhow::Result<Figures> {
        let mut client = redis_client::connect_at(socket, LIMIT, server, self.cancel)?;
        set_all(&mut client, (0..self.keys).map(|key| (key, value(key))), self.cancel)?;
        let pid = server.program().context("the server has ended")?;
        match side {
            "kernel_4k" => ensure_small(pid)?,
            _ => ensure_huge(pid, self.need)?,
        }
        self.compare(&mut client)?;
        let requests = self.keys / 2;
        let (get_ops, _) = self.benchmark("GET", port, requests, CONNECTIONS, PIPELINE / CONNECTIONS)?;
        let (_, p50_ms) = self.benchmark("GET", port, requests.min(ALONE), 1, 1)?;
        let (set_ops, _) = self.benchmark("SET", port, requests, CONNECTIONS, PIPELINE / CONNECTIONS)?;
        // The requests replaced existing keys; new ones would have needed more memory.
        let set: u64 = redis::cmd("DBSIZE").query(&mut client)?;
        ensure!(set == self.keys, "the server has {set} keys, and not {}", self.keys);
        redis_client::shut_down(client)?;
        Ok(Figures { get_ops, set_ops, p50_ms })
    }

    /// Reads values drawn at random, and compares each.
    fn compare(&self, client: &mut redis::Connection) -> anyhow::Result<()> {
        let (mut random, reads) = (Random::new(3), self.keys / 2);
        for first in (0..reads).step_by(PIPELINE) {
            self.cancel.check()?;
            let keys: Vec<u64> =
                (first..(first + PIPELINE as u64).min(reads)).map(|_| random.below(self.keys)).collect();
            let mut requests = redis::pipe();
            keys.iter().for_each(|key| _ = requests.get(name(*key)));
            let values: Vec<Vec<u8>> = requests.query(client)?;
            for (key, found) in keys.into_iter().zip(values) {
                ensure!(found == value(key), "wrong data: key {key}");
            }
        }
        Ok(())
    }

    /// Requests a second and their median time in milliseconds, by redis-benchmark with so many
    /// connections, and so many requests in flight on each.
    fn benchmark(
        &self,
        request: &str,
        port: u16,
        requests: u64,
        connections: usize,
        pipeline: usize,
    ) -> anyhow::Result<(f64, f64)> {
        let [port, keys, requests] = [u64::from(port), self.keys, requests].map(|number| number.to_string());
        let [value, connections, pipeline] =
            [VALUE_BYTES, connections, pipeline].map(|number| number.to_string());
        let options = [
            ("-h", "127.0.0.1"),
            ("-p", &port),
            ("-t", &request.to_lowercase()),
            ("-r", &keys),
            ("-n", &requests),
            ("-d", &value),
            ("-c", &connections),
            ("-P", &pipeline),
        ];
        let mut command = vec!["redis-benchmark".to_owned(), "--csv".to_owned()];
        command.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_owned()]));
        let output = process::run(&command, LIMIT, self.cancel, || ())?.output;
        figures_of(request, &output).with_context(|| format!("redis-benchmark printed {output:?}"))
    }
}

/// Requests a second and the median time in milliseconds, from redis-benchmark's CSV.
fn figures_of(request: &str, csv: &str) -> Option<(f64, f64)> {
    let mut lines = csv.lines().map(|line| line.split(',').map(|field| field.trim_matches('"')));
    let names: Vec<&str> = lines.next()?.collect();
    let row: Vec<&str> =
        lines.map(Iterator::collect).find(|row: &Vec<&str>| row.first() == Some(&request))?;
    let of = |name| row.get(names.iter().position(|other| *other == name)?)?.parse().ok();
    Some((of("rps")?, of("p50_latency_ms")?))
}

/// The hidden command by which the bench starts the server with small pages alone, whatever the
/// machine's setting.
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

/// Checks that the kernel gives a process OS pages alone.
fn ensure_small(pid: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    ensure!(!may_have_large(&text), "the server may have pages larger than 4 KiB");
    Ok(())
}

/// Whether a process may have huge pages, by its status.
fn may_have_large(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("THP_enabled:")).any(|value| value.trim() == "1")
}

/// Checks that half of the server's memory is in huge pages.
fn ensure_huge(pid: u32, need: Bytes) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let huge = Bytes::new(bytes_of(&path, "AnonHugePages:").with_context(|| format!("reading {path}"))?);
    ensure!(
        huge.get() >= need.get() / 2,
        "the server has {huge} in huge pages of {need}: nobody asked for them, or there were none"
    );
    Ok(())
}

fn value(key: u64) -> Vec<u8> {
    let words = (0..VALUE_BYTES / 8).map(|word| mix(key << 8 | word as u64));
    words.flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
#[path = "redis_test.rs"]
mod tests;
