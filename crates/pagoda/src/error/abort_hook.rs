//! A library's last word before the process is aborted.
//!
//! This module must never keep the process from ending: going on would mean a hang or wrong data.

use std::sync::OnceLock;

use pagoda_linux::process::last_words::tell;

use super::StopReason;

static HOOK: OnceLock<fn(StopReason)> = OnceLock::new();

/// Has `hook` called before a library's manager aborts the process, and before the line that says
/// why: for logs. It may be set once in a process; returns whether it was.
///
/// The hook runs on a thread of a manager or on one that touched a region. A touch of a region may
/// wait for good there, and so may a lock that a thread holds while it touches one. With
/// [`serve_in_thread`](crate::ManagerBuilder::serve_in_thread) it may only do what a signal handler
/// may.
pub fn set_abort_hook(hook: fn(StopReason)) -> bool {
    HOOK.set(hook).is_ok()
}

/// Ends the process as a library does, with its reason.
pub(crate) fn report_and_abort(reason: StopReason) -> ! {
    if let Some(hook) = HOOK.get() {
        hook(reason);
    }
    tell(format_args!("pagoda: {reason}"));
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    const ROLE: &str = "PAGODA_TEST_ABORTS";

    /// Also where the harness keeps what a test writes, and while another thread writes: it may
    /// wait there for a fault that is not served any more.
    #[test]
    fn the_first_hook_is_told_before_the_process_is_aborted() {
        if std::env::var_os(ROLE).is_some() {
            assert!(set_abort_hook(|reason| tell(format_args!("told {}", reason.code()))));
            assert!(!set_abort_hook(|_| tell(format_args!("told as well"))));
            let _held = std::io::stderr().lock();
            std::thread::scope(|threads| threads.spawn(|| report_and_abort(StopReason::StoreFull)).join())
                .expect_err("it does not return");
        }
        let own = std::env::current_exe().expect("a path");
        let name = "error::abort_hook::tests::the_first_hook_is_told_before_the_process_is_aborted";
        let output = Command::new(own).args(["--exact", name]).env(ROLE, "1").output();
        let output = output.expect("it starts");
        let says = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = format!("told {}\npagoda: {}\n", StopReason::StoreFull.code(), StopReason::StoreFull);
        assert!(says.contains(&told) && !says.contains("told as well"), "{says}");
        assert_eq!(output.status.signal(), Some(6));
    }
}
