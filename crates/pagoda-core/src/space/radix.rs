//! A radix tree of words: unused words take no memory, and reading takes no lock.
//!
//! A node is 64 words, 512 bytes: a leaf has the words themselves, any other the numbers of its
//! children. Nodes are given out from one array, one after the other and the root first, so that
//! the few nodes of a sparse range are adjacent. They are never taken back before the whole is
//! dropped. A node is zero before it has a parent, so that a reader that sees its number sees words
//! of zero. This module must never move a word: a holder of a reference changes it without a lock.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Words of a node: few enough that one used word in 2 MiB of base pages of 4 KiB takes an eighth
/// of a page, and enough that 1 GiB of them takes three levels.
pub const NODE_WORDS: usize = 1 << NODE_BITS;

const NODE_BITS: u32 = 6;

/// Words by number, from zero on.
#[derive(Debug)]
pub struct Radix {
    words: Box<[AtomicU64]>,
    len: usize,
    /// One: the root is a leaf.
    levels: u32,
    /// Nodes that are given out.
    nodes: AtomicUsize,
    /// One gives them out at a time. Nothing is locked within.
    growing: Mutex<()>,
}

/// How many levels `len` words take.
const fn levels_for(len: usize) -> u32 {
    let mut levels = 1;
    while (levels + 1) * NODE_BITS <= usize::BITS && (len - 1) >> (levels * NODE_BITS) > 0 {
        levels += 1;
    }
    levels
}

impl Radix {
    /// How many words a tree of `len` takes if all of them are used: the length of its array. 1/63
    /// more than `len`, and at most a node for each level. None if there are no such numbers.
    #[must_use]
    pub fn words_for(len: usize) -> Option<usize> {
        if len <= NODE_WORDS {
            return Some(len);
        }
        let nodes = (1..=levels_for(len)).map(|level| (len - 1) >> (level * NODE_BITS).min(usize::BITS - 1));
        let nodes = nodes.map(|last| last + 1).sum::<usize>();
        nodes.checked_mul(NODE_WORDS)
    }

    /// A tree of `len` words in these, which are zero.
    ///
    /// # Panics
    /// If they are not as many as [`words_for`](Self::words_for) says.
    #[must_use]
    pub fn new(words: Box<[AtomicU64]>, len: usize) -> Self {
        assert!(Some(words.len()) == Self::words_for(len), "{len} in {} words", words.len());
        let levels = if len <= NODE_WORDS { 1 } else { levels_for(len) };
        Self { words, len, levels, nodes: AtomicUsize::new(1), growing: Mutex::new(()) }
    }

    /// How many words there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The array that it is made of.
    #[must_use]
    pub fn array(&self) -> &[AtomicU64] {
        &self.words
    }

    /// The bytes of the nodes that are given out.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let words = self.words.len().min(self.nodes.load(Ordering::Relaxed) * NODE_WORDS);
        (words * size_of::<AtomicU64>()) as u64
    }

    /// Word `index`; it takes no memory. Panics beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> u64 {
        self.find(index).map_or(0, |at| self.words[at].load(Ordering::Acquire))
    }

    /// Word `index`, to be changed: it takes memory from now on. May wait for a thread that is
    /// giving out another node. Panics beyond the end.
    #[must_use]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        let at = self.find(index).unwrap_or_else(|_| self.grow(index));
        &self.words[at]
    }

    /// The numbers in `range` of words that take memory, lowest first. All others are zero.
    pub fn used(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            while at < range.end {
                match self.find(at) {
                    Ok(_) => {
                        at += 1;
                        return Some(at - 1);
                    }
                    Err(next) => at = next,
                }
            }
            None
        })
    }

    /// Where word `index` is; if it is nowhere, the first number behind it that may be somewhere.
    fn find(&self, index: usize) -> Result<usize, usize> {
        assert!(index < self.len, "word {index} of {}", self.len);
        let mut node = 0;
        for level in (1..self.levels).rev() {
            let shift = level * NODE_BITS;
            let child = self.words[slot(node, index >> shift)].load(Ordering::Acquire);
            if child == 0 {
                return Err(((index >> shift) + 1) << shift);
            }
            node = child as usize;
        }
        Ok(slot(node, index))
    }

    #[cold]
    fn grow(&self, index: usize) -> usize {
        // No state is half changed: a node that was given out and has no parent is lost, and that
        // is all.
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut node = 0;
        for level in (1..self.levels).rev() {
            let child = &self.words[slot(node, index >> (level * NODE_BITS))];
            node = match child.load(Ordering::Acquire) {
                0 => {
                    let new = self.nodes.fetch_add(1, Ordering::Relaxed);
                    child.store(new as u64, Ordering::Release);
                    new
                }
                known => known as usize,
            };
        }
        slot(node, index)
    }
}

const fn slot(node: usize, index: usize) -> usize {
    node * NODE_WORDS + index % NODE_WORDS
}

#[cfg(test)]
#[path = "radix_test.rs"]
mod tests;
