//! The manners of `pagoda run`: a caller that starts a program through it should notice only the
//! budget.
//!
//! These run unmanaged by choice (there is no preload library at their path for it), so that they
//! hold on any machine; those of a program with an engine in it are `managed.rs`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::{executable, output, pagoda, text, unmanaged};

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 1, 2, 3, 125, 255] {
        let output = output(&mut unmanaged(&["sh", "-c", &format!("exit {status}")]));
        assert_eq!(output.status.code(), Some(status));
    }
}

#[test]
fn a_signal_that_ends_the_program_is_128_and_its_number() {
    for (signal, status) in [("TERM", 143), ("KILL", 137), ("INT", 130), ("USR1", 138), ("HUP", 129)] {
        let output = output(&mut unmanaged(&["sh", "-c", &format!("kill -{signal} $$")]));
        assert_eq!(output.status.code(), Some(status), "{signal}");
    }
}

#[test]
fn standard_input_output_and_error_are_the_programs() {
    let mut child = unmanaged(&["sh", "-c", "tr a-z A-Z; echo aside >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pagoda starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"passed through\n").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(text(&output.stdout), "PASSED THROUGH\n");
    let error = text(&output.stderr);
    let (aside, own) = error.split_once('\n').expect("two lines");
    assert_eq!(aside, "aside");
    assert!(own.starts_with("pagoda: budget: NOT ENFORCED: "), "{own}");
    assert_eq!(own.lines().count(), 1);
}

#[test]
fn arguments_directory_and_environment_are_as_without_pagoda() {
    let script = r#"printf '%s|' "$0" "$@" "$PWD" "$MARK" "${LD_PRELOAD-none}" "${PAGODA_CONFIG-none}""#;
    let mut command = unmanaged(&["sh", "-c", script, "-x", "--memory", "a b", ""]);
    let output = output(command.current_dir("/usr").env("MARK", "kept"));
    assert_eq!(text(&output.stdout), "-x|--memory|a b||/usr|kept|none|none|");
}

#[test]
fn the_programs_name_is_the_one_it_was_called_by() {
    let shown = output(&mut unmanaged(&["sh", "-c", "tr '\\0' '\\n' </proc/$$/cmdline | head -1"]));
    assert_eq!(text(&shown.stdout), "sh\n");
}

#[test]
fn a_script_without_an_interpreter_line_is_the_shells() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = executable(directory.path(), "script", b"echo by the shell; exit 9\n");
    let output = output(&mut unmanaged(&[&script]));
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("by the shell\n", Some(9)));
}

#[test]
fn an_empty_path_element_is_the_current_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    executable(directory.path(), "only-here", b"#!/bin/sh\nexit 4\n");
    let mut command = unmanaged(&["only-here"]);
    let output = output(command.current_dir(directory.path()).env("PATH", "/usr/bin::/bin"));
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
}

#[test]
fn the_program_has_the_signal_dispositions_and_mask_that_pagoda_was_given() {
    let show = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    for trap in ["", "trap '' PIPE;", "trap '' INT QUIT HUP;", "trap '' CHLD PIPE TERM;"] {
        let shell = |through: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{trap} exec \"$@\""), "sh"]).args(through);
            let command = command.args(["sh", "-c", &format!("exec {show}")]);
            text(&output(command.env("PAGODA_PRELOAD", "/nonexistent")).stdout)
        };
        let native = shell(&[]);
        assert!(native.contains("SigIgn"), "{native}");
        let pagoda = env!("CARGO_BIN_EXE_pagoda");
        assert_eq!(shell(&[pagoda, "run", "-m", "64M", "--best-effort", "--"]), native, "{trap}");
    }
}

#[test]
fn the_program_stays_in_the_process_group_and_inherits_no_descriptor() {
    let directory = tempfile::tempdir().expect("a directory");
    let stats = directory.path().join("stats.json");
    let script = "cut -d' ' -f5 </proc/self/stat; ls /proc/self/fd | wc -l";
    let mut command =
        pagoda(&["--best-effort", "--stats", stats.to_str().expect("a name")], &["sh", "-c", script]);
    let child =
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("pagoda starts");
    let group = child.id();
    let through = text(&child.wait_with_output().expect("it ends").stdout);
    let native = output(Command::new("sh").args(["-c", script]));
    let count = |text: &str| text.lines().nth(1).map(str::to_owned);
    assert_eq!(through.lines().next(), Some(group.to_string().as_str()));
    assert_eq!(count(&through), count(&text(&native.stdout)));
}

#[test]
fn stats_of_an_unmanaged_run_say_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("stats.json");
    fs::write(&path, "x".repeat(100_000)).expect("written");
    let options = ["--best-effort", "--stats", path.to_str().expect("a name")];
    let output = output(&mut pagoda(&options, &["sh", "-c", "kill -TERM $$"]));
    assert_eq!(output.status.code(), Some(143));
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    assert_eq!(stats["status"], "unmanaged");
    assert_eq!(stats["signal"], 15);
    assert_eq!(stats["exit_code"], serde_json::Value::Null);
    assert_eq!(stats["exit_status"], 143);
    assert_eq!(stats["command"], serde_json::json!(["sh", "-c", "kill -TERM $$"]));
    assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
    assert!(stats["reason"].is_string());
    assert!(stats["wall_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn a_closed_standard_error_is_no_reason_to_fail() {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&-; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_pagoda")]);
    command.args(["run", "-m", "64M", "--best-effort", "--", "sh", "-c", "exit 6"]);
    assert_eq!(output(command.env("PAGODA_PRELOAD", "/nonexistent")).status.code(), Some(6));
}

#[test]
fn the_tables_rows_are_explained_without_a_program() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    let output = output(command.args(["run", "--explain"]));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("  native peak  ") && said.contains("-> raise --memory"), "{said}");
}
