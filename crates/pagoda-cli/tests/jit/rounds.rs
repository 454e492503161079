//! Rounds of a race of one thread, each with a mapping that is managed and full of something new.

use crate::pressure::{Arena, fill};
use crate::support::memory::Mapping;

/// In each round gives `work` the mapping and the tag that it is full of, which no round before
/// had. Part of it is swapped out, mostly.
pub fn each_round(
    arena: &Arena,
    pages: usize,
    mut work: impl FnMut(&mut Mapping, u64) -> Result<(), String>,
) -> Result<(), String> {
    let mut mapping = Mapping::new(pages).map_err(|error| error.to_string())?;
    let mut tag = 0;
    while arena.next_round() {
        tag += 1;
        fill(&mut mapping, 0..pages, tag);
        arena.wait_until_managed(&mapping);
        work(&mut mapping, tag)?;
    }
    Ok(())
}
