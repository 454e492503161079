//! `pagoda run` by the kernel's swap, from the outside: static programs within a budget, and
//! nothing left on the machine afterwards.
//!
//! The machine has one such run at a time, and so have these tests.

mod machine;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use machine::{Machine, bare_devices, freezer_of, guard_of, left, with};
use pagoda_linux::process::child::send;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::wait::until;

const BUDGET: u64 = 64 << 20;
const OVER_MOST: u64 = 16 << 20;

fn pagoda(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagoda"));
    command.args(["run", "--memory", "64M"]).args(options).arg("--").stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refused(output: &Output, says: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{error}");
    for word in says {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert_eq!(text(&output.stdout), "");
}

/// Starts a program that says something, and waits until it has.
fn started(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pagoda starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    assert!(!line.is_empty(), "it says something");
    child
}

fn wait(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_static_program_of_three_budgets_keeps_to_its_own() {
    let Some(machine) = with("a static program") else { return };
    let native =
        Command::new(&machine.programs.fill).args(["192", "256", "1", "7"]).output().expect("it runs");
    let stats = machine.directory.path().join("stats.json");
    let options = ["--stats", stats.to_str().expect("a name")];
    let mut command = pagoda(&options);
    let child = command.arg(&machine.programs.fill).args(["192", "256", "1", "7"]);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pagoda starts");
    let pid = child.id();
    let sampler = std::thread::spawn(move || Machine::peak_while_there(pid));
    let output = wait(child);
    let peak = sampler.join().expect("no panic");
    let error = text(&output.stderr);
    assert_eq!((output.status.code(), native.status.code()), (Some(7), Some(7)), "{error}");
    assert_eq!(text(&output.stdout), text(&native.stdout));
    assert!(peak > BUDGET / 2 && peak <= BUDGET + OVER_MOST, "{} KiB: {error}", peak >> 10);
    for says in ["static program", "--backend kernel", "budget", "native peak", "compressed", "spilled peak"]
    {
        assert!(error.contains(says), "{says}: {error}");
    }
    let stats: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&stats).expect("written")).expect("JSON");
    assert_eq!((&stats["backend"], &stats["status"]), (&"kernel".into(), &"managed".into()), "{stats}");
    let peak = stats["kernel"]["peak_bytes"].as_u64().expect("a peak");
    assert!(peak <= BUDGET + OVER_MOST, "{stats}");
    let held = stats["kernel"]["held_peak_bytes"].as_u64().expect("a peak");
    assert!((192 << 20..208 << 20).contains(&held), "no page counts twice: {stats}");
    assert_eq!(left(pid), Vec::<String>::new());
}

#[test]
fn content_that_compresses_or_not_or_no_longer() {
    let Some(machine) = with("other contents") else { return };
    for random in ["512", "16", "0", "-512"] {
        let child = pagoda(&["--backend", "kernel"])
            .arg(&machine.programs.fill)
            .args(["160", random, "2", "0"])
            .spawn();
        let mut child = child.expect("pagoda starts");
        let pid = child.id();
        let sampler = std::thread::spawn(move || Machine::peak_while_there(pid));
        assert!(child.wait().expect("it ends").success());
        let peak = sampler.join().expect("no panic");
        assert!(peak <= BUDGET + OVER_MOST, "{random}: {} KiB", peak >> 10);
        assert_eq!(left(pid), Vec::<String>::new());
    }
}

fn has_ended(pid: &String) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}/exe")).exists()
}

/// A program with a child, which no signal of pagoda's end reaches, both held.
#[test]
fn a_run_that_is_killed_is_undone_by_its_guard_with_all_processes() {
    let Some(machine) = with("a run that is killed") else { return };
    let fill = machine.programs.fill.to_str().expect("a name");
    let script = format!("{fill} 96 256 1 0 100 & wait");
    let mut child = started(pagoda(&["--backend", "kernel"]).args(["sh", "-c", &script]));
    let pid = child.id();
    let processes = Machine::processes(pid);
    assert_eq!(processes.len(), 2, "{processes:?}");
    assert!(left(pid).len() >= 4, "{:?}", left(pid));
    let freezer = freezer_of(pid).expect("a freezer");
    std::fs::write(freezer.join("freezer.state"), "FROZEN").expect("held");
    child.kill().expect("killed");
    drop(child.wait());
    until("all processes end", || processes.iter().all(has_ended));
    until("nothing is left", || left(pid).is_empty());
}

#[test]
fn a_run_that_is_killed_with_its_guard_is_undone_by_the_next() {
    let Some(machine) = with("a run that is killed") else { return };
    let mut child = started(pagoda(&[]).arg(&machine.programs.fill).args(["96", "256", "1", "0", "100"]));
    let pid = child.id();
    let processes = Machine::processes(pid);
    assert_eq!(processes.len(), 1, "{processes:?}");
    let guard = guard_of(pid);
    let freezer = freezer_of(pid).expect("a freezer");
    std::fs::write(freezer.join("freezer.state"), "FROZEN").expect("held");
    send(guard, libc::SIGKILL).expect("sent");
    until("the guard ends", || has_ended(&guard.to_string()));
    child.kill().expect("killed");
    drop(child.wait());
    assert!(left(pid).len() >= 4, "{:?}", left(pid));
    assert!(!has_ended(&processes[0]), "it is held, and so does not end");
    let output = pagoda(&["--backend", "kernel"]).args(["echo", "ran"]).output().expect("pagoda starts");
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "ran\n"), "{output:?}");
    until("all processes end", || processes.iter().all(has_ended));
    assert_eq!(left(pid), Vec::<String>::new());
}

