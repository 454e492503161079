//! The examples that move a region between two processes, as their readers would run them.

use std::process::Command;

use pagoda_linux::testing::skip::skip_without_moves;

#[test]
fn the_example_moves_a_region_between_two_processes() {
    runs_and_says("migrate", "every record is as it was written last");
}

#[test]
fn the_example_uses_a_region_before_it_has_arrived() {
    runs_and_says("post_copy", "every record is as it was written,");
}

fn runs_and_says(name: &str, what: &str) {
    if skip_without_moves("an example of live migration") {
        return;
    }
    // Beside the directory that this test is in.
    let own = std::env::current_exe().expect("a path");
    let example = own.ancestors().nth(2).expect("a directory").join("examples").join(name);
    let ran =
        Command::new(&example).output().unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains(what), "{said}");
}
