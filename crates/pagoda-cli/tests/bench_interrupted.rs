//! Benches from the outside: asked to end in the middle, they must never leave the machine changed.
//!
//! Those of releasing, of base pages and of all have tests of their own.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pagoda_linux::swap::cgroup::Controller;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::skip::{skip, skip_without_moves};
use pagoda_linux::testing::wait::{until, until_ended};
use rustix::process::{Pid, Signal, getuid, kill_process};

#[path = "support/bench_left.rs"]
mod bench_left;

use bench_left::left_by;

/// A running bench. Dropping it asks it to end, also where a test fails.
struct Bench(Child);

impl Drop for Bench {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

/// The moment of the interruption.
#[derive(Clone, Copy)]
enum When {
    /// Its memory group is there, with its devices; where the machine allows none, any leftover.
    Group,
    /// A process of it runs.
    Process,
    /// Its files are there.
    Files,
}

/// All processes below one.
fn below(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let own: Vec<u32> = texts
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect();
    own.iter().copied().chain(own.iter().flat_map(|child| below(*child))).collect()
}

fn swaps() -> String {
    std::fs::read_to_string("/proc/swaps").unwrap_or_default()
}

fn interrupt(name: &str, options: &[&str], when: When) {
    let mut bench = Bench(
        Command::new(env!("CARGO_BIN_EXE_pagoda-bench"))
            .args([name, "--json"])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let pid = bench.0.id();
    let may_have_groups = getuid().is_root() && Controller::find().is_ok();
    // A group is known by its name, everything else by a path or a number.
    let has_group = |left: &[String]| {
        left.iter().any(|what| !Path::new("/var/tmp").join(what).exists() && what.parse::<u32>().is_err())
    };
    until(&format!("{name} has set something up"), || {
        let ended = bench.0.try_wait().expect("our own child");
        assert!(ended.is_none(), "{name} ended before it was interrupted: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
        match when {
            When::Process => !below(pid).is_empty(),
            When::Group if may_have_groups => has_group(&left_by(pid)),
            When::Group | When::Files => !left_by(pid).is_empty(),
        }
    });
    let processes = below(pid);
    kill_process(Pid::from_child(&bench.0), Signal::TERM).expect("sent");
    let status = until_ended(name, &mut bench.0).expect("our own child");
    // The signal itself ends a bench that has nothing to undo.
    assert!(status.code() == Some(143) || status.signal() == Some(15), "{name}: {status}");
    until(&format!("what {name} started has ended"), || {
        processes.iter().all(|process| !Path::new(&format!("/proc/{process}")).exists())
    });
    assert_eq!(left_by(pid), Vec::<String>::new(), "{name}");
    assert!(!swaps().contains(&format!("pagoda-bench-{pid}-")), "{name}: {}", swaps());
}

/// One after the other: some take a good part of the machine.
#[test]
fn asked_to_end_in_the_middle_a_bench_leaves_the_machine_as_it_was() {
    if skip_without_moves("interrupted benches") {
        return;
    }
    let all = [
        ("budget", &["--quick", "--only", "compressed"][..], When::Group),
        ("zones", &["--quick"], When::Files),
        ("migrate", &["--quick"], When::Process),
        ("programs", &["--quick"], When::Group),
        ("counters", &["--quick"], When::Process),
        ("zones", &["--quick"], When::Group),
        ("clear", &["--quick"], When::Process),
        ("tree", &["--quick"], When::Process),
    ];
    // The normal form has each moment.
    for (name, options, when) in all.into_iter().take(length(5, 8)) {
        // It starts with a managed program, where the others have a leftover without one.
        if name == "counters"
            && let Err(why) = pagoda_linux::probe::can_run()
        {
            skip("the interrupted bench of counters", why);
            continue;
        }
        interrupt(name, options, when);
    }
}
