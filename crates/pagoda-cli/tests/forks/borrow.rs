//! Memory that is not written any more, and the sum of its words: for readers that can only return
//! a number.

use crate::support::content::Stamp;
use crate::support::memory::Mapping;
use crate::support::random::Random;

/// Memory of this many pages with random content, and its sum.
pub fn still(pages: usize, random: &mut Random) -> (Mapping, u64) {
    let mut mapping = Mapping::new(pages).expect("memory");
    for page in 0..pages {
        Stamp { head: random.next(), body: random.stamp() }.fill(mapping.page_mut(page));
    }
    let sum = sum(&mapping);
    (mapping, sum)
}

/// Every word, with its place.
pub fn sum(mapping: &Mapping) -> u64 {
    let words = mapping.words(0..mapping.pages());
    words.iter().fold(0u64, |sum, word| sum.rotate_left(5).wrapping_add(*word))
}
