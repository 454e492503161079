//! The report that a test can't run on this machine.
//!
//! Nothing here may ever let a test pass in silence: it prints a line that names the skipped test,
//! and why. Where `PAGODA_NO_SKIPS` is set every test has to run, and it panics.

use std::fmt::Display;

use crate::uffd::shared_fill::{MISSING_SHARED, POISON};
use crate::uffd::{Mode, Uffd, feature};

/// Says that `what` is not tested here.
///
/// # Panics
/// If `PAGODA_NO_SKIPS` is set.
pub fn skip(what: &str, why: impl Display) {
    assert!(std::env::var_os("PAGODA_NO_SKIPS").is_none(), "skipping is not allowed here: {what}: {why}");
    tell(what, why);
}

/// The same where nothing forbids it: for tests that are too large to be demanded everywhere.
pub fn tell(what: &str, why: impl Display) {
    // Past the capture of the output of passing tests, which would hide it.
    let line = format!("SKIPPED {what}: {why}\n");
    let _ = rustix::io::write(std::io::stderr(), line.as_bytes());
}

/// Whether `what` can't be tested here because this process may not hold the kernel's faults of
/// shared memory, which it says.
///
/// # Panics
/// If so, and `PAGODA_NO_SKIPS` is set.
#[must_use]
pub fn skip_without_shared_faults(what: &str) -> bool {
    let skips = Uffd::open(Mode::Full, MISSING_SHARED | POISON).is_err();
    if skips {
        skip(what, "this process may have no userfaultfd that sees the kernel's faults");
    }
    skips
}

/// Whether `what` can't be tested here because this process may not manage memory in user mode,
/// which it says.
///
/// # Panics
/// If so, and `PAGODA_NO_SKIPS` is set.
#[must_use]
pub fn skip_without_moves(what: &str) -> bool {
    let skips = Uffd::open(Mode::UserOnly, feature::PROCESS).is_err();
    if skips {
        skip(what, "this machine offers no userfaultfd with UFFDIO_MOVE");
    }
    skips
}
