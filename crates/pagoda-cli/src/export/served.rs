//! The metrics of `pagoda serve`, from the files that its `--stats` names.
//!
//! A file that is missing, unreadable or old has the one sample `pagoda_serve_up` with 0: values of
//! a server that has ended must never be told as if it ran.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagoda_serve::stats::Stats;

use super::exposition::{Exposition, Kind};

/// A server writes its file each second: it has ended, or hangs, if the file is older than this.
const FRESH_FOR: Duration = Duration::from_secs(10);
/// A file with some hundred bytes for each of the VMs that a server takes at most is smaller.
const LONGEST_BYTES: u64 = 128 << 20;

/// What a file tells, by its path.
pub type Told = (String, Option<Stats>);

/// A family of all servers: its name behind `pagoda_serve_`, its kind, its help, and its value.
type Family = (&'static str, Kind, &'static str, fn(&Stats) -> u64);

const FAMILIES: [Family; 13] = [
    ("image_bytes", Kind::Gauge, "The length of the image.", |stats| stats.image_bytes),
    ("vms", Kind::Gauge, "VMs that are there now.", |stats| stats.vms_now),
    ("connections", Kind::Counter, "Connections that were accepted.", |stats| stats.connections),
    ("turned_away", Kind::Counter, "Connections beyond the most VMs.", |stats| stats.turned_away),
    ("restarts", Kind::Counter, "Handlers that were replaced.", |stats| stats.restarts),
    ("faults", Kind::Counter, "Faults that were answered.", |stats| stats.total.faults),
    ("stale_faults", Kind::Counter, "Faults on pages that had come meanwhile.", |stats| {
        stats.total.stale_faults
    }),
    ("filled_bytes", Kind::Counter, "Bytes that were filled with content.", |stats| stats.total.filled_bytes),
    ("zero_bytes", Kind::Counter, "Bytes that were filled with zeroes.", |stats| stats.total.zero_bytes),
    ("prefetched_bytes", Kind::Counter, "Bytes of both that no fault had asked for.", |stats| {
        stats.total.prefetched_bytes
    }),
    ("removed_bytes", Kind::Counter, "Bytes that VMs discarded.", |stats| stats.total.removed_bytes),
    ("refused_bytes", Kind::Counter, "Bytes that could not be read, and were refused.", |stats| {
        stats.total.refused_bytes
    }),
    ("put_off", Kind::Counter, "Fills that the kernel put off for a discard.", |stats| stats.total.put_off),
];

/// Reads the files, each path once.
pub fn read(paths: &[PathBuf]) -> Vec<Told> {
    let mut told: Vec<Told> = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        if told.iter().all(|(known, _)| *known != name) {
            told.push((name, read_one(path).ok()));
        }
    }
    told
}

fn read_one(path: &Path) -> io::Result<Stats> {
    let file = File::open(path)?;
    let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
    if age > FRESH_FOR {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut text = Vec::new();
    file.take(LONGEST_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Writes their families; none if no file was asked for.
pub fn write(to: &mut Exposition, told: &[Told]) {
    if told.is_empty() {
        return;
    }
    to.family("pagoda_serve_up", Kind::Gauge, "Whether a pagoda serve writes this file.");
    for (name, stats) in told {
        to.sample(&[("stats", name)], u8::from(stats.is_some()));
    }
    let running = || told.iter().filter_map(|(name, stats)| Some((name, stats.as_ref()?)));
    for (what, kind, help, value) in FAMILIES {
        to.family(&format!("pagoda_serve_{what}"), kind, help);
        for (name, stats) in running() {
            to.sample(&[("stats", name)], value(stats));
        }
    }
    let help = "So many of the faults of all VMs took no longer, from their message to their fill.";
    to.family("pagoda_serve_fault_duration_seconds", Kind::Gauge, help);
    for (name, stats) in running() {
        for (quantile, us) in [("0.5", stats.total.fault_p50_us), ("0.99", stats.total.fault_p99_us)] {
            if let Some(us) = us {
                to.sample(&[("stats", name), ("quantile", quantile)], us / 1e6);
            }
        }
    }
}
