//! Programs whose threads end one by one.

use crate::program::Program;

#[test]
fn a_process_whose_last_thread_ended_by_exit_went_on_for_good() {
    let Some(program) = Program::build("last_thread", &[]) else { return };
    for mode in ["small", "big", "strict", "after", "many", "joined", "child"] {
        program.ends_alike("32M", &[mode]);
    }
}

#[test]
fn a_process_whose_main_thread_had_ended_was_not_managed() {
    let Some(program) = Program::build("last_thread", &[]) else { return };
    program.ends_alike("32M", &["worker"]);
}
