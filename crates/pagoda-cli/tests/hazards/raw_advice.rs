//! What a program asks of its memory by raw system calls, which no hook sees.

use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output};

/// The program's exit status where the kernel does not have the call.
const UNKNOWN_CALL: i32 = 77;

fn ends_alike(case: &str) {
    let Some(program) = Program::build("raw_advice", &[]) else { return };
    let native = output(&mut program.native(&[case]));
    if native.status.code() == Some(UNKNOWN_CALL) {
        return skip("raw_advice", format!("the kernel has no {case}"));
    }
    program.ends_as(&native, "32M", &[case]);
}

#[test]
fn a_raw_guard_was_filled_with_its_neighbours() {
    ends_alike("guard");
}

#[test]
fn content_under_a_raw_guard_came_back() {
    ends_alike("removed");
}

#[test]
fn memory_that_a_raw_call_had_wiped_in_children_came_to_them() {
    ends_alike("wipe");
}

#[test]
fn an_unmapping_that_a_seal_forbade_took_content_with_it() {
    ends_alike("sealed");
}
