//! Children whose parent ends right after the fork, those of a parent that has read all its
//! mappings, and those of an unseen parent: each has everything that was swapped out. One whose
//! parent is killed before that is ended, and never reads anything wrong.

use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use pagoda_linux::testing::access::Access;
use pagoda_linux::testing::length::length;
use pagoda_linux::testing::process::{fork, raw_fork, sleep_until_killed, wait};
use rustix::process::{Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::{Mapping, PAGE};

/// Twice the budget: most of it is swapped out at the fork.
const PAGES: usize = 64 * PAGES_PER_MIB;

/// Raw forks, of which each forks by the C library.
fn unseen_forks() -> usize {
    length(5, 20)
}

/// Parents that are killed while they fork, each later than the one before by more: from its
/// beginning to long after it.
fn killed_parents() -> u32 {
    length(16, 24)
}
/// And more until some were late enough, each twice as late as the one before: a loaded machine
/// takes longer. The last one is killed after 74 s, or less.
const KILLED_MORE: u32 = 7;

/// When the parent of a round is killed, from its fork on.
fn kill_after(round: u32) -> Duration {
    let last = round.min(killed_parents());
    Duration::from_millis(length(2, 1)) * last * last * (1 << (round - last))
}

/// The message of `pagoda run` for a child that was ended because its parent was killed.
const PARENT_LOST: &str = "was killed before its child had all";

/// From outside.
pub fn ends_without_its_parent() -> Result<String, String> {
    let ended = begin(&[], &["-m", "32M"], &["left-behind", "killed"])?.end()?;
    let Some(told) = ended.said.strip_suffix(" right\n") else {
        return Err(format!("{}{}{}", ended.said, ended.status_told()?, ended.errors));
    };
    if ended.errors.lines().any(|line| !line.contains(PARENT_LOST)) || ended.errors.is_empty() {
        return Err(format!("{told} right, and it said: {}", ended.errors));
    }
    Ok(format!("{told} right"))
}

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
        "killed" => print!("{} ", killed(&mapping)?),
        _ => reads(&mapping)?,
    }
    check(&mapping, 0..PAGES)?;
    println!("right");
    Ok(())
}

/// A child that forks and ends at once, as a daemon does; its child says whether all is right.
fn ends(mapping: &Mapping) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    for _ in 0..length(2, 3) {
        let (mut hears, mut says) = std::io::pipe().map_err(told)?;
        let middle = fork(|| {
            let last = || match check(mapping, 0..PAGES) {
                Ok(()) => i32::from(says.write_all(b"r").is_err()),
                Err(wrong) => {
                    eprintln!("in the child of one that ended: {wrong}");
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
            return Err(format!("the child of one that ended said {answer:?}"));
        }
    }
    Ok(())
}

/// Children that fork and are killed meanwhile. A child of one of those, which is ours then, has
/// everything or is ended by its engine. Returns how many were of which kind.
fn killed(mapping: &Mapping) -> Result<String, String> {
    let told = |error: rustix::io::Errno| error.to_string();
    set_child_subreaper(Some(getpid())).map_err(told)?;
    let (mut whole, mut lost) = (0, 0);
    for round in 0..=killed_parents() + KILLED_MORE {
        if round >= killed_parents() && whole > 0 && lost > 0 {
            break;
        }
        let middle = fork(|| {
            std::thread::spawn(move || {
                std::thread::sleep(kill_after(round));
                kill_process(getpid(), Signal::KILL)
            });
            let last = || match check(mapping, 0..PAGES) {
                Ok(()) => 0,
                Err(wrong) => {
                    eprintln!("in the child of one that was killed: {wrong}");
                    1
                }
            };
            i32::from(fork(last).is_err()) + sleep_until_killed()
        });
        let middle = middle.map_err(|error| error.to_string())?;
        loop {
            match waitpid(None, WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == middle => {
                    if status.terminating_signal() != Some(Signal::KILL.as_raw()) {
                        return Err(format!("one that was to be killed ended with {:#x}", status.as_raw()));
                    }
                }
                Ok(Some((_, status))) => match status.exit_status() {
                    Some(0) => whole += 1,
                    Some(125) => lost += 1,
                    _ => return Err(format!("the child of one that was killed: {:#x}", status.as_raw())),
                },
                Ok(None) => unreachable!("it waits"),
                Err(rustix::io::Errno::CHILD) => break,
                Err(error) => return Err(told(error)),
            }
        }
    }
    if lost == 0 || whole == 0 {
        return Err(format!("{whole} had everything and {lost} lost their parent: not all was tried"));
    }
    Ok(format!("{whole} had everything, {lost} lost their parent,"))
}

/// A program that reads all its mappings, or locks them, also touches the pages at which children
/// wait: the only memory here that children are to find empty.
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
        return Err("the pages at which children wait were not found".to_owned());
    }
    expect_success(fork(|| i32::from(check(mapping, 0..PAGES).is_err())).map_err(told)?)
}

fn unseen(mapping: &Mapping) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    expect_success(fork(|| 0).map_err(told)?)?;
    for _ in 0..unseen_forks() {
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
