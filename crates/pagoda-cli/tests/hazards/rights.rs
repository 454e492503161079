//! Programs that give up rights: the engine's threads kept those of root in their address space.

use pagoda_linux::testing::skip::skip;

use crate::program::{Program, output, said};

#[test]
fn threads_of_the_engine_kept_the_rights_that_the_program_gave_up() {
    let Some(program) = Program::build("rights", &[]) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("a program that leaves the user root", "this user is not root");
    }
    for mode in ["start", "user", "raw", "back", "capset", "child", "small", "gone"] {
        // However much memory it has.
        let native = output(&mut program.native(&[mode, "1"]));
        for memory in ["36", "1"] {
            let arguments = [mode, memory];
            let managed = output(&mut program.managed(&["--quiet", "--memory", "32M"], &arguments));
            let of_managed = said(&managed);
            assert_eq!(managed.status.code(), native.status.code(), "{arguments:?}: {of_managed}");
            // A child that is forked after the drop may not start an engine, and runs without.
            let is_expected = |line: &str| !line.starts_with("pagoda:") || line.contains("gives up its user");
            assert!(of_managed.lines().all(is_expected), "{arguments:?}: {of_managed}");
        }
    }
}

#[test]
fn threads_of_the_engine_kept_the_groups_that_the_program_gave_up() {
    let Some(program) = Program::build("rights", &[]) else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("a program that gives up groups", "this user is not root");
    }
    for arguments in [["groups", "36"], ["groups", "1"], ["raw_groups", "36"], ["raw_groups", "1"]] {
        let options = ["--quiet", "--memory", "32M"];
        let groups = ["setpriv", "--groups", "7,8,9"];
        let managed = output(&mut program.managed_by(&groups, &options, &arguments));
        assert!(managed.status.success(), "{arguments:?}: {}", said(&managed));
    }
}
