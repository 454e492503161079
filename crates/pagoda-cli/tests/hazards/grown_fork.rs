//! Memory that grows and is split after it was managed, in a program that forks, where the kernel
//! sends no event for forks.

use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

#[test]
fn without_the_right_to_trace_a_child_has_what_mremap_grew_and_lacks_what_its_parent_keeps() {
    let Some(program) = Program::build("grown_fork", &[]) else { return };
    let drop = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"];
    if !std::process::Command::new(drop[0])
        .args(&drop[1..])
        .arg("true")
        .status()
        .is_ok_and(|done| done.success())
    {
        return skip("forks without the right to trace", "setpriv(1) can not give it up");
    }
    let cases = ["ro", "hole", "again"].iter().flat_map(|what| {
        [("place", "160"), ("move", "160"), ("place", "4"), ("place", "1024")]
            .map(|(mode, kib)| [mode, kib, what])
    });
    for case in cases.chain([["place", "160", "kept"]]) {
        // Once for each kind of change: the program is right whatever it grows by.
        if case[..2] == ["place", "160"] {
            let native = output(&mut program.native(&case));
            assert!(native.status.success(), "{case:?}: {}", said(&native));
        }
        let managed = output(&mut program.managed_by(&drop, &["--quiet", "--memory", "32M"], &case));
        assert!(managed.status.success(), "{case:?}: {}", said(&managed));
    }
}
