//! Programs that use their memory in ways that are incompatible with an engine.

use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

#[test]
fn a_process_that_shared_the_memory_of_an_ended_one_read_zeroes() {
    let Some(program) = Program::build("sharer", &[]) else { return };
    program.ends_alike("48M", &[]);
}

#[test]
fn a_program_could_not_register_memory_that_was_managed() {
    let Some(program) = Program::build("own_userfault", &[]) else { return };
    if !output(&mut program.native(&[])).status.success() {
        return skip("a program with a userfaultfd of its own", "it may have none here");
    }
    program.ends_alike("48M", &[]);
}

#[test]
fn a_program_that_registered_a_part_was_managed_no_further() {
    let Some(program) = Program::build("own_userfault_part", &[]) else { return };
    if !output(&mut program.native(&[])).status.success() {
        return skip("a program with a userfaultfd of its own", "it may have none here");
    }
    let managed = output(&mut program.managed(&["--memory", "48M"], &[]));
    let words = said(&managed);
    assert!(managed.status.success(), "{words}");
    assert!(!words.contains("released"), "{words}");
    assert!(words.contains("registered by the program"), "{words}");
}

#[test]
fn a_leak_checker_stopped_the_engine_and_waited_for_its_memory() {
    let Some(program) = Program::build("leaks", &["-fsanitize=leak"]) else { return };
    for arguments in [&[][..], &["leak"]] {
        let native = output(&mut program.native(arguments));
        let managed = output(&mut program.managed(&["--quiet", "--memory", "64M"], arguments));
        let words = said(&managed);
        assert_eq!(managed.status.code(), native.status.code(), "{arguments:?}: {words}");
        assert!(!words.contains("pagoda:"), "{arguments:?}: {words}");
        let leaks = words.contains("LeakSanitizer: detected memory leaks");
        assert_eq!(leaks, arguments.len() == 1, "{words}");
    }
}
