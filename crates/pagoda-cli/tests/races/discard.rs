//! MADV_DONTNEED, then a read: zero at once, for any page in flight; the pages beside it stay.

use crate::pressure::{Arena, expect, fill, word};
use crate::support::memory::Mapping;
use crate::support::random::Random;

const PAGES: usize = 512;

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 5);
    let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
    fill(&mut mapping, 0..PAGES, 1);
    let mut words: Vec<u64> = (0..PAGES).map(|page| word(1, page)).collect();
    arena.wait_until_managed(&mapping);
    let mut round = 1;
    while arena.next_round() {
        round += 1;
        let pages = random.range(PAGES);
        let advice = libc::MADV_DONTNEED;
        mapping.advise(pages.clone(), advice).map_err(|error| error.to_string())?;
        // All of it, or the first page only: the others stay swapped out until a thread comes by.
        let read = if random.one_in(2) { pages.clone() } else { pages.start..pages.start + 1 };
        for page in read {
            expect(&mapping, page, 0)
                .map_err(|wrong| format!("after MADV_DONTNEED of {pages:?}: {wrong}"))?;
        }
        words[pages.clone()].fill(0);
        for page in pages.clone() {
            if random.one_in(2) {
                words[page] = word(round, page);
                mapping.page_mut(page).fill(words[page]);
            }
        }
        #[expect(clippy::needless_range_loop, reason = "the page is an address first")]
        for page in pages.start.saturating_sub(2)..(pages.end + 2).min(PAGES) {
            expect(&mapping, page, words[page])?;
        }
        if random.one_in(32) {
            for (page, &word) in words.iter().enumerate() {
                expect(&mapping, page, word)?;
            }
            fill(&mut mapping, 0..PAGES, round);
            words.iter_mut().enumerate().for_each(|(page, value)| *value = word(round, page));
            if arena.seen_out() == 0 || random.one_in(8) {
                arena.wait_until_managed(&mapping);
            }
        }
    }
    Ok(())
}
