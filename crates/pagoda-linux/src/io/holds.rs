//! Which places of a file its borrower still reads: one bit each, in memory that the file's owner
//! and the one borrower share.
//!
//! The owner sets a bit while it has the place itself, before it tells the borrower of it; the
//! borrower clears it, once, after its last read. Neither writes anything else, and each write is
//! one atomic operation, so that a kill can't interrupt either halfway. Clearing releases and
//! looking acquires: an owner that finds a bit clear writes to the place after all the borrower's
//! reads of it.
//!
//! The memory has no name, and is gone with the last of the two. Bits that are never set take no
//! memory. It must never be inherited by a fork: it is about two processes. Nor may either change
//! its length, which would kill the other.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::io::shared_file::{SharedWords, is_sealed, nameless};

const BITS: u32 = u64::BITS;

/// The descriptor by which the borrower maps the owner's bits.
#[derive(Debug)]
pub struct HoldsFile(File);

impl AsFd for HoldsFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A bit for each place.
pub struct Holds {
    words: SharedWords,
}

impl Holds {
    /// Makes them for at least so many places, none of which is held.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn create(places: u32) -> io::Result<(Self, HoldsFile)> {
        let words = (places.max(1).div_ceil(BITS) as usize).next_multiple_of(4096 / size_of::<AtomicU64>());
        let file = nameless(c"pagoda-holds", words)?;
        Ok((Self::map(&file, words)?, HoldsFile(file)))
    }

    /// Those that another process has made, by its descriptor.
    ///
    /// # Errors
    /// It is not of a length that [`create`](Self::create) gives, or could become shorter; or those
    /// of mmap(2).
    pub fn of(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        let words = file.metadata()?.len() as usize / size_of::<AtomicU64>();
        if words == 0 || words > (u32::MAX / BITS + 1) as usize || !is_sealed(&file) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(&file, words)
    }

    fn map(file: &File, words: usize) -> io::Result<Self> {
        let words = SharedWords::map(file, words)?;
        words.keep_from_children();
        Ok(Self { words })
    }

    /// How many places there are bits for.
    #[must_use]
    pub fn places(&self) -> u32 {
        u32::try_from(self.words.len() as u64 * u64::from(BITS)).unwrap_or(u32::MAX)
    }

    /// Bytes of the bits, if all are used.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    /// For the owner: the borrower is about to hold this place. False if it does already, or there
    /// is no bit for it.
    #[must_use]
    pub fn hold(&self, place: u32) -> bool {
        let Some((word, bit)) = self.bit(place) else { return false };
        // The kernel passes the message to the borrower, in order. Acquire: if it held the place
        // before, that is over.
        word.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// For the borrower: it will read this place no more. False if it did not hold it.
    pub fn let_go(&self, place: u32) -> bool {
        self.bit(place).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    /// Whether the borrower holds this place. If not, it has read it for the last time.
    #[must_use]
    pub fn is_held(&self, place: u32) -> bool {
        self.bit(place).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn bit(&self, place: u32) -> Option<(&AtomicU64, u64)> {
        Some((self.words.get((place / BITS) as usize)?, 1 << (place % BITS)))
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holds").field("places", &self.places()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::process::{fork, wait};

    #[test]
    fn a_place_is_held_once_and_let_go_once() {
        let (owner, file) = Holds::create(70_000).expect("memory");
        let borrower = Holds::of(OwnedFd::from(file.0)).expect("the same");
        assert!(owner.places() >= 70_000 && owner.places() == borrower.places());
        let last = owner.places() - 1;
        for place in [0, 1, 63, 64, 69_999, last] {
            assert!(!borrower.let_go(place) && !owner.is_held(place));
            assert!(owner.hold(place) && !owner.hold(place));
            assert!(owner.is_held(place) && borrower.is_held(place));
        }
        assert!(borrower.let_go(63) && !borrower.let_go(63));
        assert!([0, 1, 64, 69_999, last].into_iter().all(|place| owner.is_held(place)));
        assert!(!owner.is_held(63) && !owner.hold(last + 1) && !owner.is_held(last + 1));
    }

    #[test]
    fn neither_side_can_cut_the_memory_that_the_other_reads() {
        let (_owner, file) = Holds::create(64).expect("memory");
        let borrowed = File::from(file.as_fd().try_clone_to_owned().expect("a number"));
        assert!(borrowed.set_len(0).is_err() && borrowed.set_len(1 << 20).is_err());
        let other = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&other, 4096).expect("as long as ours");
        assert!(Holds::of(other).is_err(), "it may become shorter");
    }

    #[test]
    fn two_that_change_bits_of_one_word_lose_none() {
        let (owner, file) = Holds::create(64).expect("memory");
        let borrower = Holds::of(OwnedFd::from(file.0)).expect("the same");
        (0..32).for_each(|place| assert!(owner.hold(place)));
        std::thread::scope(|scope| {
            scope.spawn(|| (0..32).for_each(|place| assert!(borrower.let_go(place))));
            (32..64).for_each(|place| assert!(owner.hold(place)));
        });
        assert!((0..64).all(|place| owner.is_held(place) == (place >= 32)));
    }

    #[test]
    fn a_child_of_a_fork_has_the_file_and_not_the_mapping() {
        let (owner, file) = Holds::create(64).expect("memory");
        assert!(owner.hold(5));
        let at = owner.words.as_ptr().addr();
        let child = fork(|| {
            let inherited = std::fs::read_to_string("/proc/self/maps").expect("a list");
            let has_mapping = inherited.lines().any(|line| line.starts_with(&format!("{at:x}-")));
            let borrower = Holds::of(file.as_fd().try_clone_to_owned().expect("a number")).expect("the same");
            i32::from(has_mapping || !borrower.let_go(5))
        });
        assert_eq!(wait(child.expect("a child")).expect("its end").exit_status(), Some(0));
        assert!(!owner.is_held(5));
    }
}
