//! Guards (`MADV_GUARD_INSTALL`) in managed memory: the content in their place is gone, also if it
//! was swapped out, and no page that is brought in beside them takes their place.

use pagoda_linux::mem::guards;
use pagoda_linux::testing::process::{fork, wait};

use crate::program::{PAGES_PER_MIB, check, check_page, fill, write};
use crate::run::begin;
use crate::support::content::Stamp;
use crate::support::memory::{Mapping, PAGE};
use crate::support::suite;

/// Half as much again as the budget.
const PAGES: usize = 48 * PAGES_PER_MIB;

/// OS pages of a base page.
const BASE: usize = 16;

/// A guard lies in each base page there.
const GUARDED: usize = 4 * PAGES_PER_MIB;

/// From outside.
pub fn are_kept() -> Result<String, String> {
    for kind in ["content", "fill"] {
        let ended = begin(&[], &["-m", "32M", "--base-page", "64K"], &["guarded", kind])?.end()?;
        if ended.said == "no guards\n" {
            return suite::skipped("guards", "the kernel has none (Linux 6.13)");
        }
        if ended.said != "right\n" {
            return Err(format!("{kind}: {}{}", ended.said, ended.errors));
        }
        ended.expect_success()?;
    }
    Ok(format!("{} guards", GUARDED / BASE))
}

/// In the program.
pub fn program(kind: &str) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mapping = Mapping::new(PAGES).map_err(told)?;
    if mapping.advise(0..1, guards::INSTALL).is_err() {
        println!("no guards");
        return Ok(());
    }
    mapping.advise(0..1, guards::REMOVE).map_err(told)?;
    // Aligned to base pages.
    let first = BASE - mapping.start() / PAGE % BASE;
    let guarded = (first..first + GUARDED).step_by(BASE).map(|page| page + 5);
    if kind == "content" {
        // The first pages are swapped out by now.
        write(&mut mapping, 0..PAGES);
        for page in guarded.clone() {
            mapping.advise(page..page + 1, guards::INSTALL).map_err(told)?;
            mapping.advise(page..page + 1, guards::REMOVE).map_err(told)?;
        }
        for page in guarded {
            check_page(&mapping, page, Stamp::ZERO)?;
            check(&mapping, page + 1..page + BASE - 1)?;
        }
    } else {
        // Everything is managed after that, and there is room again.
        fill(40, |_| Ok(()))?;
        for page in guarded.clone() {
            // A part of a base page is filled by the kernel's copy, while there is room.
            write(&mut mapping, page - 5..page - 4);
            mapping.advise(page - 4..page + 11, libc::MADV_DONTNEED).map_err(told)?;
            mapping.advise(page..page + 1, guards::INSTALL).map_err(told)?;
            write(&mut mapping, page - 4..page - 3);
        }
        for page in guarded.step_by(7) {
            // It has to end by SIGSEGV.
            let child = fork(|| std::hint::black_box(mapping.page(page)[0]) as i32);
            let status = child.and_then(wait).map_err(told)?.as_raw();
            if status & 0x7f != libc::SIGSEGV {
                return Err(format!("page {page}: memory lies over a guard: status {status:#x}"));
            }
        }
    }
    println!("right");
    Ok(())
}
