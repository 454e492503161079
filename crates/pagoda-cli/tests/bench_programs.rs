//! `pagoda bench programs` from the outside: the shape of its JSON, and a short run of one program.
//! Never fails because the machine is slow.

use std::process::Command;

use pagoda_linux::testing::skip::skip;
use serde_json::Value;

fn bench(options: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda-bench"));
    command.args(["programs", "--json"]).args(options).output().expect("it starts")
}

#[test]
fn a_short_run_has_one_program_in_half_of_its_memory() {
    if let Err(why) = pagoda_linux::probe::can_run() {
        return skip("a program over a budget", why);
    }
    let output = bench(&["--quick"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let json: Value = serde_json::from_slice(&output.stdout).expect(&errors);
    assert!(output.status.success(), "{json} {errors}");
    assert_eq!((&json["bench"], &json["quick"]), (&Value::from("programs"), &Value::from(true)));
    let sort = &json["programs"]["sort"];
    let number =
        |at: &str| sort.pointer(at).and_then(Value::as_f64).unwrap_or_else(|| panic!("{at}: {json}"));
    assert!(number("/native/s") > 0.0 && sort.get("quarter").is_none(), "{json}");
    // The budget is half of the native peak, rounded to OS pages.
    assert!((number("/native/peak_mib") / 2.0 - number("/half/budget_mib")).abs() < 0.02, "{json}");
    let end = &sort["half"]["pagoda"]["end"];
    // Slow beside much else, but never another output.
    assert!(end == "ok" || end == "timeout", "{json}");
    assert!(number("/half/ratio_native") > 0.0, "{json}");
    if end == "ok" {
        assert!(number("/half/pagoda/faults") > 0.0 && number("/half/pagoda/over_mib") < 64.0, "{json}");
    }
    let kernel = &sort["half"]["kernel"];
    if kernel.is_null() {
        return skip("the kernel's side of a program", json["kernel_reason"].as_str().unwrap_or("no split"));
    }
    let held = number("/half/kernel/memcg_peak_mib") + number("/half/kernel/zram_peak_mib");
    assert!(held <= number("/half/budget_mib") * 1.03 + 0.01, "{json}");
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    assert!(!swaps.contains("pagoda-bench-"), "{swaps}");
}

#[test]
fn an_unknown_program_is_an_error_before_anything_runs() {
    let output = bench(&["--only", "nethack"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("nethack") && errors.contains("sort") && output.stdout.is_empty(), "{errors}");
}
