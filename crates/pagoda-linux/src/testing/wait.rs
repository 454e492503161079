//! Waits with an end: also where the awaited event never comes, and where the thread that should
//! cause it fails.
//!
//! No test may rely on how long anything here takes: [`HANG`] is far beyond the needs of a loaded
//! machine, and a wait that reaches it fails.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A wait of this length counts as a hang.
pub const HANG: Duration = Duration::from_secs(60);

/// Between two looks at another process: it needs the processor.
const PAUSE: Duration = Duration::from_millis(5);

/// For so long `until` looks without a pause: an event that another thread is just causing is seen
/// at once.
const EAGER: Duration = Duration::from_millis(2);
/// Between two looks after that: other tests need the processor.
const NEXT_LOOK: Duration = Duration::from_micros(200);

/// Waits until `is_so`, which is asked again and again.
///
/// # Panics
/// If that hangs; `what` names the condition.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        let waited = begin.elapsed();
        assert!(waited < HANG, "it did not come within {HANG:?}: {what}");
        if waited < EAGER {
            thread::yield_now();
        } else {
            thread::sleep(NEXT_LOOK);
        }
    }
}

/// Waits for the end of a child, and kills it if it hangs.
///
/// # Errors
/// The kernel's.
///
/// # Panics
/// If it hangs; `what` names the child.
#[track_caller]
pub fn until_ended(what: &str, child: &mut Child) -> io::Result<ExitStatus> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if begin.elapsed() >= HANG {
            child.kill()?;
            child.wait()?;
            panic!("it did not end within {HANG:?}: {what}");
        }
        thread::sleep(PAUSE);
    }
}

/// Sets a flag when it goes, also by a panic: threads that run until then do not hide a failure by
/// running for good.
#[derive(Debug)]
pub struct EndsWith<'a>(pub &'a AtomicBool);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_that_runs_until_a_flag_is_set_ends_with_a_failure_beside_it() {
        let failed = catch_unwind(|| {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                let _ends = EndsWith(&over);
                scope.spawn(|| until("it is over", || over.load(Ordering::Acquire)));
                panic!("it fails");
            });
        });
        assert_eq!(failed.expect_err("it failed").downcast_ref(), Some(&"it fails"));
    }

    #[test]
    fn an_event_that_comes_is_waited_for() {
        let mut looks = 0;
        until("the third look", || {
            looks += 1;
            looks == 3
        });
        let mut child = Command::new("true").spawn().expect("a process");
        assert!(until_ended("true", &mut child).expect("waited for").success());
    }
}
