//! A mapping that is managed grows when memory is only followed again: the kernel registers the new
//! part along with the rest, so that it has to be managed, while new mappings beside it are left to
//! the kernel.

use std::time::Duration;

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::begin;
use crate::support::memory::Mapping;

/// Long enough for several looks at the maps.
const LOOKS: Duration = Duration::from_millis(2000);

const BUDGET: &str = "128M";
/// More than the budget, so that all there is becomes managed; and then it goes.
const FILL_MIB: usize = 192;
const KEPT_MIB: usize = 8;
/// The growth of the kept one.
const TAIL_MIB: usize = 24;
/// New memory at that time: more than a program's own beside its work.
const NEW_MIB: usize = 12;

/// From outside.
pub fn is_managed() -> Result<String, String> {
    let ended = begin(&[], &["-m", BUDGET], &["grown"])?.end()?;
    ended.expect_success()?;
    let adopted = ended.counter("adopted_bytes")?;
    let least = ((FILL_MIB + KEPT_MIB + TAIL_MIB) as u64) << 20;
    if adopted < least {
        return Err(format!("its new part is not managed: {adopted} bytes were adopted, not {least}"));
    }
    if adopted >= least + ((NEW_MIB as u64) << 20) {
        return Err(format!("it did not grow while memory was only followed: {adopted} bytes were adopted"));
    }
    Ok(format!("adopted_bytes {adopted}"))
}

/// In the program.
pub fn program() -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut kept = Mapping::new(KEPT_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut kept, 0..KEPT_MIB * PAGES_PER_MIB);
    let mut fill = Mapping::new(FILL_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut fill, 0..FILL_MIB * PAGES_PER_MIB);
    std::thread::sleep(LOOKS);
    drop(fill);
    std::thread::sleep(LOOKS);
    let pages = (KEPT_MIB + TAIL_MIB) * PAGES_PER_MIB;
    let mut kept = kept.remap(pages).map_err(|(_, error)| told(error))?;
    write(&mut kept, KEPT_MIB * PAGES_PER_MIB..pages);
    let mut new = Mapping::new(NEW_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut new, 0..NEW_MIB * PAGES_PER_MIB);
    std::thread::sleep(LOOKS);
    check(&kept, 0..pages)?;
    check(&new, 0..NEW_MIB * PAGES_PER_MIB)
}
