//! The rows of userfaultfd: the ways to open one, and its features.

use pagoda_linux::probe::{Feature, Features, Refusal, Userfault};

use super::{Row, State, row};

/// Its rows, the ways to open it first.
pub fn rows(found: &Userfault) -> Vec<Row> {
    let mut rows = ways(found);
    rows.extend(parts(found));
    rows
}

/// The ways to open one.
fn ways(found: &Userfault) -> Vec<Row> {
    // One way that serves every fault is enough: a second one that is closed is no lack.
    let full = found.device.is_ok() || found.system_call.is_ok();
    let way = |names, way: Result<(), Refusal>, open, closed| {
        let state = match way {
            Ok(()) => State::Ok,
            Err(_) if full => State::Limited,
            Err(_) => State::Missing,
        };
        let text = way.map_or_else(|refusal| refusal.to_string(), |()| "can be opened".to_owned());
        row(names, state, text, [open, if full { "none: another way is open" } else { closed }])
    };
    let [open, closed] = ["whole programs can be managed", "no whole program can be managed this way"];
    vec![
        way(("userfaultfd.device", "/dev/userfaultfd"), found.device, open, closed),
        way(("userfaultfd.syscall", "userfaultfd system call"), found.system_call, open, closed),
        way(
            ("userfaultfd.user_mode_only", "userfaultfd, user mode only"),
            found.user_mode_only,
            "a library can manage buffers of its own",
            "not even buffers of a library's own can be managed",
        ),
    ]
}

/// Its features, of which the ways to open it offer the same.
fn parts(found: &Userfault) -> Vec<Row> {
    let features = found.features.unwrap_or_default();
    let names = |wanted: &[Feature], has: bool| {
        let names: Vec<_> =
            wanted.iter().filter(|it| features.has(**it) == has).map(|it| it.name()).collect();
        names.join(", ")
    };
    let all_of = |wanted: &[Feature]| {
        let lacking = names(wanted, false);
        let text = if lacking.is_empty() { names(wanted, true) } else { format!("lacks {lacking}") };
        (State::of(lacking.is_empty()), text)
    };
    let (moved, move_text) = match found.moved {
        Some(Ok(())) => (State::Ok, "64 KiB moved and checked".to_owned()),
        Some(Err(error)) => (State::Missing, format!("the kernel offers it, but it failed: {error}")),
        None if found.features.is_none() => (State::Missing, "not tried: no userfaultfd".to_owned()),
        None => (State::Missing, "not in this kernel".to_owned()),
    };
    let (events, events_text) = all_of(&[Feature::EventRemap, Feature::EventRemove, Feature::EventUnmap]);
    let (fork, fork_text) = match (found.fork_events, features.has(Feature::EventFork)) {
        (true, _) => (State::Ok, "granted"),
        (false, true) => (State::Limited, "needs CAP_SYS_PTRACE, which this user lacks"),
        (false, false) => (State::Missing, "not offered"),
    };
    let (dirty, dirty_text) = match (found.write_protect, features.has(Feature::WpAsync)) {
        (true, true) => (State::Ok, "granted, WP_ASYNC too"),
        (true, false) => (State::Limited, "granted, without WP_ASYNC"),
        (false, _) => (State::Missing, "not granted"),
    };
    let (others, others_text) = all_of(&[Feature::ExactAddress, Feature::Poison]);
    vec![
        row(
            ("userfaultfd.move", "UFFDIO_MOVE"),
            moved,
            move_text,
            ["memory is moved, not copied", "nothing can be managed: Pagoda is built on moves"],
        ),
        row(
            ("userfaultfd.events", "events of unmap, remap, discard"),
            events,
            events_text,
            ["what a program discards is seen", "no whole program can be managed"],
        ),
        row(
            ("userfaultfd.fork", "events of fork"),
            fork,
            fork_text,
            [
                "a fork that is not announced is served: the child gets what was evicted",
                "a child that was not announced ends with SIGSEGV instead of reading what was evicted",
            ],
        ),
        row(
            ("userfaultfd.write_protect", "write protection"),
            dirty,
            dirty_text,
            ["changed pages are tracked", "changed pages are found by comparing, or not at all"],
        ),
        row(
            ("userfaultfd.others", "other features"),
            if others == State::Missing && features != Features::default() { State::Limited } else { others },
            others_text,
            [
                "the byte of a fault is known; a page that is lost can be refused",
                "of a fault its page alone is known, or lost pages end the process",
            ],
        ),
    ]
}
