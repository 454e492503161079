//! `pagoda bench all` from the outside: the page that it writes, and that it leaves nothing behind
//! when it is asked to end. Never checks a time.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use html5ever::tendril::TendrilSink;
use html5ever::{ParseOpts, parse_document};
use markup5ever_rcdom::RcDom;
use pagoda_linux::testing::skip::skip;
use pagoda_linux::testing::wait::{until, until_ended};
use rustix::process::{Pid, Signal, kill_process};

/// A running `pagoda bench all`. Dropping it asks it to end, also where a test fails.
struct All(Child);

impl Drop for All {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// The command `pagoda`, as where cargo has not started it.
fn pagoda() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.env_remove("CARGO");
    command
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The child of `pid` whose first argument is `command`. Until its exec a child has the arguments
/// of its parent.
fn child_that_runs(pid: u32, command: &str) -> Option<u32> {
    children(pid).into_iter().find(|child| {
        let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split('\0').nth(1) == Some(command)
    })
}

#[test]
fn an_interrupted_run_ends_what_it_runs_and_writes_no_page() {
    if let Err(why) = pagoda_linux::probe::can_run() {
        return skip("an interrupted run of all benches", why);
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let (page, before) = (scratch.path().join("report.html"), scratch.path().join("before.html"));
    std::fs::write(&before, "of yesterday").expect("written");
    // First a program is traced, then the benches run one after the other.
    let traced: &[&str] = &["run", "worker"];
    for (path, left, runs) in [(&page, None, traced), (&before, Some("of yesterday"), &["zones"])] {
        let all = pagoda()
            .args(["bench", "all", "--quick", "--html"])
            .arg(path)
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let (mut all, mut running) = (All(all), Vec::new());
        for command in runs {
            let (parent, mut found) = (running.last().copied().unwrap_or(all.0.id()), None);
            until(command, || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                found = child_that_runs(parent, command);
                found.is_some()
            });
            running.extend(found);
        }
        kill_process(Pid::from_child(&all.0), Signal::TERM).expect("sent");
        let status = until_ended("what was asked to end", &mut all.0).expect("our own child");
        assert_eq!(status.code(), Some(143));
        for (pid, command) in running.iter().zip(runs) {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{command} goes on");
        }
        assert_eq!(std::fs::read_to_string(path).ok().as_deref(), left);
    }
}

#[test]
fn the_page_of_a_real_run_has_its_plots_and_the_heat_map() {
    // The heat map is of a whole program.
    if let Err(why) = pagoda_linux::probe::can_run() {
        return skip("the page of a real run", why);
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let page = scratch.path().join("report.html");
    let ran = pagoda()
        .args(["bench", "all", "--quick", "--only", "counters", "--html"])
        .arg(&page)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("counters") && said.contains("measured"), "{said}");
    let html = std::fs::read_to_string(&page).expect("written");
    let dom = parse_document(RcDom::default(), ParseOpts::default()).one(html.as_str());
    assert!(dom.errors.borrow().is_empty(), "{:?}", dom.errors.borrow());
    // Two plots of the bench, and the heat map, which is the last.
    assert_eq!(html.matches("<svg").count(), 3);
    let heat = html.rsplit("<svg").next().expect("plots");
    assert!(heat.contains("Faults and evictions by address and time") && heat.contains("<rect"), "{heat}");
    assert!(!html.contains("class=\"failed\"") && !html.contains("No side of it could run"), "{said}");
}

#[test]
fn a_page_that_can_not_be_written_is_said_before_anything_runs() {
    let all = ["bench", "all", "--html", "/nonexistent/report.html"];
    let output = pagoda().args(all).output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.contains("/nonexistent/report.html") && errors.lines().count() == 1, "{errors}");
}
