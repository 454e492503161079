//! Memory that can't be moved is left alone, and counted: exactly its populated bytes.

use pagoda_linux::testing::process::lock_all;

use crate::program::{PAGES_PER_MIB, check, fill, stamp, write};
use crate::run::{Ended, look, looked_at};
use crate::support::memory::{self, Mapping};

/// Locked, executable and shared memory of the program, in MiB: of different sizes, so that none is
/// taken for another.
const SIZES_MIB: [(&str, u64); 3] =
    [("left_locked_bytes", 3), ("left_executable_bytes", 5), ("left_shared_bytes", 7)];

/// A program's other memory of each kind, at most: its libraries have no such memory, its stack is
/// not locked.
const SLACK: u64 = 64 << 10;

/// The counts in words, once none of them is less than these sizes. None may be more.
fn counted(ended: &Ended, sizes_mib: &[(&str, u64)]) -> Result<Option<String>, String> {
    let (mut said, mut less) = (Vec::new(), false);
    for (name, mib) in sizes_mib {
        let bytes = ended.counter(name)?;
        if bytes > (mib << 20) + SLACK {
            return Err(format!("{name} is {bytes}, not {mib} MiB"));
        }
        less |= bytes < mib << 20;
        said.push(format!("{name} {bytes}"));
    }
    Ok((!less).then(|| said.join(", ")))
}

/// From the start.
pub fn is_counted() -> Result<String, String> {
    looked_at(&["-m", "64M"], &["left-alone"], |ended| counted(ended, &SIZES_MIB))
}

/// Memory that was adopted, and then locked or made executable or read-only.
pub fn later_is_counted() -> Result<String, String> {
    // So little that it is not left to the kernel for now, and enough for all of it.
    looked_at(&["-m", "40M"], &["left-alone-later"], |ended| {
        let kinds = [("left_locked_bytes", 3), ("left_executable_bytes", 5), ("left_readonly_bytes", 7)];
        // Memory that was adopted too late was left alone from the start.
        let adopted = ended.counter("adopted_bytes")? >= 24 << 20;
        Ok(counted(ended, &kinds)?.filter(|_| adopted))
    })
}

/// Twice as large as its populated part: only the lower half is.
fn half_populated(mib: u64) -> Result<Mapping, String> {
    let pages = mib as usize * PAGES_PER_MIB;
    let mut mapping = Mapping::new(2 * pages).map_err(|error| error.to_string())?;
    // Exactly that much, for any setting of huge pages. A kernel without them does not know it.
    let _ = mapping.advise(0..2 * pages, libc::MADV_NOHUGEPAGE);
    write(&mut mapping, 0..pages);
    Ok(mapping)
}

/// In the program. Its memory is more than the budget, so that reclaim looks at all of it.
pub fn program(looks: u64) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let [locked_mib, executable_mib, shared_mib] = SIZES_MIB.map(|(_, mib)| mib);
    let pages = |mib: u64| mib as usize * PAGES_PER_MIB;
    let locked = Mapping::new(pages(locked_mib)).map_err(told)?;
    locked.lock().map_err(|error| format!("mlock: {error}"))?;
    let mut executable = half_populated(executable_mib)?;
    executable
        .protect(0..2 * pages(executable_mib), libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
        .map_err(told)?;
    let shared = memory::shared(2 * pages(shared_mib), pages(shared_mib)).map_err(told)?;
    let mut rest = Mapping::new(pages(80)).map_err(told)?;
    write(&mut rest, 0..pages(80));
    look(looks);
    check(&rest, 0..pages(80))?;
    check(&executable, 0..pages(executable_mib))?;
    // Until the process ends, so that the last look at it found them.
    std::mem::forget((locked, executable, shared));
    Ok(())
}

/// In the program: more than the least budget is locked, so that nothing is left for the rest.
pub fn fill_beside_locked() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let locked = Mapping::new(60 * PAGES_PER_MIB).map_err(told)?;
    locked.lock().map_err(|error| format!("mlock: {error}"))?;
    fill(60, |_| Ok(()))
}

/// Groups of written pages, with a read-only page before each. Read-only pages that are swapped in
/// with their neighbours can't leave again, either: they are fewer than the locked ones, so that
/// these are named.
const PIECES: usize = 4_000;
/// The written pages of a group. All groups together are more than the least budget.
const WRITTEN: usize = 3;

/// In the program: memory that is managed, then cut into more mappings than the engine checks one
/// by one, and locked. Reclaim finds it again and again, and finds out each time that it has to
/// stay.
pub fn fill_beside_pieces() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut cut = Mapping::new((1 + WRITTEN) * PIECES).map_err(told)?;
    let read_only = (0..PIECES).map(|piece| piece * (1 + WRITTEN));
    for page in read_only.clone().flat_map(|page| page + 1..=page + WRITTEN) {
        stamp(page).fill(cut.page_mut(page));
    }
    look(3);
    for page in read_only {
        cut.protect(page..page + 1, libc::PROT_READ).map_err(told)?;
    }
    lock_all(libc::MCL_CURRENT).map_err(|error| format!("mlockall: {error}"))?;
    fill(60, |_| Ok(()))
}

/// In the program: the same of memory that is managed already.
pub fn later_program(looks: u64) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut mappings = [half_populated(3)?, half_populated(5)?, half_populated(16)?];
    look(looks);
    let protections = [
        (1, 5, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC),
        // Of the last one a part only.
        (2, 7, libc::PROT_READ),
    ];
    for (at, mib, protection) in protections {
        mappings[at].protect(0..mib * PAGES_PER_MIB, protection).map_err(told)?;
    }
    let above = mappings[0].split_off(3 * PAGES_PER_MIB);
    mappings[0].lock().map_err(|error| format!("mlock: {error}"))?;
    look(looks);
    for (mapping, mib) in mappings.iter().zip([3, 5, 16]) {
        check(mapping, 0..mib * PAGES_PER_MIB)?;
    }
    // As above.
    std::mem::forget((above, mappings));
    Ok(())
}
