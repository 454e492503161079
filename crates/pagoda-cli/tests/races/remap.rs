//! Managed memory moves by mremap to any place with room, which is often where another thread's
//! memory just went away: the events of the two can come in either order.

use crate::pressure::{Arena, expect, fill, word};
use crate::support::memory::Mapping;
use crate::support::random::Random;

const PAGES: usize = 96;

/// One moving mapping: each page keeps the number that it was filled with.
struct Moving {
    mapping: Mapping,
    words: Vec<u64>,
}

impl Moving {
    fn new(tag: u64) -> Result<Self, String> {
        let mut mapping = Mapping::new(PAGES).map_err(|error| error.to_string())?;
        fill(&mut mapping, 0..PAGES, tag);
        Ok(Self { mapping, words: (0..PAGES).map(|page| word(tag, page)).collect() })
    }
    fn check(&self) -> Result<(), String> {
        self.words.iter().enumerate().try_for_each(|(page, &word)| expect(&self.mapping, page, word))
    }
}

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 6);
    let mut all = (0..16).map(Moving::new).collect::<Result<Vec<_>, _>>()?;
    arena.wait_until_managed(&all[0].mapping);
    let mut round = 16;
    while arena.next_round() {
        round += 1;
        let at = random.below(all.len());
        let Moving { mapping, mut words } = all.swap_remove(at);
        if random.one_in(16) {
            // Its place is free from here on: another thread's mremap may come there before the
            // engine knows.
            drop(mapping);
            all.push(Moving::new(round)?);
            continue;
        }
        arena.look(&mapping);
        // Growing beyond the gap above makes it move; shrinking leaves a gap behind.
        let pages =
            if words.len() > 3 * PAGES { random.between(8, PAGES) } else { words.len() + random.below(64) };
        let mapping = match mapping.remap(pages) {
            Ok(mapping) => {
                words.resize(pages, 0);
                mapping
            }
            // In parts managed and in parts not yet: nothing moved.
            Err((mapping, _)) => mapping,
        };
        let mut moved = Moving { mapping, words };
        if random.one_in(2) {
            moved.check()?;
        }
        if random.one_in(4) {
            let page = random.below(moved.words.len());
            moved.words[page] = word(round, page);
            moved.mapping.page_mut(page).fill(moved.words[page]);
        }
        all.push(moved);
    }
    all.iter().try_for_each(Moving::check)
}
