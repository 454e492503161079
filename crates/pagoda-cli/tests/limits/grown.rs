//! A mapping that is managed grows when memory is only followed again: the kernel registers the new
//! part along with the rest, so that it has to be managed, while new mappings beside it are left to
//! the kernel.

use crate::program::{PAGES_PER_MIB, check, write};
use crate::run::{look, looked_at};
use crate::support::memory::Mapping;

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
    looked_at(&["-m", BUDGET], &["grown"], |ended| {
        let adopted = ended.counter("adopted_bytes")?;
        let least = ((FILL_MIB + KEPT_MIB + TAIL_MIB) as u64) << 20;
        // Its new part is not managed, or it grew before memory was only followed again.
        let may_be_late = adopted < least || adopted >= least + ((NEW_MIB as u64) << 20);
        Ok((!may_be_late).then(|| format!("adopted_bytes {adopted}")))
    })
}

/// In the program.
pub fn program(looks: u64) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut kept = Mapping::new(KEPT_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut kept, 0..KEPT_MIB * PAGES_PER_MIB);
    let mut fill = Mapping::new(FILL_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut fill, 0..FILL_MIB * PAGES_PER_MIB);
    look(looks);
    drop(fill);
    look(looks);
    let pages = (KEPT_MIB + TAIL_MIB) * PAGES_PER_MIB;
    let mut kept = kept.remap(pages).map_err(|(_, error)| told(error))?;
    write(&mut kept, KEPT_MIB * PAGES_PER_MIB..pages);
    let mut new = Mapping::new(NEW_MIB * PAGES_PER_MIB).map_err(told)?;
    write(&mut new, 0..NEW_MIB * PAGES_PER_MIB);
    look(looks);
    check(&kept, 0..pages)?;
    check(&new, 0..NEW_MIB * PAGES_PER_MIB)
}
