//! Restoring memory from an image: the first byte and a scattered working set, beside mmap and
//! reading, and the pause of saving.
//!
//! All sides touch the same places of the same memory in the same order, in turns (`sides.rs`):
//! once with the files in the kernel's page cache, once from the disk. VMs that `pagoda serve`
//! restores do, too (`peers`). Every word that is touched is compared. This module must never time
//! the making of the files.

pub mod peers;
mod save;
mod sides;
pub mod table;

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use pagoda::Bytes;
use serde_json::{Value, json};

use crate::command;
use crate::measure::process::{Cancel, Cancelled};
use crate::measure::stats::{Measured, median, middle, round};
use crate::measure::turns::turns;
use crate::report::json;
use peers::Peers;
use sides::{Files, Side};

/// Pieces of the working set, in bytes: they lie scattered, and each is touched whole.
pub const PIECE_BYTES: usize = 64 << 10;
/// The ratio of LZ4 for the memory, page by page.
const DATA_RATIO: f64 = 2.0;
/// Restores of one image at the same time.
const RESTORES: usize = 8;

/// The part of `--help` on the keys.
const KEYS: &str = "\
Keys of the JSON, medians of the rounds, with the least and the greatest in …_least and …_most:
  first_byte_ms               from the call that restores to the first byte, from the page cache, without a working set
  working_set                 mib of of_mib, scattered in pieces of piece_kib: the time from restoring or mapping until one word of each
                              4 KiB of them was touched, with the files in the page cache and on the disk: mmap_warm_ms and mmap_cold_ms
                              of the raw file, mapped shared; populate_warm_ms, populate_cold_ms the same with just these pieces
                              populated before; populate_private_warm_ms, populate_private_cold_ms of a private, writable mapping, as a
                              VM's memory is: its populated pieces are copies;
                              eager_warm_ms, eager_cold_ms where all of the raw file is read before; demand_4k_warm_ms,
                              demand_4k_cold_ms with a fault and a read of 4 KiB each, by this engine from an image that is not
                              compressed; image_warm_ms, image_cold_ms of an image without a working set; recorded_warm_ms,
                              recorded_cold_ms with one. ratio_recorded_vs_demand_warm, ratio_recorded_vs_demand_cold,
                              ratio_vs_populate and ratio_vs_populate_private (both in the page cache), and ratio_vs_populate_cold
                              are medians of the rounds' own
  image                       bytes of raw_bytes that LZ4 halves page by page (load/data.rs), in blocks of block_bytes: ratio_vs_raw
  save_pause_ms               how long the writers of a region are stopped while it is saved
  save                        that region: of_mib, with dirty_pages that were written since the last round
  restores                    count regions of one image at a time, each with its working set touched: resident_mib_each, by what the
                              process holds more
  peers                       of `pagoda serve` with a VMM of this bench's, image and working set in the page cache, the handler running
                              and nothing unpacked: firecracker, whose VM faults, and cloud_hypervisor, which asks for each page of
                              4 KiB. first_page_ms, from the connection to the first page; demand_ms, to the end of the working set
                              without prefetching, recorded_ms with the recorded set; ratio_recorded_vs_demand, the rounds' own;
                              touch_p50_us, touch_p99_us, percentiles of one touch without prefetching, for Firecracker of another
                              run where each brings 4 KiB. null if there is no userfaultfd or no `pagoda` beside this program:
                              firecracker_reason, cloud_hypervisor_reason, else missing, say why. published, on other machines
                              and other work: reap_speedup and faasnap_speedup, how many times faster a function starts with its
                              working set read ahead, and fewer_faults, how many times fewer there are
  rounds                      how many count, after one that is discarded";

/// The options of the bench.
#[derive(Args, Debug)]
#[command(after_long_help = KEYS)]
pub struct SnapshotArgs {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// A short run: little memory, one round
    #[arg(long)]
    quick: bool,
    /// The memory of the image; the working set is a sixteenth of it [default: 1G, quick: 128M]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Rounds that count, after one that is discarded [default: 5, quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
}

/// Milliseconds by side, warm and cold.
type Times = Vec<[Vec<f64>; 2]>;

/// Runs `pagoda bench snapshot`.
pub fn run(args: &SnapshotArgs) -> anyhow::Result<ExitCode> {
    command::needs_managers()?;
    let memory = args.memory.unwrap_or(Bytes::mib(if args.quick { 128 } else { 1024 }));
    let rounds = args.rounds.map_or(if args.quick { 1 } else { 5 }, usize::from);
    let cancel = Cancel::on_signals()?;
    let steps = 2 * Side::ALL.len() + peers::SIDES_COUNT + 2;
    let progress = command::progress(((rounds + 1) * steps + 1) as u64, "run")?;
    let pagoda = command::pagoda(&command::this_program()?);
    let figures = measure(memory, rounds, &pagoda, &progress, || cancel.check())?;
    progress.finish_and_clear();
    command::print(&json::report("snapshot", args.quick, figures), args.json);
    Ok(ExitCode::SUCCESS)
}

