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

/// Two looks that lie further apart count as so far: the machine or all processes of a test may be
/// paused for minutes.
const PAUSED: Duration = Duration::from_secs(1);

/// The time that was waited, but for pauses of the machine.
#[derive(Debug)]
pub struct Waited {
    looked: Instant,
    so_far: Duration,
}

impl Default for Waited {
    fn default() -> Self {
        Self { looked: Instant::now(), so_far: Duration::ZERO }
    }
}

impl Waited {
    /// Until now. For each look of a loop.
    pub fn so_far(&mut self) -> Duration {
        self.by(Instant::now())
    }

    fn by(&mut self, now: Instant) -> Duration {
        self.so_far += now.saturating_duration_since(self.looked).min(PAUSED);
        self.looked = now;
        self.so_far
    }
}

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
    let mut waited = Waited::default();
    while !is_so() {
        let waited = waited.so_far();
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
    let mut waited = Waited::default();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if waited.so_far() >= HANG {
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
    fn a_pause_of_the_machine_is_no_hang() {
        let mut waited = Waited::default();
        let begin = waited.looked;
        assert_eq!(waited.by(begin + PAUSED / 2), PAUSED / 2);
        assert_eq!(waited.by(begin + 10 * HANG), PAUSED / 2 + PAUSED);
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
