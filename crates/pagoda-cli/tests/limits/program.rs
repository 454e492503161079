//! The programs that are run: each does one thing, checks all its writes, and prints the result for
//! its test on its standard output. A wrong byte is status 9.

use std::process::ExitCode;

use crate::support::content::Stamp;
use crate::support::memory::Mapping;
use crate::support::random::mix;
use crate::{
    discard_in_child, failed_fork, freed, grown, guarded, handed_on, huge_pages, left_alone, left_behind,
    locked_all, mutexes, passing, pinned, process_limits, released, roomy, store_trouble, tree_budget,
    watched,
};

/// OS pages of a MiB.
pub const PAGES_PER_MIB: usize = 256;

/// Runs the program of this name.
pub fn main(arguments: &[String]) -> ExitCode {
    let number = |at: usize| arguments[at].parse::<usize>().expect("a number");
    let result = match arguments[0].as_str() {
        "fill" => fill(number(1), |_| Ok(())),
        "fill-and-break" => fill(number(2), |mib| store_trouble::break_disk(&arguments[1], mib)),
        "fill-beside-locked" => left_alone::fill_beside_locked(),
        "fill-beside-pieces" => left_alone::fill_beside_pieces(),
        "many-mappings" => process_limits::many_mappings(),
        "left-alone" => left_alone::program(number(1) as u64),
        "left-alone-later" => left_alone::later_program(number(1) as u64),
        "locked-all" => locked_all::program(&arguments[1], number(2) as u64),
        "pinned" => pinned::program(),
        "handed-on" => handed_on::program(),
        "watched" => watched::program(),
        "watched-child" => watched::child_program(),
        "roomy" => roomy::program(),
        "large" => roomy::large_program(number(1) as u64),
        "huge-pages" => huge_pages::program(&arguments[1]),
        "grown" => grown::program(number(1) as u64),
        "freed" => freed::program(),
        "guarded" => guarded::program(&arguments[1]),
        "discard-in-child" => discard_in_child::program(),
        "fork-untold" => released::program(&arguments[1]),
        "fork-passing" => passing::program(&arguments[1]),
        "left-behind" => left_behind::program(&arguments[1]),
        "fork-few-descriptors" => process_limits::fork_with_few(number(1) as u64, number(2) as u64),
        "failed-fork" => failed_fork::program(),
        "family" => tree_budget::program(),
        "mutexes-unmapped" => mutexes::unmapped_program(),
        "mutexes-in-child" => mutexes::in_child_program(),
        other => Err(format!("no program is named {other}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::from(9)
        }
    }
}

/// The content of page `page`: nothing that compresses.
pub fn stamp(page: usize) -> Stamp {
    let stamp = mix(page as u64) & !3 | 4;
    Stamp { head: stamp, body: stamp }
}

/// Writes pages, by [`stamp`].
pub fn write(mapping: &mut Mapping, pages: std::ops::Range<usize>) {
    for page in pages {
        stamp(page).fill(mapping.page_mut(page));
    }
}

/// Checks the content of [`write`].
pub fn check(mapping: &Mapping, pages: std::ops::Range<usize>) -> Result<(), String> {
    pages.into_iter().try_for_each(|page| check_page(mapping, page, stamp(page)))
}

/// Checks one page against a stamp.
pub fn check_page(mapping: &Mapping, page: usize, stamp: Stamp) -> Result<(), String> {
    stamp.wrong(mapping.page(page)).map_or(Ok(()), |wrong| Err(format!("page {page}: {wrong}")))
}

/// Fills memory MiB by MiB, looks back at a page of each earlier one now and then, and at all of it
/// in the end.
pub fn fill(mib: usize, between: impl Fn(usize) -> Result<(), String>) -> Result<(), String> {
    let mut mapping = Mapping::new(mib * PAGES_PER_MIB).map_err(|error| error.to_string())?;
    for filled in 0..mib {
        let first = filled * PAGES_PER_MIB;
        write(&mut mapping, first..first + PAGES_PER_MIB);
        for earlier in (0..filled).step_by(7) {
            let page =
                earlier * PAGES_PER_MIB + mix((filled * 1000 + earlier) as u64) as usize % PAGES_PER_MIB;
            check_page(&mapping, page, stamp(page))?;
        }
        between(filled + 1)?;
    }
    check(&mapping, 0..mapping.pages())
}
