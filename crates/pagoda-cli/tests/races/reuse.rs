//! Memory is mapped, written, checked and unmapped again and again, so that addresses are used anew
//! at once, by the same thread or another, while an eviction of the old content may be in flight.

use crate::pressure::{Arena, check, fill};
use crate::support::memory::Mapping;
use crate::support::random::Random;

/// 256 to 512 KiB: worth adopting. All threads use few sizes, so that an address comes back soon.
const PAGES: [usize; 2] = [64, 128];

pub fn body(arena: &Arena, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed, 3);
    let mut held: Vec<(Mapping, u64)> = Vec::new();
    while arena.next_round() {
        let pages = PAGES[random.below(PAGES.len())];
        let mut mapping = Mapping::new(pages).map_err(|error| error.to_string())?;
        let tag = random.next() >> 20 | 1;
        if random.one_in(2) {
            check(&mapping, 0..pages, 0).map_err(|wrong| format!("fresh memory is not zero: {wrong}"))?;
        }
        fill(&mut mapping, 0..pages, tag);
        held.push((mapping, tag));
        // Most stay a while, or nothing would ever be managed when it goes.
        while held.len() > 24 {
            let at = random.below(held.len());
            let (mut mapping, tag) = held.swap_remove(at);
            arena.look(&mapping);
            for _ in 0..random.below(3) {
                check(&mapping, 0..mapping.pages(), tag)?;
                std::thread::yield_now();
            }
            if random.one_in(4) {
                // A part goes first, cut anywhere.
                let cut = random.below(mapping.pages());
                let above = mapping.split_off(cut);
                drop(above);
                check(&mapping, 0..cut, tag)?;
            }
        }
    }
    held.iter().try_for_each(|(mapping, tag)| check(mapping, 0..mapping.pages(), *tag))
}
