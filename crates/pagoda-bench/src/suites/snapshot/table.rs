//! The figures as people read them. Pure.

use serde_json::Value;

use super::sides::Side;
use crate::report::table::{fill, grid};

const ABOVE: &str = "{working_set/mib:0} MiB of {working_set/of_mib} MiB in pieces of {working_set/piece_kib} KiB, touched in the order that \
was recorded; ms, median (least-greatest) of {rounds} rounds";

const BELOW: &str = "first byte: {first_byte_ms:3s} ms
recorded over demand by 4 KiB: {working_set/ratio_recorded_vs_demand_warm:2s} warm, \
{working_set/ratio_recorded_vs_demand_cold:3s} cold; over populated: {working_set/ratio_vs_populate:2s} warm, \
{working_set/ratio_vs_populate_cold:3s} cold, {working_set/ratio_vs_populate_private:2s} private and warm
image: {image/bytes:b} of {image/raw_bytes:b}, {image/ratio_vs_raw:3}
save: writers stopped for {save_pause_ms:1s} ms with {save/dirty_pages} pages of {save/of_mib} MiB left
restores: {restores/count} of one image hold {restores/resident_mib_each:1s} MiB each";

/// Keys of a peer, with their headings.
const OF_PEERS: [(&str, &str); 5] = [
    ("first page, ms", "first_page_ms"),
    ("working set, ms", "demand_ms"),
    ("recorded, ms", "recorded_ms"),
    ("a touch, us", "touch_p50_us"),
    ("99 %, us", "touch_p99_us"),
];

fn peers(report: &Value) -> String {
    let (mut rows, mut reasons) = (Vec::new(), String::new());
    for (name, key) in [("Firecracker", "firecracker"), ("Cloud Hypervisor", "cloud_hypervisor")] {
        let cell = |(_, figure)| fill(&format!("{{peers/{key}/{figure}:1s}}"), report);
        rows.push(std::iter::once(name.to_owned()).chain(OF_PEERS.map(cell)).collect());
        if let Some(reason) = report.pointer(&format!("/peers/{key}_reason")).and_then(Value::as_str) {
            reasons += &format!("\n{name}: {reason}");
        }
    }
    let header = std::iter::once("pagoda serve").chain(OF_PEERS.map(|(heading, _)| heading));
    grid(header, 1.., rows) + &reasons
}

/// For people.
pub fn table(report: &Value) -> String {
    let rows = Side::ALL.map(|side| {
        let cell = |how: &str| fill(&format!("{{working_set/{}_{how}_ms:1s}}", side.key()), report);
        vec![side.name().to_owned(), cell("warm"), cell("cold")]
    });
    let table = grid(["until the working set is touched", "in the page cache", "on the disk"], 1.., rows);
    format!("\n{}\n\n{table}\n\n{}\n\n{}\n", fill(ABOVE, report), peers(report), fill(BELOW, report))
}
