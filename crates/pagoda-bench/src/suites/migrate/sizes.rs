//! `full` at several sizes beside QEMU: by default, into plain memory in huge pages, and by QEMU,
//! in turns.
//!
//! No side's memory is there in the turn of another: the largest size needs most of a machine. This
//! module must never keep a run whose content differs at the destination.

use anyhow::{Context, ensure};
use pagoda::migrate::Codec;
use pagoda_core::page::BasePage;
use pagoda_core::size::Bytes;
use serde_json::{Value, json};

use super::cases::{Case, digest_of_full};
use super::qemu::{Qemu, QemuRun};
use super::report::{figures_of, gib_s, qemu_figures, qemu_gib_s};
use super::trial::{self, Idle, Outcome};
use super::{Bench, Way, warm_huge};
use crate::measure::memory::bytes_of;
use crate::measure::stats::middle;
use crate::measure::turns::turns;

/// The least size.
pub const LEAST: Bytes = Bytes::mib(64);

/// The runs of one size that count.
pub struct Sized {
    pub memory: Bytes,
    pub pagoda: Vec<Outcome>,
    pub thp: Vec<Outcome>,
    /// None where there is no QEMU.
    pub qemu: Vec<QemuRun>,
}

impl Sized {
    /// The figures.
    pub fn figures(&self) -> Value {
        let of_qemu = |outcomes: &[Outcome]| {
            let pairs = outcomes.iter().zip(&self.qemu);
            middle(&pairs.map(|(ours, theirs)| gib_s(ours) / qemu_gib_s(theirs)).collect::<Vec<_>>())
        };
        json!({
            "pagoda": figures_of(&self.pagoda),
            "thp": figures_of(&self.thp),
            "qemu": (!self.qemu.is_empty()).then(|| qemu_figures(&self.qemu)),
            "ratio_vs_qemu": of_qemu(&self.pagoda),
            "thp_ratio_vs_qemu": of_qemu(&self.thp),
        })
    }
}

/// Fails if this machine can't hold twice the largest size.
pub fn check(largest: Option<Bytes>) -> anyhow::Result<()> {
    let most = largest.unwrap_or(LEAST);
    let available = bytes_of("/proc/meminfo", "MemAvailable:").context("no MemAvailable in /proc/meminfo")?;
    ensure!(
        most.get().saturating_mul(2) < available,
        "moving {most} takes twice as much memory, and {} are available; name smaller --sizes",
        Bytes::new(available)
    );
    Ok(())
}

/// Moves `memory` by all sides in turn. QEMU's first failure ends its part of the bench.
pub fn measure(bench: &Bench, memory: Bytes, qemu: &mut Result<Qemu, String>) -> anyhow::Result<Sized> {
    bench.progress.set_message(format!("full, {memory}"));
    let expected = digest_of_full(memory)?;
    let mut sized = Sized { memory, pagoda: Vec::new(), thp: Vec::new(), qemu: Vec::new() };
    for round in bench.numbers.clone() {
        for turn in turns(round, 3) {
            let counts = round > 0;
            match turn {
                0 => sized.pagoda.extend(Some(ours(memory, Way::DEFAULT)?).filter(|_| counts)),
                1 => sized.thp.extend(Some(ours(memory, Way::THP)?).filter(|_| counts)),
                _ => {
                    if let Ok(found) = qemu {
                        match found.run(Case::Full, memory, expected) {
                            Ok(run) => sized.qemu.extend(Some(run).filter(|_| counts)),
                            Err(error) => *qemu = Err(format!("{error:#}")),
                        }
                    }
                }
            }
            bench.progress.inc(1);
        }
    }
    Ok(sized)
}

fn ours(memory: Bytes, way: Way) -> anyhow::Result<Outcome> {
    let manager = Bench::manager(memory, BasePage::K64)?;
    let mut region = manager.region(memory).create()?;
    Case::Full.fill(&mut region);
    warm_huge(memory)?;
    trial::run(&region, way.zero, way.into, Codec::None, &mut Idle)
}
