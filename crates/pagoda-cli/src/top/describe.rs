//! The text of the line that is selected on a terminal, and of all lines below the table of
//! `--once`. Pure.
//!
//! This module must never know where the text is shown.

use pagoda_core::size::Bytes;

use super::rows::{BasePage, Group, Migration, Region, Row};

fn bytes(count: u64) -> String {
    Bytes::new(count).to_string()
}

/// The free memory, and the watermarks.
pub fn free(row: &Row) -> String {
    format!(
        "free {}, ready frames {}; min {}, low {}, high {}{}",
        bytes(row.free_bytes),
        bytes(row.ready_bytes),
        bytes(row.free_min_bytes),
        bytes(row.free_low_bytes),
        bytes(row.free_high_bytes),
        mark(row.free_bytes, row.free_low_bytes, row.free_high_bytes),
    )
}

/// The place of the free memory among the watermarks: reclaim starts below low and runs until high.
fn mark(free: u64, low: u64, high: u64) -> &'static str {
    if high == 0 {
        ""
    } else if free < low {
        ": below low"
    } else if free < high {
        ": below high"
    } else {
        ": above high"
    }
}

/// A line for each zone, by its number among those that were named: no counter has the name.
pub fn zones(row: &Row) -> impl Iterator<Item = String> {
    row.zones.iter().enumerate().map(move |(number, zone)| {
        format!(
            "zone {number} of {}: held {}, free {}; low {}, high {}{}",
            bytes(zone.bytes),
            bytes(zone.held_bytes),
            bytes(zone.free_bytes),
            bytes(zone.low_bytes),
            bytes(zone.high_bytes),
            mark(zone.free_bytes, zone.low_bytes, zone.high_bytes),
        )
    })
}

/// How many regions there are, behind other words; nothing of a tree of programs.
pub fn regions(group: &Group) -> String {
    match (group.regions_count, group.regions.len() as u64) {
        (0, _) => String::new(),
        (all, shown) if all > shown => format!(", {all} regions, the {shown} largest shown"),
        (all, _) => format!(", {all} regions"),
    }
}

/// Where a region is.
pub fn region(region: &Region) -> String {
    let end = region.start.saturating_add(region.bytes);
    format!("region {:#x}-{end:#x} of {}", region.start, bytes(region.bytes))
}

/// And where its content is.
pub fn region_held(region: &Region) -> String {
    format!(
        "resident {}, staged {}, stored {}",
        bytes(region.resident_bytes),
        bytes(region.staged_bytes),
        bytes(region.stored_bytes)
    )
}

/// The memory that a touch brings in there.
pub fn region_base(region: &Region) -> String {
    let BasePage { bytes: size, by_density, grown, shrunk } = region.base_page;
    let size = bytes(size);
    if by_density {
        format!("base page up to {size} by density (grown {grown}, shrunk {shrunk})")
    } else {
        format!("base page {size}")
    }
}

/// How it is being moved, in two lines.
pub fn migration(migration: &Migration) -> Vec<String> {
    let mut wire = format!("{} on the wire", bytes(migration.wire_bytes));
    if migration.recoveries > 0 {
        wire += &format!(
            ", connected again {} times after {:.1} ms without a connection",
            migration.recoveries, migration.waited_ms
        );
    }
    let Some(sender) = migration.sender else { return vec![format!("{}: {wire}", migration.state)] };
    let so_far = format!(
        "{}: {} rounds done, {} left, {wire}",
        migration.state,
        sender.rounds,
        bytes(sender.left_bytes)
    );
    let pace = sender.pace.map_or_else(
        || "pace not known before the first round is done".to_owned(),
        |pace| {
            let mut told = format!(
                "sent {}/s, written {}/s; downtime expected {:.1} ms",
                bytes(pace.sent_bytes_s),
                bytes(pace.written_bytes_s),
                pace.downtime_ms
            );
            if pace.delayed_faults > 0 {
                told += &format!(
                    "; writers slowed down by {} faults, {:.1} ms in all",
                    pace.delayed_faults, pace.delayed_ms
                );
            }
            told
        },
    );
    vec![so_far, pace]
}
