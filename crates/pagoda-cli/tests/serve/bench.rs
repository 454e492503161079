//! `pagoda bench snapshot` restores VMs by `pagoda serve`.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_bench_has_figures_of_a_vm_of_each_protocol() {
    if crate::skips("the bench of snapshots") {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_pagoda-bench"))
        .args(["snapshot", "--quick", "--json", "--memory", "16M"])
        .output()
        .expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for peer in ["firecracker", "cloud_hypervisor"] {
        let figures = &report["peers"][peer];
        let keys = ["first_page_ms", "demand_ms", "recorded_ms", "touch_p50_us", "touch_p99_us"];
        assert!(keys.iter().all(|key| figures[key].as_f64() > Some(0.0)), "{peer}: {}", report["peers"]);
    }
}
