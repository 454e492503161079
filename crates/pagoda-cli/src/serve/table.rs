//! The table of `pagoda serve`: a row for each VM, and one for all together.
//!
//! This module must never compute a figure that the counts don't carry.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use pagoda_core::size::Bytes;
use pagoda_serve::stats::{GuestStats, Stats};

const HEADER: [&str; 11] = [
    "vm",
    "process",
    "memory",
    "faults",
    "p50 us",
    "p99 us",
    "first ms",
    "filled",
    "zero",
    "ahead",
    "discarded",
];

/// VMs that have a row; all are in the sum, and in `--stats`.
const ROWS_MOST: usize = 50;

/// The table, with a line break at each line's end.
pub fn render(stats: &Stats) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(HEADER);
    for vm in stats.vms.iter().take(ROWS_MOST) {
        table.add_row(row(&vm.vm.to_string(), vm));
    }
    table.add_row(row("all", &stats.total));
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!(
        "pagoda: {} of memory served, {} VMs now, {} connections, {} turned away, {} handlers replaced\n",
        Bytes::new(stats.image_bytes),
        stats.vms_now,
        stats.connections,
        stats.turned_away,
        stats.restarts
    );
    text.extend(table.lines().map(|line| line.trim_end().to_owned() + "\n"));
    if stats.total.refused_bytes > 0 {
        text += &format!(
            "pagoda: {} could not be read and were refused to VMs; get another copy of the image\n",
            Bytes::new(stats.total.refused_bytes)
        );
    }
    text
}

fn row(name: &str, vm: &GuestStats) -> [String; HEADER.len()] {
    let decimal = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    let bytes = |bytes| Bytes::new(bytes).to_string();
    let process = if vm.process == 0 { "-".to_owned() } else { vm.process.to_string() };
    [
        name.to_owned(),
        process,
        bytes(vm.memory_bytes),
        vm.faults.to_string(),
        decimal(vm.fault_p50_us),
        decimal(vm.fault_p99_us),
        decimal(vm.first_page_ms),
        bytes(vm.filled_bytes),
        bytes(vm.zero_bytes),
        bytes(vm.prefetched_bytes),
        bytes(vm.removed_bytes),
    ]
}
