//! The figures of the bench as tables for people. Pure. Never computes a figure.

use serde_json::Value;

use crate::report::table::{Column, fill, members, table as text_table};

const COLUMNS: [Column; 8] = [
    ("native s", "{native:2}"),
    ("kernel s", "{kernel}"),
    ("pagoda s", "{pagoda}"),
    ("of kernel", "{ratio_kernel:2}"),
    ("of native", "{ratio_native:2}"),
    ("faults", "{faults}"),
    ("us a fault", "{us_per_fault:1}"),
    ("over", "{over_mib:1 MiB}"),
];

/// The tables for people.
pub fn table(report: &Value) -> String {
    let mut rows = Vec::new();
    for (name, figures) in members(report, "/programs") {
        for (part, says) in [("three_quarters", "3/4"), ("half", "1/2"), ("quarter", "1/4")] {
            let Some(at) = figures.get(part) else { continue };
            let mut row = at["pagoda"].clone();
            for (key, value) in [("ratio_kernel", &at["ratio_kernel"]), ("ratio_native", &at["ratio_native"])]
            {
                row[key] = value.clone();
            }
            row["native"] = figures["native"]["s"].clone();
            row["kernel"] = side(&at["kernel"]).into();
            row["pagoda"] = side(&at["pagoda"]).into();
            rows.push(([name.clone(), fill("{budget_mib:0} MiB, ", at) + says], row));
        }
    }
    let rows = rows.iter().map(|(names, row)| (names.clone(), row));
    let mut text = format!("\n{}\n", text_table(["program", "budget"], &COLUMNS, rows));
    if report.get("kernel_reason").is_some() {
        text += &fill("no kernel side: {kernel_reason}\n", report);
    }
    for (name, reason) in members(report, "/skipped") {
        text += &format!("skipped {name}: {}\n", reason.as_str().unwrap_or_default());
    }
    text
}

/// The end of a side, and its time.
fn side(run: &Value) -> String {
    match run["end"].as_str() {
        None => "-".to_owned(),
        Some("ok") => fill("{s:2}", run),
        Some("timeout") => fill("over {s:0}", run),
        Some(end) => end.to_owned(),
    }
}
