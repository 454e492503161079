//! Two zones of 1:3 in a real engine, under the fair policy and under the one that it replaces.
//!
//! First half of the budget is written once: without pressure each zone gives its share. Then a
//! region of twice the budget is written and read from end to end, again and again, so that every
//! page is evicted and swapped in. If each zone gives in proportion to its size, evicted pages have
//! the same age in both. Every read is checked: this module must never report a run with a wrong
//! byte.

use std::time::Instant;

use anyhow::ensure;
use pagoda::frames::zones::{Place, ZoneStats, age_ratio};
use pagoda::{Bytes, Manager, ZonePolicy};
use serde_json::{Value, json};

use crate::measure::stats::round;

const ZONES: [(&str, Bytes); 2] = [("small", Bytes::mib(32)), ("large", Bytes::mib(96))];
const BUDGET_BYTES: usize = 128 << 20;
const OS_PAGE: usize = 4096;

/// The figures of one policy; `None` where this machine has no managers. The shares, and the error
/// of the worst zone in percent of its batch's part, are of the quiet half. All else is of the
/// streams: `shortages` are times no zone had a frame above its low watermark.
pub(super) fn run(policy: ZonePolicy, passes: u32) -> anyhow::Result<Option<Value>> {
    if !pagoda::userfaultfd_allows_managers() {
        return Ok(None);
    }
    let builder = Manager::builder().user_mode_only(true).tune(|tuning| tuning.zone_policy(policy));
    let builder =
        ZONES.iter().fold(builder, |builder, (name, bytes)| builder.zone(name, *bytes, Place::Local));
    let manager = builder.build()?;
    let zones = || -> Vec<ZoneStats> { manager.zones().into_iter().map(|(_, zone)| zone).collect() };

    let mut region = manager.region(Bytes::new(2 * BUDGET_BYTES as u64)).create()?;
    for offset in (0..BUDGET_BYTES / 2).step_by(OS_PAGE) {
        region.write_at(offset, &word(offset)).expect("written");
    }
    let quiet = zones();
    ensure!(quiet.len() == ZONES.len(), "the engine has {} zones", quiet.len());
    let (shares, error) = shares(&quiet);

    let before = manager.stats();
    let start = Instant::now();
    for pass in 0..=passes {
        for offset in (0..2 * BUDGET_BYTES).step_by(OS_PAGE) {
            if pass == 0 {
                region.write_at(offset, &word(offset)).expect("written");
            } else {
                let mut back = [0; 8];
                region.read_at(offset, &mut back).expect("read");
                ensure!(back == word(offset), "the page at {offset} came back other than it was written");
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = manager.stats();
    let given = |zones: &[ZoneStats]| zones.iter().map(|zone| zone.allocated.get()).sum::<u64>();
    let zones = zones();
    Ok(Some(json!({
        "shares_percent": shares.map(round),
        "share_error_percent": round(error),
        "resets": after.zones_resets - before.zones_resets,
        "shortages": after.zones_short - before.zones_short,
        "frames": (given(&zones) - given(&quiet)) / after.base_page_bytes,
        "age_ratio": round(age_ratio(&zones).unwrap_or(f64::NAN)),
        "mb_s": round(f64::from(passes + 1) * 2.0 * BUDGET_BYTES as f64 / 1e6 / seconds),
    })))
}

/// The word written to the page at `offset`.
fn word(offset: usize) -> [u8; 8] {
    (offset as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Each zone's part of the frames given, in percent, and the error of the worst in percent of its
/// batch's part.
fn shares(zones: &[ZoneStats]) -> ([f64; 2], f64) {
    let parts = |of: fn(&ZoneStats) -> u64| -> [f64; 2] {
        let sum: u64 = zones.iter().map(of).sum();
        std::array::from_fn(|zone| 100.0 * of(&zones[zone]) as f64 / sum as f64)
    };
    let given = parts(|zone| zone.allocated.get());
    let batches = parts(|zone| zone.high.get() - zone.low.get());
    let errors = given.iter().zip(batches).map(|(given, ideal)| 100.0 * (given - ideal).abs() / ideal);
    (given, errors.fold(0.0, f64::max))
}
