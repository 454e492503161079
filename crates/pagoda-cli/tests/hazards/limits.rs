//! Programs that limit themselves, as test runners, judges and shells do (setrlimit(2)).

use std::process::Output;

use pagoda_linux::testing::length::length;

use crate::program::{Program, output, said};

/// MiB that the program maps where its limit is not one of memory. With its allocations, that is
/// twice the budget.
const MAPPED_MIB: &str = "10";

/// The line of a child that has no engine of its own, which is no complaint about the program.
const CHILD: &str = "pagoda: a process below the program:";

/// Runs it natively and managed: the program gets the same from mmap, malloc, brk, threads and
/// forks, and its content is right in both.
fn gets_the_same(program: &Program, arguments: &[&str]) -> (Output, Output) {
    let native = output(&mut program.native(arguments));
    let managed = output(&mut program.managed(&["--quiet", "--memory", "32M"], arguments));
    let words = said(&managed);
    assert_eq!(managed.status.code(), native.status.code(), "{arguments:?}: {words}{}", said(&native));
    assert_eq!(managed.stdout, native.stdout, "{arguments:?}: {words}");
    let errors = String::from_utf8_lossy(&managed.stderr);
    assert!(errors.lines().all(|line| line.starts_with(CHILD)), "{arguments:?}: {errors}");
    (native, managed)
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_limit_of_data_counted_the_engines_address_space() {
    let Some(program) = Program::build("limits", &[]) else { return };
    for limit in ["300M", "250M"] {
        let (native, _) = gets_the_same(&program, &["DATA", limit]);
        assert!(words(&native).contains("mmap: granted"), "{}", said(&native));
    }
    let (native, _) = gets_the_same(&program, &["DATA", "100M"]);
    assert!(words(&native).contains("mmap: Cannot allocate memory"), "{}", said(&native));
}

#[test]
fn a_limit_of_addresses_counted_the_engines() {
    let Some(program) = Program::build("limits", &[]) else { return };
    let (native, _) = gets_the_same(&program, &["AS", "300M"]);
    assert!(words(&native).contains("mmap: granted"), "{}", said(&native));
    // The limit of a program goes with it, and is read as it was set, also by another program.
    let script = "ulimit -v 307200; ulimit -v; exec \"$@\"";
    let by = ["sh", "-c", script, "sh"].into_iter().map(Into::into).chain([program.path().into()]);
    let by = by.chain(["CORE", "0"].map(Into::into));
    let executed = output(&mut Program::managed_command(&["--quiet", "--memory", "32M"], by));
    let expected = format!("307200\n{}", words(&native));
    assert_eq!(words(&executed), expected, "{}", said(&executed));
}

#[test]
fn a_fork_with_few_descriptors_ended_the_parent() {
    let Some(program) = Program::build("limits", &[]) else { return };
    // With none, with those of the standard streams, and with some of those that a fork takes.
    for limit in length(&["0", "3", "4", "10"][..], &["0", "1", "3", "4", "8", "10", "16"]) {
        gets_the_same(&program, &["NOFILE", limit, MAPPED_MIB]);
    }
}

#[test]
fn other_limits_of_a_program_hold_as_without_an_engine() {
    let Some(program) = Program::build("limits", &[]) else { return };
    for (resource, limit) in [
        ("NPROC", "1"),
        ("STACK", "64M"),
        ("STACK", "256K"),
        ("MEMLOCK", "0"),
        ("CPU", "100"),
        ("CORE", "0"),
        ("FSIZE", "1000M"),
        ("AS", "4000M"),
    ] {
        gets_the_same(&program, &[resource, limit, MAPPED_MIB]);
    }
}

/// The spill file is one of the program's files to the kernel. A page that has no room in it is
/// reported, and no signal ends the process.
#[test]
fn a_limit_of_file_sizes_ends_a_run_with_a_reason_alone() {
    let Some(program) = Program::build("limits", &[]) else { return };
    let managed = output(&mut program.managed(&["--quiet", "--memory", "32M"], &["FSIZE", "1M"]));
    let words = said(&managed);
    match managed.status.code() {
        Some(0) => {}
        Some(125) => assert!(words.contains("ulimit -f"), "{words}"),
        other => panic!("{other:?}: {words}"),
    }
}
