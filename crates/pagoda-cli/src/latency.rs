//! Percentiles of how long faults took, by kind, as `pagoda top`, `--stats` and traces tell them.
//! Pure.

use pagoda::stats::fault_kind::FaultKind;
use pagoda::stats::latencies::Latencies;
use pagoda_core::time::latency;
use serde::Serialize;

/// In microseconds, at most an eighth too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

impl Percentiles {
    /// Of counts in the buckets of [`latency`]; none if nothing was counted.
    pub fn of(counts: &[u64]) -> Option<Self> {
        let us = |per_mille| latency::percentile(counts, per_mille).map(|ns| ns as f64 / 1000.0);
        Some(Self { p50: us(500)?, p99: us(990)?, p999: us(999)? })
    }
}

/// Of all faults and of each kind; null where there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencyUs {
    pub all: Option<Percentiles>,
    pub zero: Option<Percentiles>,
    pub huge: Option<Percentiles>,
    pub staged: Option<Percentiles>,
    pub stored: Option<Percentiles>,
    pub spilled: Option<Percentiles>,
    pub spurious: Option<Percentiles>,
}

impl LatencyUs {
    /// Of these histograms.
    pub fn of(latencies: &Latencies) -> Self {
        let of = |kind| Percentiles::of(latencies.of(kind));
        Self {
            all: Percentiles::of(&latencies.of_all()),
            zero: of(FaultKind::Zero),
            huge: of(FaultKind::Huge),
            staged: of(FaultKind::Staged),
            stored: of(FaultKind::Stored),
            spilled: of(FaultKind::Spilled),
            spurious: of(FaultKind::Spurious),
        }
    }

    /// Each kind that there was, by its name.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, Percentiles)> {
        let of = |kind: FaultKind| match kind {
            FaultKind::Zero => self.zero,
            FaultKind::Huge => self.huge,
            FaultKind::Staged => self.staged,
            FaultKind::Stored => self.stored,
            FaultKind::Spilled => self.spilled,
            FaultKind::Spurious => self.spurious,
        };
        let pairs = FaultKind::ALL.map(|kind| of(kind).map(|us| (kind.name(), us)));
        pairs.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_the_percentiles_of_its_own_faults() {
        let faults: Vec<(FaultKind, u64)> =
            FaultKind::ALL.into_iter().zip((1..).map(|at| at * 10_000)).collect();
        let us = LatencyUs::of(&Latencies::of_faults(&faults));
        for ((name, us), (kind, ns)) in us.kinds().zip(&faults) {
            let exact = *ns as f64 / 1000.0;
            assert_eq!((name, us.p50), (kind.name(), us.p999));
            assert!((exact..exact * 1.125).contains(&us.p50), "{name}: {us:?}");
        }
        let all = us.all.expect("faults");
        assert!((30.0..34.0).contains(&all.p50) && all.p99 >= 60.0, "{all:?}");
        let some = LatencyUs::of(&Latencies::of_faults(&faults[3..4]));
        assert_eq!(some.kinds().map(|(name, _)| name).collect::<Vec<_>>(), ["stored"]);
    }
}
