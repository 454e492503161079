//! Programs that leave their namespaces, which the kernel allows only to a process of one thread.

use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

/// The status of a program that the machine does not let do it.
const NOT_ALLOWED: i32 = 77;

/// The table's text of a managed run. None where the machine does not allow it natively.
fn managed(program: &Program, mode: &str) -> Option<String> {
    let native = output(&mut program.native(&[mode]));
    if native.status.code() == Some(NOT_ALLOWED) {
        skip("other namespaces", "this user may have none");
        return None;
    }
    assert!(native.status.success(), "{}", said(&native));
    let managed = output(&mut program.managed(&["--memory", "32M"], &[mode]));
    assert!(managed.status.success(), "{mode}: {}", said(&managed));
    Some(said(&managed))
}

#[test]
fn a_program_of_one_thread_was_refused_another_namespace() {
    let Some(program) = Program::build("namespaces", &[]) else { return };
    for mode in ["early", "large"] {
        let Some(words) = managed(&program, mode) else { return };
        assert!(words.contains("\n  released "), "it is managed no further: {words}");
    }
    let Some(words) = managed(&program, "small") else { return };
    assert!(!words.contains("\n  released ") && words.contains("2 managed"), "{words}");
}

#[test]
fn a_program_of_several_threads_stays_managed_in_its_namespaces() {
    let Some(program) = Program::build("namespaces", &[]) else { return };
    let Some(words) = managed(&program, "threads") else { return };
    assert!(!words.contains("\n  released ") && words.contains("evictions"), "{words}");
}
