//! The JSON that `--stats FILE` writes when the program has ended.
//!
//! Fields are only ever added. This module must never count anything itself.

use std::time::Duration;

use pagoda::frames::zones::{ZoneConfig, ZoneStats};
use pagoda::stats::counters::{Stats, Status};
use pagoda::stats::latencies::Latencies;
use pagoda_core::size::Bytes;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::latency::LatencyUs;
use crate::output_file::OutputFile;
use crate::run::budget::GroupStats;
use crate::run::kernel::Figures;
use crate::run::supervise::{End, Ended};

/// The content of `--stats` for a run. Sizes are bytes.
#[derive(Serialize)]
pub struct StatsFile {
    version: &'static str,
    command: Vec<String>,
    /// The program's own status; none if a signal ended it.
    exit_code: Option<u8>,
    /// The signal that ended it, if one did.
    signal: Option<i32>,
    /// The exit status of `pagoda run` itself.
    exit_status: u8,
    wall_seconds: f64,
    resident_peak_bytes: u64,
    /// `managed`, `released`, `failed`, `not started` or `unmanaged`.
    status: &'static str,
    /// Why the budget was not enforced, or not until the end.
    reason: Option<String>,
    /// The budget that was asked for; the counters have the one that was kept.
    budget_asked_bytes: u64,
    /// The control group that limits the program's memory; none without a memory controller.
    memory_group: Option<GroupStats>,
    /// Of all processes of the tree.
    counters: Option<Fields>,
    /// How long the faults of all processes took, by kind.
    latency_us: Option<LatencyUs>,
    /// Processes with a place in the tree at the end: the program itself, and its leftovers.
    processes: Vec<Process>,
    /// The zones of the budget, as they were named; none if it is not divided.
    zones: Vec<Zone>,
    /// `engine`, `kernel`, or `none` where the program ran without a budget.
    backend: &'static str,
    /// Of a run by the kernel's swap.
    kernel: Option<Figures>,
}

/// One zone of the budget, of all processes together.
#[derive(Serialize)]
struct Zone {
    name: String,
    bytes: u64,
    held_bytes: u64,
    free_bytes: u64,
    low_bytes: u64,
    high_bytes: u64,
    /// The bytes that it gave; of a remote zone those spilled there.
    allocated_bytes: u64,
    /// The bytes that reclaim moved out of its frames.
    evicted_bytes: u64,
}

/// One process of the tree.
#[derive(Serialize)]
pub struct Process {
    pid: u64,
    /// `managed`, `small` (watched, too small to need an engine), `released`, `failed` or
    /// `unmanaged`.
    status: &'static str,
    anon_bytes: u64,
    held_bytes: u64,
    /// Its share of the budget; 0 without an engine.
    share_bytes: u64,
}

impl Process {
    /// From its counters.
    pub fn new(counters: &Stats) -> Self {
        Self {
            pid: counters.owner_pid,
            status: Status::from_word(counters.status).name(),
            anon_bytes: counters.anon_bytes,
            held_bytes: counters.held_bytes,
            share_bytes: counters.share_bytes,
        }
    }
}

/// All counters by their names, in the order of their declaration.
struct Fields(Stats);

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.fields() {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

impl StatsFile {
    /// Of a program that has ended.
    pub fn new(command: Vec<String>, ended: Ended, wall: Duration, status: &'static str) -> Self {
        let (exit_code, signal) = match ended.end {
            End::Exited(code) => (Some(code), None),
            End::Killed(signal) => (None, Some(signal)),
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            command,
            exit_code,
            signal,
            exit_status: ended.end.status(),
            wall_seconds: wall.as_secs_f64(),
            resident_peak_bytes: ended.resident_peak_bytes,
            status,
            reason: None,
            budget_asked_bytes: 0,
            memory_group: None,
            counters: None,
            latency_us: None,
            processes: Vec::new(),
            zones: Vec::new(),
            backend: "none",
            kernel: None,
        }
    }
    /// With the zones that were named, as far as an engine had them.
    pub fn zones(mut self, named: &[ZoneConfig], counters: &Stats) -> Self {
        let zone = |(zone, stats): (&ZoneConfig, ZoneStats)| Zone {
            name: zone.name.clone(),
            bytes: stats.bytes.get(),
            held_bytes: stats.held.get(),
            free_bytes: stats.free.get(),
            low_bytes: stats.low.get(),
            high_bytes: stats.high.get(),
            allocated_bytes: stats.allocated.get(),
            evicted_bytes: stats.evicted.get(),
        };
        self.zones = named.iter().zip(ZoneStats::all(counters)).map(zone).collect();
        self
    }
    /// With the tree's counters and latencies, and its processes.
    pub fn counters(mut self, counters: Stats, latencies: &Latencies, processes: Vec<Process>) -> Self {
        self.backend = "engine";
        self.counters = Some(Fields(counters));
        self.latency_us = Some(LatencyUs::of(latencies));
        self.processes = processes;
        self
    }
    /// With the figures of a run by the kernel's swap.
    pub fn kernel(mut self, figures: Figures) -> Self {
        (self.backend, self.kernel) = ("kernel", Some(figures));
        self
    }
    /// With why the budget was not enforced.
    pub fn reason(mut self, reason: String) -> Self {
        self.reason = Some(reason);
        self
    }
    /// With the budget that was asked for, and the group that limits the program's memory.
    pub fn group(mut self, asked: Bytes, group: Option<GroupStats>) -> Self {
        (self.budget_asked_bytes, self.memory_group) = (asked.get(), group);
        self
    }
    /// With the exit status of `pagoda run` itself.
    pub fn exit_status(mut self, status: u8) -> Self {
        self.exit_status = status;
        self
    }
}

impl StatsFile {
    /// Replaces the file's content.
    pub fn write_to(&self, file: OutputFile) {
        file.write(|out| {
            serde_json::to_writer_pretty(&mut *out, self)?;
            out.write_all(b"\n")
        });
    }
}
