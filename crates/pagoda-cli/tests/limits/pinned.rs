//! Memory that the kernel has pinned for long stays where it is, and how often reclaim met it is
//! counted.

use pagoda_linux::testing::pinned::Pinned;

use crate::program::{PAGES_PER_MIB, check, fill, write};
use crate::run::begin;
use crate::support::memory::Mapping;
use crate::support::suite;

/// Few enough for the limit that an ordinary user has.
const PAGES: usize = 3 * PAGES_PER_MIB;

/// From outside.
pub fn stays() -> Result<String, String> {
    let ended = begin(&[], &["-m", "32M"], &["pinned"])?.end()?;
    if let Some(why) = ended.said.strip_prefix("nothing is pinned: ") {
        return suite::skipped("memory that is pinned", why.trim_end());
    }
    ended.expect_success()?;
    let (busy, evictions) = (ended.counter("evict_busy")?, ended.counter("evictions")?);
    if busy == 0 || evictions == 0 {
        return Err(format!("evict_busy is {busy} with {evictions} evictions"));
    }
    Ok(format!("evict_busy {busy}, evictions {evictions}"))
}

/// In the program: a registered buffer, and twice the budget beside it.
pub fn program() -> Result<(), String> {
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    write(&mut mapping, 0..PAGES);
    let pinned = match Pinned::new(mapping.bytes(0..PAGES)) {
        Ok(pinned) => pinned,
        Err(error) => {
            println!("nothing is pinned: {error}");
            return Ok(());
        }
    };
    fill(60, |_| Ok(()))?;
    if mapping.is_any_out() {
        return Err("a part of the pinned memory was moved out".to_owned());
    }
    drop(pinned);
    check(&mapping, 0..PAGES)
}