/// The figures of so many rounds.
fn measure(
    memory: Bytes,
    rounds: usize,
    pagoda: &str,
    progress: &ProgressBar,
    check: impl Fn() -> Result<(), Cancelled>,
) -> anyhow::Result<Value> {
    progress.set_message("files");
    let files = Files::make(memory, DATA_RATIO).context("making the memory and its images")?;
    progress.inc(1);
    let mut times: Times = vec![[Vec::new(), Vec::new()]; Side::ALL.len()];
    let (mut first_ms, mut pauses, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    let (mut peers, mut dirty_pages) = (Peers::new(&files, pagoda), 0);
    for number in 0..=rounds {
        let counts = number > 0;
        for is_cold in [false, true] {
            for side in turns(number, Side::ALL.len()) {
                check()?;
                progress.set_message(Side::ALL[side].name());
                let ms = files.touch(Side::ALL[side], is_cold)?;
                times[side][usize::from(is_cold)].extend(counts.then_some(ms));
                progress.inc(1);
            }
        }
        progress.set_message("VMs");
        for side in turns(number, peers::SIDES_COUNT) {
            check()?;
            ["image", "image.ws"].into_iter().try_for_each(|name| files.warm(name))?;
            peers.run(side, counts);
            progress.inc(1);
        }
        check()?;
        progress.set_message("first byte");
        let own: Result<Vec<f64>, _> = (0..5).map(|place| files.first_byte(place)).collect();
        first_ms.extend(median(&own?).filter(|_| counts));
        resident.extend(Some(files.resident_each(RESTORES)?).filter(|_| counts));
        progress.inc(1);
        progress.set_message("save");
        let pause = save::pause(&files, memory)?;
        dirty_pages = pause.dirty_pages;
        pauses.extend(counts.then_some(pause.ms));
        progress.inc(1);
    }
    let published = json!({ "reap_speedup": 3.7, "faasnap_speedup": 3.5, "fewer_faults": 91 });
    let mut peers = peers.json();
    peers.insert("published".to_owned(), published);
    Ok(json!({
        "first_byte_ms": middle(&first_ms),
        "working_set": working_set(&times, memory),
        "image": {
            "raw_bytes": memory.get(),
            "bytes": files.image_bytes,
            "block_bytes": files.block_bytes,
            "ratio_vs_raw": round(files.image_bytes as f64 / memory.get() as f64),
        },
        "save_pause_ms": middle(&pauses),
        "save": { "of_mib": memory.get() >> 20, "dirty_pages": dirty_pages },
        "restores": { "count": RESTORES, "resident_mib_each": middle(&resident) },
        "peers": peers,
        "rounds": rounds,
    }))
}

fn working_set(times: &Times, memory: Bytes) -> Value {
    let set = memory.get() / sides::SET_SHARE;
    let mut figures = json!({
        "mib": set as f64 / f64::from(1 << 20),
        "of_mib": memory.get() >> 20,
        "piece_kib": PIECE_BYTES >> 10,
    });
    for (side, times) in Side::ALL.iter().zip(times) {
        for (how, times) in ["warm", "cold"].into_iter().zip(times) {
            figures[format!("{}_{how}_ms", side.key())] = json!(middle(times));
        }
    }
    let of = |side: Side, is_cold: bool| &times[side as usize][usize::from(is_cold)];
    let ratio = |over: Side, is_cold: bool| {
        let both = of(Side::Recorded, is_cold).iter().zip(of(over, is_cold));
        let ratios: Vec<f64> = both.map(|(ours, theirs)| ours / theirs).collect();
        Measured::of(&ratios).map(|measured| measured.map(round))
    };
    figures["ratio_recorded_vs_demand_warm"] = json!(ratio(Side::Demand, false));
    figures["ratio_recorded_vs_demand_cold"] = json!(ratio(Side::Demand, true));
    figures["ratio_vs_populate"] = json!(ratio(Side::Populate, false));
    figures["ratio_vs_populate_cold"] = json!(ratio(Side::Populate, true));
    figures["ratio_vs_populate_private"] = json!(ratio(Side::Private, false));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::canned;
    use crate::report::keys::expect_told;

    #[test]
    fn every_side_reads_the_memory_and_every_key_is_told() {
        if let Err(error) = command::needs_managers() {
            return pagoda_linux::testing::skip::skip("restoring from images", error);
        }
        // The peers are measured by a test of `pagoda`, which is not there for this one.
        let none = "/nonexistent/pagoda";
        let figures = measure(Bytes::mib(16), 1, none, &ProgressBar::hidden(), || Ok(())).expect("measured");
        let report = json::report("snapshot", true, figures);
        expect_told("snapshot", KEYS, &report);
        expect_told("snapshot", KEYS, &canned("snapshot"));
        for peer in ["firecracker", "cloud_hypervisor"] {
            let reason = report["peers"][format!("{peer}_reason")].as_str().expect("a reason");
            assert!(report["peers"][peer].is_null() && reason.contains(none), "{reason}");
        }
        let text = table::table(&report);
        assert!(text.contains("1 MiB of 16 MiB") && Side::ALL.iter().all(|side| text.contains(side.name())));
    }
}
