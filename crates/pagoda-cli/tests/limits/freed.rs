//! Memory that the kernel may free, and that is written again before it did: it leaves like any
//! other.

use crate::program::{PAGES_PER_MIB, check, fill, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// Five eighths of the budget.
const PAGES: usize = 20 * PAGES_PER_MIB;

/// From outside.
pub fn leaves_again() -> Result<String, String> {
    let ended = begin(&[], &["-m", "32M"], &["freed"])?.end()?;
    ended.expect_success()?;
    Ok(ended.said.trim_end().to_owned())
}

/// In the program.
pub fn program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mapping = Mapping::new(PAGES).map_err(told)?;
    // All that is there is managed after that.
    fill(40, |_| Ok(()))?;
    write(&mut mapping, 0..PAGES);
    mapping.advise(0..PAGES, libc::MADV_FREE).map_err(told)?;
    write(&mut mapping, 0..PAGES);
    // It is colder than the memory that is filled meanwhile, several times the budget.
    fill(128, |_| Ok(()))?;
    let there = mapping.present(0..PAGES).map_err(told)?.iter().filter(|state| **state & 1 != 0).count();
    if there > PAGES / 2 {
        return Err(format!("{there} of {PAGES} cold pages are still there"));
    }
    println!("{there} of {PAGES} cold pages are still there");
    check(&mapping, 0..PAGES)
}
