//! Programs that may open next to no files.

use crate::program::Program;

#[test]
fn a_program_that_may_have_no_descriptor_waits_for_its_memory_for_good() {
    let Some(program) = Program::build("descriptors", &[]) else { return };
    for limit in ["0", "1", "4"] {
        program.ends_alike("32M", &[limit]);
    }
}
