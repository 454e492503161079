//! The sign of an engine for tests, seen from outside: its handlers. A process that is only watched
//! has none.

use std::process::Command;
use std::time::Duration;

use crate::program::fill;
use crate::run::begin;
use crate::support::managed::ROLE;
use crate::support::tree::{has_engine, has_thread, with_descendants};

/// Long enough to be seen small.
const SMALL: Duration = Duration::from_millis(1000);

/// From outside.
pub fn has_no_engine() -> Result<String, String> {
    let (mut watched, mut managed) = (0, 0);
    let ended = begin(&[], &["-m", "32M"], &["watched"])?.end_watched(|pagoda| {
        // Behind pagoda itself and the program: the child.
        for &pid in with_descendants(pagoda).iter().skip(2) {
            let engine = has_engine(pid);
            managed += usize::from(engine);
            watched += usize::from(has_thread(pid, "pagoda-watch") && !engine);
        }
    })?;
    ended.expect_success()?;
    if watched == 0 || managed == 0 {
        return Err(format!("{watched} looks saw a watcher alone, {managed} an engine"));
    }
    Ok(format!("{watched} looks saw a watcher alone, {managed} an engine"))
}

/// In the program, which has an engine from its start: a child that has none as long as it is
/// small.
pub fn program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let own = std::env::current_exe().map_err(told)?;
    let status = Command::new(own).args([ROLE, "watched-child"]).status().map_err(told)?;
    if status.success() { Ok(()) } else { Err(format!("the child: {status}")) }
}

/// In the child: small for a while, and then more than the budget.
pub fn child_program() -> Result<(), String> {
    std::thread::sleep(SMALL);
    fill(60, |_| Ok(()))?;
    // As long as the other side needs to see it large, on a busy machine, too.
    std::thread::sleep(SMALL);
    Ok(())
}
