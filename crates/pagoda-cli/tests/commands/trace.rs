//! `pagoda run --trace` and `pagoda trace` from the outside: real programs over their budget.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const PAGODA: &str = env!("CARGO_BIN_EXE_pagoda");
const BENCH: &str = env!("CARGO_BIN_EXE_pagoda-bench");

/// Twice the budget, touched in order and at random.
const WORK: &str = "worker patterns --data 134217728 --ratio 3 --passes 1 --zipf 2000 --random 2000";

/// Says why there is nothing to see. Where everything is to be seen, that is a failure.
fn can_run() -> bool {
    let skip = |why| pagoda_linux::testing::skip::skip("tracing", why);
    pagoda_linux::probe::can_run().map_err(skip).is_ok()
}

/// Runs a shell's script within 64 MiB, traced to `file`.
fn traced(file: &Path, script: &str) -> Output {
    let mut command = Command::new(PAGODA);
    command.args(["run", "--memory", "64M", "--trace"]).arg(file).args(["--", "sh", "-c", script]);
    command.output().expect("it runs")
}

fn pagoda(arguments: &[&str]) -> Output {
    Command::new(PAGODA).args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Scratch {
    _directory: tempfile::TempDir,
    file: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("trace");
        Self { _directory: directory, file }
    }

    /// The header, and each event with its columns by their names.
    fn events(&self) -> (Value, Vec<Value>) {
        let text = std::fs::read_to_string(&self.file).expect("the trace");
        let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let header = lines.next().expect("a header");
        let columns: Vec<String> = serde_json::from_value(header["columns"].clone()).expect("names");
        let named = |line: Value| {
            let values = line.as_array().expect("an array").clone();
            assert_eq!(values.len(), columns.len());
            Value::Object(columns.iter().cloned().zip(values).collect())
        };
        (header, lines.map(named).collect())
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

#[test]
fn a_program_over_its_budget_leaves_faults_and_evictions_by_address_and_time() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new();
    let output = traced(&scratch.file, &format!("exec {BENCH} {WORK}"));
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let (header, events) = scratch.events();
    assert_eq!((number(&header["budget_bytes"]), number(&header["base_page_bytes"])), (64 << 20, 64 << 10));
    assert_eq!(number(&header["events"]), events.len() as u64);
    assert_eq!((number(&header["dropped"]), number(&header["untraced"])), (0, 0));
    assert!(errors.contains("traced") && errors.contains(&events.len().to_string()), "{errors}");
    let processes: Vec<u64> = serde_json::from_value(header["processes"].clone()).expect("numbers");
    let [process] = processes[..] else { panic!("one process: {processes:?}") };
    let mut kinds = BTreeSet::new();
    let (mut out, mut faulted) = (BTreeSet::new(), BTreeSet::new());
    for event in &events {
        let (kind, address) = (event["kind"].as_str().expect("a name"), number(&event["address"]));
        kinds.insert(kind.to_owned());
        assert_eq!(number(&event["pid"]), process);
        assert!(number(&event["time_us"]) <= number(&header["wall_us"]), "{event}");
        assert!(address % 4096 == 0 && address > 0 && number(&event["bytes"]) >= 4096, "{event}");
        if kind == "eviction" {
            assert!(event["service_us"].is_null(), "{event}");
            out.extend((address..address + number(&event["bytes"])).step_by(4096));
        } else {
            assert!(event["service_us"].as_f64() > Some(0.0), "{event}");
            faulted.insert((kind.to_owned(), address));
        }
    }
    let expected = ["eviction", "stored", "zero"].map(str::to_owned);
    assert!(expected.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    // The data does not fit: more than the half of it went out.
    assert!(out.len() * 4096 > 64 << 20, "{} pages", out.len());
    let stored = faulted.iter().filter(|(kind, _)| kind == "stored" || kind == "spilled" || kind == "staged");
    // Of its base page at least: an OS page that was never touched is stored with the others.
    let near = |address: u64| address.saturating_sub(60 << 10)..address + (64 << 10);
    let (known, all): (Vec<_>, Vec<_>) =
        stored.partition(|(_, address)| out.range(near(*address)).next().is_some());
    assert!(all.is_empty() && !known.is_empty(), "a page that is swapped in was evicted before: {all:x?}");
}

#[test]
fn each_process_of_a_tree_is_in_it_and_so_is_one_that_was_killed() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new();
    let output = traced(&scratch.file, &format!("{BENCH} {WORK} & {BENCH} {WORK}; wait; kill -KILL $$"));
    assert_eq!(output.status.code(), Some(137), "{}", text(&output.stderr));
    let (header, events) = scratch.events();
    let pids: BTreeSet<u64> = events.iter().map(|event| number(&event["pid"])).collect();
    let processes: BTreeSet<u64> = serde_json::from_value(header["processes"].clone()).expect("numbers");
    assert!(pids.len() >= 2 && processes.is_superset(&pids), "{pids:?} of {processes:?}");
}

#[test]
fn a_trace_is_shown_as_tables_json_and_a_page() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new();
    let output = traced(&scratch.file, &format!("exec {BENCH} {WORK}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let file = scratch.file.to_str().expect("a name");
    let page = format!("{file}.html");
    let (_, events) = scratch.events();
    let evictions = events.iter().filter(|event| event["kind"] == "eviction").count() as u64;
    let shown = pagoda(&["trace", file, "--html", &page]);
    let table = text(&shown.stdout);
    assert!(shown.status.success() && table.contains("0 dropped, 0 processes not traced"), "{table}");
    let json: Value = serde_json::from_slice(&pagoda(&["trace", file, "--json"]).stdout).expect("JSON");
    assert_eq!((number(&json["events"]), number(&json["evictions"])), (events.len() as u64, evictions));
    let faults: u64 = json["faults"].as_object().expect("kinds").values().map(number).sum();
    assert_eq!(faults + evictions, events.len() as u64);
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.starts_with("<!DOCTYPE html>") && html.matches("<svg").count() == 1, "{}", html.len());
    assert!(html.contains("fill=\"#d55e00\"") && html.contains("fill=\"#0072b2\""));
    for outside in ["http:", "https:", "url(", "<script", "<link", "<img"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn a_file_that_can_not_be_written_is_said_before_the_program_starts() {
    let output = traced(Path::new("/nonexistent/trace"), "echo ran");
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""));
    assert!(
        errors.contains("/nonexistent/trace can't be written") && errors.contains("--trace FILE"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn a_run_without_a_budget_has_a_trace_without_events() {
    let scratch = Scratch::new();
    let mut command = Command::new(PAGODA);
    command
        .args(["run", "--memory", "64M", "--best-effort", "--trace"])
        .arg(&scratch.file)
        .args(["--", "true"]);
    let output = command.env("PAGODA_PRELOAD", "/nonexistent/preload.so").output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (header, events) = scratch.events();
    assert_eq!((number(&header["events"]), events.len()), (0, 0));
    let file = scratch.file.to_str().expect("a name");
    assert!(text(&pagoda(&["trace", file]).stdout).contains("true"), "it can be shown");
}

#[test]
fn a_file_of_no_trace_is_refused() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.file, "of yesterday").expect("written");
    let output = pagoda(&["trace", scratch.file.to_str().expect("a name")]);
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), errors.lines().count()), (Some(125), 1), "{errors}");
    assert!(errors.contains("give a file that `pagoda run --trace` wrote"), "{errors}");
}
