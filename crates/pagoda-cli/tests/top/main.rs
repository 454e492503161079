//! `pagoda top` from the outside: on a real terminal and for scripts, with a real `pagoda run`
//! beneath.

mod library;
mod set;
mod terminal;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use pagoda_linux::testing::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use terminal::Shown;

const ROLE: &str = "PAGODA_TEST_TOUCH";
const BUDGET_MIB: u64 = 48;
const HELD_MIB: usize = 96;

/// Touches before a pause: a look meets faults at any time, and other tests get on.
const TOUCHED_PAGES: usize = 64;
const PAUSE: Duration = Duration::from_millis(2);

/// The program: holds twice its budget, touches all of it again and again, and ends with its
/// standard input.
#[test]
fn toucher() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut memory = vec![7u8; HELD_MIB << 20];
    let touch = |page: &mut [u8]| page[0] = page[0].wrapping_add(1);
    // Pages that repeat one word take nothing: from here on there are none.
    memory.chunks_mut(4096).for_each(touch);
    println!("ready");
    std::thread::spawn(move || {
        loop {
            for some in memory.chunks_mut(TOUCHED_PAGES * 4096) {
                some.chunks_mut(4096).for_each(touch);
                std::thread::sleep(PAUSE);
            }
        }
    });
    let mut nothing = String::new();
    std::io::stdin().read_line(&mut nothing).expect("read");
}

/// A managed toucher; it ends when this is dropped.
struct Managed {
    run: Child,
    input: Option<ChildStdin>,
    runtime: tempfile::TempDir,
}

impl Managed {
    /// `None` where no program can be managed.
    fn start() -> Option<Self> {
        Self::start_within(&["--memory", &format!("{BUDGET_MIB}M")])
    }

    fn start_within(budget: &[&str]) -> Option<Self> {
        let runtime = tempfile::tempdir().expect("a directory");
        let mut run = Command::new(env!("CARGO_BIN_EXE_pagoda"))
            .args(["run", "--quiet"])
            .args(budget)
            .arg("--")
            .arg(std::env::current_exe().expect("a path"))
            .args(["--exact", "toucher", "--nocapture"])
            .env(ROLE, "1")
            .env("XDG_RUNTIME_DIR", runtime.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pagoda starts");
        let input = run.stdin.take();
        let says = BufReader::new(run.stdout.take().expect("piped"));
        if !says.lines().map_while(Result::ok).any(|line| line.contains("ready")) {
            let why = String::from_utf8_lossy(&run.wait_with_output().expect("it ends").stderr).into_owned();
            pagoda_linux::testing::skip::skip("pagoda top of a managed program", why);
            return None;
        }
        Some(Self { run, input, runtime })
    }

    /// Looks at this tree, and where it is.
    fn top(&self, options: &[&str]) -> Command {
        let mut command = top(options);
        command.arg(self.run.id().to_string()).env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    /// Its output as JSON.
    fn json(&self) -> Value {
        let output = self.top(&["--json", "--interval", "0.1"]).output().expect("pagoda starts");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.run.wait();
    }
}

fn top(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.arg("top").args(options);
    command
}

#[test]
fn a_user_sees_a_tree_changes_the_picture_and_gets_the_terminal_back() {
    let Some(managed) = Managed::start() else { return };
    let mut shown = Shown::start(managed.top(&["--interval", "0.2"]), 24, 100);
    for what in ["1 trees, 1 processes", "48MiB", "pagoda top", "served in us: p50", "arrows select"] {
        shown.wait_for(what);
    }
    shown.press("f");
    shown.wait_for("FROZEN");
    shown.press("/nobody\r");
    shown.wait_for("none of 1 trees");
    shown.press("/\u{1b}");
    shown.wait_for(&managed.run.id().to_string());
    shown.press("f");
    shown.resize(7, 30);
    shown.wait_until("a small picture", |text| {
        text.contains("PID") && !text.contains("served in us") && !text.contains("ANON ")
    });
    shown.resize(24, 220);
    shown.wait_for("p99.9 us");
    shown.press("q");
    assert_eq!(shown.end().0.code(), Some(0));
}

#[test]
fn a_tree_that_ends_is_gone_from_the_picture() {
    let Some(managed) = Managed::start() else { return };
    let mut shown = Shown::start(managed.top(&["-i", "0.1"]), 24, 80);
    shown.wait_for("1 processes");
    drop(managed);
    shown.wait_for("no program runs");
    shown.press("\u{3}");
    assert_eq!(shown.end().0.code(), Some(0), "Control-C is a key there");
}

#[test]
fn a_key_that_comes_with_a_change_of_size_is_not_lost() {
    let mut shown = Shown::start(top(&["-i", "10"]), 10, 60);
    shown.wait_for("by ANON down");
    for turn in 0..20 {
        shown.resize(10, 61 + turn);
        shown.press("r");
        shown.wait_for(if turn % 2 == 0 { "by ANON up" } else { "by ANON down" });
    }
    shown.press("q");
    assert_eq!(shown.end().0.code(), Some(0));
}

#[test]
fn signals_that_end_it_give_the_terminal_back() {
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let shown = Shown::start(top(&[]), 10, 60);
        shown.wait_for("q quit");
        kill_process(Pid::from_child(&shown.child), signal).expect("sent");
        assert_eq!(shown.end().0.code(), Some(status));
    }
}

#[test]
fn scripts_get_a_table_or_json_of_the_same() {
    let Some(managed) = Managed::start() else { return };
    let output = |format: &str| managed.top(&[format, "-i", "0.5"]).output().expect("it runs");
    let mut json = Value::Null;
    until("the last look found what the program holds", || {
        json = serde_json::from_slice(&output("--json").stdout).expect("JSON");
        json["trees"][0]["members"][0]["held_bytes"].as_u64() > Some(BUDGET_MIB << 20)
    });
    let tree = &json["trees"][0];
    assert_eq!((&tree["pid"], &tree["status"]), (&managed.run.id().into(), &"tree".into()));
    assert_eq!(tree["share_bytes"], BUDGET_MIB << 20);
    let member = &tree["members"][0];
    assert_eq!(member["status"], "managed");
    let number = |key: &str| member[key].as_u64().unwrap_or_else(|| panic!("{key}: {member}"));
    assert!(number("resident_bytes") > 0 && number("stored_bytes") > 0, "{member}");
    assert!(number("free_low_bytes") < number("free_high_bytes"), "{member}");
    let rates = &member["rates"];
    assert!(
        rates["faults_s"].as_f64() > Some(0.0) && rates["faults_stored_s"].as_f64() > Some(0.0),
        "{rates}"
    );
    let us = |key: &str| rates["latency_us"]["all"][key].as_f64().expect("faults were served");
    assert!(us("p50") > 0.0 && us("p50") <= us("p99") && us("p99") <= us("p999"), "{rates}");
    let table = output("--once");
    let table = String::from_utf8(table.stdout).expect("text");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 6, "{table}");
    assert!(lines[0].contains("PID") && lines[0].contains("p99.9 us"), "{table}");
    assert!(lines[1].contains(" tree ") && lines[2].contains(" managed ") && lines[3].is_empty(), "{table}");
    for (line, whose) in lines[4..].iter().zip(["(tree): free ", "(managed): free "]) {
        assert!(
            line.contains(whose) && line.contains("ready frames") && line.contains("to release"),
            "{table}"
        );
    }
}

