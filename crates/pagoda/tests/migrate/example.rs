//! The example that moves a region between two processes, as its reader would run it.

use std::process::Command;

use crate::support::skip;

#[test]
fn the_example_moves_a_region_between_two_processes() {
    if skip("the example of live migration") {
        return;
    }
    // Beside the directory that this test is in.
    let own = std::env::current_exe().expect("a path");
    let example = own.ancestors().nth(2).expect("a directory").join("examples/migrate");
    let ran =
        Command::new(&example).output().unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("every record is as it was written last"), "{said}");
}
