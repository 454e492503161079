//! Many robust mutexes: those that are unmapped without being destroyed make room, and a child
//! keeps in memory all that it has of its parent's.

use pagoda_linux::testing::process::{fork, wait};
use pagoda_linux::testing::robust::RobustMutexes;

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// Two of these are more than can be pinned, one is less.
const MANY: usize = 17_000;
/// More than an engine ever knew of before it began, in less than the budget.
const SOME: usize = 1500;
/// Twice the smaller budget.
const PAGES: usize = 80 * PAGES_PER_MIB;

/// From outside.
pub fn make_room() -> Result<String, String> {
    begin(&[], &["-m", "256M"], &["mutexes-unmapped"])?.end()?.expect_success()?;
    Ok(format!("twice {MANY}"))
}

/// From outside.
pub fn stay_in_a_child() -> Result<String, String> {
    let ended = begin(&[], &["-m", "40M"], &["mutexes-in-child"])?.end()?;
    ended.expect_success()?;
    Ok(format!("{} evictions", ended.counter("evictions")?))
}

/// In the program.
pub fn unmapped_program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let [first, second] = [Mapping::new(MANY), Mapping::new(MANY)];
    RobustMutexes::new(first.map_err(told)?, 1).unmap();
    let mut second = RobustMutexes::new(second.map_err(told)?, 1);
    // Threads begin, and those that are there are as they should be.
    if second.end_holding(&[0, MANY - 1], std::time::Duration::ZERO) != 2 {
        return Err("they were not free".to_owned());
    }
    match second.recover(MANY - 1) {
        (libc::EOWNERDEAD, 0, 0) => Ok(()),
        other => Err(format!("recovered: {other:?}")),
    }
}

/// In the program.
pub fn in_child_program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mutexes = RobustMutexes::new(Mapping::new(SOME).map_err(told)?, 1);
    let mut mapping = Mapping::new(PAGES).map_err(told)?;
    write(&mut mapping, 0..PAGES);
    let child = fork(|| {
        // More than the budget, twice over: every evictable page has left.
        let mut own = match Mapping::new(PAGES) {
            Ok(own) => own,
            Err(_) => return 2,
        };
        write(&mut own, 0..PAGES);
        if mutexes.mapping().is_any_out() {
            return 3;
        }
        i32::from(check(&mapping, 0..PAGES).and_then(|()| check(&own, 0..PAGES)).is_err())
    });
    let status = child.and_then(wait).map_err(told)?.exit_status();
    match status {
        Some(0) => check(&mapping, 0..PAGES),
        Some(3) => Err("a mutex of the child's was out".to_owned()),
        other => Err(format!("the child ended with status {other:?}")),
    }
}
