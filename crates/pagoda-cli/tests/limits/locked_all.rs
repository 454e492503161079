//! Programs that lock all their memory (`mlockall`): theirs is there and stays, and Pagoda's own
//! does not fill their budget.

use std::time::Duration;

use pagoda_linux::testing::process::lock_all;

use crate::program::{PAGES_PER_MIB, check, fill, write};
use crate::run::{look, looked_at};
use crate::support::memory::Mapping;
use crate::support::suite;

/// Less than half of the budget.
const PAGES: usize = 24 * PAGES_PER_MIB;

/// Pagoda's own is a few hundred KiB; all that it only reserves is several times the budget.
const OWN_MOST: u64 = 8 << 20;

/// From outside.
pub fn is_there_alone() -> Result<String, String> {
    if !rustix::process::geteuid().is_root() {
        return suite::skipped("locked memory", "an ordinary user may lock little");
    }
    // At the same time: they wait for looks.
    let told: Result<Vec<_>, _> = std::thread::scope(|scope| {
        let kinds = ["current", "on-fault", "future"].map(|kind| scope.spawn(move || of_kind(kind)));
        kinds.into_iter().map(|kind| kind.join().expect("it does not panic")).collect()
    });
    Ok(told?.join(", "))
}

fn of_kind(kind: &str) -> Result<String, String> {
    looked_at(&["-m", "64M"], &["locked-all", kind], |ended| {
        let (own, locked) = (ended.counter("own_bytes")?, ended.counter("left_locked_bytes")?);
        // Memory that is not known to be locked yet is taken for Pagoda's own.
        match locked >= 16 << 20 {
            false => Ok(None),
            true if own <= OWN_MOST => Ok(Some(format!("{kind}: {} KiB of Pagoda's own", own >> 10))),
            true => Err(format!("{kind}: {own} bytes of Pagoda's own, {locked} locked")),
        }
    })
}

/// In the program.
pub fn program(kind: &str, looks: u64) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    if kind == "future" {
        // There is no engine yet.
        lock_all(libc::MCL_CURRENT | libc::MCL_FUTURE).map_err(told)?;
        let mut mapping = Mapping::new(PAGES).map_err(told)?;
        expect_present(&mapping, "mapped")?;
        write(&mut mapping, 0..PAGES);
        fill(16, |_| Ok(()))?;
        std::thread::sleep(Duration::from_secs(1));
        expect_present(&mapping, "filled beside")?;
        return check(&mapping, 0..PAGES);
    }
    let mut mapping = Mapping::new(PAGES).map_err(told)?;
    write(&mut mapping, 0..PAGES);
    // Most of it is swapped out after that.
    fill(80, |_| Ok(()))?;
    let on_fault = if kind == "on-fault" { libc::MCL_ONFAULT } else { 0 };
    lock_all(libc::MCL_CURRENT | on_fault).map_err(told)?;
    if kind == "current" {
        expect_present(&mapping, "locked")?;
    }
    check(&mapping, 0..PAGES)?;
    fill(80, |_| Ok(()))?;
    expect_present(&mapping, "filled beside")?;
    check(&mapping, 0..PAGES)?;
    lock_all(0).map_err(told)?;
    expect_some_leave(&mapping)?;
    check(&mapping, 0..PAGES)?;
    lock_all(libc::MCL_CURRENT).map_err(told)?;
    // Unmanaged memory is scanned again only after seconds.
    look(3 + looks);
    Ok(())
}

/// Once the locked mappings are looked at again, which is at most so often.
fn expect_some_leave(mapping: &Mapping) -> Result<(), String> {
    for _ in 0..60 {
        std::thread::sleep(Duration::from_secs(1));
        fill(80, |_| Ok(()))?;
        if present(mapping)? < PAGES {
            return Ok(());
        }
    }
    Err("nothing leaves that is locked no more".to_owned())
}

fn present(mapping: &Mapping) -> Result<usize, String> {
    let states = mapping.present(0..PAGES).map_err(|error| error.to_string())?;
    Ok(states.iter().filter(|state| **state & 1 != 0).count())
}

fn expect_present(mapping: &Mapping, when: &str) -> Result<(), String> {
    match present(mapping)? {
        PAGES => Ok(()),
        there => Err(format!("{when}: {there} of {PAGES} pages are there")),
    }
}
