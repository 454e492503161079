//! Children whose parent ends right after the fork, and those of a parent that has locked all its memory, or of one that nobody
//! sees: each has everything that was out.

use std::io::{Read, Write};

use pagoda_linux::testing::process::{fork, raw_fork, wait};
use rustix::mm::{MlockAllFlags, mlockall, munlockall};

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// Three times the budget: most of it is out at the fork.
const PAGES: usize = 96 * PAGES_PER_MIB;

/// Raw forks, of which each forks by the C library.
const UNSEEN: usize = 20;

/// From outside.
pub fn has_everything() -> Result<String, String> {
    let mut told = String::new();
    // Others may lock little.
    let locks = rustix::process::geteuid().is_root().then_some("locks");
    for kind in ["ends", "unseen"].into_iter().chain(locks) {
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
        _ => {
            // All that is left fits.
            drop(mapping);
            return locks().map(|()| println!("right"));
        }
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

/// Whoever locks all memory touches all of it, also what children wait at.
fn locks() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut kept = Mapping::new(PAGES_PER_MIB).map_err(told)?;
    write(&mut kept, 0..PAGES_PER_MIB);
    mlockall(MlockAllFlags::CURRENT).and_then(|()| munlockall()).map_err(|error| error.to_string())?;
    expect_success(fork(|| i32::from(check(&kept, 0..PAGES_PER_MIB).is_err())).map_err(told)?)
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
