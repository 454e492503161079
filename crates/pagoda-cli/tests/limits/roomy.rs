//! A program that has much more room than it takes: nothing of it is registered, so that no fault,
//! no discard and no unmapping of its own waits for a handler. Beside a small budget that holds for
//! small mappings alone.

use std::time::Duration;

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::{begin, look, looked_at};
use crate::support::memory::Mapping;

/// Long enough for several looks at the maps.
const LOOKS: Duration = Duration::from_millis(2000);

const KEPT_MIB: usize = 40;

/// From outside.
pub fn is_left_to_the_kernel() -> Result<String, String> {
    let ended = begin(&[], &["-m", "512M"], &["roomy"])?.end()?;
    ended.expect_success()?;
    for name in ["faults", "events_unmap", "events_remove", "events_remap", "adopted_bytes", "evictions"] {
        let count = ended.counter(name)?;
        if count != 0 {
            return Err(format!("{name} is {count}"));
        }
    }
    // It is counted all the same.
    let followed = ended.counter("followed_peak_bytes")?;
    if followed < (KEPT_MIB as u64) << 20 {
        return Err(format!("only {followed} bytes were followed"));
    }
    Ok(format!("followed_peak_bytes {followed}"))
}

/// In the program: memory that stays, and memory that comes and goes in each way there is.
pub fn program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut kept = Mapping::new(KEPT_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut kept, 0..KEPT_MIB * PAGES_PER_MIB);
    std::thread::sleep(LOOKS);
    for _ in 0..100 {
        let mut mapping = Mapping::new(2 * PAGES_PER_MIB).map_err(told)?;
        write(&mut mapping, 0..2 * PAGES_PER_MIB);
        mapping.advise(0..PAGES_PER_MIB, libc::MADV_DONTNEED).map_err(told)?;
        let mapping = mapping.remap(4 * PAGES_PER_MIB).map_err(|(_, error)| told(error))?;
        check(&mapping, PAGES_PER_MIB..2 * PAGES_PER_MIB)?;
    }
    kept.advise(0..PAGES_PER_MIB, libc::MADV_DONTNEED).map_err(told)?;
    std::thread::sleep(LOOKS);
    check(&kept, PAGES_PER_MIB..KEPT_MIB * PAGES_PER_MIB)
}

/// More than the budget, and nearly all of it empty.
const LARGE_MIB: usize = 96;
/// So much that the process has an engine.
const FILLED_MIB: usize = 12;

/// From outside: the large mapping is adopted. The kernel may have joined the small one to it.
pub fn could_exceed_the_budget() -> Result<String, String> {
    looked_at(&["-m", "64M"], &["large"], |ended| {
        let adopted = ended.counter("adopted_bytes")?;
        Ok((adopted >= (LARGE_MIB as u64) << 20).then(|| format!("adopted_bytes {adopted}")))
    })
}

/// In the program.
pub fn large_program(looks: u64) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut small = Mapping::new(FILLED_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut small, 0..FILLED_MIB * PAGES_PER_MIB);
    let large = Mapping::new(LARGE_MIB * PAGES_PER_MIB).map_err(told)?;
    look(looks);
    drop(large);
    check(&small, 0..FILLED_MIB * PAGES_PER_MIB)
}
