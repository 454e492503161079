//! The announcement of a fork that fails ends: the next unannounced child is not taken for its own,
//! and not waited for.

use pagoda_linux::testing::process::{fork, raw_fork, wait};
use pagoda_linux::testing::sandbox::{Denial, deny_calls};

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// Three times the budget: most of it is swapped out at the fork.
const PAGES: usize = 96 * PAGES_PER_MIB;

/// From outside.
pub fn is_not_announced() -> Result<String, String> {
    let ended = begin(&[], &["-m", "32M"], &["failed-fork"])?.end()?;
    ended.expect_success()?;
    let [forks, unmanaged, taken_over] =
        ["forks", "children_unmanaged", "fork_taken_over_bytes"].map(|name| ended.counter(name));
    let (forks, unmanaged, taken_over) = (forks?, unmanaged?, taken_over?);
    if forks != 2 || unmanaged != 1 || taken_over == 0 {
        return Err(format!("{forks} forks, {unmanaged} unmanaged, {taken_over} bytes taken over"));
    }
    Ok(format!("{taken_over} bytes taken over"))
}

/// In the program.
pub fn program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mapping = Mapping::new(PAGES).map_err(told)?;
    write(&mut mapping, 0..PAGES);
    let refused = || {
        let calls = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork];
        deny_calls(&calls, Denial::NotPermitted).map_err(told)?;
        match fork(|| 0) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
            other => Err(format!("a fork that is not permitted: {other:?}")),
        }
    };
    std::thread::scope(|scope| scope.spawn(refused).join()).expect("it does not panic")?;
    let child = |status| format!("a child ended with status {status:#x}");
    let right = || i32::from(check(&mapping, 0..PAGES).is_err());
    // One after the other: of two at once it is unknown which one was announced.
    let forks: [fn(_) -> _; 2] = [raw_fork, fork];
    for made in forks {
        let status = made(right).and_then(wait).map_err(told)?.as_raw();
        (status == 0).then_some(()).ok_or_else(|| child(status))?;
    }
    check(&mapping, 0..PAGES)
}
