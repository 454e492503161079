//! Fresh or discarded memory is read first, which maps the shared zero page, and written later, in
//! part: the writes stay, and the rest stays zero, however often it is evicted between.

use crate::pressure::{Arena, expect, fill, word};
use crate::support::memory::Mapping;
use crate::support::random::Random;

const PAGES: usize = 512;

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 7);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    fill(&mut mapping, 0..PAGES, 1);
    arena.wait_until_managed(&mapping);
    let mut words = vec![0u64; PAGES];
    mapping.advise(0..PAGES, libc::MADV_DONTNEED).map_err(|error| error.to_string())?;
    let mut round = 1;
    while arena.next_round() {
        round += 1;
        let pages = random.range(PAGES);
        for page in pages.clone() {
            expect(&mapping, page, words[page])?;
        }
        for page in pages.clone() {
            if random.one_in(3) {
                words[page] = word(round, page);
                mapping.page_mut(page).fill(words[page]);
            }
        }
        if random.one_in(8) {
            mapping.advise(pages.clone(), libc::MADV_DONTNEED).map_err(|error| error.to_string())?;
            words[pages.clone()].fill(0);
        }
        if random.one_in(64) {
            arena.look(&mapping);
            for (page, &word) in words.iter().enumerate() {
                expect(&mapping, page, word)?;
            }
        }
    }
    Ok(())
}
