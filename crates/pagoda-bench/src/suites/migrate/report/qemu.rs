//! QEMU's figures, and ours by them. Pure.

use serde::Serialize;

use super::super::qemu::{QemuRun, QemuRuns};
use super::GIB;
use crate::load::data::PAGE_BYTES;
use crate::measure::stats::{Measured, median_of, middle_of, round};

/// What QEMU did in the same run.
#[derive(Serialize)]
pub struct QemuFigures {
    pub version: String,
    pub untouched: QemuCase,
    pub full: QemuCase,
}

/// One case.
#[derive(Serialize)]
pub struct QemuCase {
    pub total_ms: Measured,
    /// From before the destination listened.
    pub dest_faults: Measured,
    /// Of pages with content.
    pub gib_s: Measured,
    pub dest_rss: f64,
    pub wire_bytes: f64,
}

/// Ours by QEMU's.
#[derive(Serialize)]
pub struct QemuRatios {
    /// `untouched`: total time.
    pub untouched_to_qemu_time: f64,
    /// `full`: content in a second.
    pub full_to_qemu_rate: f64,
}

impl QemuFigures {
    /// None if no round was measured.
    pub fn new(runs: &QemuRuns) -> Option<Self> {
        Some(Self {
            version: runs.version.clone(),
            untouched: QemuCase::new(&runs.untouched)?,
            full: QemuCase::new(&runs.full)?,
        })
    }

    pub fn ratios(&self, untouched_ms: f64, full_gib_s: f64) -> QemuRatios {
        QemuRatios {
            untouched_to_qemu_time: round(untouched_ms / self.untouched.total_ms.median),
            full_to_qemu_rate: round(full_gib_s / self.full.gib_s.median),
        }
    }
}

impl QemuCase {
    fn new(runs: &[QemuRun]) -> Option<Self> {
        let gib_s = |run: &QemuRun| run.data_pages as f64 * PAGE_BYTES as f64 / GIB / run.total_ms * 1e3;
        Some(Self {
            total_ms: middle_of(runs, |run| run.total_ms)?,
            dest_faults: middle_of(runs, |run| run.dest_faults as f64)?,
            gib_s: middle_of(runs, gib_s)?,
            dest_rss: median_of(runs, |run| run.dest_rss_bytes as f64)?,
            wire_bytes: median_of(runs, |run| run.wire_bytes as f64)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(total_ms: f64, data_pages: u64) -> QemuRun {
        QemuRun { total_ms, dest_faults: 7, dest_rss_bytes: 1 << 20, wire_bytes: 10, data_pages }
    }

    #[test]
    fn figures_are_medians_and_ratios_are_ours_by_qemus() {
        let gib_pages = 1 << 18;
        let runs = QemuRuns {
            version: "7.2.22".to_owned(),
            untouched: vec![run(100.0, 0), run(900.0, 0), run(200.0, 0)],
            full: vec![run(500.0, gib_pages)],
        };
        let figures = QemuFigures::new(&runs).expect("rounds were measured");
        let untouched = (figures.untouched.total_ms.median, figures.untouched.gib_s.median);
        assert_eq!((untouched, figures.full.gib_s.median), ((200.0, 0.0), 2.0));
        let ratios = figures.ratios(10.0, 3.0);
        assert_eq!((ratios.untouched_to_qemu_time, ratios.full_to_qemu_rate), (0.05, 1.5));
        assert!(QemuFigures::new(&QemuRuns::default()).is_none());
    }
}
