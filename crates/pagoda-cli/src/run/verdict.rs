//! The outcome of a program that has ended: the exit status, and the message.
//!
//! Pure, but for the clock of [`was_silent`]. A run that was not managed must never come to success
//! unless that was allowed.

use pagoda::error::{Errno, Failure, StartError, StopReason};
use pagoda::stats::counters::{Stats, Status};

use crate::exit_error::OWN_ERROR;
use crate::run::supervise::Ended;

/// The meaning of an ended program's counters.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub exit_status: u8,
    pub table: bool,
    pub line: Option<String>,
    pub status: &'static str,
}

/// Whether the engine stopped looking long before the program ended; it looks fifty times a second,
/// but not as long as others have all processors. A program that joins right after it replaced
/// another is not silent either.
pub fn was_silent(counters: &Stats) -> bool {
    const SILENCE_NS: u64 = 1_000_000_000;
    counters.last_look_ns != 0
        && pagoda_linux::process::thread::now_ns().saturating_sub(counters.last_look_ns) > SILENCE_NS
}

/// A program whose engine ended it, or that ran without its budget and without permission to do so,
/// has not succeeded: for any status of its own, the caller's request was not met.
pub fn verdict(ended: Ended, counters: &Stats, replaced: bool, best_effort: bool) -> Verdict {
    let own = ended.end.status();
    let table = |line, exit_status, status| Verdict { exit_status, table: true, line, status };
    let no_table =
        |line, exit_status, status| Verdict { exit_status, table: false, line: Some(line), status };
    match (Failure::from_snapshot(counters), Status::from_word(counters.status)) {
        (Some(failure @ Failure::Start(_)), _) if best_effort => {
            no_table(not_enforced(told(&failure)), own, "failed")
        }
        (Some(failure @ Failure::Start(_)), _) => no_table(told(&failure), OWN_ERROR, "failed"),
        (Some(failure), _) => table(Some(told(&failure)), OWN_ERROR, "failed"),
        (None, Status::Managed | Status::Small | Status::Released) if replaced => {
            let line = not_enforced(
                "the program was replaced by one that is not managed: exec of a static or setuid one, or with a cleared \
                 environment, or as another user",
            );
            table(Some(line), own, "replaced")
        }
        // A program that is watched and never grew large enough for an engine was within any
        // budget.
        (None, Status::Managed | Status::Small) => table(None, own, "managed"),
        (None, Status::Released) => table(None, own, "released"),
        (None, Status::Failed) => {
            let line =
                "Pagoda could not start in the program, and did not say why; please report this".to_owned();
            no_table(line, if best_effort { own } else { OWN_ERROR }, "failed")
        }
        (None, Status::NotStarted | Status::Unmanaged) => {
            let reason = "Pagoda never started in the program; the loader's message above, if there is one, says \
                          why, or it ended before its first library was loaded";
            // A status that tells of a failure already is worth more than ours.
            let exit_status = if best_effort || own != 0 { own } else { OWN_ERROR };
            no_table(not_enforced(reason), exit_status, "not started")
        }
    }
}

pub fn not_enforced(reason: impl std::fmt::Display) -> String {
    format!("budget: NOT ENFORCED: {reason}")
}

/// The failure of a process below the program; the program itself has seen that one's status and
/// went on.
pub fn failed_below((error_code, error_errno): (u64, u64)) -> String {
    let mut counters = Stats::default();
    (counters.error_code, counters.error_errno) = (error_code, error_errno);
    Failure::from_snapshot(&counters)
        .map_or_else(String::new, |failure| format!("a process below the program: {}", told(&failure)))
}

/// `ENFILE` and `EMFILE`.
const DESCRIPTOR_LIMITS: [Errno; 2] = [Errno(23), Errno(24)];

