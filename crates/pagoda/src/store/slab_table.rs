//! A table by number that grows where numbers are used, readable without a lock from any thread.
//!
//! It never shrinks and never moves anything: it is bounded by the highest number ever used, which
//! is the most objects ever stored at once. This module must never know the meaning of its records.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use pagoda_core::space::blocks::NUMBERS;

/// Numbers whose records are allocated together: 20 to 80 KiB of them.
const LEAF: u32 = 512;
/// Leaves whose places are allocated together: 64 KiB.
const BRANCH: u32 = 4096;
const ROOT: u32 = NUMBERS / LEAF / BRANCH;

type Leaf<T> = OnceLock<Box<[T]>>;
type Branch<T> = OnceLock<Box<[Leaf<T>]>>;

/// For each number `width` of `T`.
pub(super) struct ByNumber<T> {
    root: Box<[Branch<T>]>,
    width: usize,
    /// Its memory, so that a caller need not count.
    bytes: AtomicU64,
}

impl<T: Default> ByNumber<T> {
    pub fn new(width: usize) -> Self {
        let root: Box<[Branch<T>]> = (0..ROOT).map(|_| OnceLock::new()).collect();
        Self { bytes: AtomicU64::new(size_of_val(&*root) as u64), root, width }
    }

    /// The record of a number, if it was ever ensured, or a near one was.
    pub fn get(&self, number: u32) -> Option<&[T]> {
        let branch = self.root.get((number / LEAF / BRANCH) as usize)?.get()?;
        let leaf = branch[(number / LEAF % BRANCH) as usize].get()?;
        leaf.get((number % LEAF) as usize * self.width..)?.get(..self.width)
    }

    /// The record of a number, made if it is the first time. Threads that make the same wait for
    /// one of them.
    ///
    /// # Panics
    /// If the number is not below [`NUMBERS`].
    pub fn ensure(&self, number: u32) -> &[T] {
        let branch = self.root[(number / LEAF / BRANCH) as usize].get_or_init(|| {
            let branch: Box<[Leaf<T>]> = (0..BRANCH).map(|_| OnceLock::new()).collect();
            self.count(size_of_val(&*branch));
            branch
        });
        let leaf = branch[(number / LEAF % BRANCH) as usize].get_or_init(|| {
            let leaf: Box<[T]> = (0..LEAF as usize * self.width).map(|_| T::default()).collect();
            self.count(size_of_val(&*leaf));
            leaf
        });
        &leaf[(number % LEAF) as usize * self.width..][..self.width]
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_own_and_only_used_parts_take_memory() {
        let table = ByNumber::<AtomicU64>::new(3);
        let empty = table.bytes();
        let numbers = [0, 1, LEAF - 1, LEAF, LEAF * BRANCH - 1, LEAF * BRANCH, NUMBERS - 1];
        assert!(numbers.iter().all(|number| table.get(*number).is_none()));
        for number in numbers {
            for (i, word) in table.ensure(number).iter().enumerate() {
                word.store(u64::from(number) * 3 + i as u64, Ordering::Relaxed);
            }
        }
        for number in numbers {
            let words = table.get(number).expect("ensured").iter().map(|word| word.load(Ordering::Relaxed));
            assert!(words.eq((0..3).map(|i| u64::from(number) * 3 + i)), "{number}");
        }
        assert!(table.get(NUMBERS).is_none());
        // Three branches and five leaves.
        let leaves = 5 * u64::from(LEAF) * 24;
        let branches = 3 * u64::from(BRANCH) * size_of::<Leaf<AtomicU64>>() as u64;
        assert_eq!(table.bytes() - empty, leaves + branches);
    }
}
