//! A program that was ended for lack of memory, with a reason that was not its reason: "locked,
//! pinned or shared" for all that can't be moved out.

use std::ffi::OsString;

use super::program::{Program, output, said};
use crate::impatient::IMPATIENT;

#[test]
fn a_program_that_is_ended_is_told_what_its_memory_is_that_can_not_be_moved() {
    let Some(program) = Program::build("reasons", &[]) else { return };
    let program = &program;
    let kinds =
        [("read-only", "can't be written"), ("executable", "is executable"), ("locked", "is locked (mlock)")];
    // Each waits for memory before it is ended: they do it together.
    std::thread::scope(|scope| {
        for (kind, reason) in kinds {
            scope.spawn(move || expect_reason(program, kind, reason));
        }
    });
}

fn expect_reason(program: &Program, kind: &str, reason: &str) {
    let native = output(&mut program.native(&[kind]));
    if native.status.code() != Some(0) {
        // This machine does not let it lock so much, say.
        return;
    }
    let words = IMPATIENT.map(OsString::from).into_iter();
    let words = words.chain([program.path().into(), kind.into(), "go on".into()]);
    let ended = output(&mut Program::managed_command(&["--memory", "48M"], words));
    let said = said(&ended);
    assert_eq!(ended.status.code(), Some(125), "{kind}: {said}");
    let line =
        said.lines().find(|line| line.contains("memory was needed")).unwrap_or_else(|| panic!("{said}"));
    assert!(
        line.contains(reason) && line.contains("MiB of it") && line.contains("--memory"),
        "{kind}: {line}"
    );
}
