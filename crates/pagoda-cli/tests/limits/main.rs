//! Programs that run into a limit under `pagoda run`, or into none: a store that is full or fails,
//! too few descriptors, mappings or addresses, memory that can't be managed, plenty of room. Each
//! run ends by itself, with right data or with one line that says why.
//!
//! Like the races this executable runs itself as the program.

#[path = "../support/mod.rs"]
mod support;

mod discard_in_child;
mod failed_fork;
mod freed;
mod grown;
mod guarded;
mod handed_on;
mod huge_pages;
mod left_alone;
mod left_behind;
mod locked_all;
mod mutexes;
mod passing;
mod pinned;
mod process_limits;
mod program;
mod released;
#[cfg(target_arch = "x86_64")]
mod replaced;
mod roomy;
mod run;
#[cfg(target_arch = "x86_64")]
#[path = "../support/static_program.rs"]
mod static_program;
mod store_trouble;
mod tree_budget;
mod watched;
mod zoned;

use std::process::ExitCode;

use support::managed::ROLE;
use support::suite::{self, Test};

type Body = fn() -> Result<String, String>;

/// Most of these programs wait for a look of the watcher most of their time.
const AT_ONCE: usize = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == ROLE) {
        return program::main(&arguments[1..]);
    }
    // Those that take longest begin first, so that none of them is left alone at the end.
    let tests: &[(&str, Body)] = &[
        ("a_child_has_everything_whatever_its_parent_does_next", left_behind::has_everything),
        ("a_store_that_fills_up_or_fails_ends_the_program_with_a_reason", store_trouble::ends_with_a_reason),
        ("a_program_that_locks_all_its_memory_locks_its_own_alone", locked_all::is_there_alone),
        (
            "a_child_whose_parent_is_killed_before_that_ends_with_a_reason",
            left_behind::ends_without_its_parent,
        ),
        ("a_program_over_its_zones_has_right_data_under_each_policy", zoned::is_right),
        ("what_the_child_of_a_raw_fork_discards_stays_discarded", discard_in_child::stays_discarded),
        ("a_process_and_its_children_stay_within_one_budget", tree_budget::is_kept),
        ("too_few_descriptors_are_named", process_limits::descriptors),
        (
            "a_fork_with_too_few_descriptors_gets_one_or_ends_with_a_reason",
            process_limits::descriptors_of_a_fork,
        ),
        ("too_few_addresses_are_named", process_limits::addresses),
        ("at_the_limit_of_mappings_the_data_stays_right", process_limits::mappings),
        ("what_is_left_alone_is_counted", left_alone::is_counted),
        ("what_became_unmovable_is_counted", left_alone::later_is_counted),
        ("what_is_pinned_stays_and_is_counted", pinned::stays),
        ("what_is_handed_on_to_a_pipe_is_right_there", handed_on::is_right),
        ("who_is_only_watched_is_not_taken_for_managed", watched::has_no_engine),
        ("what_has_plenty_of_room_is_left_to_the_kernel", roomy::is_left_to_the_kernel),
        ("what_could_exceed_a_small_budget_is_managed_while_empty", roomy::could_exceed_the_budget),
        (
            "the_kernels_huge_pages_are_kept_while_there_is_room_and_right_when_there_is_none",
            huge_pages::are_kept_while_there_is_room,
        ),
        ("what_a_managed_mapping_grows_by_is_managed_while_all_else_is_followed", grown::is_managed),
        ("what_the_kernel_may_free_leaves_also_if_it_is_written_again", freed::leaves_again),
        ("a_guard_stays_and_what_it_took_the_place_of_is_gone", guarded::are_kept),
        ("the_child_of_a_fork_that_nobody_tells_of_has_everything", released::is_all_there),
        ("what_a_fork_shares_leaves_also_if_nobody_saw_it", passing::shared_memory_leaves),
        ("a_fork_that_failed_is_not_announced_any_more", failed_fork::is_not_announced),
        ("robust_mutexes_that_were_unmapped_make_room_for_others", mutexes::make_room),
        ("a_child_keeps_many_robust_mutexes_in_memory", mutexes::stay_in_a_child),
        ("zones_that_can_not_be_are_refused_in_one_line", zoned::are_refused),
        #[cfg(target_arch = "x86_64")]
        ("a_program_that_is_replaced_is_told_if_it_is_not_managed_any_more", replaced::is_told),
    ];
    let test = |&(name, run): &(&str, Body)| Test {
        name: name.to_owned(),
        run: Box::new(move || if suite::can_run("limits") { run() } else { Ok(suite::SKIPPED.to_owned()) }),
    };
    suite::run(&arguments, tests.iter().map(test).collect(), AT_ONCE)
}
