//! Processes that share the memory of another one and outlive it: they read zeroes where that was
//! swapped out.

use std::fs;

use pagoda_linux::testing::wait::until;

use crate::members::members;
use crate::program::{Program, output, said};

/// The program's status where such a process was ended by SIGBUS.
const TOLD: i32 = 3;

fn is_told(case: &str) {
    let Some(program) = Program::build("outlived", &[]) else { return };
    let native = output(&mut program.native(&[case]));
    assert_eq!(native.status.code(), Some(0), "{}", said(&native));
    let managed = output(&mut program.managed(&["--quiet", "--memory", "32M"], &[case]));
    let told = said(&managed);
    assert_eq!(managed.status.code(), Some(TOLD), "{told}");
    assert!(told.contains("pagoda: a process shared the memory of process"), "{told}");
}

#[test]
fn a_raw_clone_read_zeroes_when_its_maker_had_ended() {
    is_told("raw");
}

#[test]
fn a_child_of_vfork_read_zeroes_when_its_parent_was_killed() {
    is_told("vfork");
}

#[test]
fn a_raw_clone_read_zeroes_when_the_program_and_its_run_had_ended() {
    let Some(program) = Program::build("outlived", &[]) else { return };
    let result = program.directory().join("result");
    let words = ["first", result.to_str().expect("a path in UTF-8")];
    let managed = output(&mut program.managed(&["--quiet", "--memory", "32M"], &words));
    assert!(managed.status.success(), "{}", said(&managed));
    until("the process has ended", || members(&program.path()).is_empty());
    assert!(!result.exists(), "it read all of its memory: {:?}", fs::read(&result));
}
