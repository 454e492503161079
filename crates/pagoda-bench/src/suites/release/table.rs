//! The figures of the bench as tables for people. Pure. Never computes a figure.

use pagoda::ReleasePolicy;
use serde_json::Value;

use super::AGING_PERCENT;
use crate::report::table::{Column, fill, grid, table as text_table};

const COLUMNS: [Column; 13] = [
    ("close ms", "{close_ms_p50:1s}"),
    ("p99", "{close_ms_p99:1}"),
    ("extra", "{extra_ms:1}"),
    ("frames back", "{frames_back_ms:1s}"),
    ("stored back", "{stored_back_ms:1s}"),
    ("starter", "{starter_start_ms:1s}"),
    ("work", "{starter_work_ms:1s}"),
    ("CPU ms", "{cpu_ms:1s}"),
    ("in close", "{in_close_ms:2}"),
    ("lock wait", "{lock_wait_ms:2}"),
    ("queued", "{queued}"),
    ("inline", "{inline}"),
    ("early", "{early}"),
];

const ABOVE: &str = "{owners} owners of {owner_bytes:b} in base pages of {base_page_bytes:b}, {stored_percent} % stored, close at once; \
median (least-greatest) of {rounds} rounds";

const OTHERS: &str = "nothing stored: close {never_stored/close_ms_p50:1s}; starter alone: {starter_alone/start_ms:1s}, \
work {starter_alone/work_ms:1s}; all of them on {processors} processors (published: on a machine with 8 GB of memory, \
its processors not named)";

const ZRAM: &str = "killed with {stored_percent:1} % in zram: gone {kill_ms:1s}, all back {back_ms:1s}, starter {starter_start_ms:1s}, \
work {starter_work_ms:1s}; never swapped: gone {kill_never_swapped_ms:1s}";

const UNMAPPING: &str = "under pagoda run a munmap of {munmap_ms:1s} ms: longest fault of another thread \
{longest_fault_wait_beside_munmap_us:0s} us, alone {longest_fault_wait_alone_us:0s} us; exit {exit_spilled_ms:1s} ms";

const LAYOUT: [Column; 6] = [
    ("queued %", "{queued_percent:1}"),
    ("inline", "{inline}"),
    ("extra of one", "{extra_vs_one:2}"),
    ("in close of one", "{in_close_vs_one:2}"),
    ("close ms", "{close_ms:2s}"),
    ("stored back", "{stored_back_ms:1s}"),
];

const STORE: &str = "store: compresses {compress_gib_s:2} GiB/s ({compress_cpu_gib_s:2} by processor time), fetches 64 KiB in \
{fetch_us/p50:1} / {fetch_us/p99:1} us (p50 / p99), in thread {fetch_in_thread_us/p50:1} / {fetch_in_thread_us/p99:1} us, \
wastes {waste_percent:1} %";

const QUIET: &str = "others used {others_busy_percent:0} % of the processors, load average {load_average/0:1} to {load_average/1:1}";

/// The tables for people.
pub fn table(report: &Value) -> String {
    let policies = ReleasePolicy::ALL.map(ReleasePolicy::name);
    let rows = policies.map(|policy| ([policy.to_owned()], &report["policies"][policy]));
    let table = text_table(["policy"], &COLUMNS, rows);
    let header = AGING_PERCENT.map(|percent| format!("{percent} % stored"));
    let header = std::iter::once("one owner closes, ms".to_owned()).chain(header);
    let aging = policies.map(|policy| {
        let times = &report["aging"]["close_ms"][policy];
        let times = (0..AGING_PERCENT.len()).map(|at| fill(&format!("{{{at}:1}}"), times));
        std::iter::once(policy.to_owned()).chain(times).collect()
    });
    let aging = grid(header, 1.., aging);
    let zram = match &report["kernel_zram"] {
        Value::Null => fill("the kernel's zram did not run: {kernel_zram_reason}", report),
        zram => fill(ZRAM, zram),
    };
    let run = match &report["run_kill9_ms"] {
        Value::Null => "pagoda run did not run: {run_kill9_reason}",
        _ => "killed under pagoda run with {run_kill9_stored_percent:1} % stored: gone {run_kill9_ms:1s}",
    };
    let layouts: Vec<_> = layouts(report).collect();
    let layouts = text_table(["stored", "base page", "policy"], &LAYOUT, layouts);
    let unmapping = match &report["exit_spilled_ms"] {
        Value::Null => fill("a program that unmaps did not run: {exit_spilled_reason}", report),
        _ => fill(UNMAPPING, report),
    };
    let [above, others, run] = [ABOVE, OTHERS, run].map(|line| fill(line, report));
    let (store, quiet) = (fill(STORE, &report["store"]), fill(QUIET, &report["quiet"]));
    format!(
        "\n{above}\n\n{table}\n\n{others}\n{zram}\n{run}\n{unmapping}\n\n{aging}\n\n{layouts}\n\n{store}\n\n{quiet}\n"
    )
}

/// The rows of the layouts: order, base page and policy, and their figures.
fn layouts(report: &Value) -> impl Iterator<Item = ([String; 3], &Value)> {
    ["in_order", "shuffled", "rewritten"].into_iter().flat_map(move |order| {
        ["4K", "64K"].into_iter().flat_map(move |base| {
            ["one-at-a-time", "background", "spans"].into_iter().filter_map(move |policy| {
                let figures = report["layouts"].get(order)?.get(base)?.get(policy)?;
                Some(([order, base, policy].map(str::to_owned), figures))
            })
        })
    })
}
