//! Programs in a memory cgroup whose limit is below the budget: the kernel ended them without a
//! word.

use std::process::{Command, Output};

use pagoda_linux::swap::cgroup::{Controller, MemoryGroup};
use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

const MIB: u64 = 1 << 20;

/// A group with a limit. None, with a line that says why, where this process may not make one.
pub fn group(name: &str, limit_mib: u64) -> Option<MemoryGroup> {
    let name = format!("pagoda-test-{name}-{}", std::process::id());
    let made = Controller::find().and_then(|controller| controller.create(&name, limit_mib * MIB));
    let group = made.map_err(|error| skip("memory group", error)).ok()?;
    // The machine may have swap, into which the kernel would move memory at the limit.
    let files = ["memory.swappiness", "memory.swap.max"].map(|file| group.procs().with_file_name(file));
    for file in files.iter().filter(|file| file.exists()) {
        std::fs::write(file, "0").expect("the group is ours");
    }
    Some(group)
}

/// Runs it as a process of the group.
pub fn run_in(group: &MemoryGroup, command: &Command) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.procs());
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    output(&mut shell)
}

#[test]
fn a_limit_below_the_budget_ended_the_program_without_a_word() {
    let Some(program) = Program::build("memory_group", &[]) else { return };
    let Some(group) = group("below", 96) else { return };
    let stats = program.directory().join("stats.json");
    let options = ["--memory", "256M", "--stats", stats.to_str().expect("a path in UTF-8")];
    let run = run_in(&group, &program.managed(&options, &["private", "200"]));
    assert_eq!(run.status.code(), Some(0), "{}", said(&run));
    assert!(
        said(&run).contains("in place of 256 MiB: the memory limit of the control group"),
        "{}",
        said(&run)
    );
    let stats: serde_json::Value =
        serde_json::from_slice(&std::fs::read(stats).expect("written")).expect("JSON");
    assert_eq!(stats["memory_group"]["limit_bytes"], 96 * MIB);
    assert_eq!(stats["budget_asked_bytes"], 256 * MIB);
    assert!(stats["counters"]["budget_bytes"].as_u64() < Some(96 * MIB), "{stats}");
    assert!(stats["counters"]["evictions"].as_u64() > Some(0), "{stats}");
}

#[test]
fn a_percentage_was_not_of_the_groups_limit() {
    let Some(program) = Program::build("memory_group", &[]) else { return };
    let Some(group) = group("percent", 128) else { return };
    let run = run_in(&group, &program.managed(&["--memory", "50%"], &["private", "160"]));
    assert_eq!(run.status.code(), Some(0), "{}", said(&run));
    assert!(said(&run).contains("  budget           64 MiB"), "{}", said(&run));
    assert!(!said(&run).contains("control group"), "{}", said(&run));
}

#[test]
fn a_program_that_the_kernel_ended_for_want_of_memory_was_not_told_of() {
    let Some(program) = Program::build("memory_group", &[]) else { return };
    let Some(group) = group("killed", 96) else { return };
    // Shared memory is in no budget, and counts against the limit.
    let run = run_in(&group, &program.managed(&["--quiet", "--memory", "48M"], &["shared", "200"]));
    assert_eq!(run.status.code(), Some(137), "{}", said(&run));
    assert!(
        said(&run).contains("for want of memory; the memory limit of the control group"),
        "{}",
        said(&run)
    );
}

#[test]
fn what_does_not_fit_into_the_groups_limit_was_started() {
    let Some(program) = Program::build("memory_group", &[]) else { return };
    let Some(group) = group("refused", 64) else { return };
    let zones = ["--zone", "near=32M", "--zone", "far=32M@remote"];
    let run = run_in(&group, &program.managed(&zones, &["private", "1"]));
    assert_eq!(run.status.code(), Some(125), "{}", said(&run));
    assert!(said(&run).contains("the zones are 64 MiB together"), "{}", said(&run));
}