/// The engine's message, and the options that set its subject: the engine does not know them, for a
/// library has none.
fn told(failure: &Failure) -> String {
    let options = match failure {
        // For any file that was to be opened: the message is about descriptors then.
        Failure::Start(error) if DESCRIPTOR_LIMITS.contains(&error.errno()) => "",
        Failure::Start(StartError::BudgetBelowMinimum) => " (--memory)",
        Failure::Start(StartError::ShadowMemory) => " (--best-effort)",
        Failure::Start(StartError::ZonesUnfit | StartError::ZoneNode(_)) => " (--zone)",
        Failure::Start(StartError::StoreDirectory(_)) => " (--store-dir, --file-limit)",
        Failure::Start(StartError::StoreDirectoryInMemory | StartError::StoreDirectIo(_)) => " (--store-dir)",
        Failure::Start(StartError::RemoteStore(_) | StartError::RemoteStoreUnfit) => {
            " (--remote-store, --remote-password-file, --remote-limit)"
        }
        Failure::Stop(StopReason::StoreFull) => " (--memory, --file-limit)",
        Failure::Stop(StopReason::NothingEvictable(_)) => " (--memory)",
        Failure::Stop(StopReason::StoreWrite(_) | StopReason::ContentUnreadable(_)) => " (--store-dir)",
        Failure::Start(_) | Failure::Stop(_) | Failure::Unknown { .. } => "",
    };
    format!("{failure}{options}")
}

#[cfg(test)]
mod tests {
    use pagoda::error::Immovable;

    use super::*;
    use crate::run::supervise::End;

    fn judged(end: End, status: Status, error_code: u64, best_effort: bool) -> Verdict {
        let counters = crate::stats_with(Stats::default(), |stats| {
            stats.status = status as u64;
            stats.error_code = error_code;
        });
        verdict(Ended { end, resident_peak_bytes: 0, is_replaced: false }, &counters, false, best_effort)
    }

    #[test]
    fn a_managed_program_keeps_its_status() {
        for (end, status) in [(End::Exited(0), 0), (End::Exited(7), 7), (End::Killed(9), 137)] {
            let managed = judged(end, Status::Managed, 0, false);
            assert_eq!(managed, Verdict { exit_status: status, table: true, line: None, status: "managed" });
            assert_eq!(judged(end, Status::Small, 0, false), managed);
            assert_eq!(judged(end, Status::Released, 0, false).exit_status, status);
        }
    }

    #[test]
    fn an_engine_that_did_not_start_is_our_error_unless_that_was_allowed() {
        let code = StartError::MoveMissing.code();
        let refused = judged(End::Exited(0), Status::Failed, code, false);
        assert_eq!((refused.exit_status, refused.table), (OWN_ERROR, false));
        assert_eq!(refused.line, Some(StartError::MoveMissing.to_string()));
        let allowed = judged(End::Exited(3), Status::Failed, code, true);
        assert_eq!(allowed.exit_status, 3);
        assert!(allowed.line.is_some_and(|line| line.starts_with("budget: NOT ENFORCED")));
    }

    #[test]
    fn an_engine_that_ended_its_process_is_our_error_and_has_its_table() {
        for best_effort in [false, true] {
            for (reason, options) in [
                (StopReason::StoreWrite(Errno::NONE), " (--store-dir)"),
                (StopReason::StoreFull, " (--memory, --file-limit)"),
                (StopReason::NothingEvictable(Immovable::IN_USE), " (--memory)"),
                (StopReason::HandlerStuck, ""),
            ] {
                let stopped = judged(End::Killed(6), Status::Managed, reason.code(), best_effort);
                assert_eq!((stopped.exit_status, stopped.table), (OWN_ERROR, true));
                assert_eq!(stopped.line, Some(format!("{reason}{options}")));
            }
        }
    }

    #[test]
    fn the_lack_of_a_store_directory_is_said_with_its_option_and_a_limit_without() {
        for (error, ends) in [
            (StartError::StoreDirectory(Errno(28)), "has room (--store-dir, --file-limit)"),
            (StartError::StoreDirectoryInMemory, "on a disk (--store-dir)"),
            (StartError::StoreDirectIo(Errno(22)), "(--store-dir)"),
            (StartError::StoreDirectory(Errno(24)), "`ulimit -n` by 16"),
        ] {
            let said = told(&Failure::Start(error));
            assert!(said.ends_with(ends), "{said}");
        }
    }

    #[test]
    fn success_without_an_engine_is_no_success() {
        for (end, best_effort, status) in
            [(End::Exited(0), false, OWN_ERROR), (End::Exited(0), true, 0), (End::Killed(15), false, 143)]
        {
            let unstarted = judged(end, Status::NotStarted, 0, best_effort);
            assert_eq!((unstarted.exit_status, unstarted.table), (status, false));
            assert!(unstarted.line.is_some_and(|line| line.contains("NOT ENFORCED")));
        }
    }
}