#[test]
fn a_run_that_is_killed_at_any_step_leaves_nothing() {
    let Some(_machine) = with("a run that is killed at any step") else { return };
    let before = bare_devices();
    let steps = length(20, 40);
    for step in 0..steps {
        let mut command = pagoda(&["--backend", "kernel", "--quiet"]);
        let mut child = command.args(["sleep", "0.01"]).spawn().expect("pagoda starts");
        std::thread::sleep(Duration::from_millis(80 * step / steps));
        child.kill().expect("killed");
        drop(child.wait());
        // Before there is a guard, and anything to be undone, there is a note.
        let note = |left: &String| left == "/run/pagoda-kernel";
        until("nothing is left", || left(child.id()).iter().all(note));
        until("no device is left", || bare_devices() <= before);
    }
    let output = pagoda(&["--backend", "kernel"]).args(["echo", "ran"]).output().expect("pagoda starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(left(0), Vec::<String>::new());
}

#[test]
fn a_second_run_at_the_same_time_is_refused_and_harms_nothing() {
    let Some(machine) = with("two runs at once") else { return };
    let child = started(pagoda(&[]).arg(&machine.programs.fill).args(["96", "256", "1", "5", "1"]));
    let pid = child.id();
    let second = pagoda(&["--backend", "kernel"]).args(["echo", "ran"]).output().expect("pagoda starts");
    refused(&second, &["another run", &pid.to_string(), "wait until"]);
    assert!(left(pid).len() >= 3, "{:?}", left(pid));
    assert_eq!(wait(child).status.code(), Some(5));
    assert_eq!(left(pid), Vec::<String>::new());
}

#[test]
fn signals_reach_the_program_and_end_it() {
    let Some(machine) = with("signals") else { return };
    let child = started(pagoda(&[]).arg(&machine.programs.fill).args(["96", "256", "1", "0", "100"]));
    let pid = child.id();
    send(pid, libc::SIGTERM).expect("sent");
    let output = wait(child);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert!(text(&output.stderr).contains("ended by signal 15"), "{output:?}");
    assert_eq!(left(pid), Vec::<String>::new());
}

#[test]
fn the_engine_alone_refuses_what_it_can_not_get_into() {
    let Some(machine) = with("the engine's refusal") else { return };
    let output =
        pagoda(&["--backend", "engine"]).arg(&machine.programs.fill).args(["1", "0", "0", "0"]).output();
    refused(&output.expect("pagoda starts"), &["static program"]);
}

#[test]
fn without_root_it_is_refused_with_what_is_missing() {
    let Some(machine) = with("a run without root") else { return };
    for (options, says) in [(&["--backend", "kernel"][..], "needs root"), (&[], "static program")] {
        let run = pagoda(options);
        // The command may lie where this user may not look.
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&machine.programs.command);
        command.args(run.get_args()).arg(&machine.programs.fill).args(["1", "0", "0", "0"]);
        refused(&command.stdin(Stdio::null()).output().expect("setpriv starts"), &[says, "needs root"]);
    }
}

#[test]
fn a_program_that_fits_nowhere_is_ended_in_time_and_says_why() {
    let Some(machine) = with("a program that fits nowhere") else { return };
    let begun = Instant::now();
    let mut command = pagoda(&["--file-limit", "32M"]);
    let child = command.arg(&machine.programs.fill).args(["512", "512", "1", "0"]);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pagoda starts");
    let pid = child.id();
    let sampler = std::thread::spawn(move || Machine::peak_while_there(pid));
    let output = wait(child);
    refused(&output, &["fits neither the budget of 64 MiB nor the swap file", "--file-limit"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(sampler.join().expect("no panic") <= BUDGET + OVER_MOST);
    assert_eq!(left(pid), Vec::<String>::new());
}

/// The kernel lets no system call wait at the limit.
#[test]
fn a_program_that_fails_for_want_of_memory_is_told_that_it_may() {
    let Some(machine) = with("a system call without memory") else { return };
    let mut command = pagoda(&["--file-limit", "32M"]);
    let output =
        command.arg(&machine.programs.fill).args(["512", "512", "-1", "7"]).output().expect("pagoda starts");
    let error = text(&output.stderr);
    assert_eq!(text(&output.stdout), format!("error {}\n", libc::EFAULT), "{error}");
    assert_eq!(output.status.code(), Some(7), "{error}");
    assert!(error.contains("may have found no memory (EFAULT, ENOMEM)"), "{error}");
}

#[test]
fn processes_that_the_program_leaves_end_with_the_run() {
    let Some(_machine) = with("processes that are left") else { return };
    let mut command = pagoda(&["--backend", "kernel"]);
    let output =
        command.args(["sh", "-c", "sleep 1000 >&- 2>&- & echo ran"]).output().expect("pagoda starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text(&output.stderr).contains("1 process(es) that the program left running were ended"),
        "{output:?}"
    );
}

#[test]
fn options_of_the_engine_alone_are_refused() {
    let Some(_machine) = with("options of the engine") else { return };
    let trace = ["--backend", "kernel", "--trace", "/dev/null"];
    refused(
        &pagoda(&trace).args(["echo", "ran"]).output().expect("pagoda starts"),
        &["--trace", "leave that out"],
    );
}
