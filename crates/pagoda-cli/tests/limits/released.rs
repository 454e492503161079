//! A fork where the kernel sends no event for forks: everything is swapped in before, and the child
//! has all of it, also the new part of a mapping that has just grown.

use pagoda_linux::testing::process::{fork, wait};

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::Mapping;
use crate::support::suite;

/// Root without the privilege that the kernel tells of forks for, and with all that is needed else.
const WITHOUT: [&str; 3] = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];

/// Twice the budget.
const PAGES: usize = 64 * PAGES_PER_MIB;
/// The most that the mapping may grow by, and the pages of that which are written.
const ROOM: usize = 8 * PAGES_PER_MIB;
const WRITTEN: usize = 16;

/// From outside. The new part of a mapping may be found by a look before the fork: hence three
/// times.
pub fn is_all_there() -> Result<String, String> {
    if !rustix::process::geteuid().is_root() {
        return suite::skipped("forks without an event", "only root has a privilege to give up");
    }
    for kind in ["kept", "grown", "grown", "grown"] {
        let ended = begin(&WITHOUT, &["-m", "32M"], &["fork-untold", kind])?.end()?;
        if ended.said != "right\n" || ended.status_told()? != "released" {
            return Err(format!("{kind}: {}: {}{}", ended.status_told()?, ended.said, ended.errors));
        }
        let (out, back, forks) =
            (ended.counter("stores")?, ended.counter("brought_back_bytes")?, ended.counter("forks")?);
        if out == 0 || back == 0 || forks != 1 {
            return Err(format!("{kind}: {out} stores, {back} bytes brought back, {forks} forks"));
        }
    }
    Ok("kept, and grown three times".to_owned())
}

/// In the program.
pub fn program(kind: &str) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mapping = Mapping::new(PAGES + ROOM).map_err(told)?;
    let above = mapping.split_off(PAGES);
    write(&mut mapping, 0..PAGES);
    let mut pages = PAGES;
    if kind == "grown" {
        let start = mapping.start();
        // It grows where it is, unless another mapping is quicker to take that.
        drop(above);
        mapping = mapping.remap(PAGES + ROOM).map_err(|(_, error)| told(error))?;
        if mapping.start() != start {
            return Err("it grew elsewhere".to_owned());
        }
        pages += WRITTEN;
        write(&mut mapping, PAGES..pages);
    }
    let child = fork(|| {
        let right = check(&mapping, 0..pages).map(|()| write(&mut mapping, 0..WRITTEN));
        i32::from(right.is_err())
    });
    let status = child.and_then(wait).map_err(told)?.as_raw();
    if status != 0 {
        return Err(format!("the child ended with status {status:#x}"));
    }
    check(&mapping, 0..pages)?;
    // Nothing is evicted any more, at any pressure.
    write(&mut mapping, 0..pages);
    check(&mapping, 0..pages)?;
    println!("right");
    Ok(())
}
