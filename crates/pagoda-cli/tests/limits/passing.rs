//! Forks while there is plenty of room, so that nothing is registered, whose children live on as
//! memory gets short: the parent breaks the sharing of their pages and evicts them, also after an
//! unseen fork.

use std::io::{Read, Write};

use pagoda_linux::testing::process::{fork, raw_fork, wait};

use crate::program::{PAGES_PER_MIB, check, fill, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// A fifth of the budget: nothing is registered for that.
const SHARED_PAGES: usize = 12 * PAGES_PER_MIB;

/// From outside.
pub fn shared_memory_leaves() -> Result<String, String> {
    let mut told = String::new();
    for (kind, least_forks) in [("seen", 1), ("unseen", 0)] {
        let ended = begin(&[], &["-m", "64M"], &["fork-passing", kind])?.end()?;
        ended.expect_success()?;
        let (forks, own, evictions) =
            (ended.counter("forks")?, ended.counter("made_own_bytes")?, ended.counter("evictions")?);
        if forks < least_forks || own == 0 || evictions == 0 {
            return Err(format!("{kind}: {forks} forks, {own} bytes made its own, {evictions} evictions"));
        }
        told += &format!("{kind}: made_own_bytes {own}, ");
    }
    Ok(told.trim_end_matches(", ").to_owned())
}

/// In the program: a child that reads its shared memory before the parent fills twice the budget,
/// and after that.
pub fn program(kind: &str) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mapping = Mapping::new(SHARED_PAGES).map_err(told)?;
    write(&mut mapping, 0..SHARED_PAGES);
    let (mut goes_on, mut tell) = std::io::pipe().map_err(told)?;
    let child = || {
        let mut one = [0];
        let right = check(&mapping, 0..SHARED_PAGES)
            .and_then(|()| goes_on.read_exact(&mut one).map_err(told))
            .and_then(|()| check(&mapping, 0..SHARED_PAGES));
        i32::from(right.is_err())
    };
    let child = if kind == "seen" { fork(child) } else { raw_fork(child) }.map_err(told)?;
    fill(128, |_| Ok(()))?;
    check(&mapping, 0..SHARED_PAGES)?;
    tell.write_all(&[1]).map_err(told)?;
    let status = wait(child).map_err(told)?.as_raw();
    if status == 0 { Ok(()) } else { Err(format!("the child ended with status {status:#x}")) }
}
