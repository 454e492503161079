//! A program that asks the kernel for huge pages: it has them while there is room, and none comes
//! unasked once parts of them have to leave.

use std::fs;

use pagoda_linux::mem::transparent_huge;

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// It asks for this much in huge pages, in a budget that leaves room for twice that.
const ASKED_MIB: usize = 48;

/// So that a fifth of all has to leave.
const TOO_MUCH_MIB: usize = 192;

/// From outside.
pub fn are_kept_while_there_is_room() -> Result<String, String> {
    let given = !fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .map_or(true, |choice| choice.contains("[never]"));
    let may =
        given && memory("/proc/self/status", "THP_enabled:")? == 1 && transparent_huge::are_split_right();
    let ended = begin(&[], &["-m", "192M"], &["huge-pages", if may { "may" } else { "may-not" }])?.end()?;
    ended.expect_success()?;
    if ended.counter("evictions")? == 0 {
        return Err("nothing had to leave".to_owned());
    }
    Ok(ended.said.trim().to_owned())
}

/// In the program, which `may` have huge pages or not.
pub fn program(may: &str) -> Result<(), String> {
    let mut asked = in_huge_pages(ASKED_MIB)?;
    let huge_kib = memory("/proc/self/smaps_rollup", "AnonHugePages:")?;
    // How many there are is the kernel's to say.
    if may == "may" && huge_kib == 0 {
        return Err(format!("none of {ASKED_MIB} MiB is in huge pages, which were asked for"));
    }
    let mut more = in_huge_pages(TOO_MUCH_MIB)?;
    if !rustix::thread::transparent_huge_pages_are_disabled().map_err(|error| error.to_string())? {
        return Err("huge pages may still come, also where they were not asked for".to_owned());
    }
    for round in 0..3 {
        check(&asked, 0..ASKED_MIB * PAGES_PER_MIB).map_err(|wrong| format!("{round}: {wrong}"))?;
        check(&more, 0..TOO_MUCH_MIB * PAGES_PER_MIB).map_err(|wrong| format!("{round}, more: {wrong}"))?;
        // Memory that is touched after a discard is the engine's, and as good.
        for mapping in [&mut asked, &mut more] {
            let part = round * PAGES_PER_MIB + 3..round * PAGES_PER_MIB + 300;
            mapping.advise(part.clone(), libc::MADV_DONTNEED).map_err(|error| error.to_string())?;
            write(mapping, part);
        }
    }
    println!("{huge_kib} KiB in huge pages");
    Ok(())
}

/// Memory with content, for which huge pages were asked.
fn in_huge_pages(mib: usize) -> Result<Mapping, String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mapping = Mapping::new(mib * PAGES_PER_MIB).map_err(told)?;
    // A kernel without huge pages does not know it.
    let _ = mapping.advise(0..mib * PAGES_PER_MIB, libc::MADV_HUGEPAGE);
    write(&mut mapping, 0..mib * PAGES_PER_MIB);
    Ok(mapping)
}

/// The number behind a name in a file of /proc.
fn memory(path: &str, name: &str) -> Result<u64, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).ok_or(format!("{path} has no {name}"))?;
    let number = line.split_whitespace().next().and_then(|word| word.parse().ok());
    number.ok_or(format!("{path}: {line}"))
}
