//! The examples, run as the documentation tells their readers to.

use std::process::Command;

use pagoda_linux::testing::skip::skip_without_moves;

#[test]
fn a_region_is_larger_than_its_budget() {
    runs_and_says("region", "256 MiB written and read twice within 64 MiB");
}

#[test]
fn a_mapping_is_adopted_and_given_back() {
    runs_and_says("adopt", "adopted   256 MiB");
}

/// All modes of each case: the cases run beside each other.
#[test]
fn hazards_of_a_host_do_no_harm() {
    std::thread::scope(|scope| {
        for case in ["cost", "protect", "full", "adopt", "fork"] {
            scope.spawn(move || runs_with_and_says("hazards", &[case], "no word was wrong"));
        }
    });
}

#[test]
fn tenants_have_budgets_of_their_own() {
    runs_and_says("tenants", "small   budget   32 MiB, base page 16 KiB: 256 MiB of data");
}

#[cfg(feature = "migrate")]
#[test]
fn a_region_moves_between_two_processes() {
    runs_and_says("migrate", "every record is as it was written last");
}

#[cfg(feature = "migrate")]
#[test]
fn a_region_is_used_before_it_has_arrived() {
    runs_and_says("post_copy", "every record is as it was written,");
}

fn runs_and_says(name: &str, what: &str) {
    runs_with_and_says(name, &[], what);
}

fn runs_with_and_says(name: &str, arguments: &[&str], what: &str) {
    if skip_without_moves("an example") {
        return;
    }
    // Beside the directory that this test is in.
    let own = std::env::current_exe().expect("a path");
    let example = own.ancestors().nth(2).expect("a directory").join("examples").join(name);
    let ran = Command::new(&example)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains(what), "{said}");
}
