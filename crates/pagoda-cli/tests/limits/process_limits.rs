//! Limits of the process: descriptors, addresses and mappings.

use std::time::{Duration, Instant};

use pagoda_linux::testing::process::{fork, wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// A shell that sets a limit (its letter and value are the next two words) and becomes the command
/// that follows. It closes descriptors that the tests inherited, from make(1) for example.
const LIMITED: &str = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit -$0 $1 && shift && exec \"$@\"";

fn limited(
    letter: &str,
    limit: &str,
    options: &[&str],
    program: &[&str],
) -> Result<crate::run::Ended, String> {
    begin(&["sh", "-c", LIMITED, letter, limit], options, program)?.end()
}

/// With too few the run is refused for just that; with enough of them for the program's own it is
/// not.
pub fn descriptors() -> Result<String, String> {
    let run = |limit: &str| limited("n", limit, &["-m", "64M"], &["fill", "1"]);
    let mut refused = Vec::new();
    // With so few pagoda itself can't try the store directory.
    run("5")?.expect_refusal(&["spill file", "ulimit -n"]).map_err(|error| format!("5: {error}"))?;
    for limit in ["6", "7", "8"] {
        refused.push(
            run(limit)?
                .expect_refusal(&["EMFILE", "ulimit -n"])
                .map_err(|error| format!("{limit}: {error}"))?,
        );
    }
    run("24")?.expect_success()?;
    Ok(refused[0].clone())
}

/// A program that has set itself a low limit forks all the same, whether it is one that could be
/// raised or not, and stays managed.
pub fn descriptors_of_a_fork() -> Result<String, String> {
    for hard in ["64", "4"] {
        let ended = begin(&[], &["-m", "32M"], &["fork-few-descriptors", "4", hard])?.end()?;
        ended.expect_success()?;
        if ended.counter("forks")? != 1 || ended.counter("stores")? == 0 {
            return Err(format!("{} forks, {} stores", ended.counter("forks")?, ended.counter("stores")?));
        }
    }
    Ok("1 fork".to_owned())
}

/// In the program: a fork with these limits, soft and hard, while most of its memory is swapped
/// out.
pub fn fork_with_few(soft: u64, hard: u64) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let pages = 64 * PAGES_PER_MIB;
    let mut mapping = Mapping::new(pages).map_err(told)?;
    write(&mut mapping, 0..pages);
    let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
    setrlimit(Resource::Nofile, limit).map_err(|error| error.to_string())?;
    let child = fork(|| i32::from(check(&mapping, 0..pages).is_err())).map_err(told)?;
    match wait(child).map_err(told)?.as_raw() {
        0 => {}
        status => return Err(format!("the child ended with status {status:#x}")),
    }
    let after = getrlimit(Resource::Nofile);
    if after == limit { check(&mapping, 0..pages) } else { Err(format!("the limit is {after:?}")) }
}

/// The same of addresses.
pub fn addresses() -> Result<String, String> {
    // In KiB. The arenas alone are twice the budget.
    let run = |limit: &str| limited("v", limit, &["-m", "64M"], &["fill", "1"]);
    let mut said = String::new();
    for limit in ["60000", "120000", "170000"] {
        said = run(limit)?
            .expect_refusal(&["ENOMEM", "ulimit -v"])
            .map_err(|error| format!("{limit}: {error}"))?;
    }
    run("1000000")?.expect_success()?;
    Ok(said)
}

/// The kernel refuses mappings to the program as it would without Pagoda, and the program's memory
/// stays right, within the budget.
pub fn mappings() -> Result<String, String> {
    let ended = begin(&[], &["-m", "64M"], &["many-mappings"])?.end()?;
    ended.expect_success()?;
    if ended.counter("evictions")? == 0 {
        return Err("nothing was evicted".to_owned());
    }
    Ok(ended.said.trim().to_owned())
}

/// More than `vm.max_map_count` is by default.
const MAPPINGS: usize = 80_000;

/// Pages of them that are written, each a mapping of its own and too small to be managed: a quarter
/// of the budget.
const WRITTEN: usize = 4096;

/// How long it may take until some of the filled memory is swapped out.
const EVICTED_WITHIN: Duration = Duration::from_secs(20);

/// Filled after the limit was reached: more than the budget.
const FILLED_MIB: usize = 80;

/// In the program: splits mappings until the kernel refuses, then writes its pages.
pub fn many_mappings() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut filled = Mapping::new(FILLED_MIB * PAGES_PER_MIB).map_err(told)?;
    // The kernel makes one mapping of neighbours that are alike: every other page gets another
    // protection. Where far more mappings are allowed than is usual there is no limit to be reached
    // here.
    let mut split = Mapping::new(MAPPINGS).map_err(told)?;
    let refused =
        (0..MAPPINGS / 2).find(|piece| split.protect(2 * piece..2 * piece + 1, libc::PROT_READ).is_err());
    let pieces = refused.unwrap_or(MAPPINGS / 2).min(WRITTEN);
    (0..pieces).for_each(|piece| split.page_mut(2 * piece + 1)[0] = piece as u64);
    write(&mut filled, 0..FILLED_MIB * PAGES_PER_MIB);
    // The maps of so many take a while to be read, and the program would be done before.
    let begin = Instant::now();
    while !filled.is_any_out() && begin.elapsed() < EVICTED_WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    check(&filled, 0..FILLED_MIB * PAGES_PER_MIB)?;
    if let Some(wrong) = (0..pieces).find(|piece| split.page(2 * piece + 1)[0] != *piece as u64) {
        return Err(format!("piece {wrong} holds {}", split.page(2 * wrong + 1)[0]));
    }
    println!("{} mappings", 2 * refused.unwrap_or(MAPPINGS / 2));
    Ok(())
}
