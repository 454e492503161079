//! The figures of the bench in JSON, whose keys other tools read (`table.rs` has the tables for
//! people). Pure.
//!
//! A missing figure is null and has a reason. Never makes up a number.

use std::collections::BTreeMap;

use anyhow::Context;
use pagoda_core::geometry::{Geometry, Scheme};
use pagoda_core::page::BasePage;
use serde::Serialize;
use serde_json::{Value, json};

use super::pattern::Pattern;
use super::rows::SideRows;
use super::sides::{AROUND, AROUND_IN_THREAD};
use crate::measure::stats::{Measured, middle};

/// Entries of a TLB; any number gives the same ratio.
const TLB_ENTRIES: u32 = 64;

/// Rows by name; a missing one is null, and `why` has its reason.
#[derive(Serialize)]
pub struct Group<T> {
    #[serde(flatten)]
    pub rows: BTreeMap<&'static str, Option<T>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub why: BTreeMap<&'static str, String>,
}

impl<T> Group<T> {
    pub fn of(
        rows: impl IntoIterator<Item = (&'static str, Option<T>)>,
        no: Option<(&'static str, &String)>,
    ) -> Self {
        let mut group = Self { rows: rows.into_iter().collect(), why: BTreeMap::new() };
        if let Some((name, why)) = no {
            group.rows.insert(name, None);
            group.why.insert(name, why.clone());
        }
        group
    }
}

/// Ratios by side.
pub type Ratios = BTreeMap<&'static str, Measured>;

/// The figures of each side over those of another in the same round.
pub fn ratios<'a>(sides: impl Iterator<Item = (&'static str, &'a [f64])>, over: &[f64]) -> Ratios {
    let ratio = |(side, rounds): (&'static str, &'a [f64])| {
        let ratios: Vec<f64> = rounds.iter().zip(over).map(|(of, over)| of / over).collect();
        Some((side, middle(&ratios)?))
    };
    sides.filter_map(ratio).collect()
}

/// Ratios for 16 MiB to the kernel's huge pages in the same round, from the times of each round by
/// size in MiB.
pub fn ratios_vs_thp(times: &BTreeMap<&'static str, Vec<Vec<f64>>>, sweep_mib: &[u64]) -> Ratios {
    let Some(at) = sweep_mib.iter().position(|mib| *mib == 16) else { return Ratios::default() };
    let of_size = |rounds: &Vec<Vec<f64>>| rounds.iter().map(|us| us[at]).collect::<Vec<f64>>();
    let of_16_mib: BTreeMap<_, _> = times.iter().map(|(side, rounds)| (*side, of_size(rounds))).collect();
    let Some(thp) = of_16_mib.get("kernel_thp") else { return Ratios::default() };
    ratios(of_16_mib.iter().map(|(side, us)| (*side, us.as_slice())), thp)
}

/// Fault-around at 64 KiB on a dense buffer.
pub fn fault_around(rows: &BTreeMap<&str, SideRows>) -> Option<Value> {
    let dense = |name| rows.get(name)?.finish()?.remove(Pattern::Dense.name());
    let (row, in_thread) = (dense(AROUND)?, dense(AROUND_IN_THREAD)?);
    Some(json!({
        "first_touch_gib_s": row.first_touch_gib_s,
        "faults": row.faults,
        "in_thread_first_touch_gib_s": in_thread.first_touch_gib_s,
    }))
}

/// The saving of the published geometry, computed for a buffer: there is no such machine at hand.
pub fn sv39(buffer: usize) -> anyhow::Result<Value> {
    let geometry = |base| Geometry::new(Scheme::Sv39, base).context("Sv39 has this base page");
    let (small, large) = (geometry(BasePage::K4)?, geometry(BasePage::K64)?);
    let table = |geometry: &Geometry| geometry.software_table_bytes(std::iter::once(0..buffer as u64)).get();
    let reach = |geometry: &Geometry| geometry.tlb_reach(TLB_ENTRIES).get() as f64;
    Ok(json!({
        "table_bytes_4k": table(&small),
        "table_bytes_64k": table(&large),
        "tlb_reach_ratio": reach(&large) / reach(&small),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_to_huge_pages_is_that_of_16_mib_in_the_same_round() {
        // The second round was slow on all sides.
        let times = BTreeMap::from([
            ("kernel_thp", vec![vec![1.0, 100.0], vec![1.0, 1000.0], vec![1.0, 200.0]]),
            ("pagoda", vec![vec![9.0, 25.0], vec![9.0, 260.0], vec![9.0, 48.0]]),
        ]);
        let ratios = ratios_vs_thp(&times, &[4, 16]);
        let pagoda = Measured { median: 0.25, least: 0.24, most: 0.26 };
        assert_eq!(ratios, BTreeMap::from([("kernel_thp", Measured::once(1.0)), ("pagoda", pagoda)]));
        assert!(ratios_vs_thp(&times, &[4, 64]).is_empty());
    }
}
