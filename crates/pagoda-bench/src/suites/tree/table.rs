//! The figures of the bench as tables for people. Pure. Never computes a figure.

use serde_json::Value;

use crate::report::table::{fill, grid};

/// The tables for people.
pub fn table(report: &Value) -> String {
    let header = ["tree", "native", "pagoda", "ratio", "in half", "over the half", "why not"];
    let fork = ["fork of {held_bytes:b}, ms", "{native:2}", "{pagoda:2}", "{ratio:2}", "-", "-", "{reason}"];
    let trees = [("spawn storm", "spawn_storm"), ("build", "build"), ("jvm", "jvm"), ("node", "node")];
    let trees = trees.map(|(name, key)| {
        let figures = [
            "{native_s:2}",
            "{pagoda_s:2}",
            "{ratio:2}",
            "{half_s:2}",
            "{half_exceeded_mib:1 MiB}",
            "{reason}",
        ];
        let cells = figures.into_iter().map(|cell| fill(cell, &report[key]));
        std::iter::once(format!("{name}, s")).chain(cells).collect()
    });
    let rows = std::iter::once(fork.map(|cell| fill(cell, &report["fork_ms"])).into()).chain(trees);
    let table = grid(header, 1..6, rows);
    let redis = &report["redis_bgsave"];
    let sides = [
        ["native", "{native_ops:2}", "{native_p99_ms:2}"],
        ["pagoda, 1.2 times the native peak", "{enough_ops:2}", "{enough_p99_ms:2}"],
        ["pagoda, half the memory", "{pagoda_ops:2}", "{p99_ms:2}"],
        ["memory group + zram, the same", "{kernel_ops:2}", "{kernel_p99_ms:2}"],
    ];
    let sides = sides.map(|side| side.map(|cell| fill(cell, redis)).into());
    let save = grid(["redis while it saves", "requests/s", "p99 ms"], 1.., sides);
    let mut text = format!("\n{table}\n\n{save}\n");
    if redis["ratio"].is_number() {
        let ratio = "redis, native requests over Pagoda's with 1.2 times the native peak: {ratio:2}\n";
        text += &fill(ratio, redis);
    }
    for reason in redis["reasons"].as_array().into_iter().flatten() {
        text += &fill("redis, {0}: {1}\n", reason);
    }
    text
}
