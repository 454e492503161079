//! A set of small numbers that finds its lowest member at once and costs no memory while it is
//! empty.
//!
//! A bit for each number, and above it hint levels: one bit for each word of the level below says
//! whether that word has any bit set. A search for the next member climbs the hints until something
//! is set and comes down again: six levels for 2^31 numbers. Every word starts out as zero, so that
//! an allocator that hands out zeroed memory lazily gives the set no frame until a member is put
//! in. This module must never allocate after `new`.

/// Numbers in one word, and words under one hint word.
const WORD_BITS: usize = u64::BITS as usize;

/// A set of numbers below a fixed length.
#[derive(Debug)]
pub(crate) struct BitSet {
    /// `levels[0]` are the members; bit `i` of `levels[h + 1]` says that word `i` of `levels[h]` is
    /// not zero.
    levels: Vec<Box<[u64]>>,
    len: usize,
}

impl BitSet {
    /// An empty set of numbers below `len`.
    pub(crate) fn new(len: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = len.div_ceil(WORD_BITS);
        loop {
            levels.push(vec![0; words].into_boxed_slice());
            if words <= 1 {
                return Self { levels, len };
            }
            words = words.div_ceil(WORD_BITS);
        }
    }

    /// Whether `number` is in the set; a number beyond its length never is.
    pub(crate) fn contains(&self, number: usize) -> bool {
        number < self.len && self.levels[0][number / WORD_BITS] >> (number % WORD_BITS) & 1 == 1
    }

    /// Puts `number` in. Panics if it is beyond the length of the set.
    pub(crate) fn insert(&mut self, number: usize) {
        assert!(number < self.len, "{number} is beyond a set of {}", self.len);
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at / WORD_BITS];
            let was_empty = *word == 0;
            *word |= 1 << (at % WORD_BITS);
            if !was_empty {
                return; // the hints above know already
            }
            at /= WORD_BITS;
        }
    }

    /// Takes `number` out. Panics if it is beyond the length of the set.
    pub(crate) fn remove(&mut self, number: usize) {
        assert!(number < self.len, "{number} is beyond a set of {}", self.len);
        let mut at = number;
        for level in &mut self.levels {
            let word = &mut level[at / WORD_BITS];
            *word &= !(1 << (at % WORD_BITS));
            if *word != 0 {
                return;
            }
            at /= WORD_BITS;
        }
    }

    /// The lowest member that is not below `from`.
    pub(crate) fn first_from(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = at / WORD_BITS;
            let rest = level.get(word)? & (u64::MAX << (at % WORD_BITS));
            if rest != 0 {
                let found = word * WORD_BITS + rest.trailing_zeros() as usize;
                // A hint bit is the number of a word below, whose lowest bit is the next step down.
                let down = |at: usize, below: &[u64]| at * WORD_BITS + below[at].trailing_zeros() as usize;
                return Some(self.levels[..height].iter().rev().fold(found, |at, below| down(at, below)));
            }
            at = word + 1;
        }
        None
    }

    /// Whether any member lies in `start..end`.
    pub(crate) fn any_in(&self, start: usize, end: usize) -> bool {
        self.first_from(start).is_some_and(|found| found < end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_set_of_nothing_has_no_members() {
        let set = BitSet::new(0);
        assert_eq!(set.first_from(0), None);
        assert!(!set.contains(0) && !set.any_in(0, 100));
    }

    #[test]
    fn the_last_number_of_a_large_set_is_found_from_the_first() {
        let last = (1 << 26) - 1;
        let mut set = BitSet::new(1 << 26);
        set.insert(last);
        assert_eq!(set.first_from(0), Some(last));
        assert_eq!(set.first_from(last), Some(last));
        assert_eq!(set.first_from(last + 1), None);
    }

    proptest! {
        #[test]
        fn behaves_like_a_btree_set(
            len in 1usize..20_000,
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let (mut set, mut model) = (BitSet::new(len), BTreeSet::new());
            for (insert, index) in steps {
                let number = index.index(len);
                if insert {
                    set.insert(number);
                    model.insert(number);
                } else {
                    // Half of these would miss; the nearest member makes them hit as well.
                    let number = model.range(number..).next().copied().unwrap_or(number);
                    set.remove(number);
                    model.remove(&number);
                }
                prop_assert_eq!(set.contains(number), model.contains(&number));
                prop_assert_eq!(set.first_from(number), model.range(number..).next().copied());
                prop_assert_eq!(set.first_from(0), model.first().copied());
                let end = len.min(number + 100);
                prop_assert_eq!(set.any_in(number, end), model.range(number..end).next().is_some());
            }
        }
    }
}
