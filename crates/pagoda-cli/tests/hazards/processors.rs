//! Programs that look at their processors while the engine holds their thread on one.

use pagoda_linux::process::affinity;
use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

#[test]
fn a_thread_that_was_held_saw_one_processor_and_its_children_had_one() {
    let Some(program) = Program::build("processors", &[]) else { return };
    if affinity::of_thread(0).map_or(0, |own| own.count()) < 2 {
        return skip("threads that are held on a processor", "there is one processor");
    }
    for mode in ["look", "children", "threads", "own"] {
        program.ends_alike("48M", &[mode]);
    }
    let managed = output(&mut program.managed(&["--quiet", "--memory", "48M"], &["raw"]));
    assert!(managed.status.success(), "{}", said(&managed));
    assert!(!said(&managed).contains("narrow: 0 of"), "no streak was seen: {}", said(&managed));
}
