//! Parts of managed memory are replaced by fresh mappings on top of them, cut at any OS page: the
//! old content must be gone at once, the pages beside it must stay.

use crate::pressure::{Arena, check, expect, fill, word};
use crate::support::memory::Mapping;
use crate::support::random::Random;

const PAGES: usize = 1024;

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 4);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    fill(&mut mapping, 0..PAGES, 1);
    let mut tags = vec![1u64; PAGES];
    arena.wait_until_managed(&mapping);
    let mut round = 1;
    while arena.next_round() {
        round += 1;
        let pages = random.range(PAGES);
        mapping.replace(pages.clone()).map_err(|error| error.to_string())?;
        check(&mapping, pages.clone(), 0).map_err(|wrong| format!("replaced memory is not zero: {wrong}"))?;
        fill(&mut mapping, pages.clone(), round);
        tags[pages.clone()].fill(round);
        #[expect(clippy::needless_range_loop, reason = "the page is an address first")]
        for page in pages.start.saturating_sub(2)..(pages.end + 2).min(PAGES) {
            expect(&mapping, page, word(tags[page], page))?;
        }
        if random.one_in(32) {
            arena.look(&mapping);
            for (page, &tag) in tags.iter().enumerate() {
                expect(&mapping, page, word(tag, page))?;
            }
        }
        if random.one_in(256) {
            // Whole again, and managed again.
            mapping.replace(0..PAGES).map_err(|error| error.to_string())?;
            fill(&mut mapping, 0..PAGES, round);
            tags.fill(round);
            arena.wait_until_managed(&mapping);
        }
    }
    Ok(())
}
