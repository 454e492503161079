//! The printed JSON of each bench, one file each. Tests draw the page of it and compare the
//! benches' keys with it. Never in a report: the figures are of an earlier machine.

use serde_json::Value;

/// The stored JSON of the bench `name`.
pub fn canned(name: &str) -> Value {
    let text = match name {
        "budget" => include_str!("canned/budget.json"),
        "programs" => include_str!("canned/programs.json"),
        "tree" => include_str!("canned/tree.json"),
        "clear" => include_str!("canned/clear.json"),
        "release" => include_str!("canned/release.json"),
        "snapshot" => include_str!("canned/snapshot.json"),
        "migrate" => include_str!("canned/migrate.json"),
        "zones" => include_str!("canned/zones.json"),
        "counters" => include_str!("canned/counters.json"),
        "base-page" => include_str!("canned/base-page.json"),
        other => panic!("the bench {other} has no canned figures"),
    };
    serde_json::from_str(text).expect("JSON")
}
