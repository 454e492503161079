//! A child made by a raw fork, which no hook sees, that discards memory while the parent still
//! copies swapped-out pages into it: its discarded pages read zero for good, all others are as they
//! were at the fork, and the parent's memory is its own.

use std::ops::Range;

use pagoda_linux::testing::process::{raw_fork, wait};

use crate::program::{PAGES_PER_MIB, check_page, stamp, write};
use crate::run::begin;
use crate::support::content::Stamp;
use crate::support::memory::Mapping;
use crate::support::random::Random;

/// Twice the budget: most of it is swapped out at the fork.
const PAGES: usize = 64 * PAGES_PER_MIB;

/// Ranges that the child discards. It begins at the end, where the parent's copying comes last.
const DISCARDS: usize = 200;

pub fn stays_discarded() -> Result<String, String> {
    let base_pages = ["4K", "64K"];
    for base_page in base_pages {
        let ended = begin(&[], &["-m", "32M", "--base-page", base_page], &["discard-in-child"])?.end()?;
        if ended.said != "right\n" {
            return Err(format!("base page {base_page}: {}{}", ended.said, ended.errors));
        }
        if ended.counter("stores")? == 0 {
            return Err(format!("base page {base_page}: nothing was out"));
        }
    }
    Ok(format!("{DISCARDS} discards at each of {base_pages:?}"))
}

/// In the program.
pub fn program() -> Result<(), String> {
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    write(&mut mapping, 0..PAGES);
    // On the stack, which is too small to be managed, and touched: the child must not wait for a
    // page before it discards.
    let mut discarded = std::hint::black_box([false; PAGES]);
    let child = raw_fork(|| {
        let result = in_child(&mut mapping, &mut discarded);
        if let Err(wrong) = &result {
            eprintln!("in the child: {wrong}");
        }
        i32::from(result.is_err())
    });
    let status = child.and_then(wait).map_err(|error| error.to_string())?.as_raw();
    if status != 0 {
        return Err(format!("the child ended with status {status:#x}"));
    }
    (0..PAGES).try_for_each(|page| check_page(&mapping, page, stamp(page)))?;
    println!("right");
    Ok(())
}

fn in_child(mapping: &mut Mapping, discarded: &mut [bool; PAGES]) -> Result<(), String> {
    let mut random = Random::new(1, 1);
    for turn in 0..DISCARDS {
        // From the end downwards, a piece here and there.
        let at = PAGES - (turn + 1) * (PAGES / DISCARDS);
        let pages: Range<usize> = at..at + random.between(1, 40);
        mapping.advise(pages.clone(), libc::MADV_DONTNEED).map_err(|error| error.to_string())?;
        discarded[pages].fill(true);
    }
    // The first look waits for pages that are still being copied; the second sees pages that came
    // after the first.
    for look in ["at first", "later"] {
        for (page, &discarded) in discarded.iter().enumerate() {
            let expected = if discarded { Stamp::ZERO } else { stamp(page) };
            check_page(mapping, page, expected).map_err(|wrong| {
                format!("{look}, {}: {wrong}", if discarded { "discarded" } else { "kept" })
            })?;
        }
    }
    Ok(())
}
