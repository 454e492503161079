//! A program that executes another one in its place: one that can't be managed is told, and one
//! that can be is not.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::static_program;

/// poll(0, 0, 1500), then exit(42): longer than the limit for silence.
const CODE: &[u8] = &[
    0x31, 0xff, 0x31, 0xf6, 0xba, 0xdc, 5, 0, 0, 0xb8, 7, 0, 0, 0, 0x0f, 0x05, 0xbf, 42, 0, 0, 0, 0xb8, 60,
    0, 0, 0, 0x0f, 0x05,
];
fn run(script: &str) -> Result<(Option<i32>, String), String> {
    let output = Command::new(env!("CARGO_BIN_EXE_pagoda"))
        .args(["run", "--memory", "64M", "--", "/bin/sh", "-c", script])
        .output()
        .map_err(|error| format!("pagoda does not start: {error}"))?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

pub fn is_told() -> Result<String, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let program = directory.path().join("static");
    fs::write(&program, static_program::of(CODE))
        .and_then(|()| fs::set_permissions(&program, Permissions::from_mode(0o755)))
        .map_err(|error| error.to_string())?;
    let program = program.display();
    let (status, said) = run(&format!("sleep 1; exec {program}"))?;
    if status != Some(42) || !said.contains("NOT ENFORCED: the program was replaced") {
        return Err(format!("status {status:?}, and said was: {said}"));
    }
    let (status, said) = run("sleep 0.1; exec sleep 1.3")?;
    if status != Some(0) || said.contains("NOT ENFORCED") {
        return Err(format!("status {status:?}, and said was: {said}"));
    }
    Ok("by a static program, and by another".to_owned())
}