#[test]
fn zones_are_shown_of_processes_that_have_some() {
    let Some(managed) = Managed::start_within(&["--zone", "near=36M", "--zone", "far=28M@remote"]) else {
        return;
    };
    let output = managed.top(&["--json", "-i", "0.2"]).output().expect("it runs");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let tree = &json["trees"][0];
    for row in [tree, &tree["members"][0]] {
        let zones = row["zones"].as_array().unwrap_or_else(|| panic!("zones: {row}"));
        let number = |at: usize, key: &str| zones[at][key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert_eq!((zones.len(), number(0, "bytes"), number(1, "bytes")), (2, 36 << 20, 28 << 20), "{row}");
        assert!(number(0, "held_bytes") > 0 && number(0, "low_bytes") < number(0, "high_bytes"), "{row}");
    }
    let table = managed.top(&["--once", "-i", "0.1"]).output().expect("it runs");
    let table = String::from_utf8(table.stdout).expect("text");
    for whose in ["(tree): zone 0 of 36 MiB: held ", "(managed): zone 1 of 28 MiB: held "] {
        assert!(table.contains(whose), "{table}");
    }
    let mut shown = Shown::start(managed.top(&["--interval", "0.2"]), 24, 100);
    shown.wait_for("zone 0 of 36 MiB: held ");
    shown.wait_for("zone 1 of 28 MiB: held ");
    shown.press("q");
    assert_eq!(shown.end().0.code(), Some(0));
}

#[test]
fn a_file_that_others_may_open_is_refused_and_that_is_said() {
    let Some(managed) = Managed::start() else { return };
    let entries = std::fs::read_dir(managed.runtime.path()).expect("read").flatten();
    let files = entries.filter(|entry| entry.path().is_file()).collect::<Vec<_>>();
    let [file] = &files[..] else { panic!("one tree file: {files:?}") };
    std::fs::set_permissions(file.path(), Permissions::from_mode(0o644)).expect("mode");
    let output = managed.top(&["--once"]).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{errors}");
    assert!(errors.contains("others than its user may open it") && errors.lines().count() == 1, "{errors}");
}

#[test]
fn an_impossible_view_is_one_line_and_125() {
    for (options, says) in [
        (&["4194304"][..], "no process 4194304 runs under"),
        (&[], "standard output is no terminal; add --once or --json"),
        (&["--interval", "0"], "between 0.1 and 3600"),
        (&["--interval", "NaN"], "between 0.1 and 3600"),
    ] {
        let output = top(options).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{errors}");
        assert!(errors.contains(says) && errors.lines().count() == 1, "{errors}");
    }
}
