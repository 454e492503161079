//! Programs that replace themselves by one that is not managed: the run told of a budget that was
//! kept.

use crate::program::{Program, output, said};

const OPTIONS: [&str; 2] = ["--memory", "48M"];

/// Runs it, and says that the budget was not enforced, with a status of the program's own.
fn is_told(program: &Program, options: &[&str], arguments: &[&str]) {
    let run = output(&mut program.managed(options, arguments));
    let said = said(&run);
    assert_eq!(run.status.code(), Some(7), "{arguments:?}: {said}");
    assert!(said.contains("pagoda: budget: NOT ENFORCED: the program was replaced"), "{arguments:?}: {said}");
    let peak = said.lines().find(|line| line.starts_with("  peak ")).expect("the table");
    assert!(peak.contains("NOT ENFORCED"), "{arguments:?}: {peak}");
}

#[test]
fn a_program_that_was_replaced_at_once_was_told_to_be_within_the_budget() {
    let Some(program) = Program::build("replaced", &[]) else { return };
    let best_effort = [&OPTIONS[..], &["--best-effort"]].concat();
    for options in [&OPTIONS[..], &best_effort] {
        for lasts_ms in ["0", "500"] {
            for before in ["now", "grown"] {
                is_told(&program, options, &[before, lasts_ms]);
            }
        }
    }
}

#[test]
fn what_a_replaced_program_held_was_not_counted() {
    let Some(program) = Program::build("replaced", &[]) else { return };
    let stats = program.directory().join("stats.json");
    let options = ["--quiet", "--memory", "48M", "--stats", stats.to_str().expect("a path in UTF-8")];
    output(&mut program.managed(&options, &["now", "2000"]));
    let stats: serde_json::Value =
        serde_json::from_slice(&std::fs::read(stats).expect("written")).expect("JSON");
    assert_eq!(stats["status"], "replaced", "{stats}");
    assert!(stats["counters"]["anon_peak_bytes"].as_u64() >= Some(64 << 20), "{stats}");
}

#[test]
fn a_child_that_was_replaced_was_counted_as_managed() {
    let Some(program) = Program::build("replaced", &[]) else { return };
    let run = output(&mut program.managed(&OPTIONS, &["child", "2000"]));
    assert_eq!(run.status.code(), Some(7), "{}", said(&run));
    let told = said(&run);
    assert!(told.lines().any(|line| line.starts_with("  children              1")), "{told}");
    assert!(!told.contains("NOT ENFORCED"), "the program itself was managed: {told}");
}

#[test]
fn a_program_that_is_managed_to_its_end_is_not_taken_for_a_replaced_one() {
    let Some(program) = Program::build("replaced", &[]) else { return };
    for (way, status) in [("again", 7), ("raw", 7), ("killed", 137)] {
        let run = output(&mut program.managed(&OPTIONS, &[way, "300"]));
        let told = said(&run);
        assert_eq!(run.status.code(), Some(status), "{way}: {told}");
        assert!(told.contains("  peak ") && !told.contains("NOT ENFORCED"), "{way}: {told}");
    }
}
