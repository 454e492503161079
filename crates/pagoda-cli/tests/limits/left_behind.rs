//! Children whose parent ends right after the fork, and those of a parent that has read all its mappings, or of one that nobody
//! sees: each has everything that was out.

use std::fs;
use std::io::{Read, Write};

use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::process::{fork, raw_fork, wait};

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::{Mapping, PAGE};

/// Three times the budget: most of it is out at the fork.
const PAGES: usize = 96 * PAGES_PER_MIB;

/// Raw forks, of which each forks by the C library.
const UNSEEN: usize = 20;

/// From outside.
pub fn has_everything() -> Result<String, String> {
    let mut told = String::new();
    for kind in ["ends", "unseen", "reads"] {
        let ended = begin(&[], &["-m", "32M"], &["left-behind", kind])?.end()?;
        if ended.said != "right\n" {
            return Err(format!("{kind}: {}{}{}", ended.said, ended.status_told()?, ended.errors));
        }
        let (forks, stores) = (ended.counter("forks")?, ended.counter("stores")?);
        if forks == 0 || stores == 0 {
            return Err(format!("{kind}: {forks} forks, {stores} stores"));
        }
        told += &format!("{kind}: {forks} forks, ");
    }
    Ok(told.trim_end_matches(", ").to_owned())
}

/// In the program.
pub fn program(kind: &str) -> Result<(), String> {
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    write(&mut mapping, 0..PAGES);
    match kind {
        "ends" => ends(&mapping)?,
        "unseen" => unseen(&mapping)?,
        _ => reads(&mapping)?,
    }
    check(&mapping, 0..PAGES)?;
    println!("right");
    Ok(())
}

/// A child that forks and ends at once, as who wants to be nobody's child does; its child says whether all is right.
fn ends(mapping: &Mapping) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    for _ in 0..3 {
        let (mut hears, mut says) = std::io::pipe().map_err(told)?;
        let middle = fork(|| {
            let last = || match check(mapping, 0..PAGES) {
                Ok(()) => i32::from(says.write_all(b"r").is_err()),
                Err(wrong) => {
                    eprintln!("in the child of who ended: {wrong}");
                    1
                }
            };
            i32::from(fork(last).is_err())
        });
        expect_success(middle.map_err(told)?)?;
        drop(says);
        let mut answer = Vec::new();
        hears.read_to_end(&mut answer).map_err(told)?;
        if answer != b"r" {
            return Err(format!("the child of who ended said {answer:?}"));
        }
    }
    Ok(())
}

/// Whoever reads all that is mapped, or locks it, touches also what children wait at: the only memory here that they are to find empty.
fn reads(mapping: &Mapping) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let access = Access::begin().map_err(told)?;
    let maps = fs::read_to_string("/proc/self/smaps").map_err(told)?;
    let (mut range, mut read) = (None, 0);
    for line in maps.lines() {
        let first = line.split(' ').next().and_then(|word| word.split_once('-'));
        let address = |digits| usize::from_str_radix(digits, 16).ok();
        if let Some((start, end)) = first.and_then(|(start, end)| Some((address(start)?, address(end)?))) {
            range = Some(start..end);
        } else if line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "wf") {
            for at in range.take().into_iter().flatten().step_by(PAGE) {
                access.touch(at).map_err(|signal| format!("signal {signal} at {at:#x}"))?;
                read += 1;
            }
        }
    }
    if read == 0 {
        return Err("what children wait at was not found".to_owned());
    }
    expect_success(fork(|| i32::from(check(mapping, 0..PAGES).is_err())).map_err(told)?)
}

fn unseen(mapping: &Mapping) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    expect_success(fork(|| 0).map_err(told)?)?;
    for _ in 0..UNSEEN {
        let child = raw_fork(|| {
            let grandchild = fork(|| i32::from(check(mapping, 0..PAGES).is_err()));
            i32::from(grandchild.map_err(told).and_then(expect_success).is_err())
        });
        expect_success(child.map_err(told)?)?;
    }
    Ok(())
}

fn expect_success(child: rustix::process::Pid) -> Result<(), String> {
    match wait(child).map_err(|error| error.to_string())?.as_raw() {
        0 => Ok(()),
        status => Err(format!("a child ended with status {status:#x}")),
    }
}
